"""Watched rounds made again, with all randomness equal, while one record of an agent is changed.

A change is one of

    flipped   the record at a position takes part where it did not, and the other way round;
              where it is out, the store holds a stand-in in its place
    added     a record more stands at the end of the shard, and takes part

so that the record's whole influence shows in every round, however rarely batches hold it. Each
round begins with the state that was recorded, and everything that counts as seen is forced to what
it was (`ForcedRound`); the engine itself is carried from round to round, so what it remembers
besides its state shows as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from ...training.data.store import Examples, Held, followed_by
from ...training.engine.engine import Engine
from ...training.engine.recording import FunctionCall, KeptCalls, Recorded
from ...training.engine.transcript import Transcript
from ...training.step.operations import OPERATIONS, CarryOut, How, Operations, Readers, Values
from ...training.step.values import Value
from ...training.tracing.linear_forms import Contributions
from .recording import RecordedColumns, WatchedRound, influence
from .watched_run import WatchedRun, placed, to_cpu

# A round made again in which all that counts as seen is what it was the first time.
#
# The guarantee composes adaptively: in each round, given everything that was seen before, what is
# seen next may differ between neighbouring data sets by the record's own contributions alone. So an
# operation that sends a value, or counts it as seen, first says how far the value is from the one
# of the first run, and then goes on with that one. What is left of every difference is the direct
# influence of the records that were changed.


class ForcedRound:
    """Wrapped around a round, it gives every operation the values that a first run had.

    Args:
        given: what the operations of the first run were given, `Recorded.given`.

    Attributes:
        differences: for each of `given` how far the value was from it, in the rows of its base.
        hides: for each operation with a function whether its first argument is a secret, which
            stays what it is.
    """

    def __init__(self, given: Sequence[Value]) -> None:
        self._given = given
        self.differences: list[Tensor] = []
        self.hides: list[bool] = []

    def __call__(self, carry_out: CarryOut, name: str, values: Values, how: How) -> Any:
        """See `Operations.wrap`."""
        row = OPERATIONS[name]
        if row.calls:
            self.hides.append(row.hides)
        if row.readers is not Readers.HOLDER:
            secret = values[:2] if row.hides else ()  # and its function
            self._first_of(secret)
            values = (*secret, *self._first_of(values[len(secret) :]))
            how = {key: self._first_of(one) for key, one in how.items()}
        return carry_out(name, values, how)

    def _first_of(self, given: Any) -> Any:
        """The same with the values of the first run; how far each was from these is noted."""
        if type(given) in (tuple, list):
            return type(given)(map(self._first_of, given))
        if not isinstance(given, Value):
            return given
        at = len(self.differences)
        first = self._given[at] if at < len(self._given) else None
        if first is None or type(first) is not type(given) or first.base.shape != given.base.shape:
            raise UndeclaredOperation(
                "an operation is given another kind of value than in the first run"
            )
        first = placed(first, given.base.device)
        self.differences.append(given.base.double() - first.base.double())
        return type(given)(first.base, first.pick)


class Change(NamedTuple):
    """What is changed in one agent's data in one round."""

    position: int | None  # of the record that is flipped; None where one is added
    record: Examples  # (1, *shape) and its target (1,): the one that is added, or the stand-in


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Differences:
    """How a round on neighbouring data differs from the first one."""

    given: Sequence[Tensor]  # of each value an operation was given, in rows of its base, float64
    contributions: Sequence[Tensor]  # of each of `Recorded.contributions`
    moved: Sequence[Tensor]  # their lengths (rows,); of all replays together where two are compared
    end: Mapping[str, Tensor]  # of each Agents field of the state that was returned
    messages: bool  # whether the messages that left are those of the first run
    functions: bool  # whether functions got the same values, secrets apart, and gave the same
    noise: bool  # whether the same noise was drawn

    def beside(self, other: Differences) -> Differences:
        """How the round differs from another replay of it, in place of the first run."""
        return replace(
            self,
            given=[a - b for a, b in zip(self.given, other.given, strict=True)],
            contributions=[
                a - b for a, b in zip(self.contributions, other.contributions, strict=True)
            ],
            moved=[a + b for a, b in zip(self.moved, other.moved, strict=True)],
            end={name: value - other.end[name] for name, value in self.end.items()},
        )


class Replay(Engine):
    """An engine that makes the rounds of a watched run again.

    Args:
        run: a watched run, without ranks.

    Attributes:
        moved: where another record's place in a batch changed, in words; empty where nowhere.
        elsewhere: the last round, where agents held other records: as it was recorded.
    """

    keeps_to_turns = False  # a record that is changed takes part in every round

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._first: WatchedRound | None = None
        self._changes: Mapping[int, Change] = {}
        self._taken_out = frozenset[int]()
        self._batches: Mapping[int, Tensor] = {}
        self.moved = ""
        self.elsewhere: WatchedRound | None = None
        setting, like = run.setting, run.engine
        if like.layout != "given":
            # The layout in use: another one would round otherwise.
            setting = replace(setting, layout=like.layout)
        self._transcript = Transcript()
        super().__init__(
            setting,
            run.bound,
            randomness=run.randomness,
            taps=[self._transcript],
            scripts=like.scripts,
        )
        self._as_it_was, self._store = self.setting, dict(self._shards)
        self._forced: ForcedRound | None = None

    def draw_batch(self, *, call: int, agent: int, **how: Any) -> Tensor:
        """See `Engine.draw_batch`; a record that is changed takes part where it did not."""
        drawn = super().draw_batch(call=call, agent=agent, **how)
        recorded = None if self._first is None else self._first.recorded.batches
        before = None if recorded is None or call >= len(recorded) else recorded[call][agent]
        if before is None:
            return drawn
        change = self._changes.get(agent)
        records = len(self._as_it_was.shards[agent].targets)
        at = records if change is None or change.position is None else change.position
        others, first = drawn[drawn != at], before[before != at]
        if not torch.equal(others.sort().values, first.sort().values) and not self.moved:
            self.moved = f"batch {call} of agent {agent}"
        others = self._batches.get(agent, others)
        if change is None or agent in self._taken_out:
            return others
        return torch.cat([others, torch.tensor([at])]).sort().values

    def _make_round(self, index: int, **how: Any) -> Operations:
        made = super()._make_round(index, **how)
        if self._first is None:
            return made
        self._forced = ForcedRound(self._first.recorded.given)
        made.wrap(self._forced)
        return made

    def again(
        self,
        watched: WatchedRound,
        changes: Mapping[int, Change],
        *,
        shards: Mapping[int, Examples] | None = None,
        batches: Mapping[int, Tensor] | None = None,
    ) -> Differences:
        """Make a round again.

        Args:
            changes: by agent; none of an agent whose batch was planted.
            shards: of agents whose records are all others, as many as they were.
            batches: of agents whose batches hold other positions than were drawn, before a record
                is changed.

        Returns:
            How it differs from the first one.

        Raises:
            ValueError, TypeError, ArithmeticError, RuntimeError: the round does something else on
                the other records, or fails.
        """
        self._first, self._changes, self.moved = watched, changes, ""
        self._batches = batches or {}
        self._taken_out = frozenset(
            agent for agent, change in changes.items() if _takes_part(watched, agent, change)
        )
        self._change_store(shards or {})
        self._transcript.clear()
        calls = KeptCalls()
        recorded = Recorded(functions=calls)
        try:
            self._run.again(self, watched, recorded=recorded)
        finally:
            self._first = None
        made, found = placed(calls.calls, torch.device("cpu")), to_cpu(recorded)
        self.elsewhere = replace(watched, recorded=found) if shards else None
        return self._differences(watched, found, made)

    def _change_store(self, others: Mapping[int, Examples]) -> None:
        """Put changed shards into the setting and into the engine's own store."""
        shards, users = list(self._as_it_was.shards), self._as_it_was.users
        users = None if users is None else list(users)
        self._shards = dict(self._store)
        for agent, shard in others.items():
            shards[agent], self._shards[agent] = shard, self._placed(shard)
        for agent, change in self._changes.items():
            if change.position is None or agent in self._taken_out:
                shards[agent] = _changed(shards[agent], change)
                self._shards[agent] = _changed(self._shards[agent], change)
            if change.position is None and users is not None:  # one more of the last one's user
                users[agent] = torch.cat([users[agent], users[agent][-1:]])
        turns = self._as_it_was.turns
        if turns is not None:
            turns = turns.fitting([shard.size for shard in shards])
        self.setting = replace(self._as_it_was, shards=shards, users=users, turns=turns)

    def _differences(
        self, watched: WatchedRound, recorded: Recorded, calls: Sequence[FunctionCall]
    ) -> Differences:
        assert self._forced is not None  # noqa: S101 - for the type checker
        first, agents, after = watched.recorded, self.setting.graph.agents, self.snapshot()
        hides = [hidden for hidden in self._forced.hides for _ in range(agents)]
        changes = [
            new.double() - old.double()
            for new, old in zip(recorded.contributions, first.contributions, strict=True)
        ]
        return Differences(
            given=placed(self._forced.differences, torch.device("cpu")),
            contributions=changes,
            moved=[change.norm(dim=1) for change in changes],
            end={
                name: after[name].double() - value.double() for name, value in watched.after.items()
            },
            messages=_same(
                [message.rows for message in self._transcript],
                [message.rows for message in watched.messages],
            ),
            functions=_same(_tensors(calls, hides), _tensors(watched.calls, hides))
            and _same(recorded.known, first.known),
            noise=_same(recorded.noise, first.noise),
        )


def _takes_part(watched: WatchedRound, agent: int, change: Change) -> bool:
    """Whether a record was in a batch of the first run."""
    return change.position is not None and any(
        at is not None and bool((at == change.position).any())
        for at in (batch[agent] for batch in watched.recorded.batches)
    )


def _changed(shard: Held, change: Change) -> Held:
    """A shard with another record at a position, or with one more at its end."""
    if change.position is None:
        return followed_by(shard, change.record)
    inputs, targets = shard.inputs.clone(), shard.targets.clone()
    record = Examples(change.record.inputs.to(inputs), change.record.targets.to(targets))
    inputs[change.position], targets[change.position] = record.inputs[0], record.targets[0]
    return Examples(inputs, targets)


def _tensors(calls: Sequence[FunctionCall], hides: Sequence[bool]) -> list[Tensor]:
    """What functions were given and returned; of one that hides a secret what else it was given."""
    return [
        value
        for call, hidden in zip(calls, hides, strict=True)
        for value in (call.inputs[1:] if hidden else (*call.inputs, call.output))
    ]


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return len(some) == len(others) and all(map(same_numbers, some, others))


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Whether two values are equal; numbers that are none equal each other."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())


# Hold how a round differs on neighbouring data against what its trace says of one record.

_KINK = 0.1  # of the clip bound: what one record's gradient may jump by in float32


class Verdict(NamedTuple):
    """What was found in one replay of a round."""

    fault: str  # in words; empty where there is none
    agent: int | None  # whose record it is, where that is known
    share: float  # the largest influence of a record over its bound, among those within
    compared: int  # how many values were
    refused: bool = False  # whether the engine ended the round, since a number was not finite


class Judge:
    """Judges replays of one round."""

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
        """Judge one replay, in which one record of each of the `changed` agents was changed."""
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
        # Parts of one vector are in several groups, and share its bound.
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
        # A vector moves by no more than its bound, and not at all where no record changed.
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
        # All that is sent, is public or is carried on, with its row over the contributions.
        entries = [
            ("a value that is sent or is treated as public", rows, value, first.base)
            for rows, value, first in zip(
                record.given, found.given, self._watched.recorded.given, strict=True
            )
        ] + [
            (f"state {field}", rows, found.end[field], self._watched.after[field])
            for field, rows in record.end_state.items()
        ]
        # What the row does not account for is rounding.
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
