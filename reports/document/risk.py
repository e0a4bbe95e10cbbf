"""What each adversary's figure means for one record, as odds that a reader can picture.

    hits at a    1 - f(a), f the trade-off curve of all rounds together (`privacy.risk`)
    right        1 - Bayes risk: how often the best guess whether the record was in is right, where
                 a coin is right 50 times in 100

Odds of a proven row are rounded up, those of a heuristic one down: it is known to be at least so
bad.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from ...privacy.accounting.request import Adjacency
from ...privacy.accounting.risk import Risk as Curve
from ...privacy.accounting.risk import composed_risk, risk_of_mu
from ...privacy.guarantee import Statement, Status
from ...privacy.ledgers.ledger import Spent
from ...runs.plan.plan import Plan
from ...training.exposure.events import accounted, counted, spent_releases
from ...training.exposure.sensitivity import JointSensitivity, Release
from ..schema import Hits, Odds, Risk

__all__ = ["Source", "odds", "risk_by_adversary"]

# False positives, and of how many records that were not in: 1 in 1000, 1 in 100, 10 in 100.
_RATES = ((1, 1000), (1, 100), (10, 100))


class Source(enum.StrEnum):
    """Where odds come from."""

    CURVE = "trade-off curve"
    NOTHING = "nothing protects"
    NO_BOUND = "no bound"


def risk_by_adversary(plan: Plan, spent: Spent, *, epsilon: Mapping[str, float]) -> dict[str, Risk]:
    """The odds of each adversary after everything that was accounted for.

    Args:
        plan: of the run.
        spent: its ledger.
        epsilon: accounted, by adversary.
    """
    known: dict[tuple[tuple[Release, ...], Status], Risk] = {}
    found = {}
    for name, exposure in plan.exposures.items():
        guarantee = plan.guarantee(name)
        status = guarantee.released(epsilon[name]).status
        released = accounted(exposure, spent.numbers, torn=spent.torn)
        key = (released.releases, status)  # equal releases mean the same
        if key not in known:
            known[key] = _entry(
                released,
                noise_multiplier=plan.noise_multiplier,
                epsilon=epsilon[name],
                statement=plan.statement,
                status=status,
            )
        found[name] = known[key]
    return found


def odds(probability: float, of: int, *, up: bool = True) -> float:
    """A probability as so many of `of`, with two digits, rounded to the stated side.

    >>> odds(0.13801, 100), odds(0.0291, 100), odds(0.13801, 100, up=False), odds(1.0, 1000)
    (14.0, 3.0, 13.0, 1000.0)
    """
    if not 0.0 < probability < 1.0:
        return float(of) if probability >= 1.0 else 0.0
    exact = Decimal(probability) * of
    step = Decimal(1).scaleb(max(exact.adjusted() - 1, -12))
    # A probability that came out a rounding error beside a round number is that number.
    near = exact.quantize(step)
    if abs(near - exact) < exact * Decimal("1e-9"):
        return float(near)
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return min(float(exact.quantize(step, rounding=rounding)), float(of))


def _entry(
    exposure: JointSensitivity,
    *,
    noise_multiplier: float,
    epsilon: float,
    statement: Statement,
    status: Status,
) -> Risk:
    proven = status is Status.PROVEN
    if math.isinf(epsilon):
        unknown = status is Status.CANNOT_BE_EXPRESSED
        source = Source.NO_BOUND if unknown else Source.NOTHING
        return _told(source, dict.fromkeys(_RATES, 1.0), advantage=1.0, mu=math.inf, up=True)
    found = _curve(exposure, noise_multiplier=noise_multiplier, adjacency=statement.adjacency)
    hits = {rate: hit for rate, (_, hit) in zip(_RATES, found.true_positive_rates, strict=True)}
    return _told(Source.CURVE, hits, advantage=found.advantage, mu=found.mu, up=proven)


def _curve(exposure: JointSensitivity, *, noise_multiplier: float, adjacency: Adjacency) -> Curve:
    """Of everything released together."""
    releases = spent_releases(exposure.releases)
    rates = [a / of for a, of in _RATES]
    if not releases:
        return risk_of_mu(0.0, false_positive_rates=rates)
    events = counted(releases, noise_multiplier, adjacency)
    return composed_risk(events, adjacency=adjacency, false_positive_rates=rates)


def _told(
    source: Source,
    hits: Mapping[tuple[int, int], float],
    *,
    advantage: float,
    mu: float | None,
    up: bool,
) -> Risk:
    return Risk(
        source=str(source),
        relation="at most" if up else "at least",
        advantage=advantage,
        mu=mu,
        # The prior is a coin, so the best guess is right with probability (1 + advantage) / 2.
        right=Odds(times=odds(0.5 * (1.0 + advantage), 100, up=up), of=100),
        hits=[
            Hits(false_positives=wrong, of=of, hit_rate=hit, hits=odds(hit, of, up=up))
            for (wrong, of), hit in hits.items()
        ],
    )
