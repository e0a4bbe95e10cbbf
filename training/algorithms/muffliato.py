"""MUFFLIATO: a noisy local gradient step, then several steps of accelerated gossip.

E. Cyffers, M. Even, A. Bellet, L. Massoulie, "Muffliato: Peer-to-Peer Privacy Amplification for
Decentralized Optimization and Averaging", NeurIPS 2022, arXiv 2206.05091; its gradient descent.

    1  y^0_i   = x_i - eta/B (sum_b clip(grad_b F(x_i), C) + z),  z ~ N(0, s^2 C^2 I)
    2  y^1     = W y^0
    3  y^{k+1} = gamma W y^k + (1 - gamma) y^{k-1}
    4  x       = y^K

    gamma = 2 (1 - sqrt(l (1 - l/4))) / (1 - l/2)^2,  l = 1 - lambda_2(W)

| symbol | name here          | shape  | meaning                                     |
|--------|--------------------|--------|---------------------------------------------|
| x      | x                  | (A, D) | models                                      |
| y^k    | y                  | (A, D) | models after k gossip steps                 |
| K      | gossip.steps       | scalar | gossip steps a round                        |
| W      | round.weights      | (E, 1) | mixing weights, symmetric                   |
| l      | spectral_gap       | scalar | spectral gap of W                           |
| gamma  | gossip.momentum    | scalar | acceleration of the gossip                  |
| C      | clip_norm          | scalar | bound on one example's gradient             |
| s C    | noise_std          | scalar | noise on the sum of clipped gradients       |
| B      | batch_size         | scalar | public normaliser: the expected batch size  |
| eta    | learning_rate      | scalar | step size                                   |

Where we differ from the paper: the original does not clip, so its sensitivity has no bound; ours
clips each example. Its K = ceil(l^-1/2 ln(A max(s^2, spread) / s^2)) depends on how far apart the
agents' private values are; ours is a public constant, by default that of values which differ by
less than the noise, ceil(l^-1/2 ln A). Its losses fall with the distance of two agents, for one who
sees nothing but its neighbours' messages. Here y^0 crosses links with its sender's noise alone, and
end states count as seen, because the next gradients are taken there: one Gaussian release a round
for the eavesdropper, and for every agent. Published and repaired form are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.errors import InputError, within
from ...privacy.published.claim import PublishedClaim
from ...privacy.published.whisper import muffliato_bound, worst_pair
from ..graphs.graph import Topology, spectral_gap
from .algorithm import Algorithm, PlannedRun
from .dsgd import State, init

if TYPE_CHECKING:
    from torch import Tensor

    from ..step.handles import Agents
    from ..step.round import Round

# Gossip multiplies the eigenvectors of W by p_K of their eigenvalues. Below this share floats lose
# one, and final models look as if they did not hold it, where in real numbers they show y^0.
_FORGOTTEN = 1e-8
_ZERO = 1e-14  # an eigenvalue that is 0: nothing of its vector is mixed, however exact the numbers
# Following final models through more mixtures than this takes minutes and gains next to nothing.
_MOST_FOLLOWED = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters: gossip steps a round; 0 takes ceil(ln A / sqrt(spectral gap))."""

    gossip_steps: int = 0

    def __post_init__(self) -> None:
        """Check the range."""
        if self.gossip_steps < 0:
            raise InputError(
                f"gossip_steps={self.gossip_steps} must be at least 1, or 0 for the number that "
                "the graph asks for"
            )


class Gossip(NamedTuple):
    """K, gamma, and whether views follow final models through all mixtures."""

    steps: int
    momentum: float
    followed: bool


def acceleration(spectral_gap: float) -> float:
    """Return gamma, the weight of the newest mixture in accelerated gossip.

    With r = 1 - l/2 the paper's expression is 2 (1 - sqrt(1 - r^2)) / r^2; the equal one used here
    also holds at r = 0.

    Args:
        spectral_gap: l in (0, 2].

    Raises:
        ValueError: a gap out of range.

    >>> round(acceleration(1.0), 4), round(acceleration(0.01), 4)
    (1.0718, 1.8184)
    """
    within("spectral_gap", spectral_gap, "(0, 2]", "0 means that the graph falls apart")
    return 2.0 / (1.0 + math.sqrt(spectral_gap * (1.0 - spectral_gap / 4.0)))


def default_gossip_steps(spectral_gap: float, *, agents: int) -> int:
    """Return the paper's number of gossip steps for values that differ by less than the noise.

    Args:
        agents: A.

    >>> default_gossip_steps(0.1273, agents=10)  # a ring of ten
    7
    """
    return max(1, math.ceil(math.log(agents) / math.sqrt(spectral_gap)))


def prepare(*, graph: Topology, gossip_steps: int) -> dict[str, object]:
    """Give the step K and gamma, of the graph alone.

    Raises:
        ValueError: the graph changes from round to round, or its weights are not symmetric.
    """
    lasting = graph.lasting
    if lasting is None:
        raise InputError(
            f"graph {graph.name!r} changes from round to round: accelerated gossip needs one graph "
            "with symmetric weights, such as ring or erdos-renyi"
        )
    gap = spectral_gap(lasting)
    steps = gossip_steps or default_gossip_steps(gap, agents=graph.agents)
    momentum = acceleration(gap)
    followed = steps <= _MOST_FOLLOWED and all(
        _remembers(np.linalg.eigvalsh(of.weights), steps=steps, momentum=momentum)
        for of in dict.fromkeys(graph.graphs)
    )
    return {"gossip": Gossip(steps, momentum, followed)}


def _remembers(eigenvalues: np.ndarray, *, steps: int, momentum: float) -> bool:
    """Whether floats keep a share of every direction that gossip keeps in real numbers."""
    before, now = np.ones_like(eigenvalues), eigenvalues.copy()
    for _ in range(steps - 1):
        before, now = now, momentum * eigenvalues * now + (1.0 - momentum) * before
    gone = (abs(eigenvalues) <= _ZERO) & (steps % 2 == 1)  # p_K is odd there
    return bool((gone | (abs(now) >= _FORGOTTEN)).all())


def step(
    state: State,
    round: Round,
    *,
    gossip: Gossip,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> State:
    """One round; the numbers are the steps above."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)  # 1
    noisy = (sums + round.noise(sums, std=noise_std)) / batch_size
    y = state.x - learning_rate * noisy
    if not gossip.followed:
        y = round.postprocess(_unchanged, y)  # counts as seen by every adversary
    return State(_mixed(y, round, gossip))  # 4


def _mixed(y: Agents, round: Round, gossip: Gossip) -> Agents:
    """Accelerated gossip; its coefficients sum to 1, so it keeps the mean."""
    before, momentum = y, gossip.momentum
    for number in range(gossip.steps):
        sent = round.broadcast(y, kind="gossip")
        mixed = round.sum_in(sent, weights=round.weights)  # 2
        if number:  # 3
            mixed = momentum * mixed + (1.0 - momentum) * before
        before, y = round.own(sent), mixed
    return y


def _unchanged(row: Tensor) -> Tensor:
    return row


def published_bound(run: PlannedRun) -> PublishedClaim | None:
    """The pairwise loss of all rounds, of the pair of agents where it is largest."""
    if run.graph.agents < 2 or run.noise_multiplier == 0.0:
        return None
    graph = run.graph.at(1)
    steps = run.settings.gossip_steps
    steps = steps or default_gossip_steps(spectral_gap(graph), agents=graph.agents)
    victim, observer = worst_pair(graph.weights, gossip_steps=steps)
    return muffliato_bound(
        graph.weights,
        victim=victim,
        observer=observer,
        gossip_steps=steps,
        noise_multiplier=run.noise_multiplier,
        delta=run.statement.delta,
        rounds=run.rounds,
    )


def unsteered(_settings: Settings) -> str | None:
    """See `Algorithm`: neighbours hear every mixture, which the bound would have to follow."""
    return "a round has gossip steps, each of which is observed, and the bound follows one message"


ALGORITHM = Algorithm(
    name="muffliato",
    init=init,
    step=step,
    settings=Settings,
    prepare=prepare,
    published_bound=published_bound,
    unsteered=unsteered,
)
