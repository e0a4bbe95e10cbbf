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

import numpy as np
import torch
from numpy.typing import NDArray
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


# The best linear estimate: weights of noisy equations that single out unknowns with least noise.
#
# Equations over unknown vectors u, independent standard normal vectors z and given vectors v,
#
# E_u u + E_z z + E_v v = 0                                (R equations)
#
# give for weights w with w E_u = e_k the estimate u_k = -(w E_v) v, whose error is -(w E_z) z.
# Among all such w the one with the least |w E_z| is best (Gauss, Markov); several unknowns have
# errors of covariance (W E_z)(W E_z)^T. Where e_k is no combination of the rows of E_u, the unknown
# is not identifiable and nothing is returned for it.
#
# W = W_0 + T N,    W_0 = least-norm solution,  N = left null space of E_u,
# T = -(W_0 E_z)(N E_z)^+
#
# | symbol | name here | shape |
# |--------|-----------|-------|
# | E_u    | unknown   | (R, U) |
# | E_z    | noise     | (R, Z) |
# | W      | returned  | (K, R) |

Array = NDArray[np.float64]

_RANK = 1e-11  # singular values below this share of the largest are rounding
_CLEAN = 1e-10  # share of the noise that was added up that rounding may leave
_IDENTIFIED = 1e-8  # what may be left of a unit vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weights of equations.

    Attributes:
        rows: (K, R) one row for each unknown that is identifiable.
        identified: positions, among those asked for, of these unknowns.
        covariance: (K, K) of the errors.
        clean: for each whether its noise cancels, up to rounding.
    """

    rows: Array
    identified: tuple[int, ...]
    covariance: Array
    clean: tuple[bool, ...]


def best_weights(unknown: Array, noise: Array, *, targets: Sequence[int] | Array) -> Weights:
    """Weights that estimate unknowns without bias and with the least noise.

    Args:
        unknown: (R, U) coefficients of the unknowns.
        noise: (R, Z) coefficients of unit normals.
        targets: columns of `unknown` to estimate, or (K, U) combinations of the unknowns.

    Returns:
        The weights of those that are identifiable.

    Raises:
        ValueError: shapes that disagree, or a target that is no column.

    >>> found = best_weights(np.ones((2, 1)), np.diag([1.0, 2.0]), targets=[0])
    >>> found.rows.round(3).tolist(), found.covariance.round(3).tolist()
    ([[0.8, 0.2]], [[0.8]])
    """
    if unknown.ndim != 2 or noise.ndim != 2 or len(unknown) != len(noise):
        raise InputError(
            f"unknown of shape {unknown.shape} and noise of shape {noise.shape} must be matrices "
            "with one row per equation each"
        )
    wanted = _combinations(targets, count=unknown.shape[1])
    # Equations of length 1; one that holds nothing stays 0.
    size = np.sqrt(np.square(unknown).sum(axis=1) + np.square(noise).sum(axis=1))
    scale = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    M, B = unknown * scale[:, None], noise * scale[:, None]
    left, values, right = np.linalg.svd(M, full_matrices=True)
    rank = int((values > _RANK * max(values[0], 1e-300)).sum()) if values.size else 0
    picked = wanted @ right[:rank].T  # (targets, rank)
    # A vector lies in the row space exactly if its part in it has its length.
    length = np.square(wanted).sum(axis=1)
    inside = length - np.square(picked).sum(axis=1) < _IDENTIFIED * length
    # Weights without bias, and combinations of equations that no unknown is in.
    first = (picked[inside] / values[:rank]) @ left[:, :rank].T
    free = left[:, rank:].T
    # Rows are of length 1, so the cut is absolute: combinations may show no noise at all.
    left, values, right = np.linalg.svd(free @ B, full_matrices=False)
    kept = values > _RANK
    inverse = (right[kept].T / values[kept]) @ left[:, kept].T  # (Z, R - rank)
    # What these combinations tell of the noise is taken off.
    weights = first - (first @ B) @ inverse @ free
    errors, added = weights @ B, np.abs(weights) @ np.abs(B)
    return Weights(
        rows=weights * scale,
        identified=tuple(int(i) for i in np.flatnonzero(inside)),
        covariance=errors @ errors.T,
        clean=tuple(
            bool(c)
            for c in np.linalg.norm(errors, axis=1) <= _CLEAN * np.linalg.norm(added, axis=1)
        ),
    )


def _combinations(targets: Sequence[int] | Array, *, count: int) -> Array:
    """(K, U) what to estimate, over the unknowns."""
    if isinstance(targets, np.ndarray):
        if targets.ndim != 2 or targets.shape[1] != count:
            raise InputError(f"targets of shape {targets.shape} must be (K, {count})")
        return targets
    if any(not 0 <= t < count for t in targets):
        raise InputError(f"targets {list(targets)} must lie in [0, {count})")
    wanted = np.zeros((len(targets), count))
    wanted[np.arange(len(targets)), list(targets)] = 1.0
    return wanted


def seen_combination(unknown: Array, *, columns: Sequence[int]) -> Array | None:
    """The one combination of some unknowns that equations tell, where they tell exactly one.

    With the left null space N of the other unknowns' columns, the rows of N E span all that is
    told of these alone.

    Returns:
        (len(columns),) coefficients, the first of which is 1; None where nothing, or several
        combinations, or nothing of the first column or of some other is told.

    Raises:
        ValueError: there are no columns.

    >>> hidden = np.array([[1.0, -0.9, 2.0], [0.0, 0.0, 1.0]])
    >>> seen_combination(hidden, columns=[0, 1]).round(3).tolist()
    [1.0, -0.9]
    """
    if not columns:
        raise InputError("columns is empty; name an unknown")
    size = np.linalg.norm(unknown, axis=1, keepdims=True)
    M = unknown / np.where(size > 0, size, 1.0)
    others = np.delete(M, list(columns), axis=1)
    left, values, _ = np.linalg.svd(others, full_matrices=True)
    rank = int((values > _RANK * max(values[0], 1e-300)).sum()) if values.size else 0
    _, values, right = np.linalg.svd(left[:, rank:].T @ M[:, list(columns)], full_matrices=False)
    told = right[values > _IDENTIFIED]  # rows of M are of length 1
    if len(told) != 1 or np.abs(told[0]).min() < _IDENTIFIED:
        return None
    return np.asarray(told[0] / told[0, 0])


def determined(rows: Array, equations: Array) -> NDArray[np.bool_]:
    """Which rows are combinations of equations that hold exactly.

    Args:
        rows: (N, C) coefficients over everything that is not given.
        equations: (R, C) of the equations.

    Returns:
        (N,) truth values.

    >>> determined(np.array([[2.0, 2.0], [1.0, 0.0]]), np.array([[1.0, 1.0]])).tolist()
    [True, False]
    """
    size = np.linalg.norm(rows, axis=1)
    if not len(equations) or not len(rows):
        return size == 0
    norms = np.linalg.norm(equations, axis=1, keepdims=True)
    scaled = equations / np.where(norms > 0, norms, 1.0)
    solution = np.linalg.lstsq(scaled.T, rows.T, rcond=_RANK)[0]
    left = np.linalg.norm(solution.T @ scaled - rows, axis=1)
    return np.asarray(left <= _IDENTIFIED * size)
