"""How large the audit's lower bounds are, and how often they lie above the truth.

    OMP_NUM_THREADS=1 python benchmarks/audit_coverage.py          # 2,000 audits: about 5 minutes
    OMP_NUM_THREADS=1 python benchmarks/audit_coverage.py --quick  # 200 audits: about 40 seconds

Every audit has 5,000 canaries with fair coins whose log-likelihood ratios are drawn from the
mechanism itself, at delta 1e-5 and 95 % confidence: one Gaussian round in which every record takes
part, and 300 Poisson-sampled rounds at rate .1. "Ideal" is the total-error bound at the expected
number of errors. Up to 5 % of the audits may lie above the truth, 100 of 2,000; an estimator that
is right 95 % of the time shows more than 123 with probability .0095, more than 131 with .001.

All bounds rise with the strength of the evidence, so that the median and the first bound above the
truth are found without computing all of them.
"""

from __future__ import annotations

import argparse
import bisect
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for what the tests have beside them

from overhear.attacks.bounds.lower_bounds import (  # noqa: E402  # noqa: E402
    Guesses,
    LowerBound,
    errors_at_zero,
    ideal,
    surest,
    total_error,
)
from overhear.attacks.bounds.mechanism import Claim  # noqa: E402
from overhear.attacks.bounds.one_run_bounds import guesses_made, one_run_f_dp, one_run_pure  # noqa: E402
from overhear.privacy import mu_from, noise_multiplier  # noqa: E402
from tests.attacks.bounds.simulated_scores import simulated_scores  # noqa: E402

CANARIES = 5000
DELTA = 1e-5
CONFIDENCE = 0.95
EPSILONS = (1.0, 3.0, 8.0)
RATE, ROUNDS = 0.1, 300
SEED = 20240917


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How a bound is computed, and what it rises with."""

    bound: Callable[..., LowerBound]
    strength: Callable[[Guesses, Claim], float]


def fewer_errors(guesses: Guesses, _claim: Claim) -> float:
    errors = errors_at_zero(guesses)
    return -float(errors.false_alarms + errors.misses)


def right_guesses(guesses: Guesses, _claim: Claim) -> float:
    chosen = surest(guesses, guesses_made(guesses.scores.size))
    errors = errors_at_zero(guesses, among=chosen)
    return -float(errors.false_alarms + errors.misses)


ESTIMATORS = {
    "total error": Estimator(bound=total_error, strength=fewer_errors),
    "one-run f-DP": Estimator(bound=one_run_f_dp, strength=right_guesses),
    "one-run pure": Estimator(bound=one_run_pure, strength=right_guesses),
}


def claims(epsilon: float) -> dict[str, Claim]:
    least = noise_multiplier(epsilon=epsilon, delta=DELTA, rounds=ROUNDS, sampling_rate=RATE)
    return {
        "1, one round": Claim(rounds={(1.0 / mu_from(epsilon, DELTA), 1.0): 1}),
        f"{RATE:g}, {ROUNDS} rounds": Claim(rounds={(least, RATE): ROUNDS}),
    }


def audits(claim: Claim, count: int, generator: np.random.Generator) -> list[Guesses]:
    coins: NDArray[np.bool_] = generator.random((count, CANARIES)) < 0.5
    scores = simulated_scores(claim, coins, generator=generator)
    return [Guesses(scores=s, included=c) for s, c in zip(scores, coins, strict=True)]


def median_and_above(
    estimator: Estimator, claim: Claim, drawn: Sequence[Guesses], *, truth: float
) -> tuple[float, int]:
    ranked = sorted(drawn, key=lambda guesses: estimator.strength(guesses, claim))

    def epsilon(guesses: Guesses) -> float:
        return estimator.bound(guesses, claim=claim, delta=DELTA, confidence=CONFIDENCE).epsilon

    first = bisect.bisect_right(ranked, truth, key=epsilon)
    return epsilon(ranked[len(ranked) // 2]), len(ranked) - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 audits in place of 2,000")
    count = 200 if parser.parse_args().quick else 2000
    generator = np.random.default_rng(SEED)
    most = int(binom.isf(0.01, count, 1.0 - CONFIDENCE))
    print(f"{count:,} audits of {CANARIES:,} canaries, delta {DELTA:g}, {CONFIDENCE:.0%}; ", end="")
    print(f"at most {most} above the truth are within chance (1 %)\n")
    print("| sampling rate | estimator | true epsilon | ideal | median bound | above the truth |")
    print("|---|---|---|---|---|---|")
    start = time.process_time()
    for truth in EPSILONS:
        for words, claim in claims(truth).items():
            drawn = audits(claim, count, generator)
            best = ideal(claim, canaries=CANARIES, delta=DELTA, confidence=CONFIDENCE)
            for name, estimator in ESTIMATORS.items():
                median, above = median_and_above(estimator, claim, drawn, truth=truth)
                print(
                    f"| {words} | {name} | {truth:g} | {best:.2f} | {median:.2f} "
                    f"| {above} of {count:,} |",
                    flush=True,
                )
    print(f"\nprocess CPU time: {time.process_time() - start:.0f} s")


if __name__ == "__main__":
    main()
