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

from ..accounting.accountant import epsilon as accounted_epsilon
from ..accounting.request import Accountant, Adjacency, check_delta, check_epsilon, check_setting
from ..errors import within
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
    check_epsilon(epsilon, positive=True)
    check_setting(rounds, 1.0, Adjacency.REPLACE_ONE, Accountant.PLD)
    check_delta(delta)
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
        check_setting(rounds, 1.0, Adjacency.REPLACE_ONE, "pld")
        check_delta(delta)
        within("noise_multiplier", noise_multiplier, "(0, inf)")
        rho = 2.0 * rounds / noise_multiplier / noise_multiplier
        claimed = rho + 2.0 * math.sqrt(rho * math.log(1.0 / delta))
        multiplier = noise_multiplier
    else:
        claimed = check_epsilon(epsilon or 0.0, positive=True)
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
    check_epsilon(epsilon, positive=True)
    check_setting(rounds, 1.0, Adjacency.REPLACE_ONE, Accountant.PLD)
    log = math.log(1.0 / check_delta(delta))
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
            adjacency=Adjacency.REPLACE_ONE,
        ),
        proven_by="closed form of the Gaussian mechanism, replace-one",
    )
