"""A point of a run at which to attack, and the re-enactment of the rounds around it.

The real engine runs: it starts from a snapshot of the run, the victim's batch is the planted
records, everybody else draws as ever. What crossed the links is kept, with all that the attack is
later scored against.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...privacy.errors import InputError, within
from ...privacy.guarantee import Adversary, parse_adversary
from ...training.algorithms import Form, bind
from ...training.algorithms.learning_rates import LearningRates
from ...training.data.store import Examples
from ...training.engine.engine import Engine
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import Recorded
from ...training.engine.setting import Setting
from ...training.engine.transcript import Transcript
from ...training.own.names import algorithm_named, is_own
from ...training.step.operations import CarryOut, How, Operations, Values
from ...training.step.values import Agents, Edges
from ...training.tracing.trace import AlgorithmTrace
from ..checks.recording import WatchedRound
from ..checks.watched_run import parts_of_state, to_cpu, traces_of

# The engine with one agent that deviates: it sends crafted models in place of its own.
#
# Everything else runs as the code does, at that agent too: what it keeps, draws and mixes is made
# from its own model, and it replies to others as ever. What its neighbours compute on the crafted
# model, and what they mix it into, is what a run would compute.

MODEL = "model"  # the kind of message on which a neighbour takes its gradient


class DeviatingEngine(Engine):
    """An engine of one process in which an agent deviates.

    Args:
        crafted: by round what it sends for its model, (D,); in other rounds it follows.
        how: as of `Engine`.
    """

    def __init__(self, *given: Any, agent: int, crafted: Mapping[int, Tensor], **how: Any) -> None:
        super().__init__(*given, **how)
        self._agent, self._crafted = agent, dict(crafted)

    def _make_round(self, index: int, **how: Any) -> Operations:
        made = super()._make_round(index, **how)
        if index in self._crafted:
            made.wrap(_Deviating(agent=self._agent, model=self._crafted[index]))
        return made


class _Deviating:
    """Wrapped around a round, it lets an agent send another model than its own."""

    def __init__(self, *, agent: int, model: Tensor) -> None:
        self._agent, self._model = agent, model

    def __call__(self, carry_out: CarryOut, name: str, values: Values, how: How) -> Any:
        """See `Operations.wrap`."""
        if name != "broadcast" or how["kind"] != MODEL:
            return carry_out(name, values, how)
        (value,) = values
        own = value.rows[self._agent]
        rows = value.rows.clone()
        rows[self._agent] = self._model.to(own)
        sent = carry_out(name, (Agents(rows),), how)
        # What the agent sends to itself is its own model, one row more.
        numbers = Edges(torch.arange(len(sent.rows), device=sent.base.device)[:, None].double())
        loop = int(carry_out("own", (numbers,), {}).rows[self._agent, 0])
        pick = torch.arange(len(sent.base)) if sent.pick is None else sent.pick.clone()
        pick[loop] = len(sent.base)
        return Edges(torch.cat([sent.base, own[None]]), pick)


CROSS_GRADIENT = "cross-gradient"  # of `Algorithm.single_gradients`


class Protection(enum.StrEnum):
    """How much of the defence is switched on."""

    NONE = "no defence"
    CLIPPING = "clipping only"
    DEFENDED = "defended"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedRun:
    """A point of a run at which to attack.

    Attributes:
        setting: graph, model and data of the run.
        algorithm, form, settings: what runs.
        learning_rate, clip_norm, noise_std, batch_size: its numbers.
        records_per_agent: public number of records of an average agent.
        snapshot: the state after round `snapshot_round`; None starts afresh.
        snapshot_round: at most round - 1, and round - 2 where an earlier message is needed.
        round: the first round in which the planted records take part.
        together: for how many rounds they do.
        rounds: of the whole run, on which schedules may depend.
        victim: the agent whose batch is attacked.
        model_owner: the neighbour to whom its cross-gradient goes; the victim itself where nobody
            is linked to it, because all that is sent goes through a server.
        adversary: whose view is attacked, as in a run file.
    """

    setting: Setting
    algorithm: str
    form: Form
    settings: Any
    learning_rate: LearningRates
    clip_norm: float | None
    noise_std: float
    batch_size: float
    snapshot: Mapping[str, Tensor] | None
    snapshot_round: int
    round: int
    rounds: int
    victim: int
    model_owner: int
    records_per_agent: float = 0.0
    together: int = 1
    adversary: str = "eavesdropper"

    def __post_init__(self) -> None:
        """Check that the round can be reached and that the link exists."""
        within("snapshot_round", self.snapshot_round, f"[0, {self.round - 1}]")
        if self.together < 1 or self.round + self.together - 1 > self.rounds:
            raise InputError(
                f"round={self.round} and together={self.together} must lie within the "
                f"{self.rounds} rounds of the run"
            )
        linked = {*self.setting.graph.neighbours(self.victim)} - {self.victim}
        if self.model_owner not in (linked or {self.victim}):
            raise InputError(
                f"model_owner={self.model_owner} must be a neighbour of victim={self.victim}"
            )
        who = self.parsed_adversary()
        if who.deviates:
            check_deviation(self.algorithm)
            if self.model_owner not in who.agents:
                raise InputError(
                    f"model_owner={self.model_owner} must be the one that deviates, "
                    f"{self.adversary!r}, to whom the victim replies"
                )
        if self.victim in who.agents:
            raise InputError(
                f"adversary {self.adversary!r} contains the victim {self.victim}; choose another"
            )

    def parsed_adversary(self) -> Adversary:
        """The adversary; "all-others" is everybody but the victim."""
        agents = self.setting.graph.agents
        name = self.adversary
        if name == "all-others":
            others = (str(a) for a in range(agents) if a != self.victim)
            name = f"coalition:{','.join(others)}"
        return parse_adversary(name, agents, deviating=True)

    def under(self, protection: Protection) -> ReplayedRun:
        """The same trial with part of the defence switched off."""
        if protection is Protection.NONE:
            return replace(self, clip_norm=None, noise_std=0.0)
        if protection is Protection.CLIPPING:
            return replace(self, noise_std=0.0)
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A re-enactment.

    Attributes:
        trial: what was re-enacted.
        transcript: every message of its rounds.
        rounds: the rounds by number, consecutive; 0 is the start, where the run was started afresh.
        attacked: the rounds in which the planted records took part.
        records: how many records were planted.
        crafted: the rounds in which the adversary sent a crafted model.

    Whatever the device of the run, all of it is on the CPU, where its rounds have room and their
    equations are solved; `reconstruct` moves what they show to where it searches.
    """

    trial: ReplayedRun
    transcript: Transcript
    rounds: Mapping[int, WatchedRound]
    attacked: Sequence[int]
    records: int
    crafted: frozenset[int] = frozenset()


def check_deviation(algorithm: str) -> None:
    """Refuse a neighbour that deviates where nothing is computed on what it sends.

    Raises:
        ValueError: the algorithm has no cross-gradients.
    """
    known = None if is_own(algorithm) else algorithm_named(algorithm)
    if known is None or CROSS_GRADIENT not in known.single_gradients:
        raise InputError(
            f"adversary active-neighbour:K has nothing to gain from {algorithm!r}: no agent takes "
            "a gradient on a model that another one sends, as in DPDL and DP-CGA; attack as "
            "neighbour:K"
        )


def trace_of(trial: ReplayedRun) -> AlgorithmTrace:
    """The run on symbols, at the noise and the clip of the trial."""
    return traces_of(_bound(trial), trial.setting, rounds=trial.rounds)


def replay(
    trial: ReplayedRun,
    planted: Examples,
    *,
    traces: AlgorithmTrace | None = None,
    crafted: Mapping[int, Tensor] | None = None,
) -> Replay:
    """Run the trial's rounds with the planted batch, and the round after them if there is one.

    Args:
        planted: the victim's batch in the attacked rounds.
        traces: as `trace_of` makes them, where several replays share them.
        crafted: by round what an adversary that deviates sends for its model, (D,).

    Returns:
        Everything that happened from the snapshot on.
    """
    # The engine, in which one agent may deviate.
    made = trace_of(trial) if traces is None else traces
    by_round = [made.start, *(part for part, count in made.rounds for _ in range(count))]
    transcript = Transcript()
    how: dict[str, Any] = {
        "randomness": SecretRandomness(),
        "taps": [transcript],
        "scripts": made.scripts,
    }
    engine = (
        DeviatingEngine(
            trial.setting, _bound(trial), agent=trial.model_owner, crafted=crafted, **how
        )
        if crafted
        else Engine(trial.setting, _bound(trial), **how)
    )
    # Attacked rounds have the planted batch, and everything of a round is kept.
    last = trial.round + trial.together - 1
    attacked, played = range(trial.round, last + 1), dict[int, WatchedRound]()

    def keep(number: int, recorded: Recorded, before: Mapping[str, Tensor]) -> None:
        played[number] = WatchedRound(
            number=number,
            trace=by_round[number],
            recorded=to_cpu(recorded),
            messages=transcript.of(round=number),
            before=before,
            after=parts_of_state(engine)[0],
            planted={trial.victim: planted} if number in attacked else {},
        )

    # From the start, or from a snapshot whose own start nobody sees.
    if trial.snapshot is None:
        recorded = Recorded()
        engine.start(recorded=recorded)
        keep(0, recorded, {})
    else:
        own = trial.setting.turns_digest  # what is replayed is released to nobody
        engine.restore(trial.snapshot, round=trial.snapshot_round, turns=own)
        transcript.clear()  # of the start that `restore` makes
    # What a round leaves behind may be sent only at the start of the next.
    for number in range(engine.round + 1, min(last + 1, trial.rounds) + 1):
        recorded, (before, _) = Recorded(), parts_of_state(engine)
        engine.advance(
            planted={trial.victim: planted} if number in attacked else None, recorded=recorded
        )
        keep(number, recorded, before)
    return Replay(
        trial=trial,
        transcript=transcript,
        rounds=played,
        attacked=list(attacked),
        records=len(planted.targets),
        crafted=frozenset(crafted or ()),
    )


def _bound(trial: ReplayedRun) -> Any:
    return bind(
        algorithm_named(trial.algorithm),
        trial.settings,
        form=trial.form,
        learning_rate=trial.learning_rate,
        clip_norm=trial.clip_norm,
        noise_std=trial.noise_std,
        batch_size=trial.batch_size,
        graph=trial.setting.graph,
        rounds=trial.rounds,
        records=trial.records_per_agent or trial.batch_size,
    )
