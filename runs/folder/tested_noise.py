"""The tests of a run's noise while it trains, and what of them the ledger may say.

That is how many rounds and numbers passed, and at which false-alarm rate: what everybody can tell
beforehand. A failed test ends the run before the round's messages leave, with no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from ...training.models.parameters import sizes_of
from ...training.noise_tests.noise_tests import RATE, NoiseTestFailed, NoiseTests
from ...training.tracing.trace import check_noise
from ..errors import ContradictedProof
from ..plan.plan import Plan
from ..run_file.build import Built

__all__ = ["TestedNoise", "noise_test_rate", "stopped_by_noise"]

_SHARE = 1e-10  # of delta: far below what the accountant allows for rounding


def noise_test_rate(plan: Plan) -> float:
    """The false-alarm rate of a run's tests, in all: (1 + e^epsilon) times it is next to no delta.

    Args:
        plan: of the run; its finite epsilons count, and its delta.

    Returns:
        1e-30, or less where an epsilon above 30 or a small delta asks for it; at least 1e-250.
    """
    figures = [g.epsilon for g in plan.guarantees if math.isfinite(g.epsilon)]
    most = min(max(figures, default=0.0), 500.0)
    return max(1e-250, min(RATE, _SHARE * plan.statement.delta / (1 + math.exp(most))))


class TestedNoise:
    """The tests of one session, on one rank.

    Args:
        built: the objects of the run.
        ranks: how many processes share the agents.

    Raises:
        ValueError: the step's noise is not that of the plan.
    """

    __test__ = False  # no test of pytest's

    def __init__(self, built: Built, plan: Plan, *, ranks: int) -> None:
        bound = built.bound(plan.noise_multiplier)
        check_noise(plan.noise_multiplier, bound.init, bound.step)
        sizes = sizes_of(built.setting.model)
        self._alone, self._met = ranks == 1, {"rounds": 0, "numbers": 0}
        self.tests = NoiseTests(parts={sum(sizes): sizes}, rate=noise_test_rate(plan) / ranks)

    def meet(self) -> None:
        """All ranks are here, so every one of them has passed what this one has."""
        self._met = self._own()

    def known(self) -> dict[str, int]:
        """What is known to have passed on all ranks."""
        return self._own() if self._alone else self._met

    def _own(self) -> dict[str, int]:
        return {"rounds": self.tests.rounds, "numbers": self.tests.numbers}


@contextmanager
def stopped_by_noise() -> Iterator[None]:
    """End a run where a test of its noise fails.

    Raises:
        ContradictedProof: the noise is not what epsilon was computed for.
    """
    try:
        yield
    except NoiseTestFailed as error:
        raise ContradictedProof(str(error)) from error
