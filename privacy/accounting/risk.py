"""What a guarantee means: how often the best adversary is right about one record.

    Kulynych, Gomez, Kaissis, Calmon, Troncoso. Attack-Aware Noise Calibration for Differential
        Privacy. NeurIPS 2024, arXiv:2407.02191: advantage and TPR.
    Hayes, Mahloujifar, Balle. Bounding Training Data Reconstruction in DP-SGD. NeurIPS 2023,
        arXiv:2302.07225; Kaissis, Hayes, Ziller, Rueckert. Bounding data reconstruction attacks
        with the hypothesis testing interpretation of differential privacy, arXiv:2307.03928.

    from the trade-off curve f and the delta(epsilon) of `trade_off`:
    advantage        max over a of 1 - f(a) - a             = delta(0)
    TPR(a)           1 - f(a)
    Bayes risk(p)    min over a of (1 - p) a + p f(a)       = p (1 - delta(log((1 - p)/p)))
    reconstruction   1 - f(k)
    mu               least mu with Phi(-Phi^-1(a) - mu) <= f(a)

| symbol | name here | unit |
|---|---|---|
| a | false_positive_rates (FPR) | probability of "the record is in" when it is not |
| TPR(a) | true_positive_rates | probability of "the record is in" when it is |
| p | prior | probability that the record is in, before anything is seen |
| k | prior_hit_rate | probability that a guess made without seeing anything counts as rebuilt |

Formal guarantees:
- The adversary knows everything but the record and is never weaker than the figures say: Bayes
  risk is a lower bound; advantage, TPR, reconstruction and mu are upper bounds.
- mu describes the curve where both error rates are at least 1e-6, not beyond: further out the
  curve of sampled rounds approaches that of a record that is in every batch.

Where we differ from the paper: the reconstruction bound holds for any loss and threshold, since
only the hit rate of a blind guess enters; it uses the worse direction of the adjacency.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np

from ..errors import InputError, check_real, within
from ..participation import Event, Rounds
from .accountant import composed_delta
from .request import Adjacency, check_count, check_multiplier, check_rounds, orders_of
from .search import smallest_safe
from .trade_off import GaussianCurve, TradeOff, trade_off

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
_TOLERANCE = 2e-6  # relative, on a scale
_LEAST_RATE = 1e-6  # of false positives or false negatives, where mu is fitted


@dataclass(frozen=True, kw_only=True, slots=True)
class Risk:
    """What the best adversary achieves against one record.

    Attributes:
        advantage: largest TPR minus FPR, in [0, 1].
        true_positive_rates: (false-positive rate, largest true-positive rate) pairs.
        prior: probability that the record is in, before anything is seen.
        bayes_risk: least probability to be wrong about the record, at most min(prior, 1 - prior).
        prior_hit_rate: probability to rebuild the record without seeing anything.
        reconstruction: largest probability to rebuild it after everything is seen.
        mu: least Gaussian DP parameter that covers the curve where both error rates are at
            least 1e-6; infinite if no finite one is certified.
        mu_fit_error: by how much the TPRs of `mu` overstate those of the curve, at most.

    Raises:
        ValueError: a figure is not a probability, or mu is negative or not a number.

    >>> found = risk_of_mu(1.0)
    >>> [(fpr, round(tpr, 4)) for fpr, tpr in found.true_positive_rates]  # 9 in 100 at FPR .01
    [(0.001, 0.0183), (0.01, 0.0924), (0.1, 0.3891)]
    """

    advantage: float
    true_positive_rates: tuple[tuple[float, float], ...]
    prior: float
    bayes_risk: float
    prior_hit_rate: float
    reconstruction: float
    mu: float
    mu_fit_error: float

    def __post_init__(self) -> None:
        """Check that the figures are figures."""
        figures = {
            name: getattr(self, name)
            for name in (
                "advantage",
                "prior",
                "bayes_risk",
                "prior_hit_rate",
                "reconstruction",
                "mu_fit_error",
            )
        }
        figures |= {f"TPR at FPR {fpr}": tpr for fpr, tpr in self.true_positive_rates}
        for name, value in figures.items():
            within(name, value, "[0, 1]", "it is a probability")
        within("mu", self.mu, "[0, inf]", "it counts standard deviations")


def risk(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    rounds: SupportsIndex,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> Risk:
    """Return what the best adversary achieves against a record after `rounds` equal rounds.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0; the
            effective one of an adversary's view.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        rounds: how many, from 1 to 10 million.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        prior: probability that the record is in, before anything is seen, in (0, 1).
        prior_hit_rate: probability to rebuild the record without seeing anything, in [0, 1].
        false_positive_rates: where true-positive rates are reported, each in [0, 1].

    Returns:
        Figures of which none makes the adversary weaker than it is.

    Raises:
        ValueError: a value is outside its range.
        TypeError: `rounds` is not an integer, or a value is no number.

    Source: the module's docstring; arXiv:2407.02191 and arXiv:2302.07225.

    >>> found = risk(noise_multiplier=1.0, sampling_rate=0.01, rounds=1000)  # epsilon 1.83
    >>> round(found.advantage, 3), [round(tpr, 4) for _, tpr in found.true_positive_rates]
    (0.161, [0.0041, 0.0291, 0.1942])
    """
    rate = within("sampling_rate", sampling_rate, "[0, 1]", "did you mean batch_size?")
    of_each = check_multiplier(noise_multiplier), rate
    curve = trade_off({of_each: check_count(rounds)}, adjacency=adjacency)
    return _risk_of(curve, prior, prior_hit_rate, false_positive_rates)


def composed_risk(
    rounds: Rounds,
    *,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> Risk:
    """Return the figures of `risk` for rounds that differ.

    Args:
        rounds: as in `composed_epsilon`; the others are as in `risk`.

    Returns:
        Figures of which none makes the adversary weaker than it is.

    Raises:
        ValueError: a value is outside its range or there are no rounds.
        TypeError: a count is not an integer, or a value is no number.

    >>> round(composed_risk({(1.0, 0.01): 1000, (5.0, 0.1): 1}).advantage, 3)
    0.161
    """
    curve = trade_off(rounds, adjacency=adjacency)
    return _risk_of(curve, prior, prior_hit_rate, false_positive_rates)


def risk_of_mu(
    mu: float,
    *,
    prior: float = 0.5,
    prior_hit_rate: float = 1e-6,
    false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES,
) -> Risk:
    """Return what the best adversary achieves against a mu-GDP release, in closed form.

    Args:
        mu: Gaussian DP parameter for the adjacency in question, in standard deviations, >= 0; may
            be infinite. The others are as in `risk`.

    Returns:
        Advantage 2 Phi(mu/2) - 1, TPR Phi(Phi^-1(a) + mu), mu itself with no fit error.

    Raises:
        ValueError: a value is outside its range.
        TypeError: a value is no number.

    >>> round(risk_of_mu(0.5).advantage, 4)
    0.1974
    """
    check_real("mu", mu)
    return _risk_of(GaussianCurve(mu=float(mu)), prior, prior_hit_rate, false_positive_rates)


def true_positive_rate_of_pair(
    epsilon: float, delta: float, *, false_positive_rate: float
) -> float:
    """Return the largest TPR that (epsilon, delta) alone allows, whatever the mechanism is.

    A run of known noise is bounded better by its own curve: `risk`.

    Args:
        epsilon: at least 0; may be infinite.
        delta: in [0, 1].
        false_positive_rate: in [0, 1].

    Returns:
        1 - f(a) of Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776), a probability.

    Raises:
        ValueError: a value is outside its range.
        TypeError: a value is no number.

    >>> [round(true_positive_rate_of_pair(e, 1e-5, false_positive_rate=0.01), 3) for e in (1, 3, 8)]
    [0.027, 0.201, 1.0]
    """
    bounds = {"epsilon": math.inf, "delta": 1.0, "false_positive_rate": 1.0}
    given = (epsilon, delta, false_positive_rate)
    for (name, most), value in zip(bounds.items(), given, strict=True):
        within(name, value, f"[0, {most}]")
    if epsilon > 700.0:  # e^epsilon is no number
        return 1.0
    factor, alarms = math.exp(epsilon), false_positive_rate
    return min(1.0, factor * alarms + delta, 1.0 - (1.0 - min(1.0, delta + alarms)) / factor)


def scale_for_risk(
    rounds: Rounds,
    *,
    advantage: float | None = None,
    true_positive_rate: tuple[float, float] | None = None,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
) -> float:
    """Return the least factor on every noise multiplier at which no adversary is better than this.

    Args:
        rounds: as in `composed_epsilon`.
        advantage: the largest TPR minus FPR that is allowed, in (0, 1).
        true_positive_rate: or else (TPR, FPR): the largest TPR that is allowed at this FPR, which
            lies below it, both in (0, 1).

    Returns:
        The factor, rounded up and evaluated once more; 0 where no noise at all meets the target.

    Raises:
        ValueError: a value is outside its range, both targets or none, or a sampled round without
            noise.
        TypeError: a value is no number.

    Source: Kulynych et al., arXiv:2407.02191: noise for the risk that is meant, not for epsilon.
    """
    events = check_rounds(rounds, adjacency)
    if (advantage is None) == (true_positive_rate is None):
        raise InputError("give advantage or true_positive_rate, exactly one of them")
    if any(e.noise_multiplier == 0.0 and e.rate > 0.0 for e in events):
        raise InputError(
            "noise_multiplier=0 of a sampled round stays 0 at every scale; give it noise"
        )
    if true_positive_rate is not None:
        _check_target(*true_positive_rate)
    elif advantage is not None:
        within("advantage", advantage, "(0, 1)")

    # x is the log of the factor on the noise.
    def scaled(x: float) -> dict[Event, int]:
        factor = math.exp(x)
        return {e.scaled(factor): n for e, n in events.items()}

    # TPR at the given FPR by the trade-off curve; advantage is delta at epsilon 0.
    def excess(x: float) -> float:
        if true_positive_rate is not None:
            rate, alarms = true_positive_rate
            curve = trade_off(scaled(x), adjacency=adjacency)
            return 1.0 - float(curve.false_negative_rates(alarms)) - rate
        return composed_delta(scaled(x), epsilon=0.0, adjacency=adjacency) - (advantage or 0.0)

    _, orders = orders_of(events, adjacency)
    # No test beats a blind guess by more than the probability that the unit is in any round.
    noisy = {e: n for e, n in events.items() if e.noise_multiplier < math.inf}
    drawn = [(e.rate, n) for e, n in noisy.items()]
    never = sum(n * (math.log1p(-rate) if rate < 1.0 else -math.inf) for rate, n in drawn)
    ever = -math.expm1(never)
    gained = (
        advantage if true_positive_rate is None else true_positive_rate[0] - true_positive_rate[1]
    )
    if ever <= (gained or 0.0):
        return 0.0
    # Where many rounds with much noise would stand.
    squares = sum(r.count * (r.rate * r.mu) ** 2 for r in orders[0]) if orders else 1.0
    start = min(max(0.5 * math.log(max(squares, 1e-12)), -3.0), 10.0)
    return math.exp(smallest_safe(excess, start, step=0.5, tolerance=_TOLERANCE))


def _check_target(rate: float, alarms: float) -> None:
    check_real("true-positive rate", rate)
    check_real("false-positive rate", alarms)
    if not 0.0 < alarms < rate < 1.0:
        raise InputError(
            f"true-positive rate {rate} at false-positive rate {alarms}: both must lie strictly "
            "between 0 and 1, and the first above the second, which a blind guess has"
        )


def _risk_of(
    curve: TradeOff, prior: float, prior_hit_rate: float, false_positive_rates: Sequence[float]
) -> Risk:
    check_real("prior", prior)
    check_real("prior_hit_rate", prior_hit_rate)
    for rate in false_positive_rates:
        check_real("false-positive rate", rate)
    within("prior", prior, "(0, 1)", ".5 is a coin")
    rates = tuple(float(rate) for rate in false_positive_rates)
    *found, reconstruction = 1.0 - curve.false_negative_rates([*rates, prior_hit_rate])
    advantage = curve.delta(0.0)
    odds = abs(math.log1p(-prior) - math.log(prior))
    mu, error = _fit(curve, advantage)
    return Risk(
        advantage=advantage,
        true_positive_rates=tuple(zip(rates, (float(tpr) for tpr in found), strict=True)),
        prior=prior,
        bayes_risk=min(prior, 1.0 - prior) * (1.0 - curve.delta(odds)),
        prior_hit_rate=prior_hit_rate,
        reconstruction=float(reconstruction),
        mu=mu,
        mu_fit_error=error,
    )


def _fit(curve: TradeOff, advantage: float) -> tuple[float, float]:
    """Least mu whose curve lies under this one, and how far under at most."""
    from scipy.special import ndtr, ndtri

    if isinstance(curve, GaussianCurve):
        return curve.mu, 0.0
    deep = float(ndtri(_LEAST_RATE))
    z = np.linspace(deep, -deep, 1901)
    misses = curve.false_negative_rates(ndtr(z))
    half = ndtr(z) <= misses  # the curve is its own mirror image
    crossing = 0.5 * (1.0 - advantage)  # where both kinds of error are equally rare
    if crossing <= 0.0:
        return math.inf, 0.0
    mu = max(-2.0 * float(ndtri(crossing)), 0.0)
    if half.any():
        mu = max(mu, float(np.max(-ndtri(misses[half]) - z[half])))
    return mu, max(0.0, float(np.max(misses - ndtr(-z - mu))))
