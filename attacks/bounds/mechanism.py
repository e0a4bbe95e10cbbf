"""What is proven of one adversary, as a mechanism, and how weak its noise must be to leak so much.

Rounds of the Poisson-sampled Gaussian mechanism are told apart with total variation

    TV = delta at epsilon 0 = max over tests of 1 - FPR - FNR

An audit bounds TV from below. Rounds in which every record takes part are one Gaussian, whatever
their noise, and its mu is 2 Phi^-1((1 + TV) / 2). For sampled rounds the declared mechanism is kept
and all of its noise multiplied by one number: every scale whose TV is below the bound is rejected,
and epsilon is that of the largest scale that is not.

| symbol | name here | unit |
|---|---|---|
| TV | total_variation, leaked | probability |
| mu | - | standard deviations between the two hypotheses |
| noise multiplier | first entry of a round | noise std on the sum / clip norm |

TV comes from the accountant, which rounds it up, so that too few scales are rejected, never too
many. Epsilon is rounded up as well; `_SLACK` takes off more than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from ...privacy.accounting.accountant import composed_delta, composed_epsilon
from ...privacy.accounting.gaussian import epsilon_from_mu
from ...privacy.accounting.request import Adjacency, check_delta, check_rounds, orders_of
from ...privacy.accounting.search import smallest_safe
from ...privacy.errors import within
from ...privacy.participation import Event, Reach, Rounds, always, as_events

_SLACK = 1e-4  # relative; the accountant's epsilon was at most 3.2e-5 above exact values
_LEAST_MULTIPLIER = 0.1  # less noise hides nothing: TV is within 1e-6 of its limit
_TOLERANCE = 1e-6  # relative, on a scale
_MOST_SCALE = 1e6  # of noise that no audit tells from any more


class Family(Enum):
    """Which mechanisms a lower bound chooses among."""

    GAUSSIAN = "gaussian"
    SAMPLED = "sampled"
    ANY = "any"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The mechanism that one adversary is proven to face.

    Attributes:
        rounds: (effective noise multiplier, sampling rate), or `Event`, and how many rounds have
            it; kept as events. The multiplier is 1 / joint sensitivity of the adversary's view, in
            clip norms.
        adjacency: how two neighbouring data sets differ.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer, or a value is no number.

    >>> Claim(rounds={(1.0, 0.1): 300}).adjacency
    <Adjacency.ADD_OR_REMOVE_ONE: 'add-or-remove-one'>
    """

    rounds: Rounds
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        """Refuse what the accountant would, and keep a copy of our own."""
        object.__setattr__(self, "rounds", check_rounds(self.rounds, self.adjacency))
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def __hash__(self) -> int:
        return hash((frozenset(self.events.items()), self.adjacency))

    @property
    def events(self) -> dict[Event, int]:
        """The rounds as the accountant sees them."""
        return as_events(self.rounds)


def epsilon(claim: Claim, delta: float) -> float:
    """Proven privacy loss of the claim, in nats; infinite without noise."""
    return composed_epsilon(claim.rounds, delta=delta, adjacency=claim.adjacency)


def total_variation(claim: Claim) -> float:
    """Largest 1 - FPR - FNR of any test, an upper bound, exact at rate 1."""
    return composed_delta(claim.rounds, epsilon=0.0, adjacency=claim.adjacency)


def at_scale(claim: Claim, scale: float) -> Claim:
    """Return the claim with all noise multiplied by `scale` > 0.

    Raises:
        ValueError: scale is not above 0 and finite.
    """
    within("scale", scale, "(0, inf)", "1 is the declared noise")
    rounds: dict[Event, int] = {}
    for event, count in claim.events.items():
        key = event.scaled(scale)
        rounds[key] = rounds.get(key, 0) + count  # rounding may make two alike
    return Claim(rounds=rounds, adjacency=claim.adjacency)


def family(claim: Claim) -> Family:
    """Which mechanisms the claim's lower bounds choose among.

    Returns:
        `GAUSSIAN` if every record takes part in every round, or none ever does; `ANY` if sampled
        rounds have no noise, so that no scale of it means anything; else `SAMPLED`.
    """
    active = _active(claim)
    if all(rate == 1.0 for _, rate, _ in active) and not _varies(claim):
        return Family.GAUSSIAN
    return Family.ANY if any(mult == 0.0 for mult, _, _ in active) else Family.SAMPLED


@lru_cache(maxsize=4096)
def least_epsilon(claim: Claim, leaked: float, delta: float) -> float:
    """Return the least epsilon of a mechanism of the claim's family that leaks this much.

    Args:
        claim: the declared mechanism; for `Family.GAUSSIAN` its amount of noise plays no part.
        leaked: lower bound on the total variation, below 1.
        delta: strictly between 0 and 1.

    Returns:
        epsilon in nats, rounded down; 0 if nothing leaked. Where no scale of the declared noise
        leaks so much, not even none, the family is wrong and the bound that holds for every
        mechanism is returned: log((1 + TV - 2 delta) / (1 - TV)).

    Raises:
        ValueError: delta is out of range, or leaked is not below 1.
    """
    check_delta(delta)
    if family(claim) is Family.GAUSSIAN:
        return epsilon_from_mu(_least_mu(leaked), delta)
    scale = noise_scale(claim, leaked)
    if scale == 0.0:
        odds = (1.0 + leaked - 2.0 * delta) / (1.0 - leaked)
        return max(0.0, math.log(odds)) * (1.0 - _SLACK) if odds > 0.0 else 0.0
    return least_epsilon_at(claim, scale, delta)


def least_epsilon_at(claim: Claim, scale: float, delta: float) -> float:
    """Epsilon of a sampled claim at a scale of its noise, rounded down; 0 at infinite scale.

    Within a ball the proven loss of a record that is replaced is an upper bound that no pair of
    data sets attains, and so is that of one in a batch of fixed size, in whose place another may
    be. That of a record that is there or not, among records that add nothing, is attained by both,
    and is what is returned.
    """
    if scale == math.inf:
        return 0.0
    if any(event.otherwise is not None for event in claim.events):
        return 0.0  # no smaller mechanism of the family is known to be attained
    ball = any(event.reach is Reach.BALL for event in claim.events)
    adjacency = Adjacency.ADD_OR_REMOVE_ONE if ball else claim.adjacency
    attained = attained_in_place(Claim(rounds=claim.rounds, adjacency=adjacency))
    return epsilon(at_scale(attained, scale), delta) * (1.0 - _SLACK)


def attained_in_place(claim: Claim) -> Claim:
    """What batches of fixed size lose where all other records add nothing; others as they are.

    A record that is there or blank then moves the sum as one of a Poisson batch does, whether it is
    said to be added, to be blank or to be replaced.

    >>> from overhear.privacy.participation import poisson
    >>> fixed = Claim(rounds={Event(1.0, poisson(0.1), Reach.PLACE): 9}, adjacency="replace-one")
    >>> [str(event.reach) for event in attained_in_place(fixed).events]
    ['sum']
    """
    if all(event.reach is not Reach.PLACE for event in claim.events):
        return claim
    rounds: dict[Event, int] = {}
    for event, count in claim.events.items():
        key = event._replace(reach=Reach.SUM) if event.reach is Reach.PLACE else event
        rounds[key] = rounds.get(key, 0) + count
    return Claim(rounds=rounds, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@lru_cache(maxsize=4096)
def noise_scale(claim: Claim, leaked: float) -> float:
    """Return the largest multiple of the declared noise with which rounds leak this much.

    Below 1, the declared noise is rejected: the claim is contradicted.

    Returns:
        The scale, rounded up; infinite if nothing leaked; 0 if almost no noise at all would not
        leak so much, or sampled rounds are declared without noise.

    Raises:
        ValueError: leaked is not below 1.
    """
    within("leaked", leaked, "(-inf, 1)", "no finite audit shows more")
    kind, mu = family(claim), _least_mu(leaked)
    if mu == 0.0:
        return math.inf
    if kind is Family.GAUSSIAN:
        return declared_mu(claim) / mu
    if kind is Family.ANY:
        return 0.0
    least = smallest_scale(claim)
    beyond = 0.0 if least < 1.0 else least  # declared noise too weak to be resolved stands
    # No test beats the chance that the record is in any batch; closer to it, what is left matters.
    if leaked > 0.9 * _ever_sampled(claim) and leaked >= _most_leaked(claim):
        return beyond
    # The leak falls with the noise, from the least scale that can be resolved on.
    lowest, most = math.log(least), math.log(_MOST_SCALE)

    def excess(x: float) -> float:
        if not lowest < x < most:
            return 1.0 if x <= lowest else -1.0
        return total_variation(at_scale(claim, math.exp(x))) - leaked

    guess = min(max(_guessed_log_scale(claim, mu), lowest), most)
    found = smallest_safe(excess, guess, step=0.05, tolerance=_TOLERANCE)
    if found < lowest + 2.0 * _TOLERANCE:
        return beyond
    return math.exp(found) if found < most - 2.0 * _TOLERANCE else math.inf


def declared_mu(claim: Claim) -> float:
    """Mu of a claim without sampling; "replace-one" moves the sum twice as far."""
    everybody = {
        event._replace(
            moves=always(), noise_multiplier=event.noise_multiplier / event.moves.largest
        ): count
        for event, count in claim.events.items()
        if event.moves.rate > 0.0
    }
    return orders_of(everybody, claim.adjacency)[0]


def smallest_scale(claim: Claim) -> float:
    """Scale at which the claim's least sampled noise hides nothing any more."""
    return _LEAST_MULTIPLIER / min(m for m, rate, _ in _active(claim) if m > 0.0)


def _guessed_log_scale(claim: Claim, mu: float) -> float:
    """Log scale at which the central limit theorem gives this mu; it costs time, not truth."""
    reach = 2.0 if claim.adjacency is Adjacency.REPLACE_ONE else 1.0
    active = _active(claim)

    def excess(x: float) -> float:
        squares = 0.0
        for multiplier, rate, count in active:
            one = min((multiplier * math.exp(x)) ** -2, 100.0)
            squares += count * (one if rate == 1.0 else rate**2 * math.expm1(one))
        return 0.5 * math.log(squares) + math.log(reach / mu)

    return smallest_safe(excess, 0.0, step=0.5, tolerance=1e-3)


def _active(claim: Claim) -> list[tuple[float, float, int]]:
    """(noise multiplier, rate, count) of the rounds that cost anything."""
    return [
        (event.noise_multiplier, event.rate, count)
        for event, count in claim.events.items()
        if event.rate > 0.0 and event.noise_multiplier < math.inf
    ]


def _varies(claim: Claim) -> bool:
    """Whether a round moves by more than one multiple, none of them 0, as of several records."""
    costly = (e for e in claim.events if e.rate > 0.0 and e.noise_multiplier < math.inf)
    return any(len(event.moves.multiples) > 1 for event in costly)


def _ever_sampled(claim: Claim) -> float:
    """Probability that the record is in any batch of the rounds that are sampled."""
    missed = [n * math.log1p(-q) for _, q, n in _active(claim) if q < 1.0]
    return -math.expm1(sum(missed))


@lru_cache(maxsize=256)
def _most_leaked(claim: Claim) -> float:
    return total_variation(at_scale(claim, smallest_scale(claim)))


def _least_mu(total_variation: float) -> float:
    """Mu of the Gaussian with this total variation, rounded down."""
    from scipy.special import ndtri

    if total_variation <= 0.0:
        return 0.0
    return -2.0 * float(ndtri(0.5 - 0.5 * total_variation)) * (1.0 - 1e-10)
