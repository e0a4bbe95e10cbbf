"""Audit a training that runs elsewhere: plant, train, score, bound, and look again before judging.

    train gives              scored by                                   claim
    a torch.nn.Module        minus the loss of each canary               the caller's
    several of them          the same, in the mean over the models       the caller's
    an `Observed`            its own `scores(planted)`                   its own, or the caller's

A final model shows far less than messages do: a private training has hardly learned mislabelled
records. An adapter that sees gradients gives likelihood ratios, and is an `Observed`.

A first bound above the claim may be chance, at 95 % once in twenty audits. So four times as many
fresh canaries are played, and only what exceeds the claim at 99.9 % there contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from ...privacy._validate import within
from ...privacy.errors import InputError, InputTypeError
from ..audit.audited import AGAIN, Verdict, after_second_look
from .claimed import DELTA, Claimed
from .losses import Loss
from .own_training import OwnTraining, Train
from .planted import Planted, canaries
from .planted_records import GRADIENT, Record
from .scores_audit import LEAST, ScoresAudit, audit_scores, ideal_words

__all__ = ["SURE", "Observed", "TrainingAudit", "audit_training"]

SURE = 0.999  # confidence of a second look
_PER_RUN = 250
_MOST_CANARIES = 100_000


@runtime_checkable
class Observed(Protocol):
    """What a training gives that was observed while it ran, such as a recorder's log.

    Attributes:
        ratios: whether scores are log-likelihood ratios at that claim, in nats, of canaries that do
            not disturb each other.
    """

    def claim(self, delta: float) -> Claimed | None:
        """What the training claims of itself at a delta, or None."""
        ...

    @property
    def ratios(self) -> bool:
        """Whether scores are log-likelihood ratios at that claim."""
        ...

    def scores(self, planted: Planted) -> ArrayLike:
        """(m,) one a canary of `planted.positions`, higher if it is in; without its coins."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TrainingAudit:
    """What an audit of a training found.

    Attributes:
        first: the first look.
        again: the second, at 99.9 %, where the first exceeded the claim.
        verdict: of both.
        trainings: how many were played.
    """

    first: ScoresAudit
    again: ScoresAudit | None
    verdict: Verdict
    trainings: int

    @property
    def epsilon(self) -> float:
        """The lower bound of the first look, in nats."""
        return self.first.epsilon

    @property
    def claimed(self) -> Claimed:
        """What it was held against."""
        return self.first.claimed

    @property
    def contradicted(self) -> bool:
        """Whether more leaked than is claimed, in both looks."""
        return self.verdict is Verdict.CONTRADICTED

    def words(self) -> str:
        """What was found, in a sentence or two."""
        if self.again is None:
            return self.first.words()
        looked = (
            f"First look: {self.first.words()}. {AGAIN} times as many fresh canaries: "
            f"epsilon is at least {math.floor(100 * self.again.epsilon) / 100:g} at 99.9 %"
        )
        return f"{looked}; verdict: {self.verdict}"

    def __repr__(self) -> str:
        """What a perfect audit shows, and what this one does."""
        return f"{ideal_words(self.first)}\n{self.words()}"


def audit_training(
    train: Train,
    data: Any,
    *,
    canaries: int = 500,
    claim: Claimed | None = None,
    delta: float = DELTA,
    confidence: float = 0.95,
    kind: str = "mislabelled",
    per_run: int = _PER_RUN,
    records: Sequence[Record] | None = None,
    labels: int | None = None,
    loss: Loss | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingAudit:
    """Plant canaries in the data, train, and check what leaked against the claim.

    Args:
        train: data set -> model, models, or an `Observed`; called as often as canaries need.
        data: (n) map-style, of pairs (input, integer label) unless the records are yours.
        canaries: how many, at least 20; rounded up to fill every run alike.
        claim: of the training; by default what the `Observed` claims, or nothing.
        delta: of the bound, where claim= does not say one.
        confidence: of the first look.
        kind: of the canaries, as in `canaries`.
        per_run: most canaries in one training.
        records: of kind "yours": `per_run` or as many as canaries, whichever is less.
        labels: how many classes there are; by default as many as are seen.
        loss: (outputs, targets) -> (B,) losses by which models are scored.
        seed: of coins and canaries, for tests; from the system's entropy by default.
        progress: called with (trainings done, trainings in all as far as is known).

    Raises:
        ValueError: a value out of range, a train that raises or changes the data, or runs that
            claim different things.
        TypeError: train gives something that cannot be scored.
    """
    within("canaries", canaries, f"[{LEAST}, {_MOST_CANARIES}]")
    within("per_run", per_run, "[1, inf)", ", canaries of one training")
    runs = math.ceil(canaries / per_run)
    game = _Game(
        training=OwnTraining(train, data),
        data=data,
        each=math.ceil(canaries / runs),
        plant={"kind": kind, "records": records, "labels": labels},
        loss=loss,
        delta=delta,
        seed=seed,
        progress=progress,
    )
    played = game.play(runs, total=runs)
    known = claim or played.claim or Claimed(epsilon=math.inf, delta=delta)
    first = played.audited(known, confidence)
    if not first.contradicted:
        return TrainingAudit(first=first, again=None, verdict=first.verdict, trainings=runs)
    fresh = game.play(AGAIN * runs, total=(1 + AGAIN) * runs)
    again = fresh.audited(known, max(SURE, confidence))
    verdict = after_second_look(
        sure=again.contradicted, doubted=fresh.audited(known, confidence).contradicted
    )
    return TrainingAudit(first=first, again=again, verdict=verdict, trainings=game.done)


@dataclass(frozen=True, slots=True, eq=False)
class _Played:
    """Scores and coins of several trainings, and what they claim of themselves."""

    scores: NDArray[np.float64]
    included: NDArray[np.bool_]
    ratios: bool
    claim: Claimed | None

    def audited(self, claim: Claimed, confidence: float) -> ScoresAudit:
        return audit_scores(
            self.scores, self.included, claim=claim, confidence=confidence, ratios=self.ratios
        )


@dataclass(slots=True, eq=False)
class _Game:
    """Plays trainings, each with canaries of its own."""

    training: OwnTraining
    data: Any
    each: int
    plant: dict[str, Any]
    loss: Loss | None
    delta: float
    seed: int | None
    progress: Callable[[int, int], None] | None
    done: int = 0

    def play(self, runs: int, *, total: int) -> _Played:
        """So many trainings, joined.

        Raises:
            ValueError: they claim different things.
        """
        parts = []
        for _ in range(runs):
            if self.progress is not None:
                self.progress(self.done, total)
            parts.append(self._one())
            self.done += 1
        if self.progress is not None:
            self.progress(self.done, total)
        for one in parts[1:]:
            if one.claim != parts[0].claim or one.ratios != parts[0].ratios:
                raise InputError(
                    f"trainings claim different things: {_said(parts[0].claim)}, then "
                    f"{_said(one.claim)}; let train do the same each time, or give claim="
                )
        return _Played(
            scores=np.concatenate([one.scores for one in parts]),
            included=np.concatenate([one.included for one in parts]),
            ratios=parts[0].ratios,
            claim=parts[0].claim,
        )

    def _one(self) -> _Played:
        planted = canaries(self.data, self.each, seed=self._seed(), **self.plant)
        came = self.training(planted)
        models = _models_of(came)
        if models is not None and self.plant["kind"] == GRADIENT:
            raise InputError(
                'kind="gradient" needs a training whose gradients are seen, and train gave a '
                "model; let it return the log of a recorder with an adapter, or plant mislabelled "
                "records"
            )
        if models is not None:
            found = planted.score(models, loss=self.loss)
            return _Played(found.scores, found.included, ratios=False, claim=None)
        if not isinstance(came, Observed):
            raise InputTypeError(
                f"train gave a {type(came).__name__}, which cannot be scored; let it return the "
                "trained torch.nn.Module, a list of them, or the log of a recorder"
            )
        scores = np.asarray(came.scores(planted), dtype=np.float64)
        if scores.shape != (planted.count,):
            raise InputError(
                f"what was observed gives scores of shape {scores.shape} for {planted.count} "
                "canaries; it must give one each"
            )
        return _Played(
            scores, planted.reveal(), ratios=bool(came.ratios), claim=came.claim(self.delta)
        )

    def _seed(self) -> int | None:
        if self.seed is None:
            return None
        return int(np.random.SeedSequence([self.seed, self.done]).generate_state(1)[0])


def _models_of(came: Any) -> list[nn.Module] | None:
    if isinstance(came, nn.Module):
        return [came]
    if isinstance(came, list | tuple) and came and all(isinstance(m, nn.Module) for m in came):
        return list(came)
    return None


def _said(claim: Claimed | None) -> str:
    return "nothing" if claim is None else claim.words()
