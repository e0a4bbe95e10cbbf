"""What an attacker estimates: a contribution of the victim, or a combination of several."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...training.engine.recording import GradientCall, LocalCall


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
        local: number and size of the local steps, where it is the change of a model over these.
    """

    name: str
    columns: tuple[int, ...]
    factors: tuple[float, ...]
    points: Tensor  # (P, D')
    call: GradientCall
    bound: float
    owner: int
    local: tuple[int, float] | None = None


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


def local_target(made: LocalCall, *, row: int, column: int, round: int) -> Target | None:
    """The change of a victim's model over local steps, as a mean of their gradients.

    None where the change is clipped, is made with momentum or is pulled back to its start: no
    gradients along plain steps explain it then.
    """
    asked = made.asked
    if asked.clip_norm is not None or asked.momentum or asked.proximal:
        return None
    rows = torch.arange(len(made.start))
    call = GradientCall(
        models=made.start[None], owners=rows, holders=rows, coefs=(1.0,), batch=asked.call,
        clip_norm=None,
    )  # fmt: skip
    return Target(
        name=f"round {round}, change over {asked.steps} local steps",
        columns=(column,),
        factors=(1.0,),
        points=made.start[None, row],
        call=call,
        bound=math.inf,
        owner=row,
        local=(asked.steps, asked.learning_rate),
    )
