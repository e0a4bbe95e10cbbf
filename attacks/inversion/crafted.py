"""The model that a malicious neighbour sends, so that the gradient on it isolates records.

    bins        u f, for a direction u of the features f, cut at quantiles of public records
    read layer  the first linear layer (L1), rows of several directions u side by side
    ReLU behind row i of a direction is u, with bias -t_i: records above t_i. All rows of it have
                one and the same slope behind them, so row i less row i + 1 holds one bin.
    softmax     of a linear network: class c wins where t_c < u f < t_(c+1), and is all but certain
                there. Row c holds the records of bin c less those whose label is c. A first round
                in which class 0 always wins tells the latter; less these, a row holds one bin.

Fowl, Geiping, Czaja, Goldblum, Goldstein, "Robbing the Fed: Directly Obtaining Private Data in
Federated Learning with Modified Models", ICLR 2022, arXiv 2110.13057.

Where we differ from the paper: it puts a layer of its own before the network; here the network is
as it is, and only its parameters are chosen. Several directions let a record that shares a bin in
one of them be alone in another, once the others are known and taken off (`exact.imprinted`). The
last layer's rows differ by class, for each direction otherwise, so that the slots of a record tell
its label, and one slot how many records it holds.

| symbol | name here  | shape  |
|--------|------------|--------|
| f      | features   | (N, F) |
| u      | directions | (G, F) |
| t      | thresholds | (G, n) |
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..problem.layers import parameter_name
from ..problem.problem import Imprint, build_box
from .tiles import Tiling, slices_of, tiling_of

# What stands before the first linear layer, made to hand a record on whole.
#
#     nothing        the record itself, flattened
#     convolutions   strides s_1, s_2, ...: the pixel at phase (a, b) of every s x s block goes to a
#                    channel of its own (space to depth), so that nothing is lost; a ReLU passes it,
#                    because a bias lifts it above 0
#
# A pooling layer keeps the largest of several pixels and loses the others, and a normalisation
# mixes them; for networks with these no crafted trunk is known.

_IMAGE = ("channels", "height", "width")
_LARGE = 1e5  # features over pixels, so that the trunk's own gradient is small beside the head's

Chain = Sequence[tuple[str, nn.Module]]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trunk:
    """Layers that hand a record on.

    Attributes:
        parameters: by name those that are chosen.
        features_of: (N, *shape) records to (N, F) features, float64.
        inputs_of: (F,) features to the record (*shape).
        count: F.
    """

    parameters: Mapping[str, Tensor]
    features_of: Callable[[Tensor], Tensor]
    inputs_of: Callable[[Tensor], Tensor]
    count: int


def trunk_of(chain: Chain, shape: tuple[int, ...], *, low: Tensor) -> Trunk | str:
    """The trunk of a chain of layers, or why there is none.

    Args:
        chain: layers with their names.
        low: least value of an input, broadcastable to a record.
    """
    # Layers that can pass pixels on at all.
    if any(of.start_dim != 1 or of.end_dim != -1 for _, of in chain if isinstance(of, nn.Flatten)):
        return "it flattens a part of its dimensions alone"
    layers = [entry for entry in chain if not isinstance(entry[1], nn.Flatten)]
    if not layers:
        return Trunk(
            parameters={},
            features_of=lambda x: x.flatten(1).double(),
            inputs_of=lambda f: f.reshape(shape),
            count=math.prod(shape),
        )
    if len(shape) != len(_IMAGE):
        return "its first layer takes no rows of numbers"
    if low.numel() not in (1, shape[0]):
        return "its inputs have bounds of their own for every pixel"
    # Each convolution moves pixels to channels; the first lifts them over the ReLUs.
    parameters, held, size = dict[str, Tensor](), None, shape
    for name, layer in layers:
        if isinstance(layer, nn.ReLU) and held is not None:
            continue
        if not isinstance(layer, nn.Conv2d):
            return f"{type(layer).__name__} stands before its first linear layer"
        before = held or [_Shift(channel, 0, 0) for channel in range(shape[0])]
        moved = _moved(layer, before, scale=_LARGE if held is None else 1.0)
        if isinstance(moved, str):
            return moved
        held, weight = moved
        bias = weight.new_zeros(layer.out_channels)
        if not parameters:  # above 0, where ReLUs pass it
            base = low.double().reshape(-1).expand(shape[0])
            bias[: len(held)] = torch.stack([-_LARGE * base[at.channel] for at in held])
        parameters |= {f"{name}.weight": weight, f"{name}.bias": bias}
        size = (layer.out_channels, *(_out(layer, i, side) for i, side in enumerate(size[1:])))
    assert held is not None  # noqa: S101 # there is a layer
    # Where each pixel is in the features, which have to hold all of them.
    stride = math.prod(_square(of.stride)[0] for _, of in layers if isinstance(of, nn.Conv2d))
    pixels = _pixels(held, size, shape, stride=stride)  # (F,), -1 where a feature is empty
    full = pixels >= 0
    at = torch.empty(math.prod(shape), dtype=torch.int64)
    at[pixels[full]] = full.nonzero().flatten()
    if len(pixels[full].unique()) < len(at):
        return "its convolutions do not reach every pixel"
    lift = low.double().expand(shape)

    def features_of(x: Tensor) -> Tensor:
        lifted = _LARGE * (x.double() - lift).flatten(1)
        return torch.where(full, lifted[:, pixels.clamp_min(0)], 0.0)

    return Trunk(
        parameters=parameters,
        features_of=features_of,
        inputs_of=lambda f: f[at.to(f.device)].reshape(shape) / _LARGE + lift.to(f),
        count=math.prod(size),
    )


class _Shift(NamedTuple):
    """What a channel holds: pixels of a channel of the record, from (row, column) on."""

    channel: int
    row: int
    column: int
    stride: int = 1


def _moved(
    layer: nn.Conv2d, held: Sequence[_Shift], *, scale: float
) -> tuple[list[_Shift], Tensor] | str:
    """Every phase of a convolution's stride in a channel of its own, and the weights for it."""
    # A convolution that reaches every pixel of its stride, with a channel for each phase.
    side, step, pad = (_square(of)[0] for of in (layer.kernel_size, layer.stride, layer.padding))
    plain = layer.groups == 1 and _square(layer.dilation) == (1, 1) and layer.bias is not None
    alike = all(len(set(_square(of))) == 1 for of in (layer.kernel_size, layer.stride))
    if not plain or not alike or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return "a convolution has groups, dilation, no bias, or sides that differ"
    if pad + step > side:
        return "a convolution does not reach all pixels of its stride"
    if len(held) * step**2 > layer.out_channels:
        return (
            f"a convolution with stride {step} has {layer.out_channels} channels, and all pixels "
            f"need {len(held) * step**2}"
        )
    # One weight a channel: the pixel of one phase.
    weight = torch.zeros_like(layer.weight, dtype=torch.float64, device="cpu")
    found = list[_Shift]()
    for channel, at in enumerate(held):
        for row, column in itertools.product(range(step), repeat=2):
            weight[len(found), channel, pad + row, pad + column] = scale
            found.append(
                _Shift(
                    at.channel,
                    at.row + row * at.stride,
                    at.column + column * at.stride,
                    at.stride * step,
                )
            )
    return found, weight


def _pixels(
    held: Sequence[_Shift], size: Sequence[int], shape: Sequence[int], *, stride: int
) -> Tensor:
    """(F,) for each feature the pixel that it holds, counted over the record; -1 for none."""
    found = torch.full(tuple(size), -1, dtype=torch.int64)
    for number, at in enumerate(held):
        rows = at.row + stride * torch.arange(size[1])
        columns = at.column + stride * torch.arange(size[2])
        inside = (rows < shape[1])[:, None] & (columns < shape[2])
        index = (at.channel * shape[1] + rows[:, None]) * shape[2] + columns
        found[number] = torch.where(inside, index, -1)
    return found.flatten()


def _square(value: object) -> tuple[int, int]:
    """Both sides of a number or a pair of them; of words none."""
    if isinstance(value, int):
        return value, value
    return (value[0], value[1]) if isinstance(value, tuple) else (0, 0)


def _out(layer: nn.Conv2d, side: int, length: int) -> int:
    pad, size, step = (_square(of)[side] for of in (layer.padding, layer.kernel_size, layer.stride))
    return (length + 2 * pad - size) // step + 1


_DIRECTIONS = 3  # side by side; a record that shares its bin in all of them stays hidden
_SMALL = 1e-2  # scale of what the read layer gives on; the last layer undoes it
_SURE = 40.0  # logits between bins of a softmax, for the middle half of a bin
_MARGIN = 0.1  # of the range of a pixel
_FEWEST = 2  # public records whose quantiles mean anything
_DRAWN = 500  # records drawn at random in the box where no public ones are known


class _Head(NamedTuple):
    """The linear layers behind the trunk, by name."""

    names: list[str]
    layers: list[nn.Linear]


def why_not_crafted(model: nn.Module, input_shape: Sequence[int], *, records: int = 1) -> str:
    """Why no crafted model is known for a network, in words; empty where one is.

    Args:
        input_shape: shape of one record.
        records: how many are expected in a batch.
    """
    shape = tuple(input_shape)
    found = _parts(model, shape, low=torch.tensor(0.0))
    if not isinstance(found, str):
        return ""
    pieces = _tiling(model, shape)
    if isinstance(pieces, str):
        return found
    many = "; only the pieces of a batch of one record could be read, by [attack] batch = 1"
    return f"{found}{many}" if records > 1 else ""


def least_rounds(model: nn.Module, input_shape: Sequence[int]) -> int:
    """In how many rounds a record has to take part, so that crafted models show all of it."""
    shape = tuple(input_shape)
    if not isinstance(_parts(model, shape, low=torch.tensor(0.0)), str):
        return 1
    pieces = _tiling(model, shape)
    return 1 if isinstance(pieces, str) else pieces.rounds


def craft(
    model: nn.Module,
    *,
    input_shape: Sequence[int],
    classes: int,
    bounds: tuple[Tensor, Tensor],
    records: int,
    generator: torch.Generator,
    public: Tensor | None = None,
    rounds: int = 1,
) -> list[Imprint]:
    """Models, one a round, whose gradients isolate the records of a batch.

    Args:
        model: the network; its parameters are not read.
        bounds: (low, high) of the normalised inputs.
        records: how many records are expected in a batch.
        generator: of the directions.
        public: (N, *input_shape) records by which bins are cut; random ones where None.
        rounds: in how many rounds the same batch takes part.

    Raises:
        ValueError: no crafted model is known for the network, or it takes more rounds.
    """
    box = build_box(bounds, input_shape, dtype=torch.float64)
    # A pixel at its least value is above 0 behind the trunk, where ReLUs have a slope.
    shape = tuple(input_shape)
    found = _parts(model, shape, low=(box.low - _MARGIN * box.span).cpu())
    if isinstance(found, str):
        return _pieces(
            model, shape, classes=classes, records=records, rounds=rounds, generator=generator
        )
    trunk, head = found
    known = _public(public, input_shape, bounds=bounds, generator=generator)
    features = trunk.features_of(known)  # (N, F) float64
    made = list[Imprint]()
    # Of several models the first is a reference for the others.
    for number in range(rounds):
        values = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in _named(model)}
        values |= {name: value.double().clone() for name, value in trunk.parameters.items()}
        alone = len(head.layers) == 1
        reference = alone and rounds > 1 and number == 0
        if reference:
            values[parameter_name(head.names[0], "bias")][0] = _SURE
            follows = (-1,) * head.layers[0].out_features
        elif alone and records > 1:
            follows = _softmax(values, head, features, first=int(rounds > 1), generator=generator)
        elif alone:  # of one record any gradient is of rank 1
            follows = (-1,) * head.layers[0].out_features
        else:
            follows = _relus(values, head, features, classes=classes, generator=generator)
        made.append(_imprint(values, trunk, head, follows=follows, reference=reference))
    return made


def _pieces(
    model: nn.Module,
    shape: tuple[int, ...],
    *,
    classes: int,
    records: int,
    rounds: int,
    generator: torch.Generator,
) -> list[Imprint]:
    """Models that show the pieces of one record, one model a round; the last rounds repeat some."""
    if why := why_not_crafted(model, shape, records=records):
        raise InputError(f"no crafted model is known for this network: {why}")
    tiling = _tiling(model, shape)
    assert isinstance(tiling, Tiling)  # noqa: S101 # or there was a reason
    if rounds < tiling.rounds:
        raise InputError(
            f"rounds={rounds} must be at least {tiling.rounds}: crafted models show a record of "
            "this network piece by piece"
        )
    made = tiling.models(model, classes=classes, generator=generator)
    return [made[number % len(made)] for number in range(rounds)]


def _tiling(model: nn.Module, shape: tuple[int, ...]) -> Tiling | str:
    chain = _chain(model)
    if chain is None:
        return "its layers are not one chain (nn.Sequential)"
    if _shares(model, chain):
        return "layers share parameters"
    return tiling_of(chain, shape)


def _shares(model: nn.Module, chain: Sequence[tuple[str, nn.Module]]) -> bool:
    every = sum(p.numel() for _, layer in chain for p in layer.parameters())
    return sum(p.numel() for _, p in _named(model)) != every


def _imprint(
    values: dict[str, Tensor],
    trunk: Trunk,
    head: _Head,
    *,
    follows: tuple[int, ...],
    reference: bool,
) -> Imprint:
    places = slices_of(values)
    return Imprint(
        parameters=torch.cat([value.flatten() for value in values.values()]),
        weight=places[parameter_name(head.names[0], "weight")],
        bias=places[parameter_name(head.names[0], "bias")],
        follows=follows,
        inputs_of=trunk.inputs_of,
        reference=reference,
    )


def _softmax(
    values: dict[str, Tensor],
    head: _Head,
    features: Tensor,
    *,
    first: int,
    generator: torch.Generator,
) -> tuple[int, ...]:
    """One layer alone: the upper envelope of the classes from `first` on along one direction."""
    weight, bias = (values[parameter_name(head.names[0], part)] for part in ("weight", "bias"))
    (u,), (along,) = _directions(features, 1, generator=generator)
    bins = len(weight) - first
    cuts = torch.quantile(along, torch.arange(1, bins).double() / bins)
    steep = _SURE * bins
    weight[first:] = steep * torch.arange(bins).double()[:, None] * u
    bias[first:] = -steep * torch.cat([cuts.new_zeros(1), cuts.cumsum(0)])
    if first:  # so far below that it never wins
        bias[0] = float((features @ weight.T + bias)[:, 1:].min()) - steep
        bias[0] = min(float(bias[0]), -steep * 10)
    return (-1,) * len(weight)


def _relus(
    values: dict[str, Tensor],
    head: _Head,
    features: Tensor,
    *,
    classes: int,
    generator: torch.Generator,
) -> tuple[int, ...]:
    """A layer and ReLUs: thresholds along several directions, and one slope behind all rows."""
    weight, bias = (values[parameter_name(head.names[0], part)] for part in ("weight", "bias"))
    groups = min(_DIRECTIONS, *(layer.out_features for layer in head.layers[:-1]))
    directions, along = _directions(features, groups, generator=generator)
    follows = list[int]()
    for u, seen, here in zip(directions, along, _parted(len(weight), groups), strict=True):
        count = here.stop - here.start
        cuts = torch.quantile(seen, torch.arange(count).double() / count)
        cuts[0] -= 4 * float(seen.std())  # everybody is above it
        weight[here], bias[here] = _SMALL * u, -_SMALL * cuts[:, None].squeeze(1)
        follows += [*range(here.start + 1, here.stop), -1]
    # The mean of every direction's rows, carried through the layers between.
    for before, name, layer in zip(head.layers, head.names[1:-1], head.layers[1:-1], strict=False):
        between = values[parameter_name(name, "weight")]
        for into, out_of in zip(
            _parted(layer.out_features, groups), _parted(before.out_features, groups), strict=True
        ):
            between[into, out_of] = 1.0 / (out_of.stop - out_of.start)
    # Then slopes for every class, of which no two classes have the same ratios.
    slopes = _slopes(classes, groups, generator=generator)  # (classes, G)
    last = values[parameter_name(head.names[-1], "weight")]
    middle = float((features @ weight.T + bias).clamp_min(0).mean()) or _SMALL
    for g, here in enumerate(_parted(last.shape[1], groups)):
        last[:, here] = slopes[:, g, None] / (2 * middle * groups * (here.stop - here.start))
    return tuple(follows)


def _parted(rows: int, groups: int) -> list[slice]:
    """Rows cut into so many parts, one after the other."""
    parts = torch.arange(rows).tensor_split(groups)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in parts]


def _slopes(classes: int, groups: int, *, generator: torch.Generator) -> Tensor:
    """(C, G) numbers of size 1/2 to 1 with random signs, on both sides of 0 for every group."""
    size = 0.5 + 0.5 * torch.rand(classes, groups, generator=generator, dtype=torch.float64)
    sign = 1.0 - 2.0 * (torch.arange(classes)[:, None] + torch.arange(groups)).remainder(2)
    turned = torch.stack([torch.randperm(classes, generator=generator) for _ in range(groups)])
    return size * sign.double().gather(0, turned.T)


def _directions(
    features: Tensor, count: int, *, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(G, F) directions along which records lie at distance 1 or so, and (G, N) where they lie."""
    u = torch.randn(count, features.shape[1], generator=generator, dtype=torch.float64)
    along = u @ features.T
    size = along.std(dim=1, keepdim=True)
    size = torch.where(size > 0, size, torch.ones_like(size))
    return u / size, along / size


def _public(
    public: Tensor | None,
    shape: Sequence[int],
    *,
    bounds: tuple[Tensor, Tensor],
    generator: torch.Generator,
) -> Tensor:
    """(N, *shape) records that bins are cut by."""
    if public is not None and len(public) >= _FEWEST:
        return public.detach().cpu().double()
    box = build_box(bounds, shape, dtype=torch.float64)
    drawn = torch.rand(_DRAWN, *shape, generator=generator, dtype=torch.float64)
    return box.inputs(drawn)


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, p.detach().cpu()) for name, p in model.named_parameters()]


def _parts(model: nn.Module, shape: tuple[int, ...], *, low: Tensor) -> tuple[Trunk, _Head] | str:
    """What stands before the first linear layer, and the linear layers; or why there are none."""
    chain = _chain(model)
    if chain is None:
        return "its layers are not one chain (nn.Sequential)"
    first = next((i for i, (_, layer) in enumerate(chain) if isinstance(layer, nn.Linear)), None)
    if first is None:
        return "it has no linear layer"
    names, layers = list[str](), list[nn.Linear]()
    for at, (name, layer) in enumerate(chain[first:]):
        if at % 2 == 0 and isinstance(layer, nn.Linear) and layer.bias is not None:
            names.append(name)
            layers.append(layer)
        elif not (at % 2 == 1 and isinstance(layer, nn.ReLU)):
            return "behind its first linear layer stand others than linear ones with ReLUs between"
    if len(chain[first:]) % 2 == 0:
        return "it ends in a ReLU"
    if _shares(model, chain):
        return "layers share parameters"
    trunk = trunk_of(chain[:first], shape, low=low)
    if isinstance(trunk, str):
        return trunk
    if trunk.count != layers[0].in_features:
        return "its first linear layer does not take a whole record"
    return trunk, _Head(names, layers)


def _chain(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]] | None:
    """The layers in their order with their names, without those that do nothing."""
    if not isinstance(model, nn.Sequential):
        known = type(model).__module__.startswith("torch.nn.modules")
        return [(prefix, model)] if known and not list(model.children()) else None
    found = list[tuple[str, nn.Module]]()
    for name, layer in model.named_children():
        if isinstance(layer, nn.Identity) or (isinstance(layer, nn.Dropout) and layer.p == 0):
            continue
        inside = _chain(layer, parameter_name(prefix, name))
        if inside is None:
            return None
        found += inside
    return found
