"""Which algorithm trains with a design, and at which settings.

What a comparison of kinds of noise says in sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...privacy.formats.codec import Count, Delta, NotNegative
from ...privacy.formats.toml_text import parse_toml
from ...privacy.noise.correlated import Matrix, whisper_covariance
from ...privacy.noise.design import Design, Kind, pair_exposure
from ...privacy.noise.over_time import MOST_DENSE, Modes, filter_cost, grams, modes_of
from ...training.algorithms.strategy import joint_tables, matrix_of, pair_variances, strategy_table
from ...training.exposure.infinite import MOST_WORK, work_of
from ...training.graphs.graph import Graph
from ..numbers import Described, figure
from ..run_file.run_file import RunFile, validated

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
    if made.kind is Kind.INDEPENDENT:
        return Trained(algorithm="ldp-dsgd")
    if made.kind is Kind.ACROSS:
        horizon, energy = _best_horizon(graph.weights, rounds=made.rounds, step_sizes=step_sizes)
        uses = -(-made.rounds // made.period)
        return Trained(algorithm="whisper", settings={"horizon": horizon}, energy=energy * uses)
    if made.kind is Kind.PAIRS and made.bands == 1:
        return _of_decor(made, graph.weights, knowing)
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


# What `overhear design --json` prints, as types.


class Row(Described):
    """One kind of noise at the epsilon of the run."""

    kind: str
    """Along what noise is correlated."""
    memory: bool
    """Whether noise of a round is partly taken back later."""
    coefficients: Count
    """Of the strategy over time of each eigenspace; 1 has no memory."""
    groups: Count
    """Groups of records that take turns; 1 is plain Poisson."""
    rate: Annotated[float, Field(ge=0, le=1)]
    """At which a record is drawn in its turn."""
    amplified: bool
    """Whether the secret draw counts for epsilon; else a record is taken to be in every turn."""
    own_sampling: bool
    """Whether these are the batches of the run file."""
    noise_multiplier: NotNegative
    """Noise on a sum of clipped gradients / clip norm, at which the target is met."""
    joint_sensitivity: NotNegative
    """Of a turn, or of the run where it is one release, at noise multiplier 1."""
    noise: NotNegative
    """Root mean square of the noise in the models, in clip norms of a sum, over agents, rounds and
    coordinates; times the largest learning rate and clip norm over batch size it is that of the
    run."""
    energy: NotNegative
    """Its square at noise multiplier 1, of a record that takes all of its turns where that is what
    is accounted for, and of one turn where rounds are composed."""
    less_energy: NotNegative
    """How many times less squared noise than independent noise under the run's own sampling."""
    gap: NotNegative | None
    """How far, relatively, the squared noise is from a proven lower bound; null where none is."""
    bound_of: str | None
    """Of what noise the lower bound is one."""
    outsider: NotNegative
    """Epsilon against who knows no noise."""
    one_agent: NotNegative
    """Epsilon against the single agent that knows most. Memory made of pair secrets is not
    amplified for one that does not hear all links, so this can exceed that of all others."""
    all_others: NotNegative
    """Epsilon against all agents but the victim together."""
    undone_by: str
    """Who can subtract the noise, or a part of it."""
    algorithm: str
    """That trains with it."""
    settings: dict[str, str | int | float]
    """Hyper-parameters of that algorithm."""

    @property
    def meets(self) -> bool:
        """Whether some noise of the kind meets the target."""
        return math.isfinite(self.noise)


class Compared(Described):
    """Kinds of noise at one epsilon, least noise first."""

    version: Count
    epsilon: NotNegative
    delta: Delta
    adversary: str
    rounds: Count
    sampling_rate: Annotated[float, Field(ge=0, le=1)]
    rows: list[Row]
    advice: list[str]


_ALIKE = 5e-3  # relative difference of noise that nobody trains differently for


def undone_by(kind: Kind) -> str:
    """Who can subtract noise of a kind, or a part of it.

    >>> undone_by(Kind.JOINT)
    'any agent: one common seed makes all of it'
    """
    if kind.common_seed:
        return "any agent: one common seed makes all of it"
    if kind is Kind.PAIRS:
        return "neighbours in part: each knows the secrets of its links"
    return "no one but the agent that makes it"


def advice(rows: Sequence[Row], *, groups: int, epsilon: float) -> list[str]:
    """What to use, and why memory is or is not worth it.

    Args:
        rows: least noise first.
        groups: of records that take turns in the run; 1 is plain Poisson.
        epsilon: that all of them meet.
    """
    usable = [row for row in rows if math.isfinite(row.noise)]
    fresh = [row for row in usable if not row.memory]
    memory = [row for row in usable if row.memory]
    said = []
    best = usable[0]
    own = [row for row in usable if row.own_sampling]
    if own:
        said.append(f"Least noise under the run's own batches: {_named(own[0])}.")
    if best not in own:
        said.append(f"Least noise of all: {_named(best)}.")
    if groups == 1 and memory and not any(row.own_sampling for row in memory):
        said.append(
            "Poisson batches may draw a record in every round, and then noise that is independent "
            "in time is best: memory needs records that take turns."
        )
    if memory and fresh:
        alike = math.isclose(fresh[0].noise, memory[0].noise, rel_tol=_ALIKE)
        ahead = fresh[0].noise <= memory[0].noise and not alike
        said.append(
            f"At epsilon {figure(epsilon)} memory "
            + ("changes little: " if alike else "loses: " if ahead else "pays: ")
            + f"{figure(memory[0].noise, 4)} with it, {figure(fresh[0].noise, 4)} without"
            + (", since it gives up most of what sampling adds." if ahead else ".")
        )
    seeds = [row for row in usable if math.isinf(row.one_agent)]
    if best in seeds:
        kept = next((row for row in own if row not in seeds), None)
        said.append(
            f"Noise {best.kind} is made from one common seed: any agent that is curious can remove "
            "it (epsilon infinite)"
            + (f"; the best that no single agent removes is {_named(kept)}." if kept else ".")
        )
    return said


def _named(row: Row) -> str:
    gain = figure(row.less_energy)
    turns = "" if row.groups == 1 or row.own_sampling else f" with {row.groups} groups in turn"
    return (
        f"{row.kind}{turns}, {figure(row.noise, 4)}, {gain} times less noise energy than "
        "independent noise"
        if row.kind != Kind.INDEPENDENT
        else f"{row.kind}, {figure(row.noise, 4)}"
    )
