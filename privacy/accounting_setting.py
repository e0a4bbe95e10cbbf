"""What an accountant is asked: adjacency, method and ranges, refused here where they are wrong."""

import operator
from enum import StrEnum
from typing import SupportsIndex, TypeVar

from .loss_accounting import ADD_OR_REMOVE, REPLACE
from .loss_atoms import Pair

__all__ = [
    "RESOLVED_MULTIPLIERS",
    "Accountant",
    "Adjacency",
    "check_count",
    "check_delta",
    "check_epsilon",
    "check_multiplier",
    "check_setting",
]

_Member = TypeVar("_Member", bound=StrEnum)
_MOST_ROUNDS = 10_000_000
RESOLVED_MULTIPLIERS = (1e-2, 1e9)  # outside, every record counts as sampled in every round


class Adjacency(StrEnum):
    """How two neighbouring data sets differ."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class Accountant(StrEnum):
    """How rounds are added up.

    >>> Accountant("gdp-clt").kind
    'approximation, may be too small'
    """

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    GDP_CLT = "gdp-clt"

    @property
    def kind(self) -> str:
        """'upper bound', or 'approximation, may be too small', which proves nothing."""
        if self is Accountant.GDP_CLT:
            return "approximation, may be too small"
        return "upper bound"


def check_setting(
    rounds: SupportsIndex, sampling_rate: float, adjacency: str, accountant: str
) -> tuple[int, Accountant, tuple[Pair, ...]]:
    """Validated round count, accountant and dominating pairs.

    >>> check_setting(10, 1.3, "add-or-remove-one", "pld")
    Traceback (most recent call last):
    ValueError: sampling_rate=1.3 must lie in [0, 1]; did you mean batch_size?
    """
    count = check_count(rounds)
    if not 0.0 <= sampling_rate <= 1.0:
        raise ValueError(
            f"sampling_rate={sampling_rate} must lie in [0, 1]; did you mean batch_size?"
        )
    unit = _member(Adjacency, adjacency, "adjacency")
    by = _member(Accountant, accountant, "accountant")
    if unit is Adjacency.ADD_OR_REMOVE_ONE:
        return count, by, ADD_OR_REMOVE
    if by is not Accountant.PLD:
        raise ValueError(
            f"accountant='{by}' does not cover adjacency='{unit}' and would return too little "
            "noise; use accountant='pld'"
        )
    return count, by, REPLACE


def check_count(rounds: SupportsIndex) -> int:
    """An integer number of rounds from 1 to 10 million."""
    if isinstance(rounds, bool):
        raise TypeError(f"rounds={rounds} must be an integer of at least 1")
    try:
        count = operator.index(rounds)
    except TypeError:
        raise TypeError(f"rounds={rounds!r} must be an integer of at least 1") from None
    if not 1 <= count <= _MOST_ROUNDS:
        raise ValueError(f"rounds={count} must lie in [1, {_MOST_ROUNDS}]; did you mean examples?")
    return count


def check_multiplier(value: float) -> None:
    """At least 0; not a number is refused."""
    if not value >= 0.0:
        raise ValueError(
            f"noise_multiplier={value} must be at least 0; it is noise_std on the sum / clip_norm"
        )


def check_delta(value: float) -> None:
    """Strictly between 0 and 1."""
    if not 0.0 < value < 1.0:
        raise ValueError(f"delta={value} must lie strictly between 0 and 1; 1e-5 is usual")


def check_epsilon(value: float, *, most: float = 1e6, positive: bool = False) -> None:
    """From 0, or above it, to `most` nats."""
    if not 0.0 <= value <= most or (positive and value == 0.0):
        bound = f"above 0 and at most {most:g}" if positive else "at least 0"
        raise ValueError(f"epsilon={value} must be {bound}, in nats; 1 to 10 is usual")


def _member(kind: type[_Member], value: str, name: str) -> _Member:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(f"'{member}'" for member in kind)
        raise ValueError(f"{name}={value!r} must be one of {known}") from None
