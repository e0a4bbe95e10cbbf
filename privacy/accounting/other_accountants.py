"""The accountants that other tools use, by name and for comparison; add-or-remove-one only.

- RDP: Mironov, Talwar, Zhang. Renyi DP of the sampled Gaussian mechanism. arXiv:1908.10530, as
  implemented by dp-accounting. An upper bound, usually 5 to 30 percent above the truth.
- PRV: Gopi, Lee, Wutschitz. Numerical composition of DP. NeurIPS 2021, arXiv:2106.02848, as
  implemented by opacus; its upper bound, which adds .01 to epsilon.
- GDP-CLT: Bu, Dong, Long, Su. Deep learning with Gaussian DP. arXiv:1911.11607, Corollary 2. A
  limit for many rounds, not a bound.

The accountants by name: how rounds may be added up, and what each figure is then called.

What one of another tool answers is a row of `other_accountants.COMPARED`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from ..errors import InputError, needed
from .gaussian import delta_from_mu, epsilon_from_mu, mu_from


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
