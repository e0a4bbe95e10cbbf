"""A crafted convolutional network whose first layer's gradient holds pieces of one record.

Pooling keeps the largest of several places, so the first linear layer sees no record whole. But the
first convolution does, and its gradient is read:

    kernel 0, bias 1    every output is the same number, and of equals pooling keeps the first
    one path            channel k goes on through one place of every later kernel, and one input of
                        the first linear layer, to the logits

so that channel k's gradient is d [patch, 1] for the patch at one known place, and the quotient
gives the patch. A round shows as many patches as there are channels; several rounds of one record
show it: 9 for a LeNet-5 at 28 x 28, 49 patches in six channels. Pixels at the edge may be met by no
path: there the last row and column, 55 pixels. One round more with a model that is drawn at random
tells them, since all others are known by then (`exact.imprinted`).

This is of one record: those of a batch would be added, each with a factor of its own.

Shape letters: S channels, F weights of a channel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..problem.layers import parameter_name
from ..problem.problem import Imprint

Chain = Sequence[tuple[str, nn.Module]]

_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus)
_GENTLE = 0.1  # size of the logits where activations pass numbers on
_AT_RANDOM = 3  # rounds that tell the pixels at the edge
_SEEN = 0.8  # share of the pixels that patches have to show
_IMAGE = 3  # dimensions: channels, height, width


class _Path(NamedTuple):
    """Along one side: where a feature looks, from the last layer before the linear one down.

    place is a row (or column) of the first convolution's output, feature one of the linear layer's
    input, and kernels are the row of every later convolution's kernel, first to last.
    """

    place: int
    feature: int
    kernels: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """How the pieces of a record are shown.

    Attributes:
        rows, columns: paths whose patches cover a record.
        first: the first convolution, by name.
        convolutions: the later ones.
        linears: the linear layers.
        size: (channels, height, width) of the first linear layer's input.
        shape: of a record.
        channels: how many pieces a round shows.
    """

    rows: tuple[_Path, ...]
    columns: tuple[_Path, ...]
    first: tuple[str, nn.Conv2d]
    convolutions: tuple[tuple[str, nn.Conv2d], ...]
    linears: tuple[tuple[str, nn.Linear], ...]
    size: tuple[int, ...]
    shape: tuple[int, ...]
    channels: int

    @property
    def seen(self) -> float:
        """Share of the pixels that patches show."""
        _, first = self.first
        met = [
            {p for path in paths for p in _met(first, side, path.place).tolist()}
            & set(range(self.shape[1 + side]))
            for side, paths in enumerate((self.rows, self.columns))
        ]
        return len(met[0]) * len(met[1]) / (self.shape[1] * self.shape[2])

    @property
    def rounds(self) -> int:
        """In how many rounds all of a record is shown."""
        return -(-len(self.rows) * len(self.columns) // self.channels) + _AT_RANDOM * (
            self.seen < 1
        )

    def models(
        self, model: nn.Module, *, classes: int, generator: torch.Generator
    ) -> list[Imprint]:
        """One crafted model for each round."""
        pieces = list(itertools.product(self.rows, self.columns))
        made = [
            self._model(model, pieces[at : at + self.channels], classes=classes)
            for at in range(0, len(pieces), self.channels)
        ]
        if self.seen < 1:
            made += [self._at_random(model, generator) for _ in range(_AT_RANDOM)]
        return made

    def _model(
        self, model: nn.Module, pieces: Sequence[tuple[_Path, _Path]], *, classes: int
    ) -> Imprint:
        # All weights are zero but those on the pieces' paths.
        values = {
            name: torch.zeros_like(p, dtype=torch.float64, device="cpu")
            for name, p in model.named_parameters()
        }
        name, first = self.first
        values[parameter_name(name, "bias")].fill_(1.0)
        into = values[parameter_name(self.linears[0][0], "weight")]
        last = values[parameter_name(self.linears[-1][0], "weight")]
        slopes = _slopes(classes)
        places = torch.full((first.out_channels, first.weight[0].numel()), -1)
        # Each piece has a channel, a path of kernels and a feature of the first linear layer.
        for channel, (row, column) in enumerate(pieces):
            for at, (of, _) in enumerate(self.convolutions):
                kernel = values[parameter_name(of, "weight")][channel, channel]
                kernel[row.kernels[at], column.kernels[at]] = 1.0
            feature = (channel * self.size[1] + row.feature) * self.size[2] + column.feature
            if len(self.linears) == 1:
                into[:, feature] = _GENTLE * slopes / len(pieces)
            else:
                into[0, feature] = _GENTLE / len(pieces)
            places[channel] = self._places(row.place, column.place)
        # Further linear layers pass one number on.
        for of, _ in self.linears[1:-1]:
            values[parameter_name(of, "weight")][0, 0] = 1.0
        if len(self.linears) > 1:
            last[:, 0] = slopes
        slices = slices_of(values)
        return Imprint(
            parameters=torch.cat([value.flatten() for value in values.values()]),
            weight=slices[parameter_name(name, "weight")],
            bias=slices[parameter_name(name, "bias")],
            follows=(-1,) * first.out_channels,
            inputs_of=self._record,
            places=places,
        )

    def _at_random(self, model: nn.Module, generator: torch.Generator) -> Imprint:
        """A model whose first linear layer is read: its input, a number of all pixels each."""
        drawn = {name: _drawn(name, p, generator) for name, p in model.named_parameters()}
        name, layer = self.linears[0]
        return Imprint(
            parameters=torch.cat(list(drawn.values())),
            weight=slices_of(drawn)[parameter_name(name, "weight")],
            bias=slices_of(drawn)[parameter_name(name, "bias")],
            follows=(-1,) * layer.out_features,
            inputs_of=self._record,
        )

    def _record(self, pixels: Tensor) -> Tensor:
        """(*shape) of the first so many pixels; none for the others."""
        whole = pixels.new_full((math.prod(self.shape),), math.nan)
        whole[: len(pixels)] = pixels
        return whole.reshape(self.shape)

    def _places(self, row: int, column: int) -> Tensor:
        """(F,) for each weight the pixel, counted over the record, that it meets; -1 for none."""
        _, first = self.first
        rows = _met(first, 0, row)[:, None]
        columns = _met(first, 1, column)
        inside = (rows >= 0) & (rows < self.shape[1]) & (columns >= 0) & (columns < self.shape[2])
        pixel = rows * self.shape[2] + columns
        channel = torch.arange(self.shape[0])[:, None, None] * self.shape[1] * self.shape[2]
        return torch.where(inside, channel + pixel, -1).flatten()


def tiling_of(chain: Chain, shape: tuple[int, ...]) -> Tiling | str:
    """How the pieces of a record can be shown, or why they cannot.

    Args:
        chain: the layers of a network with their names.
    """
    if len(shape) != _IMAGE:
        return "its first layer takes no rows of numbers"
    if not chain or not isinstance(chain[0][1], nn.Conv2d):
        return "its first layer is no convolution"
    # Convolutions and pools, then linear layers, with activations between.
    trunk, head = list[tuple[str, nn.Module]](), list[tuple[str, nn.Linear]]()
    sizes: list[tuple[int, ...]] = [shape]
    for name, layer in chain:
        if isinstance(layer, _ACTIVATIONS):
            continue
        if isinstance(layer, nn.Flatten) and not head and layer.start_dim == 1:
            continue
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            head.append((name, layer))
        elif isinstance(layer, nn.Conv2d | nn.MaxPool2d) and not head and _is_plain(layer):
            trunk.append((name, layer))
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else sizes[-1][0]
            sides = (_out(layer, side, n) for side, n in enumerate(sizes[-1][1:]))
            sizes.append((channels, *sides))
        else:
            return f"{_kind(layer)} stands in it"
    if not head:
        return "it has no linear layer"
    if head[0][1].in_features != math.prod(sizes[-1]):
        return "its first linear layer does not take all of the layer before"
    if isinstance(chain[-1][1], _ACTIVATIONS):
        return "it ends in an activation"
    (name, first), *rest = trunk
    assert isinstance(first, nn.Conv2d)  # noqa: S101 # the caller's chain begins with one
    if first.bias is None:
        return "its first convolution has no bias"
    # Paths that cover every row and column of pixels.
    rows, columns = (
        _covering(
            first, _paths(rest, side, [size[1 + side] for size in sizes[1:]]), side, shape[1 + side]
        )
        for side in (0, 1)
    )
    later = tuple((of, layer) for of, layer in rest if isinstance(layer, nn.Conv2d))
    tiling = Tiling(
        rows=rows,
        columns=columns,
        first=(name, first),
        convolutions=later,
        linears=tuple(head),
        size=sizes[-1],
        shape=shape,
        channels=min(layer.out_channels for layer in (first, *(of for _, of in later))),
    )
    if tiling.seen < _SEEN:
        return "its strides or pooling leave too many pixels that no patch meets"
    return tiling


def _drawn(name: str, parameter: Tensor, generator: torch.Generator) -> Tensor:
    """Small weights, and biases above 0 where hardly an activation ever turns; flattened."""
    if name.endswith("bias"):
        return torch.ones(parameter.numel(), dtype=torch.float64)
    drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return (parameter[0].numel() ** -0.5 * (2 * drawn - 1)).flatten()


def _slopes(classes: int) -> Tensor:
    """(C,) of the logits, of both signs: no label's is their mean, at which nothing is sent."""
    every = torch.arange(classes, dtype=torch.float64)
    return (1 - 2 * (every % 2)) * (0.6 + 0.4 * every / classes)


def _paths(rest: Chain, side: int, lengths: Sequence[int]) -> list[_Path]:
    """The places of the first convolution's output that features can look at, one path each.

    Args:
        rest: the later layers.
        side: 0 for rows, 1 for columns.
        lengths: of the input of every later layer, and of the last one's output.
    """
    found = {at: _Path(at, at, ()) for at in range(lengths[-1])}
    for (_, layer), length in zip(reversed(rest), reversed(lengths[:-1]), strict=True):
        step, pad, kernel, gap = _numbers(layer, side)
        before = dict[int, _Path]()
        taken = range(kernel) if isinstance(layer, nn.Conv2d) else range(1)
        for at, path in found.items():
            for k in taken:
                place = step * at - pad + gap * k
                kernels = (k, *path.kernels) if isinstance(layer, nn.Conv2d) else path.kernels
                if 0 <= place < length:  # within, where it is the largest of its window
                    before.setdefault(place, _Path(place, path.feature, kernels))
        found = before
    return list(found.values())


def _covering(
    first: nn.Conv2d, paths: Sequence[_Path], side: int, length: int
) -> tuple[_Path, ...]:
    """Few paths whose patches meet every pixel along a side that any path meets."""
    every, chosen = set(range(length)), list[_Path]()
    meets = {path: every.intersection(_met(first, side, path.place).tolist()) for path in paths}
    left = {pixel for met in meets.values() for pixel in met}
    while left:
        # The first pixel that is left, by whom meets most that is left.
        able = [path for path in paths if min(left) in meets[path]]
        best = max(able, key=lambda path: len(meets[path] & left))
        chosen.append(best)
        left -= meets[best]
    return tuple(chosen)


def _met(first: nn.Conv2d, side: int, place: int) -> Tensor:
    """(kernel,) the pixels along a side that an output of the first convolution meets."""
    step, pad, kernel, gap = _numbers(first, side)
    return step * place - pad + gap * torch.arange(kernel)


def _numbers(layer: nn.Module, side: int) -> tuple[int, int, int, int]:
    """Stride, padding, kernel and dilation along a side."""

    def number(of: object) -> int:
        value = of[side] if isinstance(of, tuple) else of
        assert isinstance(value, int)  # noqa: S101 # words are refused before
        return value

    assert isinstance(layer, nn.Conv2d | nn.MaxPool2d)  # noqa: S101 # no other is in a trunk
    return (
        number(layer.stride),
        number(layer.padding),
        number(layer.kernel_size),
        number(layer.dilation),
    )


def _out(layer: nn.Module, side: int, length: int) -> int:
    step, pad, kernel, gap = _numbers(layer, side)
    return (length + 2 * pad - gap * (kernel - 1) - 1) // step + 1


def _is_plain(layer: nn.Conv2d | nn.MaxPool2d) -> bool:
    """Whether all that a layer does is known here."""
    if isinstance(layer, nn.MaxPool2d):
        padded = layer.padding not in (0, (0, 0))
        return not (padded or layer.ceil_mode or layer.return_indices)
    words = isinstance(layer.padding, str) or layer.padding_mode != "zeros"
    return layer.groups == 1 and not words


def _kind(layer: nn.Module) -> str:
    if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.Linear):
        return f"a {type(layer).__name__} of a kind that is not known here"
    return type(layer).__name__


def slices_of(values: Mapping[str, Tensor]) -> dict[str, slice]:
    """Where each lies among all of them, flattened."""
    at, found = 0, dict[str, slice]()
    for name, value in values.items():
        found[name] = slice(at, at + value.numel())
        at += value.numel()
    return found
