"""The picture that a denoiser of the user's and a noisy gradient agree on.

    Romano, Elad, Milanfar. The Little Engine that Could: Regularization by Denoising (RED). SIAM
        J. Imaging Sciences 2017, arXiv:1611.02862 (the gradient of the prior).
    Zhang, Li, Zuo, Zhang, Van Gool, Timofte. Plug-and-Play Image Restoration with Deep Denoiser
        Prior. IEEE TPAMI 2022, arXiv:2008.13751 (noise levels that fall on the way).

    x <- x - step (J' S^-1 (clip(grad(x, y)) - o) + (x - D(x, s)) / s^2),   s falling

| symbol | name here | shape |
|---|---|---|
| o, S | observation | (K, D), (K, K) |
| D | denoiser | (B, *shape), s -> (B, *shape) |
| s | noise_std | pixels |
| x, y | pixels, label | (*shape), a class |

D(x, s) is the mean of what a picture was, seen under noise of deviation s; by Tweedie's formula
(D(x, s) - x) / s^2 is the slope of the logarithm of how probable x is under that noise. So x climbs
the posterior of the record, at first of a blurred prior and at last of a sharp one.

Where we differ from the papers: the likelihood is that of the clipped gradient, which is not linear
in the picture. Each likely label has a picture of its own, and the result is their mean by the
labels' probabilities: under much noise the mean of the posterior is nearer than its mode.

Shape letters: S labels that are tried, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ...privacy.raised import line_of, told
from ..problem.problem import Found, Problem, gradients_of, is_faster_together
from .candidates import squared

Denoiser = Callable[[Tensor, float], Tensor]
"""f(pixels (B, *shape) on the unit box, noise_std) -> (B, *shape): what they were without noise."""

_STEPS = 300
_FIRST, _LAST = 1.0, 0.03
_RATE = 0.05
_MOST_LABELS, _LIKELY = 5, 0.02
_MOST_CLASSES = 20
_FAR = 10.0  # times the largest of what a denoiser is given, or of the box: what it returns is less


def denoised(
    problem: Problem, *, denoiser: Denoiser, labels: Tensor | None, given: bool = False
) -> Found:
    """The record that denoiser and observation agree on.

    Args:
        problem: of one record under noise.
        denoiser: of the user's, on the unit box.
        labels: (C,) probabilities of the labels; where None every class of at most 20 is tried, or
            else the label that the problem was posed with.
        given: whether that label is known, and no other is tried.

    Returns:
        The picture and the likeliest label.

    Raises:
        ValueError: the denoiser raises, or returns what are no pictures.
    """
    home, dtype = problem.box.span.device, problem.box.span.dtype
    tried, weights = _labels(problem, labels, given=given)
    steps = replace(problem, labels=tried[:1]).to(device=problem.device, dtype=torch.float32)
    soft = nn.functional.one_hot(tried, problem.classes).to(steps.box.span)[:, None]  # (S, 1, C)
    start = steps.prior_image
    if start is None:
        start = torch.full(problem.shape, 0.5).to(steps.box.span)
    pixels = start.expand(len(tried), 1, *problem.shape).clone()
    together = is_faster_together(steps, pixels, soft)
    moved = pixels.requires_grad_()
    adam = torch.optim.Adam([moved], lr=_RATE, betas=(0.9, 0.99))
    for step in range(_STEPS):
        part = step / (_STEPS - 1)
        noise_std = _FIRST * (_LAST / _FIRST) ** part
        adam.param_groups[0]["lr"] = _RATE * (1 - 0.9 * part)
        sent = gradients_of(steps, moved, soft, together=together)
        far = squared(sent - steps.observation.gradient, steps.observation)
        (slope,) = torch.autograd.grad(far.sum() / 2, moved)
        with torch.no_grad():
            clean = _clean(denoiser, moved[:, 0], noise_std)[:, None]
            moved.grad = slope + (moved - clean) / noise_std**2
        adam.step()
    with torch.no_grad():
        sent = gradients_of(steps, moved, soft, together=together)
        far = squared(sent - steps.observation.gradient, steps.observation)
        if weights is None:
            weights = (far / -2).softmax(dim=0)
        weights = weights.to(moved)
        picture = (weights[:, None, None] * moved.flatten(1)[:, None]).sum(dim=0)
    best = tried[int(weights.argmax())].to(home)
    return Found(
        pixels=picture.reshape(1, *problem.shape).clamp(0, 1).to(home, dtype).detach(),
        labels=best[None],
        iterations=_STEPS,
        stage="denoiser",
    )


def _clean(denoiser: Denoiser, pixels: Tensor, noise_std: float) -> Tensor:
    """What a denoiser of the user's makes of pictures.

    Raises:
        ValueError: it raises, or returns what are no pictures of that shape.
    """
    try:
        clean = denoiser(pixels.clone(), noise_std)
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(
            f"the denoiser raised {told(error)}{line_of(error)}; it is called as f(pixels of shape "
            f"{tuple(pixels.shape)}, noise_std={noise_std:.3g})"
        ) from error
    if not isinstance(clean, Tensor) or clean.shape != pixels.shape:
        shape = tuple(clean.shape) if isinstance(clean, Tensor) else type(clean).__name__
        raise InputError(
            f"the denoiser returned {shape}, must be a tensor of shape {tuple(pixels.shape)}"
        )
    if not clean.is_floating_point() or clean.layout != torch.strided:
        raise InputError(
            f"the denoiser returned a tensor of {clean.dtype}, {clean.layout}, must be a dense one "
            "of floating point: pictures on the unit box"
        )
    if not bool(torch.isfinite(clean).all()):
        raise InputError(
            f"the denoiser returned values that are not finite at noise_std={noise_std:.3g}"
        )
    largest, most = float(clean.abs().max()), _FAR * max(1.0, float(pixels.abs().max()))
    if largest > most:
        raise InputError(
            f"the denoiser returned values up to {largest:.3g} at noise_std={noise_std:.3g}, must "
            f"be at most {most:.3g}: pictures are on the unit box, from 0 to 1 and not to 255"
        )
    return clean.detach().to(pixels)


def _labels(
    problem: Problem, labels: Tensor | None, *, given: bool
) -> tuple[Tensor, Tensor | None]:
    """(S,) labels to try, and their probabilities where these are known."""
    if labels is not None and not given:
        order = labels.argsort(descending=True)[:_MOST_LABELS]
        order = order[labels[order] >= min(_LIKELY, float(labels.max()))]
        return order.cpu(), (labels[order] / labels[order].sum()).cpu()
    if problem.labels is not None and (given or problem.classes > _MOST_CLASSES):
        return problem.labels.cpu(), torch.ones(1)
    return torch.arange(problem.classes), None
