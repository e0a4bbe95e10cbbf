"""Names and layouts of other frameworks, as those of a PyTorch model.

Known are names of wrappers, lists without names, one vector of all parameters, and layers as Keras
and Flax name them, whose kernels have their outputs last: (inputs, outputs) of a dense layer,
(height, width, inputs, outputs) of a convolution. Pictures are (height, width, channels) there, so
that a dense layer behind a flattened picture has its inputs in another order, too.

Shape letters: D parameters, C channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ...privacy._validate import within
from ...privacy.errors import InputError
from ...training.engine.tensor_file import TensorFile
from ..requests import BATCH, GradientRequest
from .prior_records import read_tensors

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
        input_shape: of one record, channels first.
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
        if name in (*BATCH, *_RATES) and tensor.ndim <= 1 and (alone or name not in _SCALES)
    }
    tensors = {name: tensor for name, tensor in file.tensors.items() if name not in said}
    return replace(file, tensors=tensors, metadata={**file.metadata, **said})


_SCALES = ("mean", "std", "low", "high")  # which a layer may call its own
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
