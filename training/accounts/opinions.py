"""What another library says of the releases of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.guarantee import Statement
from ...privacy.reference.second_opinion import SecondOpinion, second_opinion
from ..exposure.events import asked_releases, counted
from ..exposure.sensitivity import JointSensitivity

__all__ = ["opinion_on"]


def opinion_on(
    epsilon: float,
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    rounds: int | Sequence[int] | None = None,
) -> SecondOpinion:
    """What dp-accounting says of the releases whose `epsilon` `run_epsilon` has found.

    Args:
        sensitivity: as for `run_epsilon`.
        statement: as for `run_epsilon`.
        noise_multiplier: as for `run_epsilon`.
        rounds: as for `run_epsilon`.
    """
    releases = asked_releases(sensitivity, rounds)
    hidden = noise_multiplier > 0 and math.isfinite(sensitivity.largest)
    return second_opinion(
        counted(releases, noise_multiplier, statement.adjacency, records=statement.at_once)
        if hidden
        else {},
        ours=epsilon,
        delta=statement.delta,
        adjacency=statement.adjacency,
    )
