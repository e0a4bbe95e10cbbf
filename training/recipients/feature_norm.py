"""Inputs of bounded norm, by a public bound that data do not decide."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...privacy._validate import within
from ...privacy.errors import InputError
from ..data.dataset import Dataset

__all__ = ["with_feature_norm"]

_MARGIN = 1e-6  # of the bound, for the rounding of float32


def with_feature_norm(data: Dataset, norm: float) -> Dataset:
    """The same data set with every record's inputs shortened to a norm, where they are longer.

    Training, test and validation records alike, each by itself: whether one is shortened tells
    nothing of another.

    Args:
        data: in memory.
        norm: public bound on the L2 norm of all inputs of a record, after normalisation, > 0.

    Raises:
        ValueError: a norm out of range, or records that are not in memory.

    >>> from overhear.training.data.load import load_dataset
    >>> found = with_feature_norm(load_dataset("digits"), 1.0)
    >>> 0.999 < float(found.inputs.flatten(1).norm(dim=1).max()) <= 1.0
    True
    """
    within("feature_norm", norm, "(0, inf)")
    if data.store is not None:
        raise InputError(
            f"feature_norm={norm:g} of {data.name!r}, whose records are not in memory: shorten "
            "them in the file, or leave feature_norm out"
        )
    if data.columns:
        data = replace(data, columns=())  # its numbers are no longer those of the table
    kept = data.validation
    return replace(
        data,
        inputs=_shortened(data.inputs, norm),
        test_inputs=_shortened(data.test_inputs, norm),
        validation=None if kept is None else kept._replace(inputs=_shortened(kept.inputs, norm)),
        notes=(*data.notes, f"Inputs are shortened to norm {norm:g}, a public bound."),
    )


def _shortened(inputs: Tensor, norm: float) -> Tensor:
    """Rows no longer than the norm, calculated in double precision."""
    rows = inputs.flatten(1).double()
    if not bool(torch.isfinite(rows).all()):
        raise InputError("feature_norm needs inputs that are finite numbers")
    # Twice: squares of tiny or huge inputs may not be floats, so lengths are relative first.
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-300)
    lengths = largest * (rows / largest).norm(dim=1, keepdim=True)
    share = (norm * (1.0 - _MARGIN) / lengths).clamp_max(1.0)
    return (rows * share).float().reshape(inputs.shape).contiguous()
