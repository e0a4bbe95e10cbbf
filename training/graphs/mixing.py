"""Mixing matrices: weights from links, and what every mixing matrix must satisfy.

Rows that sum to 1 average what arrives, columns that sum to 1 hand on all of what is sent. With
both, mixing keeps the mean; with columns alone push-sum finds it (Kempe, Dobra, Gehrke:
"Gossip-based computation of aggregate information", 2003)::

    x <- P x,   w <- P w,   w_0 = 1;    x_i / w_i  ->  mean of x_0

Metropolis-Hastings weights (Xiao, Boyd, Kim: "Distributed average consensus with least-mean-square
deviation", 2007) make W symmetric and doubly stochastic on any undirected graph::

    W[i, j] = 1 / (1 + max(deg_i, deg_j))      for neighbours i != j, deg without the self-loop
    W[i, i] = 1 - sum_j W[i, j]

======  ==============================================  ============
Symbol  Meaning                                         Shape
======  ==============================================  ============
A       agents                                          scalar
W, P    W[i, j] is agent i's weight on j's message      (A, A)
deg_i   others that agent i hears                       scalar
======  ==============================================  ============
"""

from __future__ import annotations

import enum
import math
import mmap
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError

WeightScheme = Literal["metropolis", "uniform"]

MOST_AGENTS = 10_000
_MOST_LINKS = 4_000_000  # in one direction each; a full graph of 2,000 agents
_SUM_TOLERANCE = 1e-9
_LARGE = 2**27  # bytes of zeros: weights of 4,096 agents


class Sums(enum.StrEnum):
    """Which sums of a mixing matrix are 1."""

    BOTH = "rows and columns"
    ROWS = "rows"
    COLUMNS = "columns"

    def serve(self, needed: Sums) -> bool:
        """Whether weights with these sums do for a step that needs `needed`.

        >>> Sums.BOTH.serve(Sums.COLUMNS), Sums.COLUMNS.serve(Sums.BOTH)
        (True, False)
        """
        return self in (Sums.BOTH, needed)


def mixing_weights(
    name: str, adjacency: NDArray[np.bool_], *, scheme: WeightScheme
) -> NDArray[np.float64]:
    """Doubly stochastic weights (A, A) on undirected links.

    Args:
        name: What errors call the graph.
        adjacency: (A, A); a link is one entry in either triangle, the diagonal is ignored.
        scheme: "metropolis", or "uniform" (1/n_i, self-loop counted) where all degrees are equal.

    Raises:
        ValueError: If the scheme is unknown or uniform weights would not be doubly stochastic.
    """
    check_scheme(scheme)
    links = adjacency | adjacency.T
    np.fill_diagonal(links, val=False)
    _check_links(name, links)
    degree = links.sum(axis=1)  # (A,), without the self-loop
    if scheme == "uniform" and np.ptp(degree) > 0:
        low, high = int(degree.argmin()), int(degree.argmax())
        raise InputError(
            f"weights='uniform' needs equal degrees, but in {name!r} agent {low} hears "
            f"{degree[low]} others and agent {high} hears {degree[high]}, so columns would not sum "
            "to 1 and mixing would move the mean; use weights='metropolis'"
        )
    # With equal degrees both schemes give 1/n_i.
    weights = zeros(links.shape)  # (A, A)
    receivers, senders = np.nonzero(links)
    weights[receivers, senders] = 1.0 / (1.0 + np.maximum(degree[receivers], degree[senders]))
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def zeros(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Zeros of which large ones take memory where they are written alone, in small pages."""
    size = 8 * math.prod(shape)
    if size < _LARGE or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape)
    held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(held).reshape(shape)


def check_agents(name: str, agents: int, *, graphs: int = 1) -> None:
    """Refuses more agents than matrices of weights are made for.

    Args:
        agents: A.
        graphs: How many matrices it takes.

    Raises:
        ValueError: If they are more than 10,000, or fewer where there are several matrices.

    >>> check_agents("ring", 10_001)
    Traceback (most recent call last):
    ...
    overhear...InputError: agents=10001 is too many for 'ring'; at most 10000 can be \
accounted for: lower agents
    """
    most = math.isqrt(MOST_AGENTS**2 // graphs)
    if agents > most:
        raise InputError(
            f"agents={agents} is too many for {name!r}; at most {most} can be accounted for: "
            "lower agents"
        )


def _check_links(name: str, links: NDArray[np.bool_]) -> None:
    """Refuses more links than can be followed one by one."""
    if (count := int(np.count_nonzero(links))) > _MOST_LINKS:
        raise InputError(
            f"graph {name!r} of agents={len(links)} has {count} links, and at most {_MOST_LINKS} "
            "can be accounted for: lower agents, or join fewer of them"
        )


def check_scheme(scheme: str) -> None:
    """Refuses a name that is no weight scheme.

    Raises:
        ValueError: If the scheme is unknown.
    """
    if scheme not in get_args(WeightScheme):
        raise InputError(f"weights={scheme!r} must be one of {', '.join(get_args(WeightScheme))}")


def push_weights(arcs: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Column-stochastic weights (A, A) on directed links: each sender splits what it has evenly.

    Args:
        arcs: (A, A); arcs[i, j] says that j sends to i. The diagonal is ignored: every agent keeps
            a share.

    >>> push_weights(np.array([[0, 0, 1], [1, 0, 0], [1, 1, 0]], dtype=bool)).round(3).tolist()
    [[0.333, 0.0, 0.5], [0.333, 0.5, 0.0], [0.333, 0.5, 0.5]]
    """
    links = arcs | np.eye(len(arcs), dtype=bool)
    weights: NDArray[np.float64] = links / links.sum(axis=0)  # (A, A)
    return weights


def check_mixing(name: str, weights: NDArray[np.float64], *, connected: bool = True) -> Sums:
    """Refuses a matrix that loses what is sent, an agent's own model, or a part of the graph.

    Args:
        weights: (A, A).
        connected: Whether every agent must hear every other in the end; a graph that is used in
            turn with others need not.

    Returns:
        Which sums are 1.

    Raises:
        ValueError: If the matrix is not square, finite and nonnegative, if neither its rows nor
            its columns sum to 1 (to 1e-9), if an agent gives itself no weight, or if the graph
            falls into pieces.
    """
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or weights.shape[0] == 0:
        raise InputError(f"weights of {name!r} have shape {weights.shape}, must be square (A, A)")
    links = weights != 0
    _check_links(name, links)
    ends = np.stack(np.nonzero(links), axis=1)
    held = weights[ends[:, 0], ends[:, 1]]
    for fault, where in (("not finite", ~np.isfinite(held)), ("negative", held < 0)):
        if where.any():
            i, j = ends[where][0]
            raise InputError(f"weights[{i}, {j}]={weights[i, j]} of {name!r} is {fault}")
    sums = _sums(name, weights)
    if (weights.diagonal() <= 0).any():
        i = int(weights.diagonal().argmin())
        raise InputError(
            f"weights[{i}, {i}]=0 of {name!r} must be positive: agent {i} would drop its own model"
        )
    found = pieces(links, both_ways=False) if connected else []
    if len(found) > 1:
        raise InputError(
            f"graph {name!r} falls into {len(found)} pieces ({name_pieces(found)}) that do not "
            "hear each other both ways; join them, or run them separately"
        )
    return sums


def _sums(name: str, weights: NDArray[np.float64]) -> Sums:
    held, faults = [], []
    for axis, word, sums_of in ((1, "row", Sums.ROWS), (0, "column", Sums.COLUMNS)):
        sums = weights.sum(axis=axis)
        worst = int(np.abs(sums - 1).argmax())
        if abs(sums[worst] - 1) <= _SUM_TOLERANCE:
            held.append(sums_of)
        else:
            faults.append(f"{word} {worst} of the weights of {name!r} sums to {sums[worst]:.12g}")
    if not held:
        raise InputError(
            f"{faults[0]}, must be 1 (rows and columns alike to keep the mean, or columns alone "
            'for push-sum); give a list of "edges" to get metropolis weights'
        )
    return held[0] if faults else Sums.BOTH


def pieces(links: NDArray[np.bool_], *, both_ways: bool = True) -> list[list[int]]:
    """The agents of each connected piece.

    Args:
        links: (A, A).
        both_ways: Whether a link counts in both directions; otherwise the agents of a piece reach
            each other along the links as they are.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    receivers, senders = np.nonzero(links)
    edges = coo_array((np.ones(receivers.size), (receivers, senders)), shape=links.shape)
    kind = "weak" if both_ways else "strong"
    count, labels = connected_components(edges, directed=True, connection=kind)
    return [np.flatnonzero(labels == piece).tolist() for piece in range(count)]


def name_pieces(found: list[list[int]]) -> str:
    """The pieces as text, cut short when there are many."""
    shown = []
    for piece in found[:4]:
        more = f", ... {len(piece) - 6} more" if len(piece) > 6 else ""
        shown.append("{" + ", ".join(map(str, piece[:6])) + more + "}")
    return ", ".join(shown) + (", ..." if len(found) > 4 else "")
