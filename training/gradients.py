"""Per-example clipped gradient sums for pairs of a model owner and a data owner.

Row e of the result belongs to the pair (m, d) = (senders[e], receivers[e]):

    S[e] = sum over b in batch(d) of  min(1, C / |g_b|) g_b
    g_b  = sum over k of  coefficients[k] * gradient of loss_b at point k of m

with one point (K = 1) unless an algorithm clips gradients at several points as one vector.

| symbol | name here     | shape              | unit                                           |
|--------|---------------|--------------------|------------------------------------------------|
| x      | ``models``    | (A, D), (K, A, D)  | parameters, in the order of `models.flatten`   |
| S      | returned      | (E, D)             | gradient of cross-entropy, summed over a batch |
| C      | ``clip_norm`` | scalar             | gradient                                       |

Three layouts compute the same sums. "loop" takes one example at a time; the others are tested
against it. "vmap" stacks the data of a model's neighbours and takes per-example gradients by
`torch.func`. "book-keeping" makes one pass to the layers' outputs
(`overhear.training.bookkeeping`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from .bookkeeping import BookKeeping
from .clipping import Coefficient, Examples, Span, check_clip_norm, plan_passes
from .layers import unsupported_layer
from .layouts import Kernel, Loop, OfModel, OfTask, Vmap
from .models import validate_model
from .tasks import Task

Layout = Literal["auto", "book-keeping", "vmap", "loop"]
Indices = Sequence[int] | np.ndarray | Tensor
Batch = tuple[Tensor, Tensor]


class ClippedSums(Protocol):
    """What gives a round its gradients."""

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
    ) -> Tensor:
        """See `PairGradients.clipped_sums`."""
        ...


class PairGradients:
    """Sums of clipped gradients on a model owner's parameters over a data owner's batch.

    Args:
        model: Network from inputs to logits (B, classes); copied, and its values are not read. Or a
            task, whose loss takes the place of the cross-entropy and whose blocks make up D.
        layout: "book-keeping", "vmap" or "loop". "auto" takes book-keeping if every layer with
            parameters has a rule and it agrees with the loop on a first example, else vmap.
        device: Where to compute; the model's device by default.
        dtype: Working precision, float32 or float64; the model's by default.

    Raises:
        ValueError: If `validate_model` refuses the model, the layout is unknown, or book-keeping
            is asked for and has no rule for a layer.

    Examples:
        >>> engine = PairGradients(nn.Linear(2, 2), dtype=torch.float64)
        >>> batch = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
        >>> sums = engine.clipped_sums(torch.zeros(1, 6), ([0], [0]), [batch], clip_norm=1.0)
        >>> round(float(sums.norm()), 6)
        1.0
    """

    def __init__(
        self,
        model: nn.Module | Task,
        layout: Layout = "auto",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        network = model if isinstance(model, nn.Module) else None
        if network is not None:
            validate_model(network)
        first = next(network.parameters()) if network is not None else _initial(model)
        self.device = first.device if device is None else torch.device(device)
        self.dtype = first.dtype if dtype is None else dtype
        if self.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype={self.dtype} must be torch.float32 or torch.float64")
        if layout not in ("auto", "book-keeping", "vmap", "loop"):
            raise ValueError(
                f"layout={layout!r} is unknown; choose auto, book-keeping, vmap or loop"
            )
        reason = "a task has no layers" if network is None else unsupported_layer(network)
        if layout == "book-keeping" and reason is not None:
            raise ValueError(f"book-keeping has no rule: {reason}; use layout='vmap' or 'auto'")
        self._asked = layout
        self._checked = layout in ("vmap", "loop") or reason is not None
        objective: OfModel | OfTask
        if network is None:
            objective = OfTask(model)  # type: ignore[arg-type]  # not a network, hence a task
        else:
            self._model = copy.deepcopy(network).to(self.device, self.dtype).requires_grad_(False)
            objective = OfModel(self._model)
        self.parameters = objective.size
        self._combined: Kernel = Loop(objective) if layout == "loop" else Vmap(objective)
        self._kernel: Kernel = self._combined if self._checked else BookKeeping(self._model)

    @property
    def layout(self) -> Layout:
        """The layout in use; with "auto" it is settled by the first batch that is not empty."""
        if isinstance(self._kernel, BookKeeping):
            return "book-keeping"
        return "loop" if isinstance(self._kernel, Loop) else "vmap"

    @torch.no_grad()
    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
    ) -> Tensor:
        """Sums of clipped per-example gradients of the loss, one row a pair.

        Args:
            models: Flat parameters (A, D), or (K, A, D) for K points of each model owner.
            pairs: Model owners (E,), rows of models, and data owners (E,), positions in batches.
            batches: Inputs (B_d, *shape) and integer targets (B_d,) of each data owner; B_d
                differs from owner to owner and may be 0.
            clip_norm: Bound on the norm of an example's gradient; None for no clipping.
            coefficients: Weights of the K points, each a number or one for each coordinate (D,);
                their sum is clipped as one vector.

        Returns:
            (E, D) in the working precision, in the order of the pairs; zeros for an empty batch.

        Raises:
            ValueError: If a shape, an index, clip_norm or a coefficient is out of range.
            FloatingPointError: If a sum, a gradient or its squared norm is not finite.
        """
        check_clip_norm(clip_norm)
        points = models.detach().to(self.device, self.dtype)
        points = points[None] if points.ndim == 2 else points  # (K, A, D)
        if points.ndim != 3 or points.shape[2] != self.parameters:
            raise ValueError(
                f"models has shape {tuple(models.shape)}, must be (A, D) or (K, A, D) with "
                f"D={self.parameters}"
            )
        if len(coefficients) != len(points) or not all(map(self._fits, coefficients)):
            raise ValueError(
                f"coefficients={tuple(coefficients)} must be {len(points)} finite numbers, one a "
                f"point, or tensors ({self.parameters},) of them"
            )
        senders = _indices(pairs[0], "senders", bound=points.shape[1])
        receivers = _indices(pairs[1], "receivers", bound=len(batches))
        if len(senders) != len(receivers):
            raise ValueError(f"pairs name {len(senders)} senders but {len(receivers)} receivers")
        out = torch.zeros(len(senders), self.parameters, device=self.device, dtype=self.dtype)
        sizes = [len(targets) for _, targets in batches]
        uses = sum(sizes[d] for d in receivers)
        if not uses:
            return out
        examples = self._stack(batches)
        if not self._checked:
            self._check(points[0, senders[0]], examples)
        plain = len(points) == 1 and not isinstance(coefficients[0], Tensor)
        kernel = self._kernel if plain else self._combined
        examples = kernel.prepare(examples, uses=uses)
        limit = kernel.examples_at_once()
        for work in plan_passes(senders, receivers, sizes=sizes, limit=limit):
            kernel.add(
                out,
                points[:, work.owner],
                examples=examples,
                spans=work.spans,
                coefficients=coefficients,
                clip_norm=clip_norm,
            )
        _check_finite(out, senders, receivers)
        return out

    def _fits(self, coefficient: Coefficient) -> bool:
        if isinstance(coefficient, Tensor):
            right = coefficient.shape == (self.parameters,)
            return right and bool(coefficient.isfinite().all())
        return math.isfinite(coefficient)

    def _stack(self, batches: Sequence[Batch]) -> Examples:
        for d, (inputs, targets) in enumerate(batches):
            if len(inputs) != len(targets):
                raise ValueError(f"batch {d} has {len(inputs)} inputs but {len(targets)} targets")
        filled = [(x, y) for x, y in batches if len(y)]
        inputs = torch.cat([x.detach().to(self.device) for x, _ in filled])
        targets = torch.cat([y.detach().to(self.device) for _, y in filled])
        return Examples(
            inputs=inputs.to(self.dtype) if inputs.is_floating_point() else inputs,
            targets=targets,
        )

    def _check(self, point: Tensor, examples: Examples) -> None:
        """Keep book-keeping only if it agrees with the loop on two examples."""
        settled, reason = _disagreement(self._model, point, examples)
        if reason is not None:
            if self._asked == "book-keeping":
                raise ValueError(f"book-keeping fails: {reason}; use layout='vmap' or 'auto'")
            self._kernel = self._combined
        self._checked = settled


def _disagreement(model: nn.Module, point: Tensor, examples: Examples) -> tuple[bool, str | None]:
    """Whether two examples settle that book-keeping serves a model, and why it does not.

    The list of layers does not show parameters that are used outside their layer's call, layers
    that are called twice, overwritten outputs and mixed examples; a comparison does.
    """
    model = copy.deepcopy(model).double()
    inputs, targets = examples.inputs[:2], examples.targets[:2]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    few = Examples(inputs=inputs, targets=targets)
    sums = []
    for kernel in (Loop(OfModel(model)), BookKeeping(model)):
        row = torch.zeros(1, len(point), device=point.device, dtype=torch.float64)
        try:
            kernel.add(
                row,
                point.double()[None],
                examples=kernel.prepare(few, uses=0),
                spans=[Span(row=0, start=0, stop=len(targets))],
                coefficients=(1.0,),
                clip_norm=1e-6,  # so small that every gradient is clipped and every norm matters
            )
        except (RuntimeError, ValueError) as error:
            if isinstance(kernel, Loop):
                raise
            return True, str(error)
        sums.append(row)
    size = float(sums[0].norm())
    if not 0 < size < math.inf:
        return False, None  # a vanishing or overflowing gradient shows nothing; ask the next batch
    distance = float((sums[1] - sums[0]).norm())
    agrees = distance <= 1e-6 * size
    return True, None if agrees else f"its sum is off by {distance / size:.1e} of the loop's"


def _initial(task: object) -> Tensor:
    if not isinstance(task, Task):
        raise TypeError(f"model={type(task).__name__} must be an nn.Module or a task; see `Task`")
    return task.initial()


def _indices(values: Indices, name: str, *, bound: int) -> list[int]:
    found: list[int] = torch.as_tensor(values, dtype=torch.int64).tolist()
    if found and not (min(found) >= 0 and max(found) < bound):
        raise ValueError(f"{name} hold {min(found)}..{max(found)}, must lie in 0..{bound - 1}")
    return found


def _check_finite(out: Tensor, senders: Sequence[int], receivers: Sequence[int]) -> None:
    # An entry that is not finite makes its row's sum so, and the sum needs no mask of out's size.
    if bool(out.sum(1).isfinite().all()):
        return
    bad: list[int] = (~out.isfinite().all(1)).nonzero().flatten().tolist()
    if bad:
        raise FloatingPointError(
            f"{len(bad)} of {len(out)} sums are not finite, the first on the model of agent "
            f"{senders[bad[0]]} over the data of agent {receivers[bad[0]]}: a gradient or its "
            "squared norm overflows; check the inputs and the learning rate"
        )
