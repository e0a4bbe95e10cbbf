"""Epsilon, delta and noise multiplier of Poisson-sampled rounds of the Gaussian mechanism.

A round samples every record independently with probability `sampling_rate`, sums the clipped
gradients of the sample and adds Gaussian noise. The noise multiplier is the standard deviation of
that noise divided by the clip norm C, for all adjacencies: "replace-one" changes the sum by up to
2C and the doubling happens here, once. Of reach "ball" C is the radius of the ball, and the
doubling happens here too.

Formal guarantees:
- `pld` (default): an upper bound for each value, from the privacy loss distribution; the closed
  form of `gaussian` when the sampling rate is 1. The smallest noise multiplier is rounded up and
  evaluated once more before it is returned.
- `rdp` (dp-accounting) and `prv` (opacus): upper bounds, add-or-remove-one only.
- `dp-accounting`: its own pessimistic estimate by a privacy loss distribution. What it does not
  cover, or would take more than about 20 seconds or 1 GB for, is refused with the reason.
- `gdp-clt`: the central limit theorem of Bu et al. 2020 (arXiv:1911.11607). An approximation that
  may be too small: at multiplier 1, rate .5, one round it claims less than the truth.
- Any number of contributions of one record to a batch that are released jointly, adaptive ones
  too, costs what one costs at their joint sensitivity: `contributions` changes no figure. What
  decides is `reach`: whether the record adds to a sum or moves something within a ball.
"""

import math
from collections.abc import Mapping
from typing import SupportsIndex

from ..errors import InputError
from ..participation import Event, Reach, Rounds, poisson
from ..reference.distributions import Unanswered
from ..reference.second_opinion import delta_estimate, epsilon_estimate
from . import request, search
from .gaussian import LEAST_DELTA, delta_from_mu, epsilon_from_mu, mu_from, stated
from .request import Accountant

_SMALL = 1e-4  # nats
_MOST_COMPARED = math.log(1e15)  # noise multiplier


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
    reach: str = Reach.SUM,
) -> float:
    """Return the privacy loss of `rounds` equal rounds.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million; `composed_epsilon` takes rounds that differ.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        accountant: an `Accountant`, by name; see its `kind`.
        contributions: how many a record makes to a batch, released jointly; changes nothing.
        reach: "sum", or "ball" where a record moves a mean or a batch of fixed size.

    Returns:
        epsilon in nats; infinite without noise, 0 if no record is ever sampled, else at least
        1e-12.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the request.
        TypeError: `rounds` or `contributions` is not an integer, or a value is no number.

    >>> round(epsilon(noise_multiplier=1.0, delta=1e-5, rounds=1000, sampling_rate=0.01), 3)
    1.828
    """
    multiplier, delta = request.check_multiplier(noise_multiplier), request.check_delta(delta)
    count, by = request.check_setting(
        rounds, sampling_rate, adjacency, accountant, reach=reach, contributions=contributions
    )
    rate = float(sampling_rate)
    if by.by_losses:
        events = {Event(multiplier, poisson(rate), Reach(reach)): count}
        return composed_epsilon(events, delta=delta, adjacency=adjacency, accountant=by)
    if rate == 0.0 or multiplier == math.inf:
        return 0.0
    if multiplier == 0.0:
        return math.inf
    return stated(_compared(by, "epsilon", multiplier, rate, rounds=count, delta=delta))


def delta(
    *,
    noise_multiplier: float,
    epsilon: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
    reach: str = Reach.SUM,
) -> float:
    """Return the delta at which `rounds` equal rounds lose at most `epsilon`.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0.
        epsilon: privacy loss in nats, >= 0.
        rounds: how many, from 1 to 10 million; `composed_delta` takes rounds that differ.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        accountant: an `Accountant` that answers delta, by name.
        contributions: how many a record makes to a batch, released jointly; changes nothing.
        reach: "sum", or "ball" where a record moves a mean or a batch of fixed size.

    Returns:
        delta in [0, 1]; 1 without noise, 0 only if no record is ever sampled or none has a loss.

    Raises:
        ValueError: a value is outside its range, or the accountant does not cover the request.
        TypeError: `rounds` or `contributions` is not an integer, or a value is no number.

    >>> found = delta(noise_multiplier=1.0, epsilon=2.0, rounds=1000, sampling_rate=0.01)
    >>> f"{found:.2e}"
    '2.67e-06'
    """
    multiplier, epsilon = (
        request.check_multiplier(noise_multiplier),
        request.check_epsilon(epsilon, most=math.inf),
    )
    count, by = request.check_setting(
        rounds, sampling_rate, adjacency, accountant, reach=reach, contributions=contributions
    )
    rate = float(sampling_rate)
    events = {Event(multiplier, poisson(rate), Reach(reach)): count}
    of = request.COMPARED.get(by)
    if of is not None and of.delta is None:
        raise InputError(f"accountant='{by}' answers epsilon only; use accountant='pld'")
    if by is Accountant.PLD:
        return _composed_delta(events, epsilon, adjacency)
    if rate == 0.0 or multiplier == math.inf or epsilon == math.inf:
        return 0.0
    if multiplier == 0.0:
        return 1.0
    if of is None:
        found = _referred_delta(events, epsilon, adjacency)
    else:
        found = _compared(by, "delta", multiplier, rate, rounds=count, epsilon=epsilon)
    return max(found, LEAST_DELTA)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
    reach: str = Reach.SUM,
) -> float:
    """Return the least noise for which `rounds` equal rounds meet (epsilon, delta).

    Args:
        epsilon: privacy loss in nats, from 1e-12 to 1e6.
        delta: strictly between 0 and 1.
        rounds: how many, from 1 to 10 million.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        accountant: an `Accountant`, by name; see its `kind`.
        contributions: how many a record makes to a batch, released jointly; changes nothing.
        reach: "sum", or "ball" where a record moves a mean or a batch of fixed size.

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
    epsilon, delta = request.check_epsilon(epsilon, positive=True), request.check_delta(delta)
    count, by = request.check_setting(
        rounds, sampling_rate, adjacency, accountant, reach=reach, contributions=contributions
    )
    if (rate := float(sampling_rate)) == 0.0:
        return 0.0
    # Below the probability that the record is ever drawn, delta asks for some noise.
    if rate < 1.0 and delta >= (ever := -math.expm1(count * math.log1p(-rate))):
        raise InputError(
            f"delta={delta} must be below {ever:.6g}, the probability that a record is ever "
            f"sampled in rounds={count}: no noise at all meets it; choose a smaller delta"
        )
    # Accountants for comparison have a formula of their own, or a search.
    if not by.by_losses:
        if (found := request.COMPARED[by].multiplier) is not None:
            return found(epsilon, delta, rounds=count, rate=rate)
        return _compared_multiplier(by, epsilon, delta, rounds=count, rate=rate)
    at_one = Event(1.0, poisson(rate), Reach(reach))
    ours = _least_multiplier({at_one: count}, epsilon, delta, adjacency)
    if by is Accountant.PLD:
        return ours

    def excess(x: float) -> float:
        setting = {at_one._replace(noise_multiplier=math.exp(x)): count}
        return _referred_epsilon(setting, delta, adjacency) - epsilon

    # Ours is where to begin; the answer is one that dp-accounting was asked about.
    return math.exp(search.smallest_safe(excess, math.log(ours), step=1e-4, tolerance=1e-5))


def _least_multiplier(
    at_one: Mapping[Event, int], epsilon: float, delta: float, adjacency: str
) -> float:
    """Of equal rounds, which are given at noise multiplier 1."""
    mu, orders = request.orders_of(at_one, adjacency)
    if orders:
        found = search.scale_bound(orders, epsilon=epsilon, delta=delta)
        (event,) = at_one
        composed = request.orders_of({event.scaled(found): 1}, adjacency)[1]
        if composed and epsilon > _SMALL:
            return found

        def spent(noise: float) -> float:
            return _composed_epsilon({event.scaled(noise): at_one[event]}, delta, adjacency)

        # So little noise, or so much, that its epsilon is stated as if every record took part, or
        # so small an epsilon that the slack on delta is much of it.
        return search.least_that_meets(spent, epsilon, start=found, otherwise="")
    least = mu / mu_from(epsilon, delta)
    while delta_from_mu(mu / least, epsilon) > delta:
        least *= 1.0 + 1e-14
    return least


def composed_epsilon(
    rounds: Rounds,
    *,
    delta: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    contributions: SupportsIndex = 1,
    accountant: str = Accountant.PLD,
) -> float:
    """Return the privacy loss of rounds that differ, by privacy loss distribution.

    Args:
        rounds: (noise_multiplier, sampling_rate) of each round, or how often each occurs, or how
            often each `Event` does. The order does not matter.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        contributions: the most that a record makes to a batch, jointly; changes nothing.
        accountant: "pld" or "dp-accounting".

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
    delta = request.check_delta(delta)
    events = request.check_rounds(
        rounds, adjacency, accountant=accountant, contributions=contributions
    )
    if Accountant(accountant) is Accountant.DP_ACCOUNTING:
        return stated(_referred_epsilon(events, delta, adjacency))
    return stated(_composed_epsilon(events, delta, adjacency))


def composed_delta(
    rounds: Rounds,
    *,
    epsilon: float,
    adjacency: str = request.Adjacency.ADD_OR_REMOVE_ONE,
    contributions: SupportsIndex = 1,
) -> float:
    """Return the delta at which rounds that differ lose at most `epsilon`, an upper bound.

    Args:
        rounds: as in `composed_epsilon`.
        epsilon: privacy loss in nats, >= 0.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        contributions: the most that a record makes to a batch, jointly; changes nothing.

    Returns:
        delta in [0, 1]; 1 if a sampled round has no noise.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer.

    >>> f"{composed_delta({(1.0, 0.01): 1000, (5.0, 0.1): 1}, epsilon=1.83):.2e}"
    '1.00e-05'
    """
    epsilon = request.check_epsilon(epsilon, most=math.inf)
    events = request.check_rounds(rounds, adjacency, contributions=contributions)
    return _composed_delta(events, epsilon, adjacency)


def _composed_epsilon(events: Mapping[Event, int], delta: float, adjacency: str) -> float:
    mu, orders = request.orders_of(events, adjacency)
    if not orders:
        return epsilon_from_mu(mu, delta)
    found = search.composed_epsilon_bound(orders, delta)
    if found < math.inf:
        return found
    # Sampling never costs more than taking part, and that has a closed form.
    everybody = sum(r.count * r.mu**2 for r in orders[0])
    return epsilon_from_mu(math.sqrt(everybody), delta)


def _composed_delta(events: Mapping[Event, int], epsilon: float, adjacency: str) -> float:
    mu, orders = request.orders_of(events, adjacency)
    if not orders or epsilon == math.inf:
        return delta_from_mu(mu, epsilon)
    return search.composed_delta_bound(orders, min(epsilon, 1e15))  # beyond it grids have no cell


def _referred_epsilon(events: Mapping[Event, int], delta: float, adjacency: str) -> float:
    """dp-accounting's pessimistic epsilon."""
    if any(e.noise_multiplier == 0.0 and e.moves.rate > 0.0 for e in events):
        return math.inf
    try:
        return epsilon_estimate(events, delta=delta, adjacency=adjacency).figure
    except (Unanswered, ArithmeticError) as reason:
        raise _unanswered(reason) from reason


def _referred_delta(events: Mapping[Event, int], epsilon: float, adjacency: str) -> float:
    """dp-accounting's pessimistic delta."""
    try:
        return delta_estimate(events, epsilon=epsilon, adjacency=adjacency)
    except (Unanswered, ArithmeticError) as reason:
        raise _unanswered(reason) from reason


def _unanswered(reason: Exception) -> InputError:
    return InputError(
        f"accountant='{Accountant.DP_ACCOUNTING}' does not answer: {reason}; use accountant='pld'"
    )


def _compared(by: Accountant, asked: str, multiplier: float, rate: float, **of: float) -> float:
    """What another accountant finds, in whose arithmetic extreme noise has no square."""
    try:
        return float(getattr(request.COMPARED[by], asked)(multiplier, rate, **of))
    except (ArithmeticError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"accountant='{by}' does not answer at noise_multiplier={multiplier:g} and "
            f"sampling_rate={rate:g}; use accountant='pld'"
        ) from error


def _compared_multiplier(
    by: Accountant, epsilon: float, delta: float, *, rounds: int, rate: float
) -> float:
    def excess(x: float) -> float:
        if x > _MOST_COMPARED:
            raise InputError(
                f"accountant='{by}' finds no noise for epsilon={epsilon:g} at delta={delta:g}: "
                "what it says is more at any; use accountant='pld'"
            )
        return _compared(by, "epsilon", math.exp(x), rate, rounds=rounds, delta=delta) - epsilon

    start = math.log(max(request.clt_multiplier(epsilon, delta, rounds=rounds, rate=rate), 0.2))
    return math.exp(search.smallest_safe(excess, start, step=0.2, tolerance=1e-5))
