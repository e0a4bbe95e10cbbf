"""What is known of a figure of a run: the status of its plan, where that fits what was released."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..privacy.guarantee import Status

__all__ = ["HEURISTIC", "STATUSES", "standing"]

HEURISTIC = "heuristic: at least this bad, no upper bound known"
STATUSES: Mapping[Status, str] = {
    Status.PROVEN: "proven",
    Status.DECLARED: "declared: an upper bound, if the list of releases is true",
    Status.CHECKED: "declared, checked: as declared, and what was kept of the releases agrees",
    Status.HEURISTIC: HEURISTIC,
    Status.NO_PROTECTION: "no protection: something is shown that no noise hides",
    Status.CANNOT_BE_EXPRESSED: "cannot be expressed: no finite bound is known here, one may exist",
}


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
