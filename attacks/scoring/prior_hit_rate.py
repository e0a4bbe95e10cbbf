"""How often a guess without any message counts as a rebuilt image, by public images alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ...privacy._validate import within
from ...privacy.errors import InputError
from .reconstruction_bound import CONFIDENCE

SHARE = 0.25
NEAR = 0.05
_ASKED = 2000
_REACHES = (4.0, 2.0, 1.0, 1.0)  # in thresholds; images 4 apart may share a guess between them


def rebuilt_threshold(public_images: Tensor, blind: Tensor, *, share: float = SHARE) -> float:
    """The MSE at which an image counts as rebuilt, from public images alone.

    Args:
        public_images: (N, *shape) in [0, 1], none of them attacked.
        blind: (*shape) blind guess.
        share: of the blind guess's mean MSE; 1/4 is 6 dB better than guessing.

    Returns:
        share times the mean MSE of the blind guess over the public images.

    Raises:
        ValueError: there is no image, or a shape or the share is out of range.

    >>> images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    >>> rebuilt_threshold(images, images.mean(dim=0))
    0.0625
    """
    _check(public_images, blind)
    within("share", share, "(0, 1)", "at 1 the blind guess itself counts")
    return share * float((public_images - blind).double().square().mean())


def near_threshold(public_images: Tensor, *, share: float = NEAR) -> float:
    """The MSE below which a single image is no guess, from public images alone.

    Args:
        public_images: (N, *shape) in [0, 1], none of them attacked.
        share: of the images that have another image this near.

    Returns:
        The quantile, over at most 2,000 images, of the MSE to the nearest other one; 0 where there
        are fewer than 20 images.

    >>> images = torch.arange(41.0).reshape(41, 1, 1, 1) / 40  # 1/40 apart
    >>> round(near_threshold(images) * 1600, 3)
    1.0
    """
    rows = public_images.reshape(len(public_images), -1).double()
    if len(rows) * share < 1:
        return 0.0
    asked = rows[:: -(-len(rows) // _ASKED)]
    far = _errors(asked, rows)
    far[torch.arange(len(asked)), torch.arange(0, len(rows), -(-len(rows) // _ASKED))] = torch.inf
    return float(far.amin(dim=1).quantile(share, interpolation="lower"))


def prior_hit_rate(
    public_images: Tensor,
    blind: Tensor,
    *,
    threshold: float,
    guesses: int = 200,
    confidence: float = CONFIDENCE,
) -> float:
    """Upper limit on how often the best of many guesses is right without any message.

    Guesses are made from one public image in four and judged on the rest: the blind guess, public
    images themselves, and each of these drawn to the mean of the images around it, several times
    over (mean shift with a flat kernel that narrows to the threshold: it climbs to dense places).

    Args:
        public_images: (N, *shape) in [0, 1], in the order that they were drawn in, none attacked.
        blind: (*shape) blind guess.
        threshold: largest MSE of a rebuilt image.
        guesses: how many public images to start from, at most.
        confidence: that no guess is right more often than the result says.

    Returns:
        Largest Clopper-Pearson upper limit over the guesses, each at a level that makes them hold
        together. Few public images give a large one: 1.8 % from 1,000 at least.

    Raises:
        ValueError: there are fewer than 4 images, or a number is out of range.

    >>> images = torch.rand(1000, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    >>> round(prior_hit_rate(images, images.mean(dim=0), threshold=0.01), 4)  # never right
    0.0176
    """
    from scipy.stats import beta

    _check(public_images, blind)
    if len(public_images) < 4 or guesses < 1 or not threshold >= 0 or not 0 < confidence < 1:
        raise InputError(
            f"{len(public_images)} public images must be at least 4, guesses={guesses} at least 1, "
            f"threshold={threshold} at least 0 and confidence={confidence} in (0, 1)"
        )
    rows = public_images.reshape(len(public_images), -1).double()
    judging = torch.arange(len(rows)) % 4 != 0
    known, judges = rows[~judging], rows[judging]
    step = -(-len(known) // guesses)
    tried = [torch.cat([blind.reshape(1, -1).double(), known[::step]])]
    for reach in _REACHES:
        inside = (_errors(tried[-1], known) <= reach * threshold).double()
        counts = inside.sum(dim=1, keepdim=True)
        tried.append(torch.where(counts > 0, inside @ known / counts.clamp_min(1), tried[-1]))
    every = torch.cat(tried)
    most = int((_errors(every, judges) <= threshold).sum(dim=1).max())
    if most == len(judges):
        return 1.0
    risk = (1 - confidence) / len(every)
    return float(beta.isf(risk, most + 1, len(judges) - most))


def _errors(guesses: Tensor, images: Tensor) -> Tensor:
    """(G, N) mean squared errors."""
    return torch.cdist(guesses, images).square() / images.shape[1]


def _check(public_images: Tensor, blind: Tensor) -> None:
    if len(public_images) == 0 or public_images.shape[1:] != blind.shape:
        raise InputError(
            f"public_images of shape {tuple(public_images.shape)} must hold at least one image of "
            f"the blind guess's shape {tuple(blind.shape)}"
        )
    for name, value in (("public_images", public_images), ("blind", blind)):
        if not (value.min() >= -1e-5 and value.max() <= 1 + 1e-5):
            raise InputError(
                f"{name} spans [{value.min().item():.4g}, {value.max().item():.4g}] and must lie "
                "in [0, 1]; undo the normalisation (Dataset.pixels) and clamp"
            )
