"""A run of the real engine from its start, with all that some of its rounds drew and sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ...privacy.errors import InputError, within
from ...training.algorithms.algorithm import Bound
from ...training.data.store import Examples
from ...training.engine.engine import Engine
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import AddedNoise, KeptCalls, Recorded
from ...training.engine.setting import Setting
from ...training.engine.transcript import Transcript
from ...training.gradients.gradients import Indices
from ...training.step.values import Agents, Value
from ...training.tracing.scripts import Scripts
from ...training.tracing.trace import AlgorithmTrace, trace
from .recording import Part, Residual, Residuals, WatchedRound

# What a round recorded, read back from the device that it ran on: once, and whole.
#
# Attacks and checks compute in float64 by other means than the run, on the host. What the run
# itself has to be given again, such as the values that a replay is held to, is put back where it
# runs.

_Of = TypeVar("_Of")
_HOST = torch.device("cpu")


def to_cpu(recorded: Recorded) -> Recorded:
    """A record of a round whose tensors are on the host; calls of functions stay where they are.

    >>> to_cpu(Recorded(noise=[torch.zeros(2, 3)])).noise[0].device
    device(type='cpu')
    """
    return replace(
        recorded,
        contributions=placed(recorded.contributions, _HOST),
        calls=placed(recorded.calls, _HOST),
        local={at: placed(made, _HOST) for at, made in recorded.local.items()},
        noise=placed(recorded.noise, _HOST),
        added=placed(recorded.added, _HOST),
        known=placed(recorded.known, _HOST),
        given=placed(recorded.given, _HOST),
    )


def placed(what: _Of, device: torch.device) -> _Of:
    """The same on a device: a tensor, a value, or a list or tuple of what is among these."""
    found: Any = what
    if isinstance(what, Tensor):
        found = what.to(device)
    elif isinstance(what, Value):
        found = type(what)(placed(what.base, device), placed(what.pick, device))
    elif isinstance(what, tuple) and hasattr(what, "_fields"):
        found = type(what)(*(placed(part, device) for part in what))
    elif isinstance(what, list | tuple):
        found = type(what)(placed(part, device) for part in what)
    return found


# A bare run: the rounds of a run without its records and its model, which leaves its noise.
#
# The real engine runs the real step on the same graph under the same randomness, but points are
# short and no agent has a record. So a round costs next to nothing whatever the network is, and the
# noise of every planned round can be looked at: its sources by (round, call, row), and what was
# added.


class BareRound(NamedTuple):
    """The noise of one round."""

    number: int  # of the round; 0 is the start
    sources: list[Tensor]  # (sources, W) of each call the standard normal rows, on the host
    added: list[AddedNoise]  # of each call what the step got


def bare_engine(
    setting: Setting,
    bound: Bound,
    *,
    width: int,
    randomness: SecretRandomness | None = None,
    scripts: Scripts | None = None,
) -> Engine:
    """The engine of a bare run of W coordinates a block, which has not begun.

    It has the system's entropy where no randomness is given.
    """
    blocks = len(setting.task.dimensions) if setting.task else 1
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
    nothing = _NoGradients(width * blocks, device=setting.device, dtype=setting.dtype)
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
    held = to_cpu(recorded)
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
        self, models: Tensor, pairs: tuple[Indices, Indices], batches: Any, **how: Any
    ) -> Tensor:
        """(E, D) zeros."""
        del models, batches, how
        return self._like.new_zeros(len(pairs[0]), self._like.shape[1])


class _Blank:
    """A task of blocks without a loss."""

    def __init__(self, width: int, blocks: int) -> None:
        self.dimensions = (width,) * blocks

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


SECONDS_BETWEEN = 1.0  # for rounds that run without being kept


class WatchedRun:
    """A run and its residuals.

    Args:
        rounds: the start, and the rounds that were kept, in their order.
    """

    def __init__(
        self,
        engine: Engine,
        rounds: Sequence[WatchedRound],
        *,
        bound: Bound,
        randomness: SecretRandomness,
    ) -> None:
        self.engine, self.rounds = engine, rounds
        self.bound, self.randomness = bound, randomness

    @property
    def setting(self) -> Setting:
        """What ran."""
        return self.engine.setting

    @cached_property
    def residuals(self) -> Sequence[Sequence[Residual]]:
        """For each round the residuals of its messages and then of its end state.

        Raises:
            ValueError: a round that did not do what was traced; see `mismatch`.
        """
        different = self.mismatch
        if different:
            raise InputError(f"the run is not what was traced: {different}")
        made = Residuals(self.setting)
        return [made.of_round(watched) for watched in self.rounds]

    @cached_property
    def mismatch(self) -> str:
        """What a round drew, computed or sent otherwise than its trace; empty where nothing."""
        return next((watched.mismatch for watched in self.rounds if watched.mismatch), "")

    def again(self, engine: Engine, watched: WatchedRound, *, recorded: Recorded) -> None:
        """Make a watched round again, from the state that it began with; it fills `recorded`.

        The engine is of the same algorithm, on as many agents.
        """
        if not watched.number:
            engine.state = None  # so that it draws the noise of the first start
            engine.start(recorded=recorded)
            return
        of = engine.setting
        rows = {name: Agents(v.to(of.device, of.dtype)) for name, v in watched.before.items()}
        public = {name: value.to(of.device) for name, value in watched.public.items()}
        engine.state = self.engine.state._replace(**rows, **public)
        engine.round = watched.number - 1
        engine.advance(planted=watched.planted, recorded=recorded)

    @property
    def told_rounds(self) -> str:
        """The watched rounds in words."""
        numbers = [str(watched.number) for watched in self.rounds[1:]]
        consecutive = len(numbers) > 2 and self.rounds[-1].number == len(numbers)
        return f"1 to {numbers[-1]}" if consecutive else ", ".join(numbers)

    @property
    def told(self) -> str:
        """The watched rounds and the start in words."""
        return f"rounds {self.told_rounds} and the start"

    @property
    def source_starts(self) -> tuple[Sequence[int], int]:
        """See `Recording`: no two rounds share a source."""
        ends = np.cumsum([0, *(len(watched.noise_columns) for watched in self.rounds)]).tolist()
        return ends[:-1], ends[-1]

    @property
    def made_noise(self) -> Sequence[tuple[str, Tensor]]:
        """See `Recording`: of each call of a round."""
        return [
            (f"noise call {call} in round {watched.number}", z)
            for watched in self.rounds
            for call, z in enumerate(watched.recorded.noise)
        ]

    @property
    def parts(self) -> Mapping[int, Sequence[Part]]:
        """The tensors of a row, by its width; a task's other blocks are tensors by themselves."""
        found, start, task = list[Part](), 0, self.setting.task
        for name, of in self.setting.model.named_parameters():
            found.append(Part(f"the parameter '{name}'", start, tuple(of.shape)))
            start += of.numel()
        by_width: dict[int, Sequence[Part]] = {}
        for number, width in enumerate(task.dimensions if task else ()):
            by_width[width] = [Part(f"block {number} of the point", 0, (width,))]
        return {**by_width, start: found}

    @property
    def bounded_contributions(self) -> int:
        """How many calls of `bounded` were taken as recorded."""
        return sum(call is None for watched in self.rounds for call in watched.recorded.calls)


def watch(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int | Sequence[int],
    traces: AlgorithmTrace | None = None,
    randomness: SecretRandomness | None = None,
    planted: Callable[[int], Mapping[int, Examples]] | None = None,
    seconds: float = SECONDS_BETWEEN,
    kept_so_far: Callable[[int], None] | None = None,
) -> WatchedRun:
    """Run the start and some rounds, and keep everything.

    Rounds between those that are kept run without being kept, for some seconds in all. Once these
    are used up, rounds are passed over: the next that is kept has its own number, noise and
    batches, and the models that the last one left. Where the step carries public tensors from round
    to round, which no round can do without, those between run without records instead.

    Args:
        bound: the algorithm with its numbers; its noise is that of the run.
        rounds: which to keep, ascending, or how many of the first.
        traces: of all rounds up to the last of these; made here when None.
        randomness: of the system's entropy when None.
        planted: for a round the agents whose batch is given instead of drawn.
        seconds: for rounds between.
        kept_so_far: called after each round that is kept with how many these are.

    Returns:
        The run.

    Raises:
        ValueError: no round to watch.
    """
    # Which rounds are kept, and the engine that runs them.
    numbers = chosen_rounds(rounds, planned=rounds) if isinstance(rounds, int) else rounds
    traces = traces or traces_of(bound, setting, rounds=numbers[-1])
    by_round = [traces.start, *(one for one, count in traces.rounds for _ in range(count))]
    kept = [0, *numbers]
    transcript, own = Transcript(rounds=kept), randomness or SecretRandomness()
    engine = Engine(setting, bound, randomness=own, taps=[transcript], scripts=traces.scripts)
    found, left = list[WatchedRound](), seconds
    # Rounds between are run or passed over; of kept ones everything is recorded.
    for number in kept:
        if number:
            left -= _reach(engine, number, seconds=left)
        functions = KeptCalls()
        recorded = Recorded(functions=functions)
        batches = planted(number) if planted and number else {}
        before, public = parts_of_state(engine) if number else ({}, {})
        if number:
            engine.advance(planted=batches, recorded=recorded)
        else:
            engine.start(recorded=recorded)
        after, _ = parts_of_state(engine)
        found.append(
            WatchedRound(
                number=number,
                trace=by_round[number],
                recorded=replace(to_cpu(recorded), added=[]),  # which only a bare run is asked for
                messages=transcript.of(round=number),
                before=before,
                after=after,
                planted=batches,
                calls=placed(functions.calls, _HOST),
                public=public,
            )
        )
        if number and kept_so_far is not None:
            kept_so_far(len(found) - 1)
    return WatchedRun(engine, found, bound=bound, randomness=own)


def traces_of(bound: Bound, setting: Setting, *, rounds: int) -> AlgorithmTrace:
    """An algorithm on symbols, at its noise and on the graph of a run."""
    return trace(
        bound.init,
        bound.step,
        graph=setting.graph,
        rounds=rounds,
        noise_multiplier=bound.noise_multiplier,
        release=bound.release,
    )


_MOST_ROWS = 6144  # of gradients, noise, messages and known values, in all watched rounds
_LEAST_ROUNDS = 4  # the first two, the last and one by chance


def affordable_rounds(rounds: int, traces: AlgorithmTrace) -> int:
    """How many rounds are watched of those that are asked for; of many agents fewer.

    A hundred agents show in four rounds as many vectors as ten show in forty, and each is kept.
    """
    rows = max((sum(group.size for group in part.groups) for part, _ in traces.rounds), default=1)
    most = max(_LEAST_ROUNDS, _MOST_ROWS // max(1, rows))
    return min(rounds, most, sum(count for _, count in traces.rounds))


def chosen_rounds(
    rounds: int, *, planned: int, generator: np.random.Generator | None = None
) -> list[int]:
    """Which of the planned rounds, from 1 on, are watched: the first two and the last if so many.

    Others are chosen by chance, of the system's entropy where there is no generator.
    """
    within("rounds", rounds, "[1, inf)")
    if rounds >= planned:
        return list(range(1, planned + 1))
    kept = [planned, 1, 2][:rounds]
    others = (generator or np.random.default_rng()).choice(
        np.arange(3, planned), size=rounds - len(kept), replace=False
    )
    return sorted([*kept, *others.tolist()])


def _reach(engine: Engine, number: int, *, seconds: float) -> float:
    """Bring an engine to where a round is the next; the seconds that it took."""
    begun = time.perf_counter()
    while engine.round < number - 1 and time.perf_counter() - begun < seconds:
        engine.advance()
    took = time.perf_counter() - begun
    if not has_public_state(engine):
        engine.round = number - 1
    nothing = nobody(engine.setting)
    while engine.round < number - 1:
        engine.advance(planted=nothing)
    return took


def parts_of_state(engine: Engine) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The (A, D) fields of the state, and public tensors, which are columns of no trace."""
    held, every = engine.state._asdict(), engine.snapshot()
    agents = {name: value for name, value in every.items() if isinstance(held[name], Agents)}
    return agents, {name: value for name, value in every.items() if name not in agents}
