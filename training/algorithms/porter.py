"""PORTER-DP: gradient tracking on clipped, noisy gradients, with compressed communication.

B. Li, Y. Chi, "Convergence and Privacy of Decentralized Nonconvex Optimization with Gradient
Clipping and Communication Compression", IEEE JSTSP 2025, arXiv 2305.09896; its variant DP.

    1  n_i = (1/B) (sum_b clip(grad_b F(x_i), C) + z_i),   z_i ~ N(0, s^2 C^2 I)
    2  y_i <- y_i + gamma (m^y_i - c^y_i) + n_i - g_i;   g_i <- n_i
    3  q^y_i = Q(y_i - c^y_i);   send q^y_i;   c^y_i <- c^y_i + q^y_i,   m^y <- m^y + W q^y
    4  x_i <- x_i + gamma (m^x_i - c^x_i) - eta y_i
    5  q^x_i = Q(x_i - c^x_i);   send q^x_i;   c^x_i <- c^x_i + q^x_i,   m^x <- m^x + W q^x

| symbol   | name here                   | shape  | meaning                                      |
|----------|-----------------------------|--------|----------------------------------------------|
| x        | x                           | (A, D) | models                                       |
| y        | y                           | (A, D) | trackers: estimates of the mean gradient     |
| g        | g                           | (A, D) | the noisy gradient that each agent keeps     |
| c^x, c^y | copy, tracker_copy          | (A, D) | the copies that an agent's neighbours hold   |
| m^x, m^y | mixed_copies, mixed_tracker | (A, D) | W c: what an agent keeps of those            |
| Q        | compression                 |        | top-k, random-k, quantised or none           |
| gamma    | consensus_step              | scalar | how far a value moves to its copies' mixture |
| W        | round.weights               | (E, 1) | mixing weights                               |
| C        | clip_norm                   | scalar | bound on one example's gradient              |
| s C      | noise_std                   | scalar | noise on the sum of clipped gradients        |
| B        | batch_size                  | scalar | public normaliser: the expected batch size   |
| eta      | learning_rate               | scalar | step size                                    |

Where we differ from the paper: its clip is smooth, C/(C + |g|) g, and ours min(1, C/|g|) g; no
record's vector gets longer than C by either, which is all that the figure rests on. Its noise is
said for the mean of a batch of fixed size; ours is on the sum of a Poisson batch. Trackers and
their copies start at 0 and copies of models at the public model, without a release. Its variant GC
clips the mean and adds no noise, so it is not here.

The difference of step 2 takes the noisy gradient that was kept, not a fresh one. Then y, x and
both messages are functions of what was known before and of n, which is one release a round for
every adversary: the tracker repeats noise that was seen, and averages none of it away.
Published and repaired form are the same.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from .algorithm import Algorithm
from .compression import (
    Compression,
    Copies,
    Settings,
    first_copies,
    next_turn,
    prepare,
    send_difference,
)

if TYPE_CHECKING:
    from ..step.handles import Agents
    from ..step.round import Round


class State(NamedTuple):
    """Models, trackers, kept gradients, copies of both, and how many rounds there were, (A, D)."""

    x: Agents
    y: Agents
    g: Agents
    copy: Agents
    mixed_copies: Agents
    tracker_copy: Agents
    mixed_tracker: Agents
    turn: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model, and has no gradient yet."""
    x = round.initial()
    none = 0.0 * x
    return State(x, none, none, *first_copies(x), *first_copies(none), none)


def step(
    state: State,
    round: Round,
    *,
    compression: Compression,
    consensus_step: float,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    turn = next_turn(state.turn, round, compression=compression)
    send = functools.partial(send_difference, round=round, compression=compression, turn=turn)
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)  # 1
    g = (sums + round.noise(sums, std=noise_std)) / batch_size
    pull = consensus_step * (state.mixed_tracker - state.tracker_copy)  # 2
    y = state.y + pull + (g - state.g)
    trackers = Copies(state.tracker_copy, state.mixed_tracker)
    trackers = send(y, trackers, kind="tracker difference", stream=1)  # 3
    x = state.x + consensus_step * (state.mixed_copies - state.copy) - learning_rate * y  # 4
    models = send(x, Copies(state.copy, state.mixed_copies), kind="model difference")  # 5
    return State(x, y, g, models.own, models.mixed, trackers.own, trackers.mixed, turn)


ALGORITHM = Algorithm(
    name="porter", init=init, step=step, settings=Settings, prepare=prepare, released=("x", "y")
)
