"""What `overhear plan --json` prints, as types."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ...privacy import guarantee
from ..described import Adjacency, Count, Delta, Described, NotNegative, Status

__all__ = ["Planned", "PlannedAdversary", "PublishedBound", "SecondOpinion", "Target"]


class Target(Described):
    """What the run file asks for."""

    epsilon: NotNegative | None
    delta: Delta
    adversary: str | None


class GroupEpsilon(Described):
    """What one adversary can learn about several records of one person at one agent."""

    records: Count
    epsilon: NotNegative


class PlannedAdversary(Described):
    """What one adversary can learn about one record, as planned."""

    name: str
    """The adversary that was asked for."""
    victim: Count
    """The agent whose record is meant."""
    worst_adversary: str | None
    """The adversary behind the name, where the worst one was searched."""
    joint_sensitivity: NotNegative
    effective_noise_multiplier: NotNegative
    mu_per_round: NotNegative
    epsilon: NotNegative
    delta: Delta
    unit: Literal["record", "agent"]
    adjacency: Adjacency
    sampling: str
    status: Status
    """Only a proven epsilon is an upper bound, and it is finite. Of an infinite one: that nothing
    protects, or that a finite bound cannot be expressed."""
    bound: str
    """How epsilon was found."""
    because: str
    group: list[GroupEpsilon] | None = None
    """Of several records of one person, where `records_per_person` asks for them."""

    @model_validator(mode="after")
    def _of_its_epsilon(self) -> Self:
        if guarantee.Status(self.status).is_finite != math.isfinite(self.epsilon):
            raise ValueError(f"status {self.status!r} does not fit epsilon {self.epsilon:g}")
        return self


class SecondOpinion(Described):
    """What another library says of the same releases; no figure of ours but the one it is held to.

    Without a bracket `because` says why.
    """

    by: str
    """The library and its version."""
    epsilon: NotNegative
    """Ours, which it is held to."""
    optimistic: NotNegative | None
    """Its lower bound on epsilon."""
    pessimistic: NotNegative | None
    """Its upper bound on epsilon."""
    ratio: NotNegative | None
    """Ours / its upper bound."""
    verdict: Literal["confirmed", "contradicted", "not confirmed", "none"]
    """Contradicted: its lower bound lies above ours. Not confirmed: its upper bound lies more than
    1 % above ours. None: there is no bracket."""
    because: str


class PublishedBound(Described):
    """What the algorithm's paper claims; no figure of ours."""

    paper: str
    statement: str
    epsilon: NotNegative
    delta: Delta
    caveats: list[str]


class Planned(Described):
    """The object of `overhear plan --json`."""

    version: Annotated[Literal[1], Field(alias="schema")]
    noise_multiplier: NotNegative
    target: Target
    adversaries: list[PlannedAdversary]
    """Worst first."""
    published_bound: PublishedBound | None
    warnings: list[str]
    second_opinion: dict[str, SecondOpinion] | None = None
    """By adversary; where asked for."""
    victims: dict[str, list[NotNegative | None]] | None = None
    """By adversary epsilon of every agent's records, null for members of it; where asked for."""
