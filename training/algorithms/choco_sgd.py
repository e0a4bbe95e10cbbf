"""CHOCO-SGD: SGD with gossip of compressed differences, here on clipped and noisy gradients.

A. Koloskova, S. U. Stich, M. Jaggi, "Decentralized Stochastic Optimization and Gossip Algorithms
with Compressed Communication", ICML 2019, arXiv 1902.00340; in its form that saves memory.

    1  g~_i = (1/B) (sum_b clip(grad_b F(x_i), C) + z_i),   z_i ~ N(0, s^2 C^2 I)
    2  h_i = x_i - eta g~_i
    3  q_i = Q(h_i - c_i);   send q_i;   c_i <- c_i + q_i,   m_i <- m_i + sum_j W_ij q_j
    4  x_i <- h_i + gamma (m_i - c_i)

| symbol | name here      | shape  | meaning                                             |
|--------|----------------|--------|-----------------------------------------------------|
| x      | x              | (A, D) | models                                              |
| c      | copy           | (A, D) | the copy of each model that its neighbours hold     |
| m      | mixed_copies   | (A, D) | W c: what an agent keeps of its neighbours' copies  |
| Q      | compressor     |        | top-k, random-k, quantised or none                  |
| gamma  | consensus_step | scalar | how far a model moves to its neighbours' copies     |
| W      | round.weights  | (E, 1) | mixing weights                                      |
| C      | clip_norm      | scalar | bound on one example's gradient                     |
| s C    | noise_std      | scalar | noise on the sum of clipped gradients               |
| B      | batch_size     | scalar | public normaliser: the expected batch size          |
| eta    | learning_rate  | scalar | step size                                           |

Where we differ from the paper: it has neither clipping nor noise, and copies start at 0 instead of
at the public model, which costs rounds in which the model itself is sent. Its quantisation rounds
at random; ours rounds to the nearest step. Without compression and with gamma 1 this is D-PSGD that
steps before it mixes.

h - c is a public copy and one noisy gradient, and what is sent is a function of it, so a round is
one release for the eavesdropper and for every agent: what compression leaves out is not hidden, it
comes later. Published and repaired form are the same.
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
    """Models, their copies, mixed copies, and how many rounds there were, (A, D)."""

    x: Agents
    copy: Agents
    mixed_copies: Agents
    turn: Agents


def init(round: Round) -> State:
    """Every agent starts from the same public model, of which all have a copy."""
    x = round.initial()
    return State(x, *first_copies(x), 0.0 * x)


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
    half = state.x - learning_rate * ((sums + round.noise(sums, std=noise_std)) / batch_size)  # 2
    copies = send(half, Copies(state.copy, state.mixed_copies), kind="model difference")  # 3
    x = half + consensus_step * (copies.mixed - copies.own)  # 4
    return State(x, copies.own, copies.mixed, turn)


ALGORITHM = Algorithm(
    name="choco-sgd", init=init, step=step, settings=Settings, prepare=prepare, released=("x",)
)
