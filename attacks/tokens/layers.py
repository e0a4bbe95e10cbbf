"""What each linear layer of a model of tokens is fed, row by row.

For h = W x the gradient of W is the sum of delta x^T over all rows x that the layer is fed,
whatever lies above it. A layer is `local` where each of its rows depends on the token of one
position alone, as the query, key and value of a first attention; its row for token v at position p
is then known before anything of the batch is. Of every other layer the rows follow from a whole
record.

Layers are recognised by what is called: `linear`, a product with a parameter, and
`nn.MultiheadAttention`, whose three inputs are its rows. One that is called twice is left out,
since its gradient is the sum of both calls.

Shape letters: N records of a probe, L positions, R rows of a layer for one record, I its inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from ...training.models.parameters import unflatten
from ..problem.derivatives import twice_differentiable
from .lookup import Table, dense

_AT_ONCE = 2**21  # numbers of one layer's rows that are held at once
_SAME = 1e-9  # relative difference of float64 rows that are one
_MATRIX = 2
_RANK = 1e-10  # of the largest singular value: a direction that is spanned, in float64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Network:
    """A model of tokens in float64, at the parameters of one intercept.

    Attributes:
        model: the model, with dense gradients.
        values: its parameters by name.
        table: where tokens are looked up.
        length: number L of tokens of a record.
    """

    model: nn.Module
    values: Mapping[str, Tensor]
    table: Table
    length: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layer:
    """A linear layer.

    Attributes:
        call: which of the model's calls it is.
        parameter: name of its weight.
        first, last: rows of the weight that it uses.
        turned: whether the weight is (inputs, outputs).
        records_first: whether its inputs are (N, ..., I), and not (..., N, I).
        rows: number R of its rows for one record.
        places: (L,) its row of each position where it is local; None elsewhere.
    """

    call: int
    parameter: str
    first: int
    last: int
    turned: bool
    records_first: bool
    rows: int
    places: Tensor | None

    def gradient(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """(outputs, I) gradient of the weight."""
        whole = gradients[self.parameter]
        return (whole.T if self.turned else whole)[self.first : self.last]


def network_of(model: nn.Module, flat: Tensor, *, table: Table, length: int) -> Network:
    """A model at flat parameters (D,), in float64."""
    twin = dense(model).double()
    values = {name: value.detach().double() for name, value in unflatten(twin, flat).items()}
    return Network(model=twin, values=values, table=table, length=length)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Call:
    parameter: str
    first: int
    last: int
    turned: bool
    inputs: Tensor


class _Enough(Exception):
    """What was asked for has been called."""


class _Calls(TorchFunctionMode):
    """Notes the inputs of every product with a parameter, up to a number of calls."""

    def __init__(self, values: Mapping[str, Tensor], *, most: int | None) -> None:
        super().__init__()
        self.names = {value.data_ptr(): name for name, value in values.items()}
        self.values, self.most = values, most
        self.found: list[_Call] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is functional.linear:
            weight = args[1] if len(args) > 1 else named["weight"]
            self._note(args[0] if args else named["input"], weight, outputs_first=True)
        elif func in _PRODUCTS and len(args) > 1 and all(isinstance(a, Tensor) for a in args[:2]):
            self._note(args[0], args[1], outputs_first=False)
        elif func is functional.multi_head_attention_forward:
            self._note_attention(args, named)
        if self.most is not None and len(self.found) >= self.most:
            raise _Enough
        return func(*args, **named)

    def _named(self, weight: Tensor) -> tuple[str, bool] | None:
        """The parameter that a matrix is, and whether it is transposed."""
        name = self.names.get(weight.data_ptr())
        if name is None or weight.ndim != _MATRIX or weight.numel() != self.values[name].numel():
            return None
        own = self.values[name]
        if weight.shape == own.shape and weight.stride() == own.stride():
            return name, False
        is_turned = own.ndim == _MATRIX and weight.shape == own.T.shape
        return (name, True) if is_turned and weight.stride() == own.T.stride() else None

    def _note(self, inputs: Tensor, weight: Tensor, *, outputs_first: bool) -> None:
        known = self._named(weight)
        if known is None or inputs.ndim < 1:
            return
        name, transposed = known
        turned = transposed if outputs_first else not transposed
        outputs = weight.shape[0] if outputs_first else weight.shape[1]
        self.found.append(
            _Call(parameter=name, first=0, last=outputs, turned=turned, inputs=inputs.detach())
        )

    def _note_attention(self, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        said = {**dict(zip(_ATTENTION, args, strict=False)), **named}
        fed = [said[kind] for kind in ("query", "key", "value")]
        if said.get("use_separate_proj_weight"):
            for kind, inputs in zip(("q", "k", "v"), fed, strict=True):
                self._note(inputs, said[f"{kind}_proj_weight"], outputs_first=True)
            return
        known = self._named(said["in_proj_weight"])
        if known is None or known[1]:
            return
        width = len(said["in_proj_weight"]) // 3
        for third, inputs in enumerate(fed):
            self.found.append(
                _Call(
                    parameter=known[0], first=third * width, last=(third + 1) * width, turned=False,
                    inputs=inputs.detach(),
                )
            )  # fmt: skip


_PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
_ATTENTION = ("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight")


def linear_layers(network: Network, generator: torch.Generator) -> list[Layer]:
    """The linear layers of a model, told by probes of random tokens.

    Returns:
        Those whose rows can be told apart by record, in the order of their calls.
    """
    length, table = network.length, network.table
    allowed = [v for v in range(table.vocabulary) if v != table.padding]
    other = allowed[1:] + allowed[:1]
    at = torch.randint(len(allowed), (3, length), generator=generator)
    probes = torch.tensor(allowed)[at]  # (3, L)
    moved = probes[:1].repeat(length, 1)
    moved.diagonal().copy_(torch.tensor(other)[at[0]])
    together, apart = _calls(network, probes), [_calls(network, one[None]) for one in probes]
    changed = _calls(network, moved)
    counts = Counter((call.parameter, call.first) for call in together)
    if any(len(calls) != len(together) for calls in (*apart, changed)):
        return []
    found = []
    for index, call in enumerate(together):
        if counts[call.parameter, call.first] > 1:
            continue
        if network.values[call.parameter] is network.values.get(table.parameter or ""):
            continue
        alone = torch.cat([_rows(calls[index].inputs, 1, True) for calls in apart])  # (3, R, I)
        first = next((f for f in (True, False) if _is(call.inputs, alone, first=f)), None)
        if first is None:
            continue
        places = _places(alone[0], _rows(changed[index].inputs, length, first))
        found.append(
            Layer(
                call=index, parameter=call.parameter, first=call.first, last=call.last,
                turned=call.turned, records_first=first, rows=alone.shape[1],
                places=places,
            )
        )  # fmt: skip
    return found


def fed_alike(layers: Iterable[Layer], rows: Iterable[Tensor]) -> list[tuple[Tensor, list[Layer]]]:
    """Groups of layers that are fed the same rows, with these."""
    groups: list[tuple[Tensor, list[Layer]]] = []
    for layer, mine in zip(layers, rows, strict=True):
        for fed, group in groups:
            if fed.shape == mine.shape and torch.allclose(fed, mine, rtol=1e-9, atol=1e-12):
                group.append(layer)
                break
        else:
            groups.append((mine, [layer]))
    return groups


def faithful(
    network: Network,
    layers: Sequence[Layer],
    *,
    records: int,
    classes: int,
    generator: torch.Generator,
    padded: bool = False,
) -> list[Layer]:
    """Those layers of which the gradient spans all that they are fed, on a random batch.

    Where the derivatives of a layer's outputs are dependent, as those of the last layer before a
    mean are, its gradient spans less than its rows, and says nothing of a single one.

    Args:
        layers: of `linear_layers`.
        records: number B of records of the batch.
        classes: number of logits.
        padded: whether its records end in padding, whose rows a mask may hide.
    """
    if not layers:
        return []
    allowed = [v for v in range(network.table.vocabulary) if v != network.table.padding]
    at = torch.randint(len(allowed), (records, network.length), generator=generator)
    tokens = torch.tensor(allowed)[at]
    if padded and network.table.padding is not None:
        tokens[:, -1] = network.table.padding
    labels = torch.randint(classes, (records,), generator=generator)
    owned = {name: value.clone().requires_grad_() for name, value in network.values.items()}
    with twice_differentiable():
        loss = cross_entropy(functional_call(network.model, owned, (tokens,)), labels)
    slopes = torch.autograd.grad(loss, list(owned.values()), allow_unused=True)
    gradients = {k: v for k, v in zip(owned, slopes, strict=True) if v is not None}
    found = []
    for layer, rows in zip(layers, rows_of(network, layers, tokens), strict=True):
        if layer.parameter in gradients:
            spanned = torch.linalg.matrix_rank(layer.gradient(gradients), rtol=_RANK)
            if spanned >= torch.linalg.matrix_rank(rows.flatten(0, 1), rtol=_RANK):
                found.append(layer)
    return found


def rows_of(network: Network, layers: Sequence[Layer], tokens: Tensor) -> list[Tensor]:
    """What layers are fed for whole records.

    Args:
        layers: of `linear_layers`.
        tokens: (N, L) records.

    Returns:
        (N, R, I) of each layer.
    """
    most = 1 + max(layer.call for layer in layers)
    calls = _calls(network, tokens, most=most)
    return [_rows(calls[at.call].inputs, len(tokens), at.records_first) for at in layers]


def local_rows(network: Network, layer: Layer, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What a local layer is fed for every token at every position, some tokens at a time.

    Args:
        tokens: (N,) tokens.

    Yields:
        (n,) tokens, and (n, L, I) their rows.
    """
    assert layer.places is not None  # noqa: S101 # the caller looked
    inputs = layer.gradient(network.values).shape[1]
    size = max(1, _AT_ONCE // (network.length * inputs))
    for some in tokens.split(size):
        [rows] = rows_of(network, [layer], some[:, None].expand(-1, network.length))
        yield some, rows[:, layer.places]


def _calls(network: Network, tokens: Tensor, *, most: int | None = None) -> list[_Call]:
    watch = _Calls(network.values, most=most)
    try:
        with torch.no_grad(), twice_differentiable(), watch:
            functional_call(network.model, dict(network.values), (tokens,))
    except _Enough:
        pass
    return watch.found


def _rows(inputs: Tensor, records: int, records_first: bool) -> Tensor:
    """(N, R, I) rows of a layer's inputs."""
    if records_first:
        return inputs.reshape(records, -1, inputs.shape[-1])
    return inputs.reshape(-1, records, inputs.shape[-1]).transpose(0, 1)


def _is(inputs: Tensor, alone: Tensor, *, first: bool) -> bool:
    if inputs.numel() != alone.numel():
        return False
    return torch.allclose(_rows(inputs, len(alone), first), alone, rtol=1e-6, atol=1e-9)


def _places(before: Tensor, after: Tensor) -> Tensor | None:
    """(L,) row that each position decides alone, None where a row depends on several.

    Args:
        before: (R, I) rows.
        after: (L, R, I) rows with another token at each position in turn.
    """
    size = before.norm(dim=-1) + 1e-300
    moved = (after - before).norm(dim=-1) > _SAME * size  # (L, R)
    if bool((moved.sum(dim=0) > 1).any()) or not bool(moved.any(dim=1).all()):
        return None
    return moved.double().argmax(dim=1)
