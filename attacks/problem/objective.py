"""How far a candidate batch's gradients are from the observed ones.

Three measures, all of the form f(candidate, observation) with gradients of shape (..., K, D):

- `squared_distance`: ||g - o||^2, of Zhu, Liu, Han (2019), "Deep Leakage from Gradients";
- `cosine_distance`: 1 - <g, o> / (||g|| ||o||), of Geiping et al. (2020), "Inverting Gradients";
- `whitened_residual`: the squared Mahalanobis distance, minus twice the log-likelihood of the
  candidate under the declared noise, up to a constant. Under the truth it is chi-squared with K D
  degrees of freedom, which makes it a test as well as an objective.

Several intercepts whose noise differs or is correlated are whitened first; `squared_distance` is
then in the units of the best average of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...privacy.errors import InputError
from .observation import Observation

Objective = Callable[[Tensor, Observation], Tensor]
"""f(candidate (..., K, D), observation) -> (...,), smaller is nearer."""


def squared_distance(candidate: Tensor, observation: Observation) -> Tensor:
    """Squared L2 distance ||g - o||^2.

    Args:
        candidate: (..., K, D) gradients g.
        observation: supplies o.

    Returns:
        (...,) distances.

    >>> seen = Observation.single(
    ...     gradient=torch.zeros(2), model=torch.zeros(2), noise_std=0.0, clip_norm=None,
    ...     records=1,
    ... )
    >>> squared_distance(torch.tensor([[3.0, 4.0]]), seen).item()
    25.0
    """
    return observation.whiten(candidate - observation.gradient).square().sum(dim=(-2, -1))


def cosine_distance(candidate: Tensor, observation: Observation) -> Tensor:
    """One minus the cosine of the angle between the gradients; blind to a batch-1 clip.

    Args:
        candidate: (..., K, D) gradients g.
        observation: supplies o.

    Returns:
        (...,) distances in [0, 2]; 1 where one of the gradients is 0.

    >>> seen = Observation.single(
    ...     gradient=torch.tensor([1.0, 0.0]), model=torch.zeros(2), noise_std=0.0,
    ...     clip_norm=None, records=1,
    ... )
    >>> round(cosine_distance(torch.tensor([[1.0, 1.0]]), seen).item(), 4)
    0.2929
    """
    tiny = torch.finfo(candidate.dtype).tiny
    ours = observation.whiten(candidate).flatten(-2)
    theirs = observation.whiten(observation.gradient).flatten()
    norms = torch.linalg.vector_norm(ours, dim=-1) * torch.linalg.vector_norm(theirs)
    return 1 - (ours * theirs).sum(dim=-1) / norms.clamp_min(tiny)


def whitened_residual(candidate: Tensor, observation: Observation) -> Tensor:
    """Squared distance in units of the noise.

    Args:
        candidate: (..., K, D) gradients g.
        observation: supplies o and the noise.

    Returns:
        (...,) residuals; about K D for the true batch.

    Raises:
        ValueError: the observation carries no noise, so that nothing can be whitened.

    >>> seen = Observation.single(
    ...     gradient=torch.zeros(2), model=torch.zeros(2), noise_std=0.5, clip_norm=1.0,
    ...     records=1,
    ... )
    >>> whitened_residual(torch.tensor([[0.5, 0.5]]), seen).item()
    2.0
    """
    if not observation.is_noisy:
        raise InputError(
            "an observation without noise leaves nothing to whiten by; use squared_distance or "
            "cosine_distance"
        )
    return squared_distance(candidate, observation) / observation.noise_std**2
