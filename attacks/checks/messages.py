"""Messages: every message and end state equals A G + B z + known, to float rounding.

A comes from the trace, G from an oracle that shares nothing with what trains, z and the known
values as the run recorded them. A clip of the batch in place of the records, a mean by the realised
batch size or a release whose noise is left out shows in the first round that has one.
"""

from __future__ import annotations

import numpy as np

from ..watching.result import Check
from ..watching.watched_run import WatchedRun

_NAME = "messages"


def message_check(run: WatchedRun) -> Check:
    """Compare every message and end state of a run with its row.

    Args:
        run: a watched run.

    Returns:
        Passed if no difference is longer than rounding of what is added up may account for: 64
        units in the norm of each part, and the root of a unit in a gradient's own.
    """
    if run.mismatch:
        return Check.not_as_traced(_NAME, run.mismatch)
    rows, wrong, worst, first = 0, 0, 0.0, ""
    for watched, residuals in zip(run.rounds, run.residuals, strict=True):
        for residual in residuals:
            left = (residual.value - residual.recorded_noise(watched)).norm(dim=1).numpy()
            allowed = residual.rounding.numpy()
            share = np.divide(left, allowed, out=np.zeros_like(left), where=allowed > 0)
            share[(allowed == 0) & (left > 0) | ~np.isfinite(left)] = np.inf
            rows += len(left)
            wrong += int((share > 1).sum())
            worst = max(worst, float(share.max(initial=0.0)))
            if not first and (share > 1).any():
                at = int((share > 1).argmax())
                first = (
                    f"in round {watched.number} {residual.names[at]} is off by {left[at]:.2g}, "
                    f"where rounding accounts for {allowed[at]:.2g}"
                )
    compared = (
        f"{rows} messages and end states of {len(run.rounds) - 1} rounds and the start were "
        "compared with the sum of their gradients by an independent oracle, their recorded noise "
        "and what is known"
    )
    if run.bounded_contributions:
        compared += f" ({run.bounded_contributions} values of `bounded` taken as recorded)"
    found = (
        f"{wrong} differ, first: {first}"
        if wrong
        else f"none differs by more than rounding, the largest by {worst:.1g} of it"
    )
    return Check.exact(_NAME, f"{compared}; {found}.", tests=rows, passed=not wrong)
