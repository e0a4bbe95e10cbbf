"""How good a reconstruction is: MSE, PSNR and SSIM on images in [0, 1].

Conventions, the same for every table: data range 1, SSIM window 7 or the largest odd window that
fits a smaller image, channels first and named as such, and the images of a batch paired with their
reconstructions by the Hungarian method on MSE (a gradient says nothing about the order of a batch).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of a batch of reconstructions, one entry per true image.

    Attributes:
        mse: mean squared error, images in [0, 1].
        psnr: peak signal-to-noise ratio in dB, infinite where the MSE is 0.
        ssim: structural similarity; NaN where records are not images of at least 3x3 pixels.
        order: index of the reconstruction that is paired with each true image.

    Examples:
        >>> Scores(mse=(0.01, 0.03), psnr=(20.0, 15.2), ssim=(0.9, 0.5), order=(0, 1)).mean_mse
        0.02
    """

    mse: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.mse), len(self.psnr), len(self.ssim), len(self.order)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(
                f"mse, psnr, ssim and order have lengths {sorted(lengths)}; "
                "each must hold one entry per image, and at least one"
            )

    @property
    def mean_mse(self) -> float:
        """Mean MSE over the batch."""
        return float(np.mean(self.mse))

    @property
    def mean_psnr(self) -> float:
        """Mean of the PSNRs in dB (not the PSNR of the mean MSE)."""
        return float(np.mean(self.psnr))

    @property
    def mean_ssim(self) -> float:
        """Mean SSIM over the batch."""
        return float(np.mean(self.ssim))


def mse(truth: Tensor, guess: Tensor) -> float:
    """Mean squared error of one image in [0, 1].

    Args:
        truth: (*shape) true image.
        guess: (*shape) reconstruction.

    Raises:
        ValueError: the shapes differ or a value lies outside [0, 1].

    Examples:
        >>> import torch
        >>> mse(torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.5))
        0.25
    """
    first, second = _pair(truth, guess)
    return float(np.mean((first - second) ** 2))


def psnr(truth: Tensor, guess: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of one image in [0, 1], data range 1.

    Args:
        truth: (*shape) true image.
        guess: (*shape) reconstruction.

    Returns:
        -10 log10(MSE), infinite for equal images.

    Raises:
        ValueError: the shapes differ or a value lies outside [0, 1].

    Examples:
        >>> import torch
        >>> round(psnr(torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.1)), 3)
        20.0
    """
    from skimage.metrics import peak_signal_noise_ratio

    first, second = _pair(truth, guess)
    if np.array_equal(first, second):  # scikit-image divides by zero here
        return math.inf
    ratio: float = peak_signal_noise_ratio(first, second, data_range=1.0)
    return float(ratio)


def ssim(truth: Tensor, guess: Tensor) -> float:
    """Structural similarity of one image in [0, 1], data range 1.

    Args:
        truth: (channels, height, width) true image.
        guess: the same shape, reconstruction.

    Returns:
        SSIM with window 7, or the largest odd window that fits a smaller image.

    Raises:
        ValueError: the shapes differ, a value lies outside [0, 1], or the image is not
            (channels, height, width) with at least 3x3 pixels.

    Examples:
        >>> import torch
        >>> ssim(torch.eye(8)[None], torch.eye(8)[None])
        1.0
    """
    from skimage.metrics import structural_similarity

    first, second = _pair(truth, guess)
    if not _is_image(first.shape):
        raise ValueError(
            f"image of shape {first.shape} must be (channels, height, width) with at least 3x3 "
            "pixels; score other records by mse"
        )
    side = min(7, *first.shape[1:])
    window = side if side % 2 else side - 1
    # Annotated because scikit-image declares a union over its options for the return value.
    value: Any = structural_similarity(
        first, second, win_size=window, data_range=1.0, channel_axis=0
    )
    return float(value)


def match(truth: Tensor, guess: Tensor) -> Scores:
    """Pair a batch with its reconstructions by least total MSE, and score each pair.

    Args:
        truth: (B, *shape) true images in [0, 1].
        guess: (B, *shape) reconstructions in [0, 1], in any order.

    Returns:
        Scores in the order of `truth`.

    Raises:
        ValueError: the shapes differ, the batch is empty, or a value lies outside [0, 1].

    Examples:
        >>> import torch
        >>> batch = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
        >>> match(batch, batch.flip(0)).order
        (1, 0)
    """
    from scipy.optimize import linear_sum_assignment

    first, second = _pair(truth, guess)
    if len(first) == 0:
        raise ValueError("an empty batch has no score")
    differences = first[:, None] - second[None]  # (B, B, *shape)
    cost = np.mean(differences**2, axis=tuple(range(2, differences.ndim)))
    _, columns = linear_sum_assignment(cost)
    order = tuple(int(column) for column in columns)
    pairs = [(truth[row], guess[column]) for row, column in enumerate(order)]
    image = _is_image(first.shape[1:])
    return Scores(
        mse=tuple(mse(a, b) for a, b in pairs),
        psnr=tuple(psnr(a, b) for a, b in pairs),
        ssim=tuple(ssim(a, b) if image else math.nan for a, b in pairs),
        order=order,
    )


def blind_guess(public_images: Tensor) -> Tensor:
    """The best guess without any message: the mean public image.

    Args:
        public_images: (N, *shape) images that everybody knows, in any fixed scale.

    Returns:
        (*shape) mean image. A failed attack often scores below it.

    Raises:
        ValueError: there is no image.

    Examples:
        >>> import torch
        >>> blind_guess(torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])).mean().item()
        0.5
    """
    if len(public_images) == 0:
        raise ValueError("blind_guess needs at least one public image")
    return public_images.mean(dim=0)


def _is_image(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= 3


def _pair(truth: Tensor, guess: Tensor) -> tuple[np.ndarray, np.ndarray]:
    if truth.shape != guess.shape:
        raise ValueError(
            f"truth of shape {tuple(truth.shape)} and guess of shape {tuple(guess.shape)} "
            "must agree"
        )
    for name, image in (("truth", truth), ("guess", guess)):
        # A rounding error outside [0, 1] is what undoing a normalisation leaves.
        if image.numel() and not (image.min() >= -1e-5 and image.max() <= 1 + 1e-5):
            raise ValueError(
                f"{name} spans [{image.min().item():.4g}, {image.max().item():.4g}] and must lie "
                "in [0, 1]; undo the normalisation (Dataset.pixels) and clamp"
            )
    first, second = (image.detach().cpu().double().clamp(0, 1).numpy() for image in (truth, guess))
    return first, second
