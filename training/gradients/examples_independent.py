"""A network as the graph of operations that its forward performs, where examples do not meet in it.

`torch.export` runs the forward once on tensors without values, with a batch of unknown size: a
branch on the data or on the batch's size is an error there. Every operation of the graph must have
a rule in `overhear.training.gradients.forward_operations` by which examples stay apart. What
computes then is the graph and not the forward, so what was checked is what runs, whatever the
forward does later.

Parameters may be used as one layer's, any number of times: the graph's products and sums with them,
lookups in them and normalisations become layers, with the examples along the first dimension of
what they read and return.
"""

from __future__ import annotations

import copy
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from typing import Any

import torch
from torch import Tensor, fx, nn

from ...privacy.errors import describe
from ..device.precision import readable_precision
from .forward_operations import (
    FIRST,
    RULES,
    SIZES,
    Call,
    ExamplesMeet,
    Parameter,
    Place,
    Shared,
    Size,
    State,
    bound,
    entries,
    rank,
    without_rule,
)
from .ghost import Shift, Times

# Operations with parameters, as torch's layers that compute the same.


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighted:
    """A layer, the names of its parameters in the network by its own, and its examples' place."""

    module: nn.Module
    names: dict[str, str]
    place: Place


def layer_of(call: Call, parameters: Mapping[str, nn.Parameter]) -> Weighted | None:
    """The layer that an operation is, where its weight is a parameter; else None.

    Raises:
        ExamplesMeet: If the operation has a parameter and is no layer with a rule, or examples
            meet in it.
    """
    if call.name not in _LAYERS:
        return None
    names, bare = {}, call.name in _BARE
    for own in ("weight", "bias"):
        node = call.arguments.get("other" if bare and own == "weight" else own)
        state = call.states[node] if isinstance(node, fx.Node) else None
        if isinstance(state, Parameter):
            if state.name not in parameters:
                raise ExamplesMeet(f"parameter {state.name!r} has two names")
            names[own] = state.name
        elif node is not None and names:
            raise ExamplesMeet("a part of its parameters is computed")
    if "weight" not in names:
        return None
    place = call.place(_read_by(call))
    if place is None:
        raise ExamplesMeet(f"{names['weight']!r} meets what all examples share")
    module = _LAYERS[call.name](call, parameters[names["weight"]], place)
    for own in ("weight", "bias"):
        value = parameters[names[own]].detach().clone() if own in names else None
        module.register_parameter(own, None if value is None else nn.Parameter(value))
    return Weighted(module=module, names=names, place=place)


def _read_by(call: Call) -> Any:
    """What the layer of an operation reads."""
    names = {"embedding": "indices", **dict.fromkeys(_BARE, "self")}
    return call.arguments[names.get(call.name, "input")]


def _linear(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["input"]) - 1)
    outputs, inputs = weight.shape
    return nn.Linear(inputs, outputs, device="meta")


def _times(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(_read_by(call)) - 1)
    if weight.ndim != 2:
        raise ExamplesMeet("its factor is no matrix")
    return Times()


def _shift(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    shape = _read_by(call).meta["val"].shape
    ends = list(dropwhile(lambda side: side == 1, weight.shape))  # alike for all that stands before
    within = weight.ndim <= len(shape) and len(ends) < len(shape)
    if (
        place != FIRST
        or not within
        or list(shape[len(shape) - len(ends) :]) != ends
        or call.arguments["alpha"] != 1
    ):
        raise ExamplesMeet("what it adds does not have the shape of an example's last dimensions")
    return Shift()


def _convolution(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _whole(place, call, sides=4)
    of: dict[str, Any] = call.arguments
    padding = of["padding"]
    if isinstance(padding, str) or of["groups"] != 1:
        raise ExamplesMeet("it has groups or a padding in words")
    outputs, inputs, *kernel = weight.shape
    return nn.Conv2d(
        inputs,
        outputs,
        tuple(kernel),  # type: ignore[arg-type]  # two sides
        stride=_two(of["stride"]),
        padding=_two(padding),
        dilation=_two(of["dilation"]),
        device="meta",
    )


def _layer_norm(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["input"]) - weight.ndim)
    return nn.LayerNorm(list(weight.shape), eps=call.arguments["eps"], device="meta")


def _group_norm(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _whole(place, call, sides=None)
    groups = call.arguments["num_groups"]
    return nn.GroupNorm(groups, len(weight), eps=call.arguments["eps"], device="meta")


def _embedding(call: Call, weight: torch.Tensor, place: Place) -> nn.Module:
    _within(place, rank(call.arguments["indices"]))
    if call.arguments["scale_grad_by_freq"] or call.arguments["sparse"]:
        raise ExamplesMeet("it is sparse or scales gradients by frequency")
    padding = call.arguments["padding_idx"]
    rows, width = weight.shape
    return nn.Embedding(rows, width, padding_idx=None if padding < 0 else padding, device="meta")


def _within(place: Place, sides: int) -> None:
    if place.dim >= sides:
        raise ExamplesMeet("it runs along the dimension of the examples")


def _whole(place: Place, call: Call, *, sides: int | None) -> None:
    if place != FIRST or sides not in (None, rank(call.arguments["input"])):
        raise ExamplesMeet("its examples are not the first dimension")


def _two(sides: list[int]) -> tuple[int, int]:
    return (sides[0], sides[-1])


_LAYERS: Mapping[str, Callable[[Call, torch.Tensor, Place], nn.Module]] = {
    "linear": _linear,
    "conv2d": _convolution,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "embedding": _embedding,
    "matmul": _times,
    "add": _shift,
}
_BARE = ("matmul", "add")  # whose parameter is no layer's


# Arithmetic of sizes.
_ON_SIZES = (operator.mul, operator.add, operator.sub, operator.floordiv)
# Of an example, in the batch on which the forward is run.
_COPIES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """The value of an earlier step."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """One operation, or one call of a layer on what lies at a place."""

    name: str
    operation: Callable[..., Any] | None
    layer: str
    place: Place
    arguments: tuple[Any, ...]
    named: dict[str, Any]


class Separate(nn.Module):
    """A network's graph, with its parameters in layers; they have the network's order."""

    def __init__(
        self,
        steps: list[_Step],
        *,
        layers: dict[str, nn.Module],
        constants: dict[str, Tensor],
        order: list[str],
        names: tuple[str, str],
        shape: torch.Size,
        entries: int,
    ) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._steps, self._constants, self._order = steps, constants, order
        self._input, self._output = names
        self.shape = shape  # of an example
        self.entries = entries  # that operations beside the layers make of one example

    def named_parameters(
        self,
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,  # noqa: ARG002 - none is shared
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters in the order of the network, not of the layers."""
        for name in self._order if recurse else ():
            yield (f"{prefix}.{name}" if prefix else name), self.get_parameter(name)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, *shape) to logits (B, classes)."""
        values: dict[str, Any] = {**self._constants, self._input: inputs}
        for step in self._steps:
            arguments = _filled(step.arguments, values)
            if step.operation is not None:
                values[step.name] = step.operation(*arguments, **_filled(step.named, values))
            else:
                read = step.place.examples_first(arguments[0])
                values[step.name] = step.place.back(self._modules[step.layer](read))  # type: ignore[misc]  # a layer
        found: Tensor = values[self._output]
        return found


def separate(model: nn.Module, example: Tensor) -> Separate | str:
    """The network as a checked graph, or why there is none.

    Args:
        model: The network; it is copied.
        example: (1, *shape), of which the shape, the type and the device matter.
    """
    model = copy.deepcopy(model).requires_grad_(True)
    inputs = torch.zeros_like(example).expand(_COPIES, *example.shape[1:]).contiguous()
    try:
        with _quiet(), readable_precision(), torch.enable_grad():
            program = torch.export.export(
                model, (inputs,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
            )
    except Exception as error:  # noqa: BLE001 - whatever the user's forward raises
        words = describe(error)[:160]
        return f"its forward cannot be written as one graph for batches of any size ({words})"
    try:
        return _Reader(model, program).read(example.shape[1:])
    except ExamplesMeet as reason:
        return str(reason)


class _Reader:
    """Reads a graph once, and makes the steps of a `Separate`."""

    def __init__(self, model: nn.Module, program: torch.export.ExportedProgram) -> None:
        self._parameters = dict(model.named_parameters())
        self._signature, self._graph = program.graph_signature, program.graph
        self._values = {**program.state_dict, **program.constants}
        self._states: dict[fx.Node, State | tuple[State, ...]] = {}
        self._steps: list[_Step] = []
        self._layers: dict[str, nn.Module] = {}
        self._constants: dict[str, Tensor] = {}
        self._entries = 0
        self._names: dict[str, str] = {}  # of parameters, in the layers
        self._input: fx.Node | None = None
        self._batch: Any = None  # the size of the batch, as an expression
        self._positions = {node: at for at, node in enumerate(self._graph.nodes)}

    def read(self, shape: torch.Size) -> Separate:
        """The checked graph; `ExamplesMeet` where it does not pass."""
        signature = self._signature
        if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
            raise ExamplesMeet("its forward overwrites a buffer or its input")
        output = None
        # Every node is an input that is held, an operation with a rule, or the output.
        for node in self._graph.nodes:
            if node.op == "placeholder":
                self._states[node] = self._held(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                (output,) = node.args[0]
            else:
                raise ExamplesMeet(f"its forward has a part that is no operation ({node.op})")
        if (
            not isinstance(output, fx.Node)
            or self._input is None
            or self._states[output] != FIRST
            or rank(output) != 2
        ):
            raise ExamplesMeet("its forward does not return one row of logits for each example")
        self._hold_unused()
        return Separate(
            self._steps,
            layers=self._layers,
            constants=self._constants,
            order=[self._names[name] for name in self._parameters],
            names=(self._input.name, output.name),
            shape=shape,
            entries=self._entries,
        )

    def _held(self, node: fx.Node) -> State:
        """What a placeholder holds."""
        signature = self._signature
        if node.name in signature.inputs_to_parameters:
            return Parameter(signature.inputs_to_parameters[node.name])
        for held in (signature.inputs_to_buffers, signature.inputs_to_lifted_tensor_constants):
            if node.name in held:
                self._constants[node.name] = self._values[held[node.name]].detach().clone()
                return Shared()
        if self._input is not None or node.name not in signature.user_inputs:
            raise ExamplesMeet("its forward reads more than its input")
        if not isinstance(node.meta["val"].shape[0], torch.SymInt):
            raise ExamplesMeet("its forward takes batches of one size only")
        self._input = node
        self._batch = node.meta["val"].shape[0].node.expr
        return FIRST

    def _call(self, node: fx.Node) -> None:
        """Check an operation, and note its step."""
        target = node.target
        # Parts of a tuple, and arithmetic on sizes, move no example.
        if target is operator.getitem:
            whole = self._states[node.args[0]]  # type: ignore[index]  # a node
            if not isinstance(whole, tuple):
                raise ExamplesMeet("its forward takes a part of what has none")
            self._note(node, whole[node.args[1]])  # type: ignore[index]  # an integer
            return
        if target in _ON_SIZES or target is torch.ops.aten.sym_size.int:
            operation = _size if target is torch.ops.aten.sym_size.int else target
            self._note(node, Size(), operation=operation)  # pyright: ignore[reportArgumentType]
            return
        # Operations of ATen alone have rules, and those in place are taken as if they were not.
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            raise ExamplesMeet(f"its forward uses {getattr(target, '__name__', target)}")
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return
        operation, name = self._not_in_place(node, target)
        if name in ("view", "_unsafe_view"):  # of images whose channels a layout turns inwards
            operation = torch.ops.aten.reshape.default
        call = Call(node=node, name=name, arguments=bound(node), states=self._states)
        self._check_sizes(call)
        # A layer by its weights, or else the rule that says where the examples are afterwards.
        try:
            layer = layer_of(call, self._parameters)
            if layer is not None:
                self._note_layer(call, layer.module, layer.names, place=layer.place)
                return
            found = RULES.get(name, without_rule)(call)
        except Exception as reason:  # noqa: BLE001 - what a rule cannot read does not pass
            raise ExamplesMeet(f"in its forward {name!r} may let examples meet: {reason}") from None
        self._entries += entries(call)
        state = found if isinstance(found, tuple) else (Shared() if found is None else found)
        if found is None and not isinstance(node.meta["val"], Tensor):
            state = (Shared(),) * len(node.meta["val"])
        self._note(node, state, operation=operation)

    def _not_in_place(
        self, node: fx.Node, target: torch._ops.OpOverload
    ) -> tuple[Callable[..., Any], str]:
        """The operation and its name; in place of one that overwrites, its twin that does not."""
        name = target._schema.name.partition("::")[2]
        if not target._schema.is_mutable:
            return target, name
        written = node.args[0]
        twin = getattr(torch.ops.aten, name.removesuffix("_"), None)
        overload = getattr(twin, target._overloadname, None)
        if not name.endswith("_") or overload is None or not isinstance(written, fx.Node):
            raise ExamplesMeet(f"in its forward {name!r} overwrites a tensor")
        # Nobody else may see what is overwritten: no view of it, and no later reader.
        here = self._positions[node]
        seen = any(self._positions[user] > here for user in written.users)
        aliased = any(_may_alias(user) for user in written.users if user is not node)
        if seen or aliased or written.op == "placeholder" or _may_alias(written):
            raise ExamplesMeet(f"in its forward {name!r} overwrites a tensor that others read")
        return overload, name.removesuffix("_")

    def _check_sizes(self, call: Call) -> None:
        """The batch's size may decide shapes, and no value."""
        for name, argument in call.arguments.items():
            nodes: list[fx.Node] = []
            fx.map_arg(argument, nodes.append)
            if name not in SIZES and any(isinstance(self._states[n], Size) for n in nodes):
                raise ExamplesMeet(f"in its forward {call.name!r} reads the size of the batch")

    def _note(
        self,
        node: fx.Node,
        state: State | tuple[State, ...],
        *,
        operation: Callable[..., Any] = operator.getitem,
    ) -> None:
        self._states[node] = state
        if not isinstance(state, Size):
            values, states = node.meta["val"], state
            if not isinstance(state, tuple):
                values, states = [values], (state,)
            for value, held in zip(values, states, strict=True):  # type: ignore[arg-type]  # tuples
                self._check_shape(value.shape, held)
        self._steps.append(
            _Step(
                name=node.name,
                operation=operation,
                layer="",
                place=FIRST,
                arguments=_references(node.args),
                named=_references(node.kwargs),
            )
        )

    def _note_layer(
        self, call: Call, module: nn.Module, names: dict[str, str], *, place: Place
    ) -> None:
        # A layer that was met before is called once more, where it is the same in every number.
        layer = self._names.get(names["weight"], str(len(self._layers))).partition(".")[0]
        before = {name: of for name, of in self._names.items() if of.startswith(f"{layer}.")}
        now = {name: f"{layer}.{own}" for own, name in names.items()}
        known = bool(before) or not now.keys().isdisjoint(self._names)
        if known and (before != now or repr(module) != repr(self._layers[layer])):
            raise ExamplesMeet(f"parameter {names['weight']!r} is used by two layers")
        self._names |= now
        self._layers.setdefault(layer, module)
        self._states[call.node] = place
        self._check_shape(call.node.meta["val"].shape, place)
        operand = _read_by(call)
        self._steps.append(
            _Step(
                name=call.node.name,
                operation=None,
                layer=layer,
                place=place,
                arguments=(_Read(name=operand.name),),
                named={},
            )
        )

    def _check_shape(self, shape: torch.Size, state: State) -> None:
        """The batch's size is one side, where the examples lie, and of no other."""
        for dim, size in enumerate(shape):
            place = state if isinstance(state, Place) and state.dim == dim else None
            decided = size.node.expr if isinstance(size, torch.SymInt) else None
            expected = None if place is None else place.outer * place.inner * self._batch
            if decided != expected:
                raise ExamplesMeet("in its forward the size of the batch is not that of one side")

    def _hold_unused(self) -> None:
        """Parameters that the forward does not use, whose gradient is zero."""
        unused = nn.Module()
        for name, parameter in self._parameters.items():
            if name not in self._names:
                held = f"held{len(list(unused.parameters()))}"
                unused.register_parameter(held, nn.Parameter(parameter.detach().clone()))
                self._names[name] = f"unused.{held}"
        self._layers["unused"] = unused


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch tells its developers about a forward."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _may_alias(node: fx.Node) -> bool:
    """Whether what an operation returns may share memory with what it reads."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op == "call_function"
    named = target._schema.name.partition("::")[2]
    returned = any(value.alias_info is not None for value in target._schema.returns)
    return returned or named in ("reshape", "contiguous", "to", "flatten", "type_as", "dropout")


def _size(values: Tensor, dim: int) -> int:
    """A side; `sym_size` has no rule for vmap."""
    return values.shape[dim]


def _references(values: Any) -> Any:
    """Arguments with the names of earlier steps in place of nodes."""
    if isinstance(values, fx.Node):
        return _Read(name=values.name)
    if isinstance(values, dict):
        return {key: _references(value) for key, value in values.items()}
    if isinstance(values, tuple | list):
        return tuple(map(_references, values))
    return values


def _filled(values: Any, held: dict[str, Any]) -> Any:
    """Arguments with the values of earlier steps."""
    if isinstance(values, _Read):
        return held[values.name]
    if isinstance(values, dict):
        return {key: _filled(value, held) for key, value in values.items()}
    if isinstance(values, tuple):
        return [_filled(value, held) for value in values]
    return values
