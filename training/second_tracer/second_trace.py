"""The second tracer: what each batch of a run shows of a record, from the operations alone.

A step runs on dense numbers, round by round; what an adversary sees is stacked and closed, and its
pseudo-inverse is taken. None of it is shared with the tracer whose figures it is held against: the
two have the step, the operations and the mathematics in common, and no code.

A round is done once for all rounds that must be equal to it: the step asked for no number, and its
public tensors and its graph are the same.

How far one record moves all that an adversary sees: singular values, and a pair of bounds.

    O = A G + B Z            what is seen, contributions, noise that the adversary does not know
    M = A_v' (B B')^+ A_v    mu^2 = max over |g_k| <= b_k of sum_kl <g_k, g_l> M_kl

The maximum is taken over vectors of any dimension. It is found by turning one vector after the
other to where the sum is largest; what is found is attained, so it is a lower bound. Multipliers
of the same vectors certify it from above.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.guarantee import Adversary, Sees, Unit
from ..graphs.graph import Graph, Topology
from ..step import values
from ..step.perform import histories_of, perform
from .dense_round import Contribution, DenseRound, Kind, Message, NotAnswered, Rows, Sources, zeros

_CUT = 1e-12  # of a row, below which noise counts as none
_SWEEPS, _CLOSE = 20_000, 1e-12


class Bracket(NamedTuple):
    """A squared joint sensitivity from below and from above."""

    low: float
    high: float


class Whitened:
    """A view in one block of the points, in coordinates in which its noise has unit variance.

    Args:
        contributions: (rows, parts of contributions), those of everybody.
        noise: (rows, sources), those that the adversary does not know.
    """

    def __init__(self, contributions: Array, noise: Array) -> None:
        norms = np.linalg.norm(np.hstack([contributions, noise]), axis=1)[:, None]
        held, hidden = contributions / norms, noise / norms
        # A contribution counts in units of its own, so that a small one is no rounding error.
        sizes = np.linalg.norm(held, axis=0)
        held = held / np.where(sizes > 0.0, sizes, 1.0)
        if not noise.size:
            self._rows = np.zeros((0, contributions.shape[1]))
            self._bare = np.abs(held).max(axis=0, initial=0.0) > 0.0
            return
        left, values, _ = np.linalg.svd(hidden, full_matrices=False)
        left, values = left[:, values > _CUT], values[values > _CUT]
        inside = left.T @ held
        self._rows = inside / values[:, None] * sizes
        # The directions themselves are known to rounding over the least noise that counts.
        rounding = 64 * np.finfo(float).eps / values.min(initial=1.0)
        self._bare = np.abs(held - left @ inside).max(axis=0, initial=0.0) > max(1e-11, rounding)

    def information(self, columns: NDArray[np.intp]) -> Array | None:
        """M of some columns; None where a combination of rows holds one of them and no noise."""
        if self._bare[columns].any():
            return None
        of = self._rows[:, columns]
        return np.asarray(of.T @ of)


def largest_move(found: Mapping[int, Array], bounds: Array, *, start: int = 0) -> Bracket:
    """The largest sum_kl <g_k, g_l> M_kl over vectors of bounded length.

    Args:
        found: (n, n) M of every block; vectors of different blocks stand at right angles.
        bounds: (n,) largest norms, over all blocks together.
        start: seed of the first directions.
    """
    if not np.isfinite(bounds).all():
        moved = [np.diag(of)[~np.isfinite(bounds)].any() for of in found.values()]
        return (
            Bracket(math.inf, math.inf)
            if any(moved)
            else largest_move(found, np.where(np.isfinite(bounds), bounds, 0.0))
        )
    scaled = {block: of * np.outer(bounds, bounds) for block, of in found.items()}
    count = len(bounds)
    signs = _signs(scaled)
    if signs is not None:  # all can point one way, so nothing is larger
        total = float(sum(np.abs(of).sum() for of in scaled.values()))
        if len(scaled) == 1:
            return Bracket(total, total)
    if count == 1:
        most = max(float(of[0, 0]) for of in scaled.values())
        return Bracket(most, most)
    return _ascended(scaled, count, start)


def _signs(scaled: Mapping[int, Array]) -> Array | None:
    """Signs that make every entry of a matrix positive, where there are some."""
    if len(scaled) != 1:
        return None
    (matrix,) = scaled.values()
    tiny = 1e-12 * float(np.abs(matrix).max(initial=0.0))
    signs = np.zeros(len(matrix))
    for first in range(len(matrix)):
        if signs[first]:
            continue
        signs[first], waiting = 1.0, [first]
        while waiting:
            at = waiting.pop()
            for other in np.flatnonzero(np.abs(matrix[at]) > tiny):
                sign = signs[at] * np.sign(matrix[at, other])
                if not signs[other]:
                    signs[other] = sign
                    waiting.append(int(other))
                elif signs[other] != sign:
                    return None
    return signs


def _ascended(scaled: Mapping[int, Array], count: int, start: int) -> Bracket:
    blocks = sorted(scaled)
    wide = math.isqrt(2 * count) + 2
    drawn = np.random.default_rng(start).standard_normal((count, len(blocks), wide))
    vectors = drawn / np.linalg.norm(drawn.reshape(count, -1), axis=1)[:, None, None]
    matrices = np.stack([scaled[block] for block in blocks])  # (blocks, n, n)
    low, high = 0.0, math.inf
    for sweep in range(_SWEEPS):
        for k in range(count):
            pulled = np.einsum("bl,lbw->bw", matrices[:, k], vectors)
            size = float(np.linalg.norm(pulled))
            if size > 0.0:
                vectors[k] = pulled / size
        if sweep % 20 == 0:
            pulls = np.einsum("bkl,lbw->kbw", matrices, vectors)
            low = float((pulls * vectors).sum())
            lam = np.linalg.norm(pulls.reshape(count, -1), axis=1)
            gap = max(
                float(np.linalg.eigvalsh(of - np.diag(lam)).max(initial=0.0)) for of in matrices
            )
            high = float(lam.sum()) + count * max(gap, 0.0)
            if high - low <= _CLOSE * max(low, 1e-300) * count:
                break
    return Bracket(low, high)


Array = NDArray[np.float64]
MOST_ROWS = 800  # of a view
_MEETS = 1e-8  # of two batches in one view, relative


class Exposure(NamedTuple):
    """What one batch of one round, or a whole run, shows of a record.

    Attributes:
        rate: the probability that the record is in the batch.
        squared: its squared joint sensitivity, at the noise of the run.
        ball: whether it moves within a ball.
        cohort: the probability that its agent takes part; None where that is not by a coin.
    """

    rate: float
    squared: Bracket
    ball: bool
    cohort: float | None = 1.0


class VictimShifts(NamedTuple):
    """What an adversary is told of one victim.

    Attributes:
        by_round: what each distinct round tells, and how many rounds there are of it.
        shared: whether batches of one round have noise in common, so that none stands alone.
    """

    by_round: tuple[tuple[int, tuple[Exposure, ...]], ...]
    shared: bool = False

    @property
    def sum_of_squares(self) -> float:
        """Of all rounds together, from below."""
        return math.fsum(n * one.squared.low for n, of in self.by_round for one in of)


class _Done(NamedTuple):
    """One round, or all rounds together: its columns, what is seen, and the state at its end."""

    sources: Sources
    seen: Sequence[Message]
    end: Sequence[Rows]  # that counts as seen, of every agent


@dataclass(slots=True)
class SecondTrace:
    """A run on dense numbers.

    Args:
        init: the start, with every number bound.
        step: the step, likewise.
        rounds: T.
        sampling_rate: at which a record is drawn where the step names no rate.
        unit: whose data are hidden.
        records: of one user.
        encrypted: whether nobody on a link can read what crosses it.
        seconds: that all questions together may take.
        released: the fields of the last state that count as seen where all rounds are one release;
            every one where None.

    Raises:
        NotAnswered: the run is too large, or does what this tracer has no answer for.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    graph: Topology
    rounds: int
    sampling_rate: float
    unit: Unit = Unit.RECORD
    records: int = 1
    encrypted: bool = False
    seconds: float = 20.0
    released: Sequence[str] | None = None
    _closed: list[tuple[int, _Done]] = field(default_factory=list)
    _whole: _Done | None = None
    remembers: bool = False
    _until: float = 0.0
    _views: dict[tuple[int, Adversary], _View] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to count the time."""
        self._until = time.monotonic() + self.seconds

    def _in_time(self) -> None:
        if time.monotonic() > self._until:
            raise NotAnswered(f"it would take more than {self.seconds:g} seconds")

    # Running the step.

    def _perform(self, number: int, state: Any, sources: Sources) -> tuple[DenseRound, Any]:
        """The start or a round, and the state after it."""
        self._in_time()
        done = DenseRound(self.graph.at(number), number=number, sources=sources)
        function = self.step if number else self.init
        state = perform(function, done, number=number, state=state).state
        self.remembers = self.remembers or bool(histories_of(state))
        return done, state

    @property
    def closed(self) -> list[tuple[int, _Done]]:
        """The start and every distinct round, each closed, with how many rounds are equal to it."""
        if self._closed:
            return self._closed
        state, known, number = None, dict[Any, int](), 0
        found: list[tuple[int, _Done]] = []
        # Rounds with equal graph and public state are one, unless a step asks for the number.
        while number <= self.rounds:
            key = (id(self.graph.at(number)), *_public(state))
            if number and key in known:
                at, same = known[key], isinstance(self.graph, Graph)
                times = self.rounds - number + 1 if same else 1
                found[at] = (found[at][0] + times, found[at][1])
                number += times
                continue
            sources = Sources()
            done, state = self._perform(number, state, sources)
            found.append((1, _Done(sources, done.seen, _ends(state))))
            if number and not done.asked_number and _public(state) == key[1:]:
                known[key] = len(found) - 1
            values_now = {
                name: values.Agents(zeros(self.graph.agents, _block(of)))
                for name, of in _forms(state).items()
            }
            state, number = state._replace(**values_now), number + 1
        self._closed = found
        return found

    @property
    def whole(self) -> _Done:
        """All rounds as one release; of the last state what is released."""
        if self._whole is None:
            seen: list[Message] = []
            sources, state = Sources(), None
            for number in range(self.rounds + 1):
                done, state = self._perform(number, state, sources)
                seen += done.seen
                if max(sum(len(one.rows) for one in seen), len(sources.columns)) > 8 * MOST_ROWS:
                    raise NotAnswered(f"all rounds together have more than {MOST_ROWS} rows")
            self._whole = _Done(sources, seen, _ends(state, self.released))
        return self._whole

    # Looking at it.

    def moves(self, adversary: Adversary, victim: int) -> VictimShifts:
        """What an adversary is told of a victim, round by round."""
        found, shared = [], False
        for count, done in self.closed:
            view = self._view(done, adversary)
            told, meet = self._told(view, victim)
            found.append((count, told))
            shared = shared or meet
        return VictimShifts(tuple(found), shared)

    def move_of_run(
        self, adversary: Adversary, victim: int, *, turns: Sequence[Sequence[int]] | None = None
    ) -> Bracket:
        """The squared joint sensitivity of all rounds as one release.

        Args:
            adversary: who sees.
            victim: whose record is at risk.
            turns: the sets of rounds in which a record may be, of which the worst counts; None
                where it may be in all.
        """
        view = self._view(self.whole, adversary)
        every = view.of(victim)
        best = Bracket(0.0, 0.0)
        for rounds in [None] if turns is None else turns:
            mine = [
                k for k in every if rounds is None or view.sources.contributions[k].round in rounds
            ]
            found = view.largest(mine, self._bound)
            best = Bracket(max(best.low, found.low), max(best.high, found.high))
        return best

    def _bound(self, one: Contribution) -> float:
        """How far the unit moves a contribution."""
        whole_vector = one.kind == Kind.BALL
        if self.unit is Unit.AGENT:
            return one.bound if whole_vector else math.inf
        if one.kind == Kind.USERS:
            return one.bound if self.unit is Unit.USER else 2.0 * one.bound
        return 2.0 * one.bound if whole_vector else one.bound

    def _rate(self, one: Contribution) -> float:
        """How likely the unit is in the batches of a contribution."""
        rate = self.sampling_rate if one.rate is None else one.rate
        times = len(one.batches)
        if one.users:
            return rate if self.unit is Unit.USER else 1.0
        if one.kind == Kind.USERS and self.unit is Unit.USER:
            times *= self.records
        return rate if times <= 1 else -math.expm1(times * math.log1p(-rate)) if rate < 1 else 1.0

    def _is_ball(self, ones: Sequence[Contribution]) -> bool:
        """Whether each of them stays in a ball, as a vector that is clipped whole does."""
        return self.unit is not Unit.AGENT and all(
            contribution.kind == Kind.BALL
            or (contribution.kind == Kind.USERS and self.unit is Unit.RECORD)
            for contribution in ones
        )

    def is_ball(self, victim: int) -> bool:
        """Whether all that a victim adds to the run stays in balls."""
        every = self.whole.sources.contributions
        return self._is_ball([one for one in every if one.owner == victim])

    def _told(self, view: _View, victim: int) -> tuple[tuple[Exposure, ...], bool]:
        groups: dict[Any, list[int]] = {}
        agent = self.unit is Unit.AGENT
        for k in view.of(victim):
            one = view.sources.contributions[k]
            groups.setdefault((one.cohort, () if agent else one.batches), []).append(k)
        told = []
        for mine in groups.values():
            ones = [view.sources.contributions[k] for k in mine]
            ball = self._is_ball(ones)
            rate = 1.0 if agent else self._rate(ones[0])
            squared = view.largest(mine, self._bound)
            told.append(Exposure(rate, squared, ball, ones[0].cohort))
        return tuple(told), len(groups) > 1 and view.meet(list(groups.values()))

    def _view(self, done: _Done, adversary: Adversary) -> _View:
        self._in_time()
        key = (id(done), adversary)
        if key not in self._views:
            rows: list[Rows] = list(done.end)
            for message in done.seen:
                seen = _seen_by(adversary, message, encrypted=self.encrypted)
                rows.append(message.rows[seen])
            self._views[key] = _View(done.sources, rows, adversary.agents)
        return self._views[key]


def _seen_by(adversary: Adversary, message: Message, *, encrypted: bool) -> list[int]:
    """Which rows of a message an adversary sees."""
    every = list(range(len(message.rows)))
    if message.parties is None:
        return every
    if adversary.sees is Sees.LINKS:
        return [] if encrypted else every
    if adversary.sees is Sees.OWN_LINKS:
        return [row for row in every if message.parties[row] & adversary.agents]
    return []


class _View:
    """What an adversary sees: rows in each block of the points, and who contributed what."""

    def __init__(self, sources: Sources, rows: Sequence[Rows], known: frozenset[int]) -> None:
        """Stack rows by block, and drop the noise that the agents in `known` made.

        Raises:
            NotAnswered: there are too many.
        """
        self.sources, self._blocks = sources, dict[int, Whitened]()
        columns, width = sources.columns, len(sources.columns)
        parts = [at for at, column in enumerate(columns) if isinstance(column, tuple)]
        hidden = [
            at
            for at, column in enumerate(columns)
            if isinstance(column, frozenset) and not column & known
        ]
        self._places = {columns[at]: place for place, at in enumerate(parts)}
        for block in sorted({of.block for of in rows}):
            stacked = [of.wide(width) for of in rows if of.block == block]
            table = np.unique(np.vstack(stacked)[:, [*parts, *hidden]], axis=0)
            table = table[np.abs(table).max(axis=1, initial=0.0) > 0.0]
            if len(table) > MOST_ROWS:
                raise NotAnswered(
                    f"the view has {len(table)} rows, and at most {MOST_ROWS} are checked"
                )
            self._blocks[block] = Whitened(table[:, : len(parts)], table[:, len(parts) :])

    def of(self, victim: int) -> list[int]:
        """The contributions of a victim."""
        return [
            k
            for k, contribution in enumerate(self.sources.contributions)
            if contribution.owner == victim
        ]

    def _information(self, ks: Sequence[int]) -> dict[int, Array] | None:
        """M of contributions in every block; None where one of them shows without noise."""
        found = {}
        for block, whitened in self._blocks.items():
            there = [at for at, k in enumerate(ks) if (k, block) in self._places]
            of = np.zeros((len(ks), len(ks)))
            inner = whitened.information(
                np.array([self._places[ks[at], block] for at in there], int)
            )
            if inner is None:
                return None
            of[np.ix_(there, there)] = inner
            found[block] = of
        return found

    def largest(self, ks: Sequence[int], bound: Callable[[Contribution], float]) -> Bracket:
        """The squared joint sensitivity of contributions."""
        if not ks:
            return Bracket(0.0, 0.0)
        found = self._information(ks)
        if found is None:
            return Bracket(math.inf, math.inf)
        bounds = np.array([bound(self.sources.contributions[k]) for k in ks])
        return largest_move(found, bounds) if found else Bracket(0.0, 0.0)

    def meet(self, groups: Sequence[Sequence[int]]) -> bool:
        """Whether contributions of different groups have noise in common."""
        every = [k for group in groups for k in group]
        which = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        apart = which[:, None] != which[None]
        for of in (self._information(every) or {}).values():
            sizes = np.sqrt(np.outer(of.diagonal(), of.diagonal()))
            if (np.abs(of[apart]) > _MEETS * np.maximum(sizes[apart], 1e-300)).any():
                return True
        return False


def _forms(state: Any) -> dict[str, values.Agents]:
    """The fields of a state that are no public tensors."""
    return {n: of for n, of in state._asdict().items() if isinstance(of, values.Agents)}


def _ends(state: Any, names: Sequence[str] | None = None) -> list[Rows]:
    """The fields that count as seen, of those that are named; a history never does."""
    never = histories_of(state)
    return [
        of.rows
        for name, of in _forms(state).items()
        if name not in never and (names is None or name in names) and isinstance(of.rows, Rows)
    ]


def _block(of: values.Agents) -> int:
    return of.rows.block if isinstance(of.rows, Rows) else 0


def _public(state: Any) -> tuple[Any, ...]:
    """The public tensors of a state, by content."""
    if state is None:
        return ()
    return tuple(
        (name, of.detach().cpu().numpy().tobytes())
        for name, of in state._asdict().items()
        if isinstance(of, Tensor)
    )
