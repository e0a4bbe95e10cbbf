"""What an accountant is asked: adjacency, method and ranges, refused here where they are wrong."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import SupportsIndex

from .._validate import check_real
from ..errors import InputError, InputTypeError
from .dominating_pairs import Pair
from .search import ADD_OR_REMOVE, PROFILE, REPLACE

__all__ = [
    "MOST_ROUNDS",
    "RESOLVED_MULTIPLIERS",
    "Accountant",
    "Adjacency",
    "check_count",
    "check_delta",
    "check_epsilon",
    "check_multiplier",
    "check_pld",
    "check_rounds",
    "check_setting",
    "closed_form",
    "reach",
]

MOST_ROUNDS = 10_000_000
RESOLVED_MULTIPLIERS = (1e-2, 1e9)  # outside, every record counts as sampled in every round


class Adjacency(StrEnum):
    """How two neighbouring data sets differ."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"

    @classmethod
    def _missing_(cls, value: object) -> Adjacency:
        raise _unknown("adjacency", value, cls)


class Accountant(StrEnum):
    """How rounds are added up.

    >>> Accountant("gdp-clt").kind
    'approximation, may be too small'
    """

    PLD = "pld"
    RDP = "rdp"
    PRV = "prv"
    DP_ACCOUNTING = "dp-accounting"
    GDP_CLT = "gdp-clt"

    @classmethod
    def _missing_(cls, value: object) -> Accountant:
        raise _unknown("accountant", value, cls)

    @property
    def kind(self) -> str:
        """'upper bound', or 'approximation, may be too small', which proves nothing."""
        if self is Accountant.GDP_CLT:
            return "approximation, may be too small"
        return "upper bound"

    @property
    def by_losses(self) -> bool:
        """Whether it composes distributions of the privacy loss, of rounds that differ too."""
        return self in (Accountant.PLD, Accountant.DP_ACCOUNTING)


def check_setting(
    rounds: SupportsIndex,
    sampling_rate: float,
    adjacency: str,
    accountant: str,
    contributions: SupportsIndex = 1,
) -> tuple[int, Accountant, tuple[Pair, ...]]:
    """Validated round count, accountant and dominating pairs.

    >>> check_setting(10, 1.3, "add-or-remove-one", "pld")
    Traceback (most recent call last):
    overhear...InputError: sampling_rate=1.3 must lie in [0, 1]; did you mean batch_size?
    """
    count = check_count(rounds)
    check_real("sampling_rate", sampling_rate)
    if not 0.0 <= sampling_rate <= 1.0:
        raise InputError(
            f"sampling_rate={sampling_rate} must lie in [0, 1]; did you mean batch_size?"
        )
    unit, by = Adjacency(adjacency), Accountant(accountant)
    several = _integer("contributions", contributions, most=None) > 1
    if unit is Adjacency.ADD_OR_REMOVE_ONE:
        return count, by, ADD_OR_REMOVE
    if not by.by_losses:
        raise InputError(
            f"accountant='{by}' does not cover adjacency='{unit}' and would return too little "
            "noise; use accountant='pld'"
        )
    return count, by, PROFILE if several else REPLACE


def check_count(rounds: SupportsIndex) -> int:
    """An integer number of rounds from 1 to 10 million."""
    return _integer("rounds", rounds, most=MOST_ROUNDS)


def check_rounds(
    counts: Mapping[tuple[float, float], int],
    adjacency: str,
    contributions: SupportsIndex,
    accountant: str = Accountant.PLD,
) -> tuple[Pair, ...]:
    """Dominating pairs of rounds that differ, (noise_multiplier, sampling_rate) and how often."""
    if not counts:
        raise InputError("rounds is empty; give at least one (noise_multiplier, sampling_rate)")
    if not Accountant(accountant).by_losses:
        raise InputError(
            f"accountant='{accountant}' adds up equal rounds only; use 'pld' or 'dp-accounting'"
        )
    pairs: tuple[Pair, ...] = ()
    for (multiplier, rate), count in counts.items():
        check_multiplier(multiplier)
        pairs = check_setting(count, rate, adjacency, accountant, contributions)[2]
    check_count(sum(counts.values()))
    return pairs


def reach(pairs: Sequence[Pair]) -> float:
    """By how much the sums of neighbouring data sets differ at most, in clip norms."""
    return 1.0 if pairs == ADD_OR_REMOVE else 2.0


def check_pld(accountant: str) -> None:
    """Rounds that differ are added up by the privacy loss distribution alone."""
    if Accountant(accountant) is not Accountant.PLD:
        raise InputError(f"accountant='{accountant}' adds up equal rounds only; use 'pld'")


def closed_form(multiplier: float, rate: float) -> bool:
    """Whether the round is bounded as if every record took part: exactly, or at the extremes."""
    return rate == 1.0 or not RESOLVED_MULTIPLIERS[0] <= multiplier <= RESOLVED_MULTIPLIERS[1]


def check_multiplier(value: float) -> None:
    """At least 0; not a number is refused."""
    check_real("noise_multiplier", value)
    if not value >= 0.0:
        raise InputError(
            f"noise_multiplier={value} must be at least 0; it is noise_std on the sum / clip_norm"
        )


def check_delta(value: float) -> None:
    """Strictly between 0 and 1."""
    check_real("delta", value)
    if not 0.0 < value < 1.0:
        raise InputError(f"delta={value} must lie strictly between 0 and 1; 1e-5 is usual")


def check_epsilon(value: float, *, most: float = 1e6, positive: bool = False) -> None:
    """From 0, or above it, to `most` nats."""
    check_real("epsilon", value)
    if not 0.0 <= value <= most or (positive and value == 0.0):
        bound = f"above 0 and at most {most:g}" if positive else "at least 0"
        raise InputError(f"epsilon={value} must be {bound}, in nats; 1 to 10 is usual")


def _integer(name: str, value: SupportsIndex, *, most: int | None) -> int:
    if isinstance(value, bool):
        raise InputTypeError(f"{name}={value} must be an integer of at least 1")
    try:
        count = operator.index(value)
    except TypeError:
        raise InputTypeError(f"{name}={value!r} must be an integer of at least 1") from None
    if most is None:
        if count < 1:
            raise InputError(f"{name}={count} must be at least 1")
    elif not 1 <= count <= most:
        raise InputError(f"{name}={count} must lie in [1, {most}]; did you mean examples?")
    return count


def _unknown(name: str, value: object, kind: type[StrEnum]) -> InputError:
    known = ", ".join(f"'{member}'" for member in kind)
    return InputError(f"{name}={value!r} must be one of {known}")
