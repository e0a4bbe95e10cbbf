"""Layers computed so that a gradient may be differentiated again, one by one and under vmap.

An attack differentiates the gradient that a candidate would have sent. Fused kernels of attention
have a first derivative alone, and no rule for vmap; the fast path of `nn.TransformerEncoderLayer`
in evaluation mode has no derivative at all. The second derivative of torch's layer norm is a
wrong one under vmap (torch 2.13: by 7 % in a small network), without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.backends import mha
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Compute attention and layer norm by plain operations while it is entered.

    >>> from torch.func import grad, vmap
    >>> def slope(x):  # of sum(LayerNorm(x)^3)
    ...     return grad(lambda z: functional.layer_norm(z, (3,)).pow(3).sum())(x)
    >>> x = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    >>> with twice_differentiable():
    ...     found = vmap(slope)(x).square().sum()
    >>> torch.autograd.grad(found, x)[0].round(decimals=4).tolist() == torch.autograd.grad(
    ...     slope(x[0]).square().sum(), x)[0].round(decimals=4).tolist()
    True
    """
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), _PlainLayerNorm():
            yield
    finally:
        mha.set_fastpath_enabled(before)


class _PlainLayerNorm(TorchFunctionMode):
    """Layer norm from means and squares."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        plain = _PLAIN.get(func, func)
        return plain(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,  # torch's name
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    over = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dim=over, keepdim=True)
    found = centred * torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


_PLAIN: Mapping[Callable[..., Any], Callable[..., Any]] = {
    functional.layer_norm: _layer_norm,
}
