"""What an accountant is asked: adjacency, method and ranges, refused here where they are wrong.

And which two hypotheses a round then has, by what its unit contributes to:

    adjacency            reach "sum"             reach "ball" of radius J   reach "place"
    add or remove one    remove, add at J        remove, add at 2 J         remove, add at 2 J
    zero out             remove, add at J        profile                    blank, unblank at J
    replace one          replace, +J against -J  profile                    profile
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, SupportsIndex

import numpy as np

from ..errors import InputError, check_real, needed, whole, within
from ..participation import Event, Reach, Rounds, always, as_events, poisson
from .dominating_pairs import Pair, Round
from .gaussian import LEAST_EPSILON, delta_from_mu, epsilon_from_mu, mu_from

# Other accountants, for comparison.


class Bound(StrEnum):
    """How epsilon was found; every one but the last two is an upper bound.

    PROFILE: of a pair that dominates, without being one that an adversary meets; dearer than PLD.
    """

    CLOSED_FORM = "closed form"
    PLD = "privacy loss distribution"
    PROFILE = "privacy loss distribution of a dominating profile"
    DP_ACCOUNTING = "privacy loss distribution by dp-accounting"
    RENYI = "Renyi divergence"
    PRV = "PRV"
    CENTRAL_LIMIT = "central limit: approximation, may be too small"
    NOT_STATED = "not stated"

    @property
    def is_upper(self) -> bool:
        """Whether a figure that is found so is never too small."""
        return self not in (Bound.CENTRAL_LIMIT, Bound.NOT_STATED)


class Accountant(StrEnum):
    """How rounds are added up.

    >>> Accountant("gdp-clt").kind
    'approximation, may be too small'
    """

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    DP_ACCOUNTING = "dp-accounting"
    GDP_CLT = "gdp-clt"

    @classmethod
    def _missing_(cls, value: object) -> Accountant:
        raise unknown("accountant", value, cls)

    @property
    def bound(self) -> Bound:
        """How it finds epsilon where there is no closed form."""
        return _BOUNDS[self]

    @property
    def kind(self) -> str:
        """'upper bound', or 'approximation, may be too small', which proves nothing."""
        return "upper bound" if self.bound.is_upper else "approximation, may be too small"

    @property
    def by_losses(self) -> bool:
        """Whether it composes distributions of the privacy loss, of rounds that differ too."""
        return self in (Accountant.PLD, Accountant.DP_ACCOUNTING)


_BOUNDS = {
    Accountant.PLD: Bound.PLD,
    Accountant.RDP: Bound.RENYI,
    Accountant.PRV: Bound.PRV,
    Accountant.DP_ACCOUNTING: Bound.DP_ACCOUNTING,
    Accountant.GDP_CLT: Bound.CENTRAL_LIMIT,
}


def unknown(name: str, value: object, kind: type[StrEnum]) -> InputError:
    """The refusal of a word that is none of an enumeration."""
    known = ", ".join(f"'{member}'" for member in kind)
    return InputError(f"{name}={value!r} must be one of {known}")


_CELL = 0.01  # by which opacus' epsilon may be off
_MOST_CELLS = 5e7


def rdp_epsilon(multiplier: float, rate: float, *, rounds: int, delta: float) -> float:
    """Upper bound on epsilon by Renyi DP.

    >>> round(rdp_epsilon(1.0, 0.01, rounds=1000, delta=1e-5), 2)
    2.1
    """
    from dp_accounting import dp_event, rdp

    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    with _quiet():
        return float(rdp.RdpAccountant().compose(event, rounds).get_epsilon(delta))


def rdp_delta(multiplier: float, rate: float, *, rounds: int, epsilon: float) -> float:
    """Upper bound on delta by Renyi DP."""
    from dp_accounting import dp_event, rdp

    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    with _quiet():
        return float(rdp.RdpAccountant().compose(event, rounds).get_delta(epsilon))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without dp-accounting's log of orders that it leaves out; the bound holds without them."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):  # what is no number then is refused
            yield
    finally:
        log.setLevel(before)


def prv_epsilon(multiplier: float, rate: float, *, rounds: int, delta: float) -> float:
    """Upper bound on epsilon by opacus' numerical composition.

    Raises:
        ValueError: its grid would be too large, or it cannot resolve these rounds.
    """
    # Opacus takes a grid of cells as fine as its error over all rounds, as wide as RDP's epsilon.
    wide = 2.0 * rdp_epsilon(multiplier, rate, rounds=rounds, delta=delta)
    if not wide / _CELL * math.sqrt(rounds * math.log(1e4 / delta)) <= _MOST_CELLS:
        raise InputError(_unresolved(multiplier, rate, rounds))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus' own imports and grid, not the caller's mistakes
        with needed("accountant='prv'"):
            from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(multiplier, rate, rounds)]
        try:
            bound = accountant.get_epsilon(delta)
        except (RuntimeError, ValueError) as error:
            raise InputError(_unresolved(multiplier, rate, rounds)) from error
    return float(max(0.0, bound))


def _unresolved(multiplier: float, rate: float, rounds: int) -> str:
    return (
        f'accountant="prv" of Opacus cannot resolve {rounds} rounds at noise multiplier '
        f'{multiplier:g} and rate {rate:g}; use accountant="pld", an upper bound as well'
    )


def clt_mu(multiplier: float, rate: float, *, rounds: int) -> float:
    """Approximate Gaussian DP parameter of many rounds: q sqrt(T (e^(1/s^2) - 1)).

    >>> round(clt_mu(1.0, 0.01, rounds=1000), 4)
    0.4145
    """
    growth = math.expm1(multiplier**-2) if multiplier > 700.0**-0.5 else math.inf
    return rate * math.sqrt(rounds * growth)


def clt_multiplier(epsilon: float, delta: float, *, rounds: int, rate: float) -> float:
    """The multiplier whose `clt_mu` meets (epsilon, delta)."""
    share = min(mu_from(epsilon, delta) / rate, 1e150)  # whose square is a float
    return 1.0 / math.sqrt(math.log1p(share**2 / rounds))


class Compared(NamedTuple):
    """What an accountant answers of equal rounds, all of them sampled and with noise.

    Attributes:
        epsilon: f(multiplier, rate, *, rounds, delta) in nats.
        delta: f(multiplier, rate, *, rounds, epsilon), or None where it answers epsilon alone.
        multiplier: f(epsilon, delta, *, rounds, rate), or None where the noise is searched for.
    """

    epsilon: Callable[..., float]
    delta: Callable[..., float] | None = None
    multiplier: Callable[..., float] | None = None


def _clt_epsilon(multiplier: float, rate: float, *, rounds: int, delta: float) -> float:
    return epsilon_from_mu(clt_mu(multiplier, rate, rounds=rounds), delta)


def _clt_delta(multiplier: float, rate: float, *, rounds: int, epsilon: float) -> float:
    return delta_from_mu(clt_mu(multiplier, rate, rounds=rounds), epsilon)


COMPARED = {
    Accountant.RDP: Compared(rdp_epsilon, rdp_delta),
    Accountant.PRV: Compared(prv_epsilon),
    Accountant.GDP_CLT: Compared(_clt_epsilon, _clt_delta, clt_multiplier),
}


MOST_ROUNDS = 10_000_000
RESOLVED_MULTIPLIERS = (1e-4, 1e9)  # outside, every record counts as sampled in every round

_LEAST = 1e-100  # noise multiplier, or mu of a round

Orders = tuple[tuple[Round, ...], ...]  # all rounds, with either data set as the first


class Adjacency(StrEnum):
    """How two neighbouring data sets differ.

    ADD_OR_REMOVE_ONE: one has a unit more; sizes of batches differ with it.
    ZERO_OUT: the values of a unit are replaced by nothing; numbers of records and agents stay.
    REPLACE_ONE: a unit is replaced by another one.
    """

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise unknown("adjacency", value, cls)


def check_setting(
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str,
    accountant: str,
    *,
    reach: str = Reach.SUM,
    contributions: SupportsIndex = 1,
) -> tuple[int, Accountant]:
    """Validated round count and accountant.

    >>> check_setting(10, 1.3, "add-or-remove-one", "pld")
    Traceback (most recent call last):
    overhear...InputError: sampling_rate=1.3 must lie in [0, 1]; did you mean batch_size?
    """
    count = check_count(rounds)
    poisson(sampling_rate)
    unit, by, of = Adjacency(adjacency), Accountant(accountant), Reach(reach)
    whole("contributions", contributions, "[1, inf)")
    if not by.by_losses and (unit is Adjacency.REPLACE_ONE or of is Reach.BALL):
        what = f"adjacency='{unit}'" if of is Reach.SUM else "reach='ball'"
        raise InputError(
            f"accountant='{by}' does not cover {what} and would return too little noise; use "
            "accountant='pld'"
        )
    return count, by


def check_count(rounds: SupportsIndex) -> int:
    """An integer number of rounds from 1 to 10 million."""
    return whole("rounds", rounds, f"[1, {MOST_ROUNDS}]", "did you mean examples?")


def check_rounds(
    rounds: Rounds,
    adjacency: str,
    *,
    accountant: str = Accountant.PLD,
    contributions: SupportsIndex = 1,
) -> dict[Event, int]:
    """Rounds that differ, as events and how often each occurs.

    Raises:
        ValueError: no rounds, a value outside its range, or an accountant that adds up equal
            rounds only.
        TypeError: a count is not an integer.
    """
    found = as_events(rounds)
    if not found:
        raise InputError("rounds is empty; give at least one (noise_multiplier, sampling_rate)")
    if not Accountant(accountant).by_losses:
        raise InputError(
            f"accountant='{accountant}' adds up equal rounds only; use 'pld' or 'dp-accounting'"
        )
    for event, count in found.items():
        _check_event(event)
        check_setting(count, 1.0, adjacency, accountant, contributions=contributions)
    check_count(sum(found.values()))
    return found


def _check_event(event: Event) -> None:
    check_multiplier(event.noise_multiplier)
    within("coin", event.coin, "[0, 1]", "it is a probability")
    event.moves.checked()
    if Reach(event.reach) is not Reach.SUM and not event.moves.is_poisson:
        raise InputError(
            f"reach='{event.reach}' has the multiples 0 and 1, not {event.moves.largest:g}; give "
            "moves.as_ball for records of one batch, and an event of its own for each batch"
        )
    if event.otherwise is not None:
        if event.otherwise.otherwise is not None:
            raise InputError(
                "otherwise has an otherwise of its own; give one lottery of two rounds"
            )
        _check_event(event.otherwise)


def orders_of(events: Mapping[Event, int], adjacency: str) -> tuple[float, Orders]:
    """Joint mu of the rounds that a closed form covers, and all rounds if there are others.

    Args:
        events: checked.

    Returns:
        mu, infinite where a round that may take part has no noise; and the rounds in either
        order of the two data sets, in which those of the closed form are one. Empty if they are
        all that there is.
    """
    kinds = _pairs(Adjacency(adjacency))
    squares = 0.0  # of mu
    sampled: list[list[Round]] = [[] for _ in kinds]
    for event, count in events.items():
        if (event := event.reduced).rate == 0.0 or event.noise_multiplier == math.inf:
            continue
        if event.loudest < _LEAST:  # the square of what it hides is nothing to floats
            return math.inf, ()
        orders = [_round(event, kind, count) for kind in kinds]
        if closed_form(orders[0]):
            squares += count * max(orders[0].mu, _LEAST) ** 2
            continue
        for order, rounds in zip(orders, sampled, strict=True):
            rounds.append(order)
    if not sampled[0]:
        return math.sqrt(squares), ()
    if squares > 0.0:
        together = Round(noise_multiplier=squares**-0.5, moves=always(), pair=Pair.REMOVE, count=1)
        for rounds in sampled:
            rounds.append(together)
    # What is the same in either order is composed once.
    return math.sqrt(squares), tuple(dict.fromkeys(tuple(rounds) for rounds in sampled))


_Kinds = dict[Reach, tuple[Pair, float]]  # the hypotheses of each reach, and J times what


def _pairs(adjacency: Adjacency) -> tuple[_Kinds, ...]:
    """For either order of the two data sets the hypotheses of a round of each reach."""
    profile = {Reach.BALL: (Pair.PROFILE, 1.0), Reach.PLACE: (Pair.PROFILE, 1.0)}
    if adjacency is Adjacency.REPLACE_ONE:
        return ({Reach.SUM: (Pair.REPLACE, 1.0), **profile},)
    found = []
    for way, blank in ((Pair.REMOVE, Pair.BLANK), (Pair.ADD, Pair.UNBLANK)):
        kinds: _Kinds = {Reach.SUM: (way, 1.0)}
        if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            kinds |= {Reach.BALL: (way, 2.0), Reach.PLACE: (way, 2.0)}
        else:
            kinds |= {**profile, Reach.PLACE: (blank, 1.0)}
        found.append(kinds)
    return tuple(found)


def _round(event: Event, kinds: _Kinds, count: int) -> Round:
    """The hypotheses of an event in one order of the two data sets."""
    pair, times = kinds[event.reach]
    other = event.otherwise
    return Round(
        noise_multiplier=event.noise_multiplier / times,
        moves=event.moves if event.reach is Reach.SUM else event.moves.as_ball,
        pair=pair,
        count=count,
        coin=event.coin,
        otherwise=None if other is None else _round(other, kinds, 1),
    )


def check_pld(accountant: str) -> None:
    """Rounds that differ are added up by the privacy loss distribution alone."""
    if Accountant(accountant) is not Accountant.PLD:
        raise InputError(f"accountant='{accountant}' adds up equal rounds only; use 'pld'")


def closed_form(round_: Round) -> bool:
    """Whether the round is bounded as if every unit took part: exactly, or at the extremes."""
    if round_.otherwise is None and round_.rate == 1.0 and len(round_.moves.multiples) == 1:
        return True
    low, high = RESOLVED_MULTIPLIERS
    sides = (round_,) if round_.otherwise is None else (round_, round_.otherwise)
    return not all(
        low * max(side.moves.largest, 1.0) <= side.noise_multiplier <= high for side in sides
    )


def check_multiplier(value: float) -> float:
    """At least 0; not a number is refused."""
    return within("noise_multiplier", value, "[0, inf]", "it is noise_std on the sum / clip_norm")


def check_delta(value: float) -> float:
    """Strictly between 0 and 1."""
    return within("delta", value, "(0, 1)", "1e-5 is usual")


def check_epsilon(value: float, *, most: float = 1e6, positive: bool = False) -> float:
    """From 0, or from the least that is stated, to `most` nats."""
    check_real("epsilon", value)
    least = LEAST_EPSILON if positive else 0.0
    if not least <= value <= most:
        bound = f"at least {least:g}" + (f" and at most {most:g}" if most < math.inf else "")
        raise InputError(f"epsilon={value} must be {bound}, in nats; 1 to 10 is usual")
    return float(value)
