"""The checks of an audit that need no canary, on one watched run of the real engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...training.algorithms.algorithm import Bound
from ...training.data.store import Store
from ...training.engine.engine import Setting
from ...training.engine.randomness import SecretRandomness
from ...training.tracing.trace import AlgorithmTrace
from ..watching.result import Check
from ..watching.watched_run import traces_of, watch
from .functions import function_check
from .knowledge import knowledge_check
from .messages import message_check
from .noise.residuals import residual_check
from .noise.streams import stream_check
from .records import record_check
from .sampler import sampler_check
from .sensitivity import sensitivity_check
from .values import value_check


def engine_checks(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    planned: int | None = None,
    generator: np.random.Generator | None = None,
    traces: AlgorithmTrace | None = None,
    randomness: SecretRandomness | None = None,
    source: Store | None = None,
    watched_so_far: Callable[[int], None] | None = None,
) -> list[Check]:
    """All checks of the engine that need no canary, in an order that a reader can follow.

    Messages, residuals, streams, sampler, knowledge, functions, values, records, sensitivity.

    Messages are compared in the run's own precision, and once more in double precision, where
    rounding hides next to nothing; one check covers both. Neighbouring data are replayed in double
    precision alone.

    Args:
        setting: graph, model and data of the run.
        bound: the algorithm with its numbers, at the noise of the run.
        rounds: how many to watch: the first two, the last, and others by chance.
        planned: how many the run has, as many as are watched when None; the noise of all of them
            is looked at.
        generator: chooses rounds; of the system's entropy when None.
        traces: of all planned rounds, at the noise of the run; made here when None.
        randomness: of the system's entropy when None.
        source: all records that the shards were dealt from; see `record_check`.
        watched_so_far: called after each round of the first run that is watched, with their number.
    """
    last, own = max(rounds, planned or rounds), randomness or SecretRandomness()
    chance = generator or np.random.default_rng()
    traces = traces or traces_of(bound, setting, rounds=last)
    how: dict[str, Any] = {"rounds": rounds, "planned": last, "generator": chance, "traces": traces}
    run = watch(setting, bound, randomness=own, kept_so_far=watched_so_far, **how)
    sharp = run
    if setting.dtype is not torch.float64:
        precise = replace(setting, dtype=torch.float64)
        sharp = watch(precise, bound, randomness=randomness, seconds=0.0, **how)
    messages = message_check(run)
    if messages.passed and sharp is not run:
        messages = message_check(sharp)
    return [
        messages,
        residual_check(run),
        stream_check(setting, bound, traces, randomness=own, generator=chance),
        sampler_check(run),
        knowledge_check(run),
        function_check(run),
        value_check(run),
        record_check(run, source=source),
        sensitivity_check(sharp),
    ]
