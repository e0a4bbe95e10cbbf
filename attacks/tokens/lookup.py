"""The embedding in which a model looks its tokens up, found by calling the model.

A model takes tokens where a table of vectors is indexed by its inputs: `nn.Embedding`,
`nn.EmbeddingBag`, or a parameter that is indexed. It is called with zeros, and with ones; an index
that changes is made of the inputs, one that does not is a position. So the type of a model's inputs
need not be declared.

Shape letters: B records, L tokens of a record, V tokens of the vocabulary, D parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...privacy.errors import InputError
from ..problem.derivatives import twice_differentiable
from ..problem.problem import copied

_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
_BAG = (
    "input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse",
    "per_sample_weights", "include_last_offset", "padding_idx",
)  # fmt: skip
_ROWS = 2  # dimensions of a table


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

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
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
    for one, two in fed:
        _check_whole(one, two, length=shape[0], name=_name(model, one.table))
        _check_plain(one, name=_name(model, one.table))
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
    """A copy of a model whose embeddings have dense gradients, as a file of them has."""
    twin = copied(model)
    for layer in twin.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            layer.sparse = False
    return twin


def probe_tokens(model: nn.Module, input_shape: Sequence[int]) -> Tensor:
    """(2, *input_shape) inputs on which a network can be tried: tokens, or numbers in [0, 1].

    >>> probe_tokens(nn.Linear(4, 2), (4,)).dtype, probe_tokens(nn.Embedding(9, 2), (4,)).dtype
    (torch.float32, torch.int64)
    """
    table = token_table(model, input_shape)
    if table is None:
        kinds = (value.dtype for value in model.parameters() if value.is_floating_point())
        return torch.rand(2, *input_shape).to(next(kinds, torch.float32))
    allowed = torch.tensor([v for v in range(min(table.vocabulary, 64)) if v != table.padding])
    draw = torch.randint(len(allowed), (2, *input_shape))
    return allowed[draw]


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
            f"embedding {name!r} is fed {what}; only a model that looks every token up in one "
            "embedding is attacked, so split the model's inputs or feed it the tokens alone"
        )


def _check_plain(looked: _Looked, *, name: str) -> None:
    if looked.table.ndim != _ROWS:
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
