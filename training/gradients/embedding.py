"""Embeddings: the gradient of an example has a row for each token that it holds.

    gradient of example b at token v = sum of u_bp over the positions p with token v

| symbol | name here   | shape     | unit                                       |
|--------|-------------|-----------|--------------------------------------------|
|        | ``tokens``  | (B, P)    | layer input, integers in 0..V-1            |
| u      | ``signals`` | (B, P, O) | gradient of the loss by the layer's output |
| V, O   |             |           | tokens and their width                     |

A token that occurs at several positions of an example is summed once, at its first position, and
these sums make the norm and the row: signals that nearly cancel leave a sum of rounding, which is
another in another order, and what is measured is what is added. A Gram matrix of positions is no
substitute: its terms may cancel in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ...privacy.errors import InputTypeError
from .clipping import kept
from .rules import Cells, Layer, Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """Tokens, and signals that are zero where a token is the padding.

    Where a norm is asked for, the signals are those of each example's tokens, at the first position
    of each and zero at the others.
    """

    layer: Layer
    rows: int  # V
    tokens: Tensor  # (B, P)
    signals: Tensor  # (B, P, O)

    def elements(self) -> int:
        """See `Factors.elements`; where a norm is asked for, all positions are compared."""
        positions = self.tokens.shape[1]
        return 2 * self.signals.numel() + self.tokens.numel() * (1 + 2 * positions)

    def squared_norms(self) -> Tensor:
        """See `Factors.squared_norms`."""
        return self.signals.square().sum((1, 2))

    def kept(self, squares: Tensor) -> Lookup:
        """See `Factors.kept`."""
        return replace(self, signals=kept(self.signals, squares))

    def add_sum(self, row: Tensor, *, weights: Tensor | None, examples: slice) -> None:
        """See `Factors.add_sum`."""
        signals, tokens = self.signals[examples], self.tokens[examples]
        if weights is not None:
            signals = signals * weights[examples, None, None]
        found = _by_token(signals, tokens, rows=self.rows)
        row[self.layer.weight : self.layer.weight + found.numel()].add_(found.flatten())

    def sums(self, cells: Cells) -> list[Part]:
        """See `Factors.sums`."""
        signals, tokens = cells.take(self.signals), cells.take(self.tokens)  # (C, L, P[, O])
        if cells.weights is not None:
            signals = signals * cells.weights[..., None, None]
        count = cells.shape[0]
        own = torch.arange(count, device=tokens.device)[:, None, None] * self.rows
        found = _by_token(signals, tokens + own, rows=count * self.rows)
        return [(self.layer.weight, found.reshape(count, -1))]


def lookup(layer: Layer, inputs: Tensor, *, signals: Tensor, measured: bool) -> Lookup:
    """The gradient of an embedding; see `layers.factor`."""
    module = layer.module
    if not isinstance(module, nn.Embedding):
        raise InputTypeError(
            f"layer {layer.name!r} is {type(module).__name__}, must be an Embedding"
        )
    tokens = inputs.reshape(len(inputs), -1)
    signals = signals.reshape(*tokens.shape, module.embedding_dim)
    if module.padding_idx is not None:
        # Chosen, not multiplied: a signal that is not finite must not reach the padding's row.
        signals = torch.where((tokens == module.padding_idx)[..., None], 0.0, signals)
    if measured:
        signals = _at_first(signals, tokens)
    return Lookup(layer=layer, rows=module.num_embeddings, tokens=tokens, signals=signals)


def unsupported_embedding(module: nn.Embedding) -> str | None:
    """Why an embedding has no rule; None where it has one."""
    if module.sparse or module.scale_grad_by_freq or module.max_norm is not None:
        return "is sparse, scales gradients by frequency or has a max_norm"
    return None


def _at_first(signals: Tensor, tokens: Tensor) -> Tensor:
    """Sums (B, P, O) of each example's signals by token, at the token's first position."""
    same = tokens[:, :, None] == tokens[:, None, :]  # (B, P, P)
    first = ~same.tril(-1).any(2)  # (B, P): the token occurs at no earlier position
    return torch.where(first[..., None], same.to(signals.dtype) @ signals, 0.0)


def _by_token(signals: Tensor, tokens: Tensor, *, rows: int) -> Tensor:
    """Sums (rows, O) of signals by token, in an order that is fixed on every device."""
    # Torch's own backward of an embedding sorts on CUDA, where index_add_ adds in any order.
    width = signals.shape[-1]
    return torch.ops.aten.embedding_dense_backward(
        signals.reshape(-1, width), tokens.reshape(-1), rows, -1, False
    )
