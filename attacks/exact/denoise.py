"""A noisy picture with known noise, smoothed by as much total variation as the noise asks for.

Total variation (Rudin, Osher, Fatemi 1992) by scikit-image; its weight is the one of least risk by
Stein's unbiased estimate, whose divergence is probed once (Ramani, Blu, Unser 2008):

    risk(f) = |f(y) - y|^2 / n - s^2 + 2 s^2 / n  div f(y),   div f(y) ~ b^T (f(y + e b) - f(y)) / e

No weight is among the choices, so a picture that is not smooth stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_WEIGHTS = (0.06, 0.12, 0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_PROBE = 0.1  # step of the divergence, in units of the noise


class Denoised(NamedTuple):
    """A picture, the mean squared error that is expected of it, and the weight that was chosen."""

    image: Tensor
    risk: float
    weight: float


def denoise(image: Tensor, noise_std: float) -> Denoised:
    """The picture with the least estimated risk.

    Args:
        image: (channels, height, width), in any unit.
        noise_std: of independent noise on every value, in the same unit, above 0.

    Returns:
        The picture in the image's type, with its risk in squared units, at least 0.

    Examples:
        >>> flat = torch.full((1, 16, 16), 0.5)
        >>> noisy = flat + 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
        >>> found = denoise(noisy, 0.1)
        >>> found.weight, round(float((found.image - flat).square().mean().sqrt()), 3)
        (6.0, 0.005)
    """
    from skimage.restoration import denoise_tv_chambolle

    seen = image.detach().double().cpu().movedim(0, -1).numpy() / noise_std
    probe = np.random.default_rng(0).choice([-1.0, 1.0], size=seen.shape)
    best, least, chosen = seen, 1.0, 0.0
    for weight in _WEIGHTS:
        smooth = denoise_tv_chambolle(seen, weight=weight, channel_axis=-1)
        moved = denoise_tv_chambolle(seen + _PROBE * probe, weight=weight, channel_axis=-1)
        divergence = float((probe * (moved - smooth)).sum()) / _PROBE
        risk = (float(np.square(smooth - seen).sum()) + 2 * divergence) / seen.size - 1
        if risk < least:
            best, least, chosen = smooth, risk, weight
    found = torch.from_numpy(np.ascontiguousarray(best)).movedim(-1, 0).to(image)
    return Denoised(found * noise_std, max(least, 0.0) * noise_std**2, chosen)
