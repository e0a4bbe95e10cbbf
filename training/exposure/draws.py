"""Which steps can draw batches that are not Poisson, and what shuffled ones give away at least."""

from __future__ import annotations

import math

from ...privacy.accounting.request import Adjacency
from ...privacy.batches.at_least import least_epsilon_of_shuffled
from ...privacy.batches.drawing import Scheme
from ...privacy.guarantee import Statement, Status
from ...privacy.participation import Reach
from ..tracing.linear_forms import Contributions
from ..tracing.round_trace import RoundTrace
from .sensitivity import JointSensitivity, UnsupportedMechanism, spent_releases

__all__ = ["at_least", "check_draws"]


def check_draws(trace: RoundTrace, scheme: Scheme, *, first: int) -> None:
    """Refuse a round that draws a batch at a rate of its own, or that no epoch has room for.

    Args:
        trace: of the round.
        scheme: how batches are drawn; any but Poisson.
        first: the number of the round, 0 for the start.

    Raises:
        UnsupportedMechanism: with the reason, and what can be drawn so.
    """
    groups = [g for g in trace.groups if isinstance(g, Contributions)]
    if any(g.sampling_rate is not None for g in groups):
        raise UnsupportedMechanism(
            f"the step draws a batch at a rate of its own, which batches='{scheme}' does not have; "
            "use round.draw() without a rate, or batches='poisson' without largest_batch"
        )
    batches = {g.batch for g in groups}
    if scheme.in_epochs and batches and (first == 0 or batches != {0}):
        when = "the start draws a batch" if first == 0 else "the step draws several batches a round"
        raise UnsupportedMechanism(
            f"{when}, and an epoch of batches='{scheme}' has one for each round; use "
            "batches='poisson' or 'fixed'"
        )


def at_least(
    sensitivity: JointSensitivity, *, statement: Statement, noise_multiplier: float
) -> float | None:
    """What shuffled batches give away at least, for worst-case gradients; None if not known.

    It is known of rounds that are all alike, where a record moves one sum: then its joint
    sensitivity is what it moves, and not only a bound on it.

    Args:
        sensitivity: of the run.
        statement: what epsilon is said of.
        noise_multiplier: of the run.
    """
    releases = spent_releases(sensitivity.releases)
    if len(releases) != 1 or sensitivity.status is not Status.PROVEN or not noise_multiplier > 0:
        return None
    (one,) = releases
    simple = one.contributions == 1 and one.reach is Reach.SUM
    shuffled = one.drawn is not None and one.drawn.scheme is Scheme.SHUFFLED
    if not simple or not shuffled or one.drawn is None or math.isinf(one.joint_sensitivity):
        return None
    return least_epsilon_of_shuffled(
        noise_multiplier / one.joint_sensitivity,
        batches=one.drawn.epoch,
        epochs=one.rounds // one.drawn.epoch,
        delta=statement.delta,
        replace=statement.adjacency is Adjacency.REPLACE_ONE,
        share=one.drawn.epoch * one.drawn.size / one.drawn.records,
    )
