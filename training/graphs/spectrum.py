"""The spectrum of mixing weights."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...privacy.errors import InputError
from .graph import SYMMETRIC, Graph

__all__ = ["spectral_gap"]


@lru_cache(maxsize=16)
def spectral_gap(graph: Graph) -> float:
    """How fast gossip forgets where it started: 1 - lambda_2(W), in (0, 2]; 1 for a single agent.

    lambda_1 = 1 >= lambda_2 >= ... are the eigenvalues of W.

    Args:
        graph: with symmetric weights, such as Metropolis-Hastings weights on undirected links.

    Raises:
        ValueError: the weights are not symmetric, so lambda_2 may be complex.

    >>> from overhear.training import build_graph
    >>> round(spectral_gap(build_graph("ring", 10)), 4)
    0.1273
    """
    if not graph.has_links:
        raise InputError(f"graph {graph.name!r} has no links between agents; choose another graph")
    weights = graph.weights
    skew = float(np.abs(weights - weights.T).max())
    if skew > SYMMETRIC:
        raise InputError(
            f"weights of {graph.name!r} differ by {skew:g} between the two directions of a link; "
            "accelerated gossip needs symmetric weights, as metropolis gives on undirected links"
        )
    if graph.agents == 1:
        return 1.0
    return 1.0 - float(np.linalg.eigvalsh(weights)[-2])
