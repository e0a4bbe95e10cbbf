"""Assertions for tests of one's own training: each names the value, the bound and the remedy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..attacks.audit.audited import AGAIN
from ..attacks.foreign.audit_training import TrainingAudit, audit_training
from ..attacks.foreign.claimed import Claimed, parse_claim
from ..attacks.foreign.own_training import check_dataset
from ..privacy._validate import within
from . import BUDGET
from .neighbours import Replayed
from .neighbours import replay as replayed

Train = Callable[[Any], Any]
_EACH = 250  # canaries of one training


def replay(train: Train, data: Any, **claim: Any) -> Replayed:
    """`overhear.replay`, of which every check that applies must run and pass.

    Raises:
        AssertionError: a check fails, or could not be made.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and what was found
    found = replayed(train, data, **claim)
    if not found.passed:
        raise AssertionError(repr(found))
    return found


def assert_noise(train: Train, data: Any, *, noise: float, **how: Any) -> Replayed:
    """Noise of this size is in all that leaves and moves, and new with each entropy.

    Args:
        train: as of `overhear.replay`, and data.
        noise: deviation on each coordinate of the clipped sum.
        how: scale and seed of `overhear.replay`.

    Raises:
        AssertionError: there is less, it is known to anyone who knows a seed, or none was seen.
    """
    __tracebackhide__ = True
    found = replayed(train, data, noise=noise, records=8, **how)
    looked = [found["noise"], found["secrecy"]]
    if not all(one.passed for one in looked):
        raise AssertionError("\n".join(f"{one.name} {one.verdict}: {one.words}" for one in looked))
    return found


def assert_private(
    train: Train, data: Any, *, claim: Claimed | str, seconds: float | None = None, **how: Any
) -> TrainingAudit:
    """Canaries show no more than is claimed, as many as there is time for.

    One training is timed; of a sound one the assertion fails once in a thousand times at most.

    Args:
        train: as of `audit_training`, and data.
        claim: such as "epsilon=3,delta=1e-5", or of `claimed`.
        seconds: for all trainings, those of a second look with them; by default 60, or what
            `pytest --overhear-seconds` says.
        how: more of `audit_training`.

    Raises:
        AssertionError: the claim is contradicted, in both looks.
    """
    __tracebackhide__ = True
    seconds = BUDGET["seconds"] if seconds is None else seconds
    within("seconds", seconds, "(0, inf)")
    each = min(_EACH, check_dataset(data, name="data"))
    began = time.monotonic()
    train(data)
    one = max(time.monotonic() - began, 1e-3)
    runs = max(1, int((seconds - one) / one / (1 + AGAIN)))
    found = audit_training(
        train,
        data,
        claim=parse_claim([claim]) if isinstance(claim, str) else claim,
        **{"canaries": each * min(runs, 400), "per_run": each, **how},
    )
    if found.contradicted:
        raise AssertionError(
            f"{found.words()}. Look for what adds to the sum unclipped or without noise: "
            "overhear.replay(train, data, clip=..., noise=...) names it"
        )
    return found
