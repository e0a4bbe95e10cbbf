"""What is proven of the messages that an attack uses: mu of the attacked rounds.

The planted records take part in these rounds alone, and surely, so their mu is that of the closed
views of these rounds, without amplification by sampling. The record that is planted is one more
than an empty batch: add-or-remove-one.
"""

from __future__ import annotations

import math

from ...privacy.guarantee import Status
from ...privacy.view.view import UnsupportedView
from ...training.exposure.joint_sensitivities import joint_sensitivities
from ...training.tracing.trace import AlgorithmTrace
from ..interception.replay import Trial


def proven_mu(trial: Trial, traces: AlgorithmTrace) -> float:
    """Mu of Gaussian differential privacy of the attacked rounds, for one record of the victim.

    Args:
        trial: the attacked rounds, at the noise of the run.
        traces: as `trace_of` makes them from the trial.

    Returns:
        mu; infinite where nothing is proven: the view leaks, the figure is heuristic, or the
        adversary has no closed view.
    """
    who = trial.onlooker().name
    try:
        ((_, found),) = joint_sensitivities(traces, [who], sampling_rate=1.0, victim=trial.victim)
    except UnsupportedView:
        return math.inf
    if found.status is not Status.PROVEN:
        return math.inf
    attacked = range(trial.round, trial.round + trial.together)
    squares = [
        release.joint_sensitivity**2
        for number in attacked
        for release in found.releases
        if release.first <= number < release.first + release.rounds
    ]
    return math.sqrt(sum(squares))
