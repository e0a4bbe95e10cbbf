"""Scores of membership: how much likelier a model's confidence is if a record was trained on.

    N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer. Membership Inference Attacks From
        First Principles. IEEE S&P 2022, arXiv:2112.03570. Algorithm 1 and Eq. (4).
    S. Zarifzadeh, P. Liu, R. Shokri. Low-Cost High-Power Membership Inference Attacks. ICML 2024,
        arXiv:2312.03262. Eq. (3) to (5) and Algorithm 1.

    LiRA online    log N(phi; m_in, s_in) - log N(phi; m_out, s_out)
    LiRA offline   log P(N(m_out, s_out) < phi)
    RMIA           P over z of  (p_x / q_x) / (p_z / q_z) >= gamma
                   online   q = mean of p over references, in and out alike
                   offline  q = ((1 + a) mean of p over references that are out + (1 - a)) / 2
    threshold      phi, without references

| symbol | name here | shape | meaning |
|---|---|---|---|
| phi | target, references | (C,), (K, C) | logit-scaled confidence in the record's label |
| p | - | (C,) | 1 / (1 + exp(-phi)), the confidence itself |
| m, s | - | (C,) | mean and deviation of phi over references where the record is in, or out |
| z | - | - | the other records at stake |
| gamma | 1 | - | how much more a record must be preferred |
| a | .3 | - | how p of references that are in follows from those that are out |

Where we differ from the papers: below `_OWN_DEVIATION` references on a side LiRA's two deviations
are one, which joins what all references of a record say with the pooled value of all records, as if
that came of `_PRIOR` further references (R. Brännvall, arXiv:2603.11799, shows why few references
fail without). LiRA's own code for few references takes the deviation of all values together, means
included. RMIA's gamma is 1 in place of 2: models that are sure of nearly all records leave no ratio
of 2; p is the softmax alone. Queries are not augmented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError

_OWN_DEVIATION = 32  # references on a side, from which on each record has deviations of its own
_PRIOR = 5.0  # references that the pooled deviation counts as
_LEAST_DEVIATION = 1e-6
_OFFLINE = 0.3  # a

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]


def lira_online(target: Array, references: Array, included: Coins) -> Array:
    """Log-likelihood ratio of Gaussians that references with and without the record give.

    Args:
        target: (C,) statistics of the model under attack.
        references: (K, C) statistics of reference models.
        included: (K, C) in whose training sets the records are.

    Returns:
        (C,) in nats, higher for members.

    Raises:
        ValueError: shapes that differ, or a record that is in all references or in none.

    >>> included = np.array([[True], [False], [True], [False]])
    >>> references = np.array([[3.0], [0.0], [5.0], [2.0]])
    >>> lira_online(np.array([2.5]), references, included)  # halfway between 4 and 1
    array([0.])
    """
    _check(target, references, included)
    inside, outside = _spread(references, included), _spread(references, ~included)
    if min(inside.counts.min(), outside.counts.min()) >= _OWN_DEVIATION:
        of_in, of_out = inside.deviation(), outside.deviation()
    else:
        of_in = of_out = _shared_deviation(references, inside, outside)
    score = _log_density(target, inside.mean, of_in)
    return score - _log_density(target, outside.mean, of_out)


def lira_offline(target: Array, references: Array, included: Coins) -> Array:
    """Log-probability that a model without the record is less sure of it; arguments as online."""
    from scipy.special import log_ndtr

    _check(target, references, included)
    outside = _spread(references, ~included)
    if outside.counts.min() >= _OWN_DEVIATION:
        deviation = outside.deviation()
    else:
        deviation = _shared_deviation(references, outside)
    return np.asarray(log_ndtr((target - outside.mean) / deviation), dtype=np.float64)


def rmia_online(target: Array, references: Array, included: Coins) -> Array:
    """Share of other records that the model prefers less than this one, against all references.

    Arguments as of `lira_online`; the share is in [0, 1].
    """
    _check(target, references, included)
    inside = _mean(_probability(references), included)
    outside = _mean(_probability(references), ~included)
    return _preferred(_probability(target) / (0.5 * (inside + outside)))


def rmia_offline(target: Array, references: Array, included: Coins) -> Array:
    """The same against references without the record alone."""
    _check(target, references, included)
    outside = _mean(_probability(references), ~included)
    return _preferred(_probability(target) / (0.5 * ((1.0 + _OFFLINE) * outside + 1.0 - _OFFLINE)))


def threshold(target: Array, references: Array, included: Coins) -> Array:
    """The model's own confidence, one threshold for all records; references are not used.

    Source: Yeom et al., "Privacy Risk in Machine Learning", CSF 2018.
    """
    del references, included
    return target


Attack = Callable[[Array, Array, Coins], Array]
ATTACKS: Mapping[str, Attack] = {
    "LiRA online": lira_online,
    "LiRA offline": lira_offline,
    "RMIA online": rmia_online,
    "RMIA offline": rmia_offline,
    "loss threshold": threshold,
}


def _check(target: Array, references: Array, included: Coins) -> None:
    if references.ndim != 2 or references.shape != included.shape:
        raise InputError(
            f"references {references.shape} and included {included.shape} must be (K, C) each"
        )
    if target.shape != references.shape[1:]:
        raise InputError(f"target {target.shape} must be (C,), beside {references.shape} (K, C)")
    inside = included.sum(axis=0)
    if inside.min(initial=1) < 1 or inside.max(initial=0) >= max(len(included), 1):
        raise InputError(
            "included puts a record into all references or into none; give every record at least "
            "one of either, as balanced_coins does with 2 references and more"
        )


def _mean(values: Array, chosen: Coins) -> Array:
    """(C,) the mean of each column over the chosen rows."""
    return np.asarray(np.where(chosen, values, 0.0).sum(axis=0) / chosen.sum(axis=0))


class _Spread(NamedTuple):
    """(C,) mean of each record over some references, squares about it, and how many they are."""

    mean: Array
    squares: Array
    counts: NDArray[np.int64]

    def deviation(self) -> Array:
        return np.maximum(np.sqrt(self.squares / (self.counts - 1)), _LEAST_DEVIATION)


def _spread(values: Array, chosen: Coins) -> _Spread:
    mean = _mean(values, chosen)
    squares = np.where(chosen, (values - mean) ** 2, 0.0).sum(axis=0)
    return _Spread(mean, squares, chosen.sum(axis=0))


def _shared_deviation(values: Array, *spreads: _Spread) -> Array:
    """(C,) of all references of a record, drawn towards that of all records."""
    squares = np.sum([spread.squares for spread in spreads], axis=0)
    freedom = np.sum([spread.counts - 1 for spread in spreads], axis=0)
    # One reference of a record tells nothing of its own spread.
    pooled = squares.sum() / freedom.sum() if freedom.sum() > 0 else values.var()
    variance = (_PRIOR * pooled + squares) / (_PRIOR + freedom)
    return np.maximum(np.sqrt(variance), _LEAST_DEVIATION)


def _log_density(values: Array, mean: Array, deviation: Array) -> Array:
    """Of a Gaussian, but for a constant that cancels in a ratio."""
    return np.asarray(-0.5 * ((values - mean) / deviation) ** 2 - np.log(deviation))


def _probability(statistics: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(statistics), dtype=np.float64)


def _preferred(ratios: Array) -> Array:
    """(C,) share of the other records whose ratio is at most that of each."""
    if len(ratios) < 2:
        return np.zeros(len(ratios))
    at_most = np.searchsorted(np.sort(ratios), ratios, side="right") - 1  # without itself
    return np.asarray(at_most / (len(ratios) - 1), dtype=np.float64)
