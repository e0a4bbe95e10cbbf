"""The black-box audit: whether the last models alone tell that a canary was trained on.

    R runs of the real engine, each of its own randomness, from one worst start
    coin      in: the canary is among the victim's records; out: it is not, or another is
    score     the canary's log-odds under the victim's last model, or under the average of all,
              which falls as the canary's loss rises; for "replace-one" less those of the other
    a fifth of the runs choose the model and the threshold; the others are guessed by them

Every run has one canary and noise of its own, so that errors of different runs are independent, and
the bound at a threshold that other runs set is exact (`attacks.bounds.evidence`). Where it lies
above the proof, as many fresh runs are played once more, which must exceed at `SURE`: a sound
engine is contradicted with probability (1 - confidence) (1 - SURE), 5e-5, at most.

Source: M. S. M. S. Annamalai, E. De Cristofaro, NeurIPS 2024, arXiv:2405.14106.

| symbol | name here | meaning |
|---|---|---|
| R | runs | trainings |
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError, Progress, within
from ...training.algorithms.algorithm import Bound
from ...training.data.store import Examples, followed_by
from ...training.engine.engine import Engine
from ...training.engine.setting import Setting
from ...training.models.parameters import unflatten
from ...training.models.tasks import Task
from ...training.tracing.scripts import Scripts
from ..audit.audited import Verdict, after_second_look
from ..bounds.evidence import EVERY, held_out
from ..bounds.lower_bounds import LEAST_SHARE, Guesses, LowerBound, canaries_for, ideal
from .roc import ProvenLimit

# What a last model shows most of: initial parameters near a minimum, and a mislabelled canary.
#
# Who sees only the last model sees the canary through everything that came after it. Ordinary
# gradients move the models, differently in every run, and push back what the canary did. From
# initial parameters that are trained already they are small, and the canary, whose label these
# parameters hold for least likely, has a gradient that stays long and points one way. Both are
# allowed to whom a proof holds against: epsilon is said of all initial parameters and of all
# records.
#
#     start     Adam on the cross-entropy of held-out records and of the run's own, without privacy,
#               from the run's own initial parameters
#     canary    the record of these that the start is surest of, under its least likely label
#
# The start is the auditor's own and never released: the same one whether the canary is in or out.
#
# For "replace-one" the first of these records is the canary under its own label a, and under the
# next one b in its place. The start is trained to hold a and b for equally likely, so that the
# gradients of the two are opposite, and twice as far apart as one is long.
#
# Source: M. S. M. S. Annamalai, E. De Cristofaro, "Nearly tight black-box auditing of
# differentially private machine learning", NeurIPS 2024, arXiv:2405.14106, section 4.
#
# Where we differ from the paper: it trains the start on half of the data set and takes the rest for
# the run; ours has seen the run's records, too, whose gradients else hide much of the canary. Its
# canary is blank or mislabelled; ours is mislabelled whatever the inputs are, since a blank one may
# have a gradient that is shorter than the clip norm.

_MOST_HELD_OUT, _MOST_OWN = 500, 1500  # records that the start is trained on
_STEPS, _LEARNING_RATE = 300, 0.02


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Canary:
    """The record that a coin decides about.

    Attributes:
        inside: (1) the canary.
        outside: (0), or for "replace-one" (1) what stands in its place.
    """

    inside: Examples
    outside: Examples


@dataclass(frozen=True, slots=True)
class _StartedTask:
    """A task whose first block starts elsewhere."""

    task: Task
    first: Tensor

    @property
    def dimensions(self) -> tuple[int, ...]:
        return self.task.dimensions

    def initial(self) -> Tensor:
        whole = self.task.initial().detach().clone()
        whole[: len(self.first)] = self.first
        return whole

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        return self.task.loss(point, inputs, target)

    def project(self, value: Tensor) -> Tensor:
        return self.task.project(value)


def worst_start(
    setting: Setting, records: Examples, *, replaced: bool, steps: int = _STEPS
) -> tuple[Setting, Canary]:
    """The setting from initial parameters at which such records move little, and the canary.

    Args:
        setting: of a run; its model is left as it is.
        records: (B) held-out inputs and targets, may be none; the first 500 are used, and of the
            run's own 1,500, equally many of each agent.
        replaced: whether the adjacency is "replace-one".
        steps: of Adam.

    Raises:
        ValueError: there is no record at all.
    """
    records = _chosen(setting, records)
    if len(records.targets) == 0:
        raise InputError("no agent holds a record, and none is held out; nothing can be audited")
    model = copy.deepcopy(setting.model).to(setting.device)
    inputs, targets = records.inputs.to(setting.device), records.targets.to(setting.device)
    classes = model(inputs[:1]).shape[1]
    optimiser = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    # Records are fitted until they move little, so that the canary stands out.
    for _ in range(steps):
        optimiser.zero_grad()
        logits = model(inputs)
        errors = cross_entropy(logits, targets, reduction="none")
        if replaced:  # the first record is held undecided between two labels, and counts as much
            both = cross_entropy(logits[:1], (targets[:1] + 1) % classes)
            loss = errors[1:].sum() / len(errors) + 0.5 * (errors[0] + both)
        else:
            loss = errors.mean()
        loss.backward()
        optimiser.step()
    model.zero_grad(set_to_none=True)
    canary = _undecided(records, classes) if replaced else _mislabelled(model, inputs, records)
    model = model.to(next(setting.model.parameters()).device)
    task = setting.task
    if task is not None:
        first = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
        task = _StartedTask(task, first)
    return replace(setting, model=model, task=task), canary


def _chosen(setting: Setting, records: Examples) -> Examples:
    """Held-out records first, then those of the run's agents."""
    each = -(-_MOST_OWN // len(setting.shards))
    parts = [(records, _MOST_HELD_OUT), *((shard, each) for shard in setting.shards)]
    some = [part.take(torch.arange(min(most, part.size))) for part, most in parts]
    inputs, targets = (torch.cat([one.cpu() for one in both]) for both in zip(*some, strict=True))
    return Examples(inputs, targets)


def _undecided(records: Examples, classes: int) -> Canary:
    first = Examples(records.inputs[:1], records.targets[:1])
    return Canary(inside=first, outside=Examples(first.inputs, (first.targets + 1) % classes))


@torch.no_grad()
def _mislabelled(model: nn.Module, inputs: Tensor, records: Examples) -> Canary:
    logits = model(inputs)
    own = records.targets[:, None].to(logits.device)
    sure = logits.gather(1, own)[:, 0] - logits.amin(dim=1)
    place = int(sure.nan_to_num(nan=-torch.inf).argmax())
    chosen = records.inputs[place : place + 1]
    label = logits[place].argmin().cpu().reshape(1)
    return Canary(inside=Examples(chosen, label), outside=Examples(chosen[:0], label[:0]))


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
    progress: Progress | None = None,
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
    progress: Progress | None = None,
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
    # Each look has coins of its own.
    coins = [np.random.default_rng(one) for one in np.random.SeedSequence(seed).spawn(2)]

    def look(which: int) -> tuple[str, Guesses, float]:
        played = play(
            game, runs=runs, generator=coins[which], most_seconds=most_seconds, progress=progress
        )
        return *guess(played), played.seconds

    def bound(guesses: Guesses, at: float) -> LowerBound:
        return held_out(guesses, claim=limit.claim, delta=limit.delta, confidence=at)

    # The first look, and the best that so many runs could show.
    model, guesses, seconds = look(0)
    first = bound(guesses, confidence)
    best = ideal(limit.claim, canaries=first.guesses, delta=limit.delta, confidence=confidence)
    again = fresh = needed = None
    verdict = Verdict.CONSISTENT
    least = LEAST_SHARE * limit.epsilon
    if first.exceeds(limit.epsilon):
        # A bound above the proof is decided by fresh runs.
        _, guesses, longer = look(1)
        seconds = max(seconds, longer)
        again, fresh = bound(guesses, SURE), bound(guesses, confidence)
        verdict = after_second_look(
            sure=again.exceeds(limit.epsilon), doubted=fresh.exceeds(limit.epsilon)
        )
    elif max(best, first.epsilon) < least:
        # Too few runs to show even a small part of the limit.
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
