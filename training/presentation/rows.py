"""An account as data: rows for pandas, and the object that `overhear plan --json` prints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...privacy.goal import Goal
from ...privacy.guarantee import Guarantee, Unit
from ...privacy.missing import needs
from .summary import Summary

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["as_frame", "as_json", "row_of", "target_of"]


def row_of(stated: Guarantee) -> dict[str, Any]:
    """The figures of a statement by name; infinite ones are floats."""
    return {
        "name": stated.adversary,
        "victim": stated.victim,
        "worst_adversary": stated.worst_adversary,
        "joint_sensitivity": stated.joint_sensitivity,
        "effective_noise_multiplier": stated.effective_noise_multiplier,
        "mu_per_round": stated.mu_per_round,
        "epsilon": stated.epsilon,
        "delta": stated.delta,
        "unit": stated.unit.value,
        "adjacency": stated.adjacency.value,
        "sampling": str(stated.sampling),
        "status": stated.status.value,
        "bound": str(stated.bound),
        "because": stated.because,
        **_group(stated),
        **({} if stated.at_least is None else {"at_least": stated.at_least}),
    }


def _group(stated: Guarantee) -> dict[str, Any]:
    """Of several records of one person or user, where that was asked for."""
    found: dict[str, Any] = {}
    if stated.unit is Unit.USER:
        found["records_per_person"] = stated.statement.records_per_person
    if stated.group:
        found["group"] = [{"records": k, "epsilon": _finite(of)} for k, of in stated.group]
    if held := stated.statement.holders:
        found["holders"] = [{"agent": agent, "records": records} for agent, records in held]
    return found


def as_json(summary: Summary) -> dict[str, Any]:
    """The object of a plan, without what only a run file knows; infinite figures are "inf"."""
    return {
        "schema": 1,
        "noise_multiplier": _finite(summary.noise_multiplier),
        "target": target_of(
            summary.goal,
            delta=summary.statement.delta,
            adversary=summary.target,
            reached=summary.reached,
        ),
        "adversaries": [
            {name: _finite(value) for name, value in row_of(stated).items()}
            for stated in summary.guarantees
        ],
        "published_bound": None,
        "warnings": list(summary.warnings),
    }


def target_of(
    goal: Goal | None, *, delta: float, adversary: str | None, reached: float | None
) -> dict[str, Any]:
    """The target by name; what is no target of epsilon stands beside an epsilon of None.

    Args:
        goal: what is met; None where the noise was given.
        delta: of every epsilon.
        reached: what it comes to, in the goal's own figure.
    """
    found: dict[str, Any] = {
        "epsilon": None if goal is None else goal.epsilon,
        "delta": delta,
        "adversary": adversary,
    }
    if goal is not None and goal.of_risk:
        asked = {"advantage": goal.advantage, "tpr": goal.tpr, "fpr": goal.fpr}
        found |= {name: value for name, value in asked.items() if value is not None}
        found["reached"] = reached
    return found


def as_frame(guarantees: Sequence[Guarantee]) -> DataFrame:
    """A row an adversary, worst first.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError(needs("to_pandas", "pandas")) from error
    return DataFrame([row_of(stated) for stated in guarantees])


def _finite(value: Any) -> Any:
    return "inf" if isinstance(value, float) and math.isinf(value) else value
