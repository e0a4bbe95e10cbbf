"""The Gaussian mechanism in closed form: between mu and (epsilon, delta).

A release is mu-GDP when telling two neighbouring inputs apart from it is no easier than telling
N(0, 1) from N(mu, 1). The sum of clipped gradients with noise multiplier s is (1/s)-GDP, and
adaptive releases add up as mu^2 = mu_1^2 + mu_2^2 + ...

    Dong, Roth, Su. Gaussian Differential Privacy. JRSS-B 84 (2022), arXiv:1905.02383. Corollary 1.
    Balle, Wang. Improving the Gaussian Mechanism. ICML 2018, arXiv:1805.06530. Theorem 8.

    delta(epsilon) = Phi(-u) - e^epsilon Phi(-u - mu),   u = epsilon/mu - mu/2
                   = phi(u) (R(u) - R(u + mu)),          R(t) = Phi(-t)/phi(t)

| symbol | name here | unit |
|---|---|---|
| mu | mu | standard deviations between the two hypotheses |
| Phi, phi | log_ndtr, _log_density | - |
| R | Mills' ratio, by erfcx | - |

Where we differ from the paper: the second line replaces the first, because e^epsilon overflows
and the difference of two close tails loses every digit when mu is small; close ratios are
subtracted by integrating R'(t) = t R(t) - 1 between them.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, check_real

LEAST_DELTA = math.ulp(0.0)  # what is not 0 is not stated to be 0: that were pure privacy
LEAST_EPSILON = 1e-12  # nats; what is not 0 is not stated to be less, where rounding would show

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_MU = "must be at least 0; it counts standard deviations"
_MOST_MU = 1e15  # beyond it floats do not tell one epsilon from the next
_ROUNDING = 4e-15  # relative; the first step to the safe side after a root is found
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def stated(epsilon: float) -> float:
    """An epsilon as it is stated: 0, or `LEAST_EPSILON` at least.

    >>> stated(0.0), stated(3e-15), stated(2.0)
    (0.0, 1e-12, 2.0)
    """
    return epsilon if epsilon == 0.0 else max(epsilon, LEAST_EPSILON)


def delta_from_mu(mu: float, epsilon: float) -> float:
    """Return the smallest delta for which a mu-GDP release is (epsilon, delta)-DP.

    Args:
        mu: Gaussian DP parameter, in standard deviations, >= 0; may be infinite.
        epsilon: privacy loss bound, in nats, >= 0; may be infinite.

    Returns:
        delta in [0, 1], and 0 only where nothing is lost or epsilon is infinite. Relative error
        below 1e-9 wherever delta is above 1e-300.

    Raises:
        ValueError: mu or epsilon is negative or not a number.
        TypeError: one is a truth value or a string.

    Source: Balle and Wang 2018, Theorem 8.

    >>> round(delta_from_mu(1.0, 1.0), 9)
    0.126936738
    """
    check_real("mu", mu)
    check_real("epsilon", epsilon)
    _require(mu >= 0.0, f"mu={mu}", _MU)
    _require(epsilon >= 0.0, f"epsilon={epsilon}", "must be at least 0, in nats")
    if mu == 0.0 or (epsilon == math.inf and mu < math.inf):
        return 0.0
    if mu == math.inf:
        return 1.0
    return min(1.0, max(math.exp(_log_delta(mu, epsilon)), LEAST_DELTA))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP release is (epsilon, delta)-DP.

    Args:
        mu: Gaussian DP parameter, in standard deviations, >= 0; may be infinite.
        delta: strictly between 0 and 1.

    Returns:
        epsilon in nats, rounded up: `delta_from_mu(mu, epsilon) <= delta`; 0 or at least 1e-12.

    Raises:
        ValueError: mu is negative or delta is outside (0, 1).
        TypeError: one is a truth value or a string.

    Source: the inverse of Balle and Wang 2018, Theorem 8.

    >>> round(epsilon_from_mu(1.0, 1e-5), 6)
    4.377178
    """
    check_real("mu", mu)
    check_real("delta", delta)
    _require(mu >= 0.0, f"mu={mu}", _MU)
    _require(
        0.0 < delta < 1.0, f"delta={delta}", "must lie strictly between 0 and 1; 1e-5 is usual"
    )
    if mu > _MOST_MU:
        return math.inf
    goal = math.log(delta)
    if mu == 0.0 or _log_delta(mu, 0.0) <= goal:
        return 0.0
    # In u the root is bracketed whatever mu is: delta <= Phi(-u) <= exp(-u^2/2).
    low, high = -0.5 * mu, math.sqrt(-2.0 * goal)
    u = _root(lambda u: _log_delta(mu, mu * (u + 0.5 * mu)) - goal, low, max(high, low + 1.0))
    epsilon = max(0.0, mu * (u + 0.5 * mu))
    step = _ROUNDING * max(epsilon, 0.5 * mu * mu)
    while _log_delta(mu, epsilon) > goal:
        epsilon, step = epsilon + step, 2.0 * step
    return stated(epsilon)


def mu_from(epsilon: float, delta: float) -> float:
    """Return the largest mu whose releases are all (epsilon, delta)-DP.

    Args:
        epsilon: privacy loss bound, in nats, >= 0 and finite.
        delta: strictly between 0 and 1.

    Returns:
        mu > 0, rounded down: `delta_from_mu(mu, epsilon) <= delta`. A Gaussian release of
        sensitivity C meets (epsilon, delta) with noise_std = C / mu.

    Raises:
        ValueError: epsilon is negative or infinite, or delta is outside (0, 1).
        TypeError: one is a truth value or a string.

    Source: the inverse of Balle and Wang 2018, Theorem 8.

    >>> round(1.0 / mu_from(1.0, 1e-5), 6)
    3.730632
    """
    check_real("epsilon", epsilon)
    check_real("delta", delta)
    _require(0.0 <= epsilon < math.inf, f"epsilon={epsilon}", "must be at least 0 and finite")
    _require(
        0.0 < delta < 1.0, f"delta={delta}", "must lie strictly between 0 and 1; 1e-5 is usual"
    )
    goal = math.log(delta)

    def excess(log_mu: float) -> float:
        return _log_delta(math.exp(log_mu), epsilon) - goal

    low = high = 0.5 * math.log(max(epsilon, 1e-3))
    while excess(low) > 0.0:
        low -= 2.0
    while excess(high) < 0.0:
        high += 2.0
    mu = math.exp(_root(excess, low, high))
    step = _ROUNDING
    while _log_delta(mu, epsilon) > goal:
        mu, step = mu * (1.0 - step), 2.0 * step
    return mu


def _log_delta(mu: float, epsilon: float) -> float:
    """Log of delta(epsilon) for 0 < mu < inf and 0 <= epsilon < inf; -inf where it underflows."""
    from scipy.special import log_ndtr

    u = epsilon / mu - 0.5 * mu
    if u > 1e100:  # delta is below exp(-u^2 / 2)
        return -math.inf
    if u < -1.0:
        # Most outputs exceed epsilon: Phi(-u) is of order one and the second term is smaller.
        first = float(log_ndtr(-u))
        second = _log_density(u) + math.log(_mills(u + mu))
        return first + math.log(-math.expm1(second - first))
    drop = _mills(u) - _mills(u + mu) if mu > 0.5 else _mills_drop(u, mu)
    return _log_density(u) + math.log(drop) if drop > 0.0 else -math.inf


def _log_density(u: float) -> float:
    return -0.5 * u * u - _LOG_SQRT_2PI


def _mills(t: float) -> float:
    """R(t) = Phi(-t)/phi(t) for t >= -1."""
    from scipy.special import erfcx

    return math.sqrt(0.5 * math.pi) * float(erfcx(t / math.sqrt(2.0)))


def _mills_drop(u: float, width: float) -> float:
    """R(u) - R(u + width) as the integral of 1 - t R(t), free of cancellation."""
    t = u + 0.5 * width * (1.0 + _NODES)  # (nodes,)
    return 0.5 * width * float(_WEIGHTS @ _one_minus_t_mills(t))


def _one_minus_t_mills(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 - t R(t), which is about 1/t^2 for large t."""
    from scipy.special import erfcx

    # R = 1/(t + 1/(t + 2/(t + 3/...))): with the positive tail b = t + 2/(t + 3/...) the
    # difference is 1/(b (t + 1/b)), a form without subtraction.
    far = np.maximum(t, 4.0)
    tail = far.copy()
    for k in range(80, 1, -1):
        tail = far + k / tail
    near = 1.0 - t * math.sqrt(0.5 * math.pi) * erfcx(np.minimum(t, 4.0) / math.sqrt(2.0))
    return np.where(t < 4.0, near, 1.0 / (tail * far + 1.0))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-14, rtol=1e-14, maxiter=300))


def _require(holds: bool, name: str, bound: str) -> None:
    if not holds:
        raise InputError(f"{name} {bound}")
