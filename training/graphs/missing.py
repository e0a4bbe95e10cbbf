"""Agents that are missing from a round although nobody knew it beforehand.

In every round any set S of at most m agents may be missing, and who is decided by neither the data
nor the noise of the round. Noise was made for everybody: no step knows S when it adds noise, and a
mean is the sum of what arrives over A, whoever sent. A missing agent draws and sends nothing in the
whole round, and keeps its state; in the start everybody takes part. Its links carry nothing; of
what it would have given, or got,

    lost    nothing is made up for: weights are those of the graph without its links
    kept    the others keep it, as they do with agents that are absent by a public list

Both are looked at. In a round the figure is that of the worst S that leaves the victim in, since a
record of a missing agent is not released. As rounds are accounted for one by one, S may depend on
all that was released before.

| symbol | name here | meaning                                   |
|--------|-----------|-------------------------------------------|
| A      | agents    | of the run                                |
| m      | missing   | the most agents that are missing at once  |
| S      | away      | agents that are                           |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ...privacy._validate import whole
from ...privacy.errors import InputError
from .graph import Graph, GraphSequence, ScheduledGraph, Topology
from .participation import without

__all__ = [
    "MISSING",
    "ReducedGraph",
    "check_missing",
    "missing_words",
    "number_of_sets",
    "reduced",
    "sets_missing",
]

# What is assumed of them, in sentences for reports.
MISSING = (
    "Who is missing from a round depends on neither the data nor the noise. An agent is missing "
    "from all of a round, in which it draws and sends nothing and keeps its state. A sum of what "
    "arrives is divided by the number of all agents, and no one takes noise back or scales it for "
    "those who are missing. What no one gives is left out of a mixture, or everybody keeps it."
)

_MOST_SETS = 2_000
_MOST_WEIGHTS = 2**27  # over all sets: 1 GB of weights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReducedGraph:
    """A topology from whose rounds the same agents are missing; from the start nobody is.

    Args:
        base: of everybody.
        graphs: of a period of rounds.
    """

    base: Graph | GraphSequence
    graphs: tuple[Graph, ...]

    @property
    def name(self) -> str:
        """That of the base."""
        return self.base.name

    @property
    def agents(self) -> int:
        """A, the number of agents, missing ones among them."""
        return self.base.agents

    def at(self, round: int) -> Graph:
        """The graph of a round; in the start, 0, everybody takes part."""
        return self.graphs[(round - 1) % len(self.graphs)] if round else self.base.at(0)


def check_missing(missing: object, graph: Topology) -> int:
    """How many agents may be missing at once.

    Args:
        missing: m, from 0.
        graph: of the run.

    Raises:
        ValueError: a number out of range, or a list of who takes part besides.
        TypeError: no integer.

    >>> from overhear.training import build_graph
    >>> check_missing(2, build_graph("ring", 5))
    2
    """
    why = ", the agents beside the victim, which loses nothing in a round from which it is missing"
    number = whole("missing", missing, f"[0, {graph.agents - 1}]", why)
    if number and isinstance(graph, ScheduledGraph):
        raise InputError(
            f"missing={missing} and a public list of who takes part: nothing is proven of both "
            "together; give one of them"
        )
    return number


def missing_words(missing: int, agents: int) -> str:
    """What a plan says of it.

    >>> missing_words(2, 10)
    'up to 2 of 10 agents may be missing in any round'
    """
    return f"up to {missing} of {agents} agents may be missing in any round"


def number_of_sets(
    graph: Topology, missing: int, *, alike: frozenset[int] = frozenset(), victim: int | None = None
) -> int:
    """How many sets of missing agents have to be looked at, that of nobody left out.

    Args:
        graph: of the run.
        missing: m.
        alike: agents that can change places with each other.
        victim: who is in no set; None where nobody is named.

    Raises:
        ValueError: more than two thousand, or their graphs take more than a gigabyte.

    >>> from overhear.training import build_graph
    >>> number_of_sets(build_graph("ring", 10), 3)
    175
    >>> number_of_sets(build_graph("ring", 100), 10, alike=frozenset(range(100)))
    10
    """
    agents, same = graph.agents, len(alike - {victim})
    distinct = agents - same - (victim is not None and victim not in alike)
    weights = agents**2 if graph.graphs[0].has_links else agents
    most = min(_MOST_SETS, _MOST_WEIGHTS // (2 * weights * len(set(graph.graphs))))
    count = -1
    for few in range(min(distinct, missing) + 1):
        count += math.comb(distinct, few) * (min(same, missing - few) + 1)
        if count > most:
            told = (
                ""
                if alike
                else ", for the step does not treat all agents alike: only where it uses no links "
                "and gives agents no numbers of their own, the number of missing agents decides"
            )
            raise InputError(
                f"missing={missing} of {agents} agents makes more than {most} sets of missing "
                f"agents, the most that are traced, each by itself{told}; lower missing or agents"
            )
    return count


def sets_missing(
    agents: int, missing: int, *, alike: frozenset[int] = frozenset(), victim: int | None = None
) -> Iterator[frozenset[int]]:
    """The sets of missing agents, that of nobody left out; of alike agents one set a number.

    >>> [sorted(away) for away in sets_missing(3, 2, victim=0)]
    [[1], [2], [1, 2]]
    >>> [sorted(away) for away in sets_missing(5, 2, alike=frozenset(range(1, 5)), victim=0)]
    [[1], [1, 2]]
    """
    distinct = [a for a in range(agents) if a not in alike and a != victim]
    same = sorted(alike - {victim})
    for few in range(min(len(distinct), missing) + 1):
        for some in combinations(distinct, few):
            for more in range(min(len(same), missing - few) + 1):
                if few + more:
                    yield frozenset(some) | frozenset(same[:more])


def reduced(
    graph: Graph | GraphSequence, away: frozenset[int], *, links: bool = True
) -> list[ReducedGraph]:
    """The topology without some agents, with what is lost of the weights, and with it kept.

    Args:
        graph: of everybody.
        links: whether the step uses any; else they stay as they are, in one topology.

    >>> from overhear.training import build_graph
    >>> for one in reduced(build_graph("ring", 4), frozenset({3})):
    ...     print(one.at(1).weights.round(3).tolist()[0])
    [0.333, 0.333, 0.0, 0.0]
    [0.667, 0.333, 0.0, 0.0]
    """
    if not links or not graph.graphs[0].has_links:
        marked = {of: _marked(of, away, of.weights) for of in dict.fromkeys(graph.graphs)}
        return [ReducedGraph(base=graph, graphs=tuple(marked[of] for of in graph.graphs))]
    kept = {of: _kept(of, away) for of in dict.fromkeys(graph.graphs)}
    lost = {of: _lost(of, one) for of, one in kept.items()}
    different = any(not np.array_equal(kept[of].weights, lost[of].weights) for of in kept)
    return [
        ReducedGraph(base=graph, graphs=tuple(made[of] for of in graph.graphs))
        for made in ([lost, kept] if different else [kept])
    ]


def _kept(graph: Graph, away: frozenset[int]) -> Graph:
    active = np.ones(graph.agents, dtype=bool)
    active[sorted(away)] = False
    found = without(graph, active)
    return _marked(found, away, found.weights)


def _lost(graph: Graph, kept: Graph) -> Graph:
    weights = kept.weights.copy()
    own = np.where(kept.active, graph.weights.diagonal(), 1.0)
    np.fill_diagonal(weights, own)
    weights.setflags(write=False)
    return _marked(kept, kept.absent, weights)


def _marked(graph: Graph, away: frozenset[int], weights: NDArray[np.float64]) -> Graph:
    """The graph with these weights, which need not sum to 1, and agents that nobody knew of."""
    made = object.__new__(Graph)
    derived = {"name": graph.name, "weights": weights, "connected": False, "sums": graph.sums}
    derived |= {"absent": away, "unannounced": True}
    derived |= {"receivers": graph.receivers, "senders": graph.senders}
    for attribute, value in derived.items():
        object.__setattr__(made, attribute, value)
    return made
