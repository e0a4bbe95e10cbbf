"""What a run file may ask for and nobody here can prove: the reason, and what can be proven.

These are keys and values of other tools. They are refused with a reason, where a misspelt key gets
the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...privacy.errors import InputError


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


def _is_one_of(*names: str) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in names


def _does_not_clip(value: object) -> bool:
    return value is False or _is_one_of("none", "off", "false")(value)


_ADAPTIVE = (
    "lets the clip norm follow how many gradients are below it: that count is a release in every "
    "round, which no figure here has, and a clip norm that follows it is no public number, as "
    "every round is held to; set it beforehand, by clip_norm, or by a list of clip_norms in an "
    "algorithm that takes one"
)
_OWN_CLIP_NORM = Unprovable(asks=_always, reason=_ADAPTIVE)
_OWN_BATCHES = Unprovable(
    asks=_always,
    reason=(
        "is no key; how batches are drawn is set by batches = 'poisson' (each record on its own, "
        "the default), 'fixed', 'shuffled' or 'cyclic'. No bound is known here for batches drawn "
        "otherwise, such as with replacement or by weights"
    ),
)
_OWN_ROUNDS = Unprovable(
    asks=_always,
    reason=(
        "lets the data decide when to stop, which is a release of its own that no figure counts; "
        "leave it out and fix rounds. A run that is stopped by hand costs what all its rounds cost"
    ),
)
_UNKNOWN_BATCHES = Unprovable(
    asks=_is_one_of(
        *("with-replacement", "replacement", "weighted", "importance", "balls-in-bins", "refilled")
    ),
    reason=(
        "has no bound here: nothing is known of batches that are drawn with replacement, by "
        "weights or losses, or refilled to a size; draw each record on its own "
        "(batches='poisson'), or use 'fixed', 'shuffled' or 'cyclic'"
    ),
)
_OWN_SCHEDULE = Unprovable(
    asks=_always,
    reason=(
        "is no key; a schedule of learning rates is the value of learning_rate: a list with one of "
        'each round, or a table such as { schedule = "step", start = 0.1, factor = 0.5, every = '
        "50 }"
    ),
)
TRAINING: Mapping[str, Unprovable] = {
    "learning_rates": _OWN_SCHEDULE,
    "learning_rate_schedule": _OWN_SCHEDULE,
    "schedule": _OWN_SCHEDULE,
    "decay": _OWN_SCHEDULE,
    "batches": _UNKNOWN_BATCHES,
    "sampling": _OWN_BATCHES,
    "shuffle": _OWN_BATCHES,
    "patience": _OWN_ROUNDS,
    "early_stopping": _OWN_ROUNDS,
    "stop_at_accuracy": _OWN_ROUNDS,
    "stop_at_loss": _OWN_ROUNDS,
    "rounds": Unprovable(asks=lambda value: isinstance(value, str), reason=_OWN_ROUNDS.reason),
}
PRIVACY: Mapping[str, Unprovable] = {
    "unit": Unprovable(
        asks=_is_one_of("client", "device", "node"),
        reason=(
            "is not supported: use unit='agent' for all data of one agent, with an algorithm that "
            "clips whole vectors, or unit='user' for all records of one user, of which "
            "records_per_person is the public cap; [data] user is the column that names whose a "
            "record is"
        ),
    ),
    "target_quantile": _OWN_CLIP_NORM,
    "clip_quantile": _OWN_CLIP_NORM,
    "target_unclipped_quantile": _OWN_CLIP_NORM,
    "adaptive_clipping": _OWN_CLIP_NORM,
    "adaptive_clip_norm": _OWN_CLIP_NORM,
    "clipping": Unprovable(asks=_is_one_of("adaptive", "quantile", "auto"), reason=_ADAPTIVE),
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

    >>> refuse_unprovable({"unit": "device"}, PRIVACY)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    overhear...InputError: unit='device' is not supported: use unit='agent' ...
    """
    if not isinstance(values, Mapping):
        return
    for key, request in requests.items():
        if key in values and request.asks(values[key]):
            raise InputError(f"{key}={values[key]!r} {request.reason}")


def check_largest(value: object) -> int | str:
    """An integer of at least 1, or "auto"."""
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**63 - 1:
        raise InputError(f"largest_batch={value!r:.40} must be an integer of at least 1, or 'auto'")
    return value


def check_batches(batches: str, batch_size: float | None, *, largest: object) -> None:
    """Refuse batches of one size without that size, or with another one.

    Raises:
        ValueError: no integer batch_size, or a largest batch besides.
    """
    if batches == "poisson":
        return
    if batch_size is None or batch_size != int(batch_size):
        given = "sampling_rate" if batch_size is None else f"batch_size={batch_size}"
        raise InputError(
            f"batches={batches!r} needs batch_size, an integer: the size of every batch; {given} "
            "given"
        )
    if largest is not None:
        raise InputError(
            f"largest_batch={largest!r} has no effect with batches={batches!r}, whose batches are "
            "all of one size; leave it out"
        )
