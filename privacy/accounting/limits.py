"""How many rounds, which sampling rate and how much noise a target allows.

Formal guarantees:
- An answer has been evaluated by the accountant that was asked for and meets (epsilon, delta);
  one round more has been evaluated too and does not.
- A sampling rate is rounded down and a scale of the noise up, by a few millionths.
- First guesses come from the saddle-point approximation (arXiv:2208.09595), from the central limit
  theorem of arXiv:1911.11607, or from rounds put together in groups. They decide how many
  evaluations are needed, never the answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import SupportsIndex

from ..errors import InputError
from .accountant import Rounds, composed_epsilon
from .accountant import epsilon as epsilon_of
from .dominating_pairs import Pair, Round
from .gaussian import mu_from
from .other_accountants import clt_mu
from .request import (
    MOST_ROUNDS,
    Accountant,
    Adjacency,
    check_count,
    check_delta,
    check_epsilon,
    check_multiplier,
    check_rounds,
    check_setting,
    closed_form,
    reach,
)
from .search import log_delta_guess, smallest_safe

__all__ = ["max_rounds", "max_sampling_rate", "scale_for"]

_TOLERANCE = 2e-6  # relative, on a sampling rate or a scale
_SMALLEST = 40.0  # -log of a sampling rate that counts as 0
_GROUPS = 16  # of rounds, where a first guess is wanted


def max_rounds(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
) -> int:
    """Return the largest number of equal rounds that meet (epsilon, delta).

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0 and finite.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        sampling_rate: probability of a record to be in a round's batch, in (0, 1].
        adjacency: "add-or-remove-one" or "replace-one".
        accountant: "pld", "dp-accounting", "rdp", "prv" or "gdp-clt"; see `Accountant.kind`.
        contributions: how many a record makes to a batch, released jointly.

    Returns:
        The number of rounds; 0 if one is too much already.

    Raises:
        ValueError: a value is outside its range, the accountant does not cover the adjacency, or
            ten million rounds still meet the target.
        TypeError: `contributions` is not an integer.

    >>> max_rounds(noise_multiplier=1.0, epsilon=2.0, delta=1e-5, sampling_rate=0.01)
    1202
    """
    pairs = _checked(
        noise_multiplier, epsilon, delta, sampling_rate, adjacency, accountant, contributions
    )
    if sampling_rate == 0.0 or noise_multiplier == math.inf:
        free = "sampling_rate=0" if sampling_rate == 0.0 else "noise_multiplier=inf"
        raise InputError(f"{free} costs nothing: any number of rounds meets the target")

    def excess(rounds: int) -> float:
        spent = epsilon_of(
            noise_multiplier=noise_multiplier,
            delta=delta,
            rounds=rounds,
            sampling_rate=sampling_rate,
            adjacency=adjacency,
            accountant=accountant,
            contributions=contributions,
        )
        return spent - epsilon

    start = 1
    if noise_multiplier > 0.0:
        share = _clt_share(noise_multiplier, sampling_rate, pairs, epsilon=epsilon, delta=delta)
        start = round(min(max(share**2, 1.0), MOST_ROUNDS))
    if Accountant(accountant).by_losses and not closed_form(noise_multiplier, sampling_rate):

        def guess_excess(x: float) -> float:
            count = round(min(max(math.exp(-x), 1.0), 10.0 * MOST_ROUNDS))
            one = Round(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, count=count)
            guess = log_delta_guess(one, epsilon, pairs[0], 1e-8 * delta / count)
            return -1.0 if x > 0.0 else 1.0 if x < -18.0 else guess - math.log(delta)

        x = smallest_safe(guess_excess, -math.log(start), step=0.5, tolerance=1e-4)
        start = round(min(max(math.exp(-x), 1.0), MOST_ROUNDS))
    return _last_that_meets(excess, start)


def max_sampling_rate(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    rounds: SupportsIndex,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
) -> float:
    """Return the largest sampling rate at which equal rounds meet (epsilon, delta).

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million.
        adjacency: "add-or-remove-one" or "replace-one".
        accountant: "pld", "dp-accounting", "rdp", "prv" or "gdp-clt"; see `Accountant.kind`.
        contributions: how many a record makes to a batch, released jointly.

    Returns:
        A probability, rounded down; 1 if full batches meet the target, 0 if the accountant finds
        no rate that does.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the adjacency.
        TypeError: `rounds` or `contributions` is not an integer.

    >>> round(max_sampling_rate(noise_multiplier=1.0, epsilon=2.0, delta=1e-5, rounds=1000), 5)
    0.01086
    """
    pairs = _checked(noise_multiplier, epsilon, delta, 1.0, adjacency, accountant, contributions)
    count = check_count(rounds)

    def spent(rate: float) -> float:
        return epsilon_of(
            noise_multiplier=noise_multiplier,
            delta=delta,
            rounds=count,
            sampling_rate=rate,
            adjacency=adjacency,
            accountant=accountant,
            contributions=contributions,
        )

    if (full := spent(1.0)) <= epsilon:
        return 1.0
    if spent(math.exp(-_SMALLEST)) > epsilon:
        return 0.0
    share = _clt_share(noise_multiplier, 1.0, pairs, epsilon=epsilon, delta=delta)
    start = min(max(-math.log(share / math.sqrt(count)), 0.01), _SMALLEST)
    if Accountant(accountant).by_losses:

        def guess_excess(x: float) -> float:
            if not 0.0 < x < _SMALLEST:
                return 1.0 if x <= 0.0 else -1.0
            one = Round(noise_multiplier=noise_multiplier, sampling_rate=math.exp(-x), count=count)
            return log_delta_guess(one, epsilon, pairs[0], 1e-8 * delta / count) - math.log(delta)

        start = smallest_safe(guess_excess, start, step=0.5, tolerance=1e-4)

    def excess(x: float) -> float:
        if not 0.0 < x < _SMALLEST:
            return full - epsilon if x <= 0.0 else -epsilon
        return spent(math.exp(-x)) - epsilon

    x = smallest_safe(excess, start, step=1e-3, tolerance=_TOLERANCE)
    return math.exp(-min(x, _SMALLEST))


def scale_for(
    rounds: Rounds,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    contributions: SupportsIndex = 1,
    accountant: str = Accountant.PLD,
) -> float:
    """Return the least factor on every noise multiplier for which the rounds meet (epsilon, delta).

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one" or "replace-one".
        contributions: the most that a record makes to a batch, released jointly.
        accountant: "pld" or "dp-accounting".

    Returns:
        The factor, rounded up; 0 if no record is ever sampled.

    Raises:
        ValueError: a value is outside its range, a sampled round has no noise, or delta is no
            smaller than the probability that a record is ever sampled.
        TypeError: a count is not an integer.

    >>> scale = scale_for({(1.0, 0.01): 500, (2.0, 0.01): 500}, epsilon=1.0, delta=1e-5)
    >>> round(scale, 4)
    1.1923
    """
    check_epsilon(epsilon, positive=True)
    check_delta(delta)
    counts = Counter(rounds) if not isinstance(rounds, Mapping) else rounds
    pairs = check_rounds(counts, adjacency, contributions, accountant)
    sampled = {(m, q): n for (m, q), n in counts.items() if q > 0.0 and m < math.inf}
    if not sampled:
        return 0.0
    if any(multiplier == 0.0 for multiplier, _ in sampled):
        raise InputError(
            "noise_multiplier=0 of a sampled round stays 0 at every scale; give it noise"
        )
    never = sum(n * math.log1p(-q) if q < 1.0 else -math.inf for (_, q), n in sampled.items())
    if delta >= -math.expm1(never):
        raise InputError(
            f"delta={delta} must be below {-math.expm1(never):.6g}, the probability that a record "
            "is ever sampled: no noise at all meets it; choose a smaller delta"
        )

    def spent(
        scaled: Mapping[tuple[float, float], int], x: float, by: str = Accountant.PLD
    ) -> float:
        scale = math.exp(x)
        return composed_epsilon(
            {(scale * multiplier, rate): n for (multiplier, rate), n in scaled.items()},
            delta=delta,
            adjacency=adjacency,
            contributions=contributions,
            accountant=by,
        )

    # A first guess from the central limit, a better one from rounds put together in groups, and
    # the answer from the rounds themselves.
    squares = sum(n * (q / m) ** 2 for (m, q), n in sampled.items())  # many rounds, much noise
    start = math.log(reach(pairs) * math.sqrt(squares) / mu_from(epsilon, delta))
    start = max(start, math.log(0.3 / min(m for m, _ in sampled)))
    grouped = _grouped(sampled)
    start = smallest_safe(
        lambda x: spent(grouped, x) - epsilon, start, step=0.3, tolerance=_TOLERANCE
    )
    if len(grouped) < len(sampled):
        start = smallest_safe(
            lambda x: spent(sampled, x) - epsilon, start, step=3e-4, tolerance=1e-5
        )
    if Accountant(accountant) is Accountant.DP_ACCOUNTING:
        start = smallest_safe(
            lambda x: spent(sampled, x, accountant) - epsilon, start, step=1e-4, tolerance=1e-5
        )
    return math.exp(start)


def _checked(
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    adjacency: str,
    accountant: str,
    contributions: SupportsIndex,
) -> tuple[Pair, ...]:
    check_multiplier(noise_multiplier)
    check_epsilon(epsilon, positive=True)
    check_delta(delta)
    return check_setting(1, sampling_rate, adjacency, accountant, contributions)[2]


def _clt_share(
    multiplier: float, rate: float, pairs: tuple[Pair, ...], *, epsilon: float, delta: float
) -> float:
    """What the target's mu is of the mu that one round is said to have; positive."""
    of_one = clt_mu(multiplier / reach(pairs), rate, rounds=1)
    return max(mu_from(epsilon, delta) / of_one, 1e-12)


def _grouped(counts: Mapping[tuple[float, float], int]) -> Mapping[tuple[float, float], int]:
    """About the same rounds, at most `_GROUPS` different ones, by mean rate and mean square."""
    width = 0.02
    groups: dict[object, list[tuple[float, float, int]]] = {
        at: [(*at, n)] for at, n in counts.items()
    }
    while len(groups) > _GROUPS:
        groups = {}
        for (multiplier, rate), n in counts.items():
            cell = math.floor(math.log(multiplier) / width), math.floor(math.log(rate) / width)
            groups.setdefault(cell, []).append((multiplier, rate, n))
        width *= 1.5
    together: Counter[tuple[float, float]] = Counter()
    for members in groups.values():
        total = sum(n for _, _, n in members)
        square = sum(n * m**-2 for m, _, n in members) / total
        together[square**-0.5, sum(n * q for _, q, n in members) / total] += total
    return together


def _last_that_meets(excess: Callable[[int], float], start: int) -> int:
    """Largest count whose excess is at most 0, for an excess that grows with the count.

    >>> _last_that_meets(lambda count: count - 1234.5, 1)
    1234
    """
    low, high = 0, MOST_ROUNDS + 1
    at_low = at_high = math.inf  # sizes of the excess; infinite where it is not known
    count, step = start, max(1, start // 1000)
    while True:
        value = excess(count)
        if value <= 0.0:
            low, at_low = count, -value
        else:
            high, at_high = count, value
        if low == MOST_ROUNDS:
            raise InputError(
                f"rounds={MOST_ROUNDS} still meet the target, and no more are added up here; "
                "choose a smaller epsilon or a larger sampling_rate"
            )
        if high - low == 1:
            return low
        if math.isinf(at_low) or math.isinf(at_high):  # outwards, until the answer is between
            count = max(high - step, high // 4) if low == 0 else min(low + step, 4 * low)
            step *= 4
        else:  # past the chord's root, on the side that was not hit last
            root = low + (high - low) * at_low / (at_low + at_high)
            past = max(1.0, 0.02 * (high - low))
            count = round(root + past if value <= 0.0 else root - past)
        count = min(max(count, low + 1), high - 1)
