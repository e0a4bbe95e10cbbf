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

Four layouts compute the same sums. "loop" takes one example at a time; the others are tested
against it. "vmap" stacks the data of a model's neighbours and takes per-example gradients by
`torch.func`. "book-keeping" makes one pass to the layers' outputs for each model owner
(`overhear.training.gradients.ghost`), and "grouped" one for many
(`overhear.training.gradients.choice`).
`overhear.training.gradients.choice` has the rule by which "auto" takes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ...privacy.errors import InputError, InputTypeError
from ..device.precision import full_precision, make_room, too_large
from ..models.losses import FailedForward
from ..models.parameters import copied, validate_model
from ..models.tasks import Task
from . import clipping
from .choice import BY_LAYER, choose, disagreement, network_size, with_layers
from .clipping import check_finite
from .counts import OwnCode
from .examples_independent import Separate

Layout = Literal["auto", "book-keeping", "grouped", "vmap", "loop"]
Indices = Sequence[int] | np.ndarray | Tensor
Batch = tuple[Tensor, Tensor]

# Calls whose sums may wait to be checked on a device.
_UNCHECKED_CALLS = 64


class ClippedSums(Protocol):
    """What gives a round its gradients."""

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[clipping.Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """See `PairGradients.clipped_sums`."""
        ...


class PairGradients:
    """Sums of clipped gradients on a model owner's parameters over a data owner's batch.

    Args:
        model: Network from inputs to logits (B, classes); copied, and its values are not read. Or a
            task, whose loss takes the place of the cross-entropy and whose blocks make up D.
        layout: "book-keeping", "grouped", "vmap" or "loop". "auto" is settled by the first work
            whose gradients do not vanish. Book-keeping and grouped serve if examples cannot meet in
            the network (`choice.with_layers`), every layer with parameters has a rule
            and they agree with the loop on first examples and probes; vmap serves otherwise. Of
            the two `choice.choose` takes one, by the network, the work and the device. Asked for
            by name they are refused where they do not serve.
        device: Where to compute; the model's device by default.
        dtype: Working precision, float32 or float64; the model's by default. Products in float32
            are full ones, see `overhear.training.device.precision`.
        agents: Model owners of the whole run, by which "auto" chooses; those of the first work by
            default.
        batch_size: Expected examples of a data owner, for the same; the first work's mean by
            default.
        drops: Whether what is clipped counts as the zero vector where it or its squared norm is not
            finite: an example's gradient, and what `whole_vectors` clips. Else it is an error, and
            whether there is one depends on the example: who sent the model is told.

    Raises:
        ValueError: If `validate_model` refuses the model, the layout is unknown, or a layout by
            layer is asked for and has no rule for a layer.

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
        agents: int | None = None,
        batch_size: float | None = None,
        drops: bool = False,
    ) -> None:
        # What is differentiated: a network, once it is checked, or a task.
        network = model if isinstance(model, nn.Module) else None
        if network is not None:
            validate_model(network)
        first = next(network.parameters()) if network is not None else _initial(model)
        self.device = first.device if device is None else torch.device(device)
        self.dtype = first.dtype if dtype is None else dtype
        if self.dtype not in (torch.float32, torch.float64):
            raise InputError(f"dtype={self.dtype} must be torch.float32 or torch.float64")
        if layout not in ("auto", *BY_LAYER, "vmap", "loop"):
            raise InputError(
                f"layout={layout!r} is unknown; choose auto, {', '.join(BY_LAYER)}, vmap or loop"
            )
        if layout in BY_LAYER and network is None:
            raise InputError(f"{layout} has no rule: a task has no layers; use layout='vmap'")
        self._asked, self._agents, self._batch_size = layout, agents, batch_size
        self._settled = layout in ("vmap", "loop") or network is None
        # vmap or the loop serves any case; layouts by layer are settled by the first examples.
        objective: clipping.OfModel | clipping.OfTask
        if network is None:
            objective = clipping.OfTask(model)  # type: ignore[arg-type]  # not a network, hence a task
        else:
            self._model = copied(network).to(self.device, self.dtype)
            objective = clipping.OfModel(self._model)
        self.parameters = objective.size
        self._own_code = OwnCode(model if network is None else self._model)
        vmap = clipping.Vmap(objective, joins=not self._own_code.is_there)
        self._combined: clipping.Kernel = clipping.Loop(objective) if layout == "loop" else vmap
        self._kernel: clipping.Kernel = self._combined
        self._layout: Layout = "loop" if layout == "loop" else "vmap"
        self._layered: nn.Module | None = None  # the network, as layers that have a rule
        if layout in BY_LAYER:
            self._layout = layout
        self._deferred, self.drops = self.device.type != "cpu", drops
        self._unchecked: list[tuple[Tensor, list[int], list[int]]] = []

    @property
    def layout(self) -> Layout:
        """The layout asked for; with "auto" the one in use, vmap until one is settled."""
        return self._layout

    @property
    def settled(self) -> bool:
        """Whether the layout is final; until then, sums are those of vmap."""
        return self._settled

    @property
    def runs_own_code(self) -> bool:
        """Whether the network, its loss or a task is the user's, as far as is known."""
        return self._own_code.is_there

    @torch.no_grad()
    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[Batch],
        *,
        clip_norm: float | None,
        coefficients: Sequence[clipping.Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
        checked: bool = True,
    ) -> Tensor:
        """Sums of clipped per-example gradients of the loss, one row a pair.

        Args:
            models: Flat parameters (A, D), or (K, A, D) for K points of each model owner.
            pairs: Model owners (E,), rows of models, and data owners (E,), positions in batches;
                on the host, since reading them from a device waits for it.
            batches: Inputs (B_d, *shape) and integer targets (B_d,) of each data owner; B_d
                differs from owner to owner and may be 0.
            clip_norm: Bound on the norm of an example's gradient; None for no clipping.
            coefficients: Weights of the K points, each a number or one for each coordinate (D,);
                their sum is clipped as one vector.
            pairs_of_run: Pairs of all ranks, where those given are a rank's.
            checked: Whether a sum that is not finite is looked for; who clips the sums says no.

        Returns:
            (E, D) in the working precision, in the order of the pairs; zeros for an empty batch.

        Raises:
            ValueError: If a shape, an index, clip_norm or a coefficient is out of range, or the
                layout that was asked for does not serve the network.
            FloatingPointError: If a sum, a gradient or its squared norm is not finite, and is not
                dropped. On a device other than the CPU `check` raises it, and this function only
                after many calls without one.
        """
        # Shapes and indices of points, coefficients and pairs.
        clipping.check_clip_norm(clip_norm)
        if len(self._unchecked) >= _UNCHECKED_CALLS:
            self.check()
        points = models.detach().to(self.device, self.dtype)
        points = points[None] if points.ndim == 2 else points  # (K, A, D)
        if points.ndim != 3 or points.shape[2] != self.parameters:
            raise InputError(
                f"models has shape {tuple(models.shape)}, must be (A, D) or (K, A, D) with "
                f"D={self.parameters}"
            )
        if len(coefficients) != len(points) or not all(map(self._fits, coefficients)):
            raise InputError(
                f"coefficients={tuple(coefficients)} must be {len(points)} finite numbers, one a "
                f"point, or tensors ({self.parameters},) of them"
            )
        senders = _indices(pairs[0], "senders", bound=points.shape[1])
        receivers = _indices(pairs[1], "receivers", bound=len(batches))
        if len(senders) != len(receivers):
            raise InputError(f"pairs name {len(senders)} senders but {len(receivers)} receivers")
        out = torch.zeros(len(senders), self.parameters, device=self.device, dtype=self.dtype)
        sizes = [len(targets) for _, targets in batches]
        uses = sum(sizes[d] for d in receivers)
        if not uses:
            return out
        examples = clipping.stack(batches, device=self.device, dtype=self.dtype)
        # The layout is settled by the first examples that come.
        if not self._settled:
            # Before its forward runs on tensors without values, which it might keep.
            with suppress(FailedForward):
                self._own_code.warm_up(self._combined, points[0, senders[0]], examples)
            owners, count = len(set(senders)), len(senders)
            if self._agents is not None and pairs_of_run is not None:
                owners, count = min(self._agents, pairs_of_run), pairs_of_run
            batch = uses / len(senders) if self._batch_size is None else self._batch_size
            self._settle(points[0, senders[0]], examples, owners=owners, pairs=count, batch=batch)
        # Layouts by layer serve one point of one coefficient; vmap and the loop serve all.
        with full_precision():
            plain = len(points) == 1 and not isinstance(coefficients[0], Tensor)
            serves = plain and self._settled and self._takes(examples)
            kernel = self._kernel if serves else self._combined

            def add() -> None:
                drops = self.drops and self._deferred and clip_norm is not None
                prepared = kernel.prepare(examples, uses=uses)
                limit = kernel.examples_at_once(self.device)
                passes = clipping.plan_passes(senders, receivers, sizes=sizes, limit=limit)
                kernel.add(
                    out, points, passes, clipping.Summed(prepared, coefficients, clip_norm, drops)
                )

            if kernel is self._combined:  # the others run no code of the user
                with self._own_code.watched(kernel, points[0, senders[0]], examples):
                    self._within_memory(add, out)
            else:
                self._within_memory(add, out)
        # Sums that are not finite: on a device they are noted, since looking waits for it.
        if not checked:
            return out
        if self._deferred:
            largest = torch.linalg.vector_norm(out, math.inf, dim=1)  # (E,), NaN of a row with one
            finite = largest.isfinite()
            for of in coefficients:
                if isinstance(of, Tensor):  # not looked at before, and no example's to drop
                    finite = finite & of.isfinite().all()
            self._unchecked.append((finite, senders, receivers))
        # An entry that is not finite makes its row's sum so, and the sum needs no mask of out's
        # size.
        elif not bool(out.sum(1).isfinite().all()):
            finite = out.isfinite().all(1)
            if clip_norm is None or not self.drops:
                check_finite(finite, senders, receivers)
                return out
            for row in (~finite).nonzero().flatten().tolist():
                out[row] = self._finite_part(
                    points[:, senders[row] : senders[row] + 1],
                    batches[receivers[row]],
                    clip_norm=clip_norm,
                    coefficients=coefficients,
                )
        return out

    def _finite_part(
        self,
        points: Tensor,
        batch: Batch,
        *,
        clip_norm: float | None,
        coefficients: Sequence[clipping.Coefficient],
    ) -> Tensor:
        """(D,) the sum over a batch that was not finite, without the examples that make it so."""
        inputs, targets = batch
        if len(targets) == 1:
            return points.new_zeros(self.parameters)
        half = len(targets) // 2
        parts = [(inputs[:half], targets[:half]), (inputs[half:], targets[half:])]
        pairs = ([0, 0], [0, 1])
        return self.clipped_sums(
            points, pairs, parts, clip_norm=clip_norm, coefficients=coefficients
        ).sum(dim=0)

    def _within_memory(self, add: Callable[[], None], out: Tensor) -> None:
        """Fill out; where the device has no memory for it, once more in passes of half the size.

        Raises:
            ValueError: It has none for these either.
        """
        try:
            add()
        except torch.OutOfMemoryError as error:
            if not make_room(self.device):
                raise too_large(self.device, error) from error
        else:
            return
        out.zero_()  # what some passes have added
        try:
            add()
        except torch.OutOfMemoryError as error:
            raise too_large(self.device, error) from error

    def check(self) -> None:
        """Wait for the device, and check the sums of all calls since the last check.

        On the CPU every call has checked its own.

        Raises:
            FloatingPointError: If a sum, a gradient or its squared norm is not finite.
        """
        waiting, self._unchecked = self._unchecked, []
        if waiting and not bool(torch.cat([finite for finite, _, _ in waiting]).all()):
            for finite, senders, receivers in waiting:
                check_finite(finite, senders, receivers)

    def _fits(self, coefficient: clipping.Coefficient) -> bool:
        if isinstance(coefficient, Tensor):
            right = coefficient.shape == (self.parameters,)
            # On a device the sums that it enters are checked in its place.
            held = coefficient.device.type == "cpu"
            return right and not (held and not bool(coefficient.isfinite().all()))
        return math.isfinite(coefficient)

    def _settle(
        self, point: Tensor, examples: clipping.Examples, *, owners: int, pairs: int, batch: float
    ) -> None:
        """Take the layout asked for, or the rule's first that agrees with the loop; else vmap.

        Nothing is settled while the examples' gradients vanish.
        """
        # The network as layers that have a rule; without these vmap or the loop serves.
        example = examples.inputs[:1]
        if self._layered is None:
            found = with_layers(self._model, example)
            if isinstance(found, str):
                if self._asked != "auto":
                    raise InputError(
                        f"layout={self._asked!r} takes examples together, and nothing shows that "
                        f"they do not mix in this network: {found}; use layout='vmap' or 'loop', "
                        "which take them one by one, or 'auto'"
                    )
                self._settled = True
                return
            self._layered = found
        # The layout that was asked for, or those that suit the sizes, best first.
        names: tuple[str, ...] = (self._asked,)
        if self._asked == "auto":
            names = choose(
                network_size(self._layered, example),
                owners=owners,
                pairs=pairs,
                examples=batch * pairs / owners,
                device=self.device.type,
            )
        # The first that agrees with the loop; where nothing shows it, nothing is settled.
        for name in names:
            settled, reason = disagreement(
                BY_LAYER[name], self._model, layered=self._layered, point=point, examples=examples
            )
            if not settled:
                return
            if reason is None:
                self._layout = name  # type: ignore[assignment]  # of BY_LAYER, hence a Layout
                self._kernel = BY_LAYER[name](self._layered)
                break
            if self._asked == name:
                raise InputError(f"{name} fails: {reason}; use layout='vmap' or 'auto'")
        self._settled = True

    def _takes(self, examples: clipping.Examples) -> bool:
        """Whether the layout in use takes examples of this shape; a graph is of one shape."""
        layered = self._layered
        return not isinstance(layered, Separate) or layered.shape == examples.inputs.shape[1:]


def _initial(task: object) -> Tensor:
    if not isinstance(task, Task):
        raise InputTypeError(
            f"model={type(task).__name__} must be an nn.Module or a task; see `Task`"
        )
    return task.initial()


def _indices(values: Indices, name: str, *, bound: int) -> list[int]:
    found: list[int] = torch.as_tensor(values, dtype=torch.int64).tolist()
    if found and not (min(found) >= 0 and max(found) < bound):
        raise InputError(f"{name} hold {min(found)}..{max(found)}, must lie in 0..{bound - 1}")
    return found
