"""The trade-off curve of FPR and FNR that no adversary beats, from many deltas at once.

    Dong, Roth, Su. Gaussian Differential Privacy. JRSS-B 84 (2022), arXiv:1905.02383.
        Proposition 6: the curve is the envelope of the lines of all (epsilon, delta).

    f(a) = max over epsilon >= 0 of   1 - delta(epsilon) - e^epsilon a
                                and   e^-epsilon (1 - delta'(epsilon) - a)
    for the record in against out, and with delta, delta' exchanged: the lower of the two
    at q = 1:  f(a) = Phi(-Phi^-1(a) - mu)

| symbol | name here | unit |
|---|---|---|
| a | false_positive_rates (FPR) | probability of "the record is in" when it is not |
| f | false_negative_rates (FNR) | probability of "the record is not in" when it is |
| delta, delta' | _Lines.deltas of one direction and of the other | probability |

Every delta is an upper bound, so every line lies under the true curve, whichever epsilons are
chosen.

Where we differ from the paper: lines are read from several tilted compositions, which keeps
rates of 1e-8 as precise as .1, and at every point of their grids, where the envelope of a
distribution on that grid has its corners. The two directions are not joined by a chord.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, InputTypeError, check_real, within
from ..participation import Rounds
from .dominating_pairs import Round, discretised_pair
from .gaussian import delta_from_mu
from .privacy_loss import LossDistribution, compose, tilt_for_delta
from .request import Adjacency, check_epsilon, check_rounds, orders_of
from .search import FEW_ROUNDS

Array = NDArray[np.float64]
_MISSING = 1e-18  # probability that all rounds together may leave out
_DEPTHS = (2.0, 4.0, 6.0, 8.0)  # where compositions are precise, in stds of the loss
_DEPTHS_OF_MANY = (5.0,)


class TradeOff(Protocol):
    """What any test between "record in" and "record not in" must pay."""

    def false_negative_rates(self, false_positive_rates: ArrayLike) -> Array:
        """Least FNR at each false-positive rate in [0, 1], a lower bound; same shape."""
        ...

    def delta(self, epsilon: float) -> float:
        """Delta at which the rounds lose at most epsilon >= 0 nats, an upper bound."""
        ...

    def mean_delta(self, epsilon: float) -> float:
        """The mean of delta in the two orders of data sets, each an upper bound."""
        ...


def trade_off(
    rounds: Rounds, *, adjacency: str = Adjacency.ADD_OR_REMOVE_ONE, tails: bool = True
) -> TradeOff:
    """Return the trade-off curve of FPR and FNR that no adversary beats.

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs, or how
            often each `Event` does.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        tails: whether rates of 1e-8 are as precise as .1, which takes five times as long.

    Returns:
        A lower bound of the true curve, the worse of its two directions; the closed form if every
        record is sampled in every round.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer, or a value is no number.

    >>> curve = trade_off({(1.0, 0.01): 1000})
    >>> round(float(curve.false_negative_rates(0.01)), 4)
    0.9709
    """
    mu, orders = orders_of(check_rounds(rounds, adjacency), adjacency)
    if not orders:
        return GaussianCurve(mu=mu)
    lines = _known_lines if len(orders[0]) <= FEW_ROUNDS else _lines
    read = [lines(order, tails=tails) for order in orders]
    return _SampledCurve(ahead=read[0], back=read[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianCurve:
    """Closed form: N(0, 1) against N(mu, 1).

    Attributes:
        mu: Gaussian DP parameter, in standard deviations, >= 0; may be infinite.

    Raises:
        ValueError: mu is negative or not a number.
        TypeError: mu is a truth value or a string.

    >>> round(float(GaussianCurve(mu=1.0).false_negative_rates(0.01)), 4)
    0.9076
    """

    mu: float

    def __post_init__(self) -> None:
        """Refuse what is no distance."""
        within("mu", self.mu, "[0, inf]", "it counts standard deviations")

    def false_negative_rates(self, false_positive_rates: ArrayLike) -> Array:
        """Phi(-Phi^-1(a) - mu); 0 everywhere if mu is infinite."""
        from scipy.special import ndtr, ndtri

        rates = _probabilities(false_positive_rates)
        if self.mu == math.inf:
            return np.zeros_like(rates)
        return np.asarray(ndtr(-ndtri(rates) - self.mu), dtype=np.float64)

    def delta(self, epsilon: float) -> float:
        """Smallest delta for this epsilon >= 0, in nats."""
        return delta_from_mu(self.mu, epsilon)

    mean_delta = delta  # the same in either order


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
        k = int(np.searchsorted(self.epsilons, epsilon, side="right")) - 1
        if k == self.epsilons.size - 1:
            return float(self.deltas[k])
        # Delta is convex in e^epsilon: the chord is above it.
        low, high = float(self.epsilons[k]), float(self.epsilons[k + 1])
        share = math.expm1(low - epsilon) / math.expm1(low - high) * math.exp(epsilon - high)
        return float(self.deltas[k] + share * (self.deltas[k + 1] - self.deltas[k]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _SampledCurve:
    """Lines with the record in as P (`ahead`) and as Q (`back`), from several compositions."""

    ahead: tuple[_Lines, ...]
    back: tuple[_Lines, ...]

    def false_negative_rates(self, false_positive_rates: ArrayLike) -> Array:
        rates = _probabilities(false_positive_rates)
        return np.minimum(
            _false_negatives(self.ahead, self.back, rates),
            _false_negatives(self.back, self.ahead, rates),
        )

    def delta(self, epsilon: float) -> float:
        check_real("epsilon", epsilon)
        check_epsilon(epsilon, most=math.inf)
        return max(self._deltas(epsilon))

    def mean_delta(self, epsilon: float) -> float:
        return sum(self._deltas(epsilon)) / 2.0

    def _deltas(self, epsilon: float) -> list[float]:
        """Of either order."""
        ways = (self.ahead, self.back)
        return [min(1.0, *(one.delta(epsilon) for one in way)) for way in ways]


def _false_negatives(ahead: Sequence[_Lines], back: Sequence[_Lines], rates: Array) -> Array:
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


def _lines(rounds: Sequence[Round], *, tails: bool) -> tuple[_Lines, ...]:
    """One set of lines for the bulk of the loss and one for each depth of its upper tail."""
    missing = _MISSING / sum(r.count for r in rounds)
    step, depths = (0.005, _DEPTHS) if len(rounds) <= FEW_ROUNDS else (0.01, _DEPTHS_OF_MANY)
    discretised_pairs = [discretised_pair(r, missing=missing, step=step) for r in rounds]
    deviation = math.sqrt(sum(p.count * p.cumulants(0.0)[2] for p in discretised_pairs))
    tilts = [1e-3 / max(deviation, 1.0)]  # next to none; none at all is not a tilt
    for depth in depths if tails else ():
        tilts.append(tilt_for_delta(discretised_pairs, math.exp(-0.5 * depth**2)))
    return tuple(_read(compose(discretised_pairs, tilt=tilt)) for tilt in tilts)


_known_lines = lru_cache(maxsize=16)(_lines)  # a report reads one curve at several places


def _read(loss: LossDistribution) -> _Lines:
    """Delta at 0 and at every larger grid point, as sums of positive terms."""
    from scipy.signal import lfilter

    # Masses of the losses from 0 on, with the tilt taken off.
    first = max(loss.start, 0)
    index = np.arange(first, max(loss.start + loss.tilted.size, first + 1))
    losses = np.asarray(index * loss.grid, dtype=np.float64)  # (K,)
    scales = np.exp(np.minimum(loss.log_scale - loss.tilt * losses, 700.0))
    masses = np.zeros_like(losses)
    inside = loss.tilted[first - loss.start :]
    masses[: inside.size] = inside * scales[: inside.size]
    # D_k = sum over j >= k of e^-(j-k)h m_j, and delta_(k-1) - delta_k = (1 - e^-h) D_k.
    discounted = lfilter([1.0], [1.0, -math.exp(-loss.grid)], masses[::-1])[::-1]
    at_least = np.cumsum(masses[::-1])[::-1]
    # Each delta includes what is infinite, and the mass that composing may have displaced.
    steps = -math.expm1(-loss.grid) * discounted
    lines = _Lines(
        epsilons=losses,
        deltas=np.append(np.cumsum(steps[:0:-1])[::-1], 0.0)
        + loss.infinite
        + loss.displaced * scales,
        above_p=np.append(at_least[1:], 0.0),
        above_q=np.exp(-(losses + loss.grid)) * np.append(discounted[1:], 0.0),
    )
    if first == 0:
        return lines
    # The window begins above 0. What is missing from it may lie anywhere between.
    elsewhere = max(0.0, 1.0 - float(at_least[0]))
    lost = loss.displaced * math.exp(min(loss.log_scale, 700.0))
    at_zero = float(-np.expm1(-losses) @ masses) + elsewhere + loss.infinite + lost
    return _Lines(
        epsilons=np.insert(losses, 0, 0.0),
        deltas=np.insert(lines.deltas, 0, at_zero),
        above_p=np.insert(lines.above_p, 0, at_least[0]),
        above_q=np.insert(lines.above_q, 0, math.exp(-losses[0]) * discounted[0]),
    )


def _probabilities(rates: ArrayLike) -> Array:
    given = np.asarray(rates)
    if given.size and given.dtype.kind not in "iuf":
        raise InputTypeError(
            f"false-positive or prior hit rates {rates!r} must be numbers in [0, 1]"
        )
    values = given.astype(np.float64)
    wrong = values[~((values >= 0.0) & (values <= 1.0))]
    if wrong.size:
        raise InputError(
            f"false-positive or prior hit rate {wrong[0]} must lie in [0, 1]; it is a probability"
        )
    return values
