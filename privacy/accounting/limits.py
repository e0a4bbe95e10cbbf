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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import SupportsIndex

from ..errors import InputError
from ..participation import Event, Reach, Rounds, poisson
from . import request
from .accountant import composed_epsilon
from .accountant import epsilon as epsilon_of
from .dominating_pairs import Round
from .gaussian import mu_from
from .request import MOST_ROUNDS
from .search import LEAST_MISSING, log_delta_guess, smallest_safe

_TOLERANCE = 2e-6  # relative, on a sampling rate or a scale
_SMALLEST = 40.0  # -log of a sampling rate that counts as 0
_GROUPS = 16  # of rounds, where a first guess is wanted


def max_rounds(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = request.Accountant.PLD,
    reach: str = Reach.SUM,
) -> int:
    """Return the largest number of equal rounds that meet (epsilon, delta).

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0 and finite.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        sampling_rate: probability of a record to be in a round's batch, in (0, 1].
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        accountant: an `Accountant`, by name; see its `kind`.
        reach: "sum", or "ball" where a record moves a mean or a batch of fixed size.

    Returns:
        The number of rounds; 0 if one is too much already.

    Raises:
        ValueError: a value is outside its range, the accountant does not cover the adjacency, or
            ten million rounds still meet the target.

    >>> max_rounds(noise_multiplier=1.0, epsilon=2.0, delta=1e-5, sampling_rate=0.01)
    1202
    """
    noise_multiplier, epsilon, delta = _checked(noise_multiplier, epsilon, delta)
    request.check_setting(1, sampling_rate, adjacency, accountant, reach=reach)
    sampling_rate = float(sampling_rate)
    # A round that costs nothing has no last number of rounds.
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
            reach=reach,
        )
        return spent - epsilon

    # A first guess by the central limit, where mu grows with the square root of the rounds.
    start = 1
    event = Event(noise_multiplier, poisson(sampling_rate), Reach(reach))
    mu, orders = request.orders_of({event: 1}, adjacency)
    if noise_multiplier > 0.0:
        share = _clt_share(mu or orders[0][0].mu, sampling_rate, epsilon=epsilon, delta=delta)
        start = round(min(max(min(share, 1e9) ** 2, 1.0), MOST_ROUNDS))
    # A better guess without composing; x is minus the log of the count, so that excess falls.
    if request.Accountant(accountant).by_losses and orders:

        def guess_excess(x: float) -> float:
            count = round(min(max(math.exp(-x), 1.0), 10.0 * MOST_ROUNDS))
            several = replace(orders[0][0], count=count)
            guess = log_delta_guess(several, epsilon, max(1e-8 * delta / count, LEAST_MISSING))
            return -1.0 if x > 0.0 else 1.0 if x < -18.0 else guess - math.log(delta)

        x = smallest_safe(guess_excess, -math.log(start), step=0.5, tolerance=1e-4)
        start = round(min(max(math.exp(-x), 1.0), MOST_ROUNDS))
    # The answer is the accountant's own, looked for around the guess.
    return _last_that_meets(excess, start)


def max_sampling_rate(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    rounds: SupportsIndex,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = request.Accountant.PLD,
    reach: str = Reach.SUM,
) -> float:
    """Return the largest sampling rate at which equal rounds meet (epsilon, delta).

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        accountant: an `Accountant`, by name; see its `kind`.
        reach: "sum", or "ball" where a record moves a mean or a batch of fixed size.

    Returns:
        A probability, rounded down; 1 if full batches meet the target, 0 if the accountant finds
        no rate that does.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the adjacency.
        TypeError: `rounds` is not an integer.

    >>> round(max_sampling_rate(noise_multiplier=1.0, epsilon=2.0, delta=1e-5, rounds=1000), 5)
    0.01086
    """
    noise_multiplier, epsilon, delta = _checked(noise_multiplier, epsilon, delta)
    request.check_setting(1, 1.0, adjacency, accountant, reach=reach)
    count = request.check_count(rounds)

    def spent(rate: float) -> float:
        return epsilon_of(
            noise_multiplier=noise_multiplier,
            delta=delta,
            rounds=count,
            sampling_rate=rate,
            adjacency=adjacency,
            accountant=accountant,
            reach=reach,
        )

    # The ends first: full batches may meet the target, or no rate at all.
    if (full := spent(1.0)) <= epsilon:
        return 1.0
    if spent(math.exp(-_SMALLEST)) > epsilon:
        return 0.0
    # x is minus the log of the rate. In the central limit mu grows with rate times sqrt(rounds).
    sampled = _at_rate(noise_multiplier, 0.5, adjacency, reach)
    share = _clt_share(sampled.mu, 1.0, epsilon=epsilon, delta=delta)
    start = min(max(-math.log(share / math.sqrt(count)), 0.01), _SMALLEST)
    # A better guess without composing.
    if request.Accountant(accountant).by_losses:

        def guess_excess(x: float) -> float:
            if not 0.0 < x < _SMALLEST:
                return 1.0 if x <= 0.0 else -1.0
            one = replace(sampled, moves=poisson(math.exp(-x)), count=count)
            return log_delta_guess(
                one, epsilon, max(1e-8 * delta / count, LEAST_MISSING)
            ) - math.log(delta)

        start = smallest_safe(guess_excess, start, step=0.5, tolerance=1e-4)

    def excess(x: float) -> float:
        if not 0.0 < x < _SMALLEST:
            return full - epsilon if x <= 0.0 else -epsilon
        return spent(math.exp(-x)) - epsilon

    # The root is approached from above in x, so that the rate is rounded down.
    x = smallest_safe(excess, start, step=1e-3, tolerance=_TOLERANCE)
    return math.exp(-min(x, _SMALLEST))


def scale_for(
    rounds: Rounds,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = request.Accountant.PLD,
) -> float:
    """Return the least factor on every noise multiplier for which the rounds meet (epsilon, delta).

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs.
        epsilon: privacy loss in nats, > 0 and finite.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
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
    epsilon, delta = request.check_epsilon(epsilon, positive=True), request.check_delta(delta)
    events = request.check_rounds(rounds, adjacency, accountant=accountant)
    # Only rounds that may sample a record, and whose noise is finite, cost anything.
    sampled = {
        event: n
        for event, n in events.items()
        if event.rate > 0.0 and event.noise_multiplier < math.inf
    }
    if not sampled:
        return 0.0
    if any(event.noise_multiplier == 0.0 for event in sampled):
        raise InputError(
            "noise_multiplier=0 of a sampled round stays 0 at every scale; give it noise"
        )
    # From the probability that a record is ever sampled on, delta is met without any noise.
    rates = [(event.rate, n) for event, n in sampled.items()]
    never = sum(n * math.log1p(-q) if q < 1.0 else -math.inf for q, n in rates)
    if delta >= -math.expm1(never):
        raise InputError(
            f"delta={delta} must be below {-math.expm1(never):.6g}, the probability that a record "
            "is ever sampled: no noise at all meets it; choose a smaller delta"
        )

    def spent(counts: Mapping[Event, int], x: float, by: str = request.Accountant.PLD) -> float:
        scale = math.exp(x)
        return composed_epsilon(
            {e.scaled(scale): n for e, n in counts.items()},
            delta=delta,
            adjacency=adjacency,
            accountant=by,
        )

    # A first guess from the central limit, a better one from rounds put together in groups, and
    # the answer from the rounds themselves.
    mu, orders = request.orders_of(sampled, adjacency)
    squares = mu**2
    if orders:
        squares = sum(r.count * (r.rate * r.mu) ** 2 for r in orders[0])  # many, much noise
    start = math.log(math.sqrt(squares) / mu_from(epsilon, delta))
    start = max(start, math.log(0.3 / min(event.noise_multiplier for event in sampled)))
    grouped = _grouped(sampled)
    start = smallest_safe(
        lambda x: spent(grouped, x) - epsilon, start, step=0.3, tolerance=_TOLERANCE
    )
    if len(grouped) < len(sampled):
        start = smallest_safe(
            lambda x: spent(sampled, x) - epsilon, start, step=3e-4, tolerance=1e-5
        )
    if request.Accountant(accountant) is request.Accountant.DP_ACCOUNTING:
        start = smallest_safe(
            lambda x: spent(sampled, x, accountant) - epsilon, start, step=1e-4, tolerance=1e-5
        )
    return math.exp(start)


def _checked(noise_multiplier: float, epsilon: float, delta: float) -> tuple[float, float, float]:
    least = request.check_epsilon(epsilon, positive=True)
    return request.check_multiplier(noise_multiplier), least, request.check_delta(delta)


def _at_rate(multiplier: float, rate: float, adjacency: str, reach: str) -> Round:
    """One round, where it is not bounded as if every record took part, at any other multiplier."""
    event = Event(1.0, poisson(rate), Reach(reach))
    at_one = request.orders_of({event: 1}, adjacency)[1][0][0]
    return replace(at_one, noise_multiplier=max(multiplier, 1e-300) * at_one.noise_multiplier)


def _clt_share(mu: float, rate: float, *, epsilon: float, delta: float) -> float:
    """What the target's mu is of the mu that one round is said to have; positive."""
    of_one = request.clt_mu(1.0 / mu, rate, rounds=1)
    return max(mu_from(epsilon, delta) / of_one, 1e-12)


def _grouped(counts: Mapping[Event, int]) -> Mapping[Event, int]:
    """About the same rounds, few of them different, by mean rate and mean square."""
    width = 0.02
    groups: dict[object, list[tuple[Event, int]]] = {at: [(at, n)] for at, n in counts.items()}
    plain = [e for e in counts if e.moves.is_poisson and e.otherwise is None]
    most = _GROUPS + len(counts) - len(plain)
    # Cells of the logs of multiplier and rate grow until there are few; other events stay apart.
    while len(groups) > most:
        groups = {}
        for event, n in counts.items():
            cell: object = event
            if event.moves.is_poisson and event.otherwise is None:
                logs = math.log(event.noise_multiplier), math.log(event.moves.rate)
                cell = (*(math.floor(v / width) for v in logs), event.reach, event.coin)
            groups.setdefault(cell, []).append((event, n))
        width *= 1.5
    # Of a group remain its number of rounds, its mean square of 1/z and its mean rate.
    together: dict[Event, int] = {}
    for members in groups.values():
        total = sum(n for _, n in members)
        square = sum(n * e.noise_multiplier**-2 for e, n in members) / total
        if members[0][0].otherwise is not None:
            together[members[0][0]] = together.get(members[0][0], 0) + total
            continue
        one = members[0][0]._replace(noise_multiplier=square**-0.5)
        if one.moves.is_poisson:
            mean = sum(n * e.moves.rate for e, n in members) / total
            one = one._replace(moves=poisson(min(mean, 1.0)))
        together[one] = together.get(one, 0) + total
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
