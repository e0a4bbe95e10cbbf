"""Two algorithms and a network that the run files of this folder name."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from overhear.training import Agents, Algorithm, Round


def net(input_shape, classes):
    """A linear network whose logits are scaled down."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


class Tracked(NamedTuple):
    """Models, trackers, and the noisy gradient that each agent stored last."""

    x: Agents
    y: Agents
    g: Agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracking:
    """How many local steps a round takes."""

    local_steps: int = 2


def begin(round: Round) -> Tracked:
    """All start from the public model."""
    x = round.initial()
    return Tracked(x, 0.0 * x, 0.0 * x)


def track(state, round, *, local_steps, learning_rate, clip_norm, noise_std, batch_size):
    """Local steps on one batch, then one exchange of models and trackers."""
    x, g = state.x, state.g
    correction, batch = state.y - g, round.draw()
    for _ in range(local_steps):
        sums = round.clipped_sums(x, batch=batch, clip_norm=clip_norm)
        g = (sums + round.noise(sums, std=noise_std)) / batch_size
        x = x - learning_rate * (g + correction)
    return Tracked(round.mix(x, kind="model"), round.mix(g + correction, kind="tracker"), g)


TRACKING = Algorithm(
    name="tracking", init=begin, step=track, settings=Tracking, released=("x", "y")
)


class Pushed(NamedTuple):
    """Models, and the running mean of noisy gradients."""

    x: Agents
    v: Agents


@dataclass(frozen=True, kw_only=True, slots=True)
class Pushing:
    """Share of the running mean that the newest gradient takes."""

    mixing: float = 0.3


def start(round: Round) -> Pushed:
    """All start from the public model."""
    return Pushed(round.initial(), 0.0 * round.initial())


def push(state, round, *, mixing, learning_rate, clip_norm, noise_std, batch_size):
    """A noisy gradient enters a running mean, which moves the model along directed links."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    v = (1 - mixing) * state.v + mixing * noisy
    return Pushed(round.mix(state.x - learning_rate * v, kind="model"), v)


PUSHED = Algorithm(name="pushed", init=start, step=push, settings=Pushing, released=("x",))
