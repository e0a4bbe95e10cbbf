"""A run of the real engine from its start, with all that some of its rounds drew and sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ...privacy._validate import within
from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.data.dataset import Examples
from ...training.engine.engine import Engine, Setting
from ...training.engine.function_calls import KeptCalls
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import Recorded
from ...training.engine.transcript import Transcript
from ...training.step.values import Agents
from ...training.tracing.trace import AlgorithmTrace, trace
from .bare_run import has_public_state, nobody
from .on_host import on_host, placed
from .recording import Part
from .residual_values import Residual, Residuals
from .watched_round import WatchedRound

SECONDS_BETWEEN = 1.0  # for rounds that run without being kept


class WatchedRun:
    """A run and its residuals.

    Args:
        engine: after the run.
        rounds: the start, and the rounds that were kept, in their order.
        bound: the algorithm that the engine runs.

    Attributes:
        engine, rounds, bound, randomness: as given.
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

    @property
    def residuals(self) -> Sequence[Sequence[Residual]]:
        """For each round the residuals of its messages and then of its end state.

        Raises:
            ValueError: a round that did not do what was traced; see `mismatch`.
        """
        return self._residuals

    @cached_property
    def _residuals(self) -> Sequence[Sequence[Residual]]:
        different = self.mismatch
        if different:
            raise InputError(f"the run is not what was traced: {different}")
        made = Residuals(self.setting)
        return [made.of_round(watched) for watched in self.rounds]

    @property
    def mismatch(self) -> str:
        """What a round drew, computed or sent otherwise than its trace; empty where nothing."""
        return self._mismatch

    @cached_property
    def _mismatch(self) -> str:
        return next((watched.mismatch for watched in self.rounds if watched.mismatch), "")

    def again(self, engine: Engine, watched: WatchedRound, *, recorded: Recorded) -> None:
        """Make a watched round again, from the state that it began with.

        Args:
            engine: of the same algorithm, on as many agents.
            recorded: filled by the round.
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
    rounds: int,
    planned: int | None = None,
    generator: np.random.Generator | None = None,
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
        setting: graph, model and data.
        bound: the algorithm with its numbers; its noise is that of the run.
        rounds: how many to keep, at most those that it was bound for.
        planned: of how many; as many as are kept when None, and then they follow one another.
        generator: chooses which; of the system's entropy when None. The first two and the last are
            among them wherever there are so many.
        traces: of the planned rounds; made here when None.
        randomness: of the system's entropy when None.
        planted: for a round the agents whose batch is given instead of drawn.
        seconds: for rounds between.
        kept_so_far: called after each round that is kept with how many these are.

    Returns:
        The run.

    Raises:
        ValueError: no round to watch.
    """
    last = max(rounds, planned or rounds)
    traces = traces or traces_of(bound, setting, rounds=last)
    by_round = [traces.start, *(one for one, count in traces.rounds for _ in range(count))]
    kept = [0, *chosen_rounds(rounds, planned=last, generator=generator)]
    transcript, own = Transcript(rounds=kept), randomness or SecretRandomness()
    engine = Engine(setting, bound, randomness=own, taps=[transcript], scripts=traces.scripts)
    found, left = list[WatchedRound](), seconds
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
                recorded=on_host(recorded),
                messages=transcript.of(round=number),
                before=before,
                after=after,
                planted=batches,
                calls=placed(functions.calls, torch.device("cpu")),
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


def chosen_rounds(
    rounds: int, *, planned: int, generator: np.random.Generator | None = None
) -> list[int]:
    """Which rounds are watched: the first two and the last, and others by chance.

    Args:
        rounds: how many.
        planned: of how many, numbered from 1.
        generator: of the system's entropy when None.

    >>> found = chosen_rounds(4, planned=1000, generator=np.random.default_rng(0))
    >>> found[0], found[1], found[-1], len(found)
    (1, 2, 1000, 4)
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
