"""Mean scores of what was rebuilt, as types."""

from __future__ import annotations

from pydantic import Field

from ...privacy.formats.codec import Score
from ..described import Described

__all__ = ["Means", "ScaledMeans"]


class Means(Described):
    """Mean scores of reconstructions."""

    mse: Score
    psnr: Score
    ssim: Score


class ScaledMeans(Means):
    """Mean scores in another scale of images, with their bootstrap intervals."""

    interval: dict[str, tuple[Score, Score]] = Field(default_factory=dict)
    """Of mse, psnr and ssim."""
