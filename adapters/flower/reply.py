"""What a client's reply holds: the one declared array record, and everything else by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from ...privacy.errors import InputError

_SHOWN = 6
TRAIN = "train"


def check_reply(
    content: Any, received: Any, *, message_type: str, allow: Collection[str]
) -> str | None:
    """Refuse a reply that holds more than is declared.

    Args:
        content: the `RecordDict` of the reply.
        received: that of the message, whose model the reply has again.
        message_type: of the message that it answers, "train", "evaluate" or one of one's own.
        allow: names of records, or of a record's entries as "record.key", that depend on no data.

    Returns:
        The name of the declared array record, which the reply to "train" has, else None.

    Raises:
        ValueError: it holds anything else, no array record, or numbers that are not finite.
    """
    train = message_type == TRAIN or message_type.startswith(f"{TRAIN}.")
    arrays = [name for name in content.array_records if name not in allow]
    declared = arrays[:1] if train else []
    beside = [*arrays[len(declared) :], *_entries(content, allow)]
    if beside:
        names = ", ".join(beside[:_SHOWN]) + (", ..." if len(beside) > _SHOWN else "")
        verb = "is" if len(beside) == 1 else "are"
        raise InputError(
            f"the reply to {message_type!r} holds {names}, which {verb} sent without noise, and no "
            "line declares it; leave it out of the reply, or, only where it depends on no record, "
            f"say record(..., allow=[{beside[0]!r}])"
        )
    if train and not declared:
        raise InputError(
            "the reply to 'train' holds no ArrayRecord that could be declared; let the client "
            "return its model"
        )
    for name in declared:
        _check_numbers(content.array_records[name], name)
        _check_arrays(content.array_records[name], name, received)
    return declared[0] if declared else None


def _entries(content: Any, allow: Collection[str]) -> Iterator[str]:
    """The entries of metrics and configurations that nobody allowed, as "record.key"."""
    for records in (content.metric_records, content.config_records):
        for name, record in records.items():
            if name in allow:
                continue
            yield from (f"{name}.{key}" for key in record if f"{name}.{key}" not in allow)


def _check_arrays(record: Any, name: str, received: Any) -> None:
    """Refuse arrays that the message had not, such as statistics of a layer."""
    known = {key for array_record in received.array_records.values() for key in array_record}
    if more := [key for key in record if key not in known]:
        raise InputError(
            f"{name} holds the array {more[0]!r}, which the message had not, so that it is no "
            "update of what was received; send the model's own arrays alone"
        )


def _check_numbers(record: Any, name: str) -> None:
    try:
        arrays = record.to_numpy_ndarrays()
    except (TypeError, ValueError):  # its text may quote what it read
        raise InputError(
            f"{name} holds an array that is none of numpy's, so that its noise cannot be "
            "judged; make each by Array(ndarray)"
        ) from None
    for array in arrays:
        if array.dtype.kind != "f":
            raise InputError(
                f"{name} holds an array of {array.dtype}, to which no Gaussian noise was added; "
                "send arrays of floating-point numbers alone"
            )
        if not np.isfinite(array).all():
            raise InputError(
                f"{name} holds a number that is not finite, which shows that a sum overflowed, and "
                "that depends on the records; send nothing in this round"
            )
