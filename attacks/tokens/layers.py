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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from ...privacy.errors import InputError
from ...training.models.parameters import unflatten
from ...training.models.recurrent import in_one
from ..problem.columns import columns_of
from ..problem.observation import twice_differentiable
from ..problem.problem import copied

# The embedding in which a model looks its tokens up, found by calling it with zeros, and with ones:
# a table of vectors, an `nn.EmbeddingBag` or a parameter that is indexed by what changes.

_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Where a model looks its tokens up.

    Attributes:
        parameter: name of the table, as in `named_parameters`; None where it is not trained, so
            that nothing of its gradient is sent.
        vocabulary: number V of its rows.
        width: of a row.
        padding: token whose row gets no gradient, None where there is none.
        constant: tokens that the model adds to every record, such as that of a class.
        tied: whether the table is used elsewhere too, which fills every row of its gradient.
    """

    parameter: str | None
    vocabulary: int
    width: int
    padding: int | None
    constant: tuple[int, ...]
    tied: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Looked:
    """One look-up: the table, the rows that were taken, and how."""

    table: Tensor
    index: Tensor
    said: Mapping[str, Any]


class _Lookups(TorchFunctionMode):
    """Notes every look-up, and every product with a table."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Looked] = []
        self.multiplied: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in (functional.embedding, functional.embedding_bag):
            names = _EMBEDDING if func is functional.embedding else _BAG
            said = {**dict(zip(names, args, strict=False)), **named}
            self._note(said["weight"], said["input"], said)
        elif func is Tensor.__getitem__ and _is_index(args[1]):
            self._note(args[0], args[1], {})
        elif func is functional.linear or func in _PRODUCTS:
            self.multiplied += [value for value in args if isinstance(value, Tensor)]
        return func(*args, **named)

    def _note(self, table: Tensor, index: Tensor, said: Mapping[str, Any]) -> None:
        self.found.append(_Looked(table=table, index=index.detach().clone(), said=said))


_PRODUCTS = (
    torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__, Tensor.__rmatmul__,
    torch.einsum, torch.addmm,
)  # fmt: skip


def _is_index(value: object) -> bool:
    whole = isinstance(value, Tensor) and not value.is_floating_point()
    return whole and value.dtype != torch.bool and value.ndim > 0  # type: ignore[attr-defined]


def token_table(model: nn.Module, input_shape: Sequence[int]) -> Table | None:
    """The embedding that a model's inputs are looked up in.

    Args:
        model: any network.
        input_shape: of one record; (L,) where it is one of tokens.

    Returns:
        The table; None where the inputs of the model are no tokens.

    Raises:
        ValueError: Tokens are looked up in a way that the attack does not know: parts of the input
            in different tables, something that is computed of them, with `max_norm` or
            `scale_grad_by_freq`; or records have more than one dimension.

    >>> text = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 2))
    >>> token_table(text, (4,)).vocabulary, token_table(nn.Linear(4, 2), (4,))
    (50, None)
    """
    shape = tuple(input_shape)
    # What differs between two inputs is looked up by the input.
    zeros, ones = (_looked_up(model, torch.full((1, *shape), value)) for value in (0, 1))
    fed = [
        (one, two)
        for one, two in zip(zeros.found, ones.found, strict=False)
        if one.index.shape != two.index.shape or not torch.equal(one.index, two.index)
    ]
    if not fed:
        return None
    names = {id(p): name for name, p in model.named_parameters()}
    if len(shape) != 1:
        raise InputError(
            f"input_shape={shape} of a model whose inputs are tokens must be one number, the "
            "length of a record; flatten the records"
        )
    # Lookups of the whole record, without options that change gradients.
    for one, two in fed:
        _check_whole(one, two, length=shape[0], name=_name(model, one.table))
        _check_plain(one, name=_name(model, one.table))
    # The table that is trained, and the values of places that no input changes.
    trained = [one for one, _ in fed if id(one.table) in names] or [fed[0][0]]
    first = trained[0]
    same = [two for one, two in fed if one is first]
    changed = (first.index != same[0].index).flatten()
    padding = first.said.get("padding_idx")
    vocabulary, width = first.table.shape
    used = any(_shares(value, first.table) for value in zeros.multiplied)
    return Table(
        parameter=names.get(id(first.table)),
        vocabulary=vocabulary,
        width=width,
        padding=None if padding is None else int(padding) % vocabulary,
        constant=tuple(sorted({int(v) for v in first.index.flatten()[~changed]})),
        tied=used,
    )


def dense(model: nn.Module) -> nn.Module:
    """A copy in torch's own layers, whose embeddings have dense gradients, as of a file."""
    twin = in_one(copied(model))
    for layer in twin.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
    return twin


def probe_tokens(model: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """(2, *input_shape) inputs on which a network can be tried: tokens, or numbers in [0, 1].

    >>> probe_tokens(nn.Linear(4, 2), (4,)).dtype, probe_tokens(nn.Embedding(9, 2), (4,)).dtype
    (torch.float32, torch.int64)
    """
    if (columns := columns_of(model, tuple(input_shape))) is not None:
        return torch.randint(2, (2, *input_shape), dtype=columns.dtype)
    table = token_table(model, input_shape)
    if table is None:
        kinds = (value.dtype for value in model.parameters() if value.is_floating_point())
        return torch.rand(2, *input_shape).to(next(kinds, torch.float32))
    allowed = torch.tensor([v for v in range(min(table.vocabulary, 64)) if v != table.padding])
    return allowed[torch.randint(len(allowed), (2, *input_shape))]


def _looked_up(model: nn.Module, tokens: Tensor) -> _Lookups:
    """What is looked up until the model has ended, or cannot go on: it may want no tokens."""
    watch = _Lookups()
    try:
        with torch.no_grad(), twice_differentiable(), watch:
            model(tokens)
    except Exception:  # noqa: BLE001 - a model of pictures may raise anything; that is the answer
        return watch
    return watch


def _name(model: nn.Module, table: Tensor) -> str:
    named = [*model.named_parameters(), *model.named_buffers()]
    return next((name for name, value in named if value is table), "a table")


def _check_whole(one: _Looked, two: _Looked, *, length: int, name: str) -> None:
    """Refuse an index that is not the tokens as they are, beside constant ones."""
    same = one.index.shape == two.index.shape
    changed = one.index != two.index if same else torch.ones(0, dtype=torch.bool)
    count = int(changed.sum())
    whole = same and not bool(one.index[changed].any()) and bool((two.index[changed] == 1).all())
    if not whole or count != length:
        what = f"{count} of the {length} tokens of a record" if whole else "not the tokens as given"
        raise InputError(
            f"embedding {name!r} is fed {what}; feed it the tokens alone, or feed the rows of each "
            "column's table to the first linear layer side by side"
        )


def _check_plain(looked: _Looked, *, name: str) -> None:
    if looked.table.ndim != _MATRIX:
        raise InputError(
            f"embedding {name!r} has shape {tuple(looked.table.shape)}, must be (tokens, width)"
        )
    for option, off in (("max_norm", None), ("scale_grad_by_freq", False)):
        if looked.said.get(option, off) not in (off, None):
            raise InputError(
                f"embedding {name!r} has {option}={looked.said[option]}, so that records change "
                "each other's gradient; leave it out"
            )


def _shares(value: Tensor, table: Tensor) -> bool:
    return value.numel() == table.numel() and value.data_ptr() == table.data_ptr()


_AT_ONCE = 2**21  # numbers of one layer's rows that are held at once
_SAME, _MATRIX = 1e-9, 2  # relative difference of float64 rows that are one; dimensions
_RANK = 1e-10  # of the largest singular value: a direction that is spanned, in float64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Network:
    """A model of tokens in float64, at the parameters of one intercept.

    Attributes:
        model: the model, with dense gradients.
        values: its parameters by name.
        table: where tokens are looked up.
        length: number L of tokens of a record.
        follows: whether every place predicts the token after it, as `token_loss` says.
    """

    model: nn.Module
    values: Mapping[str, Tensor]
    table: Table
    length: int
    follows: bool


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
    with torch.no_grad(), twice_differentiable():
        logits = functional_call(twin, values, (torch.zeros(1, length, dtype=torch.int64),))
    return Network(
        model=twin, values=values, table=table, length=length, follows=logits.ndim > _MATRIX
    )


def token_loss(logits: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    """The mean cross-entropy of a batch: of classes, or of the token after each place.

    Args:
        logits: (B, C), or (B, L, V) of a language model.
        tokens: (B, L); places behind an earlier end, of -1, count for nothing.
        labels: (B,) classes; of a language model the tokens after the last ones.
    """
    if logits.ndim == _MATRIX:
        return cross_entropy(logits, labels)
    held = tokens >= 0
    last = held.sum(dim=1, keepdim=True) - 1
    following = tokens.roll(-1, dims=1).scatter(1, last, labels[:, None])
    return cross_entropy(logits[held], following[held], reduction="sum") / tokens.numel()


def sent_of(network: Network, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The gradient of a batch (B, L) under labels (B,), by those parameters that it reaches."""
    owned = {name: value.clone().requires_grad_() for name, value in network.values.items()}
    with twice_differentiable():
        logits = functional_call(network.model, owned, (tokens,))
        one = logits.shape[-1] == 1  # whose cross-entropy is 0
        loss = logits.mean() if one else token_loss(logits, tokens, labels)
    slopes = torch.autograd.grad(loss, list(owned.values()), allow_unused=True)
    return {k: v for k, v in zip(owned, slopes, strict=True) if v is not None}


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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is functional.linear:
            weight = args[1] if len(args) > 1 else named["weight"]
            self._note(args[0] if args else named["input"], weight, outputs_first=True)
        elif (
            func in _PRODUCTS_LAYERS
            and len(args) > 1
            and all(isinstance(a, Tensor) for a in args[:2])
        ):
            self._note(args[0], args[1], outputs_first=False)
        elif func is functional.multi_head_attention_forward:
            self._note_attention(args, named)
        elif func in _RECURRENT and isinstance(args[2], list | tuple):
            self._note_recurrent(func, args)
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

    def _note_recurrent(self, func: Any, args: Sequence[Any]) -> None:
        """Of every layer and direction what is fed to both weights: the inputs, and the states."""
        fed, start, weights, biased, layers, _, _, twice, first = args
        sides, kinds, time = 1 + bool(twice), 2 + 2 * bool(biased), int(bool(first))
        if len(weights) != layers * sides * kinds:  # states are projected
            return
        for own in range(0, layers * sides, sides):
            held, at = weights[own * kinds : (own + sides) * kinds], slice(own, own + sides)
            given = tuple(s[at] for s in start) if isinstance(start, tuple) else start[at]
            states = func(fed, given, held, biased, 1, 0.0, False, twice, first)[0]
            begun = given[0] if isinstance(given, tuple) else given
            for side, mine in enumerate(states.chunk(sides, dim=-1)):
                begins = begun[side].unsqueeze(time)
                kept = mine.narrow(time, side, mine.shape[time] - 1)
                past = torch.cat([kept, begins] if side else [begins, kept], dim=time)
                self._note(fed, held[side * kinds], outputs_first=True)
                self._note(past, held[side * kinds + 1], outputs_first=True)
            fed = states


_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
_PRODUCTS_LAYERS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
_ATTENTION = ("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight")


def linear_layers(network: Network, generator: torch.Generator) -> list[Layer]:
    """The linear layers of a model, told by probes of random tokens.

    Returns:
        Those whose rows can be told apart by record, in the order of their calls.
    """
    # Random records, and one of them with each of its tokens changed in turn.
    length, table = network.length, network.table
    allowed = [v for v in range(table.vocabulary) if v != table.padding]
    other = allowed[1:] + allowed[:1]
    at = torch.randint(len(allowed), (3, length), generator=generator)
    probes = torch.tensor(allowed)[at]  # (3, L)
    moved = probes[:1].repeat(length, 1)
    moved.diagonal().copy_(torch.tensor(other)[at[0]])
    together, apart = _calls(network, probes), [_calls(network, probe[None]) for probe in probes]
    changed = _calls(network, moved)
    counts = Counter((call.parameter, call.first) for call in together)
    if any(len(calls) != len(together) for calls in (*apart, changed)):
        return []
    # Layers whose weight is used once, and whose rows are those of each record.
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
    """Those layers of which the gradients span all that they are fed, on a random batch.

    Where the derivatives of a layer's outputs are dependent, as those of the last layer before a
    mean are, its gradient spans less than its rows, and says nothing of a single one. Layers that
    are fed the same rows count together, as adapters of few rows each do.

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
    gradients = sent_of(network, tokens, labels)
    found = []
    held = [layer for layer in layers if layer.parameter in gradients]
    for rows, group in fed_alike(held, rows_of(network, held, tokens) if held else []):
        joint = torch.cat([layer.gradient(gradients) for layer in group])
        spanned = torch.linalg.matrix_rank(joint, rtol=_RANK)
        if spanned >= torch.linalg.matrix_rank(rows.flatten(0, 1), rtol=_RANK):
            found += group
    return found


def rows_of(network: Network, layers: Sequence[Layer], tokens: Tensor) -> list[Tensor]:
    """What layers are fed for whole records.

    Args:
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
