"""Noise energy of Whisper, DECOR, LDP and CDP over random graphs, without a run.

    energy = tr(W R W^T)      per coordinate, all agents together, in units of a clipped gradient

with R the covariance that each algorithm adds at one bound b on [R^-1]_ii: I / b for LDP, the best
ratio of own to pairs' noise for DECOR, the optimum for Whisper; CDP's server leaves 1 / (A b).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.errors import InputError
from ...privacy.noise.correlated import (
    decor_covariance,
    noise_floor,
    optimise_covariance,
    victim_information,
)
from ...privacy.published.whisper import whisper_information
from ...training.algorithms.decor import best_correlation
from ...training.graphs.graph import Graph
from ...training.graphs.topologies import erdos_renyi
from .paper_result import Computed, ScaleName

_AGENTS, _EPSILON, _DELTA, _ROUNDS, _CLIP = 20, 10.0, 1e-5, 5000, 0.1
_PROBABILITIES = (0.2, 0.4, 0.6, 0.8, 1.0)


def energies_of(graph: Graph, *, bound: float) -> dict[str, float]:
    """tr(W R W^T) of each algorithm at one bound on [R^-1]_ii.

    Args:
        graph: with symmetric weights.
        bound: b, in 1 / norm^2.

    Returns:
        By algorithm, in norm^2 per coordinate, all agents together.
    """
    weights, agents = graph.weights, graph.agents
    ratio = best_correlation(graph, horizon=1)
    decor = decor_covariance(weights, local_variance=1.0, pair_variance=ratio)
    decor = decor * (victim_information(decor).max() / bound)
    return {
        "LDP": _after_mixing(weights, np.eye(agents) / bound),
        "DECOR": _after_mixing(weights, decor),
        "Whisper": optimise_covariance(weights, bound=bound).objective,
        "CDP": 1.0 / (agents * bound),
    }


def _after_mixing(weights: ArrayLike, covariance: NDArray[np.float64]) -> float:
    return noise_floor(weights, covariance)


def noise_energies(scale: ScaleName) -> list[Computed]:
    """The lines of the figure: 20 agents, epsilon 10 at delta 1e-5, clip norm .1, 5000 rounds.

    Args:
        scale: two graphs of the least and the largest probability, or ten of each.
    """
    step, seeds = (4, 2) if scale == "smoke" else (1, 10)
    bound = whisper_information(epsilon=_EPSILON, delta=_DELTA, rounds=_ROUNDS, clip_norm=_CLIP)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for probability in _PROBABILITIES[::step]:
        for seed, graph in itertools.islice(_connected(probability), seeds):
            for name, energy in energies_of(graph, bound=bound).items():
                found.setdefault((f"{probability:g}", name), {})[seed] = energy
    return [
        Computed(place={"graph.edge_probability": at, "algorithm.name": name}, values=values)
        for (at, name), values in found.items()
    ]


def _connected(probability: float) -> Iterator[tuple[int, Graph]]:
    """Graphs of seeds 1, 2, ... but for those that fall apart, on which nothing is learned."""
    for seed in itertools.count(1):
        with contextlib.suppress(InputError):
            yield seed, erdos_renyi(_AGENTS, probability, seed=seed)
