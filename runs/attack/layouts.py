"""Names and layouts of other frameworks, as those of a PyTorch model.

Known are names of wrappers, lists without names, one vector of all parameters, and layers as Keras
and Flax name them, whose kernels have their outputs last: (inputs, outputs) of a dense layer,
(height, width, inputs, outputs) of a convolution. Pictures are (height, width, channels) there, so
that a dense layer behind a flattened picture has its inputs in another order, too.

Shape letters: D parameters, C channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...privacy.errors import InputError, within
from ...privacy.files import check_memory
from ...training.engine.tensor_file import TensorFile
from ..requests import BATCH, BatchRequest, GradientRequest
from .prior_records import read_tensors

# What is known about a batch whose gradients were intercepted: its size, inputs and defence.


_MOST_STEPS = 100
_LEAST_COPIES = 4  # of what is searched for: itself, its gradient, and two moments
_SCALES = (("mean", "std"), ("low", "high"))
_BEYOND = 0.01  # of the range, that rounding may leave
_Held = Mapping[str, Any]  # what is said by name, each of the type that its reader gives


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchFacts:
    """What is known about an intercepted batch, from the metadata and the options.

    Attributes:
        input_shape: of one record, channels first.
        classes: number of logits, None where the gradients have to tell.
        records: number B of records.
        clip_norm: L2 bound, None where nothing is clipped.
        clip_batch: whether the mean of the batch is clipped in place of each record.
        noise_std: on each coordinate of the mean.
        local_steps: number of gradient steps of which the mean gradient is held.
        local_rate: their size; 0 where there is one alone.
        labels: (B,), None where they are unknown.
        low, high: what a pixel of 0 and of 1 is fed as; one value, or one per channel.
    """

    input_shape: tuple[int, ...]
    classes: int | None
    records: int
    clip_norm: float | None
    clip_batch: bool
    noise_std: float
    labels: tuple[int, ...] | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    local_steps: int = 1
    local_rate: float = 0.0

    def __post_init__(self) -> None:
        if not self.input_shape or min(self.input_shape) < 1:
            raise InputError(f"input_shape={self.input_shape} must hold positive sides: 3,32,32")
        within("records", self.records, "[1, inf)", ": the size of the batch")
        check_memory(
            f"a search for records={self.records} of input_shape={self.input_shape}",
            _LEAST_COPIES * 4 * self.records * math.prod(self.input_shape),
            "lower records, or input_shape",
        )
        if self.clip_norm is not None:
            within("clip_norm", self.clip_norm, "(0, inf)", "leave it out if nothing is clipped")
        if self.clip_batch and self.clip_norm is None:
            raise InputError("clip_batch says what is clipped; give clip_norm too")
        self._check_steps()
        within("noise_std", self.noise_std, "[0, inf)")
        if self.labels is not None and len(self.labels) != self.records:
            raise InputError(
                f"{len(self.labels)} labels for records={self.records}; give one for each record"
            )
        for name, values in (("low", self.low), ("high", self.high)):
            if len(values) not in (1, self.input_shape[0]):
                raise InputError(
                    f"{len(values)} values of mean, std or {name} for {self.input_shape[0]} "
                    "channels; give one, or one per channel"
                )
            if not all(math.isfinite(value) for value in values):
                raise InputError(f"{name}={values} must be finite")
        if any(low >= high for low, high in zip(*self._ends(), strict=True)):
            raise InputError(f"low={self.low} must be below high={self.high} in every channel")

    def _check_steps(self) -> None:
        if not 1 <= self.local_steps <= _MOST_STEPS:
            raise InputError(
                f"local_steps={self.local_steps} must lie in 1 to {_MOST_STEPS}: each is "
                "differentiated through"
            )
        if self.local_steps == 1 and self.local_rate != 0:
            raise InputError(
                f"local_rate={self.local_rate} is the size of several local steps; give "
                "local_steps too, or leave it out"
            )
        if self.local_steps > 1 and not 0 < self.local_rate < math.inf:
            raise InputError(
                f"local_rate={self.local_rate} must be finite and positive where local_steps="
                f"{self.local_steps}: the size of each step"
            )
        if self.local_steps > 1 and (self.clip_norm is not None or self.noise_std != 0):
            raise InputError(
                f"local_steps={self.local_steps} goes without clip_norm and noise_std: what "
                "several steps changed is attacked where it was sent as it was"
            )

    def _ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        count = max(len(self.low), len(self.high))
        low, high = (v if len(v) == count else v * count for v in (self.low, self.high))
        return low, high

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(low, high) of the network's inputs, broadcastable to one record."""
        rest = (1,) * (len(self.input_shape) - 1)
        low, high = (torch.tensor(v, dtype=torch.float64) for v in (self.low, self.high))
        return low.reshape(-1, *rest), high.reshape(-1, *rest)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Pixels in [0, 1] of inputs (..., *input_shape) of the network."""
        low, high = self.bounds()
        return ((inputs.double() - low) / (high - low)).clamp(0, 1)

    def beyond(self, inputs: Tensor) -> list[str]:
        """That records lie outside of the declared range, which cuts their pixels; or nothing."""
        low, high = self.bounds()
        units = (inputs.double() - low) / (high - low)
        least, most = float(units.min()), float(units.max())
        if least >= -_BEYOND and most <= 1 + _BEYOND:
            return []
        return [
            f"pixels run from {least:.3g} to {most:.3g} and are cut at 0 and 1 in pictures and "
            "scores; say with --mean and --std (or --low and --high) how the network is fed"
        ]


def facts_of(
    metadata: Mapping[str, str], request: BatchRequest
) -> tuple[BatchFacts, tuple[str, ...]]:
    """What the metadata of a file and a request say together.

    Args:
        metadata: text by name, those of the fields of a `BatchRequest`.
        request: what is said besides, None where a field is not given; it wins.

    Returns:
        The facts, and the metadata that are not read.

    Raises:
        ValueError: A value cannot be read, is out of range, or is missing.
    """
    # The request wins over metadata; of two ways to scale it wins as a whole.
    said = {name.lower().replace("-", "_"): text for name, text in metadata.items()}
    held = {name: of.read(said[name]) for name, of in BATCH.items() if name in said}
    given = {name: value for name in BATCH if (value := getattr(request, name)) is not None}
    for pair, other in (_SCALES, _SCALES[::-1]):
        if any(name in given for name in pair):  # the options' form of the range wins whole
            held = {name: value for name, value in held.items() if name not in other}
    held.update(given)
    if "input_shape" not in held:
        raise InputError(
            "input_shape is not given; say the shape of one record, channels first: "
            "--input-shape 3,32,32, or the file's metadata"
        )
    low, high = _range(held)
    labels = held.get("labels")
    facts = BatchFacts(
        input_shape=tuple(held["input_shape"]),
        classes=held.get("classes"),
        records=held.get("records", 1 if labels is None else len(labels)),
        clip_norm=held.get("clip_norm"),
        clip_batch=held.get("clip_batch", False),
        noise_std=held.get("noise_std", 0.0),
        labels=None if labels is None else tuple(labels),
        low=low,
        high=high,
        local_steps=held.get("local_steps", 1),
        local_rate=held.get("local_rate", 0.0),
    )
    return facts, tuple(name for name in said if name not in BATCH and name != "format")


def _range(held: _Held) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What a pixel of 0 and of 1 is fed as."""
    if not any(name in held for name in _SCALES[0]):
        return tuple(held.get("low", (0.0,))), tuple(held.get("high", (1.0,)))
    if any(name in held for name in _SCALES[1]):
        raise InputError("mean and std say the same as low and high; give one pair of the two")
    mean, std = tuple(held.get("mean", (0.0,))), tuple(held.get("std", (1.0,)))
    if min(std) <= 0:
        raise InputError(f"std={std} must be positive in every channel")
    count = max(len(mean), len(std))
    if {len(mean), len(std)} - {1, count}:
        raise InputError(f"mean has {len(mean)} values and std {len(std)}; give one per channel")
    mean, std = (v if len(v) == count else v * count for v in (mean, std))
    pairs = list(zip(mean, std, strict=True))
    return tuple(-m / s for m, s in pairs), tuple((1 - m) / s for m, s in pairs)


# What frameworks and loops put around the names of parameters, by what is meant.
_KINDS: Mapping[str, str] = {
    "gradient": "gradient", "gradients": "gradient", "grad": "gradient", "grads": "gradient",
    "parameter": "parameter", "parameters": "parameter", "params": "parameter",
    "weights": "parameter", "state_dict": "parameter",
}  # fmt: skip
_CHECKPOINTS = ("state_dict", "model_state_dict", "model")  # beside an optimiser's state
_PAIR = {"before", "after"}
_LAST = {"kernel"}  # whose outputs come last
_LEAVES: Mapping[str, str] = {
    "kernel": "weight", "embedding": "weight", "embeddings": "weight", "weight": "weight",
    "scale": "weight", "gamma": "weight", "bias": "bias", "beta": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var",
    "mean": "running_mean", "var": "running_var",
}  # fmt: skip
CONVERT = (
    'convert it:\n  arrays["gradient.NAME"] = kernel.T  # of a convolution kernel.transpose(3, 2, '
    '0, 1)\n  numpy.savez("gradients.npz", **arrays)'
)


def with_kinds(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, where some are gradients by another word, as `gradient.` and `parameter.`."""
    parts = {name: name.partition(".") for name in tensors}
    kinds = {_KINDS.get(first) for first, _, _ in parts.values()}
    if "gradient" not in kinds or None in kinds:
        return dict(tensors)
    return {f"{_KINDS[a]}.{rest or '0'}": tensors[name] for name, (a, _, rest) in parts.items()}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layout:
    """Names and shapes of a model, into which those of a file are turned.

    Attributes:
        model: the network, in evaluation mode.
        notes: what was taken to be so, in sentences; it grows.
    """

    model: nn.Module
    input_shape: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    def fit(self, path: Path, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors under the model's names and in its layout, as they are where none is known.

        Args:
            path: of the file, for a refusal.
            held: by name, of one kind.

        Raises:
            ValueError: they are of another layout, and not told apart by shapes.
        """
        shapes = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        buffers = {name for name, _ in self.model.named_buffers(remove_duplicate=False)}
        known = set(shapes) | buffers | set(self.model.state_dict())
        # Names that are the model's, but for a common beginning, need no layout.
        found = _unwrapped(held, known)
        if set(shapes) <= set(found) or not found:
            return found
        # Numbers for names: one flat vector, or as many tensors as the model has.
        if all(name.isascii() and name.isdecimal() for name in found):
            first = next(iter(found.values()))
            if len(found) == 1 and first.shape == (sum(map(_size, shapes.values())),):
                parts = first.split([_size(shape) for shape in shapes.values()])
                return {n: p.reshape(shapes[n]) for n, p in zip(shapes, parts, strict=True)}
            if len(found) == len(shapes):
                order = sorted(found, key=lambda name: (len(name), name))
                return self._in_order(path, [found[name] for name in order], shapes)
        # Keras and Flax name the leaves of layers their own way.
        leaves = {name.rpartition(".")[2] for name in found}
        if leaves & _LAST and leaves <= _LEAVES.keys():
            return self._by_layers(path, found, shapes)
        return found

    def _in_order(
        self, path: Path, held: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        """A list without names, by order, or by shapes that are all different."""
        wanted = list(shapes.values())
        forms = {"as they are": list(held), "outputs last": [_turned(tensor) for tensor in held]}
        fits = {how: of for how, of in forms.items() if [tuple(t.shape) for t in of] == wanted}
        if not fits and len(set(wanted)) == len(wanted):
            for how, of in forms.items():
                by_shape = {tuple(tensor.shape): tensor for tensor in of}
                if by_shape.keys() == set(wanted):
                    fits[how] = [by_shape[shape] for shape in wanted]
        if len(fits) != 1 and not (fits and path.suffix in (".pt", ".pth")):
            sides = [tuple(t.shape) for t in held]
            why = "as they are and with outputs last" if fits else "neither by order nor by shape"
            raise InputError(
                f"{path} holds {len(held)} tensors without names, of shapes {sides[:4]}, which fit "
                f"the model's {wanted[:4]} {why}; name them, and {CONVERT}"
            )
        how, chosen = next(iter(fits.items()))
        self._note(
            f"the {len(held)} tensors of {path.name} have no names and are taken in the order of "
            f"named_parameters(), {how}"
        )
        named = dict(zip(shapes, chosen, strict=True))
        return named if how == "as they are" else self._reordered(named)

    def _by_layers(
        self, path: Path, held: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Tensor]:
        """Layers of Keras or Flax, each as the first of the model that has its shapes."""
        # Leaves by layer, named and turned as PyTorch has them.
        layers: dict[str, dict[str, Tensor]] = {}
        for name, tensor in held.items():
            layer, _, leaf = name.rpartition(".")
            turned = _turned(tensor) if leaf in _LAST else tensor
            layers.setdefault(layer, {})[_LEAVES[leaf]] = turned
        free: dict[str, dict[str, tuple[int, ...]]] = {}
        for name, shape in shapes.items():
            layer, _, leaf = name.rpartition(".")
            free.setdefault(layer, {})[leaf] = shape
        found, said = dict[str, Tensor](), list[str]()
        alike = dict[str, str]()  # by shapes the first layer that has them
        # Each layer, in turn, is the first of the model's that is left and has its shapes.
        for layer in _in_turn(layers):
            learned = {
                leaf: tuple(tensor.shape)
                for leaf, tensor in layers[layer].items()
                if not leaf.startswith("running")
            }
            place = next((name for name, of in free.items() if of == learned), None)
            if place is None:
                raise InputError(
                    f"{path}: {layer!r} of {learned} in PyTorch's order fits no layer of the model "
                    f"that is left; of another kind of layer {CONVERT}"
                )
            del free[place]
            other = alike.setdefault(str(learned), layer)
            if _stem(other) != _stem(layer):
                self._note(
                    f"{other!r} and {layer!r} of {path.name} have the same shapes and are taken in "
                    "the order of the file; name them as the model does if theirs is another"
                )
            said.append(f"{layer or 'kernel'} is {place or 'the model'}")
            prefix = f"{place}." if place else ""
            found |= {f"{prefix}{leaf}": tensor for leaf, tensor in layers[layer].items()}
        self._note(
            f"layers of {path.name} are those of the model by their shapes and order "
            f"({', '.join(said[:_NAMED])}{' and so on' if len(said) > _NAMED else ''}), and "
            "kernels were turned to outputs first"
        )
        return self._reordered(found)

    def _reordered(self, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """Dense layers behind a flattened picture with their inputs channels first."""
        for name, (channels, *sides) in _behind_pictures(self.model, self.input_shape).items():
            if name in held and channels > 1:
                apart = held[name].unflatten(1, (*sides, channels))
                held[name] = apart.movedim(-1, 1).flatten(1)
                self._note(
                    f"the inputs of {name!r} are taken as a flattened picture of channels last, "
                    f"{(*sides, channels)}"
                )
        return held

    def _note(self, said: str) -> None:
        if said not in self.notes:
            self.notes.append(said)


_NAMED = 4


def _size(shape: Sequence[int]) -> int:
    return torch.Size(shape).numel()


def _turned(tensor: Tensor) -> Tensor:
    """(*sides, inputs, outputs) as (outputs, inputs, *sides); of one dimension as it is."""
    places = range(tensor.ndim)
    return tensor.permute(*places[:-3:-1], *places[:-2]) if tensor.ndim > 1 else tensor


def _stem(word: str) -> str:
    return word.rstrip("0123456789").rstrip("_")


def _in_turn(layers: Iterable[str]) -> list[str]:
    """Layers as the file has them, but `Conv_2` before `Conv_10`, which frameworks sort as text."""
    stems: dict[tuple[int, str], int] = {}

    def place(layer: str) -> list[tuple[int, int]]:
        return [
            (
                stems.setdefault((depth, _stem(word)), len(stems)),
                int(word[len(_stem(word)) :].lstrip("_")[:9] or -1),
            )
            for depth, word in enumerate(layer.split("."))
        ]

    return sorted(layers, key=place)


def _unwrapped(held: Mapping[str, Tensor], known: set[str]) -> dict[str, Tensor]:
    """Names without what all of them begin with and no name of the model does."""
    found, first = dict(held), {name.partition(".")[0] for name in known}
    if {name.partition(".")[0] for name in found} == {"params", "batch_stats"}:  # as Flax has them
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    while found and not set(found) & known:
        begins = {name.partition(".")[0] for name in found}
        if len(begins) > 1 or begins <= first or not all("." in name for name in found):
            break
        found = {name.partition(".")[2]: tensor for name, tensor in found.items()}
    return found


def _behind_pictures(model: nn.Module, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """By name the weights of linear layers whose inputs are a flattened (C, *sides)."""
    if len(input_shape) < 2:  # a vector, or tokens
        return {}
    watched = _Flattened()
    kind = next((p.dtype for p in model.parameters()), torch.float32)
    with torch.no_grad(), watched:
        model(torch.zeros(2, *input_shape, dtype=kind))
    return {
        name: watched.weights[id(parameter)]
        for name, parameter in model.named_parameters()
        if id(parameter) in watched.weights
    }


class _Flattened(TorchFunctionMode):
    """Follows a flattened picture to the linear layer that takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, tuple[int, ...]] = {}
        self._pictures: list[tuple[Tensor, tuple[int, ...]]] = []  # held, so that ids stay theirs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = args[0] if args else None
        if not isinstance(given, Tensor) or not isinstance(made, Tensor):
            return made
        flat = given.ndim > 2 and made.shape == (
            len(given),
            _size(given.shape[1:]),
        )  # (N, features)
        sides = tuple(given.shape[1:]) if flat else self._sides(given)
        if sides and func is functional.linear:
            self.weights[id(args[1])] = sides
        elif sides and made.shape == (len(made), _size(sides)):
            self._pictures.append((made, sides))
        return made

    def _sides(self, tensor: Tensor) -> tuple[int, ...]:
        return next((sides for one, sides in self._pictures if one is tensor), ())


def told_apart(file: TensorFile) -> TensorFile:
    """The file with what is said of the batch by small tensors, as NumPy saves it, as metadata."""
    alone = {name.partition(".")[0] for name in file.tensors} & (_KINDS.keys() | _PAIR)
    said = {
        name: ",".join(map(str, tensor.flatten().tolist())).lower()
        for name, tensor in file.tensors.items()
        if name in (*BATCH, *_RATES) and tensor.ndim <= 1 and (alone or name not in _OF_SCALES)
    }
    tensors = {name: tensor for name, tensor in file.tensors.items() if name not in said}
    return replace(file, tensors=tensors, metadata={**file.metadata, **said})


_OF_SCALES = ("mean", "std", "low", "high")  # which a layer may call its own
_RATES = ("lr", "learning_rate", "local_rate")


def whole_model(file: TensorFile) -> TensorFile:
    """A checkpoint's model alone, without an optimiser's state; another file as it is."""
    for kind in _CHECKPOINTS:
        held = {n: t for n, t in file.tensors.items() if n.startswith(f"{kind}.")}
        others = {name.partition(".")[0] for name in file.tensors} - {kind}
        if held and others and not others & (_KINDS.keys() | _PAIR):
            return replace(file, tensors={n.partition(".")[2]: t for n, t in held.items()})
    return file


def between(
    file: TensorFile, request: GradientRequest
) -> tuple[TensorFile, GradientRequest, list[str]]:
    """The gradient between two models, where a file or two hold these; else what was given.

    Raises:
        ValueError: the rate is not given, or the models are not of one network.
    """
    both = {name.partition(".")[0] for name in file.tensors} == _PAIR
    if not both and request.before is None:
        return file, request, []
    rates = [file.metadata[name] for name in _RATES if name in file.metadata]
    rate = request.local_rate or (BATCH["local_rate"].read(rates[0]) if rates else None)
    if rate is None or (both and request.before is not None):
        raise InputError(
            f"{file.path} holds a model after a step, and the one before it is to be given once, "
            "with the learning rate: --before FILE, or `before.NAME` and `after.NAME` in the "
            "file, and --local-rate"
        )
    said = {name: text for name, text in file.metadata.items() if name not in _RATES}
    steps = request.local_steps or BATCH["local_steps"].read(said.get("local_steps", "1"))
    start = None if request.before is None else read_tensors(request.before)
    found = replace(_stepped(file, start, rate=rate, steps=steps), metadata=said)
    told = replace(request, local_rate=rate if steps > 1 else None)
    return (
        found,
        told,
        [
            "the difference of the two models is taken as that of plain gradient steps; momentum, "
            "weight decay and Adam make another one"
        ],
    )


def _stepped(file: TensorFile, before: TensorFile | None, *, rate: float, steps: int) -> TensorFile:
    """Two models as the gradient between them: (before - after) / (steps rate).

    Args:
        file: the model after the steps, or `before.NAME` and `after.NAME`.
        before: the model before them; None where the file holds both.
        rate: size of a step.
        steps: how many.

    Raises:
        ValueError: a tensor is in one of the two alone, has another shape, or the rate is none.
    """
    within("local_rate", rate, "(0, inf)", ": the learning rate of the step between two models")
    if before is None:
        halves = {
            kind: {n.partition(".")[2]: t for n, t in file.tensors.items() if n.startswith(kind)}
            for kind in sorted(_PAIR)
        }
        after, start = halves["after"], halves["before"]
    else:
        after, start = dict(whole_model(file).tensors), dict(whole_model(before).tensors)
    apart = sorted(after.keys() ^ start.keys())
    apart += [n for n in after if n in start and after[n].shape != start[n].shape]
    if apart:
        raise InputError(
            f"{file.path}: {apart[0]!r} is not of one shape in the models before and after; give "
            "both of one network"
        )
    tensors = {f"parameter.{name}": tensor for name, tensor in start.items()}
    for name, tensor in after.items():
        if tensor.is_floating_point():
            moved = (start[name].double() - tensor.double()) / (rate * steps)
            tensors[f"gradient.{name}"] = moved.to(tensor.dtype)
    return replace(file, tensors=tensors)
