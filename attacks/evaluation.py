"""Re-enact a round with planted public records, intercept it, attack, and score against the truth.

The real engine runs: it starts from a snapshot of the run, the victim's batch is the planted
record, everybody else draws as ever. Four rows always: the blind guess (the mean public image), no
defence (nothing clipped, no noise), clipping only, and the run as it was. A failed attack is no
leak shown; it is not protection.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..training.algorithms import ALGORITHMS, Form, bind
from ..training.algorithms.dp_dpsgd import Order
from ..training.data import Dataset
from ..training.engine import Engine, Setting
from ..training.models import flatten
from ..training.randomness import SecretRandomness
from ..training.tensor_round import Examples
from ..training.transcript import Transcript
from .interception import (
    Scenario,
    intercept_cross_gradient,
    intercept_momentum,
    intercept_update,
)
from .inversion import Reconstruction, reconstruct
from .metrics import Scores, match
from .observation import Observation
from .presets import Preset

SCENARIOS: Mapping[str, tuple[Scenario, ...]] = {
    "dpdl": (Scenario.CROSS_GRADIENT, Scenario.MOMENTUM),
    "dp-dpsgd": (Scenario.UPDATE,),
    "dsgd": (Scenario.UPDATE,),
}


class Protection(enum.StrEnum):
    """How much of the defence is switched on."""

    NONE = "no defence"
    CLIPPING = "clipping only"
    DEFENDED = "defended"


BLIND = "blind guess"
_TIE = 1e-4  # falling back to the prior is the blind guess up to rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A point of a run at which to attack.

    Attributes:
        setting: graph, model and data of the run.
        algorithm, form, settings: what runs.
        learning_rate, clip_norm, noise_std, batch_size: its numbers.
        snapshot: the state after round `snapshot_round`; None starts afresh.
        snapshot_round: at most round - 1, and round - 2 where an earlier message is needed.
        round: the round that is intercepted.
        rounds: of the whole run, on which schedules may depend.
        victim: the agent whose batch is attacked.
        model_owner: the neighbour to whom its cross-gradient goes.
    """

    setting: Setting
    algorithm: str
    form: Form
    settings: Any
    learning_rate: float
    clip_norm: float | None
    noise_std: float
    batch_size: float
    snapshot: Mapping[str, Tensor] | None
    snapshot_round: int
    round: int
    rounds: int
    victim: int
    model_owner: int

    def __post_init__(self) -> None:
        """Check that the round can be reached and that the link exists."""
        if not 0 <= self.snapshot_round < self.round:
            raise ValueError(
                f"snapshot_round={self.snapshot_round} must lie in 0..{self.round - 1}"
            )
        if self.model_owner == self.victim or self.model_owner not in (
            self.setting.graph.neighbours(self.victim)
        ):
            raise ValueError(
                f"model_owner={self.model_owner} must be a neighbour of victim={self.victim}"
            )

    def under(self, protection: Protection) -> Trial:
        """The same trial with part of the defence switched off."""
        if protection is Protection.NONE:
            return replace(self, clip_norm=None, noise_std=0.0)
        if protection is Protection.CLIPPING:
            return replace(self, noise_std=0.0)
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a table: what the reconstructions of all images scored.

    Attributes:
        name: "blind guess" or a protection.
        scores: one entry an image.
        images: (N, *shape) reconstructions, pixels in [0, 1].
        stages: which stage of the attack produced each image.
    """

    name: str
    scores: Scores
    images: Tensor
    stages: tuple[str, ...]


def observe_round(trial: Trial, planted: Examples, *, scenario: Scenario) -> Observation:
    """Run the trial's round with the planted batch, and intercept it.

    Args:
        trial: where to attack.
        planted: the victim's batch in that round.
        scenario: what is intercepted.

    Returns:
        What an onlooker holds of the planted batch.
    """
    algorithm = ALGORITHMS[trial.algorithm]
    bound = bind(
        algorithm,
        trial.settings,
        form=trial.form,
        learning_rate=trial.learning_rate,
        clip_norm=trial.clip_norm,
        noise_std=trial.noise_std,
        batch_size=trial.batch_size,
        graph=trial.setting.graph,
        rounds=trial.rounds,
    )
    transcript = Transcript(agents=[trial.victim])
    engine = Engine(trial.setting, bound, randomness=SecretRandomness(), taps=[transcript])
    if trial.snapshot is None:
        engine.start()
    else:
        engine.restore(trial.snapshot, round=trial.snapshot_round)
    while engine.round < trial.round - 1:
        engine.advance()
    engine.advance(planted={trial.victim: planted})
    common: dict[str, Any] = {
        "round": trial.round,
        "victim": trial.victim,
        "records": len(planted.targets),
        "batch_size": trial.batch_size,
        "clip_norm": trial.clip_norm,
        "noise_std": trial.noise_std,
    }
    if scenario is Scenario.CROSS_GRADIENT:
        return intercept_cross_gradient(transcript, model_owner=trial.model_owner, **common)
    if scenario is Scenario.MOMENTUM:
        return intercept_momentum(
            transcript,
            graph=trial.setting.graph,
            settings=trial.settings,
            form=trial.form,
            **common,
        )
    step_first = getattr(trial.settings, "order", None) is Order.STEP_THEN_MIX
    if not step_first:
        engine.advance()  # what the step left is sent at the start of the next round
    return intercept_update(
        transcript,
        graph=trial.setting.graph,
        initial=flatten(trial.setting.model).detach().to(trial.setting.dtype),
        step_first=step_first,
        learning_rate=trial.learning_rate,
        **common,
    )


def attack_images(
    trial: Trial,
    data: Dataset,
    *,
    scenario: Scenario,
    preset: str | Preset,
    images: Tensor,
    labels: Tensor,
    prior_image: Tensor,
    generator: torch.Generator,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """The four rows for a set of images, each attacked in a round of its own.

    Args:
        trial: where to attack.
        data: supplies bounds and pixels.
        scenario: what is intercepted.
        preset: settings of the reconstruction.
        images: (N, *shape) normalised public records; planted one at a time.
        labels: (N,) their labels, which the attack does not see.
        prior_image: (*shape) normalised mean public image.
        generator: starts of the reconstruction.
        progress: called with a line after each image.

    Returns:
        Rows in the order blind guess, no defence, clipping only, defended.
    """
    if trial.algorithm not in SCENARIOS or scenario not in SCENARIOS[trial.algorithm]:
        known = ", ".join(SCENARIOS.get(trial.algorithm, ()))
        raise ValueError(
            f"scenario={str(scenario)!r} is not to be had from {trial.algorithm!r}; it has: {known}"
        )
    truth = _pixels(data, images)
    guess = _pixels(data, prior_image.expand_as(images))
    rows = [Row(name=BLIND, scores=_score(truth, guess), images=guess, stages=("",) * len(images))]
    for protection in Protection:
        found = []
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            planted = Examples(image[None], label[None])
            seen = observe_round(trial.under(protection), planted, scenario=scenario)
            found.append(
                reconstruct(
                    seen,
                    trial.setting.model,
                    preset=preset,
                    input_shape=tuple(image.shape),
                    classes=data.classes,
                    bounds=data.bounds,
                    generator=generator,
                    prior_image=prior_image,
                )
            )
            if progress is not None:
                progress(f"{scenario}, {protection}: image {number + 1}/{len(images)}")
        rows.append(_row(data, protection, truth=truth, found=found))
    return rows


def _row(
    data: Dataset, protection: Protection, *, truth: Tensor, found: list[Reconstruction]
) -> Row:
    guess = _pixels(data, torch.cat([f.inputs for f in found]).to(truth.dtype))
    return Row(
        name=str(protection),
        scores=_score(truth, guess),
        images=guess,
        stages=tuple(f.stage for f in found),
    )


def _pixels(data: Dataset, inputs: Tensor) -> Tensor:
    return data.pixels(inputs.detach().cpu().float()).clamp(0.0, 1.0)


def _score(truth: Tensor, guess: Tensor) -> Scores:
    """Each image against its own reconstruction: they were attacked one at a time."""
    each = [match(t[None], g[None]) for t, g in zip(truth, guess, strict=True)]
    return Scores(
        mse=tuple(s.mse[0] for s in each),
        psnr=tuple(s.psnr[0] for s in each),
        ssim=tuple(s.ssim[0] for s in each),
        order=tuple(range(len(each))),
    )


def conclusion(rows: list[Row]) -> str:
    """What the rows say, in a sentence; a failed attack is never called protection."""
    by_name = {row.name: row.scores for row in rows}
    blind, defended = by_name[BLIND].mean_mse, by_name[Protection.DEFENDED].mean_mse
    undefended = by_name[Protection.NONE].mean_mse
    if undefended >= blind:
        return (
            "The attack fails even without a defence, so it says nothing about the defence: "
            "no leak shown."
        )
    if defended >= blind * (1 - _TIE):
        return "No leak shown: with the defence on, the attack is no better than the blind guess."
    gains = np.subtract(by_name[BLIND].mse, by_name[Protection.DEFENDED].mse)
    if len(gains) > 1 and gains.mean() < 2 * gains.std(ddof=1) / math.sqrt(len(gains)):
        return (
            f"No leak shown beyond chance: with the defence on, the attack gains on the blind "
            f"guess, but by less than two standard errors over {len(gains)} images."
        )
    return (
        f"A leak is shown: with the defence on, the error is {defended / blind:.1%} of the blind "
        "guess's."
    )
