"""Epsilon, delta and the smallest scale of the noise of composed sampled Gaussian rounds.

Rounds come once for either order of the two data sets. Each function takes the worse order and
rounds upwards: epsilon and delta are never below the truth, and a returned scale has been
evaluated and meets (epsilon, delta).

Source: the methods of `dominating_pairs` and `privacy_loss`. The first guess of a calibration is
the saddle-point approximation of Alghamdi et al. (arXiv:2208.09595), which is exact for Gaussian
losses; it decides how many evaluations are needed, never the answer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ..errors import InputError
from .dominating_pairs import Cell, DiscretisedPair, Round, discretised_pair, mixtures
from .gaussian import mu_from
from .privacy_loss import LossDistribution, cell_step, compose, tilt_for_delta, tilt_for_epsilon

Rounds = Sequence[Round]
_COARSE = 0.05  # cell width, in noise stds, where only a tilt or a first guess is wanted
FEW_ROUNDS = 64  # more distinct rounds than this are composed as mixtures of fewer
LEAST_MISSING = 1e-307  # a smaller probability has no logarithm in floating point
_TOLERANCE = 2e-6  # relative, on a noise multiplier
_SHALLOW = 1.0  # tilt * epsilon below which the usual 2e-4 of log delta may be 1e-3 of epsilon
_SLACKS = (0.0, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-7, 1e-5)
_MOST_NOISE = math.log(1e100)
_LEAST_LOOSE = 0.01  # share of the usual, below which time grows and epsilon does not move


def composed_epsilon_bound(orders: Sequence[Rounds], delta: float) -> float:
    """Smallest epsilon certified for all rounds together at this delta.

    >>> from overhear.privacy.participation import poisson
    >>> from .dominating_pairs import Pair
    >>> one = Round(noise_multiplier=1.0, moves=poisson(0.01), pair=Pair.REMOVE, count=1000)
    >>> round(composed_epsilon_bound([[one]], 1e-5), 2)
    1.83
    """
    known = _known_epsilon_bound if len(orders[0]) <= FEW_ROUNDS else _last_epsilon_bound
    return known(tuple(tuple(rounds) for rounds in orders), delta)


def _epsilon_bound(orders: Sequence[Rounds], delta: float) -> float:
    if ever_sampled(orders[0]) <= delta:
        return 0.0
    missing = max(1e-8 * delta / sum(r.count for r in orders[0]), LEAST_MISSING)
    bounds = []
    for rounds in orders:
        prepared = _prepare(rounds, missing, lambda found: tilt_for_delta(found, delta))
        bounds.append(_where_known(lambda d: d.epsilon(delta), prepared, trivial=math.inf))
    worst = max(range(len(orders)), key=lambda i: bounds[i])
    if 0.0 < bounds[worst] < math.inf and len(orders[0]) <= FEW_ROUNDS:
        # Once epsilon is known, the tilt that a calibration to it uses is the sharper one.
        known = bounds[worst]
        prepared = _prepare(orders[worst], missing, lambda found: tilt_for_epsilon(found, known))
        again = prepared.composed().epsilon(delta)
        bounds[worst] = known if again is None else min(known, again)
        # d log delta / d epsilon is about -tilt: where both are small, what the discretisation adds
        # to log delta is much of epsilon.
        loose = prepared.tilt * known
        if loose < _SHALLOW:
            for i, rounds in enumerate(orders):
                bounds[i] = min(bounds[i], _finer(rounds, missing, delta, known, loose))
    return max(bounds)


def _finer(rounds: Rounds, missing: float, delta: float, near: float, loose: float) -> float:
    """Epsilon of an order on a grid and cells that add less to log delta than is usual."""
    less = max(0.1 * loose, _LEAST_LOOSE)
    prepared = _prepare(rounds, missing, lambda of: tilt_for_epsilon(of, near), looseness=less)
    found = prepared.composed().epsilon(delta)
    return math.inf if found is None else found


# A report asks for the same figures as its plan, its ledger and its remedies. Many rounds take
# memory as a key: of them only those that several adversaries share are worth it.
_known_epsilon_bound = lru_cache(maxsize=1024)(_epsilon_bound)
_last_epsilon_bound = lru_cache(maxsize=2)(_epsilon_bound)


def composed_delta_bound(orders: Sequence[Rounds], epsilon: float) -> float:
    """Smallest delta certified for all rounds together at this epsilon.

    >>> from overhear.privacy.participation import poisson
    >>> from .dominating_pairs import Pair
    >>> one = Round(noise_multiplier=1.0, moves=poisson(0.01), pair=Pair.REMOVE, count=1000)
    >>> f"{composed_delta_bound([[one]], 2.0):.1e}"
    '2.7e-06'
    """
    worst = 0.0
    # What a discretised pair leaves out is added to delta: less, until it does not matter.
    for total in (1e-25, 1e-80, 1e-300):
        missing = max(total / sum(r.count for r in orders[0]), LEAST_MISSING)
        worst = max(_delta_of(rounds, epsilon, missing) for rounds in orders)
        if worst > 1e8 * total:
            break
    return min(worst, ever_sampled(orders[0]))


def ever_sampled(rounds: Rounds) -> float:
    """Probability that the unit is in any round: no delta is larger, as all else is alike."""
    if any(r.rate == 1.0 for r in rounds):
        return 1.0
    return -math.expm1(sum(r.count * math.log1p(-r.rate) for r in rounds))


def scaled(orders: Sequence[Rounds], scale: float) -> tuple[tuple[Round, ...], ...]:
    """The same rounds with all of their noise multiplied."""
    return tuple(tuple(r.scaled(scale) for r in rounds) for rounds in orders)


@lru_cache(maxsize=1024)
def scale_bound(orders: tuple[tuple[Round, ...], ...], *, epsilon: float, delta: float) -> float:
    """Smallest factor on the noise of one kind of round, rounded up, that meets the target.

    >>> from overhear.privacy.participation import poisson
    >>> from .dominating_pairs import Pair
    >>> one = Round(noise_multiplier=1.0, moves=poisson(0.01), pair=Pair.REMOVE, count=1000)
    >>> round(scale_bound(((one,),), epsilon=1.0, delta=1e-5), 3)
    1.415
    """
    # Every search is over x, the log of the factor, and for log delta.
    first = orders[0][0]
    missing = max(1e-8 * delta / first.count, LEAST_MISSING)
    goal = math.log(delta)

    def guess_excess(x: float) -> float:
        return log_delta_guess(first.scaled(math.exp(x)), epsilon, missing) - goal

    def worst_delta(x: float, these: Sequence[Rounds]) -> float:
        if x > _MOST_NOISE:
            raise InputError(
                f"no noise_multiplier up to 1e100 is found to meet epsilon={epsilon:g} at "
                f"delta={delta:g}; choose a larger delta"
            )
        return max(_delta_of(r, epsilon, missing) for r in scaled(these, math.exp(x)))

    def excess(x: float) -> float:
        return math.log(worst_delta(x, orders[:1])) - goal

    def excess_of_all(x: float) -> float:
        return math.log(worst_delta(x, orders)) - goal

    # A guess without composing, then the accountant's own answers around it.
    limit = first.rate * first.mu * math.sqrt(first.count) / mu_from(epsilon, delta)  # much noise
    guess = smallest_safe(
        guess_excess, math.log(max(limit, 0.3 * first.mu)), step=0.5, tolerance=1e-4
    )
    slope = (guess_excess(guess + 0.01) - guess_excess(guess - 0.01)) / 0.02
    step = 1.5 * abs(excess(guess) / slope) if slope else 0.1
    answer = smallest_safe(excess, guess, step=min(max(step, 1e-5), 0.5), tolerance=_TOLERANCE)
    # "remove" almost always needs the most noise; the other orders are asked once to be sure.
    if len(orders) > 1 and worst_delta(answer, orders[1:]) > delta:
        answer = smallest_safe(excess_of_all, answer, step=1e-4, tolerance=_TOLERANCE)
    return math.exp(answer)


def smallest_safe(
    excess: Callable[[float], float], start: float, *, step: float, tolerance: float
) -> float:
    """An x within about `tolerance` above the root of a decreasing function, excess(x) <= 0.

    >>> round(smallest_safe(lambda x: 2.0 - x, 0.0, step=1.0, tolerance=1e-6), 5)
    2.0
    """
    from scipy.optimize import brentq

    known: dict[float, float] = {}

    def value(x: float) -> float:
        if x not in known:
            known[x] = min(max(excess(x), -1e6), 1e6)
        return known[x]

    low = high = start
    while value(low) <= 0.0:
        high, low, step = low, low - step, 2.0 * step
    while value(high) > 0.0:
        low, high, step = high, high + step, 2.0 * step
    x = float(brentq(value, low, high, xtol=0.5 * tolerance, rtol=1e-15))
    while value(x) > 0.0:
        x, tolerance = x + 0.5 * tolerance, 2.0 * tolerance
    return x


def least_that_meets(
    figure: Callable[[float], float], most: float, *, start: float, otherwise: str
) -> float:
    """The least noise, from `start` on, whose figure is at most `most`, by that very figure.

    Args:
        figure: falls with the noise, but for jumps where it is found in another way.
        most: that it may be.
        start: noise that was found in some way, and nearly or just meets it.
        otherwise: the sentence where no noise up to 1e100 meets it.

    Raises:
        ValueError: none does.

    >>> least_that_meets(lambda noise: 3.0 / noise, 2.0, start=1.5, otherwise="")
    1.5
    >>> round(least_that_meets(lambda noise: 3.0 / noise, 2.0, start=0.1, otherwise=""), 5)
    1.5
    """
    for slack in _SLACKS:  # what will be said must not exceed the target by a rounding
        if figure(start * (1.0 + slack)) <= most:
            return start * (1.0 + slack)

    def excess(x: float) -> float:
        if x > _MOST_NOISE:
            raise InputError(otherwise)
        # A share, so that targets of 1e-12 and of 1e6 are alike.
        return figure(math.exp(x)) / most - 1.0

    return math.exp(smallest_safe(excess, math.log(start), step=1e-3, tolerance=_TOLERANCE))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """Rounds of one order, ready to be composed at a tilt."""

    pairs: Sequence[DiscretisedPair]
    cells: Sequence[Cell]
    tilt: float
    looseness: float

    def composed(self, *, weaker: float = 1.0) -> LossDistribution:
        return compose(
            self.pairs, tilt=weaker * self.tilt, cells=self.cells, looseness=self.looseness
        )


def _delta_of(rounds: Rounds, epsilon: float, missing: float) -> float:
    prepared = _prepare(rounds, missing, lambda found: tilt_for_epsilon(found, epsilon))
    return _where_known(lambda d: d.delta(epsilon), prepared, trivial=1.0)


def _prepare(
    rounds: Rounds,
    missing: float,
    find_tilt: Callable[[Sequence[DiscretisedPair]], float],
    *,
    looseness: float = 1.0,
) -> _Prepared:
    """Pairs as fine as the tilt asks for; the tilt itself is found on coarse ones."""
    mixed = mixtures(rounds) if len(rounds) > FEW_ROUNDS else None
    kinds, cells = (rounds, []) if mixed is None else mixed
    coarse = [discretised_pair(r, missing=missing, step=_COARSE) for r in kinds if r.count > 0]
    tilt = find_tilt(coarse)
    few = mixed is not None or len(rounds) <= FEW_ROUNDS
    step = cell_step(coarse, tilt=tilt, step=_COARSE, looseness=looseness) if few else 0.01
    fine = [discretised_pair(r, missing=missing, step=step) for r in kinds]
    return _Prepared(pairs=fine, cells=cells, tilt=tilt, looseness=looseness)


def _where_known(
    read: Callable[[LossDistribution], float | None], prepared: _Prepared, *, trivial: float
) -> float:
    """What `read` finds, with less tilt while that is nothing; every tilt is safe."""
    known: list[float] = []
    for k in range(8):
        bound = read(prepared.composed(weaker=0.5 ** (k * k)))
        if bound is not None and bound < trivial:
            known.append(bound)
        if known and (k == 0 or len(known) == 2):  # after a bad tilt, the next may be bad as well
            break
    return min(known, default=trivial)


def log_delta_guess(round_: Round, epsilon: float, missing: float) -> float:
    """Saddle-point approximation of log delta(epsilon)."""
    from scipy.special import erfcx

    coarse = [discretised_pair(round_, missing=missing, step=_COARSE)]
    tilt = tilt_for_epsilon(coarse, epsilon)
    log_moment, _mean, variance = (round_.count * c for c in coarse[0].cumulants(tilt))
    # E[(e^(-t Y) - e^(-(t + 1) Y)); Y > 0] for Y ~ N(0, variance), the loss about epsilon.
    deviation = math.sqrt(0.5 * variance)
    share = 0.5 * float(erfcx(tilt * deviation) - erfcx((tilt + 1.0) * deviation))
    return log_moment - tilt * epsilon + math.log(max(share, 1e-300))
