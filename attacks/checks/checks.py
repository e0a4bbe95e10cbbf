"""The five checks of an audit that need no canary, on one watched run of the real engine."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...training.algorithms.algorithm import Bound
from ...training.engine.engine import Setting
from ...training.engine.randomness import SecretRandomness
from ..watching.result import Check
from ..watching.watched_run import watch
from .functions import function_check
from .knowledge import knowledge_check
from .messages import message_check
from .noise.residuals import residual_check
from .sampler import sampler_check

__all__ = ["engine_checks"]


def engine_checks(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    randomness: SecretRandomness | None = None,
) -> list[Check]:
    """Messages, residuals, sampler, knowledge and functions, in this order.

    Messages are compared in the run's own precision, and once more in double precision, where
    rounding hides next to nothing; one check covers both.

    Args:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers, at the noise of the run.
        rounds: how many to watch, from the start.
        randomness: of the system's entropy when None.
    """
    run = watch(setting, bound, rounds=rounds, randomness=randomness)
    messages = message_check(run)
    if messages.passed and setting.dtype is not torch.float64:
        sharp = replace(setting, dtype=torch.float64)
        messages = message_check(watch(sharp, bound, rounds=rounds, randomness=randomness))
    others = (residual_check, sampler_check, knowledge_check, function_check)
    return [messages, *(check(run) for check in others)]
