"""A run of the real engine from its start, with all that it drew and sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from torch import Tensor

from ...privacy.errors import InputError
from ...training.algorithms.algorithm import Bound
from ...training.data.dataset import Examples
from ...training.engine.engine import Engine, Setting
from ...training.engine.function_calls import KeptCalls
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import Recorded
from ...training.engine.transcript import Transcript
from ...training.step.values import Agents
from ...training.tracing.trace import trace
from .residual_values import Residual, Residuals
from .watched_round import WatchedRound

__all__ = ["Residual", "WatchedRound", "WatchedRun", "watch"]


class WatchedRun:
    """A run and its residuals.

    Args:
        engine: after the run.
        rounds: the rounds from the start on.
        bound: the algorithm that the engine runs.
        randomness: that of the engine.

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
        """Make a watched round again, from the state that it began with.

        Args:
            engine: of the same algorithm, on as many agents.
            watched: a round of this run.
            recorded: filled by the round.
        """
        if not watched.number:
            engine.state = None  # so that it draws the noise of the first start
            engine.start(recorded=recorded)
            return
        of = engine.setting
        rows = {name: Agents(v.to(of.device, of.dtype)) for name, v in watched.before.items()}
        engine.state = self.engine.state._replace(**rows, **watched.public)
        engine.round = watched.number - 1
        engine.advance(planted=watched.planted, recorded=recorded)

    @property
    def bounded_contributions(self) -> int:
        """How many calls of `bounded` were taken as recorded."""
        return sum(call is None for watched in self.rounds for call in watched.recorded.calls)


def watch(
    setting: Setting,
    bound: Bound,
    *,
    rounds: int,
    randomness: SecretRandomness | None = None,
    planted: Callable[[int], Mapping[int, Examples]] | None = None,
) -> WatchedRun:
    """Run the start and the first rounds, and keep everything.

    Args:
        setting: graph, model and data.
        bound: the algorithm with its numbers; its noise is that of the run.
        rounds: how many to run, at most those that it was bound for.
        randomness: of the system's entropy when None.
        planted: for a round the agents whose batch is given instead of drawn.

    Returns:
        The run.

    Raises:
        ValueError: no round to watch.
    """
    traces = trace(
        bound.init,
        bound.step,
        graph=setting.graph,
        rounds=rounds,
        noise_multiplier=bound.noise_multiplier,
    )
    by_round = [traces.start, *(one for one, count in traces.rounds for _ in range(count))]
    transcript, own = Transcript(), randomness or SecretRandomness()
    engine = Engine(setting, bound, randomness=own, taps=[transcript], scripts=traces.scripts)
    found, before, public = list[WatchedRound](), dict[str, Tensor](), dict[str, Tensor]()
    for number, one in enumerate(by_round):
        functions = KeptCalls()
        recorded = Recorded(functions=functions)
        batches = planted(number) if planted and number else {}
        if number:
            engine.advance(planted=batches, recorded=recorded)
        else:
            engine.start(recorded=recorded)
        after = _agents_of(engine)
        found.append(
            WatchedRound(
                number=number,
                trace=one,
                recorded=recorded,
                messages=transcript.of(round=number),
                before=before,
                after=after,
                planted=batches,
                calls=functions.calls,
                public=public,
            )
        )
        before, public = after, _public_of(engine)
    return WatchedRun(engine, found, bound=bound, randomness=own)


def _agents_of(engine: Engine) -> dict[str, Tensor]:
    """The (A, D) fields of the state; public tensors are columns of no trace."""
    held = engine.state._asdict()
    return {
        name: value for name, value in engine.snapshot().items() if isinstance(held[name], Agents)
    }


def _public_of(engine: Engine) -> dict[str, Tensor]:
    """The other fields of the state."""
    held = engine.state._asdict()
    return {name: value for name, value in held.items() if not isinstance(value, Agents)}
