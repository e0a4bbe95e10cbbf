"""Sums of clipped per-example gradients by plain means, to compare the fast layouts with.

Row e of the result belongs to model owner m = owners[e] and data owner d = holders[e]:

    S[e] = sum over b in batch(d) of  min(1, C / |g_b|) g_b
    g_b  = sum over k of  coefs[k] * gradient of loss_b at point k of m

| symbol | name here     | shape     | unit                                         |
|--------|---------------|-----------|----------------------------------------------|
| x      | ``models``    | (P, M, D) | parameters, in the order of the network's    |
| S      | returned      | (E, D)    | gradient of the loss, summed over a batch    |
| C      | ``clip_norm`` | scalar    | gradient                                     |

Everything here is in float64 on the CPU and written anew: one gradient for each example, its norm,
its factor, the sum. Nothing is shared with the layouts that train, so a fault there (a factor taken
of a batch, a layer forgotten in a norm) shows as a difference.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.batches.sampling import Per
from ...privacy.errors import InputError, InputTypeError
from ...training.engine.recording import GradientCall
from ...training.models.losses import ForwardCalls, stated, unknown_forward
from ...training.models.tasks import Task
from ...training.own.contents import Watch
from ...training.step.values import ClipNorm, Parts, Quantile, whole_of

_ENTRIES_AT_ONCE = 2**20  # of per-example gradients: 8 MiB
_FEW, _MANY = 16, 16  # examples of an owner, and owners, whose calls would take longer than they do


class Oracle:
    """Clipped sums of one objective, in float64.

    Args:
        objective: a network, whose loss is the cross-entropy of its logits, or a task. Copied.

    Raises:
        TypeError: something else.
    """

    def __init__(self, objective: nn.Module | Task) -> None:
        if isinstance(objective, nn.Module):
            loss, known = _loss_of(objective), unknown_forward(objective) is None
        elif isinstance(objective, Task):
            loss, known = objective.loss, Watch(objective).is_empty
        else:
            raise InputTypeError(
                f"objective={type(objective).__name__} must be an nn.Module or a task; see `Task`"
            )
        self._gradient = torch.func.grad(loss)
        self._joins = known  # and branches on no model

    def sums(
        self,
        models: Tensor,
        owners: Sequence[int] | Tensor,
        *,
        batches: Sequence[tuple[Tensor, Tensor]],
        holders: Sequence[int] | Tensor,
        clip_norm: ClipNorm,
        coefs: Sequence[float | Tensor] = (1.0,),
    ) -> Tensor:
        """Sums of clipped per-example gradients, one row for each pair.

        Args:
            models: (P, M, D) flat parameters, or points of a task, at P points.
            owners: (E,) for each row its position in M.
            batches: inputs (B_d, *shape) and integer targets (B_d,) of each data owner.
            holders: (E,) for each row the data owner, a position in batches.
            clip_norm: bound on an example's vector; None does not clip.
            coefs: weights of the P points, each a number or one for each coordinate (D,).

        Returns:
            (E, D) float64 on the CPU; zeros for an empty batch.

        Raises:
            ValueError: shapes or a bound that do not fit.
        """
        if models.ndim != 3 or len(coefs) != len(models):
            raise InputError(
                f"models of shape {tuple(models.shape)} with {len(coefs)} coefs must be (P, M, D) "
                "with one coefficient a point"
            )
        if isinstance(clip_norm, int | float) and not 0 < clip_norm < math.inf:
            raise InputError(f"clip_norm={clip_norm} must be a number > 0; None does not clip")
        points = models.detach().cpu().double()
        weights = [of.cpu().double() if isinstance(of, Tensor) else float(of) for of in coefs]
        numbers = torch.as_tensor(owners)
        pairs = list(zip(_numbers(owners), _numbers(holders), strict=True))
        out = torch.zeros(len(pairs), points.shape[2], dtype=torch.float64)
        plain = [_plain(*batch) for batch in batches]
        step = max(1, _ENTRIES_AT_ONCE // points.shape[2])
        # All examples that meet one model at once, or of many owners with few of them those of all.
        groups: dict[int, list[int]] = {}
        for row, (owner, _) in enumerate(pairs):
            groups.setdefault(owner, []).append(row)
        few = sum(len(plain[holder][1]) for _, holder in pairs) <= _FEW * len(groups)
        joins = self._joins and few and len(groups) >= _MANY
        for rows in [list(range(len(pairs)))] if joins else groups.values():
            inputs = torch.cat([plain[pairs[row][1]][0] for row in rows])
            targets = torch.cat([plain[pairs[row][1]][1] for row in rows])
            sizes = torch.tensor([len(plain[pairs[row][1]][1]) for row in rows])
            at = torch.tensor(rows).repeat_interleave(sizes)  # in which rows they count
            parts = zip(inputs.split(step), targets.split(step), at.split(step), strict=True)
            for x, y, into in parts:
                if len(y):
                    of = numbers[into] if joins else pairs[rows[0]][0]
                    each = self._each(points[:, of], weights, x, y)
                    out.index_add_(0, into, _clipped(each, clip_norm))
        return out

    def norms(
        self,
        points: Tensor,
        inputs: Tensor,
        targets: Tensor,
        *,
        coefs: Sequence[float | Tensor] = (1.0,),
    ) -> Tensor:
        """The length of each example's gradient, unclipped.

        Args:
            points: (P, D) flat parameters, or points of a task.
            inputs: (B, *shape).
            targets: (B,).
            coefs: as of `sums`.

        Returns:
            (B,) float64 on the CPU.
        """
        at = points.detach().cpu().double()
        weights = [of.cpu().double() if isinstance(of, Tensor) else float(of) for of in coefs]
        x, y = _plain(inputs, targets)
        step = max(1, _ENTRIES_AT_ONCE // at.shape[1])
        parts = zip(x.split(step), y.split(step), strict=True)
        found = [self._each(at, weights, *part).norm(dim=1) for part in parts if len(part[1])]
        return torch.cat([torch.zeros(0, dtype=torch.float64), *found])

    def contributions(
        self,
        call: GradientCall,
        batches: Sequence[tuple[Tensor, Tensor]],
        *,
        users: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """What a recorded call of `clipped_sums` or `clipped_mean` must have given.

        Args:
            call: what was asked, as `Recorded` has it.
            batches: each agent's records of that call of `draw`.
            users: of each batch whose each record is, where users are clipped; None of one record.

        Returns:
            (rows, D) float64, all blocks side by side.
        """
        if call.scales is not None:
            return torch.cat(
                [
                    self.contributions(_of_row(call, row, by), batches, users=users)
                    for row, by in enumerate(call.scales.tolist())
                ]
            )
        if isinstance(call.clip_norm, Quantile):
            share = call.clip_norm.share
            every = range(len(call.owners))
            return torch.cat([self._at_quantile(call, row, batches, share) for row in every])
        if call.per is Per.USER:
            return self._by_user(call, batches, users)
        sums = self.sums(
            call.models,
            call.owners,
            batches=batches,
            holders=call.holders,
            clip_norm=call.clip_norm if call.mean_of is None else None,
            coefs=call.coefs,
        )
        return sums if call.mean_of is None else _clipped(sums / call.mean_of, call.clip_norm)

    def _at_quantile(
        self, call: GradientCall, row: int, batches: Sequence[tuple[Tensor, Tensor]], share: float
    ) -> Tensor:
        """(1, D) one row, clipped to the norm at a quantile of its batch."""
        one = _of_row(call, row, 1.0)
        (owner,), (holder,) = _numbers(one.owners), _numbers(one.holders)
        norms = self.norms(call.models[:, owner], *batches[holder], coefs=call.coefs)
        bound = float(norms.quantile(share)) if len(norms) else 0.0
        return self.contributions(
            one._replace(clip_norm=bound if bound >= 1e-12 else None), batches
        )

    def _by_user(
        self,
        call: GradientCall,
        batches: Sequence[tuple[Tensor, Tensor]],
        users: Sequence[Tensor | None],
    ) -> Tensor:
        """The same of users' sums: of each the gradients are added, and the total is clipped."""
        total = torch.zeros(len(call.holders), call.models.shape[2], dtype=torch.float64)
        for row, (owner, holder) in enumerate(
            zip(_numbers(call.owners), _numbers(call.holders), strict=True)
        ):
            inputs, targets = _plain(*batches[holder])
            own = users[holder]
            whose = [0] * len(targets) if own is None else own.tolist()
            for user in sorted(set(whose)):
                mine = torch.tensor([one == user for one in whose])
                of = [(inputs[mine], targets[mine])]
                pair: dict[str, Any] = {"batches": of, "holders": [0], "clip_norm": None}
                summed = self.sums(call.models, [owner], **pair, coefs=call.coefs)
                total[row] += _clipped(summed, call.clip_norm)[0]
        return total

    def _each(
        self, points: Tensor, weights: Sequence[float | Tensor], inputs: Tensor, targets: Tensor
    ) -> Tensor:
        """(B, D) each example's gradients, combined over points (P, D), or (P, B, D) of its own."""
        total = torch.zeros(len(targets), points.shape[-1], dtype=torch.float64)
        gradients = torch.func.vmap(self._gradient, in_dims=(0 if points.ndim == 3 else None, 0, 0))
        for point, weight in zip(points, weights, strict=True):
            with stated():
                total += weight * gradients(point, inputs, targets)
        return total


def _of_row(call: GradientCall, row: int, by: float) -> GradientCall:
    """What was asked for in one row, whose vectors are divided by a number."""
    return call._replace(
        owners=call.owners[row : row + 1],
        holders=call.holders[row : row + 1],
        coefs=tuple(coef / by for coef in call.coefs),
        scales=None,
    )


def _clipped(rows: Tensor, clip_norm: ClipNorm) -> Tensor:
    """Rows no longer than the bound, or each of their parts than its own."""
    if isinstance(clip_norm, Parts):
        each = zip(rows.split(clip_norm.sizes, dim=1), clip_norm.bounds, strict=True)
        return torch.cat([_clipped(part, bound) for part, bound in each], dim=1)
    bound = whole_of(clip_norm)
    if bound is None:
        return rows
    lengths = rows.square().sum(dim=1, keepdim=True).sqrt()
    return torch.where(lengths > bound, rows * (bound / lengths), rows)


def _loss_of(model: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The cross-entropy of one example as a function of the flat parameters."""
    network = copy.deepcopy(model).cpu().double()
    calls = ForwardCalls(network)
    shapes = [(name, of.shape) for name, of in network.named_parameters()]
    sizes = [shape.numel() for _, shape in shapes]

    def loss(point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        parts = zip(shapes, point.split(sizes), strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in parts}
        return cross_entropy(calls(parameters, inputs[None]), target[None])

    return loss


def _plain(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """On the CPU, and in float64 unless they are numbers of something."""
    inputs = inputs.detach().cpu()
    return inputs.double() if inputs.is_floating_point() else inputs, targets.detach().cpu()


def _numbers(of: Sequence[int] | Tensor) -> list[int]:
    return [int(i) for i in of]
