"""Losses of a network's outputs, one number for each example, and the task of learning by one.

=================  ========================================  ==========================
Name               Of outputs o and a target t               Target
=================  ========================================  ==========================
``cross-entropy``  -log softmax(o)[t]                        label
``squared``        sum over outputs of (o - t)^2             numbers
``absolute``       sum over outputs of |o - t|               numbers
"module:NAME"      f(o, t), your own                         either
=================  ========================================  ==========================

A function of your own takes the outputs (B, K) and the targets (B,) or (B, K) of B examples, of one
output (B,) and (B,), and returns (B,). No property of a loss enters an epsilon: each example's
gradient is clipped, whatever it is of, so any loss is accounted for that treats the examples one by
one and keeps nothing from call to call. Each is differentiated alone; `check_loss` refuses one that
would be another loss for a batch, or that changes what it reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError, InputTypeError, describe
from ..own.contents import Watch
from ..own.names import own_object
from . import parameters
from .parameters import copied, flatten, unflatten, validate_model

# What is known of a network's forward, and calls of one that is not known.
#
# A forward may write to its module: it counts its calls, or keeps a mean of what it has read. What
# it then returns for a record depends on the records before, and so does their gradient, in every
# layout. So each call of a forward that is not known is made on a copy of the network as it was
# when it was given. What a forward keeps outside its module, in a global or a closure, no copy
# undoes: `overhear.training.gradients.own_code` refuses it. Whatever a network or a loss of the
# user raises, in its forward, its backward or a hook, `stated` tells in a sentence.

# Their forward treats the examples along the first dimension one by one, whatever they read.
_SEPARATE = frozenset(
    {
        *(nn.Sequential, nn.Identity, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm),
        *(nn.Embedding, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU),
        *(nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Softplus, nn.Softsign),
        *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d),
        *(nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d),
        nn.AdaptiveMaxPool2d,
    }
)
# These do along any dimension but the first, which this attribute names.
_ALONG = {
    nn.Flatten: "start_dim",
    nn.Unflatten: "dim",
    nn.Softmax: "dim",
    nn.LogSoftmax: "dim",
    nn.Softmin: "dim",
    nn.GLU: "dim",
}


def unknown_forward(model: nn.Module) -> str | None:
    """Why examples may meet in a network's forward, as far as is known; None where they cannot.

    Known are the networks of `training.models.parameters` and layers of torch by their exact class,
    without hooks and with no method that is the layer's own.

    >>> unknown_forward(nn.Sequential(nn.Flatten(start_dim=0), nn.Linear(4, 2)))
    "layer '0' (Flatten) has start_dim=0, which may be that of the examples"
    """
    if torch.nn.modules.module._has_any_global_hook():
        return "all layers have hooks"
    for name, module in model.named_modules():
        of = type(module)
        kind = f"layer {name!r} ({of.__name__})"
        if of in _ALONG:
            dim = getattr(module, _ALONG[of])
            # -1 is the first dimension only of a single one, which no layer takes as examples.
            if not isinstance(dim, int) or (dim < 1 and dim != -1):
                return f"{kind} has {_ALONG[of]}={dim}, which may be that of the examples"
        elif of not in _SEPARATE and of.__module__ != parameters.__name__:
            return f"{kind} is of a class whose forward is not known"
        if any(callable(getattr(of, held, None)) for held in vars(module)):
            return f"{kind} has a method of its own"
        hooks = (
            *(module._forward_hooks, module._forward_pre_hooks),
            *(module._backward_hooks, module._backward_pre_hooks),
        )
        if any(hooks):
            return f"{kind} has hooks"
    return None


class FailedForward(InputError, RuntimeError):
    """A network's forward raised an error, as torch's own do where it is no forward for vmap."""


_REMEDY = (
    "write it with functions of torch that draw nothing at random, and torch.where in place of if; "
    "what runs code in a backward, such as torch.utils.checkpoint, hooks and functions without a "
    "rule for vmap, is to be left out"
)


@contextmanager
def stated(where: str = "where gradients are computed") -> Iterator[None]:
    """Tell what code of the user raises in a sentence.

    A SystemExit too: it would end the command, with the exit code that the code likes.

    Args:
        where: it was called, for the sentence.

    Raises:
        FailedForward: It raised something.
    """
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        words = describe(error)
        if _NO_MEMORY in words:
            raise
        # contextlib takes a RuntimeError that a StopIteration caused for that StopIteration.
        cause = None if isinstance(error, StopIteration) else error
        raise FailedForward(
            f"the network or its loss raised {words}, {where}; {_REMEDY}"
        ) from cause


# What torch says of an operation that has no batch under vmap: a number of a record, a mask of its
# own, a write into a constant, values in numpy, a draw of a seeded generator.
_OF_ONE_ALONE = ("vmap: ", "Cannot access data pointer", "torch._C.Generator")


def is_for_the_loop(error: Exception) -> bool:
    """Whether vmap alone is in the way of a network or a loss that raised it."""
    return any(words in str(error) for words in _OF_ONE_ALONE)


_NO_MEMORY = "DefaultCPUAllocator: "  # as torch begins it on a CPU


class ForwardCalls:
    """Calls of a network with other parameters, none of which sees what an earlier one wrote.

    Args:
        model: From inputs (B, *shape) to logits (B, classes).
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._is_known = model, unknown_forward(model) is None

    def __call__(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        """Logits of inputs (B, *shape) at parameters by name.

        Raises:
            FailedForward: The call fails.
        """
        if self._is_known:
            return _called(self._model, parameters, inputs)
        # A copy that shares the parameters, which are not read.
        model = copy.deepcopy(self._model, {id(p): p for p in self._model.parameters()})
        with stated(f"in its forward of one record of shape {tuple(inputs.shape[1:])}"):
            return _called(model, parameters, inputs)


def _called(model: nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
    found: Tensor = torch.func.functional_call(model, parameters, (inputs,))
    return found


Loss = Callable[[Tensor, Tensor], Tensor]

_LABELS = (1, 1, 1, 0)  # of examples: some often, which weights of a batch's classes would tell
_PROBED = len(_LABELS)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def _squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().reshape(len(targets), -1).sum(1)


def _absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().reshape(len(targets), -1).sum(1)


_LOSSES: Mapping[str, Loss] = {
    "cross-entropy": _cross_entropy,
    "squared": _squared,
    "absolute": _absolute,
}
LOSS_NAMES = tuple(_LOSSES)


def predictions(outputs: Tensor) -> Tensor:
    """What a network predicts of numbers: (B, K), of one output (B,).

    >>> predictions(torch.zeros(3, 1)).shape
    torch.Size([3])
    """
    return outputs[:, 0] if outputs.shape[1] == 1 else outputs


def loss_named(name: str, *, classes: int, outputs: int) -> Loss:
    """A loss by its name, found to fit what a network returns.

    Args:
        name: one of `LOSS_NAMES`, or "module:NAME".
        classes: number of logits; 0 of a regression.
        outputs: numbers that a regression predicts; 0 of classes.

    Raises:
        ValueError: the name is unknown, or `check_loss` refuses the function.
        TypeError: the name is of no function.

    >>> loss_named("squared", classes=0, outputs=1)(torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([4.])
    """
    if name in _LOSSES:
        return _LOSSES[name]
    found = own_object(name, key="[model] loss")
    if not callable(found):
        raise InputTypeError(
            f"[model] loss={name!r} is {type(found).__name__}; it must be a function (outputs, "
            "targets) -> one number for each example"
        )
    loss = cast("Loss", found)  # which the check holds it to
    check_loss(loss, name, classes=classes, outputs=outputs)
    return loss


def check_loss(loss: Loss, name: str, *, classes: int, outputs: int) -> None:
    """Refuse what is not one number for each example, by itself.

    Args:
        loss: the function.
        name: what it is called, in a refusal.

    Raises:
        ValueError: it raises an error, returns another shape, is not the same for examples together
            and one by one or when it is asked again, keeps something from call to call, or has no
            gradient.
    """
    head = f"[model] loss={name!r}"
    # Made-up outputs and targets of a few examples.
    draw = torch.Generator().manual_seed(0)
    made = torch.randn(_PROBED, classes or outputs, generator=draw)
    if outputs:
        made = predictions(made)
        targets = torch.randn(made.shape, generator=draw)
    else:
        targets = torch.tensor(_LABELS) % classes
    together = _called_losses(loss, made, targets, head)
    shape = tuple(together.shape)
    if shape != (_PROBED,):
        remedy = ', as by reduction="none"' if not shape else ""
        raise InputError(
            f"{head} returns shape {shape} for {_PROBED} examples with outputs "
            f"{tuple(made.shape)}; it must return ({_PROBED},), one number for each{remedy}"
        )

    # The loss of one example, and its gradient, are the measure of all.
    def of_one(output: Tensor, target: Tensor) -> Tensor:
        return loss(output[None], target[None])[0]

    slope = torch.func.grad(of_one)

    def one_by_one() -> Tensor:
        parts = zip(made.split(1), targets.split(1), strict=True)
        return torch.cat([_called_losses(loss, *part, head) for part in parts])

    def slopes() -> tuple[Tensor, Tensor]:
        try:
            each = torch.stack([slope(made[i], targets[i]) for i in range(_PROBED)])
            return _unless_for_the_loop(lambda: torch.func.vmap(slope)(made, targets), each), each
        except (Exception, SystemExit) as error:  # the user's own code
            raise InputError(
                f"{head} cannot be differentiated example by example: {describe(error)}; write "
                "it with functions of torch, and torch.where in place of if"
            ) from error

    # What is filled once is filled by the first calls. The last call of those that are watched is
    # another than the last before them, and so is what it leaves behind.
    one_by_one()
    watch = Watch(loss)
    with watch.calls(head):
        alone = one_by_one()
        if not torch.equal(together, _called_losses(loss, made, targets, head)):
            raise InputError(f"{head} differs from call to call; it must draw nothing at random")
    slopes()
    with watch.calls(head):
        under_vmap, apart = slopes()
    # What meets in a batch shows in numbers or in gradients.
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-5):
        raise InputError(
            f"{head} gives other numbers for {_PROBED} examples together than one by one; it must "
            "treat the examples of a batch separately"
        )
    if not torch.allclose(under_vmap, apart, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise InputError(
            f"{head} has other gradients for {_PROBED} examples together than one by one; it must "
            "treat the examples of a batch separately, in its backward and under vmap too"
        )
    if not bool(under_vmap.isfinite().all()) or not bool(under_vmap.any()):
        raise InputError(f"{head} has no gradient that is finite and not zero; nothing is learned")


def _unless_for_the_loop(call: Callable[[], Tensor], otherwise: Tensor) -> Tensor:
    """What a call under vmap gives; a rehearsal refuses what needs the loop where none is asked."""
    try:
        return call()
    except Exception as error:
        if is_for_the_loop(error):
            return otherwise
        raise


def _called_losses(loss: Loss, outputs: Tensor, targets: Tensor, head: str) -> Tensor:
    try:
        found = loss(outputs.clone(), targets.clone())
    except (Exception, SystemExit) as error:  # the user's own code
        raise FailedForward(
            f"{head} raises {describe(error)} for outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)}"
        ) from error
    if not isinstance(found, Tensor):
        raise InputTypeError(f"{head} returns {type(found).__name__}; it must return a tensor")
    return found


class NetworkLoss:
    """The task of learning a network by a loss of its outputs.

    Args:
        model: network from inputs (B, *shape) to outputs (B, K); copied.
        regression: whether targets are numbers, and one output is (B,).

    Raises:
        ValueError: `validate_model` refuses the model.

    >>> task = NetworkLoss(
    ...     nn.Linear(2, 1), loss_named("squared", classes=0, outputs=1), regression=True
    ... )
    >>> point = torch.tensor([1.0, 1.0, 0.5])
    >>> float(task.loss(point, torch.tensor([1.0, 2.0]), torch.tensor(3.0)))
    0.25
    """

    def __init__(self, model: nn.Module, per_example: Loss, *, regression: bool) -> None:
        validate_model(model)
        self.per_example, self.regression = per_example, regression
        self._model = copied(model)
        self._calls = ForwardCalls(self._model)
        self._size = sum(p.numel() for p in model.parameters())

    @property
    def dimensions(self) -> tuple[int, ...]:
        """(D,)."""
        return (self._size,)

    def initial(self) -> Tensor:
        """The network's parameters."""
        return flatten(self._model)

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """See `Task.loss`."""
        parameters = unflatten(self._model, point)
        batch = inputs.unsqueeze(0).clone()  # which a forward may overwrite
        with sdpa_kernel(SDPBackend.MATH):  # no other attention has a rule for vmap
            outputs = self._calls(parameters, batch)
        if self.regression:
            outputs = predictions(outputs)
        if self.per_example in _LOSSES.values():
            return self.per_example(outputs, target.unsqueeze(0))[0]
        return _called_losses(self.per_example, outputs, target.unsqueeze(0), "[model] loss")[0]

    def project(self, value: Tensor) -> Tensor:
        """Every value is feasible."""
        return value
