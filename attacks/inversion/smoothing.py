"""Smooth stand-ins for ReLU and max-pooling, so that a search sees where they switch.

The gradient that a ReLU network sends jumps where an activation changes its sign: delta passes
through the mask [z > 0]. Its slope in the pixels is blind to those jumps, and a search on it stops
in the first set of masks where the residual is orthogonal to what the pixels can do within them.
With the smooth function

    s_w(z) = (z + sqrt(z^2 + w^2)) / 2,    s_w'(z) = (1 + z / sqrt(z^2 + w^2)) / 2

in place of max(z, 0) the mask is a slope of width w, which the search follows; w is a fraction of
the layer's root mean square and falls to nothing on the way (graduated non-convexity: Blake and
Zisserman 1987, "Visual Reconstruction"). A maximum is max(a, b) = b + max(a - b, 0), pair by pair.

`Smoothed` exchanges the functions while it is entered, whether a network calls them as modules or
as functions; nothing else changes, the observation's own gradient was sent by the true network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...privacy._validate import within

_TINY = 1e-30


class Smoothed(TorchFunctionMode):
    """Within it, ReLU, leaky ReLU and max-pooling are smooth.

    Attributes:
        width: of the transition in units of the root mean square of the layer's inputs; 0 leaves
            every function as it is. May be set between calls.

    >>> with Smoothed(1.0):
    ...     [round(value, 4) for value in torch.relu(torch.tensor([-1.0, 1.0])).tolist()]
    [0.2071, 1.2071]
    """

    def __init__(self, width: float) -> None:
        within("width", width, "[0, inf]", "0 leaves ReLU as it is")
        super().__init__()
        self.width = width

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        smooth = _STAND_INS.get(func) if self.width > 0 else None
        found = None if smooth is None else smooth(self.width, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


class _Mask(torch.autograd.Function):
    """(1 + z / root) / 2, the first derivative of `_Ramp`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, width: Tensor, root: Tensor) -> Tensor:  # noqa: ARG004
        return 0.5 + 0.5 * (values / root)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return slopes[0] * _bend(*ctx.saved_tensors), None, None


class _Ramp(torch.autograd.Function):
    """(z + root) / 2 with root = sqrt(z^2 + w^2), which its derivatives share."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, width: Tensor, root: Tensor) -> Tensor:  # noqa: ARG004
        return 0.5 * (values + root)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        return slopes[0] * _mask_of(*ctx.saved_tensors), None, None


_mask_of: Callable[..., Tensor] = _Mask.apply
_ramp_of: Callable[..., Tensor] = _Ramp.apply


def _bend(width: Tensor, root: Tensor) -> Tensor:
    """The second derivative of the ramp."""
    return 0.5 * width * width / (root * root * root)


def _relu(width: float, input: Tensor, *_: Any, **__: Any) -> Tensor:  # inplace means nothing here
    return _ramp(width, input, size=_size(input))


def _leaky_relu(
    width: float, input: Tensor, negative_slope: float = 0.01, *_: Any, **__: Any
) -> Tensor:
    ramp = _ramp(width, input, size=_size(input))
    return negative_slope * input + (1 - negative_slope) * ramp


def _max_pool2d(
    width: float,
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """The tree of pairwise maxima; None for windows that overlap, are padded or incomplete."""
    (high, wide), steps = _pair(kernel_size), _pair(stride or kernel_size)
    rows, columns = input.shape[-2] // high * high, input.shape[-1] // wide * wide
    cut = (rows, columns) != tuple(input.shape[-2:])
    if (high, wide) != steps or _pair(padding) != (0, 0) or _pair(dilation) != (1, 1):
        return None
    if return_indices or (cut and ceil_mode):
        return None
    size, whole = _size(input), input[..., :rows, :columns]
    parts = [whole[..., i::high, j::wide] for i in range(high) for j in range(wide)]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        pairs = zip(parts[::2], parts[1::2], strict=False)  # an odd one waits
        parts = [b + _ramp(width, a - b, size=size) for a, b in pairs] + odd
    return parts[0]


def _ramp(width: float, values: Tensor, *, size: Tensor) -> Tensor:
    scaled = width * size
    root = torch.sqrt(values.detach() * values.detach() + scaled * scaled)
    return _ramp_of(values, scaled, root)


def _size(values: Tensor) -> Tensor:
    """Root mean square, without derivative."""
    return values.detach().square().mean().sqrt() + _TINY


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    every = tuple(value)
    return (every[0], every[-1])


_STAND_INS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.relu: _relu,
    torch.relu_: _relu,
    torch.Tensor.relu: _relu,
    torch.Tensor.relu_: _relu,
    functional.relu: _relu,
    functional.leaky_relu: _leaky_relu,
    functional.max_pool2d: _max_pool2d,
    torch.max_pool2d: _max_pool2d,
}
