"""Values of the keys of a log of releases: each is what it must be, or is refused."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, within

SERVER = "server"
MOST_ROUND = 10**9
_LARGEST, _SMALLEST = 1e100, 1e-100
_LONGEST_NAME = 200
_DIGEST = re.compile("[0-9a-f]{64}")
_UNCLIPPED = "none"
_CLIP_KEYS = ("parts", "each", "bounded")


def receivers(found: Any, agents: int) -> frozenset[int] | None:
    """Who receives a release; None where it is public."""
    if found == "all":
        return None
    every = [found] if isinstance(found, str | int) else found
    if not isinstance(every, Sequence) or not every:
        raise InputError(
            f'to={shown(found)} must be a list of agents, "server", or "all" where it is public'
        )
    return frozenset(party(one, "to", agents) for one in every)


def party(found: Any, key: str, agents: int) -> int:
    """The number of an agent, or `agents` for the server."""
    if found == SERVER:
        return agents
    if isinstance(found, str):
        raise InputError(f'{key}={shown(found)} must be the number of an agent, or "server"')
    return integer(found, key, least=0, most=agents - 1)


def batch_name(found: Any) -> str:
    """The name of a batch, which a number may be."""
    if isinstance(found, str):
        check_name(found, "batch")
        return found
    return str(integer(found, "batch", least=0, most=MOST_ROUND))


def said_poisson(found: Mapping[str, Any]) -> bool | None:
    """Whether batches are drawn record by record; None where nothing is said."""
    said = found.get("sampler")
    if said is None:
        return None
    if said not in ("poisson", "other"):
        raise InputError(
            f"sampler={shown(said)} must be 'poisson', where each unit is drawn on its own, or "
            "'other', which counts at rate 1: no bound for shuffled batches is known here"
        )
    return bool(said == "poisson")


def probability(found: Any) -> float:
    """A sampling rate in [0, 1]."""
    value = number(found, "rate")
    within("rate", value, "[0, 1]", ", the probability to be in a batch")
    return value


def positive(found: Any, key: str) -> float:
    """A number above 0 whose square floats can hold."""
    value = number(found, key)
    if not _SMALLEST <= value <= _LARGEST:
        raise InputError(f"{key}={value:g} must be above 0, in [{_SMALLEST:g}, {_LARGEST:g}]")
    return value


def check_size(value: float, key: str) -> None:
    """Refuse a number whose square floats cannot hold."""
    if value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise InputError(f"{key}={value:g} must be 0 or of size {_SMALLEST:g} to {_LARGEST:g}")


def number(found: Any, key: str) -> float:
    """A finite number."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InputError(f"{key}={shown(found)} must be a number")
    try:
        value = float(found)
    except OverflowError:
        raise InputError(f"{key}={shown(found)} must be at most {_LARGEST:g}") from None
    if not math.isfinite(value):
        raise InputError(f"{key}={value} must be a finite number")
    return value


def integer(found: Any, key: str, *, least: int, most: int) -> int:
    """An integer between two bounds."""
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        raise InputError(f"{key}={shown(found)} must be an integer in {least}..{most}")
    return found


def digest(found: Any) -> str:
    """A SHA-256 as 64 hexadecimal digits."""
    if not isinstance(found, str) or not _DIGEST.fullmatch(found):
        raise InputError(f"kept={shown(found)} must be a SHA-256, 64 digits of 0-9 and a-f")
    return found


def check_text(found: Any, key: str) -> None:
    """Refuse what is no short printable text."""
    if not isinstance(found, str) or not found.strip() or len(found) > _LONGEST_NAME:
        raise InputError(f"{key}={shown(found)} must be a text of 1 to {_LONGEST_NAME} characters")
    if not found.isprintable():
        raise InputError(f"{key}={shown(found)} must be printable text in one line")


def check_name(found: Any, key: str) -> None:
    """Refuse a name that looks like another one: spaces at an end, or letters that are composed."""
    check_text(found, key)
    if found != unicodedata.normalize("NFC", found.strip()):
        raise InputError(
            f"{key}={shown(found)} must have no spaces at its ends and be in normal form NFC, so "
            "that names that look alike are one name"
        )


def check_choice(found: Mapping[str, Any], key: str, known: Sequence[str]) -> None:
    """Refuse a value that is none of the known ones; the key may be absent."""
    if key in found and found[key] not in known:
        raise InputError(f"{key}={shown(found[key])} must be {' or '.join(map(repr, known))}")


def check_keys(found: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """Refuse a key that nobody knows."""
    unknown = sorted(map(str, found.keys() - set(known)))
    if unknown:
        raise InputError(
            f"key {shown(unknown[0])} of {where} is unknown; it must be one of {', '.join(known)}"
        )


def shown(found: Any) -> str:
    """A value in at most 60 characters."""
    text = repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Clip(float):
    """A bound on the L2 norm of a vector that is kept to in another way than by scaling it whole.

    Attributes:
        parts: (size, bound) of the parts, end to end, each of which is clipped by itself; the bound
            is the norm of theirs. Empty where the system bounds vectors by a rule of its own.
    """

    parts: tuple[tuple[int, float], ...] = ()


def read_clip(found: Any) -> float:
    """A bound on the norm of a vector: of the whole, of parts, or by a rule of the system's own.

    >>> read_clip({"parts": [12, 12, 12, 12], "each": 1.0})
    2.0
    """
    if not isinstance(found, Mapping):
        return math.inf if found == _UNCLIPPED else positive(found, "clip")
    if found.keys() == {"bounded"}:
        return Clip(positive(found["bounded"], "clip"))
    sizes, each = found.get("parts"), found.get("each")
    bounds = list(each) if isinstance(each, list | tuple) else [each] * len(sizes or ())
    if (
        found.keys() != {"parts", "each"}
        or not isinstance(sizes, list | tuple)
        or not len(bounds) == len(sizes) > 0
    ):
        raise InputError(
            f'clip={shown(found)} must be a number, {{"parts": [12, 12], "each": 1.0}} with the '
            'sizes of the parts that are clipped by themselves and their bounds, or {"bounded": '
            "2.0} where the system bounds vectors by a rule of its own"
        )
    parts = tuple(
        (integer(size, "size of a part", least=1, most=MOST_ROUND), positive(one, "clip"))
        for size, one in zip(sizes, bounds, strict=True)
    )
    clip = Clip(math.hypot(*(one for _, one in parts)))
    clip.parts = parts
    return clip


def declaration(found: Any, key: str) -> Any:
    """A number that is declared, one for each round or vector, by kind, or a function's name."""
    if isinstance(found, Mapping) and not (key == "clip" and found.keys() & set(_CLIP_KEYS)):
        if not found or any(isinstance(one, Mapping) and key != "clip" for one in found.values()):
            raise InputError(
                f"{key}={shown(found)} must name kinds of releases, with their numbers"
            )
        return {str(kind): declaration(one, key) for kind, one in found.items()}
    if isinstance(found, Sequence) and not isinstance(found, str):
        return tuple(_declared_number(one, key) for one in found)
    if isinstance(found, str) and ":" in found:
        check_text(found, key)
        return found
    return _declared_number(found, key)


def _declared_number(found: Any, key: str) -> float:
    if key == "clip":
        return read_clip(found)
    value = number(found, key)
    check_size(value, key)
    return value
