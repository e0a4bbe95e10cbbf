"""The noise that a target takes: an epsilon, or what the best membership test may achieve.

Epsilon is calibrated in `exposure.guarantees`. For a target of risk the trade-off curve of all
rounds is asked, and what it says at the noise that is found is evaluated once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...privacy.accounting.risk import scale_for_risk
from ...privacy.accounting.search import least_that_meets
from ...privacy.accounting.trade_off import trade_off
from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Statement
from ...privacy.target import Goal
from ..exposure.events import asked_releases, counted, spent_releases
from ..exposure.guarantees import calibrated_multiplier, check_traced_at, run_epsilon
from ..exposure.sensitivity import JointSensitivity


def reached(
    sensitivity: JointSensitivity,
    *,
    statement: Statement,
    noise_multiplier: float,
    goal: Goal,
    rounds: int | Sequence[int] | None = None,
) -> float:
    """What a run comes to, in the figure that a goal is about: epsilon, advantage, or TPR at FPR.

    Args:
        goal: whose figure is meant; how much it allows does not matter. The others are as for
            `run_epsilon`.

    Returns:
        Nats, or a probability, rounded upwards; 1 where nothing hides a record.

    Raises:
        ValueError: an accountant that gives no trade-off curve; else as for `run_epsilon`.
    """
    goal.check_accountant(statement.accountant)
    if not goal.of_risk:
        return run_epsilon(
            sensitivity, statement=statement, noise_multiplier=noise_multiplier, rounds=rounds
        )
    check_traced_at(sensitivity, noise_multiplier)
    releases = asked_releases(sensitivity, rounds)
    if not releases:
        return goal.fpr or 0.0
    if noise_multiplier == 0 or math.isinf(sensitivity.largest):
        return 1.0
    events = counted(releases, noise_multiplier, statement.adjacency, records=statement.at_once)
    curve = trade_off(events, adjacency=statement.adjacency)
    if goal.fpr is None:
        return curve.delta(0.0)
    return 1.0 - float(curve.false_negative_rates(goal.fpr))


def multiplier_for(sensitivity: JointSensitivity, *, statement: Statement, goal: Goal) -> float:
    """The noise multiplier at which a joint sensitivity costs no more than a goal allows.

    Args:
        sensitivity: at noise multiplier 1.
        statement: what every figure is said of.

    Returns:
        Noise std on a sum of clipped gradients / clip norm, rounded up and evaluated once more.

    Raises:
        UnsupportedView: no noise reaches the goal, or none is needed.
        UnsupportedMechanism: the accountant does not cover the rounds.
        ValueError: an accountant that gives no trade-off curve.

    Source: Kulynych et al., arXiv:2407.02191.
    """
    goal.check_accountant(statement.accountant)
    if goal.epsilon is not None:
        return calibrated_multiplier(sensitivity, statement=statement, epsilon=goal.epsilon)
    # Targets that no noise meets, and those that every noise does.
    who = sensitivity.adversary.name
    if math.isinf(sensitivity.largest):
        raise UnsupportedView(
            f"no noise multiplier reaches {goal.words} for {who}: {sensitivity.because}"
        )
    check_traced_at(sensitivity, None)
    releases = spent_releases(sensitivity.releases)
    if not releases:
        raise UnsupportedView(
            f"nothing about the data is released to {who}, so {goal.words} is met at every noise; "
            "give noise_multiplier in place of it"
        )
    # The least noise for the rounds as an accountant counts them.
    needed = scale_for_risk(
        counted(releases, 1.0, statement.adjacency, records=statement.at_once),
        advantage=goal.advantage,
        true_positive_rate=None if goal.tpr is None or goal.fpr is None else (goal.tpr, goal.fpr),
        adjacency=statement.adjacency,
    )
    if needed == 0.0:
        raise UnsupportedView(
            f"{goal.words} against {who} is met without any noise, because so few rounds draw a "
            "record that a test can hardly gain; choose a smaller target, or give noise_multiplier"
        )
    # The figure itself is evaluated at that noise, which is raised until it meets the goal.
    return least_that_meets(
        lambda noise: reached(sensitivity, statement=statement, noise_multiplier=noise, goal=goal),
        goal.figure,
        start=needed,
        otherwise=f"no noise is found for {goal.words} of {who}; choose a larger target",
    )
