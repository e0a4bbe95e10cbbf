"""The record behind layers whose inputs are hidden, by semismooth Newton through all of them.

With z(x) the output of a chain of layers at a record x, d the loss's derivative in it and a_k the
input of layer k:

    z(x) = z  where known,    z(x) <= 0  where a ReLU hides z,    outer(a_k(x), d_k(x)) = dW_k

Activations and pools are held as the linear maps they are at the current x; the next x solves the
least-squares problem that leaves (Levenberg-Marquardt), and stays inside the box.

1. With the first two and, where d is the derivative in a layer's own output, that layer's dW.
2. With all, each block weighed by what it leaves: a wrong sign in the layers above spoils d_k, and
   with it that block, while the others stay exact.

Shape letters: N unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..problem.prior import Box
from .rgap_layers import Affine, Layer, Map, solve_normal

ACCEPTED = 1e-4
"""Relative residual of a true record: 1e-6 from float32 gradients. A wrong sign leaves 5e-3."""

_UNSEEN = 1e-2
"""Share of a random direction that equations may fail to show: one pixel of 100 x 100."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Level:
    """What is known at the output z of a layer.

    `target` is z where `known` > 0, which is the slope of the activation above; elsewhere z <= 0.
    `delta` is the loss's derivative in z, `scale` the size of the activation's output.
    """

    target: Tensor
    known: Tensor
    delta: Tensor
    scale: float


def weight_gradient(layer: Affine, gradients: dict[str, Tensor]) -> Tensor:
    """The observed gradient of a layer's weight."""
    return gradients[f"{layer.name}.weight" if layer.name else "weight"]


class _Newton:
    """The equations of a record at one estimate of it, linearised with the signs held fixed."""

    def __init__(
        self, chain: list[Layer], gradients: dict[str, Tensor], *, level: Level, x: Tensor
    ) -> None:
        self.x = x
        self.maps: list[tuple[Layer, Map, Map]] = []
        inputs: list[Tensor] = []
        for layer in chain:
            inputs.append(x)
            x, push, pull = layer.at(x)
            self.maps.append((layer, push, pull))
        rows = torch.where(level.known > 0, level.known, (x > 0).to(x))
        self.rows, self.left = rows, rows * (level.target - x)
        self.size = level.scale * math.sqrt(x.numel())
        self.deltas: dict[int, Tensor] = {}
        self.missing: dict[int, Tensor] = {}
        self.shares: dict[int, float] = {-1: float(self.left.norm()) / self.size}
        self.sizes: dict[int, float] = {-1: self.size}
        delta = level.delta
        for k in range(len(chain) - 1, -1, -1):
            layer, _, pull = self.maps[k]
            if isinstance(layer, Affine) and layer.name is not None:
                seen = weight_gradient(layer, gradients)
                self.deltas[k] = delta
                self.missing[k] = seen - layer.outer(inputs[k], delta)
                self.sizes[k] = float(seen.norm().clamp_min(1e-300))
                self.shares[k] = float(self.missing[k].norm()) / self.sizes[k]
            delta = pull(delta)

    def adjoint(
        self, left: Tensor, missing: dict[int, Tensor], weights: dict[int, float]
    ) -> Tensor:
        """Weighted residuals of the features and the gradients, carried to the record."""
        back = (weights[-1] / self.sizes[-1]) ** 2 * self.rows * left
        for k in range(len(self.maps) - 1, -1, -1):
            layer, _, pull = self.maps[k]
            back = pull(back)
            if k in weights and isinstance(layer, Affine):
                weight = (weights[k] / self.sizes[k]) ** 2
                back = back + weight * layer.pull(self.deltas[k], weight=missing[k])
        return back

    def normal(self, v: Tensor, weights: dict[int, float]) -> Tensor:
        """The Gauss-Newton matrix times a direction."""
        missing: dict[int, Tensor] = {}
        for k, (layer, push, _) in enumerate(self.maps):
            if k in weights and isinstance(layer, Affine):
                missing[k] = layer.outer(v, self.deltas[k])
            v = push(v)
        return self.adjoint(self.rows * v, missing, weights)


def solve_record(
    chain: list[Layer],
    gradients: dict[str, Tensor],
    *,
    level: Level,
    start: Tensor,
    box: Box,
    rounding: float,
    accepted: float = ACCEPTED,
) -> tuple[Tensor, list[tuple[str, float]]] | None:
    """The record whose features and gradients are the known ones, by semismooth Newton.

    First with the equations that are linear in the features below the level, whose derivatives
    are known; then with all, each block weighed by what it leaves, since a wrong sign above a
    layer spoils that layer's block alone. `rounding` is the relative error of the gradient,
    `accepted` the relative residual of a block up to which the record counts as found.
    """
    equations = level.target.numel() + sum(
        weight_gradient(layer, gradients).numel()
        for layer in chain
        if isinstance(layer, Affine) and layer.name is not None
    )
    if equations < start.numel():
        return None
    at = _Newton(chain, gradients, level=level, x=start)
    for every in (False, True):
        at = _iterate(
            at, lambda x: _Newton(chain, gradients, level=level, x=x), box,
            every=every, rounding=rounding,
        )  # fmt: skip
    if max(at.shares.values()) > accepted or not is_determined(
        lambda v: at.normal(v, dict.fromkeys(at.shares, 1.0)), start.shape, like=start
    ):
        return None
    names = [
        (str(layer.name), at.shares[k])
        for k, layer in enumerate(chain)
        if isinstance(layer, Affine) and k in at.deltas
    ]
    return at.x, names[::-1]


def _iterate(
    at: _Newton, equations: Callable[[Tensor], _Newton], box: Box, *, every: bool, rounding: float
) -> _Newton:
    """Levenberg-Marquardt steps inside the box until they gain nothing."""
    damping, effort, failed = 1e-2, 100, 0
    for _ in range(60):
        used = [k for k in at.shares if every or k in (-1, len(at.maps) - 1)]
        weights = {k: 1 / (at.shares[k] + rounding) if every else 1.0 for k in used}
        before = _merit(at, weights)
        right = at.adjoint(at.left, at.missing, weights)
        size = float(right.square().sum())
        if size == 0:
            break
        ridge = damping * float((right * at.normal(right, weights)).sum()) / size
        step = _step(at, right, weights=weights, ridge=ridge, effort=effort)
        moved = equations(box.inputs(box.pixels(at.x + step).clamp(0, 1)))
        after = _merit(moved, weights)
        if after > 0.3 * before:  # too long a step, or one that is not solved well enough
            effort = min(2 * effort, 400)
            if max(at.shares[k] for k in used) < 20 * rounding:
                return moved if after < before else at
        failed = 0 if after < 0.95 * before else failed + 1
        if failed == 8:
            break
        damping = max(damping / 5, 1e-12) if after < before else 5 * damping
        at = moved if after < before else at
    return at


def _merit(at: _Newton, weights: dict[int, float]) -> float:
    return sum((weight * at.shares[k]) ** 2 for k, weight in weights.items())


def _step(
    at: _Newton, right: Tensor, *, weights: dict[int, float], ridge: float, effort: int
) -> Tensor:
    return solve_normal(
        lambda v: at.normal(v, weights) + ridge * v, right, tolerance=1e-10, steps=effort
    )


def is_determined(normal: Map, shape: Sequence[int], *, like: Tensor) -> bool:
    """Whether a random direction can be told from what the equations show of it."""
    chance = torch.Generator().manual_seed(0)
    probe = torch.randn(tuple(shape), generator=chance, dtype=torch.float64).to(like)
    shown = solve_normal(normal, normal(probe), tolerance=1e-9, steps=6000)
    return bool((shown - probe).norm() <= _UNSEEN * probe.norm())
