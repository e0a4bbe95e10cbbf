"""Reference networks, and the flat vector of parameters that crosses a link.

Every network maps inputs (B, *input_shape) to logits (B, classes); the loss is the cross-entropy.
They are deterministic and treat the examples of a batch separately, so that a gradient can be
clipped per example: no dropout, no BatchNorm.

================  ==========================================================================
Name              Layers
================  ==========================================================================
``linear``        one fully connected layer: softmax regression
``mlp``           one hidden ReLU layer of 4 sqrt(inputs) units (32 for 8x8, 112 for 28x28)
``lenet``         LeNet-5 (LeCun et al., 1998), 61,706 parameters at 1x28x28, 10 classes
``sigmoid-lenet`` three 5x5 convolutions with sigmoids: the network of DLG (Zhu et al., 2019)
``cnn``           two 3x3 convolutions and two fully connected layers, ReLU
================  ==========================================================================

A name "module:function" calls ``function(input_shape, classes)`` of an importable module.

Where we differ from the papers: LeNet-5 has ReLU, max-pooling and full connections between its two
convolutions, as is usual today; the sigmoid LeNet takes other input shapes than 3x32x32.
"""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MODEL_NAMES", "build_model", "flatten", "unflatten", "validate_model"]

Shape = tuple[int, ...]


def build_model(
    name: str, *, input_shape: Shape, classes: int, generator: torch.Generator
) -> nn.Module:
    """A network with freshly drawn weights.

    Args:
        name: "linear", "mlp", "lenet", "sigmoid-lenet", "cnn" or "module:function".
        input_shape: Shape of one example, (channels, height, width) for the convolutional ones.
        classes: Number of logits.
        generator: Decides the weights, exactly as `torch.manual_seed` with its seed would, and is
            advanced; torch's global generator is left as it was. On the CPU.

    Returns:
        The network, on the CPU.

    Raises:
        ValueError: If the name is unknown, the shape does not fit the network, or a network of
            your own cannot be imported or is refused by `validate_model`.

    Examples:
        >>> lenet = build_model("lenet", input_shape=(1, 28, 28), classes=10,
        ...                     generator=torch.Generator().manual_seed(0))
        >>> flatten(lenet).numel()
        61706
    """
    input_shape = tuple(int(side) for side in input_shape)
    if not input_shape or min(input_shape) < 1:
        raise ValueError(f"input_shape={input_shape} must hold positive sides")
    if classes < 2:
        raise ValueError(f"classes={classes} must be at least 2; a binary task has two logits")
    own = ":" in name
    if not own and name not in _BUILDERS:
        raise ValueError(
            f"model name={name!r} is unknown; choose one of {', '.join(MODEL_NAMES)}, or name "
            'your own as "module:function"'
        )
    builder = _import_builder(name) if own else _BUILDERS[name]
    with _global_randomness_from(generator):
        model = builder(input_shape, classes)
    if own:
        _check_own(name, model, input_shape, classes=classes)
    return model


def validate_model(model: nn.Module) -> None:
    """Refuses what cannot be clipped per example or is not a function of its parameters.

    BatchNorm and its like are found by opacus' ModuleValidator.

    Raises:
        ValueError: If a layer mixes the examples of a batch or keeps running statistics, if there
            is dropout, or if parameters are missing or frozen.

    Examples:
        >>> validate_model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
        Traceback (most recent call last):
            ...
        ValueError: layer '1' (BatchNorm1d) mixes the examples of a batch or keeps statistics ...
    """
    from opacus.validators import ModuleValidator

    parameters = dict(model.named_parameters())
    if not parameters:
        raise ValueError("the model has no parameters; there is nothing to train")
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        raise ValueError(
            f"parameter {frozen[0]!r} is frozen (requires_grad is False); register it as a buffer, "
            "since only trained parameters are sent"
        )
    # Opacus looks at one module at a time only in training mode; a copy keeps the caller's mode.
    for name, layer in copy.deepcopy(model).train().named_modules():
        kind = type(layer).__name__
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise ValueError(f"layer {name!r} ({kind}) is random; remove it or set p=0")
        if next(layer.children(), None) is None and ModuleValidator.validate(layer, strict=False):
            raise ValueError(
                f"layer {name!r} ({kind}) mixes the examples of a batch or keeps statistics of "
                "them, so no per-example gradient exists to clip; use nn.GroupNorm instead"
            )


def flatten(model: nn.Module) -> Tensor:
    """All parameters as one vector (D,), in the order of ``named_parameters``, row-major.

    The result is a detached copy.
    """
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def unflatten(model: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """The inverse of `flatten`: views on flat by name, for ``torch.func.functional_call``.

    Args:
        model: Gives names and shapes; its own values are not read.
        flat: (D,), or stacked (..., D).

    Returns:
        For each parameter its view, (*shape,) or (..., *shape).

    Raises:
        ValueError: If the last dimension is not D.

    Examples:
        >>> views = unflatten(nn.Linear(3, 2), torch.arange(8.0))
        >>> views["bias"].tolist()
        [6.0, 7.0]
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    if flat.shape[-1:] != (sum(sizes),):
        raise ValueError(
            f"flat has shape {tuple(flat.shape)}, but the model has D={sum(sizes)} parameters; "
            "the last dimension must be D"
        )
    pieces = flat.split(sizes, dim=-1)
    return {
        name: piece.reshape(*flat.shape[:-1], *shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _linear(input_shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def _mlp(input_shape: Shape, classes: int) -> nn.Module:
    inputs = math.prod(input_shape)
    hidden = max(8, 4 * math.isqrt(inputs))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def _lenet(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("lenet", input_shape, least=12)
    features = 16 * ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def _sigmoid_lenet(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("sigmoid-lenet", input_shape, least=1)
    # Two strides of 2 with padding 2 halve upwards: 32 -> 16 -> 8, 28 -> 14 -> 7, 25 -> 13 -> 7.
    features = 12 * math.ceil(height / 4) * math.ceil(width / 4)
    model = nn.Sequential(
        nn.Conv2d(channels, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )
    # DLG draws wide: with the default weights three sigmoids leave next to no gradient.
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def _cnn(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("cnn", input_shape, least=4)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


_BUILDERS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "lenet": _lenet,
    "sigmoid-lenet": _sigmoid_lenet,
    "cnn": _cnn,
}

MODEL_NAMES = tuple(_BUILDERS)


def _image_shape(name: str, input_shape: Shape, *, least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ValueError(
            f"input_shape={input_shape} does not fit {name!r}, which needs (channels, height, "
            f"width) with sides of at least {least}; use 'mlp' or 'linear' instead"
        )
    channels, height, width = input_shape
    return channels, height, width


def _import_builder(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        builder = getattr(importlib.import_module(module_name), function_name)
    except ImportError as error:
        raise ValueError(
            f"model {name!r}: cannot import {module_name!r} ({error}); install it or put its "
            "folder on PYTHONPATH"
        ) from error
    except (AttributeError, ValueError) as error:  # ValueError: an empty module name
        raise ValueError(
            f'model {name!r} must name "module:function", and {module_name!r} has no '
            f"{function_name!r}"
        ) from error
    if not callable(builder):
        raise ValueError(f"model {name!r} must name a function (input_shape, classes) -> nn.Module")
    return builder  # type: ignore[no-any-return]  # a user's function has no type we can know


def _check_own(name: str, model: object, input_shape: Shape, *, classes: int) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} returned {type(model).__name__}, must be an nn.Module")
    validate_model(model)
    with torch.no_grad():
        logits = model(torch.zeros(2, *input_shape))
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (2, classes):
        raise ValueError(
            f"model {name!r} gives {shape} for 2 inputs {input_shape}, must be logits "
            f"(2, {classes})"
        )


@contextmanager
def _global_randomness_from(generator: torch.Generator) -> Iterator[None]:
    """Lets layers that know only torch's global CPU generator draw from ours.

    `torch.manual_seed` would reseed the accelerators as well, hence the state by hand.
    """
    if generator.device.type != "cpu":
        raise ValueError(f"generator is on {generator.device}, must be on the CPU")
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
        generator.set_state(torch.get_rng_state())
    finally:
        torch.set_rng_state(before)
