"""Scores of pictures that no message was needed for, beside which those of an attack stand.

`reports/reproduced/blind_scores.toml` holds those of MNIST and CIFAR-10.

    OVERHEAR_DATA=DIR python -m benchmarks.blind_scores     print them
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from overhear.attacks.scoring.metrics import (
    ORDINARY,
    Convention,
    blind_guess,
    conventions_for,
    mse,
    psnr,
    ssim,
)
from overhear.training.data.load import load_dataset


def blind_scores(
    images: Tensor, public: Tensor, *, convention: Convention = ORDINARY, seed: int = 1
) -> Mapping[str, tuple[float, float, float]]:
    """The scores of four blind guesses, each the mean over the images.

    Args:
        images: (N, channels, height, width) true images in [0, 1].
        public: (M, channels, height, width) others of their kind, at least N.
        convention: scale of the scores.
        seed: of the noise.

    Returns:
        (MSE, PSNR in dB, SSIM) by guess: "mean image" of the public ones; "black picture";
        "another record", the public one of the same index; "random start", standard normal noise
        in the convention's scale, cut to the range of pixels, where searches begin.

    Raises:
        ValueError: the shapes differ, a value lies outside [0, 1], or images are too small.

    >>> shades = torch.linspace(0, 1, 5)[:, None, None, None].expand(5, 1, 8, 8)
    >>> found = blind_scores(shades[:2], shades[2:])
    >>> [round(value, 3) for value in found["mean image"][:2]]  # grey .75 for 0 and .25
    [0.406, 4.26]
    """
    draw, shape = np.random.default_rng(seed), tuple(images.shape[1:])
    low, high = (convention.scaled(np.full(shape, end)) for end in (0.0, 1.0))
    noise = np.clip(draw.standard_normal((len(images), *shape)), low, high)
    guesses = {
        "mean image": blind_guess(public).expand(len(images), *shape),
        "black picture": torch.zeros_like(images),
        "another record": public[: len(images)],
        "random start": torch.as_tensor((noise - low) / (high - low)),
    }
    return {
        name: tuple(  # type: ignore[misc] # three of them
            float(
                np.mean(
                    [of(a, b, convention=convention) for a, b in zip(images, each, strict=True)]
                )
            )
            for of in (mse, psnr, ssim)
        )
        for name, each in guesses.items()
    }


def scores_of(data: str, root: str) -> Mapping[str, Mapping[str, tuple[float, float, float]]]:
    """By convention those of the first 300 training images, beside the next 9,700."""
    held = load_dataset(data, root=root)
    images = held.pixels(held.inputs[:10_000]).double().clamp(0, 1)
    return {
        name: blind_scores(images[:300], images[300:], convention=convention)
        for name, convention in conventions_for(images.shape[1]).items()
    }


if __name__ == "__main__":
    for data in ("mnist", "cifar10"):
        for name, guesses in scores_of(data, os.environ["OVERHEAR_DATA"]).items():
            print(data, name)
            for guess, scores in guesses.items():
                print(f"  {guess:15} {scores[0]:.4f}  {scores[1]:.2f} dB  {scores[2]:.3f}")
