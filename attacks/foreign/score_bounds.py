"""Lower bounds on epsilon from scores that came from elsewhere, and what a perfect audit shows.

    Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. NeurIPS 2023.
    Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. ICML 2025.
    Kairouz, Oh, Viswanath. The composition theorem for differential privacy. ICML 2015:
        randomised response is the mechanism of (epsilon, delta) that leaks most.

A threshold cuts the scores; those above are guessed "in". Two ways to have one without looking at
the coins that are guessed: 0, if the scores are likelihood ratios, and the place where a fifth of
the canaries, which is not guessed, has the fewest errors.

| scores | claim | bound at each threshold | errors independent |
|---|---|---|---|
| ratios | mechanism | `total_error` | assumed |
| others | mechanism | `one_run_f_dp` of all guesses, and of the surest | no |
| any | epsilon alone | `one_run_pure` of all guesses, and of the surest | no |

The risk is shared evenly among the bounds of a row (C. E. Bonferroni 1936): with both thresholds,
each has half of it. They hold together, so their largest holds.

Errors of ratios are independent where canaries are orthogonal and the noise among them is white;
losses of a final model disturb each other, and are never taken for ratios.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...privacy.accounting.trade_off import TradeOff, trade_off
from ..bounds.guesses import Guesses, best_threshold
from ..bounds.lower_bounds import LowerBound, ideal, total_error
from ..bounds.mechanism import Claim
from ..bounds.one_run_bounds import guesses_made, one_run_f_dp, one_run_pure
from .claimed import Claimed

__all__ = ["EVERY", "perfect_bound", "score_bounds", "thresholds_apart"]

EVERY = 5  # one canary of so many sets the threshold

Bools = NDArray[np.bool_]


def thresholds_apart(canaries: int) -> Bools:
    """(m,) which canaries set the threshold: a fifth, whatever order they come in.

    They are chosen by a fixed shuffle of their places, since a file may be sorted by its coins.

    >>> int(thresholds_apart(500).sum())
    100
    """
    setting = np.zeros(canaries, dtype=bool)
    setting[np.random.default_rng(0).permutation(canaries)[: canaries // EVERY]] = True
    return setting


def score_bounds(
    guesses: Guesses, claimed: Claimed, *, setting: Bools, ratios: bool, confidence: float
) -> list[LowerBound]:
    """All bounds that hold together at one confidence, the largest first.

    Args:
        guesses: (m,) scores and coins.
        claimed: whose mechanism the errors are read on, where it has one.
        setting: (m,) which canaries set the threshold; chosen without scores and coins.
        ratios: whether scores are log-likelihood ratios at what is claimed, of canaries that do
            not disturb each other.
        confidence: of all of them together.
    """
    threshold = best_threshold(guesses.scores[setting], guesses.included[setting])
    rest = np.flatnonzero(~setting)
    # Ties among the surest are broken by place, which must tell nothing of the coins.
    rest = rest[np.random.default_rng(1).permutation(rest.size)]
    cut = [("held-out threshold", threshold, guesses.scores[rest], guesses.included[rest])]
    if ratios:
        every = np.random.default_rng(1).permutation(guesses.scores.size)
        cut.append(("ratio 0", 0.0, guesses.scores[every], guesses.included[every]))
    looks = [
        (name, at, Guesses(scores=scores - at, included=included), made)
        for name, at, scores, included in cut
        for made in _made(len(scores), claimed, ratios=ratios)
    ]
    sure = 1.0 - (1.0 - confidence) / len(looks)
    found = []
    for name, at, shifted, made in looks:
        bound = _bound(shifted, claimed, made=made, confidence=sure)
        how = f"{name}, {made} guessed" if made is not None else name
        kept = f"a threshold that {int(setting.sum())} other canaries set"
        words = bound.assumptions
        if at is threshold:
            words = words.replace("one threshold (ratio 0) fixed in advance", kept)
        found.append(
            replace(bound, name=how, threshold=at, confidence=confidence, assumptions=words)
        )
    return sorted(found, key=_strength, reverse=True)


def perfect_bound(claimed: Claimed, *, canaries: int, ratios: bool, confidence: float) -> float:
    """What the best attack on a system that leaks all it may shows, with so many canaries.

    Without a mechanism that system is randomised response, and no other shows more.

    Args:
        claimed: of finite epsilon.
        canaries: how many, with those that set the threshold.
        ratios: as in `score_bounds`.
        confidence: the same.

    Returns:
        epsilon in nats, at the mean number of errors; one audit may find some more or less.

    >>> of = Claimed(epsilon=5.49, delta=1e-5)
    >>> [round(perfect_bound(of, canaries=m, ratios=False, confidence=0.95), 2)
    ...     for m in (500, 4000)]
    [4.0, 4.95]
    """
    if ratios and claimed.mechanism is not None:
        half = 0.5 + 0.5 * confidence
        return ideal(claimed.mechanism, canaries=canaries, delta=claimed.delta, confidence=half)
    guessed = canaries if ratios else canaries - canaries // EVERY
    counts = list(_made(guessed, claimed, ratios=ratios))
    share = 1.0 - (1.0 - confidence) / (len(counts) * (2 if ratios else 1))
    found = [0.0]
    for made in counts:
        assert made is not None  # noqa: S101 # all others are counted
        error = _least_error(claimed, made / guessed)
        wrong = round(made * error)
        coins = np.arange(guessed) % 2 == 0
        scores = np.where(coins, 1.0, -1.0)
        scores[:wrong] *= -1.0  # of the surest, which are the first of equal ones
        shown = Guesses(scores=scores, included=coins)
        found.append(_bound(shown, claimed, made=made, confidence=share).epsilon)
    return max(found)


def _made(canaries: int, claimed: Claimed, *, ratios: bool) -> Iterator[int | None]:
    """How many canaries each bound guesses; None where it has no choice."""
    if ratios and claimed.mechanism is not None:
        yield None
        return
    yield from sorted({canaries, guesses_made(canaries)})


def _bound(
    shifted: Guesses, claimed: Claimed, *, made: int | None, confidence: float
) -> LowerBound:
    claim, delta = claimed.mechanism, claimed.delta
    if claim is None:
        return one_run_pure(shifted, delta=delta, confidence=confidence, made=made)
    if made is None:
        return total_error(shifted, claim=claim, delta=delta, confidence=confidence)
    return one_run_f_dp(shifted, claim=claim, delta=delta, confidence=confidence, made=made)


def _least_error(claimed: Claimed, share: float) -> float:
    """Least share of wrong guesses among the surest `share` of all canaries."""
    claim, epsilon = claimed.mechanism, claimed.epsilon
    if claim is None:
        return (1.0 - claimed.delta) / (1.0 + np.exp(min(epsilon, 700.0)))
    return _error_of_surest(_curve(claim), share)


def _curve(claim: Claim) -> TradeOff:
    return trade_off(claim.rounds, adjacency=claim.adjacency)


def _error_of_surest(curve: TradeOff, share: float) -> float:
    """Of both sides alike: FPR a and TPR 1 - f(a), guessed together with probability `share`."""
    alarms = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, 4000)])
    found = 1.0 - curve.false_negative_rates(alarms)
    at = int(np.searchsorted(alarms + found, share))
    at = min(at, alarms.size - 1)
    guessed = float(alarms[at] + found[at])
    return 0.0 if guessed == 0.0 else float(alarms[at]) / guessed


def _strength(bound: LowerBound) -> tuple[float, float]:
    scale = bound.noise_scale
    return bound.epsilon, -np.inf if scale is None else -scale
