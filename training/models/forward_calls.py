"""What is known of a network's forward, and calls of one that is not known.

A forward may write to its module: it counts its calls, or keeps a mean of what it has read. What it
then returns for a record depends on the records before, and so does their gradient, in every
layout. So each call of a forward that is not known is made on a copy of the network as it was when
it was given. What a forward keeps outside its module, in a global or a closure, no copy undoes:
`overhear.training.gradients.own_code` refuses it. Whatever a network or a loss of the user raises,
in its forward, its backward or a hook, `stated` tells in a sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ...privacy.raised import told
from . import networks

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

    Known are the networks of `overhear.training.models.networks` and layers of torch by their exact
    class, without hooks and with no method that is the layer's own.

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
        elif of not in _SEPARATE and of.__module__ != networks.__name__:
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

    >>> with stated():  # doctest: +ELLIPSIS
    ...     {}["mask"]
    Traceback (most recent call last):
        ...
    overhear...FailedForward: the network or its loss raised KeyError: 'mask', where ...
    """
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        words = told(error)
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

    >>> class Counts(nn.Linear):
    ...     calls = 0
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return self.calls * super().forward(x)
    >>> calls, zero = ForwardCalls(Counts(1, 1)), torch.zeros(1, 1)
    >>> parameters = {"weight": zero, "bias": torch.ones(1)}
    >>> [float(calls(parameters, zero)) for _ in range(3)]
    [1.0, 1.0, 1.0]
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
