"""How good a reconstruction is: MSE, PSNR and SSIM on images in [0, 1].

Conventions, the same for every table: data range 1, SSIM window 7 or the largest odd window that
fits a smaller image, channels first and named as such, and the images of a batch paired with their
reconstructions by the Hungarian method on MSE (a gradient says nothing about the order of a batch).

The DPDL paper (arXiv:2606.04399) scores MNIST images scaled to [-1, 1] at data range 2. `DPDL` does
so: four times our MSE, our PSNR (the data range grows with the error), and an SSIM of its own,
since SSIM is not invariant to a shift. Were its images in [0, 1] at data range 2, PSNR would be
6.02 dB more than ours, and the paper's 6.6 dB an MSE of .88, which is worse than grey by a factor
of 3 on any image. Images of three channels (CIFAR-10) it standardises by the mean and deviation of
each channel; these have no fixed range, and its data ranges of 3.5 to 4.1 are those from the least
to the greatest value of an image. `DPDL_COLOUR` does so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...privacy.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Convention:
    """The scale that images are scored in; they are given in [0, 1] whatever it is.

    Attributes:
        low, high: what 0 and 1 are mapped to before anything is computed; one number, or one for
            each channel.
        data_range: L of PSNR = 10 log10(L^2 / MSE), and of SSIM's constants (.01 L)^2, (.03 L)^2;
            None for the range of each true image (of the scale, where an image has none).
    """

    low: float | tuple[float, ...] = 0.0
    high: float | tuple[float, ...] = 1.0
    data_range: float | None = 1.0

    def __post_init__(self) -> None:
        ordered = bool(np.all(np.asarray(self.low) < np.asarray(self.high)))
        if not ordered or not (self.data_range is None or 0 < self.data_range < math.inf):
            raise InputError(
                f"low={self.low} must be below high={self.high}, and data_range="
                f"{self.data_range} positive"
            )

    def scaled(self, image: np.ndarray) -> np.ndarray:
        """An array of an image in [0, 1], channels first, in this scale."""
        low, high = (
            np.reshape(end, (-1, *(1 for _ in image.shape[1:]))) if isinstance(end, tuple) else end
            for end in (self.low, self.high)
        )
        return np.asarray(low + (high - low) * image)

    def range_of(self, truth: np.ndarray) -> float:
        """L of a true image in this scale."""
        if self.data_range is not None:
            return self.data_range
        own = float(np.ptp(truth))
        return own if own > 0 else float(np.max(self.high) - np.min(self.low))


ORDINARY = Convention()
DPDL = Convention(low=-1.0, high=1.0, data_range=2.0)
_MEAN, _STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's channels
DPDL_COLOUR = Convention(
    low=tuple(-m / s for m, s in zip(_MEAN, _STD, strict=True)),
    high=tuple((1 - m) / s for m, s in zip(_MEAN, _STD, strict=True)),
    data_range=None,
)
CONVENTIONS: Mapping[str, Convention] = {"ordinary": ORDINARY, "dpdl": DPDL}


def conventions_for(channels: int) -> Mapping[str, Convention]:
    """The conventions of images of so many channels, by name.

    >>> conventions_for(1)["dpdl"].data_range, conventions_for(3)["dpdl"].data_range
    (2.0, None)
    """
    return {**CONVENTIONS, "dpdl": DPDL_COLOUR} if channels == len(_MEAN) else CONVENTIONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Scores of a batch of reconstructions, one entry per true image.

    Attributes:
        mse: mean squared error.
        psnr: peak signal-to-noise ratio in dB, infinite where the MSE is 0.
        ssim: structural similarity; NaN where records are not images of at least 3x3 pixels.
        order: index of the reconstruction that is paired with each true image; the number of
            reconstructions where there is none.
        missing: the true images, by index, that were scored against a fallback for want of a
            reconstruction.

    >>> Scores(mse=(0.01, 0.03), psnr=(20.0, 15.2), ssim=(0.9, 0.5), order=(0, 1)).mean_mse
    0.02
    """

    mse: tuple[float, ...]
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    order: tuple[int, ...]
    missing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.mse), len(self.psnr), len(self.ssim), len(self.order)}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(
                f"mse, psnr, ssim and order have lengths {sorted(lengths)}; "
                "each must hold one entry per image, and at least one"
            )
        if not set(self.missing) <= set(range(len(self.mse))):
            raise InputError(
                f"missing={self.missing} must be indices of the {len(self.mse)} images"
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


def mse(truth: Tensor, guess: Tensor, *, convention: Convention = ORDINARY) -> float:
    """Mean squared error of one image in [0, 1].

    Args:
        truth: (*shape) true image.
        guess: (*shape) reconstruction.
        convention: scale of the score.

    Raises:
        ValueError: the shapes differ or a value lies outside [0, 1].

    >>> import torch
    >>> mse(torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.5))
    0.25
    """
    first, second = _pair(truth, guess, convention)
    return float(np.mean((first - second) ** 2))


def psnr(truth: Tensor, guess: Tensor, *, convention: Convention = ORDINARY) -> float:
    """Peak signal-to-noise ratio in dB of one image in [0, 1].

    Args:
        truth: (*shape) true image.
        guess: (*shape) reconstruction.
        convention: scale of the score.

    Returns:
        10 log10(data range^2 / MSE), infinite for equal images.

    Raises:
        ValueError: the shapes differ or a value lies outside [0, 1].

    >>> import torch
    >>> round(psnr(torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.1)), 3)
    20.0
    """
    from skimage.metrics import peak_signal_noise_ratio

    first, second = _pair(truth, guess, convention)
    if np.array_equal(first, second):  # scikit-image divides by zero here
        return math.inf
    ratio: float = peak_signal_noise_ratio(first, second, data_range=convention.range_of(first))
    return float(ratio)


def ssim(truth: Tensor, guess: Tensor, *, convention: Convention = ORDINARY) -> float:
    """Structural similarity of one image in [0, 1].

    Args:
        truth: (channels, height, width) true image.
        guess: the same shape, reconstruction.
        convention: scale of the score.

    Returns:
        SSIM with window 7, or the largest odd window that fits a smaller image.

    Raises:
        ValueError: the shapes differ, a value lies outside [0, 1], or the image is not
            (channels, height, width) with at least 3x3 pixels.

    >>> import torch
    >>> ssim(torch.eye(8)[None], torch.eye(8)[None])
    1.0
    """
    from skimage.metrics import structural_similarity

    first, second = _pair(truth, guess, convention)
    if not _is_image(first.shape):
        raise InputError(
            f"image of shape {first.shape} must be (channels, height, width) with at least 3x3 "
            "pixels; score other records by mse"
        )
    side = min(7, *first.shape[1:])
    window = side if side % 2 else side - 1
    # Annotated because scikit-image declares a union over its options for the return value.
    value: Any = structural_similarity(
        first, second, win_size=window, data_range=convention.range_of(first), channel_axis=0
    )
    return float(value)


def match(
    truth: Tensor,
    guess: Tensor,
    *,
    fallback: Tensor | None = None,
    convention: Convention = ORDINARY,
) -> Scores:
    """Pair a batch with its reconstructions by least total MSE, and score each pair.

    The total does not depend on the order of either; only where two pairings tie in it can the
    scores of single images.

    Args:
        truth: (B, *shape) true images in [0, 1].
        guess: (F, *shape) reconstructions in [0, 1], in any order; at most B of them.
        fallback: (*shape) what stands in for the B - F missing ones, such as the blind guess.
        convention: scale of the scores.

    Returns:
        Scores in the order of `truth`; `missing` names the images that got the fallback.

    Raises:
        ValueError: the shapes differ, the batch is empty, a value lies outside [0, 1], there are
            more reconstructions than images, or fewer and no fallback.

    >>> import torch
    >>> batch = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    >>> match(batch, batch.flip(0)).order
    (1, 0)
    >>> one = match(batch, batch[1:], fallback=torch.full((1, 8, 8), 0.5))
    >>> one.mse, one.missing
    ((0.25, 0.0), (0,))
    """
    from scipy.optimize import linear_sum_assignment

    found, lacking = len(guess), len(truth) - len(guess)
    # What is missing stands as the fallback.
    if lacking > 0 and fallback is not None:
        if not guess.shape[1:] == fallback.shape == truth.shape[1:]:
            raise InputError(
                f"guess of shape {tuple(guess.shape)} and fallback of shape "
                f"{tuple(fallback.shape)} must hold images of {tuple(truth.shape[1:])}"
            )
        guess = torch.cat([guess, fallback.to(guess).expand(lacking, *fallback.shape)])
    first, second = _pair(truth, guess)
    if len(first) == 0:
        raise InputError("an empty batch has no score")
    rows, columns = first.reshape(len(first), -1), second.reshape(len(first), -1)
    # The pairing of least total error, by which each image is scored.
    cost = np.stack([((row - columns) ** 2).mean(axis=1) for row in rows])  # (B, B)
    _, paired = linear_sum_assignment(cost)
    pairs = [(truth[row], guess[column]) for row, column in enumerate(paired)]
    image = _is_image(first.shape[1:])
    return Scores(
        mse=tuple(mse(a, b, convention=convention) for a, b in pairs),
        psnr=tuple(psnr(a, b, convention=convention) for a, b in pairs),
        ssim=tuple(ssim(a, b, convention=convention) if image else math.nan for a, b in pairs),
        order=tuple(min(int(column), found) for column in paired),
        missing=tuple(row for row, column in enumerate(paired) if column >= found),
    )


def blind_guess(public_images: Tensor) -> Tensor:
    """The best guess without any message: the mean public image.

    Args:
        public_images: (N, *shape) images that everybody knows, in any fixed scale.

    Returns:
        (*shape) mean image. A failed attack often scores below it.

    Raises:
        ValueError: there is no image.

    >>> import torch
    >>> blind_guess(torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])).mean().item()
    0.5
    """
    if len(public_images) == 0:
        raise InputError("blind_guess needs at least one public image")
    return public_images.mean(dim=0)


def unattacked(truth: Tensor, *, generator: torch.Generator) -> dict[str, Tensor]:
    """Guesses that take no message, beside `blind_guess`: below them an attack shows nothing.

    Args:
        truth: (N, *shape) true images in [0, 1].
        generator: of the noise.

    Returns:
        By name (N, *shape) guesses in [0, 1]: a black picture, the record that comes next, where
        there are several, and standard normal noise that is cut to [-1, 1].

    >>> import torch
    >>> found = unattacked(torch.rand(2, 1, 4, 4), generator=torch.Generator())
    >>> list(found), [guess.shape == (2, 1, 4, 4) for guess in found.values()]
    (['black picture', 'another record', 'noise'], [True, True, True])
    """
    noise = torch.randn(truth.shape, generator=generator, dtype=truth.dtype).clamp(-1, 1)
    other = {"another record": truth.roll(1, 0)} if len(truth) > 1 else {}
    return {"black picture": torch.zeros_like(truth), **other, "noise": (noise + 1) / 2}


def _is_image(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= 3


def _pair(
    truth: Tensor, guess: Tensor, convention: Convention = ORDINARY
) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 arrays in the convention's scale."""
    if truth.shape != guess.shape:
        raise InputError(
            f"truth of shape {tuple(truth.shape)} and guess of shape {tuple(guess.shape)} "
            "must agree; where reconstructions are missing, give match a fallback"
        )
    for name, image in (("truth", truth), ("guess", guess)):
        # A rounding error outside [0, 1] is what undoing a normalisation leaves.
        if image.numel() and not (image.min() >= -1e-5 and image.max() <= 1 + 1e-5):
            raise InputError(
                f"{name} spans [{image.min().item():.4g}, {image.max().item():.4g}] and must lie "
                "in [0, 1]; undo the normalisation (Dataset.pixels) and clamp"
            )
    first, second = (
        convention.scaled(image.detach().cpu().double().clamp(0, 1).numpy())
        for image in (truth, guess)
    )
    return first, second


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of a mean over images: the expanded percentile interval.

    The plain percentile interval is too narrow for the few images of an attack; here its level is
    raised so that its width is that of Student's t (Hesterberg 2015, The American Statistician
    69:371, arXiv:1411.5279). From 2 or 3 images it is the range of the values, which covers the
    mean about 1/2 and 3/4 of the time and not 95 %; from 4 normal ones it covers it 88 % of the
    time and from 8 on 94 % (exponential ones: 82 and 89 %).

    Args:
        values: one score per image. An infinite PSNR makes the upper limit infinite, and counts
            as the largest finite value in the lower one, which is then too low if anything.
        confidence: level, in (0, 1).
        resamples: how many.
        seed: of the resampling.

    Returns:
        Lower and upper limit; (nan, nan) for a single image, which says nothing about others.

    Raises:
        ValueError: there is no value, one is nan or -inf, or a setting is out of range.

    >>> low, high = bootstrap_interval([18.0, 21.0, 19.5, 24.0, 20.0, 22.5, 17.0, 23.0])
    >>> round(low, 1), round(high, 1)
    (18.6, 22.7)
    """
    from scipy.stats import bootstrap, norm, t

    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or len(data) == 0 or not bool((data > -math.inf).all()):
        raise InputError(
            f"values={list(values)!r} must be at least one number, neither nan nor -inf; records "
            "that are no images have no SSIM"
        )
    if not 0 < confidence < 1 or resamples < 1:
        raise InputError(
            f"confidence={confidence} must lie in (0, 1), and resamples={resamples} be at least 1"
        )
    if len(data) == 1:
        return math.nan, math.nan
    # An infinite score lifts the upper limit alone.
    finite = np.isfinite(data)
    if not finite.any():
        return math.inf, math.inf
    degrees = len(data) - 1
    # The level at which the percentile interval is as wide as Student's t.
    reach = math.sqrt(len(data) / degrees) * float(t.isf((1 - confidence) / 2, degrees))
    interval = bootstrap(
        (np.where(finite, data, data[finite].max()),),
        np.mean,
        n_resamples=resamples,
        confidence_level=1 - 2 * float(norm.sf(reach)),
        method="percentile",
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high) if finite.all() else math.inf
