"""Records: a record is in a batch at most once, and in the store as often as in its source.

The unit of privacy is a record at a position of one agent's shard. What stands there twice by a
fault (a batch that is padded with a record that it holds, a record that two agents were dealt, a
row of the store that was copied over another) moves every sum twice as far as was accounted for.

Two people may have equal records, and then nothing is wrong: each is at a position of its own. So
equal records count as a fault where the store holds more of them than the source that it was dealt
from, or, where no source is known, at all; and are told in words where the source has as many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ...training.data.store import Store, blocks
from ..watching.result import Check
from ..watching.watched_run import WatchedRun

_NAME = "records"
_NAMED = 3  # places of one record in words


class _Place(NamedTuple):
    agent: int
    position: int


def record_check(run: WatchedRun, *, source: Store | None = None) -> Check:
    """Look for positions that a batch holds twice, and for records that the store does.

    Args:
        run: a watched run.
        source: all records that the agents' shards were dealt from, once each; None where it is
            not known, and then no two records may be equal.

    Returns:
        Passed if no batch holds a position twice, and no record is stored more often than it is in
        the source, nor any that it does not have, nor one of it left out.
    """
    batches, repeated = 0, ""
    for watched in run.rounds:
        for call, drawn in enumerate(watched.recorded.batches):
            for agent, at in enumerate(drawn):
                if at is None:
                    continue
                batches += 1
                position = _twice(at)
                if position is not None and not repeated:
                    repeated = (
                        f"batch {call} of agent {agent} in round {watched.number} holds record "
                        f"{position} {int((at == position).sum())} times"
                    )
    stored = _places(run.setting.shards)
    equal = {key: places for key, places in stored.items() if len(places) > 1}
    fault, told = _against(stored, equal, source)
    records = sum(len(places) for places in stored.values())
    words = f"the positions of {batches} batches and {records} records in the store were looked at"
    faults = [of for of in (repeated, fault) if of]
    if faults:
        words += f"; {'; '.join(faults)}"
    else:
        words += f"; no batch holds a position twice, and {told}"
    tests = batches + records
    return Check.exact(_NAME, f"{words}.", tests=tests, passed=not faults)


def _twice(at: torch.Tensor) -> int | None:
    """A position that a batch holds more than once."""
    positions, counts = at.unique(return_counts=True)
    return int(positions[counts > 1][0]) if bool((counts > 1).any()) else None


def _against(
    stored: dict[bytes, list[_Place]], equal: dict[bytes, list[_Place]], source: Store | None
) -> tuple[str, str]:
    """What is wrong with the store; and what is told where nothing is."""
    if source is None:
        if not equal:
            return "", "no two records are equal"
        return (
            f"{_named(next(iter(equal.values())))} are equal ({_extra(equal)} more records are "
            "equal to another one), and no source says that there are so many",
            "",
        )
    had = {key: len(places) for key, places in _places([source]).items()}
    for key, places in stored.items():
        if len(places) > had.get(key, 0):
            times = had.get(key, 0)
            return (
                f"{_named(places)}: stored {len(places)} times, and {times} times in the source",
                "",
            )
    missing = sum(had.values()) - sum(len(places) for places in stored.values())
    if missing:
        return f"{missing} records of the source are in no agent's store", ""
    if not equal:
        return "", "each record of the source is stored once"
    return "", (
        f"each record of the source is stored as often as it is there: {_extra(equal)} are equal "
        f"to another one ({_named(next(iter(equal.values())))}), and who has several of them is "
        "protected for each by itself"
    )


def _extra(equal: dict[bytes, list[_Place]]) -> int:
    return sum(len(places) - 1 for places in equal.values())


def _named(places: Sequence[_Place]) -> str:
    some = [f"record {of.position} of agent {of.agent}" for of in places[:_NAMED]]
    return " and ".join(some) + (" and others" if len(places) > _NAMED else "")


def _places(shards: Sequence[Store]) -> dict[bytes, list[_Place]]:
    """Where each record is, by its content: inputs and target."""
    found: dict[bytes, list[_Place]] = {}
    for agent, shard in enumerate(shards):
        for position, key in enumerate(_contents(shard)):
            found.setdefault(key, []).append(_Place(agent, position))
    return found


def _contents(shard: Store) -> Iterator[bytes]:
    for block in blocks(shard):
        rows = block.inputs.detach().cpu().flatten(1).contiguous().numpy()
        for row, target in zip(rows, block.targets.cpu().tolist(), strict=True):
            yield hashlib.blake2b(row.tobytes() + f" {target}".encode(), digest_size=16).digest()
