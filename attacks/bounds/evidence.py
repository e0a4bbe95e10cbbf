"""Evidence against a claim as the wealth of one who bets on it, so that one may stop at any time.

    Ville. Etude critique de la notion de collectif. 1939: P(sup_t W_t >= 1 / a) <= a.
    Shafer. Testing by betting. J. R. Statist. Soc. A 184 (2021).
    Gonzalez, Dulce-Rubio, Ramdas, Ribero. Sequentially auditing differential privacy.
        arXiv:2509.07055: an e-process against (epsilon, delta), whatever the number of samples.

    p = (1 - TV) / 2           least probability of an error that the claim allows any guesser
    bet s of a canary          pays 1 - s if it is guessed wrong, 1 + s p / (1 - p) if right
    W = 1/4 mean_s prod (errors at score 0) + 1/4 mean_s prod (errors at a threshold learned before)
        + 1/2 sum_j 2^-j look_j
    look_j of the j-th audit   1 before it;  then (1 / r) [looked at again], which has probability
                               at most r;  then times (1 / a_j) [a second bound at 1 - a_j exceeds]
    contradicted               W >= tested / (.9 RISK); the rest is for single messages

| symbol | name here | unit |
|---|---|---|
| p | least_error | probability |
| s | BETS | share of p that is staked on not being erred |
| W | Evidence.odds | to 1 |
| r, a_j | risk, second_risk | probability |

**Why it is valid.** Let F be what was seen before a canary is guessed, its own coin and noise not.
Under the claim P(wrong | F) = p' >= p, for any guesser and so at any threshold that was chosen from
F. A bet's expected payoff given F is p' (1 - s) + (1 - p') (1 + s p / (1 - p)), which falls in p'
and is 1 at p. The product over canaries is a supermartingale that begins at 1. So is each look: it
is bet before its canaries are played, at the probability that the claim allows it at most. A
weighted mean of such products, with weights fixed beforehand, is one too, and Ville's inequality
bounds the probability that it *ever* reaches 1 / a by a: an audit may stop when it does, and may go
on later with what it has. Over the adversaries that are tested, and all single messages, the risks
add up to RISK at most.

Where we differ from the paper: that one bets on a distance between samples of outputs under two
data sets; here one bets on the errors of the most powerful test, whose least rate the claim names.
Half of the stake plays the two looks of a fixed size, which are more powerful at that size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from ...privacy.errors import InputError, within
from .lower_bounds import Guesses, LowerBound, best_threshold, check_confidence, total_error
from .mechanism import Claim, total_variation
from .one_run_bounds import ranked

BETS = (*(2.0**-k for k in range(7, 0, -1)), 0.75, 0.875, 0.9375, 0.984375)
RISK = 0.001  # that audits of a sound engine ever contradict, of all adversaries together
LINKS = 0.1  # share of a risk that all single messages have together
_OF_CLAIMS = (1.0 - LINKS) * RISK
_NOTHING = (0.0,) * len(BETS)
_ROUNDING = 1e-9  # of a logarithm, where a look is just decisive


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What was won by betting against one claim, over all audits so far.

    Attributes:
        at_zero: (bets,) log of what each bet has become, on errors at score 0.
        learned: (bets,) the same at thresholds that were learned from earlier canaries.
        looks: what the stake on each audit's two looks has become.
        canaries: how many were bet on.

    Raises:
        ValueError: as many bets as there are, none of them undefined, and looks of at least 0.
    """

    at_zero: Sequence[float] = _NOTHING
    learned: Sequence[float] = _NOTHING
    looks: Sequence[float] = field(default=())
    canaries: int = 0

    def __post_init__(self) -> None:
        """Refuse what no audit can have won."""
        for name, held in (("at_zero", self.at_zero), ("learned", self.learned)):
            if len(held) != len(BETS) or any(math.isnan(x) or x == math.inf for x in held):
                raise InputError(f"{name}={held} must hold {len(BETS)} logarithms of a wealth")
        if not all(0.0 <= look < math.inf for look in self.looks):
            raise InputError(f"looks={self.looks} must be finite and at least 0")

    @property
    def log_odds(self) -> float:
        """Natural logarithm of `odds`, which may be too large for a float."""
        left = 0.5 ** len(self.looks)
        of_looks = left + sum(0.5**j * look for j, look in enumerate(self.looks, start=1))
        terms = [math.log(0.25) + _log_mean(held) for held in (self.at_zero, self.learned)]
        terms.append(math.log(0.5 * of_looks))  # some of it is always left for audits to come
        return float(np.logaddexp.reduce(terms))

    @property
    def odds(self) -> float:
        """The wealth that a stake of 1 has become; above 1/a with probability at most a, ever."""
        return math.exp(min(self.log_odds, 700.0))


def after(
    evidence: Evidence, guesses: Guesses, *, claim: Claim, threshold: float | None
) -> Evidence:
    """The evidence after more canaries, guessed at 0 and at a threshold chosen before them.

    Args:
        evidence: before.
        guesses: (m,) scores and coins of canaries that the threshold does not depend on; their
            order says nothing of them.
        claim: of the adversary.
        threshold: in nats, finite; if None, every fifth canary chooses it for the others.

    Raises:
        ValueError: the threshold is not finite.
    """
    others, least = guesses, least_error(claim)
    if threshold is None:
        chosen = np.arange(guesses.scores.size) % EVERY == 0
        threshold = best_threshold(guesses.scores[chosen], guesses.included[chosen])
        others = Guesses(scores=guesses.scores[~chosen], included=guesses.included[~chosen])
    within("threshold", threshold, "(-inf, inf)", ", such as 0")
    return replace(
        evidence,
        at_zero=_played(evidence.at_zero, guesses, 0.0, least),
        learned=_played(evidence.learned, others, threshold, least),
        canaries=evidence.canaries + guesses.scores.size,
    )


@lru_cache(maxsize=256)
def least_error(claim: Claim) -> float:
    """Least probability of a wrong guess of a fair coin that the claim allows, rounded down."""
    return max(0.0, 0.5 * (1.0 - total_variation(claim)))


def second_risk(attempt: int, *, risk: float, tested: int) -> float:
    """Risk of a second look: one that exceeds is decisive by itself; at most RISK.

    Args:
        attempt: the how manieth audit of this claim, from 1.
        risk: that a first look leads to a second although the claim holds.
        tested: how many claims the audit holds something against.
    """
    return min(RISK, 0.5 * 0.5**attempt * _OF_CLAIMS / (risk * tested))


def second_risk_of_links(attempt: int, *, risk: float) -> float:
    """The same for all single messages together: over all audits they add up to LINKS * RISK."""
    return min(RISK, 0.5**attempt * LINKS * RISK / risk)


def decisive(evidence: Evidence, *, tested: int) -> bool:
    """Whether the claim is contradicted, among so many that are tested.

    Raises:
        ValueError: nothing is tested.
    """
    within("tested", tested, "[1, inf)")
    return evidence.log_odds >= math.log(tested / _OF_CLAIMS) - _ROUNDING


def _played(
    held: Sequence[float], guesses: Guesses, threshold: float, least: float
) -> tuple[float, ...]:
    """Logs of the bets after so many guesses; a score at the threshold is wrong either way."""
    scores, included = guesses.scores, guesses.included
    wrong = np.where(included, scores <= threshold, scores >= threshold)
    errors, right = int(wrong.sum()), int((~wrong).sum())
    won = (math.log1p(least * stake / (1.0 - least)) for stake in BETS)
    lost = (math.log1p(-stake) for stake in BETS)
    return tuple(x + errors * a + right * b for x, a, b in zip(held, lost, won, strict=True))


def _log_mean(logs: Sequence[float]) -> float:
    return float(np.logaddexp.reduce(np.asarray(logs))) - math.log(len(logs))


# A threshold that a fifth of the canaries set and the others are guessed by; and the headline.
#
# The score takes the declared noise for true. Where the engine's noise is another, or a record
# counts more than it may, the ratio 0 is not the best threshold, and a bound at 0 can even fall
# where more leaks. A threshold that is set on canaries of its own is as good as one that is fixed
# in advance: given it, the errors of the others are independent and none is less likely than the
# best guesser's.
#
#     tau        fewest errors among every fifth canary
#     held out   P(error at tau) <= u(errors of the others)         risk SHARE * (1 - confidence)
#     headline   max(at ratio 0, held out)              the rest of the risk
#
# Both hold together by the union bound (C. E. Bonferroni 1936). The share is small because it takes
# from the bound of a sound run, which sits at ratio 0, and a fault that moves the threshold is
# large: at one twentieth the first bound is at 95.25 % in place of 95 %, which costs .4 % of
# epsilon at epsilon 1 and 5,000 canaries, and less above.

SHARE = 0.05  # of the risk that the held-out threshold has in the headline
EVERY = 5  # one canary of so many sets the threshold


def headline(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Return the larger of the bound at ratio 0 and `held_out`, at one confidence for both.

    Args:
        guesses: (m,) scores and coins.
        claim: the declared mechanism; only its family matters.
        delta: strictly between 0 and 1.
        confidence: that neither is above the truth, strictly between 0 and 1.

    Raises:
        ValueError: delta or confidence is out of range.
    """
    check_confidence(confidence)
    risk = 1.0 - confidence
    fixed = ranked(guesses, claim=claim, delta=delta, confidence=1.0 - (1.0 - SHARE) * risk)
    other = held_out(guesses, claim=claim, delta=delta, confidence=1.0 - SHARE * risk)
    best = max(fixed, other, key=lambda bound: bound.strength)
    return replace(best, confidence=confidence)


def held_out(guesses: Guesses, *, claim: Claim, delta: float, confidence: float) -> LowerBound:
    """Bound epsilon at a threshold that every fifth canary sets, by the errors of the others.

    Args:
        claim: as in `total_error`.
        confidence: strictly between 0 and 1.

    Returns:
        The bound; 0 where no noise is rejected. Of fewer than ten canaries the threshold is 0.

    Raises:
        ValueError: delta or confidence is out of range.
    """
    scores, included = guesses.scores, guesses.included
    setting = np.zeros(scores.size, dtype=bool)
    setting[::EVERY] = scores.size >= 2 * EVERY
    threshold = best_threshold(scores[setting], included[setting])
    rest = Guesses(scores=scores[~setting] - threshold, included=included[~setting])
    lower_bound = total_error(rest, claim=claim, delta=delta, confidence=confidence)
    kept = f"a threshold that {int(setting.sum())} other canaries set"
    return replace(
        lower_bound,
        name="held-out threshold",
        canaries=scores.size,
        threshold=threshold,
        assumptions=lower_bound.assumptions.replace(
            "one threshold (ratio 0) fixed in advance", kept
        ),
    )
