"""Loss, accuracy and AUROC of the agents' models and of their mean, on test records.

Of a regression there is no accuracy: there are the root of the mean squared error, over records and
outputs, and R2 = 1 - (sum of squared errors) / (sum of squares about the mean of the targets).
"""

from __future__ import annotations

import math
from contextlib import nullcontext, suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...privacy.errors import InputError
from ..data.store import Examples, Store, blocks
from ..device.precision import elements_at_once, full_precision
from .losses import NetworkLoss, predictions, stated, unknown_forward
from .metrics import Metrics
from .parameters import unflatten
from .tasks import Task

# The norm of the gradient of all training records: how far a model is from a stationary point.
#
#     | (1/N) sum_b grad l(x; record b) |,    N records of all agents, nothing clipped, no noise
#
# It is computed from the private records and is no release of a run: no step of an agent could know
# it, and no epsilon counts what it tells of them. It is for evaluations on records that may be
# shown.

NOT_COUNTED = (
    "gradient_norm is set: metrics hold the norm of the gradient of all training records, without "
    "noise, and no epsilon counts what it tells of them; for evaluation"
)


def gradient_norm(
    model: nn.Module, point: Tensor, records: Store, *, task: Task | None = None, batch: int = 2048
) -> float:
    """Euclidean norm of the mean gradient of the records at a point.

    Args:
        model: the network; its own parameters are not used.
        point: (D,) flat parameters.
        records: at least one.
        task: what is learned, a `NetworkLoss`; by default the cross-entropy.
        batch: records at once.
    """
    held = {
        name: value.to(point.device, point.dtype if value.is_floating_point() else None)
        for name, value in model.named_buffers()
    }
    total = torch.zeros_like(point, dtype=torch.float64)
    for block in blocks(records, size=batch):
        inputs = block.inputs
        x = inputs.to(point.device, point.dtype if inputs.is_floating_point() else None)
        y = block.targets.to(point.device)
        at = point.detach().clone().requires_grad_()
        with full_precision(), torch.enable_grad():
            outputs = torch.func.functional_call(model, {**held, **unflatten(model, at)}, (x,))
            if isinstance(task, NetworkLoss):
                found = predictions(outputs) if task.regression else outputs
                wanted = y.to(found.dtype) if task.regression else y
                loss = task.per_example(found, wanted).sum()
            else:
                loss = cross_entropy(outputs, y, reduction="sum")
            total += torch.autograd.grad(loss, at)[0].double()
    return float(total.norm()) / records.size


AT_ONCE = 2048  # examples of one batch


def evaluate(
    model: nn.Module,
    models: Tensor,
    examples: Examples,
    *,
    round: int,
    batch: int = AT_ONCE,
    task: Task | None = None,
    optimum: Tensor | None = None,
    gradient_of: Store | None = None,
) -> Metrics:
    """Loss, accuracy and AUROC of every agent's model and of their mean.

    Of a regression loss, RMSE and R2.

    Args:
        model: the network; its own parameters are not used.
        models: (A, D) flat parameters.
        examples: test inputs and targets.
        round: the number that the metrics carry.
        batch: examples at once.
        task: what was learned; the cross-entropy is the loss unless it is a `NetworkLoss`.
        optimum: (D,) where the loss of all agents is least, if that is known.
        gradient_of: records whose mean gradient at the mean model is measured, if any.
    """
    with nullcontext() if unknown_forward(model) is None else stated("where it is evaluated"):
        return _evaluate(
            model,
            models,
            examples,
            round=round,
            batch=batch,
            task=task,
            optimum=optimum,
            gradient_of=gradient_of,
        )


def _evaluate(
    model: nn.Module,
    models: Tensor,
    examples: Examples,
    *,
    round: int,
    batch: int,
    task: Task | None,
    optimum: Tensor | None,
    gradient_of: Store | None,
) -> Metrics:
    # Root mean square of the agents' distances to their mean.
    mean = models.mean(dim=0)
    distance = float((models - mean).square().sum(dim=1).mean().sqrt())
    # Scores of every agent's model, and of the mean of all.
    with full_precision():
        *own, consensus = _scores(
            model, torch.cat([models, mean[None]]), examples, batch=batch, task=task
        )

    away = None
    # Distances to the optimum, where one is known; the last is that of the mean.
    if optimum is not None:
        best = optimum.to(models.device, torch.float64)
        away = (torch.cat([models, mean[None]]).double() - best).norm(dim=1).tolist()

    def of_each(name: str) -> tuple[float, ...] | None:
        return tuple(v for v in (getattr(score, name) for score in own) if v is not None) or None

    return Metrics(
        round=round,
        accuracy=of_each("accuracy"),
        loss=tuple(s.loss for s in own),
        consensus_accuracy=consensus.accuracy,
        consensus_loss=consensus.loss,
        consensus_distance=distance,
        auroc=of_each("auroc"),
        consensus_auroc=consensus.auroc,
        rmse=of_each("rmse"),
        consensus_rmse=consensus.rmse,
        r2=of_each("r2"),
        consensus_r2=consensus.r2,
        **_constant(examples.targets, task),
        optimum_distance=None if away is None else tuple(away[:-1]),
        consensus_optimum_distance=None if away is None else away[-1],
        consensus_gradient_norm=None
        if gradient_of is None
        else gradient_norm(model, mean, gradient_of, task=task, batch=batch),
    )


def _constant(targets: Tensor, task: Task | None) -> dict[str, float]:
    """The scores of the best answer that is the same for every record; no model has to be trained.

    >>> _constant(torch.tensor([0, 1, 1, 1]), None)["constant_accuracy"]
    0.75
    """
    if isinstance(task, NetworkLoss) and task.regression:
        about_mean = targets.double() - targets.double().mean(0)
        return {"constant_rmse": float(about_mean.square().mean().sqrt())}
    shares = torch.bincount(targets.cpu()).double() / len(targets)
    found = {"constant_accuracy": float(shares.max())}
    loss = {"constant_loss": float(torch.special.entr(shares).sum())}
    return found if isinstance(task, NetworkLoss) else found | loss


class _Score(NamedTuple):
    loss: float
    accuracy: float | None = None
    auroc: float | None = None
    rmse: float | None = None
    r2: float | None = None


# Of a device: elements that one example's inputs stand for in all layers, and most models at once.
_PER_INPUT, _MOST_MODELS = 64, 64
_MOST_CLASSES = 20  # whose AUROC is averaged; more take C^2 numbers an example


@torch.no_grad()
def _scores(
    model: nn.Module, models: Tensor, examples: Examples, *, batch: int, task: Task | None
) -> list[_Score]:
    """The scores of models (M, D): one after the other on a CPU, many at once on a device."""
    # Records and buffers come to where the models are.
    device, dtype = models.device, models.dtype
    inputs = examples.inputs
    inputs = inputs.to(device, dtype if inputs.is_floating_point() else None)
    targets = examples.targets.to(device)
    held = {
        name: value.to(device, dtype if value.is_floating_point() else None)
        for name, value in model.named_buffers()
    }
    # As many models at once as memory holds.
    at_once = 1
    if _takes_many(device):
        room = elements_at_once(device) // (_PER_INPUT * max(inputs[:1].numel(), 1))
        at_once = max(min(len(models), room // batch, _MOST_MODELS), 1)
    # Sums over all batches become scores of numbers or of classes, for some models at a time.
    numbers = isinstance(task, NetworkLoss) and task.regression
    count, wanted = len(targets), examples.targets.cpu()
    found = list[_Score]()
    for some in models.split(at_once):
        sums = [
            _together(model, some, held, x, y, task)
            for x, y in zip(inputs.split(batch), targets.split(batch), strict=True)
        ]
        losses = torch.stack([one.loss.double() for one in sums]).sum(0).tolist()
        rights = torch.stack([one.right for one in sums]).sum(0).tolist()
        odds = torch.cat([one.odds for one in sums], dim=1).cpu()
        found += [
            _regression(loss / count, squares=right, targets=wanted)
            if numbers
            else _Score(loss / count, right / count, auroc_of_classes(of, wanted))
            for loss, right, of in zip(losses, rights, odds, strict=True)
        ]
    return found


def _regression(loss: float, *, squares: float, targets: Tensor) -> _Score:
    wide = targets.double()
    about_mean = float((wide - wide.mean(0)).square().sum())
    r2 = 1 - squares / about_mean if about_mean > 0 else None
    return _Score(loss, rmse=math.sqrt(squares / targets.numel()), r2=r2)


class _Sums(NamedTuple):
    """Of G models over b examples: summed losses (G,), hits (G,), log odds (G, b, C) of classes.

    Of a regression squared errors (G,) stand in the place of hits. Of too many classes C is 0.
    """

    loss: Tensor
    right: Tensor
    odds: Tensor


def _takes_many(device: torch.device) -> bool:
    """Whether models are stacked; on a CPU a stack of convolutions takes longer than one by one."""
    return device.type != "cpu"


def _together(
    model: nn.Module,
    models: Tensor,
    held: dict[str, Tensor],
    x: Tensor,
    y: Tensor,
    task: Task | None,
) -> _Sums:
    own = task if isinstance(task, NetworkLoss) else None

    def of_one(flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.func.functional_call(model, {**held, **unflatten(model, flat)}, (x,))
        if own is not None and own.regression:
            found, wanted = predictions(logits), y.to(logits.dtype)
            squares = (found - wanted).double().square().sum()
            return own.per_example(found, wanted).sum(), squares, logits[:, :0]
        odds = log_odds(logits) if 2 <= logits.shape[1] <= _MOST_CLASSES else logits[:, :0]
        if own is None:
            loss = nn.functional.cross_entropy(logits, y, reduction="sum")
        else:
            loss = own.per_example(logits, y).sum()
        return loss, (logits.argmax(dim=1) == y).sum(), odds

    if len(models) > 1:
        # What vmap cannot do, or has no memory for, is done model by model. Torch says either by a
        # RuntimeError; another error is the network's own.
        with suppress(RuntimeError):
            return _Sums(*torch.func.vmap(of_one)(models))
    return _Sums(*map(torch.stack, zip(*map(of_one, models), strict=True)))


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Probability that a random positive scores above a random negative, ties counted half.

    Args:
        scores: (B,), higher for the positive class.
        positive: (B,) truth values.

    Returns:
        A number in [0, 1]; NaN where one of the two classes is absent or a score is NaN.

    Raises:
        ValueError: shapes that differ.

    >>> auroc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.75
    """
    if scores.ndim != 1 or scores.shape != positive.shape:
        raise InputError(
            f"scores {tuple(scores.shape)} and positive {tuple(positive.shape)} must be (B,) each"
        )
    odds = torch.stack([-scores, scores], dim=1).detach().cpu()
    return auroc_of_classes(odds, positive.cpu().bool()) or 0.0  # never None


def log_odds(logits: Tensor) -> Tensor:
    """(B, C) log of each class's probability over that of all others, of logits (B, C >= 2).

    It orders examples as the probability does, and where that rounds to 1, too.

    >>> log_odds(torch.tensor([[0.0, 2.0], [40.0, 0.0]])).tolist()
    [[-2.0, 2.0], [40.0, -40.0]]
    """
    if logits.shape[1] == 2:
        return logits - logits.flip(1)
    # log sum_j exp(x_j - m) + m over all but the own class, with m the largest x of those.
    first, at = logits.max(dim=1, keepdim=True)
    largest = at == torch.arange(logits.shape[1], device=logits.device)
    second = logits.masked_fill(largest, -math.inf).amax(dim=1, keepdim=True)
    first, second = (m.masked_fill(m.isinf(), 0.0) for m in (first, second))
    others = (logits - first).exp().repeat(logits.shape[1], 1, 1)  # (C, B, C)
    others.diagonal(dim1=0, dim2=2).zero_()
    beside = (logits - second).exp().masked_fill(largest, 0.0).sum(dim=1, keepdim=True)
    rest = torch.where(largest, beside, others.sum(dim=2).T).log()
    return logits - (rest + torch.where(largest, second, first))


def auroc_of_classes(odds: Tensor, targets: Tensor) -> float | None:
    """AUROC of each class against the rest, averaged over the classes; of two classes `auroc`.

    Args:
        odds: (B, C) of every example, larger for a likelier class, as `log_odds`.
        targets: (B,) classes.

    Returns:
        A number in [0, 1]; NaN where no class has both examples and counter-examples, or where one
        of the odds is NaN; None of no classes. Classes without examples do not count.

    Source: P. Domingos, F. Provost, "Well-trained PETs", 2000, with equal weights; scikit-learn's
    `roc_auc_score(multi_class="ovr", average="macro")` is the second method of the tests.
    """
    if not odds.shape[1]:
        return None
    if bool(odds.isnan().any()) or not len(odds):
        return math.nan
    columns = range(1, 2) if odds.shape[1] == 2 else range(odds.shape[1])
    scores, of_class = odds.T[columns.start :].contiguous().numpy(), targets.numpy()
    shares = list[float]()
    for c, row, ordered in zip(columns, scores, np.sort(scores, axis=1), strict=True):
        own = np.sort(row[of_class == c])  # sorted ones are found three times as fast
        if 0 < (of := len(own)) < len(row):
            # Twice the ranks, where equal scores have the mean of theirs: whole numbers.
            ranks = ordered.searchsorted(own) + ordered.searchsorted(own, side="right") + 1
            above = int(ranks.sum()) / 2 - of * (of + 1) / 2
            shares.append(above / (of * (len(row) - of)))
    return float(np.mean(shares)) if shares else math.nan
