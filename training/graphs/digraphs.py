"""Random directed graphs that change from round to round, and how soon they join everybody.

A sequence of graphs is B-strongly-connected if the links of any B rounds in a row, together, join
every agent to every other one in both directions. Push-sum then finds the mean, the faster the
smaller B is (A. Nedic, A. Olshevsky, "Distributed optimization over time-varying directed graphs",
IEEE TAC 2015; Dyn-D2P and stochastic gradient push assume it of their graphs).

    arc j -> i of round k:   present with probability p, independently of all others
    P^k[i, j] = 1 / (1 + arcs that leave j),  where j -> i or i = j        (columns sum to 1)

| symbol | name here        | shape  | meaning                                                |
|--------|------------------|--------|--------------------------------------------------------|
| p      | edge_probability | scalar | of each of the A (A - 1) arcs, in each round           |
| L      | graphs           | scalar | rounds until the sequence begins again                 |
| B      | window           | scalar | rounds in a row whose links join everybody, at most    |

The sequence is drawn before the run from a public seed and is the same for everybody who reads the
run file: it amplifies nothing, and each of its graphs is accounted for as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...privacy._validate import within
from ...privacy.errors import InputError
from .graph import Graph, GraphSequence, Topology
from .mixing import WeightScheme, check_agents, name_pieces, pieces, push_weights

__all__ = ["joined_within", "random_digraph", "strong_window"]


def random_digraph(
    agents: int,
    edge_probability: float,
    *,
    graphs: int = 16,
    window: int | None = None,
    seed: int = 0,
    weights: WeightScheme = "metropolis",
) -> GraphSequence:
    """Directed graphs that take turns, each drawn anew; every sender splits what it has evenly.

    Args:
        agents: A, at least 2.
        edge_probability: of each arc in each graph.
        graphs: how many take turns.
        window: B at most; by default any.
        seed: public.
        weights: "metropolis", which has no effect: these weights are of one kind.

    Raises:
        ValueError: a number out of range, all graphs together fall into pieces, or it takes more
            than `window` rounds to join everybody. No other seed is tried in its place.

    >>> graph = random_digraph(10, 0.1, graphs=8, seed=1)
    >>> len(graph.graphs), graph.sums.value, strong_window(graph)
    (8, 'columns', 5)
    """
    name = "random-digraph"
    if agents < 2:
        raise InputError(f"agents={agents} is too few for {name!r}; it needs at least 2")
    within("edge_probability", edge_probability, "[0, 1]")
    within("graphs", graphs, "[1, inf)", ": how many take turns")
    if weights != "metropolis":
        raise InputError(
            f"weights={weights!r} cannot apply to {name!r}, whose senders split what they have "
            "evenly; leave it out"
        )
    check_agents(name, agents, graphs=graphs)
    draw = np.random.default_rng(seed)
    arcs = [draw.random((agents, agents)) < edge_probability for _ in range(graphs)]
    drawn = (
        f"{name} with agents={agents}, edge_probability={edge_probability}, graphs={graphs}, "
        f"seed={seed}"
    )
    if len(found := pieces(np.logical_or.reduce(arcs), both_ways=False)) > 1:
        raise InputError(
            f"all graphs of {drawn} together fall into {len(found)} pieces ({name_pieces(found)}) "
            "that do not hear each other both ways; raise edge_probability or graphs, or take "
            "another seed"
        )
    sequence = GraphSequence(
        name=name,
        graphs=tuple(
            Graph(name=f"{name} {k}", weights=push_weights(of), connected=False)
            for k, of in enumerate(arcs, start=1)
        ),
    )
    if window is not None and (needed := strong_window(sequence)) > window:
        raise InputError(
            f"window={window} does not join all agents of {drawn}: it takes {needed} rounds in a "
            "row; raise window or edge_probability, or take another seed"
        )
    return sequence


def strong_window(sequence: GraphSequence) -> int:
    """B: the least number of rounds of which any in a row join all agents both ways.

    The sequence begins again after its last graph, and so do rounds in a row. 1 is the least: each
    graph joins everybody by itself.

    >>> from overhear.training.graphs.topologies import directed_exponential
    >>> strong_window(directed_exponential(8)), strong_window(directed_exponential(2))
    (3, 1)
    """
    links = [graph.weights != 0 for graph in sequence.graphs]
    low, high = 1, len(links)  # all of them together join everybody
    while low < high:
        middle = (low + high) // 2
        if _all_join(links, middle):
            high = middle
        else:
            low = middle + 1
    return low


def joined_within(graph: Topology) -> int | None:
    """`strong_window` of graphs that take turns; None of others, and where some agents are absent.

    >>> from overhear.training.graphs.topologies import ring
    >>> joined_within(random_digraph(4, 0.9, graphs=3)), joined_within(ring(4))
    (1, None)
    """
    if isinstance(graph, GraphSequence) and len(graph.graphs) > 1:
        return strong_window(graph)
    return None


def _all_join(links: list[NDArray[np.bool_]], window: int) -> bool:
    """Whether the links of any so many rounds in a row join everybody."""
    held = np.asarray(np.sum(links[:window], axis=0, dtype=np.int64))  # (A, A) in how many
    for start in range(len(links)):
        if len(pieces(held.astype(np.bool_), both_ways=False)) > 1:
            return False
        held -= links[start]
        held += links[(start + window) % len(links)]
    return True
