"""Reference networks, and the flat vector of parameters that crosses a link.

Every network maps inputs (B, *input_shape) to logits (B, classes); the loss is the cross-entropy.
They are deterministic and treat the examples of a batch separately, so that a gradient can be
clipped per example: no dropout, no BatchNorm.

A name "module:function" calls ``function(input_shape, classes)`` of a module of one's own, which
`training.own.names` finds.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Collection
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError, InputTypeError, describe
from ...privacy.files import check_memory
from ..own.names import own_object
from .recurrent import stepwise, unsupported_recurrent

if TYPE_CHECKING:
    from collections.abc import Iterator

# The reference networks: inputs (B, *input_shape) to logits (B, classes).
#
# ================  ==========================================================================
# Name              Layers
# ================  ==========================================================================
# ``linear``        one fully connected layer: softmax regression
# ``mlp``           one hidden ReLU layer of 4 sqrt(inputs) units (32 for 8x8, 112 for 28x28)
# ``lenet``         LeNet-5 (LeCun et al., 1998), 61,706 parameters at 1x28x28, 10 classes
# ``sigmoid-lenet`` three 5x5 convolutions with sigmoids: the network of DLG (Zhu et al., 2019)
# ``cnn``           two 3x3 convolutions and two fully connected layers, ReLU
# ``conv4``         four 3x3 ReLU convolutions, strides 1 2 1 2, and one fully connected layer, no
#                    pooling: 134,218 parameters at 3x32x32, 10 classes
# ``resnet18``      ResNet-18 (He et al., 2016) for small images, with GroupNorm: 11,173,962
#                    parameters at 3x32x32, 10 classes
# ================  ==========================================================================
#
# Where we differ from the papers: LeNet-5 has ReLU, max-pooling and full connections between its
# two convolutions, as is usual today; the sigmoid LeNet takes other input shapes than 3x32x32.
# ResNet-18 has GroupNorm of 32 groups where the paper has BatchNorm, which mixes the examples of a
# batch, and starts with one 3x3 convolution, as is usual for images of 32x32; its count of
# parameters is that of BatchNorm's.

Shape = tuple[int, ...]

_GROUPS = 32


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


def _conv4(input_shape: Shape, classes: int) -> nn.Module:
    channels, height, width = _image_shape("conv4", input_shape, least=4)
    # Stride 2 with padding 1 halves upwards: 32 -> 16 -> 8, 25 -> 13 -> 7.
    features = 64 * math.ceil(height / 4) * math.ceil(width / 4)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


class _Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ."""

    def __init__(self, inside: int, outside: int, *, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, outside),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False),
                nn.GroupNorm(_GROUPS, outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inside, height, width) to (B, outside, height / stride, width / stride)."""
        return nn.functional.relu(self.path(x) + self.shortcut(x))


def _resnet18(input_shape: Shape, classes: int) -> nn.Module:
    channels, _, _ = _image_shape("resnet18", input_shape, least=8)
    widths = (64, 64, 128, 256, 512)
    blocks: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        blocks.append(_Residual(inside, outside, stride=1 if inside == outside else 2))
        blocks.append(_Residual(outside, outside, stride=1))
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def _image_shape(name: str, input_shape: Shape, *, least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise InputError(
            f"input_shape={input_shape} does not fit {name!r}, which needs (channels, height, "
            f"width) with sides of at least {least}; use 'mlp' or 'linear' instead"
        )
    channels, height, width = input_shape
    return channels, height, width


NETWORKS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": _linear,
    "mlp": _mlp,
    "lenet": _lenet,
    "sigmoid-lenet": _sigmoid_lenet,
    "cnn": _cnn,
    "conv4": _conv4,
    "resnet18": _resnet18,
}


MODEL_NAMES = tuple(NETWORKS)
Probe = Callable[[nn.Module, Shape], Tensor]
"""f(network, input_shape), which returns inputs (2, *input_shape)."""


def build_model(
    name: str,
    *,
    input_shape: Shape,
    classes: int,
    generator: torch.Generator,
    regression: bool = False,
    probe: Probe | None = None,
    evaluated: bool = False,
) -> nn.Module:
    """A network with freshly drawn weights.

    Args:
        name: "linear", "mlp", "lenet", "sigmoid-lenet", "cnn", "conv4", "resnet18" or
            "module:function".
        input_shape: Shape of one example, (channels, height, width) for the convolutional ones.
        classes: Number of logits; of a regression the numbers to predict, from 1.
        generator: Decides the weights, exactly as `torch.manual_seed` with its seed would, and is
            advanced; torch's global generator is left as it was. On the CPU.
        regression: Whether numbers are predicted, and not classes.
        probe: Gives the inputs (2, *input_shape) on which a network of your own is tried;
            numbers in [0, 1] where None.
        evaluated: Whether it is taken in evaluation mode alone, see `validate_model`.

    Returns:
        The network, on the CPU.

    Raises:
        ValueError: If the name is unknown, the shape does not fit the network, or a network of
            your own cannot be imported, raises an error or exits, is refused by `validate_model`
            or gives no logits.
        TypeError: If "module:function" is no function or does not return a network.

    >>> lenet = build_model("lenet", input_shape=(1, 28, 28), classes=10,
    ...                     generator=torch.Generator().manual_seed(0))
    >>> flatten(lenet).numel()
    61706
    """
    # Shapes, classes and names that some network can have.
    input_shape = tuple(int(side) for side in input_shape)
    if not input_shape or min(input_shape) < 1:
        raise InputError(f"input_shape={input_shape} must hold positive sides")
    if classes < 2 and not (regression and classes == 1):
        raise InputError(f"classes={classes} must be at least 2; a binary task has two logits")
    own = ":" in name
    if not own and name not in NETWORKS:
        raise InputError(
            f"model name={name!r} is unknown; choose one of {', '.join(MODEL_NAMES)}, or name "
            'your own as "module:function"'
        )
    builder = _own_builder(name) if own else NETWORKS[name]
    # Its memory is known from a network without storage, before one is made.
    if not own:
        with torch.device("meta"):
            size = sum(sizes_of(builder(input_shape, classes)))
        check_memory(
            f"model {name!r} of {size} parameters, for records of shape {input_shape} and "
            f"{classes} classes,",
            4 * size,
            "choose a smaller model, or smaller records",
        )
    # A network of one's own is tried before it is taken.
    with _global_randomness_from(generator):
        if not own:
            return builder(input_shape, classes)
        with _stated(name, f"calling it with {input_shape} and {classes}"):
            model = builder(input_shape, classes)
        with _stated(
            name,
            f"its network, for input_shape={input_shape} (does it take records of that shape?)",
            passing=InputError,
        ):
            return _checked_own(
                name, model, input_shape, classes=classes, probe=probe, evaluated=evaluated
            )


def validate_model(model: nn.Module, *, evaluated: bool = False) -> None:
    """Refuses what cannot be clipped per example or is not a function of its parameters.

    Args:
        evaluated: Whether it is taken in evaluation mode alone, in which dropout passes everything,
            BatchNorm is an affine map by its running statistics, and what is frozen sends nothing.

    Raises:
        ValueError: If a layer mixes the examples of a batch or keeps running statistics, if there
            is dropout, or if parameters are missing or frozen.

    >>> validate_model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    overhear...InputError: layer '1' (BatchNorm1d) mixes the examples of a batch ...
    """
    # Only what is trained is sent.
    parameters = dict(model.named_parameters())
    if not parameters:
        raise InputError("the model has no parameters; there is nothing to train")
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen and not evaluated:
        raise InputError(
            f"parameter {frozen[0]!r} is frozen (requires_grad is False); register it as a buffer, "
            "since only trained parameters are sent"
        )
    # Layers that are random, let examples meet, or have no gradient of one example.
    for name, layer in model.named_modules():
        kind = type(layer).__name__
        if evaluated and isinstance(layer, nn.modules.dropout._DropoutNd):
            continue
        if evaluated and getattr(layer, "running_mean", None) is not None:
            continue
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise InputError(f"layer {name!r} ({kind}) is random; remove it or set p=0")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or (
            isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats
        ):
            raise InputError(
                f"layer {name!r} ({kind}) mixes the examples of a batch or keeps statistics of "
                "them, so no per-example gradient exists to clip; use nn.GroupNorm instead"
            )
        if isinstance(layer, nn.MultiheadAttention):
            # Opacus has no hooks for it; it keeps examples apart, and so every layout does here.
            if layer.dropout > 0 and not evaluated:
                raise InputError(f"layer {name!r} ({kind}) is random; remove it or set dropout=0")
            continue
        reason = None if evaluated else unsupported_recurrent(layer)
        if reason is not None:
            raise InputError(f"layer {name!r} ({kind}) {reason}")


def frozen_as_buffers(network: nn.Module, kept: Collection[str]) -> nn.Module:
    """The network, of which those parameters are left that are trained or to be kept.

    Layers of torch are frozen whole or not at all, and a tensor under all of its names. Where
    nothing would be left, all is.
    """
    of = dict(network.named_parameters(remove_duplicate=False))
    held = {id(of[name]) for name in kept if name in of}
    held |= {id(p) for p in of.values() if p.requires_grad}
    for layer in network.modules():
        own = {id(p) for p in layer.parameters(recurse=False)}
        several = isinstance(layer, nn.ParameterList | nn.ParameterDict)
        if own & held and type(layer).__module__.startswith("torch.nn.") and not several:
            held |= own
    frozen = [name for name, p in of.items() if id(p) not in held]
    if len(frozen) in (0, len(of)):
        return network
    network = copy.deepcopy(network)  # whoever gave it may go on with it
    of = dict(network.named_parameters(remove_duplicate=False))
    buffers = {id(of[name]): of[name].detach() for name in frozen}
    for name in frozen:
        owner, _, leaf = name.rpartition(".")
        layer = network.get_submodule(owner)
        delattr(layer, leaf)
        layer.register_buffer(leaf, buffers[id(of[name])])
    return network


def retyped(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The network in a type, in which buffers that are one tensor stay one."""
    names = dict(network.named_buffers(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in reversed(names.items())}
    network = network.to(dtype)
    for name, tensor in names.items():
        owner, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(owner), leaf, network.get_buffer(first[id(tensor)]))
    return network


def with_batch_statistics(model: nn.Module) -> nn.Module | None:
    """A copy that normalises by the statistics of its batch, as in training; None without any."""
    twin = copied(model)
    layers = [at for at in twin.modules() if getattr(at, "running_mean", None) is not None]
    layers = [at for at in layers if isinstance(at, nn.modules.batchnorm._NormBase)]
    for layer in layers:
        for name in ("running_mean", "running_var", "track_running_stats"):
            setattr(layer, name, None)
    return twin if layers else None


def copied(model: nn.Module) -> nn.Module:
    """A copy whose parameters are not differentiated by themselves, as each record is given one.

    Its recurrent layers go step by step (`overhear.training.models.recurrent`).

    Raises:
        InputError: the network cannot be copied.
    """
    return _copy(model, frozen=True)


def _copy(model: nn.Module, *, frozen: bool) -> nn.Module:
    try:
        twin = stepwise(copy.deepcopy(model))
        return twin.requires_grad_(False) if frozen else twin
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # the user's own code, too
        raise InputError(
            f"the network cannot be copied ({describe(error)}), and each record is given a copy; "
            "keep locks, files, generators, imported modules and tensors that were computed from "
            "parameters out of its attributes, leave torch.jit out, and take "
            "torch.nn.utils.parametrizations for a norm of weights"
        ) from error


def sizes_of(model: nn.Module) -> tuple[int, ...]:
    """Number of values of each parameter tensor, in the order of ``named_parameters``."""
    return tuple(parameter.numel() for _, parameter in model.named_parameters())


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

    >>> views = unflatten(nn.Linear(3, 2), torch.arange(8.0))
    >>> views["bias"].tolist()
    [6.0, 7.0]
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    if flat.shape[-1:] != (sum(sizes),):
        raise InputError(
            f"flat has shape {tuple(flat.shape)}, but the model has D={sum(sizes)} parameters; "
            "the last dimension must be D"
        )
    pieces = torch.split(flat, sizes, dim=-1)
    return {
        name: piece.reshape((*flat.shape[:-1], *shape))
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }


def _own_builder(name: str) -> Callable[..., Any]:
    found = own_object(name, key="model")
    if isinstance(found, nn.Module) or not callable(found):
        raise InputTypeError(
            f"model {name!r} is {type(found).__name__}; it must name a function (input_shape, "
            "classes) -> nn.Module, which draws fresh weights whenever it is called"
        )
    return found


class _YourError(InputError):
    """The code of a network of your own failed."""


@contextmanager
def _stated(name: str, doing: str, *, passing: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Whatever code of the user raises is told as such, but for errors that are `passing`.

    A SystemExit above all: it would end the command, with the exit code that the module likes.
    """
    try:
        yield
    except passing:
        raise
    except (Exception, SystemExit) as error:
        raise _YourError(
            f"model {name!r}: {doing} raised {describe(error)}; mend the module so that it "
            "imports, and builds and runs its network, without an error or an exit"
        ) from error


def _checked_own(
    name: str,
    model: object,
    input_shape: Shape,
    *,
    classes: int,
    probe: Probe | None,
    evaluated: bool,
) -> nn.Module:
    """The network, or a copy of which recurrent layers go step by step."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"model {name!r} returned {type(model).__name__}, must be an nn.Module"
        )
    validate_model(model.eval() if evaluated else model, evaluated=evaluated)
    _check_inputs(name, model)
    inputs = torch.rand(2, *input_shape) if probe is None else probe(model, input_shape)
    with torch.no_grad():
        logits = model(inputs)
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        spoken = (2, *input_shape, classes)  # of a language model, at each token
        if shape != (2, classes) and (inputs.is_floating_point() or shape != spoken):
            raise InputError(
                f"model {name!r} gives {shape} for 2 inputs {input_shape}, must be logits "
                f"(2, {classes})"
            )
        # Catches what has no layer of its own: functional batch_norm and dropout.
        alone = torch.cat([model(one[None]) for one in inputs])
    if not torch.allclose(logits, alone, rtol=1e-3, atol=1e-4):
        raise InputError(
            f"model {name!r} gives other logits for 2 inputs together than one by one; it must be "
            "deterministic and treat the examples of a batch separately"
        )
    twin = _copy(model, frozen=False)
    recurrent = any(isinstance(of, nn.RNNBase | nn.RNNCellBase) for of in twin.modules())
    if not recurrent or (evaluated and not inputs.is_floating_point()):
        return model  # what reads tokens behind torch's own form is an attack alone
    for at, layer in twin.named_modules():
        if (reason := unsupported_recurrent(layer, evaluated=evaluated)) is not None:
            raise InputError(f"layer {at!r} ({type(layer).__name__}) {reason}")
    with torch.no_grad():
        if not torch.allclose(twin(inputs), logits, rtol=1e-3, atol=1e-4):
            raise InputError(
                f"model {name!r} gives other logits where its recurrent layers go step by step; "
                "its forward must not depend on the class of a layer, nor read its _flat_weights"
            )
    return twin


def _check_inputs(name: str, model: nn.Module) -> None:
    """Refuse a forward that takes more than the records."""
    try:
        taken = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # it has none that could be read
        return
    needed = [
        one.name
        for one in taken
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if len(needed) > 1:
        many = ", ".join(needed)
        raise InputError(
            f"model {name!r} takes {len(needed)} inputs, ({many}), and a record is one tensor; "
            f"pack them: a record is torch.cat([part.flatten() for part in ({many})]), of one "
            f"row of numbers, and forward(self, x) takes it apart, as by {needed[0]} = x[:, :k]"
        )


@contextmanager
def _global_randomness_from(generator: torch.Generator) -> Iterator[None]:
    """Lets layers that know only torch's global CPU generator draw from ours.

    `torch.manual_seed` would reseed the accelerators as well, hence the state by hand.
    """
    if generator.device.type != "cpu":
        raise InputError(f"generator is on {generator.device}, must be on the CPU")
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
        generator.set_state(torch.get_rng_state())
    finally:
        torch.set_rng_state(before)
