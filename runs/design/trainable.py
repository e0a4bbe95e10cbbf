"""Which algorithm trains with a design, and at which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...privacy.noise.correlated import whisper_covariance
from ...privacy.noise.covariance import Matrix
from ...privacy.noise.design.kinds import Design, Kind
from ...privacy.noise.design.workload import modes_of
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
        because: why none makes it.
    """

    algorithm: str | None = None
    settings: dict[str, str | int | float] = field(default_factory=dict)
    energy: float | None = None
    because: str = ""


def trained(made: Design, graph: Graph) -> Trained:
    """The algorithm that makes the noise of a design on a graph."""
    if made.kind is Kind.INDEPENDENT:
        return Trained(algorithm="ldp-dsgd")
    if made.kind is Kind.ACROSS:
        horizon, energy = _best_horizon(graph.weights, rounds=made.rounds)
        uses = -(-made.rounds // made.period)
        settings: dict[str, str | int | float] = {"horizon": horizon}
        return Trained(algorithm="whisper", settings=settings, energy=energy * uses)
    if made.kind is Kind.PAIRS and made.bands == 1:
        return Trained(algorithm="decor", settings={"correlation": round(made.ratio, 6)})
    return Trained(because=_UNTRAINED)


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
