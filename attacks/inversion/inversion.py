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

from ...privacy.errors import InputError, Progress
from ...training.device.precision import full_precision
from ..exact import stages
from ..exact.stages import FIRST_LAYER, Unsolved, solve_exactly, told_by_tables
from ..posterior import Candidates, Denoiser, Posterior, denoised, weigh
from ..problem.columns import Behind, Columns, Given, behind, columns_of, scaled_of
from ..problem.labels import (
    last_layer,
    likeliest_label,
    recognised,
    recover_labels,
    stands_out,
    sums_to_zero,
)
from ..problem.layers import in_call_order, of_any_type
from ..problem.objective import Preset, preset_of
from ..problem.observation import HOST, Observation
from ..problem.problem import (
    Found,
    Imprint,
    OtherLoss,
    Problem,
    build_box,
    check_repeatable,
    home_of,
    with_buffers,
)
from ..tokens.layers import token_table
from .fallback import (
    Search,
    anchored,
    best_of,
    distance_left,
    fall_back,
    guessed,
    is_hopeless,
    rehearsed_share,
    says_more,
    speaks_for,
    steadied,
)
from .optimisation import Checkpoint, by_slopes, finishes, name_of, optimise, with_slopes

# The problem that an attacker poses, with labels as far as it has them.
#
# Shape letters: B records.


def build_problem(
    observation: Observation,
    model: nn.Module,
    *,
    preset: Preset,
    shape: tuple[int, ...],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    labels: Tensor | None,
    prior_image: Tensor | None,
) -> Problem:
    """The problem on the CPU, where its labels are read."""
    if labels is not None and labels.shape != (observation.records,):
        raise InputError(
            f"labels of shape {tuple(labels.shape)} must be ({observation.records},), "
            "one per record of the observation"
        )
    if prior_image is not None and tuple(prior_image.shape) != shape:
        raise InputError(f"prior_image of shape {tuple(prior_image.shape)} must be {shape}")
    # Noise hides what float64 adds; L-BFGS without it stalls at float32's rounding.
    dtype = torch.float64 if finishes(preset, observation) else torch.float32
    box = build_box(bounds, shape, dtype=dtype)
    posed = observation.to(device=HOST)
    posed = replace(posed, gradient=posed.gradient.to(dtype), points=posed.points.to(dtype))
    if labels is None and not preset.joint_labels:
        labels = recover_labels(posed, model, classes=classes)
    if prior_image is not None:
        prior_image = box.pixels(prior_image.to(HOST, dtype)).clamp(0, 1)
    return Problem(
        observation=posed,
        model=with_buffers(model, dtype),
        preset=preset,
        box=box,
        shape=shape,
        classes=classes,
        labels=None if labels is None else labels.to(HOST),
        prior_image=prior_image,
    )


def read_labels(problem: Problem) -> Problem:
    """The same with the labels (B,) that its observation tells, where they are not optimised."""
    if problem.labels is None:
        return problem
    read = recover_labels(problem.observation, problem.model, classes=problem.classes)
    problem = problem if read is None else replace(problem, labels=read.to(problem.labels.device))
    return replace(problem, labels=likeliest(problem)) if asks_likelihood(problem) else problem


def asks_likelihood(problem: Problem) -> bool:
    """Whether the last layer hides one record's label: by noise, or since losses are combined.

    Of a difference of gradients at two points, or of a task's loss, signs tell nothing.
    """
    seen, preset = problem.observation, problem.preset
    if seen.records != 1:
        return False
    combined = seen.task is not None or seen.points.shape[1] > 1
    if not seen.is_noisy:
        return combined and not preset.joint_labels
    return (
        preset.follow_noise
        and problem.prior_image is not None
        and (combined or not stands_out(seen, problem.model, classes=problem.classes))
    )


def likeliest(problem: Problem) -> Tensor:
    """(1,) label under which the public image, or a grey one, explains the observation best."""
    prior = problem.prior_image
    grey = problem.box.span.new_full(problem.shape, 0.5)
    image = problem.box.inputs(grey if prior is None else prior)
    return likeliest_label(problem.observation, problem.model, image=image, classes=problem.classes)


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
        supported: (records,) booleans: False where the image is the prior image, or a posterior's
            for which the observation does not speak beyond that.
        reason: why algebra found nothing where every image is the prior image, in words, if a stage
            has a reason to tell.
        loss: where what is exact is so under another loss than the declared one, what it is.
    """

    inputs: Tensor
    labels: Tensor
    objective: float
    iterations: int
    stage: str
    supported: tuple[bool, ...]
    reason: str = ""
    loss: OtherLoss | None = None


@of_any_type
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
        progress: called with (step, total, words).
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
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    >>> flat, x = torch.linspace(1, -1, 31).sin(), torch.tensor([[0.2, 0.9, 0.4]])
    >>> seen = observe(
    ...     model, flat, inputs=x, targets=torch.tensor([1]), clip_norm=1.0, noise_std=0.0,
    ...     generator=torch.Generator(),
    ... )
    >>> found = reconstruct(
    ...     seen, model, preset="matched", input_shape=(3,), classes=3,
    ...     bounds=(torch.tensor(0.0), torch.tensor(1.0)), generator=torch.Generator(),
    ... )
    >>> found.stage, found.labels.tolist(), round((found.inputs - x).abs().max().item(), 4)
    ('exact', [1], 0.0)
    """
    # What the preset can do with this observation and these records.
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
    inner, point = isinstance(model, (Behind, Given)), observation.points[0, 0]
    odd = observation.drift is not None or any(isinstance(c, Tensor) for c in observation.coefs)
    columns = None if inner or odd else columns_of(model, tuple(input_shape), point, bounds=bounds)
    given = None if columns is None else columns.given(observation, model)

    def posed(labels: Tensor) -> Problem:
        """The problem of the whole network, by which a part of it is checked."""
        return build_problem(
            observation.to(device=HOST), model, preset=preset, shape=tuple(input_shape),
            classes=classes, bounds=bounds, labels=labels, prior_image=None,
        )  # fmt: skip

    if given is not None and given.numbers:
        at, low = given.numbers, bounds[0].expand(tuple(input_shape))[given.numbers]
        high = bounds[1].expand(tuple(input_shape))[at]
        some = candidates and replace(candidates, inputs=candidates.inputs[:, at])
        rebuilt = reconstruct(
            observation, given, preset=preset, input_shape=low.shape, classes=classes,
            bounds=(low, high), generator=generator, labels=labels, device=device,
            candidates=some, prior_image=None if prior_image is None else prior_image[at],
            progress=progress, checkpoint=checkpoint,
        )  # fmt: skip
        record = given.records(rebuilt.inputs)
        one, alike = told_by_tables(posed(rebuilt.labels), given, record)
        return replace(
            rebuilt, inputs=record, stage=rebuilt.stage if one else "optimisation",
            supported=tuple(of and not alike for of in rebuilt.supported),
        )  # fmt: skip
    front = columns if given is None and isinstance(columns, Columns) else None
    taken = None if front is None else behind(front, observation, model)
    if front is not None and taken is not None:
        (rest, network), (low, high) = taken, front.bounds(*bounds)
        fed = candidates and replace(candidates, inputs=front.fed(candidates.inputs))
        rebuilt = reconstruct(
            rest, network, preset=preset, input_shape=low.shape, classes=classes,
            bounds=(low, high), generator=generator, labels=labels, candidates=fed,
            prior_image=None if prior_image is None else front.fed(prior_image),
            progress=progress, checkpoint=checkpoint, device=device,
        )  # fmt: skip
        records, right = front.read(rebuilt.inputs, observation, model)
        by, sure = (rebuilt.stage, records, rebuilt.labels), all(right)
        if sure and (network.in_part or front.is_trained(observation, model)):
            sure = stages.is_explained(posed(rebuilt.labels), *by)
        sure |= not any(rebuilt.supported)
        return replace(
            rebuilt, inputs=records, loss=rebuilt.loss if all(right) else None,
            stage=rebuilt.stage if sure else "optimisation",
            supported=tuple(a and b for a, b in zip(rebuilt.supported, right, strict=True)),
        )  # fmt: skip
    tokens = columns is None and len(input_shape) == 1 and not inner
    if tokens and token_table(model, input_shape) is not None:
        raise InputError(
            "the model looks its inputs up in an embedding, so its records are tokens, which are "
            "not searched for; use reconstruct_tokens"
        )
    box = build_box(bounds, tuple(input_shape), dtype=torch.float32)
    drawn = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    check_repeatable(model, box.inputs(drawn))
    if not inner:
        observation, model = in_call_order(observation, model, box.inputs(drawn))
    # The problem on the device; a checkpoint knows it by name.
    where = observation.gradient.device if device is None else device
    observation = observation.to(device=HOST)
    if not imprints:  # crafted models leave most of a gradient at 0 themselves
        observation, _ = recognised(observation, model, classes=classes)
    problem = build_problem(
        observation,
        model,
        preset=preset,
        shape=tuple(input_shape),
        classes=classes,
        bounds=bounds,
        labels=labels,
        prior_image=prior_image,
    )
    problem = replace(problem, imprints=tuple(imprints), device=where)
    kept = None if checkpoint is None else Checkpoint(path=checkpoint, problem=name_of(problem))
    problem = problem.to(device=home_of(problem.device))
    with full_precision():  # as the gradients that were observed were computed
        if observation.drift is not None:
            return _of_drift(problem, candidates, generator, given=labels is not None)
        # What public records tell, of the label first, which may be all.
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
        # By the denoiser, or exactly, or by a search for what exact stages leave.
        if guided and denoiser is not None:
            way = functools.partial(
                denoised,
                denoiser=denoiser,
                labels=None if weighed is None else weighed.labels,
                given=labels is not None,
            )
            done = _guided(problem, way, generator, dtype=observation.gradient.dtype)
        else:
            solved: Found | Unsolved | None
            solved = None
            if given is not None:
                solved = told_by_tables(problem, given, given.record[None])[0]
            if solved is None and preset.exact:
                solved = _exactly(problem, generator)
            if isinstance(solved, Found) and solved.rest is not None:
                found = _complete(problem, solved, solved.rest, generator, progress=progress)
            elif isinstance(solved, Found):
                found = solved
            elif columns is not None and given is None and not inner:
                found, solved = guessed(problem), Unsolved(reason=stages.LOOKED_UP)
            else:
                found = _by_search(problem, generator, progress=progress, kept=kept)
                if found.stage == "prior":
                    solved = Unsolved(reason=stages.ONE_OUTPUT)
            search = functools.partial(
                _searched, generator=generator, exact=found.stage == FIRST_LAYER.name
            )
            done = _kept(problem, found, generator, search=search, dtype=observation.gradient.dtype)
            if isinstance(solved, Unsolved) and not any(done.supported):
                done = replace(done, reason=solved.reason)
        # Under noise the candidates' posterior stands in for what nothing supports.
        if weighed is not None and problem.observation.is_noisy and not any(done.supported):
            done = _of_posterior(
                problem, weighed, dtype=observation.gradient.dtype, iterations=done.iterations
            )
        elif candidates is not None and not problem.observation.is_noisy:
            done = _of_class(problem, done, candidates)
    if kept is not None:
        kept.remove()
    return done


_UNEXPLAINED = 1e-2
"""Distance at which another loss is tried."""


def _exactly(problem: Problem, generator: torch.Generator) -> Found | Unsolved | None:
    """By exact stages, also behind what a network does to each number by itself."""
    solved, seen = solve_exactly(problem, generator), problem.observation
    plain = seen.is_plain and not seen.is_noisy and not problem.imprints
    if isinstance(solved, Found) or not plain or isinstance(problem.model, Behind):
        return solved
    ends = problem.box.low, problem.box.low + problem.box.span
    front = scaled_of(problem.model, problem.shape, seen.points[0, 0], bounds=ends)
    if front is None or (taken := behind(front, seen, problem.model)) is None:
        return solved
    low, high = front.bounds(*ends)
    posed = replace(
        problem, observation=taken[0], shape=tuple(low.shape), prior_image=None,
        model=with_buffers(taken[1], problem.box.span.dtype),
        box=build_box((low, high), low.shape, dtype=problem.box.span.dtype),
    )  # fmt: skip
    found = solve_exactly(posed, generator)
    if not isinstance(found, Found) or found.rest is not None:
        return solved
    inputs = front.records(posed.box.inputs(found.pixels))
    told = not taken[1].in_part or stages.is_explained(problem, found.stage, inputs, found.labels)
    return replace(found, pixels=problem.box.pixels(inputs)) if told else solved


def _by_search(
    problem: Problem,
    generator: torch.Generator,
    *,
    progress: Progress | None,
    kept: Checkpoint | None,
) -> Found:
    """What a search finds: under any loss where the last bias tells of another than declared.

    Where no such bias is, the declared loss is tried first.
    """
    free, classes = with_slopes(problem, _again(generator)), problem.classes
    last = last_layer(problem.observation, problem.model, classes=classes)
    bias = None if last is None else last.bias
    if free is not None and (classes == 1 or (bias is not None and not sums_to_zero(bias))):
        named = None if kept is None else replace(kept, problem=name_of(free))
        return by_slopes(free, generator, progress=progress, checkpoint=named)
    if classes == 1:
        return guessed(problem)
    held = steadied(problem)
    found = anchored(held, optimise(held, generator, progress=progress, checkpoint=kept))
    if free is None or bias is not None:
        return found
    if distance_left(problem, found.pixels, found.labels) <= _UNEXPLAINED:
        return found
    other = by_slopes(free, generator, progress=progress)
    return other if any(other.supported) else found


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
    # As much of the search is kept as it earned in rehearsals on public records.
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
        iterations=kept.iterations,
        stage=kept.stage if any(kept.supported) else "prior",
        supported=kept.supported,
        loss=found.loss if any(kept.supported) else None,
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
        supported=(speaks_for(problem, weighed),),
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
    problem: Problem,
    part: Found,
    rest: Observation,
    generator: torch.Generator,
    *,
    progress: Progress | None,
) -> Found:
    """The certified records, and the others by a search on what they leave of the gradient."""
    labels = None
    if problem.labels is not None:
        labels = recover_labels(rest, problem.model, classes=problem.classes)
        labels = None if labels is None else labels.to(part.labels.device)
    found = optimise(
        replace(problem, observation=rest, labels=labels), generator, progress=progress
    )
    return replace(
        part,
        pixels=torch.cat([part.pixels, found.pixels.to(part.pixels)]),
        labels=torch.cat([part.labels, found.labels]),
        iterations=found.iterations,
    )
