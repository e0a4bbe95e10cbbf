"""The task that a run file names, and the network whose parameters it trains."""

from __future__ import annotations

from typing import Literal

from torch import nn

from ...privacy.errors import InputError
from .auc import AreaUnderCurve, with_centres
from .losses import NetworkLoss, loss_named
from .tasks import ClassWeights, Task

__all__ = ["TaskName", "with_task"]

TaskName = Literal["classification", "class-weights", "auc", "regression"]


def with_task(
    model: nn.Module,
    *,
    task: TaskName,
    loss: str | None = None,
    classes: int = 0,
    outputs: int = 0,
    strength: float = 1.0,
    penalty: float = 0.0,
    penalty_steepness: float = 10.0,
    positive_share: float = 0.5,
) -> tuple[nn.Module, Task | None]:
    """A network as it is trained, and what it is trained for.

    Args:
        task: what is learned.
        loss: of classification and regression, by name; by default the cross-entropy.
        classes: number of logits; 0 of a regression.
        outputs: numbers that a regression predicts; 0 of classes.
        strength: of `ClassWeights`.
        penalty: of `ClassWeights`.
        penalty_steepness: of `ClassWeights`.
        positive_share: of `AreaUnderCurve`.

    Returns:
        The network whose flat parameters are block 0 of the point, and the task; None where it is
        the network's cross-entropy.

    Raises:
        ValueError: a loss, or a number of classes, that does not fit.

    >>> with_task(nn.Linear(2, 2), task="class-weights", classes=2)[1].dimensions
    (6, 2)
    """
    if task == "auc":
        if classes != 2:
            raise InputError(
                f'[model] task="auc" tells one class from another, and there are classes={classes} '
                "in [data]; use data of two classes"
            )
        return with_centres(model), AreaUnderCurve(model, positive_share=positive_share)
    if task == "class-weights":
        return model, ClassWeights(
            model,
            classes=classes,
            strength=strength,
            penalty=penalty,
            penalty_steepness=penalty_steepness,
        )
    if (loss or "cross-entropy") == "cross-entropy":
        return model, None
    found = loss_named(loss or "", classes=classes, outputs=outputs)
    return model, NetworkLoss(model, found, regression=outputs > 0)
