"""Which algorithm trains with a design, and at which settings."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...privacy.noise.correlated import whisper_covariance
from ...privacy.noise.covariance import Matrix
from ...privacy.noise.design.kinds import Design, Kind
from ...privacy.noise.design.pairs import pair_exposure
from ...privacy.noise.design.workload import grams, modes_of
from ...training.algorithms.remembering.strategy import MOST_ROUNDS, strategy_table
from ...training.graphs.graph import Graph
from ..run_file.run_file import RunFile, read_tables
from ..run_file.toml import read_toml
from .schema import Row

__all__ = ["Trained", "run_file_with", "trained"]

_UNTRAINED = "no algorithm makes this noise yet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """How noise is made in a run.

    Attributes:
        algorithm: its name; None where none makes it.
        settings: hyper-parameters.
        energy: of its noise in the models where it is not that of the design.
        joint: joint sensitivity of what a turn, or the run, releases at noise multiplier 1.
        because: why none makes it.
    """

    algorithm: str | None = None
    settings: dict[str, str | int | float] = field(default_factory=dict)
    energy: float | None = None
    joint: float = 1.0
    because: str = ""


def trained(
    made: Design,
    graph: Graph,
    *,
    groups: int,
    amplified: bool,
    knowing: Sequence[frozenset[int]] = (),
) -> Trained:
    """The algorithm that makes the noise of a design on a graph.

    Args:
        made: the design.
        graph: of the run.
        groups: of records that take turns.
        amplified: whether turns are counted one by one, with their coins.
        knowing: sets of agents that may be the adversary.
    """
    settings: dict[str, str | int | float]
    if made.kind is Kind.INDEPENDENT:
        return Trained(algorithm="ldp-dsgd")
    if made.kind is Kind.ACROSS:
        horizon, energy = _best_horizon(graph.weights, rounds=made.rounds)
        uses = -(-made.rounds // made.period)
        settings = {"horizon": horizon}
        return Trained(algorithm="whisper", settings=settings, energy=energy * uses)
    if made.kind is Kind.PAIRS and made.bands == 1:
        return _of_decor(made, graph.weights, knowing)
    if made.kind is not Kind.TIME:
        return Trained(because=_UNTRAINED)
    if made.rounds > MOST_ROUNDS:
        return Trained(because=f"mafalda finds strategies for at most {MOST_ROUNDS} rounds")
    bands = made.bands if amplified else 0
    settings = {"period": groups, "bands": bands}
    energy, joint = _of_mafalda(graph.weights, made.rounds, groups, bands)
    return Trained(algorithm="mafalda", settings=settings, energy=energy, joint=joint)


@functools.lru_cache(maxsize=64)
def _mafalda(weights: bytes, agents: int, rounds: int, period: int, bands: int) -> Matrix:
    """C of `mafalda`, (T, T), from the table that its step reads."""
    W = np.frombuffer(weights).reshape(agents, agents)
    table = strategy_table(W, rounds=rounds, period=period, bands=bands, algorithm="mafalda")
    C = np.zeros((rounds, rounds))
    for t, row in enumerate(table.numpy()):
        back = min(t + 1, len(row))
        C[t, t - np.arange(back)] = row[:back]
    return C


def _of_mafalda(weights: Matrix, rounds: int, period: int, bands: int) -> tuple[float, float]:
    """Energy of its noise at noise multiplier 1, and the joint sensitivity that is counted there.

    Of turns that are counted one by one that of one of them, else that of a record's all.
    """
    C = _mafalda(np.ascontiguousarray(weights).tobytes(), len(weights), rounds, period, bands)
    modes = modes_of(weights)
    gram = np.einsum("k,kst->st", modes.weights, grams(modes.eigenvalues, rounds=rounds))
    M = C.T @ C
    energy = float(np.trace(np.linalg.solve(M, gram))) / rounds
    if bands:
        return energy, float(np.sqrt(M.diagonal().max()))
    used = [np.arange(j, rounds, period) for j in range(period)]
    return energy, float(np.sqrt(max(np.abs(M[np.ix_(p, p)]).sum() for p in used)))


def _of_decor(made: Design, weights: Matrix, knowing: Sequence[frozenset[int]]) -> Trained:
    """The design's scale is that of who knows most, and the algorithm's that of an outsider."""
    ratio = round(made.ratio, 6)
    exposed = pair_exposure(weights, ratio=ratio, knowing=knowing)
    joint = math.sqrt(exposed / pair_exposure(weights, ratio=ratio))
    energy = made.energy / joint**2
    return Trained(algorithm="decor", settings={"correlation": ratio}, energy=energy, joint=joint)


def _best_horizon(weights: Matrix, *, rounds: int) -> tuple[int, float]:
    """The horizon whose covariance leaves least noise in the models of all rounds."""
    modes = modes_of(weights)
    squares = np.square(modes.eigenvalues)[:, None] ** np.arange(1, rounds + 1)
    spent = squares @ (rounds - np.arange(rounds)) / rounds  # per round, by eigenspace
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
    values = dict(read_toml(config.to_toml()))
    values["algorithm"] = {"name": row.algorithm, **row.settings}
    privacy = values.get("privacy")
    if isinstance(privacy, Mapping):
        kept = {k: v for k, v in privacy.items() if k not in ("epsilon", "noise_multiplier")}
        turns = {"participation": {"cycle": row.groups} if row.groups > 1 else "every"}
        values["privacy"] = {**kept, **turns, "epsilon": epsilon}
    return read_tables(values, where=f"run file with {row.kind}")
