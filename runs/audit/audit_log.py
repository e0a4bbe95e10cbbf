"""audits.jsonl: every audit of a run file leaves a line beside it, so that trying again is seen.

One line of JSON an audit, appended under a lock and synced. Each names the SHA-256 of the line
before it, so that a line that was changed, taken out or put in between shows. Lines taken off the
end do not show, nor does a file that was deleted or written anew: who can write the folder can do
that. The file is never rewritten; what cannot be read in it is told.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ... import __version__
from ...privacy.bounded import read_bounded
from ...privacy.durable import BINARY, SHOWN, lock, write_all, write_durably
from ...privacy.errors import InputError
from ...privacy.formats.codec import Count, NotNegative, finite
from ..described import Described
from ..folder.folder import SUMS, forget_sums, write_sums
from ..run_file.run_file import RunFile
from ..run_file.tables import AuditTable, InterceptTable
from .evidence_schema import Audit, AuditSettings, AuditVerdict, Trail

TRAIL = "audits.jsonl"
_LARGEST = 64 << 20  # bytes; an audit has about six hundred
_TOLD = 5  # damaged places that are named


class AuditLine(Described):
    """One audit of a run file."""

    version: Annotated[Literal[1], Field(alias="schema")]
    time: str
    """Of its end, in UTC."""
    tool: str
    run: str
    """`run_digest` of the run file, overrides included."""
    settings: AuditSettings
    seed: Count
    seed_given: bool
    verdict: AuditVerdict
    measured: dict[str, NotNegative | None]
    """By adversary: the lower bound on epsilon."""
    before: str
    """SHA-256 of the line before this one; empty for the first."""


def run_digest(config: RunFile) -> str:
    """SHA-256 of a run file as it is resolved, without [intercept], [attack] and [audit].

    It is the same for a run file and for the run.toml of a folder that was trained from it.
    """
    bare = config.model_copy(
        update={
            "intercept": InterceptTable(),
            "audit": AuditTable(),
            "attack": type(config.attack)(),
        }
    )
    return hashlib.sha256(bare.to_toml().encode()).hexdigest()


def leave_trace(run_file: Path, config: RunFile, found: Audit) -> Trail:
    """Append an audit to the audits.jsonl beside a run file, and say what stands there now.

    Args:
        config: what it says, overrides included.

    Raises:
        OSError: the system refuses; the error names the file, and no line was left.
        ValueError: there is no regular file at its place, or it is too large; likewise.
    """
    path = run_file.parent / TRAIL
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file; move it away")
    assert found.settings is not None and found.seed is not None  # noqa: S101, PT018 # it is new
    # One audit after the other; a line that was cut off is ended first.
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | BINARY, SHOWN)
        try:
            lock(file, wait=True)  # until no other audit appends
            held = read_bounded(path, _LARGEST)
            torn = held != b"" and not held.endswith(b"\n")
            *_, last = [b"", *held.split(b"\n")[: None if torn else -1]]
            # Each line has the digest of the one before it.
            line = AuditLine(
                version=1,
                time=dt.datetime.now(dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
                tool=__version__,
                run=run_digest(config),
                settings=found.settings,
                seed=found.seed,
                seed_given=found.seed_given,
                verdict=found.verdict,
                measured={
                    adversary.name: adversary.measured_epsilon for adversary in found.adversaries
                },
                before=hashlib.sha256(last).hexdigest() if held else "",
            )
            text = json.dumps(finite(line.dump()), allow_nan=False)
            write_all(file, b"\n" * torn + text.encode() + b"\n")
        finally:
            os.close(file)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    if (run_file.parent / SUMS).exists():  # of a run whose own run.toml was audited
        forget_sums(run_file.parent, TRAIL)
    return read_trail([path], config) or Trail(audits=1, verdicts={}, others=0, damaged=[])


def read_trail(paths: Sequence[Path], config: RunFile) -> Trail | None:
    """What files of this kind say of a run together; None where there is none.

    A file that cannot be read is damage, which is told, and no reason to stop.

    Args:
        paths: of audits.jsonl, or of copies of it; a line that two of them hold counts once.
    """
    run, damaged = run_digest(config), list[str]()
    lines = dict[bytes, AuditLine | None]()
    there = [path for path in paths if os.path.lexists(path)]
    for path in there:
        try:
            held = read_bounded(path, _LARGEST)
        except (InputError, OSError) as error:
            damaged.append(f"{path.name} cannot be read: {error}")
            continue
        damaged += [f"{path.name} {told}" for told in _read(held, lines)]
    if not there:
        return None
    of_run = [line for line in lines.values() if line is not None and line.run == run]
    return Trail(
        audits=len(of_run),
        verdicts=dict(sorted(Counter(one.verdict for one in of_run).items())),
        others=sum(line is not None for line in lines.values()) - len(of_run),
        damaged=list(dict.fromkeys(damaged))[:_TOLD],
    )


def trail_of_folder(folder: Path, config: RunFile) -> Trail | None:
    """What is known of audits of the run file that a folder was trained from.

    Args:
        folder: of the run; the list is in it, as it was when it was trained, or beside it.
    """
    return read_trail([folder / TRAIL, folder.parent / TRAIL], config)


def keep_trail(run_file: Path, folder: Path) -> None:
    """Copy the list beside a run file into the folder that was trained from it, if there is one.

    Args:
        folder: of the run, which has ended; its digests are written anew.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = run_file.parent / TRAIL
    if not path.is_file() or (folder / TRAIL).exists() or path.stat().st_size > _LARGEST:
        return
    write_durably(folder / TRAIL, read_bounded(path, _LARGEST))
    if (folder / SUMS).exists():
        write_sums(folder)


def _read(held: bytes, lines: dict[bytes, AuditLine | None]) -> list[str]:
    """Add the lines of a file; what is wrong with them."""
    damaged = []
    before = ""
    whole = held.split(b"\n")
    if whole[-1]:
        damaged.append(f"line {len(whole)} is cut off")
    else:
        whole.pop()
    for at, line in enumerate(whole, start=1):
        try:
            found = AuditLine.parse(line, refusal="{}: {}".format)
        except InputError:
            found = None
            damaged.append(f"line {at} is no audit: it was changed or cut off")
        if found is not None and found.before != before:
            damaged.append(
                f"line {at} does not follow on line {at - 1}: lines were changed, taken out or put "
                "together from two files"
            )
        lines[line] = found
        before = hashlib.sha256(line).hexdigest()
    return damaged
