"""What is observed of one image, for tests of exact stages."""

import torch
from torch import Tensor, nn

from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Box, Imprint, Problem
from overhear.training.models.parameters import flatten


def posed(
    seen: Observation,
    model: nn.Module,
    shape: tuple[int, ...],
    box: Box,
    *,
    classes: int = 10,
    prior: Tensor | None = None,
    imprints: tuple[Imprint, ...] = (),
) -> Problem:
    """What a stage is given."""
    return Problem(
        observation=seen, model=model, box=box, shape=shape, classes=classes, imprints=imprints,
        prior_image=None if prior is None else box.pixels(prior),
    )  # fmt: skip


def see(
    model: nn.Module,
    image: Tensor,
    *,
    dtype: torch.dtype,
    clip_norm: float | None = None,
    noise_std: float = 0.0,
    count: int = 1,
) -> Observation:
    """The gradient of so many copies of an image (*shape) of class 3."""
    model = model.to(dtype)
    return observe(
        model, flatten(model), inputs=image.to(dtype).expand(count, *image.shape),
        targets=torch.full((count,), 3), clip_norm=clip_norm, noise_std=noise_std,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
