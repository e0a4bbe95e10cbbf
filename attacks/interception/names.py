"""The names of what is intercepted, and which of them an algorithm has; `scenarios` does it."""

from __future__ import annotations

import enum

from ...training.own.names import algorithm_named, is_own

NOT_IDENTIFIED = "not identified"  # the stage of a record of which nothing was seen by itself


class Scenario(enum.StrEnum):
    """What is intercepted."""

    CROSS_GRADIENT = "cross-gradient"
    MOMENTUM = "momentum"
    VIEW = "view"


def scenarios_of(algorithm: str) -> tuple[Scenario, ...]:
    """The scenarios of an algorithm; every one has the view, and one of the user's nothing else."""
    single = () if is_own(algorithm) else algorithm_named(algorithm).single_gradients
    return (*map(Scenario, single), Scenario.VIEW)
