"""The spectral gap of a mixing matrix: how fast gossip forgets where it started.

    l = 1 - lambda_2(W),  lambda_1 = 1 >= lambda_2 >= ... the eigenvalues of a symmetric W

| symbol   | name here    | shape  | unit |
|----------|--------------|--------|------|
| W        | weights      | (A, A) | -    |
| l        | returned     | scalar | -    |
"""

from __future__ import annotations

import functools

import numpy as np

from ...privacy.errors import InputError
from .graph import Graph

_SYMMETRIC = 1e-9


@functools.lru_cache(maxsize=16)
def spectral_gap(graph: Graph) -> float:
    """Return 1 - lambda_2(W) of a graph, in (0, 2]; 1 for a single agent.

    Args:
        graph: with symmetric weights, such as Metropolis-Hastings weights on undirected links.

    Raises:
        ValueError: the weights are not symmetric, so lambda_2 may be complex.

    >>> from overhear.training import build_graph
    >>> round(spectral_gap(build_graph("ring", 10)), 4)
    0.1273
    """
    weights = graph.weights
    skew = float(np.abs(weights - weights.T).max())
    if skew > _SYMMETRIC:
        raise InputError(
            f"weights of {graph.name!r} differ by {skew:g} between the two directions of a link; "
            "accelerated gossip needs symmetric weights, as metropolis gives on undirected links"
        )
    if graph.agents == 1:
        return 1.0
    return 1.0 - float(np.linalg.eigvalsh(weights)[-2])
