"""Where faults are planted: what a source of noise draws, gradients, batches, roots.

Each context manager changes one thing for as long as it is open. They act on the sampler, the
gradient layouts and the engine, below the script that a round follows, and know of a run what the
function there knows: so the recorded noise is the faulty one, and nothing but the values is wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import Purpose, SecretRandomness
from overhear.training.engine.setting import Setting
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.gradients.clipping import clip_factors
from overhear.training.gradients.gradients import PairGradients
from overhear.training.step.values import Agents, Edges, Value

ROUNDS = 24  # of the runs that are audited


class Draw(NamedTuple):
    """What is known where noise is drawn.

    Attributes:
        round, call: of the run.
        rows: (rows,) the numbers of the sources.
        setting: of the engine that was made last; None before any was.
        holders: (rows,) who holds each row; None where rows are shared sources, and where somebody
            draws noise without a round.
        sizes: for each agent how many records its last batch has.
    """

    round: int
    call: int
    rows: Sequence[int]
    setting: Setting | None
    holders: Sequence[int] | None
    sizes: Mapping[int, int]


@dataclass
class _Seen:
    """The engine at work."""

    setting: Setting | None = None
    holders: Sequence[int] | None = None
    sizes: dict[int, int] = field(default_factory=dict)


@contextmanager
def seen_engine(seen: _Seen) -> Iterator[None]:
    """Keep the setting of the engine that is made, and the sizes of what it draws."""
    sound, drawn = Engine.__init__, Engine.draw_batch

    def init(self, setting, *args, **how):
        seen.setting = setting
        sound(self, setting, *args, **how)

    def draw_batch(self, *, round, call, agent, rate):
        at = drawn(self, round=round, call=call, agent=agent, rate=rate)
        seen.sizes[agent] = len(at)
        return at

    with patch.object(Engine, "__init__", init), patch.object(Engine, "draw_batch", draw_batch):
        yield


def holders_of(round: TensorRound, like: Value) -> list[int] | None:
    """(rows,) the agent that holds each row of a value of noise; None of the server's."""
    if isinstance(like, Edges):
        return round._links.receivers.tolist()
    return list(round._links.mine) if isinstance(like, Agents) else None


@contextmanager
def changed_draws(change: Callable[[torch.Tensor, Draw], torch.Tensor]) -> Iterator[None]:
    """Standard normal rows, (rows, width), changed as they are drawn."""
    seen, sound, rounds = _Seen(), SecretRandomness.normal, TensorRound.noise

    def normal(self, *, round, call, rows, **how):
        z = sound(self, round=round, call=call, rows=rows, **how)
        at = Draw(round, call, rows, seen.setting, seen.holders, seen.sizes)
        return change(z, at).to(z)

    def noise(self, like, *, std, factor=None, known_to=None):
        seen.holders = holders_of(self, like) if factor is None else None
        try:
            return rounds(self, like, std=std, factor=factor, known_to=known_to)
        finally:
            seen.holders = None

    with (
        seen_engine(seen),
        patch.object(SecretRandomness, "normal", normal),
        patch.object(TensorRound, "noise", noise),
    ):
        yield


def scaled_draws(scale: Callable[[Draw, int], torch.Tensor | float]) -> contextmanager:
    """Noise times `scale(at, width)`: a number, (rows, 1) or (width,)."""
    return changed_draws(lambda z, at: z * scale(at, z.shape[1]))


def tensors_of(at: Draw, width: int) -> list[tuple[str, slice]]:
    """Name and coordinates of each parameter tensor; none of a block of another width."""
    found, start = [], 0
    if at.setting is not None:
        for name, of in at.setting.model.named_parameters():
            found.append((name, slice(start, start + of.numel())))
            start += of.numel()
    return found if start == width else []


def changed_noise(
    share: Callable[[TensorRound, Value], torch.Tensor],
) -> AbstractContextManager[None]:
    """Noise, once it is drawn and recorded, times a factor for each of its rows, (rows, 1)."""
    sound = TensorRound.noise

    def noise(self, like, *, std, factor=None, known_to=None):
        z = sound(self, like, std=std, factor=factor, known_to=known_to)
        return type(like)(z.rows * share(self, like).to(z.rows))

    return patch.object(TensorRound, "noise", noise)


def other_streams(
    of: Callable[[int, int, int], tuple[int, int, int]],
) -> AbstractContextManager[None]:
    """Noise from the stream of another (round, call, row)."""
    sound = SecretRandomness.counter

    def counter(self, purpose, *, round, call, row):
        at = (round, call, row)
        is_noise = purpose in (Purpose.NOISE, Purpose.HARDENED_NOISE)
        number, use, source = of(*at) if is_noise else at
        return sound(self, purpose, round=number, call=use, row=source)

    return patch.object(SecretRandomness, "counter", counter)


def other_roots(root: Callable[[], int]) -> AbstractContextManager[None]:
    """A root of `root()` where one of the system's entropy is asked for."""
    sound = SecretRandomness.__init__

    def init(self, given=None, *, hardened=False):
        sound(self, root() if given is None else given, hardened=hardened)

    return patch.object(SecretRandomness, "__init__", init)


def expected_size(setting: Setting | None, batches: Sequence[tuple]) -> float:
    """Records that are expected in a batch; where no engine was made, those that are there."""
    if setting is None:
        return max(1.0, mean(len(targets) for _, targets in batches))
    return max(1.0, setting.sampling_rate * mean(len(s.targets) for s in setting.shards))


@contextmanager
def other_sums(wrong: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Sums of gradients by `wrong(plain, pairs, batches, clip_norm, size)`.

    `plain(bound)` gives the sound ones at a bound, `size` is what a batch is expected to have.
    """
    seen, sound = _Seen(), PairGradients.clipped_sums

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **_):
        def plain(bound):
            return sound(self, models, pairs, batches, clip_norm=bound, coefficients=coefficients)

        return wrong(plain, pairs, batches, clip_norm, expected_size(seen.setting, batches))

    with seen_engine(seen), patch.object(PairGradients, "clipped_sums", clipped_sums):
        yield


class Records(NamedTuple):
    """The records whose gradients are clipped.

    Attributes:
        row: (n,) which sum each belongs to, in order.
        clip_norm: the bound.
        tensors: coordinates of each parameter tensor; none where they are not known.
    """

    row: torch.Tensor
    clip_norm: float
    tensors: Sequence[slice]

    @property
    def place(self) -> torch.Tensor:
        """(n,) the position of each record in its batch."""
        first = torch.searchsorted(self.row, self.row)
        return torch.arange(len(self.row)) - first


@contextmanager
def other_clipping(clip: Callable[[torch.Tensor, Records], torch.Tensor]) -> Iterator[None]:
    """Records' gradients (n, D) clipped by `clip`, then summed as ever."""
    seen, sound = _Seen(), PairGradients.clipped_sums

    def clipped_sums(self, models, pairs, batches, *, clip_norm, coefficients=(1.0,), **how):
        owners = torch.as_tensor(pairs[0]).tolist()
        holders = torch.as_tensor(pairs[1]).tolist()
        if clip_norm is None or not any(len(batches[d][1]) for d in holders):
            how |= {"clip_norm": clip_norm, "coefficients": coefficients}
            return sound(self, models, pairs, batches, **how)
        # Every record as a batch of its own, whose sum nothing clips.
        starts = np.cumsum([0, *(len(targets) for _, targets in batches)])
        alone = [(x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(len(y))]
        row = [e for e, d in enumerate(holders) for _ in range(len(batches[d][1]))]
        at = [int(starts[d]) + i for d in holders for i in range(len(batches[d][1]))]
        each = sound(
            self, models, ([owners[e] for e in row], at), alone, clip_norm=None,
            coefficients=coefficients,
        )  # fmt: skip
        of = Draw(0, 0, (), seen.setting, None, {})
        rows = torch.tensor(row)
        tensors = [at for _, at in tensors_of(of, each.shape[1])]
        out = torch.zeros(len(owners), each.shape[1]).to(each)
        return out.index_add_(0, rows, clip(each, Records(rows, clip_norm, tensors)).to(each))

    with seen_engine(seen), patch.object(PairGradients, "clipped_sums", clipped_sums):
        yield


def clipped(rows: torch.Tensor, bound: float) -> torch.Tensor:
    """Rows (n, D) brought within a bound as the layouts do it."""
    return rows * clip_factors(rows.square().sum(dim=1), bound)[:, None]


@dataclass(frozen=True)
class Asked:
    """A batch that an engine is asked for: of whom, when, and how the sound one is drawn."""

    engine: Engine
    round: int
    call: int
    agent: int
    rate: float
    sound: Callable[[float], torch.Tensor]

    @property
    def records(self) -> int:
        """How many the agent has."""
        return len(self.engine.setting.shards[self.agent].targets)

    def stream(self, *, round: int) -> np.random.Generator:
        """The agent's stream for the batch of a round."""
        return self.engine._randomness.stream(
            Purpose.BATCH, round=round, call=self.call, row=self.agent
        )


def other_cohorts(
    members: Callable[..., torch.Tensor | np.ndarray],
) -> AbstractContextManager[None]:
    """Who is in a cohort, by `members(engine, cohort, round, sound)`; `sound()` draws as ever."""
    drawn = Engine.draw_cohort

    def draw_cohort(self, cohort, *, round):
        sound = partial(drawn, self, cohort, round=round)
        return torch.as_tensor(members(self, cohort, round, sound), dtype=torch.bool)

    return patch.object(Engine, "draw_cohort", draw_cohort)


def other_batches(positions: Callable[[Asked], torch.Tensor]) -> AbstractContextManager[None]:
    """The positions of every batch, by `positions`."""
    drawn = Engine.draw_batch

    def draw_batch(self, *, round, call, agent, rate):
        def sound(rate):
            return drawn(self, round=round, call=call, agent=agent, rate=rate)

        asked = self.setting.sampling_rate if rate is None else rate
        at = positions(Asked(self, round, call, agent, asked, sound))
        return torch.as_tensor(at, dtype=torch.int64)

    return patch.object(Engine, "draw_batch", draw_batch)
