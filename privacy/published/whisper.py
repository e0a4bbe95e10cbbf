"""Whisper's own bounds on the noise that epsilon needs, with the accountant's figure beside them.

A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for Differentially
Private Decentralized Learning", arXiv 2501.14644, Theorem 2 and constraint (10).

    [R^-1]_ii <= b = (sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))^2 / (2 T C^2)
    [R^-1]_ii <= epsilon^2 / (16 C^2 T log(1/delta)),   epsilon < log(1/delta)          (10)

| symbol | name here | unit                                                    |
|--------|-----------|---------------------------------------------------------|
| R      | `correlated` covariance | norm^2, noise on clipped gradients        |
| b      | information | 1 / norm^2                                            |
| T      | rounds    | full batches                                            |
| C      | clip_norm | norm of a clipped gradient; replacing changes it by 2C    |

Where it comes from: T rounds in which one agent's gradient changes by 2C have the Renyi loss
alpha rho with rho = 2 C^2 T [R^-1]_ii, and rho + 2 sqrt(rho log(1/delta)) = epsilon solved for
[R^-1]_ii is b. Exactly, the rounds are one Gaussian release with mu^2 = 4 C^2 T [R^-1]_ii. By (10)
that loss is epsilon^2 / (8 log(1/delta)) + epsilon / sqrt(2), at most epsilon up to 2.34
log(1/delta), further than its proposition asks, and more than epsilon beyond.

Where we differ from the paper: the printed inequality is reversed; `with_slips` follows it. The
text of Theorem 2 that we have divides T by the number of agents and has lost a root, so that it
would claim less than is spent; b is what its derivation gives.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..accounting import request
from ..accounting.accountant import epsilon as accounted_epsilon
from ..accounting.gaussian import epsilon_from_mu
from ..errors import InputError, whole, within
from ..noise.correlated import square_matrix
from .claim import CITATIONS, PublishedClaim, check_one_given


def whisper_information(
    *, epsilon: float, delta: float, rounds: int, clip_norm: float = 1.0
) -> float:
    """Return the largest [R^-1]_ii that Whisper's Theorem 2 allows, the right way round.

    Args:
        epsilon: privacy loss of all rounds, in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        rounds: T, full batches.
        clip_norm: C; a replaced record changes an agent's gradient by up to 2C.

    Returns:
        b in 1 / norm^2, for `whisper_covariance(bound=b)`. The exact one is
        mu_from(epsilon, delta)^2 / (4 T C^2), larger.

    Raises:
        ValueError: a value is outside its range.

    Source: Rodio et al. 2025, Theorem 2.

    >>> setting = {"delta": 1e-5, "rounds": 5000, "clip_norm": 0.1}
    >>> b = [whisper_information(epsilon=e, **setting) for e in (3.0, 10.0, 40.0)]
    >>> from overhear.privacy import mu_from
    >>> exact = [mu_from(e, 1e-5) ** 2 / (4 * 5000 * 0.1**2) for e in (3.0, 10.0, 40.0)]
    >>> [round(x / y, 2) for x, y in zip(exact, b)]  # so much less variance is needed
    [1.49, 1.29, 1.14]
    """
    request.check_epsilon(epsilon, positive=True)
    request.check_setting(rounds, 1.0, request.Adjacency.REPLACE_ONE, request.Accountant.PLD)
    request.check_delta(delta)
    within("clip_norm", clip_norm, "(0, inf)")
    log = math.log(1.0 / delta)
    # sqrt(log + epsilon) - sqrt(log), free of cancellation where epsilon is small
    root = epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))
    return root**2 / (2.0 * rounds * clip_norm**2)


def whisper_theorem_2(
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float,
    rounds: int,
    clip_norm: float = 1.0,
    with_slips: bool = False,
) -> PublishedClaim:
    """Return Whisper's Theorem 2: how much noise information epsilon allows.

    Args:
        epsilon: privacy loss of all rounds, in nats, > 0 and finite; or
        noise_multiplier: 1 / (C sqrt(max [R^-1]_ii)) of a covariance, > 0. Give one of the two.
        delta: strictly between 0 and 1.
        rounds: T, full batches.
        clip_norm: C.
        with_slips: follow the inequality as printed, [R^-1]_ii >= b: the cheapest covariance that
            meets it is none at all.

    Returns:
        The claim; `noise_multiplier` is 1 / (C sqrt(b)), the noise on an agent's clipped gradient
        that no other agent's message helps to subtract, over C.

    Raises:
        ValueError: a value is outside its range, or not exactly one of the first two is given.

    Source: Rodio et al. 2025, Theorem 2.

    >>> setting = {"epsilon": 10.0, "delta": 1e-5, "rounds": 5000, "clip_norm": 0.1}
    >>> round(whisper_theorem_2(**setting).proven_epsilon, 3)
    8.555
    >>> whisper_theorem_2(**setting, with_slips=True).proven_epsilon
    inf
    """
    # Epsilon of a given noise by the theorem's bound, or the noise at which it allows epsilon.
    check_one_given(noise_multiplier, epsilon, name="noise_multiplier")
    if noise_multiplier is not None:
        request.check_setting(rounds, 1.0, request.Adjacency.REPLACE_ONE, "pld")
        request.check_delta(delta)
        within("noise_multiplier", noise_multiplier, "(0, inf)")
        rho = 2.0 * rounds / noise_multiplier / noise_multiplier
        claimed = rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
        multiplier = noise_multiplier
    else:
        claimed = request.check_epsilon(epsilon or 0.0, positive=True)
        allowed = whisper_information(
            epsilon=claimed, delta=delta, rounds=rounds, clip_norm=clip_norm
        )
        multiplier = 1.0 / (clip_norm * math.sqrt(allowed))
    # The inequality as printed is met without any noise, which costs least.
    if with_slips:
        multiplier = 0.0
    slip = "as printed the inequality is reversed: no noise meets it, and minimises the cost"
    return _claim(
        "Theorem 2",
        f"[R^-1]_ii {'>=' if with_slips else '<='} "
        "(sqrt(log(1/delta) + epsilon) - sqrt(log(1/delta)))^2 / (2 T C^2)",
        caveats=(*((slip,) if with_slips else ()), *_CAVEATS, _RENYI),
        epsilon=claimed,
        delta=delta,
        rounds=rounds,
        multiplier=multiplier,
    )


def whisper_constraint_10(*, epsilon: float, delta: float, rounds: int) -> PublishedClaim:
    """Return the noise that Whisper's optimisation takes for epsilon, its constraint (10).

    Args:
        epsilon: privacy loss of all rounds, in nats, > 0 and finite. Proposition 1 asks for less
            than log(1/delta); above it the claim's first caveat says so.
        delta: strictly between 0 and 1.
        rounds: T, full batches.

    Returns:
        The claim; `noise_multiplier` is 4 sqrt(T log(1/delta)) / epsilon, whatever the clip norm.

    Raises:
        ValueError: a value is outside its range.

    Source: Rodio et al. 2025, Proposition 1, with the inequality the right way round.

    >>> for e in (10.0, 40.0):  # of the nine that the paper takes, and log(1/delta) is 11.5
    ...     claim = whisper_constraint_10(epsilon=e, delta=1e-5, rounds=5000)
    ...     print(round(claim.proven_epsilon, 2), claim.caveats[0][:13])
    6.9 against an ag
    41.76 Proposition 1
    """
    request.check_epsilon(epsilon, positive=True)
    request.check_setting(rounds, 1.0, request.Adjacency.REPLACE_ONE, request.Accountant.PLD)
    log = math.log(1.0 / request.check_delta(delta))
    outside = f"Proposition 1 asks epsilon < log(1/delta) = {log:.4g}, and {epsilon:g} is not"
    return _claim(
        "constraint (10)",
        "[R^-1]_ii <= epsilon^2 / (16 C^2 T log(1/delta)), epsilon < log(1/delta)",
        caveats=(*((outside,) if epsilon >= log else ()), *_CAVEATS),
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        multiplier=4.0 * math.sqrt(rounds * log) / epsilon,
    )


_CAVEATS = (
    "against an agent that can compute its own noise from the common seed epsilon is infinite: "
    "it can compute everybody's",
    "it is for full batches, and for every agent taking part in every round",
)
_RENYI = "it comes from a bound on Renyi divergences; the exact figure needs less noise"


def _claim(
    where: str,
    statement: str,
    *,
    caveats: tuple[str, ...],
    epsilon: float,
    delta: float,
    rounds: int,
    multiplier: float,
) -> PublishedClaim:
    """A claim of the paper, beside the exact figure of the same noise."""
    return PublishedClaim(
        paper=CITATIONS["whisper"].short(where),
        statement=statement,
        adversary="an eavesdropper who knows no noise",
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=multiplier,
        caveats=caveats,
        proven_epsilon=accounted_epsilon(
            noise_multiplier=multiplier,
            delta=delta,
            rounds=rounds,
            sampling_rate=1.0,
            adjacency=request.Adjacency.REPLACE_ONE,
        ),
        proven_by="closed form of the Gaussian mechanism, replace-one",
    )


# MUFFLIATO's pairwise privacy losses, as claims, with the exact view of the messages beside them.
#
# E. Cyffers, M. Even, A. Bellet, L. Massoulie, "Muffliato: Peer-to-Peer Privacy Amplification for
# Decentralized Optimization and Averaging", NeurIPS 2022, arXiv 2206.05091; synchronous gossip.
#
# y_0 = x + N(0, s^2) for each agent
# for t = 0, ..., T - 1:  send y_t to the neighbours;  y_{t+1} = W y_t
# Renyi loss of u towards v, of order alpha:
#          f(u, v) = alpha Delta^2 / (2 s^2) sum_{t < T} sum_{w in N(v)} W^t[w, u]^2 / |W^t[w]|^2
#
# | symbol    | name here        | shape  | unit                                       |
# |-----------|------------------|--------|--------------------------------------------|
# | W         | weights          | (A, A) | W[i, j]: weight i gives to j               |
# | u, v      | victim, observer | scalar | agents                                     |
# | N(v)      | neighbours       | (n,)   | agents whose messages reach v, v left out  |
# | T         | gossip_steps     | scalar | -                                          |
# | s / Delta | noise_multiplier | scalar | noise std over what one record changes     |
#
# A term of the sum is what one message, taken alone, says of u: the square of the cosine between
# u's unit vector and the message's row. What all of them say together is the squared length of u's
# unit vector within their *span*, which is what `proven_epsilon` takes. The sum is larger than that
# where rows repeat each other, and smaller where they differ by little: on a ring of six, after
# three steps, the observer knows the value of the agent opposite to it, noise included, exactly as
# it left that agent (1), and the sum is 2/19.
#
# Where we differ from the paper: N(v) leaves v out; the Renyi loss is converted at its best order.

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
    delta = request.check_delta(delta)
    noise_multiplier = within("noise_multiplier", noise_multiplier, "(0, inf)")
    W, neighbours = _heard(weights, observer, gossip_steps)
    whole("victim", victim, f"[0, {len(W) - 1}]")
    if victim == observer:
        raise InputError(f"victim={victim} must not be the observer")
    # The paper's loss of the pair, added up over the runs as a Renyi divergence.
    losses = muffliato_losses(W, observer=observer, gossip_steps=gossip_steps)
    rounds = request.check_count(rounds)
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
