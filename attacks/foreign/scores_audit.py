"""From scores and coins to a verdict on a claim: the audit of whatever gives scores.

    consistent     no bound exceeds what is claimed
    contradicted   one does; of a true claim that has probability 1 - confidence at most
    not measured   not even a perfect audit of so many canaries shows a tenth of the claim
    nothing proven no epsilon is claimed: the bound stands by itself

Scores that were made once cannot be made again, so there is no second look here: at 95 % one true
claim in twenty is contradicted. Ask for 99.9 %, or audit with fresh canaries, before anybody acts.
"""

from __future__ import annotations

import hashlib
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.accounting.trade_off import trade_off
from ...privacy.errors import InputError, InputTypeError, within
from ...privacy.files import read_bounded
from ...privacy.formats.toml_text import CsvRows
from ..audit.audited import Verdict
from ..bounds.lower_bounds import LEAST_SHARE, Guesses, LowerBound
from ..bounds.one_run_bounds import guesses_made, ideal_ranked, one_run_f_dp, one_run_pure, ranked
from .claimed import Claimed, small

# Lower bounds on epsilon from scores that came from elsewhere, and what a perfect audit shows.
#
#     Steinke, Nasr, Jagielski. Privacy auditing with one (1) training run. NeurIPS 2023.
#     Mahloujifar, Melis, Chaudhuri. Auditing f-differential privacy in one run. ICML 2025.
#     Kairouz, Oh, Viswanath. The composition theorem for differential privacy. ICML 2015:
#         randomised response is the mechanism of (epsilon, delta) that leaks most.
#
# A threshold cuts the scores; those above are guessed "in". Two ways to have one without looking at
# any coin: 0, if the scores are likelihood ratios, and the middle of their order, as half of the
# coins put in. There the surest are those whose rank is farthest from the middle.
#
# | scores | claim | bound at each threshold | canaries independent |
# |---|---|---|---|
# | ratios | mechanism | `ranked` | assumed |
# | others | mechanism | `one_run_f_dp` of the surest, and of all | no |
# | any | epsilon alone | `one_run_pure` of the surest, and of all | no |
#
# **Why no coin is needed.** The theorems hold for any guesses that are made of what left the
# training and of randomness of one's own, as many as were fixed before; ranks and their middle are
# made of scores, and scores of what left. So all canaries are guessed, and none is spent on a
# threshold. What scores are of does not enter: the surest of exponentials are those of ratios.
#
# The risk is shared evenly among the bounds of a row (C. E. Bonferroni 1936): with both thresholds,
# each has half of it. They hold together, so their largest holds.
#
# Ratios are independent where canaries are orthogonal and the noise among them is white;
# losses of a final model disturb each other, and are never taken for ratios.

_WIDE = 8.0  # times the median gap, by which the widest stands out
_OF_ALL = ("delta", "confidence", "canaries")  # the same of every bound of an audit


def order_of(guesses: Guesses) -> NDArray[np.int64]:
    """(m,) an order of the canaries that tells nothing of their coins, drawn by a digest of all.

    A file may be sorted by its coins. Then a shuffle that is fixed in advance tells of the coins of
    each place, by which equal scores would be told apart: here in 29 of 100 true audits.

    >>> some = Guesses(scores=np.arange(4.0), included=np.array([True, True, False, False]))
    >>> order_of(some).tolist()
    [0, 2, 3, 1]
    """
    digest = hashlib.blake2b(guesses.scores.tobytes() + guesses.included.tobytes(), digest_size=16)
    drawn = np.random.default_rng(int.from_bytes(digest.digest(), "big"))
    return drawn.permutation(guesses.scores.size)


def score_bounds(
    guesses: Guesses, claimed: Claimed, *, ratios: bool, confidence: float
) -> list[LowerBound]:
    """All bounds that hold together at one confidence, the largest first.

    Args:
        guesses: (m,) scores and coins, in an order that tells nothing of the coins.
        claimed: whose mechanism the errors are read on, where it has one.
        ratios: whether scores are log-likelihood ratios at what is claimed, of canaries that do
            not disturb each other.
        confidence: of all of them together.
    """
    ranks, at = _from_the_middle(guesses.scores)
    middle = Guesses(scores=ranks, included=guesses.included)
    cuts = [("middle", at, middle), *([("ratio 0", 0.0, guesses)] if ratios else [])]
    counts = _made(len(ranks), claimed, ratios=ratios)
    sure = 1.0 - (1.0 - confidence) / (len(cuts) * len(counts))
    found = []
    for name, at, cut in cuts:
        for made in counts:
            bound = _bound(cut, claimed, made=made, confidence=sure)
            how = f"{name}, {made} guessed" if made is not None else name
            words = bound.assumptions
            if cut is middle:
                fixed = "one threshold (ratio 0) fixed in advance"
                words = words.replace(fixed, "the threshold in the middle of the scores")
            bound = replace(bound, name=how, threshold=at, confidence=confidence)
            found.append(replace(bound, assumptions=words))
    return sorted(found, key=lambda bound: bound.strength, reverse=True)


def _from_the_middle(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """How far each rank is from the middle, above 0 where "in" is guessed, and the cut.

    The cut is where two scores that differ are next to the middle; or the widest gap within 4
    deviations of how many are in, where it stands out, as of scores that are all told apart.

    >>> _from_the_middle(np.array([0.1, 9.0, 0.1, 0.5, 0.1]))
    (array([-3.,  3., -2.,  2., -1.]), 0.3)
    """
    order, many = np.argsort(scores, kind="stable"), scores.size
    held = scores[order]
    with np.errstate(invalid="ignore"):  # of two that are infinite alike
        gaps = np.nan_to_num(0.25 * held[1:] - 0.25 * held[:-1], posinf=1e307)
    away = np.abs(np.arange(1, many) - 0.5 * many)
    near = np.where(away <= 2.0 * math.sqrt(many), gaps, 0.0)
    wide = near.max() / _WIDE > np.median(near[near > 0.0]) if near.any() else False
    at = int(near.argmax() if wide else np.where(gaps > 0.0, away, math.inf).argmin())
    far = np.abs(np.arange(many) - 0.5 * (many - 1)) + 1.0
    found = np.empty(many)
    found[order] = np.where(np.arange(many) <= at, -far, far)
    low, high = float(held[at]), float(held[at + 1])
    tried = (0.5 * low + 0.5 * high, low, high)
    return found, next((cut for cut in tried if math.isfinite(cut)), 0.0)


def perfect_bound(claimed: Claimed, *, canaries: int, ratios: bool, confidence: float) -> float:
    """What the best attack on a system that leaks all it may shows, with so many canaries.

    Without a mechanism that system is randomised response, and no other shows more.

    Args:
        claimed: of finite epsilon.
        canaries: how many.
        ratios, confidence: as in `score_bounds`.

    Returns:
        epsilon in nats, at the mean number of errors; one audit may find some more or less.

    >>> of = Claimed(epsilon=5.49, delta=1e-5)
    >>> [round(perfect_bound(of, canaries=m, ratios=False, confidence=0.95), 2)
    ...     for m in (500, 4000)]
    [4.22, 5.01]
    """
    if ratios and claimed.mechanism is not None:
        half = 0.5 + 0.5 * confidence
        return ideal_ranked(
            claimed.mechanism, canaries=canaries, delta=claimed.delta, confidence=half
        )
    counts = _made(canaries, claimed, ratios=ratios)
    share = 1.0 - (1.0 - confidence) / (len(counts) * (2 if ratios else 1))
    found = [0.0]
    for made in counts:
        assert made is not None  # noqa: S101 # all others are counted
        error = _least_error(claimed, made / canaries)
        wrong = round(made * error)
        coins = np.arange(canaries) % 2 == 0
        scores = np.where(coins, 1.0, -1.0)
        scores[:wrong] *= -1.0  # of the surest, which are the first of equal ones
        shown = Guesses(scores=scores, included=coins)
        found.append(_bound(shown, claimed, made=made, confidence=share).epsilon)
    return max(found)


def _made(canaries: int, claimed: Claimed, *, ratios: bool) -> Sequence[int | None]:
    """How many canaries each bound guesses; None where it has no choice."""
    counted = claimed.mechanism is None or not ratios
    return sorted({canaries, guesses_made(canaries)}) if counted else [None]


def _bound(
    shifted: Guesses, claimed: Claimed, *, made: int | None, confidence: float
) -> LowerBound:
    claim, delta = claimed.mechanism, claimed.delta
    if claim is None:
        return one_run_pure(shifted, delta=delta, confidence=confidence, made=made)
    if made is None:
        return ranked(shifted, claim=claim, delta=delta, confidence=confidence)
    return one_run_f_dp(shifted, claim=claim, delta=delta, confidence=confidence, made=made)


def _least_error(claimed: Claimed, share: float) -> float:
    """Least share of wrong guesses among the surest `share` of all canaries."""
    claim, epsilon = claimed.mechanism, claimed.epsilon
    if claim is None:
        return (1.0 - claimed.delta) / (1.0 + np.exp(min(epsilon, 700.0)))
    # Of both sides alike: FPR a and TPR 1 - f(a), guessed together with probability `share`.
    alarms = np.concatenate([[0.0], np.geomspace(1e-12, 1.0, 4000)])
    curve = trade_off(claim.rounds, adjacency=claim.adjacency)
    found = 1.0 - curve.false_negative_rates(alarms)
    at = min(int(np.searchsorted(alarms + found, share)), alarms.size - 1)
    guessed = float(alarms[at] + found[at])
    return 0.0 if guessed == 0.0 else float(alarms[at]) / guessed


LEAST = 20  # canaries; fewer show nothing of any claim worth making
MOST = 1_000_000
_TOLD = 30  # kinds of rows, from which on counts that are all even are no chance, below 1e-8
MANY = 10  # times as many canaries: what these would show, where only a pair is claimed


@runtime_checkable
class Scored(Protocol):
    """Scores with their coins, such as `Planted.score` returns."""

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

    def measured_words(self) -> str:
        """The bound that was found, without what follows."""
        return (
            f"epsilon is at least {_digits(self.epsilon, math.floor)} at delta "
            f"{small(self.claimed.delta)} ({100 * self.confidence:.6g} % confidence, "
            f"{self.canaries} canaries)"
        )

    def words(self) -> str:
        """What was found, as one sentence."""
        found = self.measured_words()
        if self.verdict is Verdict.NOTHING_PROVEN:
            return f"{found}; nothing is claimed to check it against"
        said = self.claimed.words()
        if self.verdict is Verdict.NOT_MEASURED:
            return f"{said} is not measured: {found}, and no audit of so many could show a tenth"
        if self.verdict is Verdict.CONSISTENT:
            return f"{found}: consistent with the claim of {said}"
        scale = self.bounds[0].noise_scale
        most = "" if scale is None else _digits(scale, math.ceil)
        noise = most and f"; the noise is at most {most} times that declared"
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
                {key: of for key, of in asdict(bound).items() if key not in _OF_ALL}
                for bound in self.bounds
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
    ratios: bool = False,
) -> ScoresAudit:
    """Check the scores of canaries against a claim.

    Args:
        scores: (m,) one a canary, higher for those that are in, made without their coins;
            or what `Planted.score` returns.
        included: (m,) bool, whether a fair coin of its own put the canary in; left out with the
            latter.
        claim: epsilon at delta, and the mechanism where it is known.
        confidence: of the bound, in (0.5, 1); a true claim is contradicted with probability at most
            1 - confidence.
        ratios: whether scores are log-likelihood ratios of "in" against "out" at what is claimed,
            in nats, of canaries that do not disturb each other. Then 0 is a threshold, too, and
            what is seen of each counts as independent of the others.

    Returns:
        Bounds, what a perfect audit shows, and the verdict.

    Raises:
        ValueError: fewer than 20 canaries or more than a million, scores that are no numbers or
            all equal, or coins that were not fair.
        TypeError: coins that are no truth values, or no claim.

    Source: Steinke et al. 2023 and Mahloujifar et al. 2025; see `score_bounds`.

    >>> from overhear.attacks.foreign.claimed import claimed
    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(2000) < 0.5
    >>> scores = coins * 1.4 + rng.normal(size=2000) - 0.7
    >>> found = audit_scores(scores, coins, claim=claimed(epsilon=0.5, delta=1e-5))
    >>> str(found.verdict), round(found.epsilon, 2)
    ('contradicted', 3.07)
    """
    if not isinstance(claim, Claimed):
        raise InputTypeError(
            f"claim={claim!r:.60} must be a Claimed, such as claimed(epsilon=3, delta=1e-5)"
        )
    within("confidence", confidence, "(0.5, 1)", ", such as 0.95")
    guesses = _guesses(scores, included)
    count, order = guesses.scores.size, order_of(guesses)
    guesses = Guesses(scores=guesses.scores[order], included=guesses.included[order])
    # What a perfect audit of so many canaries would show, and of many more.
    best = many = None
    if claim.is_tested:
        how: dict[str, Any] = {"ratios": ratios, "confidence": confidence}
        best = perfect_bound(claim, canaries=count, **how)
        if claim.mechanism is None:
            many = perfect_bound(claim, canaries=MANY * count, **how)
    lower_bounds = score_bounds(guesses, claim, ratios=ratios, confidence=confidence)
    return ScoresAudit(
        claimed=claim,
        canaries=count,
        inside=int(guesses.included.sum()),
        ratios=ratios,
        confidence=confidence,
        ideal=best,
        ideal_of_many=many,
        bounds=lower_bounds,
        verdict=_verdict(lower_bounds, claim, best),
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
    if any(bound.exceeds(claim.epsilon) for bound in bounds):
        return Verdict.CONTRADICTED
    if max(best, bounds[0].epsilon) < LEAST_SHARE * claim.epsilon:
        return Verdict.NOT_MEASURED
    return Verdict.CONSISTENT


def _guesses(scores: ArrayLike | Scored, included: ArrayLike | None) -> Guesses:
    """The guesses of an audit, refused where they are no evidence."""
    if isinstance(scores, Scored):
        if included is not None:
            raise InputError("included comes with these scores; leave it out")
        included, scores = scores.included, scores.scores
    elif included is None:
        raise InputError("included is missing: give one truth value a score, its canary's coin")
    try:
        values = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputTypeError(f"scores of {type(scores).__name__} must be (m,) numbers") from None
    coins = np.asarray(included)
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

    In any order, where rows take so many values that all counts are multiples by no chance. Of
    scores of few values, such as labels, rows that are equal are nothing odd.
    """
    pairs = np.stack([guesses.scores, guesses.included.astype(np.float64)])
    _, counts = np.unique(pairs, axis=1, return_counts=True)
    times = int(np.gcd.reduce(counts))
    if times > 1 and counts.size >= _TOLD:
        often = "twice" if times == 2 else f"{times} times"
        raise InputError(
            f"{pairs.shape[1]} rows hold every canary {often}; "
            "give each canary once, since one that is repeated counts as evidence that is not there"
        )


def _digits(value: float, rounded: Callable[[float], int]) -> str:
    """Three digits, rounded to one side alone: by `math.floor` or by `math.ceil`."""
    if value == 0.0 or math.isinf(value):
        return f"{value:g}"
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return f"{rounded(value * scale) / scale:.3g}"


# A file of scores: `score,included[,canary]`, one row a canary, with a bound on its size.


_MOST_BYTES = 128 << 20
_COLUMNS = ("score", "included", "canary")
_COINS = {"1": True, "true": True, "in": True, "0": False, "false": False, "out": False}


class ScoreFile(NamedTuple):
    """(m,) each: scores and coins."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]


def read_scores(path: Path) -> ScoreFile:
    r"""Read a file of scores.

    Args:
        path: comma-separated text in UTF-8 with a line of names.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: too large, no text, a column that is missing, unknown or there twice, a value
            that is none, or a canary that is named twice.
    """
    try:
        text = read_bounded(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(
            f"{path} is no text in UTF-8; save the scores as comma-separated text"
        ) from None
    return _read(path, CsvRows(path, StringIO(text, newline="")))


def _read(path: Path, rows: CsvRows) -> ScoreFile:
    names = [name.strip().lower() for name in next(rows, [])]
    _check_names(path, names)
    scores, coins, seen = list[float](), list[bool](), set[str]()
    # One canary a line, each of them once.
    for row in rows:
        if not row:
            continue
        where = f"{path}, line {rows.line}"
        if len(row) != len(names):
            raise InputError(f"{where}: {len(row)} values for {len(names)} columns")
        if len(scores) == MOST:
            raise InputError(f"{path} has more than {MOST} canaries; give a part of them")
        of = dict(zip(names, (value.strip() for value in row), strict=True))
        scores.append(_score(where, of["score"]))
        coins.append(_coin(where, of["included"]))
        if "canary" in of:
            name = unicodedata.normalize("NFC", of["canary"])  # names that look alike are one
            if name in seen:
                raise InputError(f"{where}: canary {of['canary']!r:.40} was there; give each once")
            seen.add(name)
    return ScoreFile(
        scores=np.asarray(scores, dtype=np.float64), included=np.asarray(coins, dtype=np.bool_)
    )


def _check_names(path: Path, names: Sequence[str]) -> None:
    expected = f"{path} must begin with the line score,included or score,included,canary"
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{expected}; the column {name!r:.40} is there twice")
        if name not in _COLUMNS:
            raise InputError(f"{expected}; there is a column {name!r:.40}")
    for name in _COLUMNS[:2]:
        if name not in names:
            raise InputError(f"{expected}; the column {name!r} is missing")


def _score(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{where}: score {text!r:.40} must be a number") from None
    if np.isnan(value):
        raise InputError(
            f"{where}: the score is not a number; correct the run, since a canary that is left out "
            "breaks the count"
        )
    return value


def _coin(where: str, text: str) -> bool:
    if text.lower() not in _COINS:
        raise InputError(f"{where}: included {text!r:.40} must be one of {', '.join(_COINS)}")
    return _COINS[text.lower()]
