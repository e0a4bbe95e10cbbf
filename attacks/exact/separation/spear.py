"""Every image of a small batch, exactly, where the first layer is linear and a ReLU follows.

For h = W x + b, a = relu(h), z = V a + c, record e contributes to the gradient of [W, b]

    s_e d_e [x_e, 1]^T,    d_e = 1[h_e > 0] V^T r_e,    r_e = dloss/dz,                      (1)

with s_e > 0 the mean's and the clip's factor. The sum over B records has rank B, and each d_e is a
sparse direction of its column space: Dimitrov, Baader, Mueller, Vechev (2024), "SPEAR: Exact
Gradient Inversion of Batches in Federated Learning".

    G = [dW, db] = U S Y^T, rank B        U q = d for a record's q; V^T R f = V^T r for its f
    d_i = 0 or d_i = (V^T r)_i            for every unit: `sparse_directions` gives the patterns
    db_i = (V^T dc)_i                     exactly where every record activates unit i
    U q = 0 where inactive, V^T R f where active: one q_e per pattern; D = U Q
    s_e [x_e, 1] = rows of Q^{-1} S Y^T

Where only some patterns are found, an image follows from its pattern alone: [x, 1] = Y g and
[a, 1] in the row space of [dV, dc], with a = 0 where inactive and a = h where active.

**The certificate** is joint, and per image:
- the direction of the pattern is unique, and so is the image;
- h = W x + b is positive exactly on the pattern;
- a = relu(h) lies in the row space of [dV, dc], where that has rank B;
- for one label y, the derivative of the loss of (x, y) in h, through the whole network, is d.
An image that fails one of them counts as missing. Which record of the batch is missing cannot be
told: a gradient knows no order.

**Where we differ from the paper**: patterns by algebra instead of sampling; the certificate of one
image does not need the others.

Shape letters: m units, n inputs, B records, C classes, K intercepts, F images found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...problem.observation import Observation
from ...problem.prior import Box
from ...problem.problem import Problem
from .first_linear import derivatives_in
from .spear_images import Direction, Image, find_direction, find_images
from .spear_patterns import activity_patterns
from .spear_rest import last_patterns
from .spear_sampling import resting_chances, sampled_directions
from .spear_spaces import ReluLayers, ReluSpaces, find_relu_layers, measure_spaces

SAMPLED = 60_000
"""Information sets by default: ten seconds to a minute on one core."""

_AT_LEAST, _SURELY = 1024, 8  # sets that find few records if they can be found at all
_PIXEL_ERROR = 3e-4  # predicted, of the box; a certified image is within 1e-6 in MSE
_OUTSIDE = 1e-3  # of the box
_EXACT = 1e-8  # residual of what double precision determines
_DECISIVE = 0.99  # leverage of a unit on which a direction hangs alone


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Separated:
    """Images of a batch that are certified, one by one.

    Attributes:
        inputs: (F, *shape) certified images in normalised units, within the box.
        labels: (F,) their classes; None where two classes would fit (binary tasks, in part solved).
        records: number of records B of the batch.
        certificates: (F,) largest relative residual of each image's conditions.

    >>> part = Separated(
    ...     inputs=torch.zeros(1, 4), labels=torch.tensor([2]), records=3, certificates=(1e-12,)
    ... )
    >>> part.missing, part.complete
    (2, False)
    """

    inputs: Tensor
    labels: Tensor | None
    records: int
    certificates: tuple[float, ...]

    @property
    def missing(self) -> int:
        """Number of records of the batch that are not certified."""
        return self.records - len(self.inputs)

    @property
    def complete(self) -> bool:
        """Whether the whole batch is certified."""
        return self.missing == 0


def separate(problem: Problem, generator: torch.Generator) -> Separated | None:
    """The certified images of a batch, from the gradients of its first two linear layers.

    Args:
        problem: without noise, of a network whose first parametrised layer is linear with a bias,
            followed by a ReLU and a second linear layer; records or their mean may be clipped.
        generator: source of the random combinations; decides nothing that is certified.

    Returns:
        The images that are certified, none of them perhaps; of several intercepts the one with
        most images. None where nothing can be said: noise, another loss or several points, another
        architecture, or a gradient whose rank is not the number of records (equal records, records
        without loss, or rounding without a gap).

    >>> from overhear.attacks.problem.observation import observe
    >>> model = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 4)).double()
    >>> g = torch.Generator().manual_seed(0)
    >>> flat = torch.randn(444, generator=g, dtype=torch.float64) / 3
    >>> x, y = torch.rand(3, 6, generator=g, dtype=torch.float64), torch.tensor([2, 0, 2])
    >>> seen = observe(
    ...     model, flat, inputs=x, targets=y, clip_norm=0.5, noise_std=0.0, generator=g
    ... )
    >>> box = Box(low=torch.tensor(0.0), span=torch.tensor(1.0))
    >>> posed = Problem(observation=seen, model=model, box=box, shape=(6,), classes=4)
    >>> found = separate(posed, g)
    >>> found.missing, sorted(found.labels.tolist())
    (0, [0, 2, 2])
    """
    observation, model = problem.observation, problem.model
    # The clip of a mean is one factor of all records, like those of (1).
    if observation.is_noisy or not replace(observation, mean_of=None).is_plain:
        return None
    best: Separated | None = None
    for k in range(len(observation.gradient)):
        seen = observation.only(k)
        layers = find_relu_layers(model, seen.points[0, 0].double(), problem.shape)
        spaces = None if layers is None else measure_spaces(seen, model, layers)
        if layers is not None and spaces is not None:
            part = _certified(
                seen, model, layers, spaces, shape=problem.shape, box=problem.box,
                generator=generator,
            )  # fmt: skip
            if best is None or part.missing < best.missing:
                best = part
        if best is not None and best.complete:
            break
    return best


def _certified(
    seen: Observation,
    model: nn.Module,
    layers: ReluLayers,
    spaces: ReluSpaces,
    *,
    shape: tuple[int, ...],
    box: Box,
    generator: torch.Generator,
) -> Separated:
    """The images of one intercept whose every condition holds."""
    nothing = torch.zeros_like(spaces.back)
    patterns = activity_patterns(
        torch.cat([spaces.left, nothing], dim=1),
        torch.cat([spaces.left, -spaces.back], dim=1),
        always=spaces.always,
        never=spaces.never,
        records=seen.records,
        noise=float(spaces.noise[-1]),
        generator=generator,
    )
    directions = _directions(spaces, patterns, known=[])
    if len(directions) < seen.records:
        low, span = (v.double().expand(shape).flatten() for v in (box.low, box.span))
        directions = sampled_directions(
            spaces,
            chances=resting_chances(spaces.weight, low, span),
            known=directions,
            tries=min(SAMPLED, _AT_LEAST + (_SURELY << min(seen.records, 24))),
            generator=generator,
        )
        last = last_patterns(spaces, directions, low=low, span=span)
        directions = _directions(spaces, last, known=directions)
    kept: list[Tensor] = []
    labels: list[int | None] = []
    residuals: list[float] = []
    for direction, image in zip(directions, find_images(spaces, directions), strict=True):
        if image is None:
            continue
        pixels = box.pixels(image.inputs.reshape(shape).to(box.span))
        if not float((pixels - pixels.clamp(0, 1)).abs().max()) <= _OUTSIDE:
            continue
        if not image.error <= _PIXEL_ERROR * float(box.span.min()):
            continue
        rest = _activation_residual(spaces, direction, image)
        if rest is None:
            continue
        derivatives = _derivatives(seen, model, layers, image.inputs.reshape(1, *shape))
        match = _match(spaces, direction, image, derivatives)
        if match is None:
            continue
        kept.append(box.inputs(pixels.clamp(0, 1)))
        labels.append(match[0])
        residuals.append(max(rest, match[1]))
    known = [label for label in labels if label is not None]
    return Separated(
        inputs=torch.stack(kept) if kept else box.span.new_zeros(0, *shape),
        labels=torch.tensor(known, dtype=torch.int64) if len(known) == len(kept) else None,
        records=seen.records,
        certificates=tuple(residuals),
    )


def _directions(
    spaces: ReluSpaces, patterns: Tensor, *, known: Sequence[Direction]
) -> list[Direction]:
    """The known directions, and those of further patterns that have one."""
    held = {tuple(d.pattern.tolist()) for d in known}
    new = [pattern for pattern in patterns if tuple(pattern.tolist()) not in held]
    return [*known, *(d for d in (find_direction(spaces, pattern) for pattern in new) if d)]


def _activation_residual(spaces: ReluSpaces, direction: Direction, image: Image) -> float | None:
    """Distance of a = relu(h) from dV's row space, None where it or the signs of h do not fit."""
    x = image.inputs
    h = spaces.weight[:, :-1] @ x + spaces.weight[:, -1]
    slack = 3 * image.error * math.sqrt(len(x)) * spaces.weight.norm(dim=1)
    if bool((((h > 0) != direction.pattern) & (h.abs() > slack)).any()):
        return None
    if spaces.activations is None:
        return 0.0
    a = torch.cat([h.clamp_min(0), h.new_ones(1)])
    rest = a - spaces.activations @ (spaces.activations.T @ a)
    relative = float(rest.norm() / a.norm())
    allowed = _EXACT + 30 * float(spaces.activation_noise[-1]) + image.error
    return relative if relative <= allowed else None


def _derivatives(seen: Observation, model: nn.Module, layers: ReluLayers, inputs: Tensor) -> Tensor:
    """(C, m) the loss's derivative in h, of norm 1, under each label."""
    rows = derivatives_in(model, seen.points[0, 0].double(), layers.first, inputs)
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)


def _match(
    spaces: ReluSpaces, direction: Direction, image: Image, derivatives: Tensor
) -> tuple[int | None, float] | None:
    """Label, if one alone fits the direction, and its residual; None where no label fits."""
    sent = spaces.left @ direction.mixture  # (m,), of norm 1
    along = derivatives @ sent  # (C,)
    apart = torch.linalg.vector_norm(derivatives - along[:, None] * sent, dim=1)
    if image.sign is not None:
        apart = torch.where(along * image.sign > 0, apart, math.inf)
    allowed = _EXACT + 30 * direction.error + image.error
    fitting = torch.nonzero(apart <= allowed).flatten().tolist()
    if not fitting:
        return None
    label = int(apart.argmin())
    # A mixture of records whose patterns differ in few units satisfies all linear conditions; the
    # loss tells it from a record, unless that is compared too coarsely or for two classes only.
    coarse = allowed > 10 * _EXACT or len(fitting) > 1
    if image.sign is None and coarse and direction.decisive > _DECISIVE:
        return None
    return label if len(fitting) == 1 else None, float(apart[label])
