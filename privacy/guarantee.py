"""Guarantee: one privacy statement with everything that it depends on."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Status(enum.StrEnum):
    """Whether a figure is an upper bound that is proven.

    PROVEN: the view is closed, linear and bounded, so epsilon is an upper bound.
    HEURISTIC: no upper bound is known; never passes a policy.
    """

    PROVEN = "proven"
    HEURISTIC = "heuristic"


class Unit(enum.StrEnum):
    """Whose presence is hidden."""

    RECORD = "record"


class Sampling(enum.StrEnum):
    """How a batch is drawn."""

    POISSON = "poisson"
    FULL = "full batch"


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """What one adversary can learn about one record of one victim.

    Attributes:
        adversary: the name that was asked for.
        victim: the agent that holds the record; the worst one where none was asked for.
        worst_adversary: the agent behind "neighbour" where the worst one was searched.
        joint_sensitivity: mu of one round at noise multiplier 1, clip norm 1.
        effective_noise_multiplier: noise multiplier / joint sensitivity.
        mu_per_round: 1 / effective noise multiplier, for a record that is in the batch.
        epsilon, delta, unit, adjacency, sampling, status: the statement itself.
        because: the reason in a sentence.

    Raises:
        ValueError: a negative or undefined figure, or delta outside (0, 1).

    >>> Guarantee(adversary="eavesdropper", victim=0, joint_sensitivity=1.0,
    ...     effective_noise_multiplier=2.0, mu_per_round=0.5, epsilon=1.5, delta=1e-5,
    ...     unit=Unit.RECORD, adjacency="add-or-remove-one", sampling=Sampling.POISSON,
    ...     status=Status.PROVEN, because="every release carries its own noise").epsilon
    1.5
    """

    adversary: str
    victim: int
    joint_sensitivity: float
    effective_noise_multiplier: float
    mu_per_round: float
    epsilon: float
    delta: float
    unit: Unit
    adjacency: str
    sampling: Sampling
    status: Status
    because: str
    worst_adversary: str | None = None

    def __post_init__(self) -> None:
        """Check that the figures are figures."""
        for name in ("joint_sensitivity", "effective_noise_multiplier", "mu_per_round", "epsilon"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise ValueError(f"{name}={value} must be a number >= 0")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta={self.delta} must lie in (0, 1)")
