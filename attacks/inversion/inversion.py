"""Gradient inversion: the batch whose gradient, clipped likewise, explains an observation.

    labels   = given | read from the last layer | the likeliest of one record, under noise or where
             losses are combined | optimised beside the inputs
    exact    : `exact_stages`; a part of a batch may be left to the search
    optimise : `descent`, from several starts; of one record under noise by a denoiser too, if one
               is given (`denoised`), and the way that explains a held-out half best is taken
    weigh    : under noise the labels, and the images that follow, by public records (`posterior`)
    fall back: an image that the gradient does not speak for (`fallback`) becomes the posterior's,
               or without candidates the public prior image
    drift    : of an estimate whose error is a guess nothing is weighed or split; the image is drawn
               to the public one as far as rehearsals on public records ask for (`rehearsal`)

Everything that is decided here is decided from the observation. Under so much noise that the test
of the fallback would keep next to no public record, a search could change nothing, and none is
begun where candidates were weighed.

Shape letters: B records, C classes, D parameters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from ...privacy._validate import Progress
from ...privacy.errors import InputError
from ...training.device.precision import full_precision
from ..exact.stages import FIRST_LAYER, Part, Unsolved, part_name, solve_exactly
from ..posterior.candidates import Candidates
from ..posterior.denoised import Denoiser, denoised
from ..posterior.posterior import Posterior, weigh
from ..problem.imprint import Imprint
from ..problem.labels import recover_labels
from ..problem.observation import HOST, Observation
from ..problem.presets import Preset, preset_of
from ..problem.problem import Found, Problem, home_of
from ..tokens.lookup import token_table
from .anchor import anchored, steadied
from .checkpoint import Checkpoint
from .fallback import Search, best_of, distance_left, fall_back, says_more
from .optimisation import optimise
from .pose import asks_likelihood, likeliest, name_of, pose, read_labels
from .power import is_hopeless
from .rehearsal import rehearsed_share


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reconstruction:
    """A batch that explains an observation.

    Attributes:
        inputs: (records, *shape) in normalised units, inside the bounds.
        labels: (records,) class indices.
        objective: what the chosen start reached, without prior terms; comparable within one preset.
        iterations: optimiser steps that were taken, over all starts.
        stage: of `STAGES`, "optimisation", how many of a batch are certified and how many
            optimised, "denoiser", "posterior" (the mean of public records by their likelihood), or
            "prior" where every image is the prior image.
        supported: (records,) booleans: False where the image is the prior image.
        reason: why algebra found nothing where every image is the prior image, in words, if a stage
            has a reason to tell.
    """

    inputs: Tensor
    labels: Tensor
    objective: float
    iterations: int
    stage: str
    supported: tuple[bool, ...]
    reason: str = ""


def reconstruct(
    observation: Observation,
    model: nn.Module,
    *,
    preset: str | Preset,
    input_shape: Sequence[int],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    generator: torch.Generator,
    labels: Tensor | None = None,
    prior_image: Tensor | None = None,
    candidates: Candidates | None = None,
    imprints: Sequence[Imprint] = (),
    denoiser: Denoiser | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    device: torch.device | None = None,
) -> Reconstruction:
    """Rebuild a batch from its gradient.

    Args:
        observation: one batch's gradient as an adversary estimates it.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        preset: a name in `PRESETS`, or settings.
        input_shape: shape of one record, channels first.
        classes: number of classes C.
        bounds: (low, high) of the normalised inputs: scalars or per channel.
        generator: source of the starts.
        labels: (records,) labels where the attacker knows them.
        prior_image: (*input_shape) public guess in normalised units, such as the mean public image:
            what an image falls back to. Without it nothing falls back.
        candidates: public records to weigh where one record is observed; they must not hold it.
        imprints: the models among its points that the attacker crafted.
        denoiser: what pictures are without noise, as f(pixels (B, *shape) on the unit box,
            noise_std): a prior of one record that is observed under noise.
        progress: called with (step, total).
        checkpoint: file that keeps the search's state and from which an interrupted one goes on,
            to the same result bit by bit; deleted at the end. Its folder must exist.
        device: where to compute; that of the observation by default. What needs float64 runs on the
            CPU where the device has none, and what is drawn is drawn on the CPU.

    Returns:
        The reconstruction, on the CPU.

    Raises:
        ValueError: the preset is unknown or cannot do without candidates and one record, the model
            takes tokens, a shape disagrees with the observation, or the checkpoint belongs to
            another problem.

    >>> from overhear.attacks.problem.observation import observe
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> flat, x = torch.linspace(1, -1, 26), torch.tensor([[0.2, 0.9, 0.4]])
    >>> seen = observe(
    ...     model, flat, inputs=x, targets=torch.tensor([1]), clip_norm=1.0, noise_std=0.0,
    ...     generator=torch.Generator(),
    ... )
    >>> found = reconstruct(
    ...     seen, model, preset="matched", input_shape=(3,), classes=2,
    ...     bounds=(torch.tensor(0.0), torch.tensor(1.0)), generator=torch.Generator(),
    ... )
    >>> found.stage, found.labels.tolist(), round((found.inputs - x).abs().max().item(), 4)
    ('exact', [1], 0.0)
    """
    if isinstance(preset, str):
        preset = preset_of(preset)
    known = candidates is not None or (denoiser is not None and observation.is_noisy)
    if (
        not preset.searches
        and observation.drift is None
        and (not known or observation.records != 1)
    ):
        raise InputError(
            f"a preset that searches nothing needs candidates and records=1, not "
            f"records={observation.records}; give public records, or use another preset"
        )
    if len(input_shape) == 1 and token_table(model, input_shape) is not None:
        raise InputError(
            "the model looks its inputs up in an embedding, so its records are tokens, which are "
            "not searched for; use reconstruct_tokens"
        )
    problem = pose(
        observation,
        model,
        preset=preset,
        shape=tuple(input_shape),
        classes=classes,
        bounds=bounds,
        labels=labels,
        prior_image=prior_image,
        device=observation.gradient.device if device is None else device,
    )
    problem = replace(problem, imprints=tuple(imprints))
    kept = None if checkpoint is None else Checkpoint(path=checkpoint, problem=name_of(problem))
    problem = problem.to(device=home_of(problem.device))
    with full_precision():  # as the gradients that were observed were computed
        if observation.drift is not None:
            return _of_drift(problem, candidates, generator, given=labels is not None)
        weighed = _weighed(problem, candidates, generator)
        if weighed is not None and labels is None and problem.observation.is_noisy:
            problem = replace(problem, labels=weighed.labels.argmax()[None])
        elif labels is None and asks_likelihood(problem):
            problem = replace(problem, labels=likeliest(problem))
        guided = denoiser is not None and observation.records == 1 and observation.is_noisy
        if weighed is not None and (
            not (preset.searches or guided) or is_hopeless(problem, candidates, _again(generator))
        ):
            return _of_posterior(problem, weighed, dtype=observation.gradient.dtype)
        if guided and denoiser is not None:
            way = functools.partial(
                denoised,
                denoiser=denoiser,
                labels=None if weighed is None else weighed.labels,
                given=labels is not None,
            )
            done = _guided(problem, way, generator, dtype=observation.gradient.dtype)
        else:
            solved = solve_exactly(problem, generator) if preset.exact else None
            if isinstance(solved, Part):
                found = _complete(problem, solved, generator, progress=progress)
            else:
                held = steadied(problem)
                found = (
                    solved
                    if isinstance(solved, Found)
                    else anchored(
                        held, optimise(held, generator, progress=progress, checkpoint=kept)
                    )
                )
            search = functools.partial(
                _searched, generator=generator, exact=found.stage == FIRST_LAYER.name
            )
            done = _kept(problem, found, generator, search=search, dtype=observation.gradient.dtype)
            if isinstance(solved, Unsolved) and not any(done.supported):
                done = replace(done, reason=solved.reason)
        if weighed is not None and problem.observation.is_noisy and not any(done.supported):
            done = _of_posterior(
                problem, weighed, dtype=observation.gradient.dtype, iterations=done.iterations
            )
        elif candidates is not None and not problem.observation.is_noisy:
            done = _of_class(problem, done, candidates)
    if kept is not None:
        kept.remove()
    return done


def _weighed(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator
) -> Posterior | None:
    """The posterior over candidates, where it says more than the search can."""
    seen, preset = problem.observation, problem.preset
    if candidates is None or not preset.posterior or seen.records != 1:
        return None
    if preset.searches and not seen.is_noisy:
        return None
    return weigh(seen, problem.model, candidates, classes=problem.classes, generator=generator)


def _again(generator: torch.Generator) -> torch.Generator:
    """A source of draws by the same seed, which leaves the first one as it is."""
    return torch.Generator().manual_seed(generator.initial_seed())


def _searched(problem: Problem, *, generator: torch.Generator, exact: bool) -> Found:
    """One record, by the exact stages first if these are asked for."""
    solved = solve_exactly(problem, generator) if exact else None
    return solved if isinstance(solved, Found) else optimise(problem, generator, progress=None)


def _guided(
    problem: Problem, way: Search, generator: torch.Generator, *, dtype: torch.dtype
) -> Reconstruction:
    """One record under noise, by a denoiser or by the preset's own search."""
    ways = [way]
    if problem.preset.searches:
        own = functools.partial(_searched, generator=generator, exact=problem.preset.exact)
        ways.append(own)
    at, held = best_of(problem, ways, generator)
    found = ways[at](problem)
    return _kept(problem, found, generator, search=ways[at], held=held, dtype=dtype)


def _of_drift(
    problem: Problem, candidates: Candidates | None, generator: torch.Generator, *, given: bool
) -> Reconstruction:
    """What rehearsals on public records trust of a batch whose estimate rests on a prior."""

    def way(posed: Problem) -> Found:
        posed = posed if given else read_labels(posed)
        return _searched(posed, generator=generator, exact=posed.preset.exact)

    if problem.prior_image is None:
        grey = problem.box.span.new_full(problem.shape, 0.5)
        problem = replace(problem, prior_image=grey)
    prior, records = problem.prior_image, problem.observation.records
    assert prior is not None  # noqa: S101 # set above
    found, share = None, 0.0
    if problem.preset.searches:
        found = way(problem)
        share = rehearsed_share(problem, candidates, _again(generator), way=way)
    labels = found.labels if found is not None else read_labels(problem).labels
    pixels = prior.expand(records, *prior.shape)
    if found is not None and share > 0:
        pixels = prior + share * (found.pixels - prior)
    return Reconstruction(
        inputs=problem.box.inputs(pixels).to(HOST, problem.observation.gradient.dtype),
        labels=torch.full((records,), -1) if labels is None else labels.to(HOST),
        objective=math.nan if labels is None else distance_left(problem, pixels, labels),
        iterations=0 if found is None else found.iterations,
        stage=found.stage if found is not None and share > 0 else "prior",
        supported=(share > 0,) * records,
    )


def _kept(
    problem: Problem,
    found: Found,
    generator: torch.Generator,
    *,
    search: Search,
    dtype: torch.dtype,
    held: bool | None = None,
) -> Reconstruction:
    """What was found, or the prior image where the observation does not speak for it."""
    kept = fall_back(problem, found, generator, search=search, held=held)
    return Reconstruction(
        inputs=problem.box.inputs(kept.pixels).to(HOST, dtype),
        labels=found.labels.to(HOST),
        objective=kept.reached,
        iterations=found.iterations,
        stage=found.stage if any(kept.supported) else "prior",
        supported=kept.supported,
    )


def _of_posterior(
    problem: Problem, weighed: Posterior, *, dtype: torch.dtype, iterations: int = 0
) -> Reconstruction:
    """The mean of the candidates and the likeliest label."""
    labels = weighed.labels.argmax()[None]
    pixels = problem.box.pixels(weighed.picture.to(problem.box.span)).clamp(0, 1)[None]
    return Reconstruction(
        inputs=problem.box.inputs(pixels).to(HOST, dtype),
        labels=labels.to(HOST),
        objective=distance_left(problem, pixels, labels),
        iterations=iterations,
        stage="posterior",
        supported=(True,),
    )


def _of_class(problem: Problem, done: Reconstruction, candidates: Candidates) -> Reconstruction:
    """Without noise labels are no guess: an image that falls back is the mean of its class.

    Of gradients that are combined the label is the likeliest one: the mean of a class then has to
    explain more than the prior image does under any label.
    """
    inputs = done.inputs.clone()
    for record, (label, kept) in enumerate(zip(done.labels, done.supported, strict=True)):
        of_class = candidates.inputs[candidates.labels == label]
        if kept or not len(of_class):
            continue
        mean = of_class.mean(dim=0)
        if problem.observation.is_plain or says_more(problem, mean, label):
            inputs[record] = mean.to(inputs)
    return replace(done, inputs=inputs)


def _complete(
    problem: Problem, part: Part, generator: torch.Generator, *, progress: Progress | None
) -> Found:
    """The certified records, and the others by a search on what they leave of the gradient."""
    labels = None
    if problem.labels is not None:
        labels = recover_labels(part.rest, problem.model, classes=problem.classes)
        labels = None if labels is None else labels.to(part.labels.device)
    rest = replace(problem, observation=part.rest, labels=labels)
    found = optimise(rest, generator, progress=progress)
    return Found(
        pixels=torch.cat([part.pixels, found.pixels.to(part.pixels)]),
        labels=torch.cat([part.labels, found.labels]),
        iterations=found.iterations,
        stage=part_name(len(part.pixels), len(found.pixels)),
    )
