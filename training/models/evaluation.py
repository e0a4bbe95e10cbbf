"""Loss, accuracy and AUROC of the agents' models and of their mean, on test records."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.dataset import Examples
from .auroc import auroc
from .parameters import unflatten

__all__ = ["Metrics", "evaluate"]


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
