"""How much a reply changed what was received: at least its noise, at most its bound and noise.

The noise z on n numbers is Gaussian and knows nothing of what it is added to, so of all that it may
be added to, nothing makes the change more often short than 0 does:

    P(|v + z| < s sqrt(q)) <= P(chi2_n < q),        |v + z| <= |v| + |z|

A reply that is as declared is refused once in 10**12 arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, gammaincinv

from ...privacy.errors import InputError
from ...privacy.guarantee import Unit

_FALSE_ALARM = 1e-12
_CLIPPING_NORM = "clipping_norm"  # by which Flower's strategies tell clients their bound


def check_clip_of_server(received: Any, *, clip: float) -> None:
    """Refuse a message whose server sets a bound above the declared one: mods clip to the server's.

    Raises:
        ValueError: it does; the client has not trained.
    """
    for name, config in received.config_records.items():
        said = config.get(_CLIPPING_NORM)
        if said is not None and not (isinstance(said, int | float) and said <= clip):
            raise InputError(
                f"the server says {name}.{_CLIPPING_NORM}={said!r:.40}, to which Flower's mods "
                f"clip the update, and clip={clip:g} is declared; let the server ask for at most "
                "that, or declare its bound from the first round on"
            )


def check_noise(sent: Any, received: Any, *, unit: Unit, clip: float, noise_std: float) -> None:
    """Refuse a reply that shows that the declared noise, or the declared bound, is not there.

    Args:
        sent: the array record of the reply.
        received: the content of the message, which has arrays of these names.
        unit: of the bound; where it is a record, it does not bound the update.
        clip: of the update.
        noise_std: of each number.

    Raises:
        ValueError: an array of another shape, one that noise would have changed by more, or an
            update that is longer than bound and noise together.
    """
    known = _by_name(received)
    length = change = rounding = 0.0
    numbers = 0
    for name, array in sent.items():
        now, before = _numbers(array), _numbers(known[name])
        if now.shape != before.shape:
            raise InputError(
                f"the array {name!r} has the shape {now.shape}, and that of the message has "
                f"{before.shape}; send the model's own arrays alone"
            )
        here = _squared(now.astype(np.float64) - before)
        if now.size and here < noise_std**2 * 2 * gammaincinv(now.size / 2, _FALSE_ALARM):
            raise InputError(
                f"the array {name!r} of the reply is closer to that of the message than noise of "
                f"noise_std={noise_std:g} on each of its {now.size} numbers leaves it, but once in "
                "1e12; add that noise to every array, in a mod after `record`, or declare the "
                "noise that there is"
            )
        change, length = change + here, length + _squared(now)
        rounding += float(np.finfo(now.dtype).eps) * (_squared(now) + _squared(before)) ** 0.5
        numbers += now.size
    most = clip + noise_std * float(chdtri(max(numbers, 1), _FALSE_ALARM)) ** 0.5 + rounding
    if unit is Unit.CLIENT and min(change, length) ** 0.5 > most * (1 + 1e-6):
        raise InputError(
            f"the reply is further from the message than clip={clip:g} and noise of "
            f"noise_std={noise_std:g} on each of {numbers} numbers allow, but once in 1e12; clip "
            "the update to that before noise is added"
        )


def flat(record: Any, names: Any) -> NDArray[Any]:
    """(D,) the named arrays of a record, or of all records of a message, end to end."""
    known = _by_name(record) if hasattr(record, "array_records") else record
    return np.concatenate([_numbers(known[name]).ravel() for name in names])


def _by_name(content: Any) -> dict[str, Any]:
    """The arrays of a message; of two of one name the first."""
    found: dict[str, Any] = {}
    for record in content.array_records.values():
        for name, array in record.items():
            found.setdefault(name, array)
    return found


def _numbers(array: Any) -> NDArray[Any]:
    return np.asarray(array.numpy() if hasattr(array, "numpy") else array)


def _squared(of: NDArray[Any]) -> float:
    with np.errstate(over="ignore"):
        return float(np.square(of.astype(np.float64)).sum())
