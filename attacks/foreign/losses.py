"""The loss of single records under a model of the user's: what a final model is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import default_collate

from ...privacy.errors import InputError, InputTypeError

__all__ = ["Loss", "confidences_of", "losses_of"]

Array = NDArray[np.float64]
Loss = Callable[[Tensor, Tensor], Tensor]
_BATCH = 512
_LARGEST = 50.0  # of a logit-scaled confidence


def losses_of(model: nn.Module, records: Sequence[Any], *, loss: Loss | None = None) -> Array:
    """The loss of each record, in nats or the unit of `loss`.

    Args:
        model: in any mode; it is asked in evaluation mode and left as it was.
        records: (m) pairs (input, target).
        loss: (outputs, targets) -> (B,) losses; by default the cross-entropy of integer targets and
            the squared error of others.

    Returns:
        (m,).

    Raises:
        ValueError: a loss of another shape, or one that is not a number.
        TypeError: what is asked is no module.

    >>> model = nn.Linear(2, 3)
    >>> records = [(torch.zeros(2), 1), (torch.ones(2), 2)]
    >>> losses_of(model, records).shape
    (2,)
    """
    found = []
    for outputs, targets in _asked(model, records):
        of = _usual(outputs, targets) if loss is None else loss(outputs, targets)
        if not isinstance(of, Tensor) or of.shape != targets.shape[:1]:
            shape = tuple(of.shape) if isinstance(of, Tensor) else type(of).__name__
            raise InputError(
                f"loss gives {shape} for {len(targets)} records and must give one number a record, "
                '(B,); use reduction="none"'
            )
        found.append(of.detach().double().cpu().numpy())
    losses = np.concatenate(found)
    if (bad := int(np.isnan(losses).sum())) > 0:
        raise InputError(
            f"the model gives no number for {bad} of {len(losses)} records: its training diverged; "
            "train it again with a smaller learning rate"
        )
    return losses


def confidences_of(model: nn.Module, records: Sequence[Any]) -> Array:
    """How sure a classifier is of each record's own label: log(p / (1 - p)), (m,) in [-50, 50].

    Source: Carlini et al., "Membership Inference Attacks From First Principles", section VI-A.
    """
    found = []
    for outputs, targets in _asked(model, records):
        if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            raise InputError(
                f"the model gives {tuple(outputs.shape)} for targets {tuple(targets.shape)}; "
                "membership is inferred of classifiers, which give (B, classes) logits for (B,) "
                "integer labels"
            )
        logits, own = outputs.double(), targets.long()[:, None]
        if int(own.max()) >= logits.shape[1] or int(own.min()) < 0:
            raise InputError(
                f"a label lies outside the {logits.shape[1]} classes that the model tells apart"
            )
        others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
        phi = logits.gather(1, own)[:, 0] - others
        phi = phi.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        found.append(phi.clamp(-_LARGEST, _LARGEST).cpu().numpy())
    return np.concatenate(found)


def _usual(outputs: Tensor, targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        return nn.functional.cross_entropy(outputs, targets.long(), reduction="none")
    errors = (outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)) ** 2
    return errors.sum(dim=1)


def _asked(model: nn.Module, records: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, targets) of batches of the records."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"a model of {type(model).__name__} must be a torch.nn.Module, which gives outputs for "
            "a batch of inputs"
        )
    first = next(model.parameters(), None)
    with torch.no_grad(), _evaluating(model):
        for start in range(0, len(records), _BATCH):
            inputs, targets = default_collate([tuple(r) for r in records[start : start + _BATCH]])
            if first is not None:
                inputs = inputs.to(first.device)
                inputs = inputs.to(first.dtype) if inputs.is_floating_point() else inputs
                targets = targets.to(first.device)
            yield model(inputs), targets


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
