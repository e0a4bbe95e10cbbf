"""What a guarantee means: how often the best adversary is right, from the trade-off curve.

    Dong, Roth, Su. Gaussian Differential Privacy. JRSS-B 84 (2022), arXiv:1905.02383.
        Proposition 6: the trade-off curve is the envelope of the lines of all (epsilon, delta).
    Kulynych, Gomez, Kaissis, Calmon, Troncoso. Attack-Aware Noise Calibration for Differential
        Privacy. NeurIPS 2024, arXiv:2407.02191: advantage and hits from the composed loss.
    Hayes, Mahloujifar, Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS 2023,
        arXiv:2302.07225; Kaissis, Hayes, Ziller, Rueckert. arXiv:2307.03928: reconstruction.

    f(a) = max over epsilon >= 0 of  1 - delta(epsilon) - e^epsilon a         for either of the two
                                     e^-epsilon (1 - delta'(epsilon) - a)     directions: the lower
    advantage        max over a of (1 - f(a)) - a           = delta(0)
    hits(a)          1 - f(a)
    Bayes risk(p)    min over a of (1 - p) a + p f(a)       = p (1 - delta(log((1 - p)/p)))
    reconstruction   1 - f(k)
    mu               least mu with Phi(-Phi^-1(a) - mu) <= f(a)

| symbol | name here | unit |
|---|---|---|
| a | false_alarm_rate | probability of "the record is in" when it is not |
| f | miss_rates | probability of "the record is not in" when it is |
| delta, delta' | _Lines.deltas of one direction and of the other | probability |
| p | prior | probability that the record is in, before anything is seen |
| k | prior_hit_rate | probability that a guess made without seeing anything counts as rebuilt |

Formal guarantees:
- Every delta is an upper bound, so every line lies under the true curve, whichever epsilons are
  chosen: miss rates and Bayes risk are lower bounds; advantage, hits, reconstruction and mu are
  upper bounds. The adversary knows all other records and is never weaker than the figures say.
- "replace-one" with a sampling rate below 1 bounds one contribution per batch.
- mu describes the curve where both error rates are at least 1e-6, not beyond.

Where we differ from the paper: lines are read from tilted compositions, so rates of 1e-12 are as
precise as .1; the two directions (record added, record removed) are not joined by a chord.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accounting_setting import (
    Accountant,
    Adjacency,
    check_count,
    check_epsilon,
    check_multiplier,
    check_setting,
)
from .gaussian import delta_from_mu
from .loss_accounting import ADD_OR_REMOVE
from .loss_atoms import Pair, Round, loss_atoms
from .loss_distribution import LossDistribution, compose, tilt_for_delta

__all__ = ["Risk", "TradeOff", "composed_risk", "risk", "risk_of_mu", "trade_off"]

Array = NDArray[np.float64]
FALSE_ALARM_RATES = (0.001, 0.01, 0.1)
_MULTIPLIERS = (1e-2, 1e9)  # outside, every record counts as sampled in every round
_FEW = 64  # more distinct rounds than this trade sharpness for time
_MISSING = 1e-18  # probability that all rounds together may leave out
# Tilted probability that a transform may lose: e^-28 in each of at most sqrt(10^7) blocks.
_LOST = 3e-9
_DEPTHS = (2.0, 4.0, 6.0, 8.0)  # where compositions are precise, in stds of the loss
_LEAST_RATE = 1e-6  # of false alarms or misses, where mu is fitted


class TradeOff(Protocol):
    """What any test between "record in" and "record not in" must pay."""

    def miss_rates(self, false_alarm_rates: ArrayLike) -> Array:
        """Least miss rate at each false alarm rate in [0, 1], a lower bound; same shape."""
        ...

    def delta(self, epsilon: float) -> float:
        """Delta at which the rounds lose at most epsilon >= 0 nats, an upper bound."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Risk:
    """What the best adversary achieves against one record.

    Attributes:
        advantage: largest hit rate minus false alarm rate, in [0, 1].
        hits: (false alarm rate, largest hit rate) pairs.
        prior: probability that the record is in, before anything is seen.
        bayes_risk: least probability to be wrong about the record, at most min(prior, 1 - prior).
        prior_hit_rate: probability to rebuild the record without seeing anything.
        reconstruction: largest probability to rebuild it after everything is seen.
        mu: least Gaussian DP parameter that covers the curve where both error rates are at
            least 1e-6; infinite if no finite one is certified.
        mu_fit_error: by how much the hits of `mu` overstate those of the curve, at most.

    Raises:
        ValueError: a figure is not a probability, or mu is negative or not a number.

    >>> risk_of_mu(1.0).hits[1]  # 9 in 100 at 1 false alarm in 100
    (0.01, 0.09236177777421848)
    """

    advantage: float
    hits: tuple[tuple[float, float], ...]
    prior: float
    bayes_risk: float
    prior_hit_rate: float
    reconstruction: float
    mu: float
    mu_fit_error: float

    def __post_init__(self) -> None:
        """Check that the figures are figures."""
        figures = {
            name: getattr(self, name)
            for name in (
                "advantage",
                "prior",
                "bayes_risk",
                "prior_hit_rate",
                "reconstruction",
                "mu_fit_error",
            )
        }
        figures |= {f"hits at {rate}": hit for rate, hit in self.hits}
        for name, value in figures.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name}={value} must lie in [0, 1]; it is a probability")
        if not self.mu >= 0.0:
            raise ValueError(f"mu={self.mu} must be at least 0; it counts standard deviations")


def risk(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    rounds: SupportsIndex,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_alarm_rates: Sequence[float] = FALSE_ALARM_RATES,
) -> Risk:
    """Return what the best adversary achieves against a record after `rounds` equal rounds.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0; the
            effective one of an adversary's view.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        rounds: how many, from 1 to 10 million.
        adjacency: "add-or-remove-one" or "replace-one".
        prior: probability that the record is in, before anything is seen, in (0, 1).
        prior_hit_rate: probability to rebuild the record without seeing anything, in [0, 1].
        false_alarm_rates: where hits are reported, each in [0, 1].

    Returns:
        Figures of which none makes the adversary weaker than it is.

    Raises:
        ValueError: a value is outside its range.
        TypeError: `rounds` is not an integer.

    Source: the module's docstring; arXiv:2407.02191 and arXiv:2302.07225.

    >>> found = risk(noise_multiplier=1.0, sampling_rate=0.01, rounds=1000)  # epsilon 1.83
    >>> round(found.advantage, 3), [round(hit, 4) for _, hit in found.hits]
    (0.161, [0.004, 0.0291, 0.1942])
    """
    curve = trade_off({(noise_multiplier, sampling_rate): check_count(rounds)}, adjacency=adjacency)
    return _risk_of(curve, prior, prior_hit_rate, false_alarm_rates)


def composed_risk(
    rounds: Sequence[tuple[float, float]] | Mapping[tuple[float, float], int],
    *,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_alarm_rates: Sequence[float] = FALSE_ALARM_RATES,
) -> Risk:
    """Return the figures of `risk` for rounds that differ.

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs.
        adjacency: as in `risk`.
        prior: as in `risk`.
        prior_hit_rate: as in `risk`.
        false_alarm_rates: as in `risk`.

    Returns:
        Figures of which none makes the adversary weaker than it is.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer.

    >>> round(composed_risk({(1.0, 0.01): 1000, (5.0, 0.1): 1}).advantage, 3)
    0.161
    """
    curve = trade_off(rounds, adjacency=adjacency)
    return _risk_of(curve, prior, prior_hit_rate, false_alarm_rates)


def risk_of_mu(
    mu: float,
    *,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_alarm_rates: Sequence[float] = FALSE_ALARM_RATES,
) -> Risk:
    """Return what the best adversary achieves against a mu-GDP release, in closed form.

    Args:
        mu: Gaussian DP parameter for the adjacency in question, in standard deviations, >= 0; may
            be infinite.
        prior: as in `risk`.
        prior_hit_rate: as in `risk`.
        false_alarm_rates: as in `risk`.

    Returns:
        Advantage 2 Phi(mu/2) - 1, hits Phi(Phi^-1(a) + mu), mu itself with no fit error.

    Raises:
        ValueError: a value is outside its range.

    >>> round(risk_of_mu(0.5).advantage, 4)
    0.1974
    """
    if not mu >= 0.0:
        raise ValueError(f"mu={mu} must be at least 0; it counts standard deviations")
    return _risk_of(_GaussianCurve(mu=float(mu)), prior, prior_hit_rate, false_alarm_rates)


def trade_off(
    rounds: Sequence[tuple[float, float]] | Mapping[tuple[float, float], int],
    *,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
) -> TradeOff:
    """Return the curve between false alarms and misses that no adversary beats.

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs.
        adjacency: "add-or-remove-one" or "replace-one".

    Returns:
        A lower bound of the true curve, the worse of its two directions; the closed form if every
        record is sampled in every round.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer.

    >>> curve = trade_off({(1.0, 0.01): 1000})
    >>> round(float(curve.miss_rates(0.01)), 4)
    0.9709
    """
    counts = rounds if isinstance(rounds, Mapping) else Counter(rounds)
    if not counts:
        raise ValueError("rounds is empty; give at least one (noise_multiplier, sampling_rate)")
    pairs: Sequence[Pair] = ADD_OR_REMOVE
    sampled: list[Round] = []
    squares = 0.0  # of mu, over the rounds that the closed form covers
    for (multiplier, rate), given in counts.items():
        check_multiplier(multiplier)
        count, _by, pairs = check_setting(given, rate, adjacency, Accountant.PLD)
        if rate == 0.0 or multiplier == math.inf:
            continue
        if multiplier == 0.0:
            return _GaussianCurve(mu=math.inf)
        if rate == 1.0 or not _MULTIPLIERS[0] <= multiplier <= _MULTIPLIERS[1]:
            squares += count / multiplier**2
        else:
            sampled.append(Round(noise_multiplier=multiplier, sampling_rate=rate, count=count))
    check_count(sum(counts.values()))
    if not sampled:
        reach = 2.0 if Pair.REPLACE in pairs else 1.0  # how far the sum moves, in clip norms
        return _GaussianCurve(mu=reach * math.sqrt(squares))
    if squares > 0.0:
        sampled.append(Round(noise_multiplier=squares**-0.5, sampling_rate=1.0, count=1))
    read = [_lines(sampled, pair) for pair in pairs]
    return _SampledCurve(ahead=read[0], back=read[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class _GaussianCurve:
    """Closed form: N(0, 1) against N(mu, 1)."""

    mu: float

    def miss_rates(self, false_alarm_rates: ArrayLike) -> Array:
        from scipy.special import ndtr, ndtri

        rates = _probabilities(false_alarm_rates)
        if self.mu == math.inf:
            return np.zeros_like(rates)
        return np.asarray(ndtr(-ndtri(rates) - self.mu), dtype=np.float64)

    def delta(self, epsilon: float) -> float:
        return delta_from_mu(self.mu, epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lines:
    """Upper bounds of delta at rising epsilons, all (K,), for P against Q.

    `above_p` and `above_q` are the probabilities of a larger loss: they choose the line for a
    rate, and a bad choice is loose, not wrong.
    """

    epsilons: Array
    deltas: Array
    above_p: Array
    above_q: Array

    def delta(self, epsilon: float) -> float:
        if epsilon < self.epsilons[0]:
            return 1.0
        k = int(np.searchsorted(self.epsilons, epsilon, side="right")) - 1
        if k == self.epsilons.size - 1:
            return float(self.deltas[k])
        # Delta is convex in e^epsilon: the chord is above it.
        low, high = float(self.epsilons[k]), float(self.epsilons[k + 1])
        share = math.expm1(epsilon - low) / math.expm1(high - low)
        return float(self.deltas[k] + share * (self.deltas[k + 1] - self.deltas[k]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _SampledCurve:
    """Lines with the record in as P (`ahead`) and as Q (`back`), from several compositions."""

    ahead: tuple[_Lines, ...]
    back: tuple[_Lines, ...]

    def miss_rates(self, false_alarm_rates: ArrayLike) -> Array:
        rates = _probabilities(false_alarm_rates)
        return np.minimum(
            _misses(self.ahead, self.back, rates), _misses(self.back, self.ahead, rates)
        )

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon, most=math.inf)
        worst = max(min(one.delta(epsilon) for one in way) for way in (self.ahead, self.back))
        return min(1.0, worst)


def _misses(ahead: Sequence[_Lines], back: Sequence[_Lines], rates: Array) -> Array:
    """Envelope at each rate of the lines of P against Q and of Q against P."""
    misses = np.zeros_like(rates)
    logs = np.log(np.maximum(rates, 1e-300))
    for one in ahead:  # steepest where more than a share `rate` of Q lies above epsilon
        k = _first_at_most(one.above_q, rates)
        exponents = np.minimum(one.epsilons[k] + logs, 1.0)
        misses = np.maximum(misses, 1.0 - one.deltas[k] - np.exp(exponents))
    for one in back:
        k = _first_at_most(one.above_p, 1.0 - rates)
        misses = np.maximum(misses, np.exp(-one.epsilons[k]) * (1.0 - one.deltas[k] - rates))
    return misses


def _first_at_most(falling: Array, bounds: Array) -> NDArray[np.int64]:
    """Index of the first entry at most each bound, or the last index."""
    return np.minimum(np.searchsorted(-falling, -bounds), falling.size - 1)


def _lines(rounds: Sequence[Round], pair: Pair) -> tuple[_Lines, ...]:
    """One set of lines for the bulk of the loss and one for each depth of its upper tail."""
    missing = _MISSING / sum(r.count for r in rounds)
    step = 0.005 if len(rounds) <= _FEW else 0.01
    atoms = [loss_atoms(r, pair, missing=missing, step=step) for r in rounds]
    deviation = math.sqrt(sum(a.count * a.cumulants(0.0)[2] for a in atoms))
    tilts = [0.01 / max(deviation, 1e-12)]
    tilts += [tilt_for_delta(atoms, math.exp(-0.5 * depth**2)) for depth in _DEPTHS]
    return tuple(_read(compose(atoms, tilt=tilt)) for tilt in tilts)


def _read(loss: LossDistribution) -> _Lines:
    """Delta at every grid point from 0 on, as sums of positive terms."""
    from scipy.signal import lfilter

    first = max(loss.start, 0)
    epsilons = loss.grid * np.arange(first, max(loss.start + loss.tilted.size, first + 1))
    scales = np.exp(np.minimum(loss.log_scale - loss.tilt * epsilons, 700.0))
    masses = np.zeros_like(epsilons)  # (K,)
    inside = loss.tilted[first - loss.start :]
    masses[: inside.size] = inside * scales[: inside.size]
    # C_k = sum over j > k of e^-(j-k-1)h m_j, and delta_k - delta_(k+1) = (1 - e^-h) C_k.
    discounted = np.zeros_like(epsilons)
    discounted[:-1] = lfilter([1.0], [1.0, -math.exp(-loss.grid)], masses[:0:-1])[::-1]
    deltas = -math.expm1(-loss.grid) * np.cumsum(discounted[::-1])[::-1]
    above_p = np.zeros_like(epsilons)
    above_p[:-1] = np.cumsum(masses[:0:-1])[::-1]
    return _Lines(
        epsilons=epsilons,
        deltas=np.minimum(deltas + loss.infinite + _LOST * scales, 1.0),
        above_p=above_p,
        above_q=np.exp(-(epsilons + loss.grid)) * discounted,
    )


def _risk_of(
    curve: TradeOff, prior: float, prior_hit_rate: float, false_alarm_rates: Sequence[float]
) -> Risk:
    if not 0.0 < prior < 1.0:
        raise ValueError(f"prior={prior} must lie strictly between 0 and 1; .5 is a coin")
    rates = tuple(float(rate) for rate in false_alarm_rates)
    hits = 1.0 - curve.miss_rates([*rates, prior_hit_rate])
    advantage = curve.delta(0.0)
    odds = abs(math.log1p(-prior) - math.log(prior))
    mu, error = _fit(curve, advantage)
    return Risk(
        advantage=advantage,
        hits=tuple(zip(rates, (float(hit) for hit in hits[:-1]), strict=True)),
        prior=prior,
        bayes_risk=min(prior, 1.0 - prior) * (1.0 - curve.delta(odds)),
        prior_hit_rate=prior_hit_rate,
        reconstruction=float(hits[-1]),
        mu=mu,
        mu_fit_error=error,
    )


def _fit(curve: TradeOff, advantage: float) -> tuple[float, float]:
    """Least mu whose curve lies under this one, and how far under at most."""
    from scipy.special import ndtr, ndtri

    if isinstance(curve, _GaussianCurve):
        return curve.mu, 0.0
    deep = float(ndtri(_LEAST_RATE))
    z = np.linspace(deep, -deep, 1901)
    misses = curve.miss_rates(ndtr(z))
    half = ndtr(z) <= misses  # the curve is its own mirror image
    crossing = 0.5 * (1.0 - advantage)  # where false alarms and misses are equally rare
    if crossing <= 0.0:
        return math.inf, 0.0
    mu = max(-2.0 * float(ndtri(crossing)), 0.0)
    if half.any():
        mu = max(mu, float(np.max(-ndtri(misses[half]) - z[half])))
    return mu, max(0.0, float(np.max(misses - ndtr(-z - mu))))


def _probabilities(rates: ArrayLike) -> Array:
    values = np.asarray(rates, dtype=np.float64)
    if not np.all((values >= 0.0) & (values <= 1.0)):
        raise ValueError(f"false alarm or prior hit rate {rates} must lie in [0, 1]")
    return values
