"""Epsilon, delta and noise multiplier of Poisson-sampled rounds of the Gaussian mechanism.

A round samples every record independently with probability `sampling_rate`, sums the clipped
gradients of the sample and adds Gaussian noise. The noise multiplier is the standard deviation of
that noise divided by the clip norm C, for both adjacencies: "replace-one" moves the sum by up to
2C and the doubling happens here, once.

Formal guarantees:
- `pld` (default): an upper bound for each value, from the privacy loss distribution; the closed
  form of `gaussian` when the sampling rate is 1. The smallest noise multiplier is rounded up and
  evaluated once more before it is returned.
- `rdp` (dp-accounting) and `prv` (opacus): upper bounds, add-or-remove-one only.
- `gdp-clt`: the central limit theorem of Bu et al. 2020 (arXiv:1911.11607). An approximation that
  may be too small: at multiplier 1, rate .5, one round it claims less than the truth.
- "replace-one" with a sampling rate below 1 bounds one contribution per batch.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from .accounting_setting import (
    RESOLVED_MULTIPLIERS,
    Accountant,
    Adjacency,
    check_count,
    check_delta,
    check_epsilon,
    check_multiplier,
    check_setting,
)
from .comparison_accountants import (
    clt_mu,
    clt_multiplier,
    prv_epsilon,
    rdp_delta,
    rdp_epsilon,
)
from .gaussian import delta_from_mu, epsilon_from_mu, mu_from
from .loss_accounting import (
    ADD_OR_REMOVE,
    composed_delta_bound,
    composed_epsilon_bound,
    multiplier_bound,
    smallest_safe,
)
from .loss_atoms import Pair, Round

__all__ = ["Accountant", "Adjacency", "composed_epsilon", "delta", "epsilon", "noise_multiplier"]


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
) -> float:
    """Return the privacy loss of `rounds` equal rounds.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one" or "replace-one".
        accountant: "pld", "rdp", "prv" or "gdp-clt"; see `Accountant.kind`.

    Returns:
        epsilon in nats; infinite without noise, 0 if no record is ever sampled.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the adjacency.
        TypeError: `rounds` is not an integer.

    >>> round(epsilon(noise_multiplier=1.0, delta=1e-5, rounds=1000, sampling_rate=0.01), 3)
    1.828
    """
    check_multiplier(noise_multiplier)
    check_delta(delta)
    count, by, pairs = check_setting(rounds, sampling_rate, adjacency, accountant)
    if sampling_rate == 0.0 or noise_multiplier == math.inf:
        return 0.0
    if noise_multiplier == 0.0:
        return math.inf
    if by is Accountant.PLD:
        setting = (float(noise_multiplier), float(sampling_rate))
        return _composed_epsilon({setting: count}, delta, pairs)
    return _compared_epsilon(by, noise_multiplier, sampling_rate, rounds=count, delta=delta)


def delta(
    *,
    noise_multiplier: float,
    epsilon: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
) -> float:
    """Return the delta at which `rounds` equal rounds lose at most `epsilon`.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        epsilon: privacy loss in nats, >= 0.
        rounds: how many, from 1 to 10 million.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one" or "replace-one".
        accountant: "pld", "rdp" or "gdp-clt".

    Returns:
        delta in [0, 1]; 1 without noise.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the request.
        TypeError: `rounds` is not an integer.

    >>> found = delta(noise_multiplier=1.0, epsilon=2.0, rounds=1000, sampling_rate=0.01)
    >>> f"{found:.2e}"
    '2.67e-06'
    """
    check_multiplier(noise_multiplier)
    check_epsilon(epsilon, most=math.inf)
    count, by, pairs = check_setting(rounds, sampling_rate, adjacency, accountant)
    if sampling_rate == 0.0 or noise_multiplier == math.inf or epsilon == math.inf:
        return 0.0
    if noise_multiplier == 0.0:
        return 1.0
    if by is Accountant.RDP:
        return rdp_delta(noise_multiplier, sampling_rate, rounds=count, epsilon=epsilon)
    if by is Accountant.PRV:
        raise ValueError("accountant='prv' answers epsilon only; use accountant='pld'")
    if by is Accountant.GDP_CLT:
        return delta_from_mu(clt_mu(noise_multiplier, sampling_rate, rounds=count), epsilon)
    if _closed_form(noise_multiplier, sampling_rate):
        return delta_from_mu(_reach(pairs) * math.sqrt(count) / noise_multiplier, epsilon)
    setting = Round(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=count)
    return composed_delta_bound([setting], epsilon, pairs=pairs)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
) -> float:
    """Return the least noise for which `rounds` equal rounds meet (epsilon, delta).

    Args:
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one" or "replace-one".
        accountant: "pld", "rdp", "prv" or "gdp-clt"; see `Accountant.kind`.

    Returns:
        Noise std on the sum of clipped gradients / clip norm, rounded up; 0 if no record is
        ever sampled.

    Raises:
        ValueError: a value is outside its range, the accountant does not cover the adjacency, or
            delta is no smaller than the probability that a record is ever sampled.
        TypeError: `rounds` is not an integer.

    >>> round(noise_multiplier(epsilon=1.0, delta=1e-5, rounds=1000, sampling_rate=0.01), 4)
    1.4146
    """
    check_epsilon(epsilon, positive=True)
    check_delta(delta)
    count, by, pairs = check_setting(rounds, sampling_rate, adjacency, accountant)
    if sampling_rate == 0.0:
        return 0.0
    if sampling_rate < 1.0 and delta >= (ever := -math.expm1(count * math.log1p(-sampling_rate))):
        raise ValueError(
            f"delta={delta} must be below {ever:.6g}, the probability that a record is ever "
            f"sampled in rounds={count}: no noise at all meets it; choose a smaller delta"
        )
    if by is Accountant.GDP_CLT:
        return clt_multiplier(epsilon, delta, rounds=count, rate=sampling_rate)
    if by is not Accountant.PLD:
        return _compared_multiplier(by, epsilon, delta, rounds=count, rate=sampling_rate)
    if sampling_rate < 1.0:
        return multiplier_bound(
            epsilon=epsilon, delta=delta, count=count, sampling_rate=sampling_rate, pairs=pairs
        )
    scale = _reach(pairs) * math.sqrt(count)
    least = scale / mu_from(epsilon, delta)
    while delta_from_mu(scale / least, epsilon) > delta:
        least *= 1.0 + 1e-14
    return least


def composed_epsilon(
    rounds: Sequence[tuple[float, float]] | Mapping[tuple[float, float], int],
    *,
    delta: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
) -> float:
    """Return the privacy loss of rounds that differ, by privacy loss distribution.

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs. Equal
            ones are counted once; the order does not matter.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one" or "replace-one".

    Returns:
        epsilon in nats, an upper bound; infinite if a sampled round has no noise.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer.

    >>> round(composed_epsilon([(2.0, 1.0)] * 4, delta=1e-5), 4)  # together mu = 1
    4.3772
    >>> round(composed_epsilon({(1.0, 0.01): 1000, (5.0, 0.1): 1}, delta=1e-5), 3)
    1.83
    """
    check_delta(delta)
    counts = rounds if isinstance(rounds, Mapping) else Counter(rounds)
    if not counts:
        raise ValueError("rounds is empty; give at least one (noise_multiplier, sampling_rate)")
    pairs: Sequence[Pair] = ADD_OR_REMOVE
    for (multiplier, rate), count in counts.items():
        check_multiplier(multiplier)
        pairs = check_setting(count, rate, adjacency, Accountant.PLD)[2]
    check_count(sum(counts.values()))
    sampled = {setting: n for setting, n in counts.items() if setting[1] > 0.0}
    return _composed_epsilon(sampled, delta, pairs)


def _composed_epsilon(
    counts: Mapping[tuple[float, float], int], delta: float, pairs: Sequence[Pair]
) -> float:
    rounds = []
    squares = 0.0  # of mu, over the rounds that the closed form covers
    for (multiplier, rate), count in counts.items():
        if multiplier == 0.0:
            return math.inf
        if _closed_form(multiplier, rate):
            squares += count * multiplier**-2
        else:
            rounds.append(Round(noise_multiplier=multiplier, sampling_rate=rate, count=count))
    if not rounds:
        return epsilon_from_mu(_reach(pairs) * math.sqrt(squares), delta)
    if squares > 0.0:
        rounds.append(Round(noise_multiplier=squares**-0.5, sampling_rate=1.0, count=1))
    return composed_epsilon_bound(rounds, delta, pairs=pairs)


def _closed_form(multiplier: float, rate: float) -> bool:
    """Whether the round is bounded as if every record took part: exactly, or at the extremes."""
    return rate == 1.0 or not RESOLVED_MULTIPLIERS[0] <= multiplier <= RESOLVED_MULTIPLIERS[1]


def _reach(pairs: Sequence[Pair]) -> float:
    """How far the sum moves between neighbours, in clip norms."""
    return 2.0 if Pair.REPLACE in pairs else 1.0


def _compared_epsilon(
    by: Accountant, multiplier: float, rate: float, *, rounds: int, delta: float
) -> float:
    if by is Accountant.RDP:
        return rdp_epsilon(multiplier, rate, rounds=rounds, delta=delta)
    if by is Accountant.PRV:
        return prv_epsilon(multiplier, rate, rounds=rounds, delta=delta)
    return epsilon_from_mu(clt_mu(multiplier, rate, rounds=rounds), delta)


def _compared_multiplier(
    by: Accountant, epsilon: float, delta: float, *, rounds: int, rate: float
) -> float:
    def excess(x: float) -> float:
        return _compared_epsilon(by, math.exp(x), rate, rounds=rounds, delta=delta) - epsilon

    start = math.log(max(clt_multiplier(epsilon, delta, rounds=rounds, rate=rate), 0.2))
    return math.exp(smallest_safe(excess, start, step=0.2, tolerance=1e-5))
