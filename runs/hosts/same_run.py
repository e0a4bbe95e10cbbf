"""What must be the same on all ranks, or they would not compute one run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from ...privacy.errors import InputError

__all__ = ["check_same_facts", "program_facts"]

_OURS = Path(__file__).resolve().parents[2]
_PACKAGES = ("privacy", "training", "attacks", "runs", "reports", "commands", "testing")


def program_facts(packages: Mapping[str, str]) -> dict[str, str]:
    """The program that a rank runs, which can be told before anything is computed.

    Args:
        packages: versions by name.

    >>> facts = program_facts({"torch": "2.6"})
    >>> facts["version of torch"], len(facts["code of overhear"])
    ('2.6', 64)
    """
    code = hashlib.sha256()
    for path in sorted(path for ours in _PACKAGES for path in (_OURS / ours).rglob("*.py")):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        code.update(f"{path.relative_to(_OURS).as_posix()} {len(text)} ".encode() + text)
    return {
        "version of Python": "{}.{}".format(*sys.version_info),
        **{f"version of {name}": version for name, version in packages.items()},
        "code of overhear": code.hexdigest(),
    }


def check_same_facts(mine: Mapping[str, str], first: Mapping[str, str], *, name: str) -> None:
    """Refuse a rank that would compute something else than rank 0.

    Args:
        first: what rank 0 would.
        name: this rank in words.

    Raises:
        InputError: they differ, with what differs; of a text of several lines the first that does.

    >>> mine, first = {"version of torch": "2.6"}, {"version of torch": "2.7"}
    >>> try:
    ...     check_same_facts(mine, first, name="rank 1")
    ... except InputError as error:
    ...     print(str(error).partition(",")[0])
    rank 1 has another version of torch than rank 0 (2.6
    """
    for what in (*first, *(mine.keys() - first.keys())):
        ours, theirs = mine.get(what, "none"), first.get(what, "none")
        if ours != theirs:
            raise InputError(
                f"{name} has another {what} than rank 0 ({_where_they_differ(ours, theirs)}), so "
                "they would not compute one run; give all ranks the same"
            )


def _where_they_differ(ours: str, theirs: str) -> str:
    """The first line of each that the other has not in its place."""
    lines, others = ours.splitlines(), theirs.splitlines()
    shorter = min(len(lines), len(others))
    at = next((n for n in range(shorter) if lines[n] != others[n]), shorter)
    here, there = (held[at] if at < len(held) else "nothing more" for held in (lines, others))
    return f"{here}, not {there}"
