"""Gradient canaries: planted records whose gradient is a vector of our choosing.

An agent's canaries are mutually orthogonal, so that each is looked at by itself: canary j has its
own w coordinates of the parameters, with a random sign at each,

    u_j = +-1 / sqrt(w) on w coordinates of its own, 0 elsewhere
    loss of canary j at the point x = sign * length * <u_j, x>

The gradient is sign * length * u_j wherever x is. Lengths of canaries that are guessed are spread
log-uniformly, three of four from C to 1,000 C and the fourth from there to the longest of which
the engine's precision can square the norm, so that it is the real clipping that brings each to C; a
few more, that nobody guesses, are spread from C / 2 to C and must not be changed by it. The sign is
drawn afresh for every release and round. Everything else that a record meets is the run's own:
sampling, clipping, noise, sending, mixing.

| symbol | name here      | shape  | meaning                               |
|--------|----------------|--------|---------------------------------------|
| n      | ``count``      | scalar | canaries that an agent holds at most  |
| D      | ``dimension``  | scalar | coordinates of a gradient, first block|
| u_j    | ``project``    | (n, D) | directions, never formed              |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.batches import Sampler
from ...training.data.store import Examples, Held, followed_by
from ...training.engine.engine import Engine
from ...training.engine.recording import Recorded
from ...training.engine.setting import Setting
from ...training.engine.transcript import Transcript
from ...training.gradients.clipping import Coefficient, OfModel, OfTask
from ...training.gradients.gradients import Batch, ClippedSums, Indices, PairGradients
from ...training.models.parameters import flatten
from ...training.models.tasks import Task
from ...training.tracing.trace import AlgorithmTrace
from ..checks.recording import WatchedRound
from ..checks.watched_run import to_cpu

LENGTH = 100.0  # of a canary's gradient before clipping, in clip norms, where none is drawn
SHORTEST = 0.5
_FAR, _SHARE = 1000.0, 0.25  # in clip norms; which share of canaries is longer


def drawn_norms(
    agents: int, long: int, short: int, *, far: float, generator: np.random.Generator
) -> np.ndarray:
    """(agents, long + short) norms of canaries before clipping, in clip norms.

    Of the first three of four, by chance, are log-uniform from 1 to 1,000 and the fourth from there
    to `far`; the others are log-uniform from a half to 1.
    """
    powers = generator.random((agents, long + short))
    norms = np.array([_FAR] * long + [SHORTEST] * short) ** powers
    norms[:, :long] *= np.where(
        generator.random((agents, long)) < _SHARE, _FAR * (far / _FAR**2) ** powers[:, :long], 1.0
    )
    return norms


def furthest(dtype: torch.dtype, clip_norm: float) -> float:
    """The longest gradient, in clip norms, that no engine may drop: 1e-4 of what it can square."""
    return max(_FAR, math.sqrt(torch.finfo(dtype).max) / 1e4 / max(1.0, clip_norm))


class Directions:
    """Orthogonal unit vectors, each on coordinates of its own.

    Args:
        count: n, how many.
        dimension: D; at least n.
        generator: of coordinates and signs.

    Raises:
        ValueError: more directions than coordinates.
    """

    def __init__(self, count: int, dimension: int, *, generator: np.random.Generator) -> None:
        if not 1 <= count <= dimension:
            raise InputError(
                f"count={count} orthogonal canaries must lie in 1..{dimension}, the number of "
                "coordinates; plant fewer, or use a larger model"
            )
        self.count, self.dimension = count, dimension
        self.width = dimension // count
        order = generator.permutation(dimension)[: count * self.width]
        self._order = torch.from_numpy(order)
        signs = generator.integers(2, size=len(order)) * 2.0 - 1.0
        self._signs = torch.from_numpy(signs / np.sqrt(self.width))
        self.owner = torch.full((dimension,), -1)  # which direction a coordinate belongs to
        self.owner[self._order] = torch.arange(count).repeat_interleave(self.width)
        self.entries = torch.zeros(dimension, dtype=torch.float64)
        self.entries[self._order] = self._signs

    def vector(self, j: int) -> Tensor:
        """(D,) the direction j."""
        return torch.where(self.owner == j, self.entries, 0.0)

    def coordinates(self, j: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """(w,) the coordinates of direction j, a number, and its entries there, as `like` is."""
        held = self._order.view(self.count, -1), self._signs.view(self.count, -1).to(like.dtype)
        at, entries = (part.to(like.device).index_select(0, j.reshape(1))[0] for part in held)
        return at, entries

    def project(self, rows: Tensor) -> Tensor:
        """(R, n) components of (R, D) rows along every direction, in float64."""
        picked = rows.index_select(1, self._order.to(rows.device)).cpu().double().mul_(self._signs)
        return picked.view(len(rows), self.count, self.width).sum(dim=2)


class CanaryTask:
    """A network's cross-entropy, or a task's loss, and beside it that of canaries.

    Targets are `coded`: behind each record's own stands 0, or the code of a canary. That of canary
    j is `1 + 2 j`, one more for the opposite sign, and `-1 - j` for a blank record in its place,
    whose gradient is 0 and which is left out of what is computed. Of n canaries with a length for
    each of several agents, that of canary j of agent a is `1 + 2 (a n + j)`.

    Args:
        objective: what the run minimises.
        directions: of the canaries, in the first block of coordinates.
    """

    def __init__(self, objective: nn.Module | Task, *, directions: Directions) -> None:
        self._base: OfModel | OfTask
        if isinstance(objective, nn.Module):
            self._base, self._task, self._start = OfModel(objective), None, flatten(objective)
            self.dimensions: tuple[int, ...] = (len(self._start),)
        else:
            self._base, self._task = OfTask(objective), objective
            self._start, self.dimensions = objective.initial(), objective.dimensions
        self.directions = directions
        self.lengths = torch.ones(1)  # of the gradients: (1,) of all, (n,) or (agents * n,)

    def initial(self) -> Tensor:
        """See `Task.initial`."""
        return self._start

    def project(self, value: Tensor) -> Tensor:
        """See `Task.project`."""
        return value if self._task is None else self._task.project(value)

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """See `Task.loss`."""
        own, planted = uncoded(target[None])
        is_canary = planted[0] > 0
        base = self._base.loss(self._base.pieces(point), inputs, own[0])
        code = (planted[0] - 1).clamp_min(0)
        which = code // 2
        # Its own coordinates alone: a pass over all of them for each record would take longer.
        at, entries = self.directions.coordinates(which % self.directions.count, point)
        sign = 1.0 - 2.0 * (code % 2).to(point.dtype)
        along = (entries * point.gather(0, at)).sum()
        lengths = self.lengths.to(point.device, point.dtype)
        length = lengths.gather(0, (which % len(lengths))[None])[0]
        return torch.where(is_canary, sign * length * along, base)


def coded(targets: Tensor, codes: Tensor) -> Tensor:
    """Targets (B,) or (B, K) with codes (B,) behind them: (B, 2) or (B, K + 1).

    In float32 a code is exact up to 2^24, which is more than canaries there are.
    """
    wide = targets[:, None] if targets.ndim == 1 else targets
    return torch.cat([wide, codes[:, None].to(wide)], dim=1)


def uncoded(targets: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `coded`: targets, and int64 codes."""
    own = targets[:, 0] if targets.shape[1] == 2 else targets[:, :-1]
    return own, targets[:, -1].long()


class Planting(ClippedSums, Protocol):
    """Gradients of a run in which canaries are planted, which take the place of the run's own."""

    @property
    def calls(self) -> Sequence[Any]:
        """What was planted in this round, in the order of its operations."""
        ...

    def begin(self, recorded: Recorded) -> None:
        """A round begins, of which this is the record."""
        ...


class Released(NamedTuple):
    """One call of the engine for gradients, and which canaries took part in it.

    Attributes:
        models: (K, M, D) points.
        owners, holders: (rows,) the model owner and the data owner of each row.
        batches: the ordinary records of each data owner.
        present: (holders, n) which canaries were in each data owner's batch: 1, -1 for the opposite
            vector of a replace-one game, 0 for absent; of several records of one person how many.
        drawn: (holders, n) whether each canary, or the blank record in its place, was drawn.
        signs: (rows, n) the sign of each canary in each row.
        norms: (holders, n) of each canary's gradient before clipping, in clip norms.
        clip_norm, coefficients: of the call.
    """

    models: Tensor
    owners: Tensor
    holders: Tensor
    batches: Sequence[Batch]
    present: np.ndarray
    drawn: np.ndarray
    signs: np.ndarray
    norms: np.ndarray
    clip_norm: float | None
    coefficients: Sequence[Coefficient]


class PlantedGradients:
    """The run's own clipped gradients, where some records are canaries.

    It takes the place of `PairGradients` in an engine: it gives each canary its sign for each
    row, keeps what was asked, and leaves the sums to `PairGradients`.

    Args:
        task: with the canaries' losses.
        clip_norm: of the run.
        generator: of the signs.
        norms: (agents, n) of the canaries' gradients, in clip norms; `LENGTH` by default.
        device, dtype: as of `PairGradients`.
        signs: of each call in turn (rows,) one for each row, and (n,) one for each canary, which
            are multiplied, in place of signs drawn afresh.
    """

    def __init__(
        self,
        task: CanaryTask,
        *,
        clip_norm: float,
        generator: np.random.Generator,
        device: torch.device,
        dtype: torch.dtype,
        norms: np.ndarray | None = None,
        signs: Iterator[tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self._signs = signs
        self._task, self._generator, self._clip_norm = task, generator, clip_norm
        self._norms = norms
        self._inner = PairGradients(task, "vmap", device=device, dtype=dtype)
        self._count = task.directions.count
        self.calls: list[Released] = []

    def begin(self, recorded: Recorded) -> None:  # noqa: ARG002 - one interface
        """A round begins."""
        self.calls = []

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,  # noqa: ARG002 - one interface
    ) -> Tensor:
        """See `PairGradients.clipped_sums`."""
        owners = torch.as_tensor(pairs[0], dtype=torch.int64).cpu()
        holders = torch.as_tensor(pairs[1], dtype=torch.int64).cpu()
        # Signs of each canary in every pair, drawn here or given.
        if self._signs is None:
            signs = self._generator.integers(2, size=(len(owners), self._count)) * 2 - 1
        else:
            signs = np.multiply.outer(*next(self._signs))
        # Canaries apart from ordinary records, and which of them took part with which sign.
        present = np.zeros((len(batches), self._count), dtype=np.int16)
        drawn = np.zeros(present.shape, dtype=bool)
        ordinary, canaries = list[Batch](), list[tuple[Batch, np.ndarray]]()
        for d, (inputs, targets) in enumerate(batches):
            own, codes = uncoded(targets)
            planted, empty = codes > 0, codes == 0
            ordinary.append((inputs[empty], own[empty]))
            code = (codes[planted] - 1).cpu().numpy()
            drawn[d, code // 2] = True
            drawn[d, (-1 - codes[codes < 0]).cpu().numpy()] = True
            np.add.at(present[d], code // 2, 1 - 2 * (code % 2))
            canaries.append(((inputs[planted], own[planted]), code))
        # What was released is kept for the scores.
        norms = self._norms
        if norms is None:
            norms = np.full((len(batches), self._count), LENGTH)
        self.calls.append(
            Released(
                models=(models[None] if models.ndim == 2 else models).detach().clone(),
                owners=owners,
                holders=holders,
                batches=ordinary,
                present=present,
                drawn=drawn,
                signs=signs,
                norms=norms,
                clip_norm=clip_norm,
                coefficients=tuple(coefficients),
            )
        )
        # Every pair has a batch of its own, in which canaries have its signs.
        scale = self._clip_norm / self._weight(coefficients)
        self._task.lengths = torch.from_numpy(norms.ravel() * scale)
        of_rows, bare = list[Batch](), dict[int, Batch]()
        for e, d in enumerate(holders.tolist()):
            (inputs, own), code = canaries[d]
            if d not in bare:
                x, y = torch.cat([ordinary[d][0], inputs]), torch.cat([ordinary[d][1], own])
                bare[d] = x, coded(y, torch.zeros(len(y), dtype=torch.int64, device=y.device))
            x, y = bare[d][0], bare[d][1].clone()
            j, bit = code // 2, code % 2
            turned = 1 + 2 * (d * self._count + j) + (bit ^ (signs[e, j] < 0))
            y[len(y) - len(own) :, -1] = torch.from_numpy(turned).to(y)
            of_rows.append((x, y))
        rows = list(range(len(holders)))
        return self._inner.clipped_sums(
            models, (owners, rows), of_rows, clip_norm=clip_norm, coefficients=coefficients
        )

    def _weight(self, coefficients: Sequence[Coefficient]) -> float:
        """By how much the combination of points shortens a gradient that is the same at all."""
        first = [float(c[0]) if isinstance(c, Tensor) else float(c) for c in coefficients]
        weight = abs(sum(first))
        if weight < 1e-6:
            raise InputError(
                f"coefficients={first} cancel a gradient that is the same at every point, so no "
                "canary can be planted; audit another algorithm, or set other coefficients"
            )
        return weight


def rounds_with_canaries(
    setting: Setting, bound: Bound, *, traces: AlgorithmTrace, rounds: int, gradients: Planting
) -> Iterator[WatchedRound]:
    """The start and so many rounds of a run, as they happen.

    Args:
        setting: with the canaries among its records.
        bound: the algorithm.
        traces: of it, for the unit that a canary is.
        rounds: how many.
        gradients: of records and canaries.
    """
    transcript = Transcript()
    how: dict[str, Any] = {"gradients": gradients, "scripts": traces.scripts}
    engine = Engine(setting, bound, taps=[transcript], **how)
    parts = [traces.start, *(t for t, count in traces.rounds for _ in range(count))]
    before: Mapping[str, Tensor] = {}
    for number, part in enumerate(parts[: rounds + 1]):
        recorded = Recorded()
        transcript.clear()
        gradients.begin(recorded)
        if number:
            engine.advance(recorded=recorded)
        else:
            engine.start(recorded=recorded)
        after, messages = engine.snapshot(), transcript.of(round=number)
        calls, kept = list(gradients.calls), to_cpu(recorded)
        yield WatchedRound(
            number=number,
            trace=part,
            messages=messages,
            before=before,
            after=after,
            recorded=kept,
            calls=calls,
        )
        before = after


# Records with the codes of canaries beside their targets, whatever the targets are.

_LOOKED_AT = 300  # rounds, of which it is counted how often a record is in them
_NONE = torch.zeros(0, dtype=torch.int64)


class _Coded:
    """What an agent holds, its targets coded.

    Args:
        held: records and canaries, as they are.
        codes: (n,) of all of them, 0 of those that are no canaries.
    """

    def __init__(self, held: Held, codes: Tensor) -> None:
        self._held, self._codes = held, codes

    @property
    def size(self) -> int:
        """How many records, canaries among them."""
        return self._held.size

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return self._held.record_shape

    @property
    def targets(self) -> Tensor:
        """All targets, coded."""
        return coded(self._held.targets, self._codes)

    @property
    def inputs(self) -> Tensor:
        """All inputs."""
        return self._held.inputs

    def take(self, positions: Tensor) -> Examples:
        """See `Store.take`."""
        found = self._held.take(positions)
        return Examples(found.inputs, coded(found.targets, self._codes[positions]))


def codes_of(
    coin: NDArray[np.bool_],
    own: NDArray[np.int64],
    short: NDArray[np.int64],
    *,
    replaced: bool,
    together: int | None = 1,
) -> Tensor:
    """(k,) the codes of a host's canaries, those that are guessed first.

    Args:
        coin: (n,) whether each is there, or which way it is turned.
        own: (n,) directions of those that are guessed.
        short: directions of the others, which are all there.
        replaced: whether one that is not there is there with the opposite sign.
        together: records of each; None where one that is not there leaves a blank record.

    >>> ways = np.array([0, 1]), np.array([2])
    >>> coin = np.array([True, False])
    >>> [codes_of(coin, *ways, replaced=False, together=k).tolist() for k in (1, None)]
    [[1, 5], [1, -2, 5]]
    """
    codes = np.where(coin, 1 + 2 * own, 2 + 2 * own if replaced else -1 - own)
    if together is not None:
        codes = np.repeat(codes[codes > 0], together)
    return torch.from_numpy(np.concatenate([codes, 1 + 2 * short]).astype(np.int64))


def with_codes_behind(shards: Sequence[Held], codes: Mapping[int, Tensor]) -> list[Held]:
    """Every agent's records, and some agents' canaries behind them.

    Nothing of a canary counts but its code. It has the inputs and the target of a record, at which
    the run's loss is finite.

    Args:
        shards: the records of each agent.
        codes: by agent (n,) of its canaries, none of which is 0.
    """
    return [_behind(shard, codes.get(agent, _NONE)) for agent, shard in enumerate(shards)]


def with_codes_in_place(
    shards: Sequence[Held],
    codes: Mapping[int, Tensor],
    *,
    sampler: Sampler,
    rounds: int,
    generator: np.random.Generator,
) -> list[Held]:
    """Every agent's records, some of some agents' canaries, or blank, in place of what they are.

    Where an order is public, canaries stand where a record takes part in most of the rounds;
    elsewhere, and among those, by chance.

    Args:
        codes: by agent (n,) of its canaries and blank records, of no more than it has records.
        sampler: of the run.
        rounds: of the run.
        generator: of the places.
    """
    found = []
    for agent, shard in enumerate(shards):
        every = torch.zeros(shard.size, dtype=torch.int64)
        own = codes.get(agent, _NONE)
        if len(own):
            often = _participations(sampler, agent, rounds=rounds) + generator.random(shard.size)
            at = np.argsort(-often)[: len(own)]
            every[torch.from_numpy(at.copy())] = own
        found.append(_coded(shard, every))
    return found


def _participations(sampler: Sampler, agent: int, *, rounds: int) -> NDArray[np.float64]:
    """(n,) in how many of the first rounds each record is drawn, as far as that is public."""
    counts = np.zeros(sampler.drawn[agent].records)
    if sampler.scheme.in_epochs:
        none = np.random.default_rng(0)  # of an order that is public nothing is drawn in secret
        for number in range(1, min(rounds, _LOOKED_AT) + 1):
            counts[sampler.draw(agent=agent, round=number, call=0, rate=1.0, generator=none)] += 1.0
    return counts


def _behind(held: Held, codes: Tensor) -> Held:
    if held.size:
        like = held.take(torch.zeros(len(codes), dtype=torch.int64))
    else:
        none = held.take(torch.zeros(0, dtype=torch.int64))
        like = Examples(*(part.new_zeros(len(codes), *part.shape[1:]) for part in none))
    before = torch.zeros(held.size, dtype=torch.int64)
    return _coded(followed_by(held, like), torch.cat([before, codes]))


def _coded(held: Held, codes: Tensor) -> Held:
    every = _Coded(held, codes)
    return Examples(every.inputs, every.targets) if isinstance(held, Examples) else every
