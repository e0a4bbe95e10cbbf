"""Whether runs are trained on the same records, without a word about these in what is published.

A digest of all records would confirm the last one to somebody who knows the others, so the ledger
and the sums hold none: they name the digest of a file that begins with a salt of its own. Two runs
are compared by the records themselves, as their run files give them today, once each was found to
be trained on these.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...privacy.bounded import check_size
from ...privacy.errors import InputError
from ...training.data.store import Held, digest_of_records
from ...training.engine.setting import Setting
from . import folder as run_folder
from .records import LedgerHeader, RecordsFile

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
    """Write records.json.

    Args:
        shards: the records of each agent.
    """
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

    Args:
        shards: the records of each agent, as its run file gives them today.

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

    Args:
        setting: of the run that is to go on.

    Raises:
        FileNotFoundError: records.json is missing.
        ValueError: the records are others today.
    """
    if setting.turns is not None:
        held_records(folder, header, setting.shards)


def _salted(salt: str, found: HeldRecords) -> str:
    return hashlib.sha256(f"{salt} {found.records} {found.held}".encode()).hexdigest()
