"""The exact stages, one after the other, before anything is optimised.

    first layer   one record: the input of a linear first layer, by rank 1, under noise too; its
                  label is read, or tried where the gradient is not of one cross-entropy
    rank one      one record of several local steps that were taken otherwise than was declared
    patches       one record: a patch embedding with learned positions, without noise
    peeling       one record: layer after layer from the last to the first, without noise
    censored      one record: the same where sigmoids are at their ends and tell bounds alone
    corners       several records: numbers at the ends of the box, as in tables, without noise
    separation    several records: the activation patterns of a ReLU network, without noise
    imprint       records on a model that the adversary crafted, without noise

Corners and separation run on the CPU, whatever the problem's device is.

What a stage finds is accepted by the gradient that it would have sent, never by the truth. Where
only some records of a batch are certified, their gradients are subtracted and the rest remains as
an observation of fewer records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..problem.observation import HOST, Observation, sent_gradients
from ..problem.problem import Found, Problem, squared_size
from .attended import attended_patches
from .censored import censored_record
from .first_layer import PICTURE, first_linear_input, residual, rounding_of_input
from .imprinted import isolate
from .patches import embedded_patches
from .rank_one import RANK_ONE, repeated_input
from .rgap import peel
from .separation.corners import records_at_corners
from .separation.spear import separate

FIRST_LAYER = "first layer"  # the stage that speaks for itself under noise
IMPRINT = "imprint"  # the stage of a model that was crafted
_IMPRINTED = 1e-3  # residual of a whole batch of which each record fills its slot to a third of it
_TRUSTED = 0.05  # predicted error of a pixel up to which a noisy first layer needs no search
_TRUSTED_PICTURE = 0.7  # the same of a picture, whose noise is smoothed away before
_EXPLAINED = 1e-4  # float32 gradients leave about 1e-6; a wrong input leaves about 1
_DETERMINED = 1e-2  # the same of a picture that the equations determine: a ReLU on its edge turns
_ROUNDED = 5.0  # times what rounding of messages may leave


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """The certified records of a batch, and what is left to find.

    Attributes:
        pixels: (F, *shape) certified records on the unit box.
        labels: (F,) their classes.
        rest: the batch without them.
    """

    pixels: Tensor
    labels: Tensor
    rest: Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class Unsolved:
    """Why the stage that came farthest found nothing that it certifies, in words."""

    reason: str


def solve_exactly(problem: Problem, generator: torch.Generator) -> Found | Part | Unsolved | None:
    """The whole batch, a part of it, or nothing.

    Args:
        problem: the posed problem.
        generator: of random combinations; decides nothing that is accepted.

    Returns:
        What explains the observation; None where no stage applies or none succeeds, with the reason
        where there is one to tell.
    """
    found = _first_layer(problem)
    if found is not None or problem.observation.is_noisy:
        return found
    if problem.imprints and (imprinted := _imprinted(problem)) is not None:
        return imprinted
    if problem.observation.records == 1:
        return _patched(problem) or _peeled(problem) or _censored(problem)
    # Ranks are read from gaps of rounding's size, by decompositions of many small matrices and by
    # least squares without full rank: LAPACK's work, which devices do otherwise or not at all.
    host = problem.to(device=HOST)
    corners = records_at_corners(
        host.observation, host.model, input_shape=host.shape, box=host.box, generator=generator
    )
    first = None if corners is None else _told_apart(problem, corners.inputs, corners.labels)
    if isinstance(first, Found):
        return first
    if first is not None:
        host = replace(host, observation=first.rest.to(device=HOST), labels=None)
        if first.rest.records == 1:
            last = _first_layer(replace(problem, observation=first.rest, labels=None))
            return first if last is None else _joined(problem, first, last.pixels, last.labels)
    separated = separate(
        host.observation, host.model, input_shape=host.shape, box=host.box, generator=generator
    )
    if separated is None or separated.labels is None:
        return first
    if first is None:
        return _told_apart(problem, separated.inputs, separated.labels)
    pixels = problem.box.pixels(separated.inputs.to(problem.box.span))
    return _joined(problem, first, pixels, separated.labels)


def _joined(problem: Problem, part: Part, pixels: Tensor, labels: Tensor) -> Found | Part:
    """A part of the batch and further certified records."""
    every = torch.cat([part.pixels, pixels.to(part.pixels)])
    joined = _told_apart(
        problem, problem.box.inputs(every), torch.cat([part.labels, labels.to(part.labels)])
    )
    return part if joined is None else joined


def first_layer(problem: Problem) -> Tensor | None:
    """The input that the first layer's gradient gives away, (1, *shape) in normalised units."""
    prior = None if problem.prior_image is None else problem.box.inputs(problem.prior_image)
    return first_linear_input(
        problem.observation,
        problem.model,
        input_shape=problem.shape,
        box=problem.box,
        prior_image=prior,
    )


def _first_layer(problem: Problem) -> Found | None:
    """The first linear layer's input, where its gradient is the observed one or noise is small."""
    seen = problem.observation
    if (inputs := first_layer(problem)) is None:
        return None
    if not seen.is_noisy:
        return _under_some_label(problem, inputs) or _repeated(problem)
    if problem.labels is None:
        return None
    # The prior of a search draws the brightness down, which the bias alone holds up.
    factor = math.sqrt(float(problem.box.pixels(inputs).square().sum()) + 1)
    energy = squared_size(seen) - seen.gradient.numel() * seen.noise_std**2
    trusted = _TRUSTED_PICTURE if len(problem.shape) == PICTURE else _TRUSTED
    if seen.noise_std * factor > trusted * math.sqrt(max(energy, 0.0)):
        return None
    pixels = problem.box.pixels(inputs)
    return Found(pixels=pixels, labels=problem.labels, iterations=0, stage=FIRST_LAYER)


def _repeated(problem: Problem) -> Found | None:
    """The record of several local steps, by the spectrum of what these changed."""
    seen, labels = problem.observation, problem.labels
    found = repeated_input(
        seen, problem.model, input_shape=problem.shape, box=problem.box, classes=problem.classes
    )
    if found is None:
        return None
    if labels is None:
        labels = _best_label(problem, found)
    pixels = problem.box.pixels(found)
    return Found(pixels=pixels, labels=labels.to(found.device), iterations=0, stage=RANK_ONE)


def _best_label(problem: Problem, inputs: Tensor) -> Tensor:
    """(1,) the label under which an input explains the gradient best."""
    every = torch.arange(problem.classes, device=inputs.device)[:, None]  # (C, 1)
    left = [
        residual(problem.observation, problem.model, inputs=inputs, targets=label)
        for label in every
    ]
    return every[left.index(min(left))]


def _patched(problem: Problem) -> Found | None:
    """The patches of a picture, under the label that explains the gradient best."""
    seen, labels = problem.observation, problem.labels
    shape, box, stage = problem.shape, problem.box, "patches"
    found = embedded_patches(seen, problem.model, input_shape=shape, box=box)
    if found is None:
        stage = "patches at their places"
        found = attended_patches(seen, problem.model, input_shape=shape, box=box)
    if found is None:
        return None
    if labels is None:
        labels = _best_label(problem, found)
    return _accepted(problem, found, labels, stage=stage, allowed=_DETERMINED)


def _under_some_label(problem: Problem, inputs: Tensor) -> Found | None:
    """The input under the label that was read, or else under any that explains the gradient.

    The last layer's signs tell the label of one gradient of the cross-entropy. A difference of
    gradients at two points has other signs, and so may a task's loss: each class is tried. The
    input is determined; where its quotient enlarges what messages rounded, it may leave more.
    """
    rounded = rounding_of_input(problem.observation, problem.model, input_shape=problem.shape)
    allowed = min(_ROUNDED * rounded, _DETERMINED)
    device, read = inputs.device, problem.labels
    first = [] if read is None else [read.to(device)]
    every = [torch.tensor([k], device=device) for k in range(problem.classes)]
    for labels in first if problem.observation.is_plain and first else [*first, *every]:
        found = _accepted(problem, inputs, labels, stage="exact", allowed=allowed)
        if found is not None:
            return found
    return None


def _peeled(problem: Problem) -> Found | None:
    found = peel(
        problem.observation,
        problem.model,
        input_shape=problem.shape,
        box=problem.box,
        accepted=_allowed(problem.observation),
    )
    if found is None:
        return None
    # Its residual allows for what float32 has rounded off a sure network's gradient.
    pixels = problem.box.pixels(found.inputs.to(problem.box.span))
    labels = found.labels.to(problem.box.span.device)
    return Found(pixels=pixels, labels=labels, iterations=0, stage="peeling")


def _censored(problem: Problem) -> Found | Unsolved | None:
    # Its weighted misfit and the errors that it predicts certify; the plain residual of a saturated
    # network is mostly that of slopes which float32 has rounded.
    found = censored_record(
        problem.observation, problem.model, input_shape=problem.shape, box=problem.box
    )
    if found is None:
        return None
    if not found.certified:
        return Unsolved(reason=found.reason) if found.saturated else None
    pixels = problem.box.pixels(found.inputs.to(problem.box.span))
    labels = found.labels.to(problem.box.span.device)
    return Found(pixels=pixels, labels=labels, iterations=0, stage="censored")


def _imprinted(problem: Problem) -> Found | Part | None:
    """The records that crafted models isolate; each is certified by the slot that it fills."""
    seen = problem.observation
    found = isolate(seen, problem.model, problem.imprints, box=problem.box, classes=problem.classes)
    if found is None:
        return None
    if len(found.labels) == seen.records:
        return _accepted(problem, found.inputs, found.labels, stage=IMPRINT, allowed=_IMPRINTED)
    return _part(problem, found.inputs, found.labels)


def _told_apart(problem: Problem, inputs: Tensor, labels: Tensor) -> Found | Part | None:
    """Certified records as the batch, or as a part of it."""
    seen = problem.observation
    inputs, labels = inputs.to(problem.box.span), labels.to(problem.box.span.device)
    count, left = len(inputs), seen.records - len(inputs)
    if count == 0:
        return None
    if left == 0:
        return _accepted(problem, inputs, labels, stage="certified")
    if seen.mean_of is not None:  # the factor of the whole batch's clip is not known
        return None
    return _part(problem, inputs, labels)


def _part(problem: Problem, inputs: Tensor, labels: Tensor) -> Part:
    """Certified records, and the gradient of the others."""
    seen = problem.observation
    count, left = len(inputs), seen.records - len(inputs)
    known = sent_gradients(seen, problem.model, inputs=inputs, targets=labels).detach()
    rest = (seen.gradient * seen.records - known * count) / left
    return Part(
        pixels=problem.box.pixels(inputs),
        labels=labels,
        rest=replace(seen, gradient=rest, records=left),
    )


def _allowed(seen: Observation) -> float:
    """Residual up to which a candidate explains a gradient, never a tenth of it."""
    return min(max(_EXPLAINED, _ROUNDED * seen.rounding), 0.1)


def _accepted(
    problem: Problem, inputs: Tensor, labels: Tensor, *, stage: str, allowed: float = 0.0
) -> Found | None:
    inputs, labels = inputs.to(problem.box.span), labels.to(problem.box.span.device)
    left = residual(problem.observation, problem.model, inputs=inputs, targets=labels)
    if not left <= max(allowed, _allowed(problem.observation)):
        return None
    pixels = problem.box.pixels(inputs)
    return Found(pixels=pixels, labels=labels, iterations=0, stage=stage)
