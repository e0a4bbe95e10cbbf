"""What is known of a figure of a run: the status of its plan, where that fits what was released."""

from __future__ import annotations

import math

from ..privacy.guarantee import Status

__all__ = ["standing"]


def standing(status: str, epsilon: float) -> Status:
    """The status of an epsilon of the ledger.

    Args:
        status: of the same adversary in the plan.
        epsilon: of what was released, in nats. It may be infinite where the planned one is not, if
            more was released than the accountant has a finite bound for.

    >>> str(standing("proven", 2.0)), str(standing("proven", math.inf))
    ('proven', 'cannot be expressed')
    """
    planned = Status(status)
    if planned.is_finite and math.isinf(epsilon):
        return Status.CANNOT_BE_EXPRESSED
    return planned
