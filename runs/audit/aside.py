"""What an audit found before stays beside what it finds now."""

from __future__ import annotations

from pathlib import Path

from ...privacy.bounded import read_bounded
from ...privacy.durable import write_durably
from ..described import LARGEST_OBJECT, Described
from ..folder import folder as run_folder
from ..folder.sums import write_sums
from ..stop import Stop

__all__ = ["aside_name", "finish", "keep"]

"""What is said of an audit that is stopped: half of one is no evidence."""


def aside_name(held: Path) -> str:
    """The name that a result gets once there is a newer one: audit-1.json, and so on.

    >>> aside_name(Path("no-such-folder") / "audit.json")
    'audit-1.json'
    """
    count = 1
    while (held.parent / f"{held.stem}-{count}.json").exists():
        count += 1
    return f"{held.stem}-{count}.json"


def finish(stop: Stop, held: Path) -> None:
    """Hold what follows, the audit being done, and say no more that nothing of it is kept.

    >>> stop = Stop()
    >>> stop.at_once = print
    >>> finish(stop, Path("audit.json"))
    >>> stop.end_now()
    ended at once; the audit was done, and is in audit.json unless that was just being written
    """
    stop.note(f"the audit was done, and is in {held} unless that was just being written")
    stop.finish()


def keep(found: Described, held: Path, aside: str | None) -> None:
    """Write a result, and keep the one that was there; where it cannot be, leave all as it was.

    Args:
        found: the new one.
        held: where it belongs, in the folder of a run.
        aside: where the one that is there goes; None where there is none.

    Raises:
        OSError: the system refuses.
    """
    kept = None if aside is None else held.with_name(aside)
    try:
        if kept is not None:
            write_durably(kept, read_bounded(held, LARGEST_OBJECT))
        found.write(held)
    except OSError:
        if kept is not None:
            kept.unlink(missing_ok=True)
        raise
    if (held.parent / run_folder.SUMS).exists():
        write_sums(held.parent)
