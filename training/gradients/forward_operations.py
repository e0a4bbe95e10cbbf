"""Which operations keep the examples of a batch apart, and where they leave them.

A rule reads the places of an operation's operands, and gives that of what it returns. It raises
`ExamplesMeet` where an entry may depend on entries of more examples than one, and an operation that
is not listed has no rule. Sizes are those of the graph, so that no rule depends on a batch.

| kind        | entries of what is returned depend on                                     |
|-------------|---------------------------------------------------------------------------|
| elementwise | entries at the same place of operands that are broadcast                  |
| movement    | one entry each; labels of examples are moved in the tensor's stead        |
| along       | entries along dimensions that are named, or along the last ones           |
| products    | rows and columns; examples may lie along neither of those that are summed |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

# Where the examples of a batch lie in a tensor.
#
# A dimension of outer * B * inner entries holds example (i // inner) % B at entry i: most often the
# first one with outer = inner = 1, inside of an attention B * heads, or positions * B.


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The dimension of a tensor along which its examples lie."""

    dim: int
    outer: int = 1
    inner: int = 1

    def labels(self, shape: Sequence[int]) -> Tensor:
        """The example (*shape) that each entry belongs to."""
        count = shape[self.dim] // (self.outer * self.inner)
        along = torch.arange(count).repeat_interleave(self.inner).repeat(self.outer)
        return along.view(-1, *[1] * (len(shape) - self.dim - 1)).expand(*shape)

    def moved(self, dim: int) -> Place:
        """The same along another dimension."""
        return Place(dim=dim, outer=self.outer, inner=self.inner)

    def examples_first(self, values: Tensor) -> Tensor:
        """Values (B, *rest) with the other parts of the dimension in its place."""
        if self == FIRST:
            return values
        parts = (self.outer, values.shape[self.dim] // (self.outer * self.inner), self.inner)
        return values.unflatten(self.dim, parts).movedim(self.dim + 1, 0)

    def back(self, values: Tensor) -> Tensor:
        """The inverse of `examples_first`."""
        if self == FIRST:
            return values
        return values.movedim(0, self.dim + 1).flatten(self.dim, self.dim + 2)


FIRST = Place(dim=0)


def place_of(labels: Tensor, examples: int) -> Place | None:
    """Where the examples of a tensor lie, by the label of each entry; None where they are mixed.

    Args:
        labels: Of B examples from 0 on.
        examples: B.

    >>> place_of(torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]]), 2)
    Place(dim=1, outer=1, inner=2)
    >>> place_of(torch.tensor([1, 0]), 2) is None  # in another order
    True
    """
    for dim in range(labels.ndim):
        along = labels.movedim(dim, 0).reshape(labels.shape[dim], -1)[:, 0]
        inner = int((along == 0).long().cumprod(0).sum())
        if inner == 0 or len(along) % (examples * inner):
            continue
        found = Place(dim=dim, outer=len(along) // (examples * inner), inner=inner)
        if torch.equal(found.labels(labels.shape), labels):
            return found
    return None


# Batches whose labels are moved; of a single example a dimension may be dropped.
_BATCHES = (1, 7, 11)


class ExamplesMeet(Exception):
    """An operation in which examples may meet, as far as is known."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The value of a parameter."""

    name: str


class Shared:
    """A value that is the same for all examples, and of a size that no batch decides."""


class Size:
    """A number that a batch's size decides."""


State = Place | Parameter | Shared | Size
Arguments = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """An operation in a graph, with its arguments by name and what is known of its operands."""

    node: fx.Node
    name: str  # without namespace and overload
    arguments: Arguments
    states: Mapping[fx.Node, State | tuple[State, ...]]

    def place(self, of: Any) -> Place | None:
        """Where the examples of an operand lie; None for one that all examples share."""
        state = self.states[of] if isinstance(of, fx.Node) else None
        if isinstance(state, tuple):
            raise ExamplesMeet("it reads several values as one")
        if isinstance(state, Parameter):
            raise ExamplesMeet(f"parameter {state.name!r} is used outside of a layer")
        return state if isinstance(state, Place) else None

    def tensors(self) -> list[fx.Node]:
        """Operands that are tensors."""
        found: list[fx.Node] = []
        fx.map_arg(self.arguments, found.append)
        return [node for node in found if not isinstance(self.states[node], Size)]


def rank(node: fx.Node) -> int:
    """Dimensions of a tensor."""
    return len(node.meta["val"].shape)


def elementwise(call: Call) -> Place | None:
    """Operands are aligned at their last dimensions."""
    found = {
        (place.dim - rank(node), place.outer, place.inner)
        for node in call.tensors()
        if (place := call.place(node)) is not None
    }
    if not found:
        return None
    if len(found) > 1:
        raise ExamplesMeet("examples of its operands lie along several dimensions")
    ((right, outer, inner),) = found
    return Place(dim=rank(call.node) + right, outer=outer, inner=inner)


def movement(call: Call) -> Place | tuple[Place, ...] | None:
    """Labels of the examples are moved as the tensor is, in batches of several sizes.

    An operation whose moves wrap around, as a roll's, is none: they may be whole turns there.
    """
    tensors = call.tensors()
    # Where the examples are in each tensor.
    places = {node: call.place(node) for node in tensors}
    if all(place is None for place in places.values()):
        return None
    if call.arguments.get("dtype") is not None:
        raise ExamplesMeet("it reads numbers as those of another type")
    shapes = [part.shape for part in _parts(call.node.meta["val"])]
    found = set[tuple[Place, ...]]()
    # The operation moves labels in place of numbers, in batches of several sizes.
    for examples in _BATCHES:

        def concrete(node: fx.Node, examples: int = examples) -> Any:
            value = node.meta["val"]
            if not isinstance(value, torch.Tensor):
                return at(value, examples)
            place = places[node]
            if place is None:
                raise ExamplesMeet("examples are moved between values that all of them share")
            return place.labels([at(size, examples) for size in value.shape]).contiguous()

        moved = call.node.target(  # type: ignore[operator]  # an operation
            *fx.map_arg(call.node.args, concrete), **fx.map_arg(call.node.kwargs, concrete)
        )
        parts = _parts(moved)
        expected = [[at(size, examples) for size in shape] for shape in shapes]
        if [list(part.shape) for part in parts] != expected:
            raise ExamplesMeet("the shape that it returns depends on their number")
        if examples == 1:  # the shape alone matters
            continue
        each = [place_of(part, examples) for part in parts]
        if None in each:
            raise ExamplesMeet("it moves examples to the place of others")
        found.add(tuple(place for place in each if place is not None))
    if len(found) > 1:
        raise ExamplesMeet("where it moves examples depends on their number")
    (only,) = found
    return only[0] if isinstance(call.node.meta["val"], torch.Tensor) else only


def along(call: Call) -> Place | tuple[Place, ...] | None:
    """Entries along ``dim``, or ``dims``, decide together; all dimensions where none is named."""
    operand = next(iter(call.arguments.values()))
    place = call.place(operand)
    if any(call.place(node) for node in call.tensors()[1:]):
        raise ExamplesMeet("its operands beyond the first depend on examples")
    if place is None:
        return None
    count, named = rank(operand), call.arguments.get("dim", call.arguments.get("dims"))
    named = [named] if isinstance(named, int) else named
    dims = {dim % count for dim in named} if named else set(range(count))
    if place.dim in dims:
        raise ExamplesMeet("it runs along the dimension of the examples")
    value = call.node.meta["val"]
    first = value if isinstance(value, torch.Tensor) else value[0]
    kept = len(first.shape) == count
    moved = place.moved(place.dim - (0 if kept else sum(dim < place.dim for dim in dims)))
    return moved if isinstance(value, torch.Tensor) else (moved,) * len(value)


def last(dimensions: int | None) -> Callable[[Call], Place | None]:
    """Entries along some last dimensions decide together, as many as ``normalized_shape`` has."""

    def rule(call: Call) -> Place | None:
        operand = next(iter(call.arguments.values()))
        place, *others = (call.place(node) for node in call.tensors())
        count = len(call.arguments["normalized_shape"]) if dimensions is None else dimensions
        if any(others):
            raise ExamplesMeet("its operands beyond the first depend on examples")
        if place is not None and place.dim >= rank(operand) - count:
            raise ExamplesMeet("it runs along the dimension of the examples")
        return place

    return rule


def padded(call: Call) -> Place | None:
    """Constants beside the last dimensions."""
    return last(len(call.arguments["pad"]) // 2)(call)


def product(call: Call) -> Place | None:
    """A product of matrices (..., n, k) and (..., k, m)."""
    operands = list(call.arguments.values())[:2]
    places = [call.place(node) for node in operands]
    if places == [None, None]:
        return None
    if min(map(rank, operands)) < 2:
        raise ExamplesMeet("it is a product with a vector")
    allowed = ({-2}, {-1})  # of rows and of columns, where the other operand is shared
    rights = [
        None if place is None else place.dim - rank(node)
        for place, node in zip(places, operands, strict=True)
    ]
    for right, other, free in zip(rights, reversed(rights), allowed, strict=True):
        if right is not None and right > -3 and (other is not None or right not in free):
            raise ExamplesMeet("it sums over the examples")
    return elementwise(call)


def attention(call: Call) -> Place | None:
    """Queries, keys and values (..., positions, width) and a mask (..., positions, positions)."""
    for node in call.tensors():
        place = call.place(node)
        if place is not None and place.dim - rank(node) > -3:
            raise ExamplesMeet("it attends from one example to another")
    if call.arguments.get("dropout_p") or call.arguments.get("enable_gqa"):
        raise ExamplesMeet("it is random, or shares heads")
    return elementwise(call)


def einsum(call: Call) -> Place | None:
    """Examples keep a letter of their own, in every operand that has them and in the result."""
    read, _, sent = str(call.arguments["equation"]).replace(" ", "").partition("->")
    operands = call.arguments["tensors"]
    found = set[tuple[str, int, int]]()
    for letters, node in zip(read.split(","), operands, strict=True):
        place = call.place(node)
        if place is not None:
            found.add((letters[place.dim], place.outer, place.inner))
    if not found:
        return None
    letter, outer, inner = next(iter(found))
    if len(found) > 1 or letter not in sent or not sent.isalpha():
        raise ExamplesMeet(f"{read}->{sent} sums over the examples")
    for letters, node in zip(read.split(","), operands, strict=True):
        if letter in letters and call.place(node) is None:
            raise ExamplesMeet(f"{read}->{sent} has an operand that is not of the examples")
    return Place(dim=sent.index(letter), outer=outer, inner=inner)


def lookup(call: Call) -> Place | None:
    """Rows of a table that all examples share, by indices that may be an example's."""
    if call.place(call.arguments["weight"]) is not None:
        raise ExamplesMeet("its table depends on the examples")
    return call.place(call.arguments["indices"])


def dropout(call: Call) -> Place | None:
    """Nothing, where its rate is 0 or it does not train."""
    if call.arguments["p"] and call.arguments["train"]:
        raise ExamplesMeet("it is random")
    return elementwise(call)


def filled(call: Call) -> Place | None:
    """One constant everywhere; where the batch's size is one of its sides, examples lie there."""
    sizes = call.node.meta["val"].shape
    decided = [dim for dim, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
    if len(decided) > 1:
        raise ExamplesMeet("the batch's size is several of its sides")
    return FIRST.moved(decided[0]) if decided else None


def spread(call: Call) -> Place | tuple[Place, ...] | None:
    """What all examples share, once for each of them; else a movement."""
    operand = next(iter(call.arguments.values()))
    if call.place(operand) is not None:
        return movement(call)
    found = filled(call)
    if found is not None:
        right = found.dim - rank(call.node)
        held = operand.meta["val"].shape
        if -right <= len(held) and held[right] != 1:
            raise ExamplesMeet("it repeats several entries for every example")
    return found


def constant(call: Call) -> None:
    """What all examples share; of the batch's size it may not be."""
    if any(call.place(node) is not None for node in call.tensors()):
        raise ExamplesMeet("there is no rule for it")


def without_rule(_call: Call) -> None:
    """Nothing is known of it."""
    raise ExamplesMeet("there is no rule for it")


def entries(call: Call) -> int:
    """Entries that an operation makes of one example, those of an attention's scores too."""
    value = call.node.meta["val"]
    if RULES[call.name] is movement or not isinstance(value, torch.Tensor):
        return 0
    made = math.prod(at(size, 1) for size in value.shape)
    if call.name == "scaled_dot_product_attention":
        width, keys = value.shape[-1], call.arguments["key"].meta["val"].shape[-2]
        made += 2 * made // at(width, 1) * at(keys, 1)
    return made


def at(size: Any, examples: int) -> int:
    """A size of the graph in a batch of so many examples."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, examples)))


def _parts(values: Any) -> list[torch.Tensor]:
    """The tensors that an operation returns."""
    return [values] if isinstance(values, torch.Tensor) else list(values)


def _named(kind: Callable[[Call], Any], names: str) -> dict[str, Callable[[Call], Any]]:
    return dict.fromkeys(names.split(), kind)


RULES: Mapping[str, Callable[[Call], Any]] = {
    **_named(
        elementwise,
        "add sub rsub mul div true_divide floor_divide remainder fmod neg abs exp exp2 expm1 log "
        "log2 log10 log1p sqrt rsqrt square pow reciprocal sin cos tan sinh cosh asinh atan atan2 "
        "tanh sigmoid relu relu6 gelu silu elu celu selu leaky_relu hardtanh hardsigmoid hardswish "
        "mish softplus softsign log_sigmoid threshold clamp clamp_min clamp_max clip maximum "
        "minimum where eq ne lt le gt ge logical_and logical_or logical_not logical_xor "
        "bitwise_and bitwise_or bitwise_not bitwise_xor masked_fill erf erfc sign floor ceil round "
        "trunc nan_to_num isnan isinf isfinite lerp addcmul addcdiv to _to_copy type_as clone "
        "contiguous alias detach detach_copy lift_fresh_copy zeros_like ones_like full_like "
        "positive sinc hypot xlogy logaddexp softshrink hardshrink tanhshrink",
    ),
    **_named(
        movement,
        "view _unsafe_view reshape flatten unflatten permute transpose swapaxes swapdims t numpy_T "
        "mT movedim moveaxis unsqueeze squeeze select slice narrow split split_with_sizes chunk "
        "tensor_split unbind cat concat concatenate stack hstack vstack unfold view_as reshape_as "
        "repeat_interleave pixel_shuffle pixel_unshuffle ravel",
    ),
    **_named(
        along,
        "softmax _softmax log_softmax _log_softmax sum mean amax amin var std max min argmax "
        "argmin cumsum cumprod logsumexp prod any all sort argsort topk norm linalg_vector_norm "
        "glu nansum median logcumsumexp index_select flip roll",
    ),
    **_named(last(None), "layer_norm rms_norm"),
    **_named(last(1), "max_pool1d avg_pool1d adaptive_avg_pool1d"),
    **_named(last(2), "max_pool2d avg_pool2d adaptive_avg_pool2d tril triu"),
    **_named(last(3), "max_pool3d avg_pool3d adaptive_avg_pool3d"),
    **_named(padded, "constant_pad_nd pad"),
    **_named(product, "matmul bmm mm"),
    "scaled_dot_product_attention": attention,
    "einsum": einsum,
    "embedding": lookup,
    "dropout": dropout,
    **_named(filled, "zeros ones full new_zeros new_ones new_full"),
    **_named(spread, "expand expand_as repeat"),
    **_named(constant, "arange linspace eye scalar_tensor"),
}
# Arguments that may name the batch's size.
SIZES = frozenset({"size", "sizes", "shape", "repeats"})


def bound(node: fx.Node) -> Arguments:
    """The arguments of an operation by name, those that are left out at their defaults."""
    schema = node.target._schema  # type: ignore[union-attr]  # an operation of torch
    found: Arguments = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args) and not argument.kwarg_only:
            found[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            found[argument.name] = node.kwargs[argument.name]
        else:
            found[argument.name] = argument.default_value
    return found
