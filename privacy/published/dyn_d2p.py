"""Dyn-D2P's own figures for a schedule, of a central limit, with the accountant's beside them.

Z. Zhu, Y. Huang, X. Wang, S. Ji, J. Xu, "Dyn-D2P: Dynamic Differentially Private Decentralized
Learning with Provable Utility Guarantee", IJCAI 2025, arXiv 2505.06651. The limit is that of Bu,
Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", arXiv 1911.11607.

    mu = q sqrt(sum_k (exp(mu_k^2) - 1));    (epsilon, delta) of a mu-GDP release
    mu_0 so that this meets epsilon                                 Proposition 3, equation (8)
    sigma = (q / mu) sqrt(2 sum_k C_k^2 / sigma_k^2)                Proposition 4, equation (10)

| symbol | name here                             | unit                                |
|--------|---------------------------------------|-------------------------------------|
| q      | schedule.sampling_rate                | probability a round                 |
| mu_k   | 1 / schedule.noise_multipliers(...)   | -                                   |
| 1/mu_0 | noise_multiplier                      | noise std on the sum / clip norm    |

Noise sigma sigma_k on round k makes mu_k = C_k / (sigma sigma_k), so Proposition 4 is the limit
with 2 mu_k^2 in place of exp(mu_k^2) - 1. That is the larger one where mu_k^2 <= 1.256, which the
text does not ask for, and far too small beyond.

Where we differ from the paper: mu_0 is found by bracketing in its logarithm; the figure is the
same. It is a claim: `schedule.calibrated_schedule` finds the noise that the target needs.
"""

from __future__ import annotations

import math

import numpy as np

from ..accounting.gaussian import epsilon_from_mu, mu_from
from ..accounting.request import check_epsilon
from ..errors import within
from ..guarantee import Statement
from ..noise.schedule import Schedule, scheduled_epsilon
from .claim import CITATIONS, PublishedClaim, check_one_given


def dyn_d2p_clt(
    schedule: Schedule,
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    statement: Statement,
) -> PublishedClaim:
    """Return Dyn-D2P's central-limit figure of a schedule.

    Args:
        schedule: the rounds; with `budget_growth` 1 they are alike, and the accountant is quick.
        noise_multiplier: 1 / mu_0, of the first round, > 0; or
        epsilon: what is to be claimed, > 0; mu_0 is then found as the paper finds it. Give one of
            the two.
        statement: what both figures are said of; the adjacency is the accountant's alone.

    Returns:
        The claim; `noise_multiplier` is that of the first round.

    Raises:
        ValueError: a value is outside its range, or not exactly one of the two is given.

    Source: Zhu et al. 2025; Bu et al. 2020, arXiv 1911.11607, for the limit.

    >>> const = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1, budget_growth=1)
    >>> of = Statement(delta=1e-4)
    >>> claims = [dyn_d2p_clt(const, epsilon=e, statement=of) for e in (0.3, 1, 3)]
    >>> [round(c.proven_epsilon, 2) for c in claims]
    [0.67, 3.02, 5.76]
    """
    delta = statement.delta
    check_one_given(noise_multiplier, epsilon, name="noise_multiplier")
    within("sampling_rate", schedule.sampling_rate, "(0, inf)")
    # By the central limit: epsilon of a given noise, or the noise of a given epsilon.
    if noise_multiplier is not None:
        within("noise_multiplier", noise_multiplier, "(0, inf)")
        mu = math.exp(min(_log_clt_mu(schedule, noise_multiplier), 700.0))
        claimed, multiplier = epsilon_from_mu(mu, delta), noise_multiplier
    else:
        claimed = float(epsilon or 0.0)
        check_epsilon(claimed, positive=True)
        multiplier = _first_multiplier(schedule, mu_from(claimed, delta))
    return _claim(
        schedule,
        multiplier,
        statement,
        epsilon=claimed,
        formula="mu = q sqrt(sum_k (exp(mu_k^2) - 1)), and (epsilon, delta) of mu",
    )


def dyn_d2p_proposition_4(
    schedule: Schedule, *, epsilon: float, statement: Statement
) -> PublishedClaim:
    """Return the noise that Dyn-D2P's Proposition 4 takes for epsilon, in closed form.

    Args:
        schedule: the rounds.
        epsilon: what is to be claimed, > 0 and finite.
        statement: what both figures are said of; the adjacency is the accountant's alone.

    Returns:
        The claim; `noise_multiplier` is that of the first round. Where some mu_k^2 is above 1.256
        its first caveat says so, with the figure that Proposition 3 has for the same noise.

    Raises:
        ValueError: a value is outside its range.

    Source: Zhu et al. 2025, Proposition 4.

    >>> const = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1, budget_growth=1)
    >>> claim = dyn_d2p_proposition_4(const, epsilon=1.0, statement=Statement(delta=1e-4))
    >>> round(claim.noise_multiplier, 3), claim.caveats[0].partition(":")[0]
    (0.107, 'outside its range')
    """
    within("sampling_rate", schedule.sampling_rate, "(0, inf)")
    mu = mu_from(check_epsilon(epsilon, positive=True), statement.delta)
    squares = schedule.relative_multipliers**-2.0  # (K,) of mu_k over mu_0
    multiplier = schedule.sampling_rate / mu * math.sqrt(2.0 * float(squares.sum()))
    outside: tuple[str, ...] = ()
    if (largest := float(squares.max()) / multiplier / multiplier) > _COVERED:
        limit = dyn_d2p_clt(schedule, noise_multiplier=multiplier, statement=statement).epsilon
        outside = (
            f"outside its range: 2 mu_k^2 is at least exp(mu_k^2) - 1 up to mu_k^2 = {_COVERED}, "
            f"and a round has {largest:.4g}; Proposition 3 has epsilon {limit:.4g} for this noise",
        )
    return _claim(
        schedule,
        multiplier,
        statement,
        epsilon=epsilon,
        formula="sigma = (q / mu) sqrt(2 sum_k C_k^2 / sigma_k^2), mu of (epsilon, delta)",
        more=outside,
    )


_COVERED = 1.256  # where exp(x) - 1 = 2 x, rounded down


def _claim(
    schedule: Schedule,
    multiplier: float,
    statement: Statement,
    *,
    epsilon: float,
    formula: str,
    more: tuple[str, ...] = (),
) -> PublishedClaim:
    """A claim of the paper, beside the accountant's figure of the same rounds."""
    return PublishedClaim(
        paper=CITATIONS["dyn_d2p"].short(),
        statement=formula,
        adversary="everything that one agent releases of its batches",
        epsilon=epsilon,
        delta=statement.delta,
        noise_multiplier=multiplier,
        caveats=(
            *more,
            "a central limit: it holds for many rounds of little each, and for no finite number of "
            "rounds is it a bound; with few examples sampled a round it claims far too little",
            "the paper draws one example uniformly; the accountant's figure is for Poisson batches",
        ),
        proven_epsilon=scheduled_epsilon(schedule, multiplier, statement=statement),
        proven_by=f"privacy loss distribution of the same rounds, {statement.adjacency}",
    )


def _log_clt_mu(schedule: Schedule, first_multiplier: float) -> float:
    """Log of q sqrt(sum_k (exp(mu_k^2) - 1))."""
    from scipy.special import logsumexp

    squares = schedule.noise_multipliers(first_multiplier) ** -2.0  # (K,)
    total = logsumexp(squares + np.log(-np.expm1(-squares)))  # exp(x) - 1 overflows at x = 710
    return math.log(schedule.sampling_rate) + 0.5 * float(total)


def _first_multiplier(schedule: Schedule, mu: float) -> float:
    """The 1 / mu_0 whose central-limit figure is mu."""
    from scipy.optimize import brentq

    total = 2.0 * math.log(mu / schedule.sampling_rate)  # log of sum_k (exp(mu_k^2) - 1)
    least = float(schedule.relative_multipliers.min())
    # One round alone may spend all of it, or each as much as the one that spends most.
    spend = [np.logaddexp(0.0, total), np.logaddexp(0.0, total - math.log(schedule.rounds))]
    low, high = (-0.5 * math.log(s) - math.log(least) for s in spend)
    goal = math.log(mu)
    if high - low < 1e-13:
        return math.exp(low)
    root = brentq(
        lambda x: _log_clt_mu(schedule, math.exp(x)) - goal, low - 1e-9, high + 1e-9, xtol=1e-14
    )
    return math.exp(float(root))
