"""What an onlooker holds before it attacks: one batch's gradient as sent, and its model.

An `Observation` is the estimate

    gradient = 1/records * sum_b clip(grad_b, clip_norm) + noise_std * standard normal

where grad_b is the gradient of the cross-entropy of record b at `model`. Without a defence
(clip_norm None, noise_std 0) it is the plain mean gradient of the batch.

Shape letters: B records in the batch, C classes, D parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from ..training.models import unflatten


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Observation:
    """One batch's gradient as an onlooker estimates it.

    Attributes:
        gradient: (D,) estimate of the mean of the (clipped) gradients of the batch.
        model: (D,) flat parameters the gradient was taken at, in `named_parameters` order.
        noise_std: standard deviation of the Gaussian noise on each coordinate of `gradient`.
        clip_norm: L2 bound on each record's gradient, None where nothing is clipped.
        records: number of records B that the mean runs over.

    Raises:
        ValueError: a shape, `noise_std`, `clip_norm` or `records` is out of range.

    Examples:
        >>> seen = Observation(
        ...     gradient=torch.ones(3), model=torch.zeros(3), noise_std=0.0, clip_norm=None,
        ...     records=1,
        ... )
        >>> seen.gradient.square().sum().item()
        3.0
    """

    gradient: Tensor
    model: Tensor
    noise_std: float
    clip_norm: float | None
    records: int

    def __post_init__(self) -> None:
        if self.gradient.ndim != 1 or self.gradient.shape != self.model.shape:
            raise ValueError(
                f"gradient of shape {tuple(self.gradient.shape)} and model of shape "
                f"{tuple(self.model.shape)} must both be (D,); flatten in named_parameters order"
            )
        if not bool(torch.isfinite(self.gradient).all()):
            raise ValueError("gradient must be finite; drop rounds that diverged")
        if not (math.isfinite(self.noise_std) and self.noise_std >= 0):
            raise ValueError(f"noise_std={self.noise_std} must be finite and at least 0")
        if self.clip_norm is not None and not (
            math.isfinite(self.clip_norm) and self.clip_norm > 0
        ):
            raise ValueError(
                f"clip_norm={self.clip_norm} must be positive; None says that nothing is clipped"
            )
        if self.records < 1:
            raise ValueError(f"records={self.records} must be at least 1")


def sent_gradient(
    model: nn.Module,
    parameters: Tensor,
    *,
    inputs: Tensor,
    targets: Tensor,
    clip_norm: float | None,
) -> Tensor:
    """The mean clipped gradient that a batch sends, differentiable in the batch.

    Args:
        model: network with logits (B, C) as output.
        parameters: (D,) flat parameters.
        inputs: (B, *shape).
        targets: (B,) class indices or (B, C) probabilities.
        clip_norm: L2 bound on each record's gradient; None clips nothing.

    Returns:
        (D,) gradient.

    Examples:
        >>> model, x, y = nn.Linear(2, 2), torch.ones(1, 2), torch.tensor([0])
        >>> sent = sent_gradient(model, torch.zeros(6), inputs=x, targets=y, clip_norm=None)
        >>> [round(value, 2) for value in sent.tolist()]
        [-0.5, -0.5, 0.5, 0.5, -0.5, 0.5]
    """
    values = unflatten(model, parameters)

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, values, (x,)), y)

    if clip_norm is None or len(inputs) == 1:  # one gradient: no need for one row per record
        flat = _flat(grad(loss)(values, inputs, targets))
        return flat if clip_norm is None else flat * _clip_factor(flat, clip_norm)
    rows = vmap(grad(loss), in_dims=(None, 0, 0))(values, inputs.unsqueeze(1), targets.unsqueeze(1))
    stacked = torch.cat([row.flatten(1) for row in rows.values()], dim=1)  # (B, D)
    return (stacked * _clip_factor(stacked, clip_norm)).mean(dim=0)


def observe(
    model: nn.Module,
    parameters: Tensor,
    *,
    inputs: Tensor,
    targets: Tensor,
    clip_norm: float | None,
    noise_std: float,
    generator: torch.Generator,
) -> Observation:
    """The observation that a known batch gives rise to, for tests and benchmarks.

    Args:
        model: network with logits (B, C) as output.
        parameters: (D,) flat parameters.
        inputs: (B, *shape).
        targets: (B,) class indices.
        clip_norm: L2 bound on each record's gradient; None clips nothing.
        noise_std: noise on each coordinate of the mean: noise multiplier * clip norm / batch size.
        generator: source of the noise.

    Returns:
        The observation, detached.

    Examples:
        >>> model, x, y = nn.Linear(2, 2), 50 * torch.ones(1, 2), torch.tensor([0])
        >>> seen = observe(
        ...     model, torch.zeros(6), inputs=x, targets=y, clip_norm=1.0, noise_std=0.0,
        ...     generator=torch.Generator(),
        ... )
        >>> round(seen.gradient.norm().item(), 4)
        1.0
    """
    flat = sent_gradient(
        model, parameters.detach(), inputs=inputs, targets=targets, clip_norm=clip_norm
    ).detach()
    noise = torch.randn(flat.shape, generator=generator, dtype=flat.dtype)
    return Observation(
        gradient=flat + noise_std * noise,
        model=parameters.detach(),
        noise_std=noise_std,
        clip_norm=clip_norm,
        records=len(inputs),
    )


def _flat(values: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in values.values()])


def _clip_factor(gradients: Tensor, clip_norm: float) -> Tensor:
    tiny = torch.finfo(gradients.dtype).tiny  # a zero gradient stays zero, with a finite derivative
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return (clip_norm / norms.clamp_min(tiny)).clamp_max(1.0)
