"""Brightness and contrast of a picture, where a network that normalises hardly shows them.

A layer of normalisation takes the mean out of its inputs and divides by their spread: of a picture

    x' = m + s (x - mean x)

the gradient changes little with the brightness m and the contrast s, and a search ends at any. So
the picture goes half the way to the public image's brightness, or a quarter, if it explains the
gradient about as well there, with the contrast that explains it best. Where the gradient shows the
brightness nothing is moved.

Where a normalisation is over places, as of GroupNorm behind a first convolution, the contrast of a
whole picture is next to free in the search, too: one whose prior fades away ends at far too much of
it, and L-BFGS goes on in that direction. So the prior is heavier there and stays (`steadied`).

Nothing is decided by the truth; the steps of the grid were chosen on five crops of photos, the
weight on two.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from ..problem.problem import Found, Problem, gradients_of

PICTURE = 3  # dimensions: channels, height, width
_WORTH = 2.0  # times the distance that the search reached may be left
_WAYS = (0.5, 0.25)  # share of the way to the public image's brightness: the search knows some
_HELD = 0.1  # weight of the variation that stays
_CONTRASTS = (1.0, 0.85, 0.7, 0.5)
_NORMALISING = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.InstanceNorm2d,
    nn.LocalResponseNorm,
)


def normalises(model: nn.Module) -> bool:
    """Whether a network has a layer that normalises each record by itself.

    >>> normalises(nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)))
    True
    >>> normalises(nn.InstanceNorm2d(3, track_running_stats=True).eval())
    False
    """
    return any(map(_by_itself, model.modules()))


def _by_itself(module: nn.Module) -> bool:
    """Whether a layer normalises by the record and not by running statistics, in evaluation."""
    running = getattr(module, "running_mean", None) is not None and not module.training
    return isinstance(module, _NORMALISING) and not running


def steadied(problem: Problem) -> Problem:
    """The same with a prior that stays, where a network normalises over places.

    Args:
        problem: any; only one picture without noise, and a preset that smooths colours and fades,
            is changed.
    """
    preset, seen = problem.preset, problem.observation
    alone = seen.records == 1 and len(problem.shape) == PICTURE and not seen.is_noisy
    fades = preset.colour and preset.fade is not None and preset.adam_steps > 0
    if not (alone and fades and normalises_places(problem.model)):
        return problem
    held = replace(preset, tv_weight=_HELD, fade=None, newton_steps=0)
    return replace(problem, preset=held)


def normalises_places(model: nn.Module) -> bool:
    """Whether a network has a layer that takes the mean over the places of a picture.

    >>> normalises_places(nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8)))
    False
    """
    return any(map(_over_places, model.modules()))


def _over_places(module: nn.Module) -> bool:
    """Whether a layer takes the mean over the places of a picture."""
    if isinstance(module, nn.LayerNorm):
        return len(module.normalized_shape) > 1
    return _by_itself(module)


def anchored(problem: Problem, found: Found) -> Found:
    """What was found, with the brightness of the public image as far as the gradient allows.

    Args:
        problem: what was to be explained.
        found: the search's picture.

    Returns:
        The same where the network does not normalise, no public image is known, there is noise,
        which the prior of the search answers, or more than one record.
    """
    prior, seen = problem.prior_image, problem.observation
    alone = seen.records == 1 and len(problem.shape) == PICTURE and problem.preset.colour
    if prior is None or seen.is_noisy or not alone or not normalises(problem.model):
        return found
    mean, goal = found.pixels.mean(), prior.mean()
    reached = _left(problem, found.pixels, found.labels)
    for way in _WAYS:
        best, least = None, _WORTH * reached
        for contrast in _CONTRASTS:
            level = mean + way * (goal - mean)
            pixels = (level + contrast * (found.pixels - mean)).clamp(0, 1)
            left = _left(problem, pixels, found.labels)
            if left <= least:
                best, least = pixels, left
        if best is not None:
            return replace(found, pixels=best)
    return found


def _left(problem: Problem, pixels: Tensor, labels: Tensor) -> float:
    """The preset's distance of the gradient that a batch would have sent."""
    soft = nn.functional.one_hot(labels, problem.classes).to(pixels)
    with torch.no_grad():
        sent = gradients_of(problem, pixels[None], soft[None], together=False)
    return float(problem.preset.objective(sent, problem.observation)[0])
