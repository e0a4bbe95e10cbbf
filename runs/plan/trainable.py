"""Which algorithm trains with a design, and at which settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from ...privacy.formats.toml_text import parse_toml
from ...privacy.noise.correlated import Matrix, whisper_covariance
from ...privacy.noise.design import Design, Kind, pair_exposure
from ...privacy.noise.over_time import MOST_DENSE, Modes, filter_cost, grams, modes_of
from ...training.algorithms.strategy import joint_tables, matrix_of, pair_variances, strategy_table
from ...training.exposure.whole_run import MOST_WORK, work_of
from ...training.graphs.graph import Graph
from ..run_file.run_file import RunFile, validated
from .schema import Row

_MOST_REMEMBERED = 320  # vectors that an agent keeps; more make a run's trace slow


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """How noise is made in a run.

    Attributes:
        algorithm: its name.
        settings: hyper-parameters.
        energy: of its noise in the models where it is not that of the design.
        joint: joint sensitivity of what a turn, or the run, releases at noise multiplier 1.
    """

    algorithm: str
    settings: dict[str, str | int | float] = field(default_factory=dict)
    energy: float | None = None
    joint: float = 1.0


def trained(
    made: Design,
    graph: Graph,
    *,
    groups: int,
    amplified: bool,
    knowing: Sequence[frozenset[int]] = (),
    step_sizes: tuple[float, ...] = (),
) -> Trained:
    """The algorithm that makes the noise of a design on a graph.

    Args:
        graph: of the run.
        groups: of records that take turns.
        amplified: whether turns are counted one by one, with their coins.
        knowing: sets of agents that may be the adversary.
        step_sizes: learning rate of each round; all equal when not given.
    """
    # Noise without memory: of each agent, across agents, or by pair secrets.
    if made.kind is Kind.INDEPENDENT:
        return Trained(algorithm="ldp-dsgd")
    if made.kind is Kind.ACROSS:
        horizon, energy = _best_horizon(graph.weights, rounds=made.rounds, step_sizes=step_sizes)
        uses = -(-made.rounds // made.period)
        return Trained(algorithm="whisper", settings={"horizon": horizon}, energy=energy * uses)
    if made.kind is Kind.PAIRS and made.bands == 1:
        return _of_decor(made, graph.weights, knowing)
    # Memory: a strategy of every round, or of some bands.
    whole = made.bands == made.rounds  # a strategy of every round
    run: _Run = {
        "rounds": made.rounds,
        "period": groups,
        "bands": 0 if whole else made.bands,
        "step_sizes": step_sizes,
    }
    modes = modes_of(graph.weights)
    if made.kind is Kind.JOINT:
        most = _most_bands(len(graph.weights), len(modes.eigenvalues), rounds=made.rounds)
        if made.bands > most:
            run["bands"] = most
        tables = joint_tables(graph.weights, **run, algorithm="joint-dsgd").numpy()
        noise = _Remembered(tables, modes, np.ones(len(tables)))
        return _made_by("joint-dsgd", noise, run, amplified=amplified)
    # One strategy over time for all eigenspaces, alone or on pair secrets.
    ratio = round(made.ratio, 6)
    name = "mafalda" if made.kind is Kind.TIME else "decor-over-time"
    table = strategy_table(graph.weights, **run, algorithm=name, ratio=ratio).numpy()
    variances = pair_variances(graph.weights, modes, ratio=ratio)
    noise = _Remembered(np.repeat(table[None], len(variances), axis=0), modes, variances)
    found = _made_by(name, noise, run, amplified=amplified)
    if made.kind is Kind.TIME or found.energy is None:
        return found
    # The algorithm's scale is that of an outsider, and the design's that of who knows most.
    outsider = pair_exposure(graph.weights, ratio=ratio)
    worst = pair_exposure(graph.weights, ratio=ratio, knowing=knowing)
    return replace(
        found,
        settings={"correlation": ratio, **found.settings},
        energy=found.energy * outsider,
        joint=found.joint * math.sqrt(worst / outsider),
    )


def _most_bands(agents: int, modes: int, *, rounds: int) -> int:
    """Coefficients of each mode with which the run's own plan can still view all of its rounds."""
    most = 1 + _MOST_REMEMBERED // modes
    for bands in range(most, 1, -1):
        carried = agents * (1 + modes * (bands - 1))
        work = work_of(carried, columns=agents * rounds, sources=agents, rounds=rounds)
        if work <= MOST_WORK:
            return bands
    return 1


class _Run(TypedDict):
    rounds: int
    period: int
    bands: int
    step_sizes: tuple[float, ...]


class _Remembered(NamedTuple):
    """Noise with memory.

    Attributes:
        tables: (modes, T or 1, p), the strategy of each eigenspace.
        modes: of the weights.
        variances: (modes,), across agents.
    """

    tables: NDArray[np.float64]
    modes: Modes
    variances: Matrix


def _made_by(algorithm: str, noise: _Remembered, run: _Run, *, amplified: bool) -> Trained:
    """With the energy of its noise at noise multiplier 1, and the joint sensitivity there.

    Of turns that are counted one by one that of one of them, else that of a record's all.
    """
    rounds, period = run["rounds"], run["period"]
    shares, values = noise.modes.shares, noise.modes.eigenvalues
    spent = np.empty(len(values))
    if rounds > MOST_DENSE:  # the same in every round, and no turns meet
        columns = shares @ np.square(noise.tables[:, 0]).sum(axis=1)
        learnt = float(columns.max()) if amplified else 1.0
        for k, value in enumerate(values):
            spent[k] = filter_cost(noise.tables[k, 0], float(value), rounds=rounds)
    else:
        M = np.empty((len(values), rounds, rounds))
        for k, gram in enumerate(grams(values, rounds=rounds, step_sizes=run["step_sizes"])):
            C = matrix_of(noise.tables[k], rounds=rounds)
            M[k] = C.T @ C
            spent[k] = np.trace(np.linalg.solve(M[k], gram))
        of = np.einsum("ik,kst->ist", shares, M)
        turns = [np.arange(j, rounds, period) for j in range(period)]
        if amplified:
            turns = [np.array([t]) for t in range(rounds)]
        learnt = max(float(np.abs(of[:, p[:, None], p]).sum(axis=(1, 2)).max()) for p in turns)
    energy = float((noise.modes.weights * noise.variances) @ spent) / rounds
    settings: dict[str, str | int | float] = {"period": period, "bands": run["bands"]}
    return Trained(algorithm=algorithm, settings=settings, energy=energy, joint=math.sqrt(learnt))


def _of_decor(made: Design, weights: Matrix, knowing: Sequence[frozenset[int]]) -> Trained:
    """The design's scale is that of who knows most, and the algorithm's that of an outsider."""
    ratio = round(made.ratio, 6)
    exposed = pair_exposure(weights, ratio=ratio, knowing=knowing)
    joint = math.sqrt(exposed / pair_exposure(weights, ratio=ratio))
    energy = made.energy / joint**2
    return Trained(algorithm="decor", settings={"correlation": ratio}, energy=energy, joint=joint)


def _best_horizon(
    weights: Matrix, *, rounds: int, step_sizes: tuple[float, ...]
) -> tuple[int, float]:
    """The horizon whose covariance leaves least noise in the models of all rounds."""
    modes = modes_of(weights)
    if step_sizes:
        of_modes = grams(modes.eigenvalues, rounds=rounds, step_sizes=step_sizes)
        spent = np.einsum("kss->k", of_modes) / rounds  # per round, by eigenspace
    else:
        squares = np.square(modes.eigenvalues)[:, None] ** np.arange(1, rounds + 1)
        spent = squares @ (rounds - np.arange(rounds)) / rounds
    found = []
    for share in (1.0, 0.5, 0.25, 0.1):
        horizon = max(1, round(share * rounds))
        R = whisper_covariance(weights, bound=1.0, rounds=horizon)
        variances = np.einsum("kij,ij->k", modes.projectors, R)
        found.append((float(variances @ spent) / len(weights), horizon))
    energy, horizon = min(found)
    return horizon, energy


def run_file_with(config: RunFile, row: Row, *, epsilon: float) -> RunFile:
    """The run file with the noise of a row in place of its algorithm, and epsilon as its target.

    Raises:
        ValueError: the run file does not go together with that algorithm.
    """
    values = dict(parse_toml(config.to_toml()))
    values["algorithm"] = {"name": row.algorithm, **row.settings}
    privacy = values.get("privacy")
    if isinstance(privacy, Mapping):
        kept = {k: v for k, v in privacy.items() if k not in ("epsilon", "noise_multiplier")}
        turns = {"participation": {"cycle": row.groups} if row.groups > 1 else "every"}
        values["privacy"] = {**kept, **turns, "epsilon": epsilon}
    return validated(values, where=f"run file with {row.kind}")


# What `overhear design --format json` prints, as types.
