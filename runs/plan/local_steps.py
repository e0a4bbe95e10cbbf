"""Whether clipping what several steps change costs a record more than noise at each of them."""

from __future__ import annotations

from ...privacy.accounting.accountant import composed_epsilon
from ...privacy.errors import InputError
from ...privacy.guarantee import Unit
from ...privacy.participation import MOST_RECORDS, Event, Reach, cohort, poisson
from ...training.exposure.events import spent_releases
from ..numbers import bound
from .plan import Plan

__all__ = ["local_steps_words"]


def local_steps_words(plan: Plan, adversary: str) -> tuple[str, float] | None:
    """A sentence, and epsilon with noise at each local step; None where that is not less.

    A record may turn round what the steps of its agent change, which is twice the clip norm; a sum
    of clipped gradients it changes by once the clip norm, and only where it is in the batch.

    Args:
        plan: of a run.
        adversary: whose figure is compared.
    """
    of = plan.guarantee(adversary)
    updates = [e for e in plan.scripts.of(1, None) if e.operation == "local_update"]
    releases = spent_releases(plan.exposures[adversary].releases)
    if plan.statement.unit is not Unit.RECORD or len(updates) != 1 or len(releases) != 1:
        return None
    (one,), given = releases, dict(updates[0].given)
    steps = int(given["steps"])
    simple = one.reach is Reach.BALL and one.contributions == 1 and one.drawn is None
    whole = given["batch"] == ("batch", -1)  # of all data
    if not simple or one.members is not None or steps > MOST_RECORDS or not of.status.is_finite:
        return None
    rate = 1.0 if whole else plan.sampling_rate
    if one.cohort < 1.0:
        each = {Event(plan.noise_multiplier, cohort(1.0, steps, rate), coin=one.cohort): one.rounds}
    else:
        each = {Event(plan.noise_multiplier, poisson(rate)): one.rounds * steps}
    try:
        found = composed_epsilon(
            each, delta=plan.statement.delta, adjacency=plan.statement.adjacency
        )
    except InputError:
        return None
    if not found < of.epsilon:
        return None
    at = "all data" if whole else f"a batch of its own at rate {rate:.6g}"
    words = (
        "Clipping what the local steps change does not pay for single records: noise of the same "
        f"multiplier on the clipped sum of each of the {steps} steps, on {at}, costs epsilon "
        f"{bound(found)} in place of {bound(of.epsilon)}."
    )
    return words, found
