"""The checks of an audit that need no canary, on one watched run of the real engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ...training.algorithms.algorithm import Bound
from ...training.engine.engine import Setting
from ...training.engine.randomness import SecretRandomness
from ...training.tracing.trace import AlgorithmTrace, trace
from ..watching.result import Check
from ..watching.watched_run import watch
from .functions import function_check
from .knowledge import knowledge_check
from .messages import message_check
from .noise.residuals import residual_check
from .noise.streams import stream_check
from .sampler import sampler_check

__all__ = ["engine_checks"]


def engine_checks(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    planned: int | None = None,
    generator: np.random.Generator | None = None,
    traces: AlgorithmTrace | None = None,
    randomness: SecretRandomness | None = None,
) -> list[Check]:
    """Messages, residuals, streams, sampler, knowledge and functions, in this order.

    Messages are compared in the run's own precision, and once more in double precision, where
    rounding hides next to nothing; one check covers both.

    Args:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers, at the noise of the run.
        rounds: how many to watch: the first two, the last, and others by chance.
        planned: how many the run has, as many as are watched when None; the noise of all of them
            is looked at.
        generator: chooses rounds; of the system's entropy when None.
        traces: of all planned rounds, at the noise of the run; made here when None.
        randomness: of the system's entropy when None.
    """
    last, own = max(rounds, planned or rounds), randomness or SecretRandomness()
    chance = generator or np.random.default_rng()
    traces = traces or trace(
        bound.init,
        bound.step,
        graph=setting.graph,
        rounds=last,
        noise_multiplier=bound.noise_multiplier,
    )
    run = watch(
        setting,
        bound,
        rounds=rounds,
        planned=last,
        generator=chance,
        traces=traces,
        randomness=own,
    )
    messages = message_check(run)
    if messages.passed and setting.dtype is not torch.float64:
        sharp = replace(setting, dtype=torch.float64)
        messages = message_check(
            watch(sharp, bound, rounds=rounds, traces=traces, randomness=randomness)
        )
    streams = stream_check(setting, bound, traces, randomness=own, generator=chance)
    others = (sampler_check, knowledge_check, function_check)
    return [messages, residual_check(run), streams, *(check(run) for check in others)]
