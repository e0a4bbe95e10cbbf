"""The black-box audit: whether the last models alone tell that a canary was trained on.

    R runs of the real engine, each of its own randomness, from one worst start
    coin      in: the canary is among the victim's records; out: it is not, or another is
    score     the canary's log-odds under the victim's last model, or under the average of all,
              which falls as the canary's loss rises; for "replace-one" less those of the other
    a fifth of the runs choose the model and the threshold; the others are guessed by them

Every run has one canary and noise of its own, so that errors of different runs are independent, and
the bound at a threshold that other runs set is exact (`attacks.bounds.held_out`). Where it lies
above the proof, as many fresh runs are played once more, which must exceed at `SURE`: a sound
engine is contradicted with probability (1 - confidence) (1 - SURE), 5e-5, at most.

Source: M. S. M. S. Annamalai, E. De Cristofaro, NeurIPS 2024, arXiv:2405.14106.

| symbol | name here | meaning |
|---|---|---|
| R | runs | trainings |
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy._validate import StatedProgress, within
from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.data.dataset import Examples
from ...training.data.store import followed_by
from ...training.engine.engine import Engine, Setting
from ...training.models.parameters import unflatten
from ...training.tracing.scripts import Scripts
from ..audit.audited import Verdict, after_second_look
from ..bounds.guesses import Guesses
from ..bounds.held_out import EVERY, held_out
from ..bounds.lower_bounds import LowerBound, ideal
from ..bounds.power import LEAST_SHARE, canaries_for
from .against_proof import ProvenLimit
from .worst_start import Canary

__all__ = [
    "LEAST_RUNS",
    "MODELS",
    "SURE",
    "LastModelGame",
    "LastModelMeasured",
    "Played",
    "guess",
    "measure_last_model",
    "play",
]

LEAST_RUNS = 20
SURE = 0.999  # confidence of the second look
MODELS = ("victim", "average")
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LastModelGame:
    """What is trained over and over.

    Attributes:
        setting: of the run, from its worst start; its records are in every run.
        bound: its algorithm, at its noise.
        rounds: of every run.
        victim: the agent that holds the canary.
        canary: what a coin decides about.
        scripts: what every round has to follow, those of the run's plan.
    """

    setting: Setting
    bound: Bound
    rounds: int
    victim: int
    canary: Canary
    scripts: Scripts | None = None

    def scores(self, included: bool) -> Array:
        """(2,) of one run, by `MODELS`."""
        added = self.canary.inside if included else self.canary.outside
        shards = list(self.setting.shards)
        shards[self.victim] = followed_by(shards[self.victim], added)
        setting = replace(self.setting, shards=shards, users=None)
        engine = Engine(setting, self.bound, scripts=self.scripts)
        engine.start()
        for _ in range(self.rounds):
            engine.advance()
        models = engine.models()
        return np.array([self._score(one) for one in (models[self.victim], models.mean(dim=0))])

    def _score(self, flat: Tensor) -> float:
        score = self._log_odds(flat, self.canary.inside)
        if len(self.canary.outside.targets):
            score -= self._log_odds(flat, self.canary.outside)
        return 0.0 if math.isnan(score) else score  # a model that diverged says nothing

    @torch.no_grad()
    def _log_odds(self, flat: Tensor, one: Examples) -> float:
        """Of the label's probability; unlike the loss it keeps its digits where that is near 1."""
        model, label = self.setting.model, int(one.targets[0])
        parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
        inputs = one.inputs.to(flat.device, flat.dtype if one.inputs.is_floating_point() else None)
        logits = torch.func.functional_call(model, parameters, (inputs,)).double()[0]
        others = torch.cat([logits[:label], logits[label + 1 :]])
        return float(logits[label] - others.logsumexp(dim=0))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Played:
    """Scores and coins of all runs.

    Attributes:
        scores: (R, 2) by `MODELS`.
        included: (R,) the coins.
        seconds: that one run took, the longest, on the wall clock.
    """

    scores: Array
    included: NDArray[np.bool_]
    seconds: float


def play(
    game: LastModelGame,
    *,
    runs: int,
    generator: np.random.Generator,
    most_seconds: float = math.inf,
    progress: StatedProgress | None = None,
) -> Played:
    """Train R times.

    Args:
        runs: R, at least `LEAST_RUNS`.
        generator: of the coins; all other randomness comes from the system's entropy.
        most_seconds: that all runs together may take, told from the first.
        progress: called with (runs done, R, what comes next and its price).

    Raises:
        ValueError: too few runs, or a price above `most_seconds`.
    """
    within("runs", runs, f"[{LEAST_RUNS}, inf)", "400 is usual")
    included = generator.random(runs) < 0.5
    scores, price = np.zeros((runs, len(MODELS))), 0.0
    for number in range(runs):
        if progress is not None:
            left = f"runs, about {price * (runs - number):.0f} s left"
            progress(number, runs, left if number else "first run, for its price")
        began = time.perf_counter()
        scores[number] = game.scores(bool(included[number]))
        price = max(price, time.perf_counter() - began) if number else time.perf_counter() - began
        if number == 0 and price * runs > most_seconds:
            raise InputError(
                f"{runs} runs take about {price * runs:.0f} s, at {price:.2g} s each, and "
                f"{most_seconds:.0f} s are allowed; ask for fewer runs, or allow more minutes"
            )
    return Played(scores=scores, included=included, seconds=price)


def guess(played: Played) -> tuple[str, Guesses]:
    """Choose the model that every fifth run tells most by, and score all runs by it.

    These are the runs that set the threshold in `held_out`; the others have no part in the choice.

    Returns:
        The name in `MODELS`, and scores with coins.

    >>> coins = np.arange(40) // 5 % 2 == 0
    >>> noise = np.random.default_rng(0).normal(size=(40, 2))
    >>> found = Played(scores=noise + coins[:, None] * [0, 9.0], included=coins, seconds=0.1)
    >>> guess(found)[0]
    'average'
    """
    setting, coins = played.scores[::EVERY], played.included[::EVERY]
    apart = np.zeros(len(MODELS))
    if coins.any() and not coins.all():
        inside, outside = setting[coins], setting[~coins]
        spread = np.sqrt(0.5 * (inside.var(axis=0) + outside.var(axis=0)))
        between = inside.mean(axis=0) - outside.mean(axis=0)
        # Without any spread only whether they differ at all is left.
        apart = np.where(spread > 0, between / np.where(spread > 0, spread, 1.0), between * 1e300)
    chosen = int(np.argmax(np.nan_to_num(apart)))
    return MODELS[chosen], Guesses(scores=played.scores[:, chosen], included=played.included)


@dataclass(frozen=True, kw_only=True, slots=True)
class LastModelMeasured:
    """What the runs say of epsilon.

    Attributes:
        model: whose log-odds are scored, in `MODELS`.
        bound: lower bound of the first look.
        ideal: what as many runs show of who sees all that the proof counts.
        again: of fresh runs at `SURE`, and `fresh` of the same at the first confidence; None where
            the first look does not exceed the proof.
        verdict: what follows.
        needed: runs that could show a tenth of the proof, where `ideal` is less; None elsewhere, or
            where no number would.
        seconds: that one run took, the longest.
    """

    model: str
    bound: LowerBound
    ideal: float
    again: LowerBound | None
    fresh: LowerBound | None
    verdict: Verdict
    needed: int | None
    seconds: float


def measure_last_model(
    game: LastModelGame,
    limit: ProvenLimit,
    *,
    runs: int,
    seed: int,
    confidence: float = 0.95,
    most_seconds: float = math.inf,
    progress: StatedProgress | None = None,
) -> LastModelMeasured:
    """Play, bound, and look again with fresh runs where the bound lies above the proof.

    Args:
        limit: what is proven of holders of the final models.
        runs: R of each look.
        seed: of the coins.
        confidence: of the bound that is reported.
        most_seconds: that the runs of one look may take.
        progress: as in `play`.

    Raises:
        ValueError: too few runs, or a price above `most_seconds`.
    """
    coins = [np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(2)]

    def look(which: int) -> tuple[str, Guesses, float]:
        played = play(
            game,
            runs=runs,
            generator=coins[which],
            most_seconds=most_seconds,
            progress=progress,
        )
        return *guess(played), played.seconds

    def bound(guesses: Guesses, at: float) -> LowerBound:
        return held_out(guesses, claim=limit.claim, delta=limit.delta, confidence=at)

    model, guesses, seconds = look(0)
    first = bound(guesses, confidence)
    best = ideal(limit.claim, canaries=first.guesses, delta=limit.delta, confidence=confidence)
    again = fresh = needed = None
    verdict = Verdict.CONSISTENT
    least = LEAST_SHARE * limit.epsilon
    if first.exceeds(limit.epsilon):
        _, guesses, longer = look(1)
        seconds = max(seconds, longer)
        again, fresh = bound(guesses, SURE), bound(guesses, confidence)
        verdict = after_second_look(
            sure=again.exceeds(limit.epsilon), doubted=fresh.exceeds(limit.epsilon)
        )
    elif max(best, first.epsilon) < least:
        verdict = Verdict.NOT_MEASURED
        more = canaries_for(limit.claim, epsilon=least, delta=limit.delta, confidence=confidence)
        needed = None if more is None else math.ceil(more * EVERY / (EVERY - 1))
    return LastModelMeasured(
        model=model,
        bound=first,
        ideal=best,
        again=again,
        fresh=fresh,
        verdict=verdict,
        needed=needed,
        seconds=seconds,
    )
