"""A bare run: the rounds of a run without its records and its model, which leaves its noise.

The real engine runs the real step on the same graph under the same randomness, but points are short
and no agent has a record. So a round costs next to nothing whatever the network is, and the noise
of every planned round can be looked at: its sources by (round, call, row), and what was added.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...training.algorithms.algorithm import Bound
from ...training.data.dataset import Examples
from ...training.engine.engine import Engine, Setting
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import AddedNoise, Recorded
from ...training.gradients.clipping import Coefficient
from ...training.gradients.gradients import Indices
from ...training.tracing.scripts import Scripts
from .on_host import on_host


class BareRound(NamedTuple):
    """The noise of one round.

    Attributes:
        number: of the round; 0 is the start.
        sources: (sources, W) of each call the standard normal rows, on the host.
        added: of each call what the step got.
    """

    number: int
    sources: list[Tensor]
    added: list[AddedNoise]


def bare_engine(
    setting: Setting,
    bound: Bound,
    *,
    width: int,
    randomness: SecretRandomness | None = None,
    scripts: Scripts | None = None,
) -> Engine:
    """The engine of a bare run, which has not begun.

    Args:
        bound: its algorithm.
        width: W, coordinates of each block.
        randomness: of the run; of the system's entropy when None.
        scripts: of the run's trace.
    """
    device, blocks = setting.device, len(setting.task.dimensions) if setting.task else 1
    empty = Examples(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))
    # Made without a global generator, which belongs to the caller.
    model = nn.utils.skip_init(nn.Linear, 1, width, bias=False)
    for weight in model.parameters():
        nn.init.zeros_(weight)
    bare = replace(
        setting,
        model=model,
        shards=[empty] * setting.graph.agents,
        users=[torch.zeros(0, dtype=torch.int64)] * setting.graph.agents,
        sampler=None,
        turns=None,
        task=_Blank(width, blocks) if setting.task else None,
    )
    nothing = _NoGradients(width * blocks, device=device, dtype=setting.dtype)
    return Engine(bare, bound, randomness=randomness, gradients=nothing, scripts=scripts)


def bare_rounds(
    engine: Engine, *, rounds: Sequence[int], start: bool = True, seconds: float
) -> tuple[list[BareRound], str]:
    """Run some rounds of a bare run, as far as time allows.

    Args:
        engine: of `bare_engine`, which has not begun.
        rounds: which, ascending. Those between are passed over where the step carries no public
            state from round to round, and run where it does.
        start: whether the start counts as one.
        seconds: after which no further round begins.

    Returns:
        The rounds that were run, and words for an error that ended them early, such as that of a
        function that needs the width of the run's own model; else "".
    """
    found, until = list[BareRound](), time.perf_counter() + seconds
    try:
        recorded = Recorded()
        engine.start(recorded=recorded)
        if start:
            found.append(_bare_round(0, recorded))
        planted = nobody(engine.setting)
        for number in rounds:
            if not has_public_state(engine):
                engine.round = number - 1
            while engine.round < number and time.perf_counter() < until:
                recorded = Recorded()
                engine.advance(planted=planted, recorded=recorded)
            if engine.round < number:
                break
            found.append(_bare_round(number, recorded))
    except (ValueError, TypeError, ArithmeticError, RuntimeError) as error:
        return found, f"round {engine.round + 1} fails without records and model: {error}"
    return found, ""


def _bare_round(number: int, recorded: Recorded) -> BareRound:
    held = on_host(recorded)
    return BareRound(number, held.noise, held.added)


def has_public_state(engine: Engine) -> bool:
    """Whether the step carries public tensors, so that rounds cannot be passed over."""
    return any(isinstance(value, Tensor) for value in engine.state._asdict().values())


def nobody(setting: Setting) -> Mapping[int, Examples]:
    """A batch without records for every agent."""
    return {
        agent: of.take(torch.zeros(0, dtype=torch.int64)) for agent, of in enumerate(setting.shards)
    }


class _NoGradients:
    """Sums over no records."""

    def __init__(self, width: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self._like = torch.zeros(0, width, device=device, dtype=dtype)

    def clipped_sums(
        self,
        models: Tensor,
        pairs: tuple[Indices, Indices],
        batches: Sequence[tuple[Tensor, Tensor]],
        *,
        clip_norm: float | None,
        coefficients: Sequence[Coefficient] = (1.0,),
        pairs_of_run: int | None = None,
    ) -> Tensor:
        """(E, D) zeros."""
        del models, batches, clip_norm, coefficients, pairs_of_run
        return self._like.new_zeros(len(pairs[0]), self._like.shape[1])


class _Blank:
    """A task of blocks without a loss."""

    def __init__(self, width: int, blocks: int) -> None:
        self._dimensions = (width,) * blocks

    @property
    def dimensions(self) -> tuple[int, ...]:
        """As many blocks as the run's task has."""
        return self._dimensions

    def initial(self) -> Tensor:
        """(D,) zeros."""
        return torch.zeros(sum(self.dimensions))

    def loss(self, point: Tensor, inputs: Tensor, target: Tensor) -> Tensor:
        """Nothing."""
        del inputs, target
        return 0.0 * point.sum()

    def project(self, value: Tensor) -> Tensor:
        """The same."""
        return value
