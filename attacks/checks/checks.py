"""The checks of an audit that need no canary, on one watched run of the real engine."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...training.algorithms.algorithm import Bound
from ...training.data.dataset import Examples
from ...training.engine.engine import Setting
from ...training.engine.randomness import SecretRandomness
from ..watching.result import Check
from ..watching.watched_run import watch
from .functions import function_check
from .knowledge import knowledge_check
from .messages import message_check
from .noise.residuals import residual_check
from .records import record_check
from .sampler import sampler_check
from .sensitivity import sensitivity_check
from .values import value_check

__all__ = ["engine_checks"]


def engine_checks(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    randomness: SecretRandomness | None = None,
    source: Examples | None = None,
) -> list[Check]:
    """Messages, residuals, sampler, knowledge, functions, values, records, sensitivity, in order.

    Messages are compared in the run's own precision, and once more in double precision, where
    rounding hides next to nothing; one check covers both. Neighbouring data are replayed in double
    precision alone.

    Args:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers, at the noise of the run.
        rounds: how many to watch, from the start.
        randomness: of the system's entropy when None.
        source: all records that the shards were dealt from; see `record_check`.
    """
    run = watch(setting, bound, rounds=rounds, randomness=randomness)
    sharp = run
    if setting.dtype is not torch.float64:
        precise = replace(setting, dtype=torch.float64)
        sharp = watch(precise, bound, rounds=rounds, randomness=randomness)
    messages = message_check(run)
    if messages.passed and sharp is not run:
        messages = message_check(sharp)
    others = (residual_check, sampler_check, knowledge_check, function_check, value_check)
    return [
        messages,
        *(check(run) for check in others),
        record_check(run, source=source),
        sensitivity_check(sharp),
    ]
