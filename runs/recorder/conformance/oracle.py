"""Gradients by somebody who did not train: a function of the auditor's, or a model and its loss."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ....privacy.errors import InputError, InputTypeError
from ....privacy.releases.fields import shown
from .sketches import sketch

_LONGEST_ERROR = 300
Gradients = Callable[..., Any] | Mapping[int, Callable[..., Any]]


class ClippedSum(NamedTuple):
    """Clipped gradients of a batch, added up.

    Attributes:
        value: (D,) float64.
        cut_off: (D,) what clipping took off: the sum without it, less the sum.
        norms: (B,) of the gradients before clipping.
        clip: the bound.
        rows: (B, 64) sketches of the clipped gradients.
    """

    value: Tensor
    cut_off: Tensor
    norms: Tensor
    clip: float
    rows: Tensor


class Oracle:
    """Asks the auditor's function for gradients, and clips and adds what it returns.

    Args:
        gradients: (point, positions) -> (B, D) per-example gradients of an agent, unclipped; with a
            parameter `agent` it is told whose records they are; or such a function by agent.

    Raises:
        TypeError: it cannot be called.
    """

    def __init__(self, gradients: Gradients) -> None:
        every = gradients.values() if isinstance(gradients, Mapping) else [gradients]
        if not all(callable(one) for one in every):
            raise InputTypeError(
                f"gradients={shown(gradients)} must be a function (point, positions) -> (B, D), or "
                "one by agent"
            )
        self._gradients = gradients

    def clipped_sum(
        self, agent: int, point: Tensor, positions: Tensor, *, clip: float, shape: tuple[int, int]
    ) -> ClippedSum:
        """The sum of an agent's clipped gradients.

        Args:
            agent: whose records.
            point: (D',) as it was kept.
            positions: (B,) of the records.
            clip: the bound, infinite where nothing is clipped.
            shape: (B, D), D that of the message; (1, D) where the unit is a client.

        Raises:
            ValueError: what the function returns is no (B, D) of finite numbers.
        """
        each = self._each(agent, point, positions, shape)
        norms = each.norm(dim=1)
        factors = torch.ones_like(norms)
        if math.isfinite(clip):
            factors = torch.where(norms > clip, clip / norms, factors)
        value = (factors[:, None] * each).sum(dim=0)
        return ClippedSum(value, each.sum(dim=0) - value, norms, clip, sketch([each], clip))

    def clipped_rows(
        self, agent: int, point: Tensor, positions: Tensor, *, clip: float, width: int
    ) -> Tensor:
        """(B, 64) sketches of clipped gradients; see `clipped_sum`."""
        return sketch([self._each(agent, point, positions, (len(positions), width))], clip)

    def _each(self, agent: int, point: Tensor, positions: Tensor, shape: tuple[int, int]) -> Tensor:
        """(B, D) of finite numbers."""
        each = self._rows(agent, point, positions)
        if each.shape != shape:
            raise InputError(
                f"gradients of {len(positions)} records of agent {agent} have the shape "
                f"{tuple(each.shape)}, and must have {shape}: a row for each clipped vector, as "
                "long as the message"
            )
        if not bool(torch.isfinite(each).all()):
            raise InputError(f"gradients of agent {agent} hold a number that is not finite")
        return each

    def _rows(self, agent: int, point: Tensor, positions: Tensor) -> Tensor:
        asked = self._gradients
        if isinstance(asked, Mapping):
            if agent not in asked:
                raise InputError(
                    f"gradients names no function for agent {agent}; it has {sorted(asked)}"
                )
            asked = asked[agent]
        more = {"agent": agent} if "agent" in inspect.signature(asked).parameters else {}
        try:
            found = asked(point.clone(), positions.numpy().copy(), **more)
        except (Exception, SystemExit) as error:
            raise raised("gradients", error) from error
        if not isinstance(found, Tensor | np.ndarray):
            raise InputTypeError(
                f"gradients returned {type(found).__name__}; it must return a tensor or array"
            )
        try:
            if isinstance(found, np.ndarray):
                found = torch.from_numpy(np.ascontiguousarray(found))
            return found.detach().cpu().to_dense().double()
        except (TypeError, RuntimeError) as error:  # texts, or numbers of more than 64 bits
            if "memory" in str(error):
                raise
            raise InputTypeError(
                f"gradients returned a {type(found).__name__} of {found.dtype}; it must return "
                "numbers of at most 64 bits each"
            ) from error


def raised(name: str, error: BaseException) -> InputError:
    """The error of a function of the auditor's that raised one."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_ERROR]
    return InputError(f"the function of {name} raised {said}; mend it, and check again")


def per_example(
    model: nn.Module,
    data: Mapping[int, tuple[Tensor, Tensor]],
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy,
) -> Callable[..., Tensor]:
    """A function of gradients, from a model and its loss: one backward an example, in float64.

    Args:
        model: the network; a kept point fills its parameters, in their order.
        data: by agent its inputs (n, *shape) and targets (n, ...).
        loss: of (outputs (1, ...), targets (1, ...)), a scalar.

    Returns:
        (point, positions, agent) -> (B, D).

    >>> of = per_example(nn.Linear(2, 2), {0: (torch.ones(3, 2), torch.tensor([0, 1, 1]))})
    >>> of(torch.zeros(6), np.array([0, 2]), agent=0)[0].tolist()
    [-0.5, -0.5, 0.5, 0.5, -0.5, 0.5]
    """
    import copy

    network = copy.deepcopy(model).cpu().double()
    shapes = [(name, of.shape) for name, of in network.named_parameters()]
    sizes = [shape.numel() for _, shape in shapes]

    def one(point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        parts = zip(shapes, point.split(sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        outputs = torch.func.functional_call(network, parameters, (inputs[None],))
        return loss(outputs, target[None])

    each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))

    def gradients(point: Tensor, positions: NDArray[np.int64], *, agent: int) -> Tensor:
        inputs, targets = data[agent]
        at = torch.from_numpy(np.asarray(positions))
        if not len(at):
            return torch.zeros(0, sum(sizes), dtype=torch.float64)
        x = inputs[at]
        return each(point.double(), x.double() if x.is_floating_point() else x, targets[at])

    return gradients
