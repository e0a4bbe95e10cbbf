"""The ledger of a run folder, held against every other file that shows a round.

The digests of a ledger cannot tell that its last lines were taken away. What is written after a
release can: measurements, checkpoints and transcripts of a round that the ledger does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.releases.ledger import Spent, read_ledger
from ...training.exposure.guarantees import run_epsilon
from ..plan.plan import Plan
from ..run_file.run_file import RunFile
from ..run_file.trust import SOURCES
from .folder import CHECKPOINTS, LEDGER, METRICS, TRANSCRIPT, digest
from .records import read_metrics

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


def epsilon_so_far(config: RunFile, plan: Plan, released: Sequence[int]) -> float | None:
    """Epsilon of the target adversary after the rounds that a ledger names; None without one.

    Args:
        released: the number of each release.
    """
    numbers = [number for number in released if number > 0]
    if config.privacy is None or not numbers:
        return None
    repeated = len(set(numbers)) < len(numbers)
    return run_epsilon(
        plan.exposures[config.privacy.adversary],
        statement=plan.statement,
        noise_multiplier=plan.noise_multiplier,
        rounds=list(released) if repeated else len(numbers),
    )


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
