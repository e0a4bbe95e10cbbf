"""A chain of layers as linear algebra: what one record does to it and to its gradient.

For a convolution or linear layer z = W * x + b of one record, with d the loss's derivative in z,

    dW = outer(x, d),  bilinear;     db = sum of d over positions;     derivative in x = W^T * d.

The three maps are linear in each argument and adjoint to each other:
<G, outer(x, d)> = <d, push(x; G)> = <pull(d; G), x>. Activations and pools are read as the linear
map they are at a given input.

Where an activation comes before a max-pool, the two change places: activations that grow with
their input commute with the maximum, and the pool's output is then what the activation hides.

Shape letters: C channels, H height, W width, N unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

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

    >>> model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    >>> chain = read_chain(model, dict(model.named_parameters()), (1, 4, 4))
    >>> [type(layer).__name__ for layer in chain]
    ['Affine', 'Activation', 'Reshape', 'Affine']
    """
    modules = _flat(model, "")
    if modules is None:
        return None
    owned = [p for _, m in modules for p in m.parameters()]
    if len({id(p) for p in owned}) != len(owned) or len(owned) != len(values):
        return None
    chain: list[Layer] = []
    point = next(iter(values.values())).new_zeros(tuple(input_shape))
    for name, module in modules:
        if type(module) is nn.Identity or (type(module) is nn.Flatten and point.ndim == 1):
            continue
        layer = _layer(name, module, values, tuple(point.shape))
        if layer is None:
            return None
        point = layer.at(point)[0]
        before = chain[-1] if chain else None
        if isinstance(layer, MaxPool) and isinstance(before, Activation):
            chain.insert(-1, layer)
        else:
            chain.append(layer)
    return chain


def _flat(module: nn.Module, name: str) -> list[tuple[str, nn.Module]] | None:
    """Names and modules in order; None where a container is of another kind."""
    if type(module).forward is not nn.Sequential.forward:
        return [(name, module)] if next(module.children(), None) is None else None
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

    >>> a = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> x = solve_normal(lambda v: a @ v, torch.tensor([3.0, 4.0]), tolerance=1e-6, steps=9)
    >>> x.round(decimals=4).tolist()
    [1.0, 1.0]
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
