"""Faults of what the noise is on: values that go on or out without it, or once more."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch

from overhear.training.engine.tensor_round import TensorRound
from overhear.training.step.values import Agents, Edges, Value
from tests.attacks.planted.noise import clean_self_gradient
from tests.attacks.planted.planted import Faults, Kind, Origin

fault = Faults(Kind.VALUES)


@dataclass
class _Released:
    """The last sums of a round on links and the noise that was added to them, (E, D)."""

    round: TensorRound | None = None
    sums: torch.Tensor | None = None
    noise: torch.Tensor | None = None
    std: float = 0.0

    def noise_in(self, rows: torch.Tensor) -> torch.Tensor | None:
        """What of rows that are (sums + noise) / B is noise; None of rows that are not."""
        if self.sums is None or self.noise is None or rows.shape != self.sums.shape:
            return None
        return self._share(rows, self.sums + self.noise, self.noise)

    def noise_in_own(self, rows: torch.Tensor, round: TensorRound) -> torch.Tensor | None:
        """The same of the rows of self-loops alone, (A, D)."""
        if self.sums is None or self.noise is None:
            return None
        sums, noise = (round.own(Edges(of)).rows for of in (self.sums, self.noise))
        return self._share(rows, sums + noise, noise) if rows.shape == sums.shape else None

    @staticmethod
    def _share(rows: torch.Tensor, noisy: torch.Tensor, noise: torch.Tensor) -> torch.Tensor | None:
        scale = float((rows * noisy).sum() / noisy.square().sum().clamp_min(1e-30))
        return scale * noise if torch.allclose(rows, scale * noisy, atol=1e-5, rtol=1e-3) else None


@contextmanager
def _released(of: _Released) -> Iterator[None]:
    """Keep what a round sums up and the noise that follows."""
    sums, noise = TensorRound.clipped_sums, TensorRound.noise

    def clipped_sums(self, *points, **how):
        made = sums(self, *points, **how)
        first = made[0] if isinstance(made, tuple) else made
        of.round, of.noise = self, None
        of.sums = first.rows.clone() if isinstance(first, Edges) else None
        return made

    def add(self, like, *, std, factor=None, known_to=None):
        z = noise(self, like, std=std, factor=factor, known_to=known_to)
        if of.noise is None and isinstance(like, Edges):
            of.noise, of.std = z.rows.clone(), std
        return z

    with (
        patch.object(TensorRound, "clipped_sums", clipped_sums),
        patch.object(TensorRound, "noise", add),
    ):
        yield


@fault(
    "clean gradient given to postprocess",
    "What is computed from the own gradient holds it without noise, and is sent in "
    "the next message: no epsilon is known.",
    Origin.OUTSIDE,
    holders="edges",
)
@contextmanager
def clean_in_postprocess() -> Iterator[None]:
    """A function that should get an agent's own noisy gradient gets the clean one."""
    released, sound = _Released(), TensorRound.postprocess

    def clean(round: TensorRound, value: Value) -> Value:
        noise = released.noise_in_own(value.rows, round) if isinstance(value, Agents) else None
        return value if noise is None else Agents(value.rows - noise)

    def postprocess(self, fn, *values, block=0):
        return sound(self, fn, *(clean(self, value) for value in values), block=block)

    with _released(released), patch.object(TensorRound, "postprocess", postprocess):
        yield


@fault(
    "momentum of clean gradients",
    "Models and momenta that are sent hold gradients without noise: epsilon is infinite.",
    Origin.OUTSIDE,
    holders="edges",
)
@contextmanager
def clean_momentum() -> Iterator[None]:
    """Messages are noisy, but what the receivers go on with is not."""
    released, sound = _Released(), TensorRound.reply

    def reply(self, value, *, kind):
        arrived, noise = sound(self, value, kind=kind), released.noise_in(value.rows)
        if noise is None:
            return arrived
        return Edges(arrived.base - noise, arrived.pick)

    with _released(released), patch.object(TensorRound, "reply", reply):
        yield


@fault(
    "a message sent twice with fresh noise",
    "The mean of the two has half the variance: 15.2 for epsilon 8.",
    Origin.OUTSIDE,
    holders="edges",
)
@contextmanager
def sent_twice() -> Iterator[None]:
    """A message is sent again, with fresh noise, as if the first had been lost."""
    released, sound = _Released(), TensorRound.reply

    def reply(self, value, *, kind):
        noise = released.noise_in(value.rows)
        if noise is not None:
            fresh = noise.norm() * torch.nn.functional.normalize(
                torch.randn_like(noise).flatten(), dim=0
            ).view_as(noise)
            sound(self, Edges(value.rows - noise + fresh), kind=kind)
        return sound(self, value, kind=kind)

    with _released(released), patch.object(TensorRound, "reply", reply):
        yield


fault(
    "clean self-gradient",
    "What the agent goes on with shows its gradient: epsilon is infinite.",
    Origin.FIRST,
    holders="edges",
)(clean_self_gradient)
