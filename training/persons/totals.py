"""What several runs cost together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ...privacy.accounting import accountant as accounting
from ...privacy.guarantee import Statement
from ...privacy.participation import Event
from ..exposure.events import counted, spent_releases
from ..exposure.guarantees import check_traced_at
from ..exposure.sensitivity import JointSensitivity

__all__ = ["total_epsilon"]


def total_epsilon(runs: Sequence[tuple[JointSensitivity, float]], *, statement: Statement) -> float:
    """Epsilon of several runs together, whose noise and batches were drawn apart.

    All releases are composed as those of one run are, by privacy loss distribution, whatever
    accountant the runs name.

    Args:
        runs: of each the joint sensitivity at noise multiplier 1, and its noise multiplier.
        statement: what epsilon is said of; its accountant is not used.

    Raises:
        ValueError: a rate or a sensitivity that is none, or more rounds than are added up.

    >>> from overhear.privacy import EAVESDROPPER, Status
    >>> from overhear.training.exposure.sensitivity import Release
    >>> one = JointSensitivity(EAVESDROPPER, 0, (Release(1.0, 1.0, 2, 1),), Status.PROVEN, "a test")
    >>> round(total_epsilon([(one, 2.0), (one, 2.0)], statement=Statement(delta=1e-5)), 4)  # mu = 1
    4.3772
    """
    together: Counter[Event] = Counter()
    for sensitivity, noise_multiplier in runs:
        check_traced_at(sensitivity, noise_multiplier)
        releases = spent_releases(sensitivity.releases)
        if releases and (noise_multiplier == 0 or math.isinf(sensitivity.largest)):
            return math.inf
        if releases:
            together += counted(releases, noise_multiplier, statement.adjacency)
    if not together:
        return 0.0
    return accounting.composed_epsilon(
        together, delta=statement.delta, adjacency=statement.adjacency
    )
