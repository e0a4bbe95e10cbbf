"""Loss, accuracy and AUROC of the agents' models and of their mean, on test records."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...privacy.errors import InputError
from ..data.dataset import Examples
from .parameters import unflatten

__all__ = ["Metrics", "auroc", "evaluate"]


class Metrics(NamedTuple):
    """Test metrics of a round.

    Attributes:
        round: the round after which they were taken.
        accuracy, loss: (A,) of each agent's model.
        consensus_accuracy, consensus_loss: of the mean model.
        consensus_distance: root mean squared distance of the models from their mean.
        auroc, consensus_auroc: of two classes, class 1 being the positive one; None of more.
    """

    round: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    consensus_accuracy: float
    consensus_loss: float
    consensus_distance: float
    auroc: tuple[float, ...] | None = None
    consensus_auroc: float | None = None


def evaluate(
    model: nn.Module,
    models: Tensor,
    examples: Examples,
    *,
    round: int,
    batch: int = 2048,
) -> Metrics:
    """Loss, accuracy and, of two classes, AUROC of every agent's model and of their mean.

    Args:
        model: the network; its own parameters are not used.
        models: (A, D) flat parameters.
        examples: test inputs and targets.
        round: the number that the metrics carry.
        batch: examples at once.
    """
    mean = models.mean(dim=0)
    distance = float((models - mean).square().sum(dim=1).mean().sqrt())
    own = [_score(model, flat, examples, batch=batch) for flat in models]
    consensus = _score(model, mean, examples, batch=batch)
    return Metrics(
        round=round,
        accuracy=tuple(s.accuracy for s in own),
        loss=tuple(s.loss for s in own),
        consensus_accuracy=consensus.accuracy,
        consensus_loss=consensus.loss,
        consensus_distance=distance,
        auroc=tuple(s.auroc for s in own if s.auroc is not None) or None,
        consensus_auroc=consensus.auroc,
    )


class _Score(NamedTuple):
    accuracy: float
    loss: float
    auroc: float | None


@torch.no_grad()
def _score(model: nn.Module, flat: Tensor, examples: Examples, *, batch: int) -> _Score:
    parameters = {name: value.to(flat.device) for name, value in unflatten(model, flat).items()}
    right, loss, margins = 0.0, 0.0, list[Tensor]()
    for x, y in zip(examples.inputs.split(batch), examples.targets.split(batch), strict=True):
        inputs, targets = x.to(flat.device, flat.dtype), y.to(flat.device)
        logits = torch.func.functional_call(model, parameters, (inputs,))
        loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
        right += float((logits.argmax(dim=1) == targets).sum())
        if logits.shape[1] == 2:
            margins.append(logits[:, 1] - logits[:, 0])
    area = auroc(torch.cat(margins), examples.targets == 1) if margins else None
    return _Score(right / len(examples.targets), loss / len(examples.targets), area)


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
    from sklearn.metrics import roc_auc_score

    if scores.ndim != 1 or scores.shape != positive.shape:
        raise InputError(
            f"scores {tuple(scores.shape)} and positive {tuple(positive.shape)} must be (B,) each"
        )
    of_class = positive.bool().cpu()
    if of_class.all() or not of_class.any() or bool(scores.isnan().any()):
        return math.nan
    # Scores by their order: scikit-learn refuses infinite ones, which a model that diverged has.
    order = torch.unique(scores.detach().cpu(), return_inverse=True)[1]
    return float(roc_auc_score(of_class.numpy(), order.numpy()))
