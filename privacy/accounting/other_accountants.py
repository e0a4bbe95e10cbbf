"""The accountants that other tools use, by name and for comparison; add-or-remove-one only.

- RDP: Mironov, Talwar, Zhang. Renyi DP of the sampled Gaussian mechanism. arXiv:1908.10530, as
  implemented by dp-accounting. An upper bound, usually 5 to 30 percent above the truth.
- PRV: Gopi, Lee, Wutschitz. Numerical composition of DP. NeurIPS 2021, arXiv:2106.02848, as
  implemented by opacus; its upper bound, which adds .01 to epsilon.
- GDP-CLT: Bu, Dong, Long, Su. Deep learning with Gaussian DP. arXiv:1911.11607, Corollary 2. A
  limit for many rounds, not a bound.
"""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator

from .gaussian import mu_from

__all__ = ["clt_mu", "clt_multiplier", "prv_epsilon", "rdp_delta", "rdp_epsilon"]


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
        yield
    finally:
        log.setLevel(before)


def prv_epsilon(multiplier: float, rate: float, *, rounds: int, delta: float) -> float:
    """Upper bound on epsilon by opacus' numerical composition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus' own imports and grid, not the caller's mistakes
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(multiplier, rate, rounds)]
        bound = accountant.get_epsilon(delta)
    return float(max(0.0, bound))


def clt_mu(multiplier: float, rate: float, *, rounds: int) -> float:
    """Approximate Gaussian DP parameter of many rounds: q sqrt(T (e^(1/s^2) - 1)).

    >>> round(clt_mu(1.0, 0.01, rounds=1000), 4)
    0.4145
    """
    exponent = multiplier**-2
    growth = math.expm1(exponent) if exponent < 700.0 else math.inf
    return rate * math.sqrt(rounds * growth)


def clt_multiplier(epsilon: float, delta: float, *, rounds: int, rate: float) -> float:
    """The multiplier whose `clt_mu` meets (epsilon, delta)."""
    return 1.0 / math.sqrt(math.log1p((mu_from(epsilon, delta) / rate) ** 2 / rounds))
