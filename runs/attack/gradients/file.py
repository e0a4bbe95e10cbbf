"""Gradients from anywhere: a safetensors file of them, by the names of the model's parameters.

    gradient.NAME      of the parameter NAME of the model, in the shape that the model has it
    parameter.NAME     the value at which it was taken; of all parameters or of none
    0.gradient.NAME    of the first of several intercepts of one batch, 1. of the second, and so on;
                       parameters likewise, or without a number for all intercepts
    NAME               the same as gradient.NAME

What its metadata may say is in `options`.

Shape letters: K intercepts, D parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ....privacy.errors import InputError, InputTypeError
from ....training.engine.tensor_file import TensorFile

_KEY = re.compile(r"(?:(\d+)\.)?(gradient|parameter)\.(.+)", re.DOTALL)
_NAMED = 4
"""How many names an error lists."""


def gradients_of(file: TensorFile, model: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The gradients of a model, and the parameters at which they were taken.

    Args:
        file: as at the head of the module.
        model: gives names, shapes and order of the parameters.

    Returns:
        (K, D) gradients, and (K, D) parameters or None, in the order of ``named_parameters``.

    Raises:
        ValueError: The names or shapes are not those of the model, or every gradient is 0.
        TypeError: A gradient holds integers.

    >>> tensors = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    >>> file = TensorFile(path=Path("g.safetensors"), tensors=tensors, metadata={})
    >>> gradients_of(file, nn.Linear(3, 2))[0].sum().item()
    6.0
    """
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    gradients: dict[int | None, dict[str, Tensor]] = {}
    parameters: dict[int | None, dict[str, Tensor]] = {}
    plain = set(file.tensors) == set(shapes)  # a layer of the model may be called "gradient"
    for key, tensor in file.tensors.items():
        found = None if plain else _KEY.fullmatch(key)
        index, kind, name = (None, "gradient", key) if found is None else found.groups()
        into = gradients if kind == "gradient" else parameters
        held = into.setdefault(None if index is None else int(index), {})
        if name in held:
            raise InputError(f"{file.path} holds {kind} {name!r} twice; keep one of them")
        held[name] = tensor
    if not gradients:
        raise InputError(f"{file.path} holds parameters alone; save `gradient.NAME` beside them")
    order = _intercepts(file.path, gradients, parameters)
    double = any(tensor.dtype == torch.float64 for tensor in file.tensors.values())
    dtype = torch.float64 if double else torch.float32

    def flat(held: Mapping[str, Tensor], kind: str, index: int | None) -> Tensor:
        where = f"{file.path}: " if index is None else f"{file.path}, intercept {index}: "
        check_tensors(held, shapes, where=where, kind=kind)
        return torch.cat([held[name].to(dtype).flatten() for name in shapes])

    stacked = torch.stack([flat(gradients[k], "gradient", k) for k in order])
    for k, row in zip(order, stacked, strict=True):
        if not bool(row.any()):
            which = "" if k is None else f" of intercept {k}"
            raise InputError(
                f"{file.path}: every gradient{which} is 0; save them after the backward pass and "
                "before they are zeroed"
            )
    if not parameters:
        return stacked, None
    at = [k if k in parameters else None for k in order]
    return stacked, torch.stack([flat(parameters[k], "parameter", k) for k in at])


def _intercepts(
    path: Path,
    gradients: Mapping[int | None, object],
    parameters: Mapping[int | None, object],
) -> list[int | None]:
    if None in gradients and len(gradients) > 1:
        raise InputError(
            f"{path} holds gradients with and without the number of an intercept; number all of "
            "them, as in `0.gradient.NAME`"
        )
    order: list[int | None] = [None] if None in gradients else list(range(len(gradients)))
    if set(order) != set(gradients):
        numbers = ", ".join(str(k) for k in sorted(k for k in gradients if k is not None))
        raise InputError(f"{path} holds intercepts {numbers}; number them from 0 without a gap")
    stray = sorted(k for k in parameters if k is not None and k not in gradients)
    if stray:
        raise InputError(f"{path} holds parameters of intercept {stray[0]}, but no gradient of it")
    lacking = [k for k in order if k not in parameters and None not in parameters]
    if parameters and lacking:
        raise InputError(f"{path} holds no parameters of intercept {lacking[0]}; give all or none")
    if None in parameters and len(parameters) > 1:
        raise InputError(f"{path} holds parameters with and without a number; keep one form")
    return order


def check_tensors(
    held: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    where: str,
    kind: str,
) -> None:
    """Refuse tensors that are not those of a model.

    Args:
        held: by name.
        where: file, at the head of a sentence.
        kind: what the tensors are, in the singular.

    Raises:
        ValueError: A name is missing, there is one too many, or a shape is another.
        TypeError: A tensor holds integers.
    """
    unexpected = [name for name in held if name not in shapes]
    missing = [name for name in shapes if name not in held]
    if unexpected or missing:
        parts = [f"{len(missing)} of {len(shapes)} missing: {_listed(missing)}"] * bool(missing)
        parts += [f"{len(unexpected)} unknown to the model: {_listed(unexpected)}"] * bool(
            unexpected
        )
        raise InputError(
            f"{where}the {kind}s are not those of the model, {'; '.join(parts)}; give one for each "
            "of its named_parameters(), of all layers"
        )
    wrong = [name for name, shape in shapes.items() if tuple(held[name].shape) != shape]
    if wrong:
        listed = [f"{n!r} is {tuple(held[n].shape)}, must be {shapes[n]}" for n in wrong[:_NAMED]]
        turned = all(sorted(held[n].shape) == sorted(shapes[n]) for n in wrong)
        raise InputError(
            f"{where}{len(wrong)} {kind}s have not the model's shape: {'; '.join(listed)}; "
            + ("transpose to PyTorch's order, outputs first" if turned else "is it another model?")
        )
    for name, tensor in held.items():
        if not tensor.is_floating_point():
            raise InputTypeError(
                f"{where}{kind} {name!r} is of {str(tensor.dtype).removeprefix('torch.')}, must "
                "be a floating-point type"
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
