"""What the order of ratios adds to counts of errors, and where no such bound may be taken.

    python benchmarks/scores_power.py [--audits 200]

First the median lower bound of audits of one Gaussian round: by counts, by `ranked`, by the mean
of scores over the deviation of absent ones with a normal limit (arXiv:2606.12733), and without
independence. Then how many of 2,000 sound audits contradict a true claim at 95 %: 100 may.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from overhear.attacks.bounds.lower_bounds import Guesses, errors_at_zero, surest, total_error
from overhear.attacks.bounds.mechanism import Claim, epsilon
from overhear.attacks.bounds.one_run_bounds import one_run_f_dp, ranked, tail
from overhear.privacy.accounting.gaussian import epsilon_from_mu, mu_from
from overhear.privacy.accounting.trade_off import trade_off

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.attacks.bounds.simulated_scores import simulated_scores

DELTA, SOUND = 1e-5, 2000
HOW = {"delta": DELTA, "confidence": 0.95}
NORMAL = 1.6449
Play = Callable[[Claim, NDArray[np.bool_], np.random.Generator], NDArray[np.float64]]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=200)
    audits = parser.parse_args().audits
    print("| epsilon | canaries | counts | ranked | mean, normal limit | one-run f-DP |")
    print("| --- | --- | --- | --- | --- | --- |")
    for target in (1.0, 2.0, 4.0, 8.0):
        for canaries in (100, 400, 1000):
            claim, rng = _one_round(target), np.random.default_rng(0)
            drawn = [_drawn(_alone, claim, canaries, rng) for _ in range(audits)]
            found = [
                [bound(g, claim=claim, **HOW).epsilon for g in drawn]
                for bound in (total_error, ranked)
            ]
            found.append([_mean(g) for g in drawn])
            found.append([one_run_f_dp(g, claim=claim, **HOW).epsilon for g in drawn])
            cells = " | ".join(f"{np.median(one):.2f}" for one in found)
            print(f"| {target:g} | {canaries} | {cells} |", flush=True)
    print("\n| canaries | claim | ranked | mean, normal limit | one-run f-DP |")
    print("| --- | --- | --- | --- | --- |")
    for name, play, said, claim in (
        ("independent", _alone, "one round, epsilon 4", _one_round(4.0)),
        ("disturb each other", _together, "one round, epsilon 4", _one_round(4.0)),
    ):
        rng = np.random.default_rng(1)
        truth = epsilon(claim, DELTA)
        curve = trade_off(claim.rounds, adjacency=claim.adjacency)
        chance = lru_cache(maxsize=None)(lambda won, of=curve: tail(of, 400, won))
        above = [0, 0, 0]
        for _ in range(SOUND):
            guesses = _drawn(play, claim, 400, rng)
            above[0] += chance(_won(guesses)) < 0.05
            above[1] += _mean(guesses) > truth
            above[2] += one_run_f_dp(guesses, claim=claim, **HOW).exceeds(truth)
        cells = " | ".join(map(str, above))
        print(f"| {name} | {said} | {cells} |", flush=True)


def _one_round(target: float) -> Claim:
    return Claim(rounds={(1.0 / mu_from(target, DELTA), 1.0): 1})


def _drawn(play: Play, claim: Claim, canaries: int, rng: np.random.Generator) -> Guesses:
    coins = rng.random(canaries) < 0.5
    return Guesses(scores=play(claim, coins, rng), included=coins)


def _alone(claim: Claim, coins: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.float64]:
    return simulated_scores(claim, coins, generator=rng)


def _together(
    claim: Claim, coins: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.float64]:
    """One round that is as clear, or as unclear, of all canaries: each by itself is as claimed."""
    (event,) = claim.events
    mu = 1.0 / event.noise_multiplier
    clear = mu * abs(0.5 * mu + rng.normal())
    right = rng.random(coins.size) < 1.0 / (1.0 + math.exp(-clear))
    return np.where(coins == right, clear, -clear) * (1.0 + 1e-6 * rng.normal(size=coins.size))


def _won(guesses: Guesses) -> int:
    canaries = guesses.scores.size
    wrong = sum(errors_at_zero(guesses)[:2])
    of_surest = sum(errors_at_zero(guesses, among=surest(guesses, canaries // 3))[:2])
    return canaries - wrong + 2 * (canaries // 3 - of_surest)


def _mean(guesses: Guesses) -> float:
    """Epsilon of the mean's distance in deviations of absent canaries, less a normal error."""
    inside, out = guesses.scores[guesses.included], guesses.scores[~guesses.included]
    apart = float((inside.mean() - out.mean()) / out.std(ddof=1))
    error = math.sqrt(1.0 / inside.size + (1.0 + 0.5 * apart**2) / out.size)
    mu = max(0.0, apart - NORMAL * error)
    return epsilon_from_mu(mu, DELTA)


if __name__ == "__main__":
    main()
