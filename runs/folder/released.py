"""The ledger of a run folder, held against every other file that shows a round.

The digests of a ledger cannot tell that its last lines were taken away. What is written after a
release can: measurements, checkpoints and transcripts of a round that the ledger does not name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...privacy.errors import InputError
from ...privacy.ledger import Spent, read_ledger
from .folder import CHECKPOINTS, LEDGER, METRICS, TRANSCRIPT
from .records import read_metrics

__all__ = ["read_released"]

_OF_ROUND = re.compile(r"(?:round|broken)-(\d+)\.safetensors")
_DISCARDED = re.compile(r"discarded-(\d+)")


def read_released(folder: Path) -> Spent:
    """What a run released, as its ledger names it.

    Raises:
        FileNotFoundError: there is no ledger.
        ValueError: it is damaged, or another file shows a round or a resumption that it lacks.
    """
    spent = read_ledger(folder / LEDGER)
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


def _shown(folder: Path) -> Iterator[tuple[Path, int]]:
    """Files and the highest round of which they show something."""
    measured = [line.round for line in read_metrics(folder / METRICS)]
    if measured:
        yield folder / METRICS, max(measured)
    for place in (folder / CHECKPOINTS, folder / TRANSCRIPT):
        for path in sorted(place.rglob("*.safetensors")):
            if named := _OF_ROUND.fullmatch(path.name):
                yield path, int(named[1])
