"""Values of the keys of a log of releases: each is what it must be, or is refused."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from .._validate import within
from ..errors import InputError

SERVER = "server"
_MOST_ROUND = 10**9
_LARGEST, _SMALLEST = 1e100, 1e-100
_LONGEST_NAME = 200
_DIGEST = re.compile("[0-9a-f]{64}")


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
    return str(integer(found, "batch", least=0, most=_MOST_ROUND))


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
