"""Vectors and positions as a caller has them: tensors, arrays, models, lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ....privacy.errors import InputError, InputTypeError
from ....privacy.releases.fields import shown
from ....training.models.parameters import flatten

_PRECISE = (torch.float32, torch.float64)


def vector_of(found: Any, name: str) -> Tensor:
    """A flat vector (D,) on the host, in the precision that it has.

    Args:
        found: a tensor, an array, a model, or a sequence or mapping of tensors, laid end to end.
        name: what it is called in errors.

    Raises:
        TypeError: it is none of these.
        ValueError: it holds a number that is not finite.

    >>> vector_of([torch.ones(2, 2), torch.zeros(1)], "value").tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0]
    """
    try:
        flat = _flat(found, name)
        finite = torch.isfinite(flat if flat.dtype in _PRECISE else flat.float())
    except (RuntimeError, OverflowError) as error:  # sparse, without data, or too large a number
        raise _no_vector(found, name) from error
    if not bool(finite.all()):
        at = int((~finite).nonzero()[0])
        raise InputError(
            f"{name} holds {float(flat[at])} at coordinate {at}; nothing that is not finite may be "
            "released: a receiver would see that a sum overflowed, which depends on the records"
        )
    return flat


def _flat(found: Any, name: str) -> Tensor:
    if isinstance(found, nn.Module):
        return flatten(found).detach().cpu().clone()
    if isinstance(found, Mapping):
        found = list(found.values())
    if isinstance(found, Sequence) and not isinstance(found, str) and found:
        if all(isinstance(one, Tensor | np.ndarray) for one in found):
            return torch.cat([_flat(one, name) for one in found])
        if all(isinstance(one, int | float) and not isinstance(one, bool) for one in found):
            return torch.tensor(found, dtype=torch.float64)
    if isinstance(found, np.ndarray) and found.dtype.kind == "f" and found.dtype.itemsize <= 8:
        # A copy: later steps of the caller may work in place.
        return torch.from_numpy(np.array(found, dtype=found.dtype.newbyteorder("=")).ravel())
    if isinstance(found, Tensor) and found.is_floating_point():
        return found.detach().cpu().reshape(-1).clone()
    raise _no_vector(found, name)


def _no_vector(found: Any, name: str) -> InputTypeError:
    return InputTypeError(
        f"{name}={shown(found)} must be a tensor or array of floats, dense and of at most 64 bits "
        "each, a model, or a list of them"
    )


def check_precise(found: Tensor, name: str) -> None:
    """Refuse numbers of so few digits that rounding hides what a check looks for."""
    if found.dtype not in _PRECISE:
        raise InputError(
            f"{name} is {str(found.dtype).removeprefix('torch.')}, whose rounding hides faults as "
            "large as the noise; release float32 or float64, or leave the round out of keep"
        )


def positions_of(found: Any) -> NDArray[np.int64]:
    """Positions (B,) of records, ascending.

    Raises:
        TypeError: no whole numbers.
        ValueError: a position below 0, or one that stands twice.

    >>> positions_of([7, 2]).tolist()
    [2, 7]
    """
    if isinstance(found, Tensor):
        found = found.detach().cpu().numpy()
    array = np.asarray(found)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputTypeError(
            f"batch={shown(found)} must be the positions of its records, a list of whole numbers"
        )
    ordered = np.sort(array.astype(np.int64))
    if ordered[0] < 0:
        raise InputError(f"batch holds position {ordered[0]}; positions count from 0")
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise InputError(
            f"batch holds position {twice[0]} twice, and then a record moves the sum by twice its "
            "clip norm; hold each record once"
        )
    return ordered


def each_of(found: Any, vectors: int, name: str) -> tuple[Any, ...]:
    """One of a thing for each vector of `of`: a tuple as it is, one thing for all of them.

    Raises:
        ValueError: a tuple of another length.
    """
    if not isinstance(found, tuple):
        return (found,) * vectors
    if len(found) != vectors:
        raise InputError(
            f"{name} is a tuple of {len(found)}, and `of` has {vectors} vectors; give one for "
            "each, None where it is another agent's"
        )
    return found
