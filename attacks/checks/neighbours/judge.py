"""Hold how a round differs on neighbouring data against what its trace says of one record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....training.tracing.linear_forms import Contributions
from ...watching.recorded_columns import RecordedColumns, influence
from ...watching.watched_round import WatchedRound
from .replay import Differences

_KINK = 0.1  # of the clip bound: what one record's gradient may jump by in float32


class Verdict(NamedTuple):
    """What was found in one replay of a round.

    Attributes:
        fault: in words; empty where there is none.
        agent: whose record it is, where that is known.
        share: the largest influence of a record over its bound, among those within.
        compared: how many values were.
    """

    fault: str
    agent: int | None
    share: float
    compared: int


class Judge:
    """Judges replays of one round.

    Args:
        watched: the round as it was first.
    """

    def __init__(self, watched: WatchedRound) -> None:
        self._watched = watched
        self._columns = RecordedColumns(watched)
        self._groups = [g for g in watched.trace.groups if isinstance(g, Contributions)]
        self._made = [value.double().norm(dim=1).numpy() for value in self._recorded]
        self._allowed: dict[int, np.ndarray] = {}

    @property
    def _recorded(self) -> Sequence[Tensor]:
        return self._watched.recorded.contributions

    def verdict(self, found: Differences, changed: frozenset[int]) -> Verdict:
        """Judge one replay.

        Args:
            found: how it differs from the first run.
            changed: the agents of which one record was changed.
        """
        share, compared = 0.0, 0
        for fault, agent, part, count in self._parts(found, changed):
            share, compared = max(share, part), compared + count
            if fault:
                return Verdict(fault, agent, share, compared)
        return Verdict("", None, share, compared)

    def _parts(
        self, found: Differences, changed: frozenset[int]
    ) -> Iterator[tuple[str, int | None, float, int]]:
        yield self._bounded(found, changed)
        alone = (
            (found.noise, "the noise that is drawn"),
            (found.functions, "what a function is given or returns, where nothing differed before"),
            (found.messages, "a message that leaves, whose value is the same"),
        )
        for same, what in alone:
            yield "" if same else f"changes {what}", None, 0.0, 1
        yield from self._explained(found)

    def _bounded(
        self, found: Differences, changed: frozenset[int]
    ) -> tuple[str, int | None, float, int]:
        """Each contribution's difference is within its bound, or zero where nothing changed."""
        squares = dict[int, float]()
        facts = dict[int, tuple[int, float, float]]()  # owner, bound and rounding of a vector
        unit = max((torch.finfo(value.dtype).eps for value in self._recorded), default=0.0)
        single = unit > torch.finfo(torch.float64).eps
        for group, made, difference in zip(
            self._groups, self._made, found.contributions, strict=True
        ):
            lengths = difference.norm(dim=1).tolist()
            for i, (length, size) in enumerate(zip(lengths, made.tolist(), strict=True)):
                vector, bound = group.first_vector + i, float(group.bounds[i])
                finite = bound if math.isfinite(bound) else 0.0
                slack = math.sqrt(unit) * (size + finite) + _KINK * finite * single
                owner, _, before = facts.get(vector, (0, 0.0, 0.0))
                facts[vector] = (int(group.owners[i]), bound, before + slack)
                squares[vector] = squares.get(vector, 0.0) + length**2
        share, worst, fault, agent = 0.0, 0.0, "", None
        for vector, (owner, bound, slack) in facts.items():
            length = math.sqrt(squares[vector])
            allowed = bound if owner in changed else 0.0
            if not length <= allowed + slack:
                over = length / (allowed + slack) if length == length else math.inf
                if over > worst:
                    worst, agent = over, owner
                    fault = (
                        f"moves a contribution of agent {owner} by {length:.6g}, where its bound "
                        f"is {bound:.6g}"
                        if owner in changed
                        else f"moves a contribution of agent {owner} by {length:.4g}, where none "
                        "of that agent's records changed"
                    )
            elif allowed and math.isfinite(bound):
                share = max(share, length / bound)
        return fault, agent, share, len(facts)

    def _explained(self, found: Differences) -> Iterator[tuple[str, int | None, float, int]]:
        """Every value that is sent, counts as seen or is carried on changes as its row says."""
        record = self._watched.trace.record
        starts = [group.start for group in self._groups]
        changes = [value.numpy() for value in found.contributions]
        moved = [lengths.numpy() for lengths in found.moved]
        entries = [
            ("a value that is sent or is treated as public", rows, value, first.base)
            for rows, value, first in zip(
                record.given, found.given, self._watched.recorded.given, strict=True
            )
        ] + [
            (f"state {field}", rows, found.end[field], self._watched.after[field])
            for field, rows in record.end_state.items()
        ]
        for number, (what, rows, difference, first) in enumerate(entries):
            left = difference.numpy()
            if number not in self._allowed:
                size = np.linalg.norm(first.double().numpy(), axis=1)
                known = 0.0 if isinstance(rows, Tensor) else self._columns.rounding(rows)
                self._allowed[number] = known + 64 * self._columns.unit * size
            allowed = self._allowed[number]
            if not isinstance(rows, Tensor):
                left = left - influence(rows, starts, changes, width=left.shape[1])
                # What was zero in the first run, of an empty batch, is rounded in a replay.
                allowed = allowed + self._columns.rounding_of(rows, starts, moved)
            lengths = np.linalg.norm(left, axis=1)
            wrong = ~(lengths <= allowed)
            fault = ""
            if wrong.any():
                at = int(wrong.argmax())
                fault = (
                    f"moves {what} (row {at}) by {lengths[at]:.4g} more than its trace says, where "
                    f"rounding accounts for {allowed[at]:.2g}"
                )
            yield fault, None, 0.0, len(lengths)
