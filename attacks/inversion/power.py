"""How often the test that keeps an image would keep the true one: what a blind result is worth.

An attack that falls back to the prior image says nothing where the test of `inversion` would have
rejected the truth as well. With the true image in place of the one found, both halves of the test
are functions of a normal vector of one entry a label, whose covariance is known; it is drawn.

Shape letters: C classes, K intercepts, D parameters, S draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..problem.observation import Observation, sent_gradients
from .inversion import SPLIT

_DRAWS = 4000


def acceptance_power(
    observation: Observation,
    model: nn.Module,
    *,
    inputs: Tensor,
    label: int,
    prior_image: Tensor,
    classes: int,
    generator: torch.Generator,
    draws: int = _DRAWS,
) -> float:
    """Probability that the test keeps the true image and not the prior image.

    Args:
        observation: of one record; its gradient is not read, its noise is.
        model: network with logits (B, C) as output; its parameters are taken from `observation`.
        inputs: (*shape) the true record in normalised units.
        label: its class.
        prior_image: (*shape) what would replace it, under the label that suits it best.
        classes: number of classes C.
        generator: source of the draws.
        draws: how many; the standard error is at most 1 / (2 sqrt(draws)).

    Returns:
        A probability; 1 without noise, where the truth is always kept.

    Examples:
        >>> model = nn.Linear(2, 2)
        >>> seen = Observation.single(
        ...     gradient=torch.zeros(6), model=torch.zeros(6), noise_std=100.0, clip_norm=1.0,
        ...     records=1,
        ... )
        >>> acceptance_power(
        ...     seen, model, inputs=torch.tensor([1.0, 0.0]), label=0,
        ...     prior_image=torch.tensor([0.5, 0.5]), classes=2, generator=torch.Generator(),
        ... ) < 0.1
        True
    """
    if not observation.is_noisy:
        return 1.0
    like = observation.gradient

    def sent(x: Tensor, y: int) -> Tensor:
        at = torch.tensor([y], device=like.device)
        return sent_gradients(observation, model, inputs=x[None].to(like), targets=at).detach()

    truth = sent(inputs, label)
    rest = torch.stack([truth - sent(prior_image, y) for y in range(classes)])  # (C, K, D)
    rows = (observation.whiten(rest) / observation.noise_std).flatten(1).double().cpu()
    products = rows @ rows.T  # (C, C) covariance of the noise along the differences
    values, vectors = torch.linalg.eigh(products)
    root = vectors * values.clamp_min(0).sqrt()
    first, second = (
        torch.randn(draws, classes, generator=generator, dtype=torch.float64) @ root.T
        for _ in range(2)
    )
    squares = products.diagonal()
    # |o - s(x0, y)|^2 - |o - s(x)|^2 for each label y, of which the prior image takes the best.
    gain = (squares + 2 * first).amin(dim=1)
    scale = 1 + 1 / SPLIT**2
    halves = (squares + 2 * (first - second / SPLIT)) / scale
    held, at = halves.min(dim=1)
    deviation = 2 * (squares[at] / scale).sqrt()
    kept = (gain > 2 * math.prod(inputs.shape)) | ((gain > 0) & (held > 2 * deviation))
    return float(kept.double().mean())
