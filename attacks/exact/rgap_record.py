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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from ..problem.columns import Behind
from ..problem.layers import trial_records
from ..problem.observation import twice_differentiable
from ..problem.problem import Box, copied

# A chain of layers as linear algebra: what one record does to it and to its gradient.
#
# For a convolution or linear layer z = W * x + b of one record, with d the loss's derivative in z,
#
#     dW = outer(x, d),  bilinear;     db = sum of d over positions;     derivative in x = W^T * d.
#
# The three maps are linear in each argument and adjoint to each other:
# <G, outer(x, d)> = <d, push(x; G)> = <pull(d; G), x>. Activations and pools are read as the linear
# map they are at a given input.
#
# Where an activation comes before a max-pool, the two change places: activations that grow with
# their input commute with the maximum, and the pool's output is then what the activation hides.
#
# Shape letters: C channels, H height, W width, N unknowns.

Pair = tuple[int, int]
Shape = tuple[int, ...]
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Affine:
    """A convolution, a linear layer or an average pool (a convolution without parameters).

    Attributes:
        name: of the module, as in `named_parameters`; None where it has no parameters.
        weight: (out, in) of a linear layer, (out, in / groups, *kernel) of a convolution.
        bias: (out,) or None.
        inside: shape of one input.
        stride: of a convolution.
        padding: of a convolution.
        dilation: of a convolution.
        groups: of a convolution.
    """

    name: str | None
    weight: Tensor
    bias: Tensor | None
    inside: Shape
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer."""
        return self.weight.ndim == 2

    def push(self, x: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """W * x, without the bias."""
        w = self.weight if weight is None else weight
        if self.is_linear:
            return w @ x
        return functional.conv2d(x[None], w, None, *self._geometry())[0]

    def pull(self, delta: Tensor, *, weight: Tensor | None = None) -> Tensor:
        """W^T * delta."""
        w = self.weight if weight is None else weight
        if self.is_linear:
            return delta @ w
        return conv2d_input((1, *self.inside), w, delta[None], *self._geometry())[0]

    def outer(self, x: Tensor, delta: Tensor) -> Tensor:
        """The weight's gradient."""
        if self.is_linear:
            return torch.outer(delta, x)
        return conv2d_weight(x[None], list(self.weight.shape), delta[None], *self._geometry())

    def _geometry(self) -> tuple[Any, ...]:  # Any: torch's stubs know integers alone
        return self.stride, self.padding, self.dilation, self.groups

    def offset(self) -> Tensor:
        """The bias, broadcastable to one output."""
        if self.bias is None:
            return self.weight.new_zeros(())
        return self.bias if self.is_linear else self.bias[:, None, None]

    def at(self, x: Tensor) -> tuple[Tensor, Map, Map]:
        """The output at x, and the linear map and its adjoint there."""
        return self.push(x) + self.offset(), self.push, self.pull


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """An activation that grows with its input.

    Attributes:
        kind: the module's class.
        slope: for negative inputs: 0 of a ReLU.
    """

    kind: type[nn.Module]
    slope: float = 0.0

    @property
    def hides(self) -> bool:
        """Whether negative inputs are lost."""
        return self.kind is nn.ReLU or (self.kind is nn.LeakyReLU and self.slope == 0)

    def at(self, x: Tensor) -> tuple[Tensor, Map, Map]:
        """The output at x, and the linear map and its adjoint there."""
        if self.kind is nn.Sigmoid:
            y = torch.sigmoid(x)
        elif self.kind is nn.Tanh:
            y = torch.tanh(x)
        else:
            y = torch.where(x > 0, x, self.slope * x)
        slope = self.slope_at(y)
        return y, lambda v: slope * v, lambda v: slope * v

    def slope_at(self, y: Tensor) -> Tensor:
        """The derivative where the output is y."""
        if self.kind is nn.Sigmoid:
            return y * (1 - y)
        if self.kind is nn.Tanh:
            return 1 - y * y
        return torch.where(y > 0, 1.0, self.slope).to(y)

    def inverse(self, y: Tensor) -> Tensor:
        """The input of an output y; 0 where it is hidden, not finite where y is out of range."""
        if self.kind is nn.Sigmoid:
            return torch.log(y) - torch.log1p(-y)
        if self.kind is nn.Tanh:
            return torch.atanh(y)
        return y.clamp_min(0) if self.hides else torch.where(y > 0, y, y / self.slope)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxPool:
    """A max-pool, given by its module."""

    module: nn.MaxPool2d

    def at(self, x: Tensor) -> tuple[Tensor, Map, Map]:
        """The output at x, and the linear map and its adjoint there."""
        m = self.module
        y, places = functional.max_pool2d(
            x[None], m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode,
            return_indices=True,
        )  # fmt: skip
        where, count = places[0].flatten(1), math.prod(x.shape[1:])

        def pick(v: Tensor) -> Tensor:
            return v.flatten(1).gather(1, where).reshape(y.shape[1:])

        def put(v: Tensor) -> Tensor:
            empty = v.new_zeros(len(v), count)
            return empty.scatter_add_(1, where, v.flatten(1)).reshape(x.shape)

        return y[0], pick, put


@dataclass(frozen=True, kw_only=True, slots=True)
class Reshape:
    """A flattening."""

    inside: Shape

    def at(self, x: Tensor) -> tuple[Tensor, Map, Map]:
        """The output at x, and the linear map and its adjoint there."""
        return x.flatten(), Tensor.flatten, lambda v: v.reshape(self.inside)


Layer = Affine | Activation | MaxPool | Reshape


def read_chain(
    model: nn.Module, values: dict[str, Tensor], input_shape: Sequence[int]
) -> list[Layer] | None:
    """The layers of a network that is one chain of layers known here.

    Args:
        values: its parameters by name.

    Returns:
        The layers from the input on, each max-pool before its activation; None where a layer is
        of another kind, is used twice or shares its parameters.
    """
    modules = _flat(model.inner, "inner") if isinstance(model, Behind) else _flat(model, "")
    if modules is None:
        return None
    if isinstance(model, Behind):  # what is before that layer is known to be undone
        start = [name for name, _ in modules].index(f"inner.{model.front.layer}")
        modules = modules[start:]
    owned = [p for _, m in modules for p in m.parameters()]
    if len({id(p) for p in owned}) != len(owned) or len(owned) != len(values):
        return None
    chain: list[Layer] = []
    like = next(iter(values.values()))
    point = like.new_zeros(tuple(input_shape))
    for name, module in modules:
        if type(module) is nn.Identity or (type(module) is nn.Flatten and point.ndim == 1):
            continue
        layer = _layer(name, module, values, tuple(point.shape))
        if layer is None:
            return None
        try:
            point = layer.at(point)[0]
        except RuntimeError:  # it is fed something else
            return None
        before = chain[-1] if chain else None
        if isinstance(layer, MaxPool) and isinstance(before, Activation):
            chain.insert(-1, layer)
        else:
            chain.append(layer)
    # What holds the layers may do more with them.
    with twice_differentiable(), torch.no_grad(), suppress(Exception):
        trained = copied(model).train()
        zeros = like.new_zeros(math.prod(input_shape))
        for record in trial_records(zeros, zeros + 1):
            point = start = record.reshape(tuple(input_shape))
            for layer in chain:
                point = layer.at(point)[0]
            for network in (model, trained):
                [made] = functional_call(network, values, (start[None],))
                if made.shape != point.shape or not torch.allclose(made, point):
                    return None
        return chain
    return None


def _flat(module: nn.Module, name: str) -> list[tuple[str, nn.Module]] | None:
    """Names and modules in order; None where one holds several and is no chain of them."""
    if type(module).forward is not nn.Sequential.forward:
        held = list(module.named_children())
        if len(held) == 1:
            return _flat(held[0][1], f"{name}.{held[0][0]}" if name else held[0][0])
        return None if held else [(name, module)]
    every: list[tuple[str, nn.Module]] = []
    for child, inner in module._modules.items():
        part = _flat(inner, f"{name}.{child}" if name else child) if inner is not None else []
        if part is None:
            return None
        every += part
    return every


def _layer(name: str, module: nn.Module, values: dict[str, Tensor], inside: Shape) -> Layer | None:
    kind = type(module)
    if kind is nn.Flatten and module.start_dim == 1 and module.end_dim == -1:
        return Reshape(inside=inside)
    if kind in (nn.ReLU, nn.Sigmoid, nn.Tanh):
        return Activation(kind=kind)
    if isinstance(module, nn.LeakyReLU) and module.negative_slope >= 0:
        return Activation(kind=nn.LeakyReLU, slope=module.negative_slope)
    prefix = f"{name}." if name else ""
    weight, bias = values.get(f"{prefix}weight"), values.get(f"{prefix}bias")
    if kind is nn.Linear and weight is not None and inside == tuple(weight.shape[1:]):
        return Affine(name=name, weight=weight, bias=bias, inside=inside)
    if len(inside) != 3:
        return None
    if kind is nn.Conv2d and weight is not None:
        return _convolution(name, module, weight, bias, inside)
    if isinstance(module, nn.MaxPool2d):
        return MaxPool(module=module)
    if kind is nn.AvgPool2d:
        return _average(module, inside, like=next(iter(values.values())))
    return None


def _convolution(
    name: str, module: nn.Module, weight: Tensor, bias: Tensor | None, inside: Shape
) -> Affine | None:
    if not isinstance(module, nn.Conv2d) or module.padding_mode != "zeros":
        return None
    if module.padding == "valid":
        padding: Pair = (0, 0)
    elif isinstance(module.padding, str):  # "same": equal on both sides for odd kernels only
        if any(size % 2 == 0 for size in module.kernel_size):
            return None
        reach = [d * (k - 1) // 2 for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        padding = (reach[0], reach[1])
    else:
        padding = (module.padding[0], module.padding[1])
    return Affine(
        name=name,
        weight=weight,
        bias=bias,
        inside=inside,
        stride=(module.stride[0], module.stride[1]),
        padding=padding,
        dilation=(module.dilation[0], module.dilation[1]),
        groups=module.groups,
    )


def _average(module: nn.Module, inside: Shape, *, like: Tensor) -> Affine | None:
    if not isinstance(module, nn.AvgPool2d) or module.ceil_mode:
        return None
    size, stride, padding = (_pair(v) for v in (module.kernel_size, module.stride, module.padding))
    if module.divisor_override is not None or (padding != (0, 0) and not module.count_include_pad):
        return None
    weight = like.new_full((inside[0], 1, *size), 1 / math.prod(size))
    return Affine(
        name=None, weight=weight, bias=None, inside=inside, stride=stride, padding=padding,
        groups=inside[0],
    )  # fmt: skip


def _pair(value: int | tuple[int, ...]) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def solve_normal(normal: Map, right: Tensor, *, tolerance: float, steps: int) -> Tensor:
    """Conjugate gradients for normal(x) = right, from 0.

    Args:
        normal: symmetric, positive semidefinite.
        right: in the range of `normal`.
        tolerance: of the residual, relative to the right side's.
        steps: most steps.

    Returns:
        The solution; where there are many, one that is 0 along what `normal` does not see.
    """
    x, left, way = torch.zeros_like(right), right, right
    size = float(left.square().sum())
    goal = tolerance**2 * size
    for _ in range(steps):
        if size <= goal:
            break
        ahead = normal(way)
        curve = float((way * ahead).sum())
        if curve <= 0:
            break
        x = x + (size / curve) * way
        left = left - (size / curve) * ahead
        before, size = size, float(left.square().sum())
        way = left + (size / before) * way
    return x


ACCEPTED = 1e-4
"""Relative residual of a true record: 1e-6 from float32 gradients. A wrong sign leaves 5e-3."""

_UNSEEN = 1e-2
"""Share of a random direction that equations may fail to show: one pixel of 100 x 100."""


_LEAST = 1e-140  # whose square is a number yet
_DEAD = 1e-100
"""Norm of a gradient by which nothing can be divided, and squared, as a number."""


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
        # Forward: each layer's linear map at x.
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
        self.sizes: dict[int, float] = {-1: max(self.size, _LEAST)}
        delta = level.delta
        # Backward: what each weight gradient lacks.
        for k in range(len(chain) - 1, -1, -1):
            layer, _, pull = self.maps[k]
            if isinstance(layer, Affine) and layer.name is not None:
                seen = weight_gradient(layer, gradients)
                self.deltas[k] = delta
                self.missing[k] = seen - layer.outer(inputs[k], delta)
                self.sizes[k] = float(seen.norm().clamp_min(_LEAST))
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
    shown = [
        weight_gradient(layer, gradients)
        for layer in chain
        if isinstance(layer, Affine) and layer.name is not None
    ]
    # A dead layer, whose gradient is 0 or next to it, passes nothing of the record on.
    dead = any(float(seen.norm()) < _DEAD for seen in shown)
    if dead or level.target.numel() + sum(seen.numel() for seen in shown) < start.numel():
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
