"""What an attacker estimates: a contribution of the victim, or a combination of several."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...training.engine.recording import GradientCall

__all__ = ["Series", "Target"]


class Target(NamedTuple):
    """A contribution of the victim, or a combination of its contributions from one batch.

    Attributes:
        name: what it is called.
        columns: those of the contributions.
        factors: what each is multiplied by.
        points: models at which its gradients were taken, for one contribution after another.
        call: what the gradients were asked for; the same of each contribution but the models.
        bound: on each contribution.
        owner: agent at whose model they were taken.
    """

    name: str
    columns: tuple[int, ...]
    factors: tuple[float, ...]
    points: Tensor  # (P, D')
    call: GradientCall
    bound: float
    owner: int


class Series(NamedTuple):
    """Contributions of one agent that are made alike in one round after another.

    Attributes:
        owner: whose they are.
        columns: theirs, one a round.
        values: (D,) each, where the adversary is their owner; else nothing.
        target: position among the targets of each that is one; -1 of others.
    """

    owner: int
    columns: list[int]
    values: list[Tensor]
    target: list[int]
