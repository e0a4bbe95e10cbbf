"""The layers of a network in the order of their calls, and what they are fed.

Stages take the first layer with parameters, and the last, for those that are called first and last.
A network may register them in another order: `in_call_order` gives one that does not.

Shape letters: B records, F numbers of a record, C classes, D parameters.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ...training.models.parameters import unflatten
from .observation import Observation, computed_once, twice_differentiable
from .problem import copied

P = ParamSpec("P")
R = TypeVar("R")

FAR_OUT = 1e3
"""How far a network has to take numbers as they are, so that no record was cut."""
_SAME = 1e-3  # of a gradient, up to which two are one
_ITERATED = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # whose order is that of their calls


def in_call_order(
    observation: Observation, model: nn.Module, records: Tensor
) -> tuple[Observation, nn.Module]:
    """The same of a network that registers its layers in the order in which it calls them first.

    As it was, where it does so, or where trial records do not show the order.
    """
    gradient, points = observation.gradient, observation.points
    odd = observation.drift is not None or observation.task is not None
    odd |= any(isinstance(of, Tensor) for of in observation.coefs)
    if odd or points.shape[2] != gradient.shape[1]:
        return observation, model
    with suppress(Exception):  # it may not be copied, or take no such records
        twin, calls = copied(model), dict[nn.Module, int]()
        before = {id(p): n for n, p in enumerate(twin.parameters())}

        def note(module: nn.Module, _: object) -> None:
            calls.setdefault(module, len(calls))

        hooks = [module.register_forward_pre_hook(note) for module in twin.modules()]
        like = next(twin.parameters())
        records = records.to(like if records.is_floating_point() else like.device)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made = twin(records)
            for hook in hooks:
                hook.remove()
            for module in twin.modules():
                if not isinstance(module, _ITERATED):
                    _sort(module, calls)
            order = [before[id(p)] for p in twin.parameters()]
            if order != sorted(order) and torch.equal(made, twin(records)):
                sizes, shown = [p.numel() for p in model.parameters()], observation.shown
                places = torch.arange(gradient.shape[1], device=gradient.device).split(sizes)
                at = torch.cat([places[n] for n in order])
                shown = None if shown is None else shown[at]
                return replace(
                    observation, gradient=gradient[:, at], points=points[..., at], shown=shown
                ), twin
    return observation, model


def _sort(module: nn.Module, calls: Mapping[nn.Module, int]) -> None:
    """Register the parts of a module in the order of their first calls."""

    def when(pair: tuple[str, nn.Module | None]) -> int:
        parts = () if pair[1] is None else pair[1].modules()
        return min((calls[m] for m in parts if m in calls), default=len(calls))

    children = sorted(module._modules.items(), key=when)
    module._modules.clear()
    module._modules.update(children)


def first_linear(
    model: nn.Module, seen: Observation, input_shape: Sequence[int], *, held: bool = False
) -> str | None:
    """Name of a layer that is linear, biased and fed the raw input, and has a gradient.

    Of several the one of the most units, which show several records best; the first one where none
    has a gradient. Where `held`, every number of that layer's gradient is held.
    """
    found, gradients = list[tuple[bool, int, str]](), unflatten(model, seen.gradient)
    point = seen.points[0, 0, : seen.gradient.shape[1]]
    for name, module in model.named_modules():
        names = [parameter_name(name, of) for of in ("weight", "bias")]
        if not isinstance(module, nn.Linear) or not gradients.keys() >= set(names):
            continue
        seems = not held or seen.holds(model, *names)
        if seems and is_fed_raw(model, module, point, input_shape):
            moved = bool(gradients[names[0]].any())
            found.append((moved, module.out_features * moved, name))
    return max(found, key=lambda of: of[:2], default=(False, 0, None))[2]


def is_fed_raw(
    model: nn.Module, layer: nn.Linear, flat: Tensor, input_shape: Sequence[int]
) -> bool:
    """Whether the layer is plain and fed the flattened record: alone or not, in either mode."""
    tried = _TRIED.get([])
    asked = (model, layer, tuple(input_shape), flat.dtype, flat.device)
    for known, point, answer in tried:
        if known == asked and torch.equal(point, flat):
            return answer
    tried.append((asked, flat, _is_fed_raw(model, layer, flat, input_shape)))
    return tried[-1][2]


_TRIED: ContextVar[list[tuple[object, Tensor, bool]]] = ContextVar("_TRIED")


@contextmanager
def tried_once() -> Iterator[None]:
    """Try a network once at each point while it is entered, in which nothing changes it."""
    token = _TRIED.set([])
    try:
        yield
    finally:
        _TRIED.reset(token)


def _is_fed_raw(
    model: nn.Module, layer: nn.Linear, flat: Tensor, input_shape: Sequence[int]
) -> bool:
    count, values = math.prod(input_shape), unflatten(model, flat)
    if layer.in_features != count:
        return False
    records = trial_records(flat.new_zeros(count), flat.new_ones(count)).reshape(-1, *input_shape)
    with suppress(Exception):  # a network may refuse what is far out
        every = [(fed_to(model, values, at, [layer]), at) for at in (records, *records.split(1))]
        trained = copied(model).train()
        twin = dict(zip(model.modules(), trained.modules(), strict=True))[layer]
        with torch.random.fork_rng(devices=[]):
            every.append((fed_to(trained, values, records, [twin]), records))
        return is_plain(model, values, layer, records[11:15]) and all(
            len(fed) == 1 and torch.equal(fed[0].flatten(), at.flatten()) for fed, at in every
        )
    return False


def is_plain(
    model: nn.Module, values: Mapping[str, Tensor], layer: nn.Module, records: Tensor
) -> bool:
    """Whether a linear layer or convolution is called once, and is all that its parameters do.

    Their gradient at some records is that of such a layer then. A layer behind dropout is none.
    """
    name = next(name for name, module in model.named_modules() if module is layer)
    within = f"{name}." if name else ""
    owned = {key: value.detach().clone().requires_grad_() for key, value in values.items()}
    calls, dropped = list[tuple[Tensor, Tensor]](), list[int]()

    def note(_: nn.Module, fed: tuple[Tensor, ...], made: Tensor) -> Tensor:
        calls.append((fed[0].detach(), made))
        return made.clone()  # which may be changed in place

    handles = [layer.register_forward_hook(note)]
    for module in model.modules():
        if isinstance(module, _DropoutNd) and module.p > 0:
            handles.append(module.register_forward_pre_hook(lambda *_: dropped.append(len(calls))))
    try:
        with twice_differentiable():
            outputs = functional_call(model, owned, (records,))
    finally:
        for handle in handles:
            handle.remove()
    if len(calls) != 1 or 0 in dropped:
        return False
    fed, made = calls[0]
    weight, bias = owned[f"{within}weight"], owned.get(f"{within}bias")
    held = [weight] if bias is None else [weight, bias]
    mixed = (
        outputs * torch.linspace(1, 2, outputs.numel()).to(outputs).reshape(outputs.shape)
    ).sum()
    slopes = torch.autograd.grad(mixed, [made, *held])
    if isinstance(layer, nn.Conv2d):
        plain = nn.Conv2d._conv_forward(layer, fed, weight, bias)
    else:
        plain = functional.linear(fed, weight, bias)
    expected = torch.autograd.grad(plain, held, slopes[0])
    return all(
        bool((one - other).norm() <= _SAME * other.norm())
        for one, other in zip(slopes[1:], expected, strict=True)
    )


def fed_to(
    model: nn.Module, values: Mapping[str, Tensor], probe: Tensor, layers: Sequence[nn.Module]
) -> list[Tensor]:
    """What layers are called with, call by call, where a network gets a probe."""
    fed: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        fed.append(inputs[0])

    handles = [layer.register_forward_pre_hook(note) for layer in layers]
    try:
        with torch.no_grad():
            functional_call(model, dict(values), (probe,))
    finally:
        for handle in handles:
            handle.remove()
    return fed


def trial_records(low: Tensor, high: Tensor) -> Tensor:
    """(N, F) records that show what a network does to one, most within bounds (F,).

    The first four lie at the ends, all alike, and half at each; some are dark, bright, dull, of few
    values, or far out.
    """
    source = torch.Generator().manual_seed(0)
    drawn = torch.rand(max(8, 256 // len(low)), len(low), generator=source)
    one, two, three, four = drawn[:4]
    ends = [0 * one, 0 * one + 1, 0 * one + 0.5, one.round()]
    shades = [0.3 * one, 0.7 + 0.3 * two, 0.45 + 0.1 * one, (two - 0.5).clamp_min(0)]
    codes = [(255 * three).round() / 255, torch.linspace(0, 1, len(low)), 2 * four - 1]
    far = [3 * (2 * one - 1), *FAR_OUT * (2 * drawn[:4] - 1)]
    every = torch.stack([*ends, *shades, *codes, *drawn, *far]).to(low)
    return low + every * (high - low)


def parameter_name(layer: str, name: str) -> str:
    """Name of a layer's parameter within the network."""
    return f"{layer}.{name}" if layer else name


def joint_of(values: Mapping[str, Tensor], layer: str) -> Tensor:
    """(..., O, I + 1) weight and bias of a linear layer side by side, or their gradients."""
    weight, bias = (values[parameter_name(layer, name)] for name in ("weight", "bias"))
    return torch.cat([weight, bias[..., None]], dim=-1)


# Networks that hold numbers of one type.


class _Promoted(TorchFunctionMode):
    """Functions of numbers of two types are called with the wider one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        try:
            return func(*given[0], **given[1])
        except RuntimeError as error:
            own = [of for of in tree_leaves(given) if isinstance(of, Tensor)]
            kinds = [of.dtype for of in own if of.is_floating_point()]
            if "type" not in str(error) or len(set(kinds)) < 2:
                raise
            wide = functools.reduce(torch.promote_types, kinds)
            of = functools.partial(tree_map_only, Tensor)
            args, kwargs = of(lambda t: t.to(wide) if t.is_floating_point() else t, given)
            return func(*args, **kwargs)


def of_any_type(attack: Callable[P, R]) -> Callable[P, R]:
    """Attack networks that hold numbers of one type, too, and those with checkpointed parts.

    Stages call a network in float64, and constants of its code stay what they are.
    """

    @functools.wraps(attack)
    def attacked(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = inspect.signature(attack).bind(*args, **kwargs).arguments
        with ExitStack() as held:
            held.enter_context(computed_once())
            with suppress(Exception), torch.no_grad(), torch.random.fork_rng(devices=[]):
                twin = copy.deepcopy(given["model"]).double()
                records = torch.zeros(2, *given.get("input_shape", ())).double()
                if "length" in given:
                    records = torch.zeros(2, given["length"]).long()
                try:
                    twin(records.to(next(twin.parameters()).device))
                except RuntimeError:
                    held.enter_context(_Promoted())
            return attack(*args, **kwargs)

    return attacked
