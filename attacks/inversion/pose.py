"""The problem that an attacker poses, with labels as far as it has them.

Shape letters: B records.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..problem.labels import likeliest_label, recover_labels, stands_out
from ..problem.observation import HOST, Observation
from ..problem.presets import Preset
from ..problem.prior import build_box
from ..problem.problem import Problem, with_buffers
from .checkpoint import digest
from .optimisation import finishes


def pose(
    observation: Observation,
    model: nn.Module,
    *,
    preset: Preset,
    shape: tuple[int, ...],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    labels: Tensor | None,
    prior_image: Tensor | None,
    device: torch.device,
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
        device=device,
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


def name_of(problem: Problem) -> str:
    """A name for everything that decides the result but the generator."""
    seen, box = problem.observation, problem.box
    return digest(
        seen, problem.preset, box, problem.shape, problem.classes, problem.labels,
        problem.prior_image, repr(problem.model),
    )  # fmt: skip
