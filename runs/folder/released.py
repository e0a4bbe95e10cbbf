"""What stands beside the ledger of a run folder: states, transcripts, and what names the records.

The digests of a ledger cannot tell that its last lines were taken away. What is written after a
release can: measurements, checkpoints and transcripts of a round that the ledger does not name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors

from ...privacy.errors import InputError
from ...privacy.files import check_size, sync_folder
from ...privacy.releases.ledger import Spent, read_ledger
from ...training.data.store import Held, digest_of_records
from ...training.engine.setting import Setting
from ...training.engine.tensor_file import Checkpoint, round_files
from ...training.engine.transcript import Transcript
from ...training.exposure.guarantees import run_epsilon
from ...training.exposure.sensitivity import JointSensitivity
from ..plan.plan import Plan
from ..run_file.run_file import RunFile
from ..run_file.trust import SOURCES
from . import folder as run_folder
from .folder import CHECKPOINTS, LEDGER, METRICS, TRANSCRIPT, digest
from .records import LedgerHeader, RecordsFile, read_metrics

# States to go on from, and what was intercepted.

_HALF_SAVED = "part"  # in the folder of transcripts


def snapshot_round(intercepted: int) -> int:
    """The round after which the state is kept, so that a re-enactment sees the round before too."""
    return max(intercepted - 2, 0)


def snapshot_rounds(intercepted: Iterable[int]) -> set[int]:
    """The rounds after which the state is kept for re-enactments."""
    return {snapshot_round(number) for number in intercepted}


def layout_of(start: Checkpoint, config: RunFile) -> str:
    """The layout with which a run goes on: that of its rounds, since layouts differ in rounding.

    Before the first round none is settled.
    """
    held = start.facts.get("layout") if start.round > 0 else None
    return config.training.layout if held is None else held


def forget_states(checkpoints: Path, *, kept: Callable[[int], bool], newest: int) -> None:
    """Remove all states but the newest, and those that are kept in any case.

    Args:
        kept: whether that after a round is.
        newest: how many of the others stay.
    """
    others = [path for number, path in round_files(checkpoints) if not kept(number)]
    for path in others[: len(others) - newest]:
        path.unlink()


def forget_half_saved(transcripts: Path) -> None:
    """Remove what a process left that died while it saved a transcript."""
    half = transcripts / _HALF_SAVED
    if half.is_dir():
        for path in half.iterdir():
            path.unlink()
        half.rmdir()


def save_transcript(transcript: Transcript, folder: Path) -> None:
    """Put what was intercepted into its place when it is whole, and forget it."""
    half = folder / _HALF_SAVED
    forget_half_saved(folder)
    try:
        written = transcript.save(half)
    except safetensors.SafetensorError as error:
        reason = errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO
        raise OSError(reason, os.strerror(reason), str(half)) from error
    for path in written:
        if (folder / path.name).exists():
            raise FileExistsError(f"{folder / path.name} exists; a transcript is never overwritten")
        with path.open("r+b") as file:
            os.fsync(file.fileno())
        path.replace(folder / path.name)
    half.rmdir()
    sync_folder(folder)
    sync_folder(folder.parent)
    transcript.clear()


# Whether runs are trained on the same records, without a word about these in what is published.
#
# A digest of all records would confirm the last one to somebody who knows the others, so the
# ledger and the sums hold none: they name the digest of a file that begins with a salt of its own.
# Two runs are compared by the records themselves, as their run files give them today, once each was
# found to be trained on these.


_LARGEST = 1 << 16  # bytes of records.json, which holds two strings


class HeldRecords(NamedTuple):
    """Digests, to be compared in memory alone.

    Attributes:
        records: of all records.
        held: of which agent holds which.
    """

    records: str
    held: str


def write_records(path: Path, shards: Sequence[Held]) -> None:
    """Write records.json."""
    salt = secrets.token_hex(16)
    digest = _salted(salt, HeldRecords(*digest_of_records(shards)))
    RecordsFile(salt=salt, digest=digest).write(path)


def check_records_file(folder: Path, header: LedgerHeader) -> None:
    """Refuse a records.json that is not the one of the ledger; a missing one says nothing false.

    Raises:
        ValueError: it is another run's, was changed, or is no regular file.
    """
    path = folder / run_folder.RECORDS
    if not os.path.lexists(path):
        return
    check_size(path, _LARGEST)
    if run_folder.digest(path) != header.records:
        raise InputError(
            f"{path} is not the file that the ledger names; put it back as it was written"
        )


def held_records(folder: Path, header: LedgerHeader, shards: Sequence[Held]) -> HeldRecords:
    """The records of a run, found to be those that it was trained on.

    Raises:
        FileNotFoundError: records.json is missing.
        ValueError: it is another run's, or the records are others today.
    """
    path = run_folder.require(folder, run_folder.RECORDS)
    check_records_file(folder, header)
    told = RecordsFile.read(path, refusal=lambda at, what: f"{path} cannot be read: {at}: {what}")
    found = HeldRecords(*digest_of_records(shards))
    if _salted(told.salt, found) != told.digest:
        raise InputError(
            f"the records that {folder / run_folder.RUN} gives today are not those that the run "
            "was trained on, so they cannot be compared, and turns would be others; put the data "
            "back"
        )
    return found


def check_turns(folder: Path, header: LedgerHeader, setting: Setting) -> None:
    """Refuse other records where turns follow from them: they would be in rounds of two patterns.

    Raises:
        FileNotFoundError: records.json is missing.
        ValueError: the records are others today.
    """
    if setting.turns is not None:
        held_records(folder, header, setting.shards)


def _salted(salt: str, found: HeldRecords) -> str:
    return hashlib.sha256(f"{salt} {found.records} {found.held}".encode()).hexdigest()


# Whether every other file that shows a round agrees with the ledger.

_OF_ROUND = re.compile(r"(?:round|broken)-(\d+)\.safetensors")
_DISCARDED = re.compile(r"discarded-(\d+)")


def read_released(folder: Path) -> Spent:
    """What a run released, as its ledger names it.

    Raises:
        FileNotFoundError: there is no ledger.
        ValueError: it is damaged, or another file shows a round or a resumption that it lacks.
    """
    spent = read_ledger(folder / LEDGER)
    _check_sources_file(folder, spent)
    for path, number in _shown(folder):
        if number > spent.last_announced:
            raise InputError(
                f"{path} is of round {number}, but its ledger ends at round "
                f"{max(spent.last_announced, 0)}: lines of {folder / LEDGER} are missing, or the "
                "folder's files do not belong together; put the ledger back as it was written, or "
                "start a new run in another folder"
            )
    for path in (folder / TRANSCRIPT).glob("discarded-*"):
        named = _DISCARDED.fullmatch(path.name)
        # Set aside just before the resumption is written down.
        if named and int(named[1]) > len(spent.resumed_after) + 1:
            raise InputError(
                f"{path} is of resumption {int(named[1])}, but the ledger names "
                f"{len(spent.resumed_after)}: lines of {folder / LEDGER} are missing; put it back "
                "as it was written"
            )
    return spent


def _check_sources_file(folder: Path, spent: Spent) -> None:
    """Refuse a sources.json that is not the one of the ledger, or that it does not know of."""
    named, path = spent.header.get("sources"), folder / SOURCES
    held = digest(path) if path.is_file() else None
    if held != named:
        raise InputError(
            f"{path} is not the file that the ledger names; put it back as it was written"
        )


def _shown(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files and the highest round of which they show something."""
    measured = [line.round for line in read_metrics(folder / METRICS)]
    if measured:
        yield folder / METRICS, max(measured)
    for place in (folder / CHECKPOINTS, folder / TRANSCRIPT):
        for path in sorted(place.rglob("*.safetensors")):
            if (named := _OF_ROUND.fullmatch(path.name)) and path.is_file():
                yield path, int(named[1])


def epsilon_of(
    plan: Plan, exposure: JointSensitivity, *, rounds: int | Sequence[int] | None = None
) -> float:
    """Epsilon of an exposure at the noise of a plan; see `run_epsilon`."""
    return run_epsilon(
        exposure, statement=plan.said_of, noise_multiplier=plan.noise_multiplier, rounds=rounds
    )


def epsilon_so_far(config: RunFile, plan: Plan, released: Sequence[int]) -> float | None:
    """Epsilon of the target adversary after the rounds that a ledger names; None without one."""
    numbers = [number for number in released if number > 0]
    if config.privacy is None or not numbers:
        return None
    repeated = len(set(numbers)) < len(numbers)
    rounds = list(released) if repeated else len(numbers)
    return epsilon_of(plan, plan.exposures[config.privacy.adversary], rounds=rounds)


def price_of_loss(plan: Plan, *, kept: int, announced: int) -> str:
    """What it costs to end before the next checkpoint, in words.

    Args:
        kept: the round of the newest checkpoint; -1 is none.
        announced: the last round in the ledger.
    """
    if announced <= kept:
        return "no round was released since the last checkpoint; continue with --resume"
    which = f"round {announced} was" if announced == kept + 1 else ""
    which = which or f"rounds {kept + 1} to {announced} were"
    since = (
        f"since the checkpoint after round {kept}" if kept >= 0 else "and there is no checkpoint"
    )
    state, it = ("its state", "it") if announced == kept + 1 else ("their state", "them")
    lost = f"{which} released {since}: {state} is lost"
    refused = [name for name, exposure in plan.exposures.items() if exposure.whole_run]
    if refused:
        return f"{lost}, and none may repeat for {refused[0]}, so start a new run elsewhere"
    return f"{lost}, and --resume releases {it} again, which counts twice"


def where_it_goes_on(out: Path, plan: Plan, *, after: int, repeated: Sequence[int]) -> str:
    """Where a run goes on, and what it releases a second time, in words.

    Args:
        after: the round of the checkpoint; -1 is before the start.
        repeated: the rounds that were released before, and will be again.
    """
    begun = f"The run in {out} goes on after round {after} of {plan.rounds}."
    if after < 0:
        begun = f"The run in {out} begins anew: no round was released."
        if repeated:  # the start: after a round a run does not begin anew
            begun += " Its start was released before; released again, it counts twice."
    again = [number for number in repeated if number > 0]
    if not again:
        return begun
    which = f"Round {again[0]} was"
    if len(again) > 1:
        which = f"Rounds {again[0]} to {again[-1]} were"
    return f"{begun} {which} released before; released again, each counts twice."
