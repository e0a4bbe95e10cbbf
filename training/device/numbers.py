"""What a device computed, looked at between rounds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...privacy.errors import NotFiniteError

__all__ = ["check_numbers"]


def check_numbers(state: Mapping[str, Tensor], *, first: int, round: int) -> None:
    """Refuse a state that holds what is not a number, or on the CPU what is not finite.

    Within a round nothing waits for a device, so what raises an error on the CPU gives such a value
    there: a solver that does not settle, or a projection that is not the same twice. On the CPU a
    state that overflowed is one of a run whose steps are too large. A state is seen by every closed
    view, so that to stop by it tells nothing more.

    Args:
        state: by field the rows of agents, (A, D).
        first: the agent of the first row.
        round: the number of the round that ended.

    Raises:
        FloatingPointError: A value is not a number.

    >>> check_numbers({"x": torch.zeros(2, 3)}, first=0, round=1)
    """
    here = {name: rows for name, rows in state.items() if rows.device.type == "cpu"}
    for name, rows in here.items():
        # An entry that is not finite makes its row's sum so; the converse is looked at.
        if not bool(rows.sum().isfinite()) and not bool((finite := rows.isfinite().all(1)).all()):
            raise NotFiniteError(
                f"after round {round} {name} of agent {first + int((~finite).nonzero()[0])} is not "
                "finite: the run diverged; lower the learning rate, and check the inputs"
            )
    there = {name: rows for name, rows in state.items() if rows.device.type != "cpu"}
    if not there or not bool(torch.stack([rows.isnan().any() for rows in there.values()]).any()):
        return
    name, rows = next((n, rows) for n, rows in there.items() if bool(rows.isnan().any()))
    agent = first + int(rows.isnan().any(1).nonzero()[0])
    raise NotFiniteError(
        f"after round {round} {name} of agent {agent} is not a number: values overflowed, a solver "
        "did not settle, or a projection gave another result for the same value; check the "
        "learning rate, and set training.device=cpu, where each has an error of its own"
    )
