"""Membership inference on models of the user's own training, of which `train` is all that is known.

    records      C of the data, drawn at random, are at stake; all others are in every data set
    references   K models, each trained with half of these
    the model    one more, in which a fair coin of its own decides about each

The scores are those of `attacks.membership.scores`. Since coins decide, and nothing else, right
guesses bound epsilon from below, by a theorem that does without independent errors
(`score_bounds`); rates and their intervals by themselves contradict nothing.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Subset

from ...privacy.errors import InputError, Progress, needs
from ..membership.roc import ProvenLimit, Rate, Roc, allowed_by_pair, recognised, roc
from ..membership.scores import ATTACKS, balanced_coins, fair_coins
from .claimed import DELTA, Claimed
from .own_training import OwnTraining, Train, check_dataset, confidences_of, opened
from .scores_audit import LEAST, ScoresAudit, audit_scores

RATES = (0.01, 0.001)  # of false positives
_NAMES = {"lira": "LiRA", "rmia": "RMIA"}
_MODES = ("online", "offline")
_LOSS = "loss"


class _Text(str):
    """Text that shows as itself where its representation is shown."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class MembershipResult:
    """What an attack finds in one model.

    Attributes:
        attack: its name.
        references: how many models were trained beside the one that is attacked.
        indices: (C,) the records at stake, by their numbers in the data.
        scores: (C,) higher for those that look trained on.
        included: (C,) whether they were, by a fair coin each.
        roc: the curve.
        confidence: of intervals and of the bound.
        claim: what is claimed of the training, or None.
        bound: what the guesses say of epsilon; None where all scores are equal.
    """

    attack: str
    references: int
    indices: NDArray[np.int64]
    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    roc: Roc
    confidence: float
    claim: Claimed | None
    bound: ScoresAudit | None

    @property
    def auroc(self) -> float:
        """Probability that a member scores above a non-member."""
        return self.roc.auc

    def allowed(self, false_positive_rate: float) -> float | None:
        """Largest true-positive rate that the claim allows there; None without a claim."""
        if self.claim is None or not self.claim.is_tested:
            return None
        claim, epsilon, delta = self.claim.mechanism, self.claim.epsilon, self.claim.delta
        if claim is None:
            return allowed_by_pair(epsilon, delta, false_positive_rate)
        limit = ProvenLimit(claim=claim, epsilon=epsilon, delta=delta)
        return limit.true_positive_rate(false_positive_rate)

    def table(self) -> str:
        """AUROC, and true-positive rates at 1 % and .1 % false positives with their intervals."""
        many = len(self.scores)
        share = f"{100 * self.confidence:.6g} %"
        spread = 1.96 * self.roc.auc_error
        lines = [
            f"{recognised(self.attack, self.roc.auc, self.roc.auc_error)}.",
            f"{self.attack}: {many} target records, {self.roc.members} of them in; "
            f"{self.references} references",
            f"AUROC {self.roc.auc:.3f} (95 % interval {max(0.0, self.roc.auc - spread):.3f} to "
            f"{min(1.0, self.roc.auc + spread):.3f})",
        ]
        lines += [self._rate_words(self.roc.at(asked), share) for asked in RATES]
        lines.append("Intervals as if records were independent (Clopper, Pearson).")
        if self.bound is not None:
            words = self.bound.words()
            lines.append(f"{words[:1].upper()}{words[1:]}.")
        return _Text("\n".join(lines))

    def dump(self) -> dict[str, Any]:
        """The curve's figures and the bound as an object for JSON; no record is named."""
        return {
            "attack": self.attack,
            "records": len(self.scores),
            "members": self.roc.members,
            "references": self.references,
            "auroc": self.roc.auc,
            "auroc_error": self.roc.auc_error,
            "confidence": self.confidence,
            "rates": [
                {
                    "false_positives": asked,
                    "true_positives": self._true_positives(asked),
                    "allowed": self.allowed(asked),
                }
                for asked in RATES
            ],
            "bound": None if self.bound is None else self.bound.dump(),
        }

    def _true_positives(self, asked: float) -> list[float] | None:
        """The rate and its interval, where there are non-members enough to tell it."""
        rate = self.roc.at(asked)
        if rate.others * asked < 1:
            return None
        return [float(one) for one in rate.true_positive_rate(confidence=self.confidence)]

    def plot(self, axes: Any = None) -> Any:
        """Draw the curve, on log scales, beside what the claim allows.

        Args:
            axes: of matplotlib; new ones by default.

        Returns:
            The axes.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise needs("plot", "matplotlib") from error
        if axes is None:
            axes = plt.figure(figsize=(4.5, 4.5)).add_subplot()
        rates, found = zip(*self.roc.points(), strict=True)
        axes.loglog(rates, found, drawstyle="steps-post", label=self.attack)
        grid = np.geomspace(min(rates[0], 1e-3), 1.0, 60)
        axes.loglog(grid, grid, ":", color="grey", label="guessing")
        if self.allowed(0.5) is not None:
            most = [self.allowed(float(a)) for a in grid]
            axes.loglog(grid, most, "--", label="the claim allows")
        axes.set_xlabel("false-positive rate")
        axes.set_ylabel("true-positive rate")
        axes.set_ylim(bottom=float(grid[0]), top=1.05)
        axes.legend()
        return axes

    def __repr__(self) -> str:
        """The table."""
        return str(self.table())

    def _rate_words(self, rate: Rate, share: str) -> str:
        said = f"TPR at {100 * rate.asked:g} % FPR"
        if not rate.measured:
            return f"{said}: needs {rate.needed} non-members, {rate.others} are there"
        value, low, high = rate.true_positive_rate(confidence=self.confidence)
        told = f"{said}: {value:.3f} ({share} interval {low:.3f} to {high:.3f})"
        allowed = self.allowed(rate.asked)
        if allowed is None:
            return told
        return f"{told}; the claim allows {math.ceil(allowed * 1000 - 1e-9) / 1000:.3f}"


def membership(
    train: Train,
    data: Any,
    *,
    method: str = "lira",
    mode: str = "online",
    references: int = 8,
    records: int = 400,
    claim: Claimed | None = None,
    confidence: float = 0.95,
    seed: int | None = None,
    progress: Progress | None = None,
) -> MembershipResult:
    """Train references and one model, and tell by them which records the model was trained on.

    Args:
        train: data set -> model; nothing else is asked. It is called `references` + 1 times, each
            with a `torch.utils.data.Subset` of the data; or an estimator, as `opened` takes them.
        data: (n) map-style, of pairs (input, integer label); or (X, y).
        method: "lira", "rmia", or "loss", which takes no references.
        mode: "online", or "offline", which looks at references without the record alone.
        references: K, at least 2.
        records: C at stake, from 20 to n.
        claim: what is claimed of the training, to hold the attack against.
        confidence: of intervals and of the bound on epsilon.
        seed: of records and coins, for tests; from the system's entropy by default.
        progress: called with (trainings done, trainings in all, "").

    Returns:
        Scores, coins, curve, and the bound on epsilon.

    Raises:
        ValueError: a value out of range; data that change; a train that raises, or gives one model
            twice; a model that is no classifier.
        TypeError: train gives no torch.nn.Module and no estimator.

    Source: Carlini et al. 2022 (LiRA), Zarifzadeh et al. 2024 (RMIA), Yeom et al. 2018 (loss).
    """
    name = _attack_name(method, mode)
    models = 0 if method == _LOSS else references
    if method != _LOSS and (isinstance(references, bool) or references < 2):
        raise InputError(
            f"references={references} must be at least 2: a record must be in one and out of "
            "another; 8 to 64 are usual"
        )
    # The target's coins come from a generator of their own.
    entropy = secrets.randbits(128) if seed is None else seed
    generator = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(0,)))
    coins_of = np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(1,)))
    train, data = opened(train, data)
    size = check_dataset(data, name="data")
    if not LEAST <= records <= size:
        raise InputError(
            f"records={records} must lie in [{LEAST}, {size}], the records of the data; each is in "
            "or out by a coin"
        )
    at_stake = np.sort(generator.choice(size, size=records, replace=False))
    # References and target have the other records in common, and those at stake by coins.
    training = OwnTraining(train, data, probes=[int(at) for at in at_stake])
    always = np.setdiff1d(np.arange(size), at_stake)
    items = [data[int(at)] for at in at_stake]
    known = np.zeros((0, records), dtype=np.bool_)
    if models:
        known = balanced_coins(models, records, generator=generator)
    target = fair_coins(1, records, generator=coins_of)
    found, told = list[NDArray[np.float64]](), progress or (lambda *_: None)
    for done, coins in enumerate([*known, *target]):
        told(done, models + 1, "")
        inside = np.sort(np.concatenate([always, at_stake[coins]])).astype(int).tolist()
        found.append(confidences_of(training.model(Subset(data, inside)), items))
    told(models + 1, models + 1, "")
    # Scores by the references, and the bound that the target's coins give.
    scores = ATTACKS[name](found[-1], np.reshape(found[:-1], (models, records)), known)
    bound = None
    if np.ptp(scores) > 0.0:
        against = Claimed(epsilon=math.inf, delta=DELTA) if claim is None else claim
        bound = audit_scores(scores, target[0], claim=against, confidence=confidence)
    return MembershipResult(
        attack=name,
        references=models,
        indices=at_stake,
        scores=scores,
        included=target[0],
        roc=roc(scores, target[0]),
        confidence=confidence,
        claim=claim,
        bound=bound,
    )


def _attack_name(method: str, mode: str) -> str:
    if method not in (*_NAMES, _LOSS):
        raise InputError(f"method={method!r} must be one of {', '.join((*_NAMES, _LOSS))}")
    if mode not in _MODES:
        raise InputError(f"mode={mode!r} must be one of {', '.join(_MODES)}")
    return "loss threshold" if method == _LOSS else f"{_NAMES[method]} {mode}"
