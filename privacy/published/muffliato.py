"""MUFFLIATO's pairwise privacy losses, as claims, with the exact view of the messages beside them.

E. Cyffers, M. Even, A. Bellet, L. Massoulie, "Muffliato: Peer-to-Peer Privacy Amplification for
Decentralized Optimization and Averaging", NeurIPS 2022, arXiv 2206.05091; synchronous gossip.

    y_0 = x + N(0, s^2) for each agent
    for t = 0, ..., T - 1:  send y_t to the neighbours;  y_{t+1} = W y_t
    Renyi loss of u towards v, of order alpha:
        f(u, v) = alpha Delta^2 / (2 s^2) sum_{t < T} sum_{w in N(v)} W^t[w, u]^2 / |W^t[w]|^2

| symbol    | name here        | shape  | unit                                       |
|-----------|------------------|--------|--------------------------------------------|
| W         | weights          | (A, A) | W[i, j]: weight i gives to j               |
| u, v      | victim, observer | scalar | agents                                     |
| N(v)      | neighbours       | (n,)   | agents whose messages reach v, v left out  |
| T         | gossip_steps     | scalar | -                                          |
| s / Delta | noise_multiplier | scalar | noise std over what one record changes     |

A term of the sum is what one message, taken alone, says of u: the square of the cosine between
u's unit vector and the message's row. What all of them say together is the squared length of u's
unit vector within their *span*, which is what `proven_epsilon` takes. The sum is larger than that
where rows repeat each other, and smaller where they differ by little: on a ring of six, after
three steps, the observer knows the value of the agent opposite to it, noise included, exactly as
it left that agent (1), and the sum is 2/19.

Where we differ from the paper: N(v) leaves v out; the Renyi loss is converted at its best order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..accounting.gaussian import epsilon_from_mu
from ..accounting.request import check_count, check_delta
from ..errors import InputError, whole, within
from ..noise.correlated import square_matrix
from .claim import PublishedClaim

_RANK = 1e-12  # a message that adds less than this of its length says nothing new


def muffliato_losses(
    weights: ArrayLike, *, observer: int, gossip_steps: int
) -> NDArray[np.float64]:
    """Return MUFFLIATO's pairwise privacy losses towards one agent, for each victim.

    Args:
        weights: W, (A, A): W[i, j] is the weight that agent i gives to agent j's message.
        observer: v, who receives the messages of its neighbours.
        gossip_steps: T; messages are sent before each of them.

    Returns:
        (A,) sum over t < T and neighbours w of W^t[w, u]^2 / |W^t[w]|^2 for each agent u; the
        Renyi loss of order alpha is alpha / (2 multiplier^2) times it. Entry `observer` is 0. Its
        mean is the paper's mean privacy loss.

    Raises:
        ValueError: weights is not square and finite, or observer does not exist.

    Source: Cyffers et al. 2022, synchronous gossip.

    >>> W = np.full((3, 3), 1 / 3)
    >>> muffliato_losses(W, observer=0, gossip_steps=2).round(4).tolist()
    [0.0, 1.6667, 1.6667]
    """
    W, neighbours = _heard(weights, observer, gossip_steps)
    total = np.zeros(len(W))
    messages = np.eye(len(W))[neighbours]  # (n_v - 1, A): rows w of W^t
    for _ in range(gossip_steps):
        total += np.sum(messages**2 / np.sum(messages**2, axis=1, keepdims=True), axis=0)
        messages = messages @ W
    total[observer] = 0.0
    return total


def worst_pair(weights: ArrayLike, *, gossip_steps: int) -> tuple[int, int]:
    """Return the victim and the observer with the largest pairwise privacy loss.

    Args:
        weights: W, (A, A), of at least two agents.
        gossip_steps: T.

    Raises:
        ValueError: weights is not square and finite.
    """
    W = square_matrix("weights", weights)
    said, messages = np.zeros_like(W), np.eye(len(W))
    for _ in range(gossip_steps):
        said += messages**2 / np.sum(messages**2, axis=1, keepdims=True)
        messages = messages @ W
    hears = (W != 0.0) & ~np.eye(len(W), dtype=bool)
    losses = hears @ said  # (observers, victims)
    np.fill_diagonal(losses, -1.0)
    observer, victim = divmod(int(losses.argmax()), len(W))
    return victim, observer


def muffliato_bound(
    weights: ArrayLike,
    *,
    victim: int,
    observer: int,
    gossip_steps: int,
    noise_multiplier: float,
    delta: float,
    rounds: int = 1,
) -> PublishedClaim:
    """Return MUFFLIATO's bound on what one agent learns of another by gossip.

    Args:
        weights: W, (A, A), the same in every step.
        victim: u, whose record is at risk.
        observer: v, who receives the messages of its neighbours and knows its own noise.
        gossip_steps: T.
        noise_multiplier: noise std over what a record changes the victim's value by, > 0.
        delta: strictly between 0 and 1.
        rounds: gossip runs, each on fresh noise; their Renyi losses add up.

    Returns:
        The claim. The proven figure is the exact view of the same messages, the observer's own
        value known, for one run whose result nobody uses again; for several runs, each of which
        uses what the last one left, it is that of everybody's own release.

    Raises:
        ValueError: a value is outside its range, or victim and observer are one.

    Source: Cyffers et al. 2022, synchronous gossip; Mironov 2017 for the conversion.

    >>> ring = (np.eye(6) + np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), -1, axis=1)) / 3
    >>> claim = muffliato_bound(
    ...     ring, victim=3, observer=0, gossip_steps=3, noise_multiplier=2.0, delta=1e-5
    ... )
    >>> round(claim.epsilon, 3), round(claim.proven_epsilon, 3)
    (0.792, 1.993)
    """
    delta = check_delta(delta)
    noise_multiplier = within("noise_multiplier", noise_multiplier, "(0, inf)")
    W, neighbours = _heard(weights, observer, gossip_steps)
    whole("victim", victim, f"[0, {len(W) - 1}]")
    if victim == observer:
        raise InputError(f"victim={victim} must not be the observer")
    # The paper's loss of the pair, added up over the runs as a Renyi divergence.
    losses = muffliato_losses(W, observer=observer, gossip_steps=gossip_steps)
    rounds = check_count(rounds)
    rho = rounds * float(losses[victim]) / 2.0 / noise_multiplier / noise_multiplier
    # What is proven: the exact view of a single run, or of several the victim's own release.
    closed = epsilon_from_mu(math.sqrt(rounds) / noise_multiplier, delta)
    if rounds == 1:
        share = math.sqrt(_determined(W, neighbours, observer, gossip_steps)[victim])
        proven = epsilon_from_mu(share / noise_multiplier, delta)
        of_what = "the exact view of the messages"
        scope = "is for one run, without closure: as soon as the averages are used in a next round"
    else:
        proven, of_what = closed, "what each agent releases"
        scope = f"adds up {rounds} runs of full batches, without closure: as the averages are used"
    return PublishedClaim(
        paper="Cyffers, Even, Bellet, Massoulie, NeurIPS 2022, MUFFLIATO, arXiv 2206.05091",
        statement="Renyi loss f(u, v) = alpha Delta^2 / (2 s^2) "
        "sum_{t < T} sum_{w in N(v)} W^t[w, u]^2 / |W^t[w]|^2",
        adversary=f"agent {observer}, by the messages of its neighbours",
        epsilon=rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta)),  # best order alpha
        delta=delta,
        noise_multiplier=noise_multiplier,
        caveats=(
            "the sum treats the messages of a run as if each had noise of its own; they share it, "
            "and differences of messages may reveal more than the sum counts",
            f"it is for a pair; its mean over victims is {losses.mean():.4g} in place of "
            f"{losses[victim]:.4g}",
            f"it {scope}, any adversary is taken to hold them, and epsilon is {closed:.4g}",
            "accelerated gossip sends other combinations than powers of W",
        ),
        proven_epsilon=proven,
        proven_by=f"closed form of the Gaussian mechanism on {of_what}",
    )


def _determined(
    W: NDArray[np.float64], neighbours: NDArray[np.int64], observer: int, gossip_steps: int
) -> NDArray[np.float64]:
    """(A,): squared length of each agent's unit vector within the span of what observer heard.

    Every agent's noise has one variance, so this is mu^2 at multiplier 1. Powers of W lose their
    differences to rounding, so each new block is orthogonalised before it is multiplied again.
    """
    basis = np.eye(len(W))[[observer]]  # its own value is known
    new = np.eye(len(W))[neighbours]
    for _ in range(gossip_steps):
        for _ in range(2):  # once more for the rounding of the first time
            new = new - (new @ basis.T) @ basis
        _, size, directions = np.linalg.svd(new, full_matrices=False)
        new = directions[size > _RANK]  # (at most A, A)
        if not len(new):
            break
        basis = np.vstack([basis, new])
        new = new @ W
    share = np.minimum(np.sum(basis**2, axis=0), 1.0)
    share[observer] = 0.0
    return share


def _heard(
    weights: ArrayLike, observer: int, gossip_steps: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """W, and the agents whose messages reach the observer."""
    whole("gossip_steps", gossip_steps, "[1, 1000000]")
    W = square_matrix("weights", weights)
    whole("observer", observer, f"[0, {len(W) - 1}]")
    heard = np.flatnonzero(W[observer])
    return W, heard[heard != observer]
