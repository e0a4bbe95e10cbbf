"""Lines of a ledger: each carries a digest of all of the file before it, and has closed keys.

    {"round": 41, "releases": [], "noise_tested": {"rounds": 41, "numbers": 799500}, "chain": ...}

`noise_tested` may be missing: then nothing is said of the noise. The digest is SHA-256 over every
byte of the file up to the comma before `chain`: over the line's own content, over all lines before
it with their digests, and over what an interruption left. It begins with the header, which names
the run, so a line of another run does not fit either. It has no key: who rewrites every line after
a change is not found out by it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..formats.json_text import parse_json

__all__ = [
    "LONGEST_HEADER",
    "LONGEST_LINE",
    "READABLE",
    "SCHEMA",
    "TESTS_NOISE",
    "Chain",
    "check_release",
    "check_tested",
    "damaged",
    "is_complete_object",
    "parsed",
    "round_number",
]

# Raised with every change of a line or of the header (tests/test_formats.py): 1 had no digests; of
# 2 no line says which noise was tested; 3 may lack how far a release reaches.
SCHEMA = 4
READABLE = (2, 3, 4)
TESTS_NOISE = 3  # the first one whose lines say so
LONGEST_LINE = 1 << 20  # bytes
LONGEST_HEADER = 32 << 20  # it names every release where all rounds differ
_MOST_ROUND = 10**9
_KEY, _END = b', "chain": "', b'"}\n'
_TAIL = len(_KEY) + 64 + len(_END)
_DIGEST = re.compile(rb"[0-9a-f]{64}")


class Chain:
    """The digest of a file's bytes so far.

    >>> chain = Chain()
    >>> line = chain.line({"schema": 2}, before="", most=1000)
    >>> chain.body(line, path=Path("ledger.jsonl"), at=1)
    b'{"schema": 2}'
    """

    def __init__(self) -> None:
        self._hashed = hashlib.sha256()

    def add(self, data: bytes) -> None:
        """Take the next bytes of the file in."""
        self._hashed.update(data)

    def line(self, entry: Mapping[str, Any], *, before: str, most: int) -> bytes:
        """The line of an entry, with its digest.

        Args:
            entry: its keys without `chain`, at least one.
            before: what stands before the object.
            most: bytes that a reader takes.

        Raises:
            ValueError: the line is longer.
        """
        content = (before + json.dumps(entry, allow_nan=False)[:-1]).encode()
        if len(content) + _TAIL > most:
            raise InputError(
                f"a line of the ledger of {len(content) + _TAIL} bytes must have at most {most}; "
                "plan fewer rounds that differ, or fewer adversaries"
            )
        return content + _KEY + self._after(content).encode() + _END

    def body(self, line: bytes, *, path: Path, at: int) -> bytes | None:
        """The object of a line without its digest; None of a line that carries none.

        Raises:
            ValueError: the digest is not that of the file up to here.
        """
        content, tail = line[:-_TAIL], line[-_TAIL:]
        found = tail[len(_KEY) : -len(_END)]
        shaped = tail.startswith(_KEY) and tail.endswith(_END) and _DIGEST.fullmatch(found)
        if len(line) <= _TAIL or not shaped:
            return None
        if self._after(content).encode() != found:
            raise damaged(path, at, "by its digest, it or a line before it is not what was written")
        return content + b"}"

    def _after(self, content: bytes) -> str:
        hashed = self._hashed.copy()
        hashed.update(content)
        return hashed.hexdigest()


def damaged(path: Path, at: int, why: str) -> InputError:
    """The error of a line that no interruption explains."""
    return InputError(
        f"{path} line {at} is no entry: {why}; the ledger is damaged or was changed, and what the "
        "run released cannot be read from it: put it back as it was written"
    )


def parsed(body: bytes, *, path: Path, at: int) -> dict[str, Any]:
    """The object of a line whose digest is right.

    Raises:
        ValueError: it is none, names a key twice, or holds a number that is not finite.
    """
    try:
        found = parse_json(body.decode("utf-8"))
    except ValueError as error:
        raise damaged(path, at, "it is no JSON object whose keys differ") from error
    if not isinstance(found, dict):
        raise damaged(path, at, "it is no JSON object")
    return found


def is_complete_object(line: bytes) -> bool:
    r"""Whether a line that carries no digest is whole nevertheless: nothing cut that off.

    >>> is_complete_object(b'{"round": 3, "releases": []}\n')
    True
    >>> is_complete_object(b'{"round": 3, "rel')
    False
    """
    try:
        return line.endswith(b"\n") and isinstance(parse_json(line.decode("utf-8")), dict)
    except ValueError:
        return False


def round_number(value: Any, *, least: int) -> int | None:
    """The number of a round, None of what is none.

    >>> round_number(41, least=0), round_number(True, least=0), round_number(-1, least=0)
    (41, None, None)
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and least <= value <= _MOST_ROUND else None


def check_release(release: Any) -> None:
    """Refuse what is no release: {"kind": words}.

    Raises:
        ValueError: another key or kind.
    """
    if (
        not isinstance(release, Mapping)
        or release.keys() != {"kind"}
        or not isinstance(release["kind"], str)
    ):
        raise InputError(f'a release must be {{"kind": words}}, not {str(release)[:60]}')


def check_tested(tested: Any) -> None:
    """Refuse what does not say how much noise was tested: {"rounds": number, "numbers": number}.

    Raises:
        ValueError: other keys, or no whole numbers of at least 0.
    """
    if not isinstance(tested, Mapping) or tested.keys() != {"rounds", "numbers"}:
        raise InputError(
            f'noise_tested must be {{"rounds": n, "numbers": n}}, not {str(tested)[:60]}'
        )
    for name, value in tested.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(
                f"{name}={value!r:.20} of noise_tested must be a whole number, 0 or more"
            )
