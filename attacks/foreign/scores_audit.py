"""From scores and coins to a verdict on a claim: the audit of whatever gives scores.

    consistent     no bound exceeds what is claimed
    contradicted   one does; of a true claim that has probability 1 - confidence at most
    not measured   not even a perfect audit of so many canaries shows a tenth of the claim
    nothing proven no epsilon is claimed: the bound stands by itself

Scores that were made once cannot be made again, so there is no second look here: at 95 % one true
claim in twenty is contradicted. Ask for 99.9 %, or audit with fresh canaries, before anybody acts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy._validate import within
from ...privacy.errors import InputError, InputTypeError
from ..audit.audited import Verdict
from ..bounds.guesses import Guesses
from ..bounds.lower_bounds import LowerBound
from ..bounds.power import LEAST_SHARE
from .claimed import Claimed, small
from .score_bounds import perfect_bound, score_bounds, thresholds_apart

__all__ = ["LEAST", "MOST", "Scored", "ScoresAudit", "audit_scores", "ideal_words"]

LEAST = 20  # canaries; fewer show nothing of any claim worth making
MOST = 1_000_000
_TOLD = 60  # canaries, from which on coins that repeat themselves are no chance, below 1e-8
MANY = 10  # times as many canaries: what these would show, where only a pair is claimed


@runtime_checkable
class Scored(Protocol):
    """Scores with their coins, such as `Planted.score` returns.

    Attributes:
        scores: (m,) higher for records that are in.
        included: (m,) bool.
    """

    @property
    def scores(self) -> NDArray[np.float64]:
        """(m,) higher for records that are in."""
        ...

    @property
    def included(self) -> NDArray[np.bool_]:
        """(m,) whether the coin put the canary in."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class ScoresAudit:
    """What scores say of a claim.

    Attributes:
        claimed: what they are held against.
        canaries: how many coins were tossed.
        inside: how many came up "in".
        ratios: whether the scores were taken for log-likelihood ratios.
        confidence: of all bounds together.
        ideal: what a perfect audit of so many canaries shows, in nats; None without a claim.
        ideal_of_many: the same of ten times as many, where only a pair is claimed.
        bounds: lower bounds, the largest first.
        verdict: of the largest.
    """

    claimed: Claimed
    canaries: int
    inside: int
    ratios: bool
    confidence: float
    ideal: float | None
    ideal_of_many: float | None
    bounds: Sequence[LowerBound]
    verdict: Verdict

    @property
    def epsilon(self) -> float:
        """The largest lower bound, in nats."""
        return self.bounds[0].epsilon

    @property
    def contradicted(self) -> bool:
        """Whether more leaked than is claimed."""
        return self.verdict is Verdict.CONTRADICTED

    def words(self) -> str:
        """What was found, as one sentence."""
        share = f"{100 * self.confidence:.6g} %"
        found = (
            f"epsilon is at least {_down(self.epsilon)} at delta {small(self.claimed.delta)} "
            f"({share} confidence, {self.canaries} canaries)"
        )
        if self.verdict is Verdict.NOTHING_PROVEN:
            return f"{found}; nothing is claimed to check it against"
        said = self.claimed.words()
        if self.verdict is Verdict.NOT_MEASURED:
            return f"{said} is not measured: {found}, and no audit of so many could show a tenth"
        if self.verdict is Verdict.CONSISTENT:
            return f"{found}: consistent with the claim of {said}"
        scale = self.bounds[0].noise_scale
        noise = "" if scale is None else f"; the noise is at most {_up(scale)} times that declared"
        return (
            f"{found}{noise}: this contradicts the claim of {said}. Of a true claim an audit finds "
            f"so with probability at most {1.0 - self.confidence:.2g}"
        )

    def dump(self) -> dict[str, Any]:
        """The audit as an object for JSON."""
        return {
            "verdict": str(self.verdict),
            "words": self.words(),
            "claimed_epsilon": self.claimed.epsilon if self.claimed.is_tested else None,
            "delta": self.claimed.delta,
            "mechanism": None
            if self.claimed.mechanism is None
            else [
                {"noise": one.noise_multiplier, "rate": one.moves.rate, "rounds": count}
                for one, count in self.claimed.mechanism.events.items()
            ],
            "measured_epsilon": self.epsilon,
            "ideal_epsilon": self.ideal,
            "ideal_epsilon_of_ten_times_as_many": self.ideal_of_many,
            "confidence": self.confidence,
            "canaries": self.canaries,
            "included": self.inside,
            "ratios": self.ratios,
            "bounds": [
                {
                    "name": one.name,
                    "epsilon": one.epsilon,
                    "guesses": one.guesses,
                    "false_alarms": one.false_alarms,
                    "misses": one.misses,
                    "threshold": one.threshold,
                    "noise_scale": one.noise_scale,
                    "assumptions": one.assumptions,
                }
                for one in self.bounds
            ],
        }

    def __repr__(self) -> str:
        """What a perfect audit shows, and what this one does."""
        return f"{ideal_words(self)}\n{self.words()}"


def audit_scores(
    scores: ArrayLike | Scored,
    included: ArrayLike | None = None,
    *,
    claim: Claimed,
    confidence: float = 0.95,
    split: ArrayLike | None = None,
    ratios: bool = False,
) -> ScoresAudit:
    """Check the scores of canaries against a claim.

    Args:
        scores: (m,) one a canary, higher for those that are in; or what `Planted.score` returns.
        included: (m,) bool, whether a fair coin of its own put the canary in; left out with the
            latter.
        claim: epsilon at delta, and the mechanism where it is known.
        confidence: of the bound, in (0.5, 1); a true claim is contradicted with probability at most
            1 - confidence.
        split: (m,) bool, the canaries that set the threshold for the others, chosen without their
            scores and coins; a fifth by default.
        ratios: whether scores are log-likelihood ratios of "in" against "out" at what is claimed,
            in nats, of canaries that do not disturb each other. Then 0 is a threshold, too, and
            errors count as independent.

    Returns:
        Bounds, what a perfect audit shows, and the verdict.

    Raises:
        ValueError: fewer than 20 canaries or more than a million, scores that are no numbers or
            all equal, coins that were not fair, a split that leaves too few on a side.
        TypeError: coins that are no truth values, or no claim.

    Source: Steinke et al. 2023 and Mahloujifar et al. 2025; see `score_bounds`.

    >>> from overhear.attacks.foreign.claimed import claimed
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(2000) < 0.5
    >>> scores = coins * 1.4 + rng.normal(size=2000) - 0.7
    >>> found = audit_scores(scores, coins, claim=claimed(epsilon=0.5, delta=1e-5))
    >>> str(found.verdict), round(found.epsilon, 2)
    ('contradicted', 2.84)
    """
    if not isinstance(claim, Claimed):
        raise InputTypeError(
            f"claim={claim!r:.60} must be a Claimed, such as claimed(epsilon=3, delta=1e-5)"
        )
    within("confidence", confidence, "(0.5, 1)", ", such as 0.95")
    guesses = _guesses(scores, included)
    setting = _split(split, guesses)
    count = guesses.scores.size
    best = many = None
    if claim.is_tested:
        how: dict[str, Any] = {"ratios": ratios, "confidence": confidence}
        best = perfect_bound(claim, canaries=count, **how)
        if claim.mechanism is None:
            many = perfect_bound(claim, canaries=MANY * count, **how)
    found = score_bounds(guesses, claim, setting=setting, ratios=ratios, confidence=confidence)
    return ScoresAudit(
        claimed=claim,
        canaries=count,
        inside=int(guesses.included.sum()),
        ratios=ratios,
        confidence=confidence,
        ideal=best,
        ideal_of_many=many,
        bounds=found,
        verdict=_verdict(found, claim, best),
    )


def ideal_words(found: ScoresAudit) -> str:
    """What a perfect audit of so many canaries shows, as one sentence."""
    if found.ideal is None:
        return f"Nothing is claimed; {found.canaries} canaries bound epsilon from below."
    shown = f"A perfect audit of {found.canaries} canaries shows about {found.ideal:.2f} of"
    said = f"{shown} {found.claimed.words()}"
    if found.claimed.mechanism is not None:
        return f"{said}."
    return (
        f"{said}, if the system leaks as randomised response does, and less of any other; "
        f"{MANY * found.canaries} canaries show {found.ideal_of_many:.2f}. A claim with its "
        "mechanism takes fewer."
    )


def _verdict(bounds: Sequence[LowerBound], claim: Claimed, best: float | None) -> Verdict:
    if not claim.is_tested or best is None:
        return Verdict.NOTHING_PROVEN
    if any(one.exceeds(claim.epsilon) for one in bounds):
        return Verdict.CONTRADICTED
    if max(best, bounds[0].epsilon) < LEAST_SHARE * claim.epsilon:
        return Verdict.NOT_MEASURED
    return Verdict.CONSISTENT


def _guesses(scores: ArrayLike | Scored, included: ArrayLike | None) -> Guesses:
    if isinstance(scores, Scored):
        if included is not None:
            raise InputError("included comes with these scores; leave it out")
        values, coins = scores.scores, scores.included
        return _checked(np.asarray(values, dtype=np.float64), np.asarray(coins))
    if included is None:
        raise InputError("included is missing: give one truth value a score, its canary's coin")
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError(f"scores of {type(scores).__name__} must be (m,) numbers") from None
    return _checked(values, np.asarray(included))


def _checked(values: NDArray[np.float64], coins: NDArray[Any]) -> Guesses:
    """The guesses of an audit, refused where they are no evidence."""
    if coins.dtype.kind in "iu" and np.isin(coins, (0, 1)).all():
        coins = coins.astype(bool)
    if values.ndim == 1 and not LEAST <= values.size <= MOST:
        raise InputError(
            f"{values.size} canaries were scored; an audit takes from {LEAST} to {MOST}, and some "
            "500 show most of a claim with its mechanism"
        )
    guesses = Guesses(scores=values, included=coins)
    inside = int(guesses.included.sum())
    if inside in (0, values.size):
        raise InputError(
            f"{inside} of {values.size} canaries are included; toss a fair coin for each, so that "
            "some are in and some are out"
        )
    if np.all(values == values[0]):
        raise InputError(
            f"all {values.size} scores are {values[0]:g}, so that no threshold tells canaries "
            "apart; score each canary by itself"
        )
    _check_not_doubled(guesses)
    return guesses


def _check_not_doubled(guesses: Guesses) -> None:
    """Refuse rows that occur several times as a whole: fair coins do not repeat themselves.

    In any order, where rows take so many values that all counts are multiples by no chance.
    """
    pairs = np.stack([guesses.scores, guesses.included.astype(np.float64)])
    _, counts = np.unique(pairs, axis=1, return_counts=True)
    times = int(np.gcd.reduce(counts))
    rows = pairs.shape[1]
    in_order = rows % 2 == 0 and rows >= _TOLD and _repeats(pairs)
    if in_order or (times > 1 and counts.size >= _TOLD // 2):
        often = "twice" if in_order or times == 2 else f"{times} times"
        raise InputError(
            f"{rows} rows hold every canary {often}; "
            "give each canary once, since one that is repeated counts as evidence that is not there"
        )


def _repeats(pairs: NDArray[np.float64]) -> bool:
    """Whether the second half is the first again, or each row is followed by itself."""
    half = pairs.shape[1] // 2
    return np.array_equal(pairs[:, :half], pairs[:, half:]) or np.array_equal(
        pairs[:, ::2], pairs[:, 1::2]
    )


def _split(split: ArrayLike | None, guesses: Guesses) -> NDArray[np.bool_]:
    count = guesses.scores.size
    if split is None:
        return thresholds_apart(count)
    setting = np.asarray(split)
    if setting.dtype != np.bool_ or setting.shape != (count,):
        raise InputError(
            f"split of {setting.dtype} {setting.shape} must hold a truth value for each of the "
            f"{count} canaries: true for those that set the threshold"
        )
    chosen = int(setting.sum())
    if chosen < 4 or count - chosen < LEAST // 2:
        raise InputError(
            f"split lets {chosen} of {count} canaries set the threshold; at least 4 must, and at "
            f"least {LEAST // 2} be left to be guessed"
        )
    return setting


def _down(value: float) -> str:
    """Three digits, never rounded up."""
    if value == 0.0:
        return "0"
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale) / scale:.3g}"


def _up(value: float) -> str:
    if value == 0.0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{math.ceil(value * scale) / scale:.3g}"
