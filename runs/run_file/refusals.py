"""What a run file may ask for and nobody here can prove: the reason, and what can be proven.

These are keys and values of other tools. They are refused with a reason, where a misspelt key gets
the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...privacy.errors import InputError

__all__ = ["PRIVACY", "TRAINING", "Unprovable", "refuse_unprovable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unprovable:
    """A request that no figure covers.

    Attributes:
        asks: whether a value of the key is the request.
        reason: what follows "key=value" in the sentence: why not, and the nearest thing that is.
    """

    asks: Callable[[object], bool]
    reason: str


def _always(value: object) -> bool:
    return value is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _does_not_clip(value: object) -> bool:
    return value is False or (isinstance(value, str) and value in ("none", "off", "false"))


def _is_agent(value: object) -> bool:
    return isinstance(value, str) and value in ("client", "device", "node", "user")


_OWN_BATCHES = Unprovable(
    asks=_always,
    reason=(
        "cannot be chosen: each record is drawn on its own, and no bound for shuffled batches or "
        "batches of a fixed size is known to the accountant; leave it out and give sampling_rate, "
        "or batch_size as the expected size"
    ),
)
_OWN_ROUNDS = Unprovable(
    asks=_always,
    reason=(
        "lets the data decide when to stop, which is a release of its own that no figure counts; "
        "leave it out and fix rounds. A run that is stopped by hand costs what all its rounds cost"
    ),
)
TRAINING: Mapping[str, Unprovable] = {
    "sampling": _OWN_BATCHES,
    "shuffle": _OWN_BATCHES,
    "patience": _OWN_ROUNDS,
    "early_stopping": _OWN_ROUNDS,
    "stop_at_accuracy": _OWN_ROUNDS,
    "stop_at_loss": _OWN_ROUNDS,
    "rounds": Unprovable(asks=_is_text, reason=_OWN_ROUNDS.reason),
}
PRIVACY: Mapping[str, Unprovable] = {
    "unit": Unprovable(
        asks=_is_agent,
        reason=(
            "is not to be had: use unit='agent' for all data of one agent, with an algorithm that "
            "clips whole vectors, or unit='record', beside which records_per_person states "
            "epsilon of several records of one person"
        ),
    ),
    "clip_norm": Unprovable(
        asks=_does_not_clip,
        reason=(
            "does not clip, so no noise bounds what a record gives away; set a finite clip_norm, "
            "or clip_norm=inf with noise_multiplier=0 for a run without protection"
        ),
    ),
}


def refuse_unprovable(values: object, requests: Mapping[str, Unprovable]) -> None:
    """Refuse the first request among the values of a table.

    Args:
        values: the table as read; anything else is left to the checks of its type.
        requests: by key.

    Raises:
        ValueError: with key, value, reason and remedy.

    >>> refuse_unprovable({"unit": "user"}, PRIVACY)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    overhear...InputError: unit='user' is not to be had: use unit='agent' ...
    """
    if not isinstance(values, Mapping):
        return
    for key, request in requests.items():
        if key in values and request.asks(values[key]):
            raise InputError(f"{key}={values[key]!r} {request.reason}")
