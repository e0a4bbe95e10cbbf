"""Attack planted public records under three protections, and score against the truth.

Four rows always: the blind guess (the mean public image), no defence (nothing clipped, no noise),
clipping only, and the run as it was. A failed attack is no leak shown; it is not protection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from ...privacy.errors import Progress, whole, within
from ...training.data.load import Dataset
from ...training.data.store import Examples
from ...training.models.parameters import unflatten
from ..interception.estimate import Estimate, intercept
from ..interception.names import NOT_IDENTIFIED, Scenario
from ..interception.replay import Protection, ReplayedRun, replay, trace_of
from ..inversion.crafted import craft
from ..inversion.fallback import acceptance_power
from ..inversion.inversion import Reconstruction, reconstruct
from ..posterior import Candidates, Denoiser, ranks
from ..problem.objective import PRESETS, Preset
from ..problem.observation import Observation
from ..problem.problem import Imprint
from .columns import Distance, decoded
from .metrics import ORDINARY, Convention, Scores, match

# Whether anything of a batch stands out of the noise: singular values against the noise edge.
#
#     m, n           rows and columns of a layer's gradient [dW, db]
#     edge           s (sqrt(m) + sqrt(n) + t),   t = sqrt(2 log(layers / a))
#
# The largest singular value of an m x n matrix of independent N(0, s^2) is at most s (sqrt(m) +
# sqrt(n)) in the mean and exceeds that by s t with probability at most exp(-t^2 / 2) (Davidson and
# Szarek 2001, "Local operator theory, random matrices and Banach spaces", Theorem II.13). Pure
# noise is therefore called detectable with probability at most a, over all layers together.
#
# | symbol | name here | unit |
# |---|---|---|
# | s | noise_std of the observation | of one coordinate |
# | a | false_positive_rate | probability |
#
# A convolution's weight counts as the (out, in * k * k) matrix of its patches; the bias, where
# there is one, is a further column. K intercepts are whitened and stacked as rows: their inputs are
# the same where the layer is the first, so that it gains with K there; deeper layers need not.
#
# A spike below the edge is not nothing: the sum of squares of a gradient, a bias alone or a
# candidate batch's direction can show where no singular value does. "Not detectable spectrally"
# means that.

FALSE_ALARM_RATE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpectrum:
    """One layer's gradient against the noise.

    Attributes:
        layer: name of the module; empty where the network is one layer.
        shape: rows and columns of the matrix.
        largest: its largest singular value, noise included.
        edge: what pure noise stays below; 0 without noise.
        above: singular values above the edge, or above rounding without noise, in falling order.

    >>> seen = LayerSpectrum(layer="fc", shape=(10, 65), largest=3.0, edge=1.5, above=(3.0,))
    >>> seen.is_detectable, seen.strength
    (True, 2.0)
    """

    layer: str
    shape: tuple[int, int]
    largest: float
    edge: float
    above: tuple[float, ...]

    @property
    def is_detectable(self) -> bool:
        """Whether any direction stands out."""
        return len(self.above) > 0

    @property
    def strength(self) -> float:
        """Largest singular value over the edge; infinite where only the gradient is not 0."""
        if self.edge > 0:
            return self.largest / self.edge
        return math.inf if self.is_detectable else 0.0


def detectability(
    observation: Observation, model: nn.Module, *, false_positive_rate: float = FALSE_ALARM_RATE
) -> tuple[LayerSpectrum, ...]:
    """Which linear and convolutional layers show the batch.

    Args:
        observation: one batch's gradients, of the parameters of `model`.
        model: supplies names and shapes; its own values are not read.
        false_positive_rate: probability, over all layers together, that pure noise is called
            detectable; at most that.

    Returns:
        One entry per nn.Linear and convolution with a weight of its own, in the model's order;
        none where the model has no such layer.

    Raises:
        ValueError: the gradient is not of the model's parameters, or the rate is not in (0, 1).
    """
    within("false_positive_rate", false_positive_rate, "(0, 1)", ".001 is usual")
    matrices = _matrices(observation, model)
    if not matrices:
        return ()
    margin = math.sqrt(2 * math.log(len(matrices) / false_positive_rate))
    rounding = torch.finfo(observation.gradient.dtype).eps
    found = []
    for layer, matrix in matrices.items():
        rows, columns = matrix.shape
        values = torch.linalg.svdvals(matrix.double())
        largest = float(values[0])
        edge = observation.noise_std * (math.sqrt(rows) + math.sqrt(columns) + margin)
        least = max(edge, rounding * max(rows, columns) * largest)
        found.append(
            LayerSpectrum(
                layer=layer,
                shape=(rows, columns),
                largest=largest,
                edge=edge,
                above=tuple(values[values > least].tolist()),
            )
        )
    return tuple(found)


def spectral_sentence(
    spectra: Sequence[LayerSpectrum], *, false_positive_rate: float = FALSE_ALARM_RATE
) -> str:
    """What spectra of `detectability`, of that rate, say in words; never that nothing leaks."""
    if not spectra:
        return "Not examined spectrally: the network has no linear or convolutional layer."
    strongest = max(spectra, key=lambda found: (found.strength, len(found.above)))
    shown = [layer_spectrum for layer_spectrum in spectra if layer_spectrum.is_detectable]
    if not shown and strongest.edge == 0:
        return f"Nothing to detect: the gradient is 0 in each of {len(spectra)} layers."
    if not shown:
        return (
            f"Not detectable spectrally: in none of {len(spectra)} layers does the gradient stand "
            f"out of the noise (strongest: {strongest.layer!r}, at {strongest.strength:.2f} of the "
            f"edge; FPR at most {false_positive_rate:g}). An attack may still succeed."
        )
    count = len(strongest.above)
    directions = f"{count} direction" + ("" if count == 1 else "s")
    how = (
        "there is no noise"
        if strongest.edge == 0
        else f"at {strongest.strength:.2f} times the noise edge"
    )
    return (
        f"Detectable spectrally in {len(shown)} of {len(spectra)} layers, most in "
        f"{strongest.layer!r}: {directions}, {how}."
    )


def _matrices(observation: Observation, model: nn.Module) -> dict[str, Tensor]:
    """(K rows, columns) whitened [dW, db] of each layer, by name."""
    gradients = unflatten(model, observation.whiten(observation.gradient))
    found = {}
    for layer, module in model.named_modules():
        # A transposed convolution's weight has its inputs first; its rows would not be outputs.
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            continue
        prefix = f"{layer}." if layer else ""
        weight = gradients.get(f"{prefix}weight")  # absent where it is tied to an earlier layer
        if weight is None:
            continue
        parts = [weight.flatten(0, 1).flatten(1)]  # (K out, in * k * k)
        if f"{prefix}bias" in gradients:
            parts.append(gradients[f"{prefix}bias"].reshape(-1, 1))
        found[layer] = torch.cat(parts, dim=1)
    return found


BLIND = "blind guess"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a table: what the reconstructions of all images scored.

    Attributes:
        name: "blind guess" or a protection.
        scores: one entry an image.
        images: (N, *shape) reconstructions, pixels in [0, 1].
        stages: which stage of the attack produced each image.
        noise_std: noise of the best average of what was observed, in the units of one record's
            clipped gradient; NaN where nothing was.
        intercepts: how many contributions of the victim were observed.
        labels: what the attack took the labels to be; -1 where it has none.
        spectral: whether the gradient stands out of the noise of any layer, in words.
        unused: the victim's contributions that the attack does not use: what it cannot single out,
            and what is clipped otherwise than the rest.
        reason: why nothing of some group was observed, in words; empty where something was of all.
        unsolved: why algebra gave up on the first record that fell back for it, in words.
        right_labels: how many labels are right; None where the attack has none.
        candidates: public records that were given to be weighed.
        power: for each image, how probably the fallback's test would keep the true one; of single
            records under noise that a preset searches for.
        lineups: size -> rank of each record among so many, 1 for the first.
    """

    name: str
    scores: Scores
    images: Tensor
    stages: tuple[str, ...]
    noise_std: float = math.nan
    intercepts: int = 0
    labels: tuple[int, ...] = ()
    spectral: str = ""
    unused: tuple[str, ...] = ()
    reason: str = ""
    unsolved: str = ""
    right_labels: int | None = None
    candidates: int = 0
    power: tuple[float, ...] = ()
    lineups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


def attack_images(
    trial: ReplayedRun,
    data: Dataset,
    *,
    scenario: Scenario,
    preset: str | Preset,
    images: Tensor,
    labels: Tensor,
    prior_image: Tensor,
    generator: torch.Generator,
    batch: int = 1,
    candidates: Candidates | None = None,
    decoys: Candidates | None = None,
    denoiser: Denoiser | None = None,
    device: torch.device | None = None,
    progress: Callable[[str], None] | None = None,
    within: Progress | None = None,
) -> list[Row]:
    """The four rows for a set of images, planted together in groups, each in rounds of its own.

    Args:
        data: supplies bounds and pixels.
        scenario: what is intercepted.
        preset: settings of the reconstruction.
        images: (N, *shape) normalised public records.
        labels: (N,) their labels, which the attack does not see.
        prior_image: (*shape) normalised mean public image.
        generator: starts of the reconstruction.
        batch: how many records are planted at once; the last group may hold fewer.
        candidates: public records that single ones are weighed against, none of them planted.
        decoys: further public records, drawn as the planted ones were, for lineups of presets that
            weigh candidates.
        denoiser: as of `reconstruct`, for presets that weigh candidates.
        device: where to search; where the trial's rounds run by default.
        progress: called with a line after each group.
        within: called with (step, total, "") in each search.

    Returns:
        Rows in the order blind guess, no defence, clipping only, defended.

    Raises:
        ValueError: the algorithm does not have the scenario, or `batch` is no positive number.
    """
    whole("batch", batch, "[1, inf)")
    # The blind guess, by the mean image.
    truth = _pixels(data, images)
    guess = _pixels(data, prior_image.expand_as(images))
    groups = list(torch.arange(len(images)).split(batch))
    scores = _score_of(data, [(truth[g], guess[g]) for g in groups])
    settings, model = PRESETS[preset] if isinstance(preset, str) else preset, trial.setting.model
    weighs = settings.posterior and batch == 1
    pool = (
        None
        if decoys is None or not weighs
        else decoys.after(Candidates(inputs=images, labels=labels))
    )
    lots = torch.Generator().manual_seed(generator.initial_seed())  # leaves the starts as they were
    rows = [Row(name=BLIND, scores=scores, images=guess, stages=("",) * len(images))]
    for protection in Protection:
        # The same run under each protection.
        under = trial.under(protection)
        traces = trace_of(under)
        seen, found = list[Estimate](), list[Reconstruction | None]()
        ranked, power = list[Mapping[int, int]](), list[float]()
        for number, at in enumerate(groups):
            # A group is planted, intercepted and rebuilt.
            planted = Examples(images[at], labels[at])
            sent = _crafted(under, data, len(at), candidates, images=images, number=number)
            played = replay(
                under,
                planted,
                traces=traces,
                crafted={n: one.parameters for n, one in sent.items()},
            )
            estimate = intercept(played, scenario=scenario)
            seen.append(estimate)
            found.append(
                None
                if estimate.observation is None
                else reconstruct(
                    estimate.observation,
                    model,
                    preset=settings,
                    input_shape=tuple(images.shape[1:]),
                    classes=data.classes,
                    bounds=data.bounds,
                    generator=generator,
                    prior_image=prior_image,
                    candidates=candidates,
                    imprints=tuple(sent.values()),
                    denoiser=denoiser if weighs else None,
                    progress=within,
                    device=trial.setting.device if device is None else device,
                )
            )
            # An error that is a guess ranks nobody and has no power.
            if estimate.observation is not None and batch == 1 and not estimate.approximate:
                if pool is not None:
                    ranked.append(
                        ranks(estimate.observation, model, pool=pool, victim=number, generator=lots)
                    )
                if (settings.searches or denoiser) and estimate.observation.is_noisy:
                    power.append(
                        acceptance_power(
                            estimate.observation, model, inputs=images[number],
                            label=int(labels[number]), prior_image=prior_image,
                            classes=data.classes, generator=lots,
                        )
                    )  # fmt: skip
            if progress is not None:
                progress(f"{scenario}, {protection}: group {number + 1}/{len(groups)}")
        # Errors, labels, lineups and power of all groups.
        row = _row(data, protection, (truth, guess), groups=groups, seen=seen, found=found)
        right = [got == asked for got, asked in zip(row.labels, labels.tolist(), strict=True)]
        rows.append(
            replace(
                row,
                spectral=_spectral(seen, model),
                right_labels=sum(right) if min(row.labels) >= 0 else None,
                candidates=0 if candidates is None or not weighs else len(candidates),
                power=tuple(power),
                lineups=_lineups(ranked, len(images)),
            )
        )
    return rows


def _crafted(
    trial: ReplayedRun,
    data: Dataset,
    records: int,
    public: Candidates | None,
    *,
    images: Tensor,
    number: int,
) -> dict[int, Imprint]:
    """By round what an adversary that deviates sends to a batch; nothing of one that follows."""
    if not trial.parsed_adversary().deviates:
        return {}
    made = craft(
        trial.setting.model,
        input_shape=tuple(images.shape[1:]),
        classes=data.classes,
        bounds=data.bounds,
        records=records,
        generator=torch.Generator().manual_seed(number),
        public=None if public is None else public.inputs,
        rounds=trial.together,
    )
    return {n: one.to(dtype=trial.setting.dtype) for n, one in enumerate(made, start=trial.round)}


def _lineups(ranked: Sequence[Mapping[int, int]], images: int) -> dict[int, tuple[int, ...]]:
    """Ranks by size of lineup, where every image was observed."""
    if len(ranked) < images:
        return {}
    return {size: tuple(found[size] for found in ranked) for size in ranked[0]}


def _spectral(seen: Sequence[Estimate], model: nn.Module) -> str:
    """Of the first group that anything was observed of."""
    held = [e.observation for e in seen if e.observation is not None]
    if held and held[0].drift is not None:
        return "Not examined spectrally: the estimate rests on gradients that change slowly."
    return spectral_sentence(detectability(held[0], model)) if held else ""


def _row(
    data: Dataset,
    protection: Protection,
    known: tuple[Tensor, Tensor],
    *,
    groups: Sequence[Tensor],
    seen: Sequence[Estimate],
    found: Sequence[Reconstruction | None],
) -> Row:
    truth, blind = known
    pairs, stages, labels = list[tuple[Tensor, Tensor]](), list[str](), list[int]()
    for at, one, estimate in zip(groups, found, seen, strict=True):
        guess = blind[at] if one is None else _pixels(data, one.inputs.to(truth.dtype))
        pairs.append((truth[at], guess))
        stage = NOT_IDENTIFIED if one is None else one.stage
        stages += [f"{stage}, approximate" if estimate.approximate else stage] * len(at)
        labels += [-1] * len(at) if one is None else one.labels.tolist()
    scores = _score_of(data, pairs)
    paired = torch.cat([guess for _, guess in pairs])[list(scores.order)]
    held = [e.observation for e in seen if e.observation is not None]
    return Row(
        name=str(protection),
        scores=scores,
        images=paired,
        stages=tuple(stages[i] for i in scores.order),
        noise_std=max((o.noise_std * o.records for o in held), default=math.nan),
        intercepts=max((len(o.gradient) for o in held), default=0),
        labels=tuple(labels[i] for i in scores.order),
        unused=tuple(dict.fromkeys(name for e in seen for name in (*e.missing, *e.passed_over))),
        reason=next((e.reason for e in seen if e.observation is None), ""),
        unsolved=next((one.reason for one in found if one is not None and one.reason), ""),
    )


def _pixels(data: Dataset, inputs: Tensor) -> Tensor:
    return data.pixels(inputs.detach().cpu().float()).clamp(0.0, 1.0)


def _score_of(data: Dataset, pairs: Sequence[tuple[Tensor, Tensor]]) -> Scores:
    """Of images, or of rows of a table by the error of a record."""
    if not data.columns:
        return _score(pairs)
    by = Distance.of(data.columns)
    points = [
        (by.points(decoded(truth, data.columns)), by.points(decoded(guess, data.columns)))
        for truth, guess in pairs
    ]
    return _score(points, by.convention)


def score_each(truth: Tensor, guess: Tensor, *, convention: Convention = ORDINARY) -> Scores:
    """Scores of images (N, *shape) in [0, 1], paired already, on the scale of a convention."""
    return _score([(t[None], g[None]) for t, g in zip(truth, guess, strict=True)], convention)


def _score(pairs: Sequence[tuple[Tensor, Tensor]], convention: Convention = ORDINARY) -> Scores:
    """Each group of images against its own reconstructions, in any order within the group."""
    each = [match(truth, guess, convention=convention) for truth, guess in pairs]
    starts = np.cumsum([0, *(len(s.order) for s in each)]).tolist()
    return Scores(
        mse=tuple(x for s in each for x in s.mse),
        psnr=tuple(x for s in each for x in s.psnr),
        ssim=tuple(x for s in each for x in s.ssim),
        order=tuple(start + i for start, s in zip(starts, each, strict=False) for i in s.order),
    )
