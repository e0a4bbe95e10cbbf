"""Graphs of agents with mixing weights, for all rounds or changing from round to round.

A graph is its matrix W: ``weights[i, j]`` is the weight that agent i gives to the message of agent
j, and a link j -> i exists exactly where it is not zero. Every agent keeps a share of its own
value, so each has a self-loop.

The topologies by name are in `topologies`, the weights themselves in `mixing`, and public lists of
who takes part in which round in `participation`.

======  ==========================================================  ============
Symbol  Meaning                                                     Shape
======  ==========================================================  ============
A       agents                                                      scalar
E       directed edges, self-loops included                         scalar
W       ``Graph.weights``; rows, columns or both sum to 1 (`sums`)  (A, A)
N_i     ``Graph.neighbours(i)``, includes i                         n_i = |N_i|
======  ==========================================================  ============
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, UndeclaredOperation, within
from . import mixing
from .mixing import name_pieces

SYMMETRIC = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """A connected graph with mixing weights.

    Args:
        name: What the graph is called in reports.
        weights: W, (A, A): W[i, j] is the weight agent i gives to agent j's message. Copied, and
            read-only afterwards.
        connected: Whether every agent must hear every other in the end; False for one of several
            graphs that a `GraphSequence` takes in turn.
        absent: Agents that take no part in the round: they compute, make noise, send and receive
            nothing, and keep their state. Each has its self-loop alone.
        unannounced: Whether nobody knew who is absent when noise was made; see `missing`.

    Attributes:
        receivers: (E,) int64, the receiving agent of each directed edge.
        senders: (E,) int64, the sending agent. Edges are sorted by (receiver, sender) and include
            the self-loops.
        sums: Which of W's rows and columns sum to 1.

    Raises:
        ValueError: If W is not square, finite and nonnegative, if neither its rows nor its columns
            sum to 1 (to 1e-9), if an agent gives itself no weight, or if the graph falls into
            pieces.

    >>> graph = Graph(name="pair", weights=np.array([[0.5, 0.25], [0.5, 0.75]]))
    >>> graph.neighbours(0), graph.senders.size, str(graph.sums)
    ((0, 1), 4, 'columns')
    """

    name: str
    weights: NDArray[np.float64]
    connected: bool = True
    absent: frozenset[int] = frozenset()
    unannounced: bool = False
    receivers: NDArray[np.int64] = field(init=False, repr=False)
    senders: NDArray[np.int64] = field(init=False, repr=False)
    sums: mixing.Sums = field(init=False)

    def __post_init__(self) -> None:
        weights = np.asarray(self.weights, dtype=np.float64)  # (A, A)
        object.__setattr__(
            self, "sums", mixing.check_mixing(self.name, weights, connected=self.connected)
        )
        receivers, senders = np.nonzero(weights)  # row-major, so already (receiver, sender)
        if weights.flags.writeable or weights.base is not None:
            held, weights = weights, mixing.zeros(weights.shape)  # which its giver cannot change
            weights[receivers, senders] = held[receivers, senders]
        derived = {
            "weights": weights,
            "receivers": receivers.astype(np.int64),
            "senders": senders.astype(np.int64),
        }
        for attribute, value in derived.items():
            value.setflags(write=False)
            object.__setattr__(self, attribute, value)
        object.__setattr__(self, "absent", frozenset(self.absent))
        for agent in sorted(self.absent):
            self._check_agent(agent)
            ends = (self.receivers == agent) | (self.senders == agent)
            if np.count_nonzero(ends) > 1:
                raise InputError(
                    f"agent {agent} of {self.name!r} is absent and has links; an absent agent "
                    "neither sends nor receives"
                )

    @staticmethod
    def without_links(name: str, agents: int) -> Graph:
        """Agents without links: what they send goes to a server, or into a trusted sum.

        Nothing is as large as A times A: W, the identity, is a view of a line of zeros around a 1.

        >>> Graph.without_links("server", 10_000).weights[:2, :2].tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        line = np.zeros(2 * agents - 1)
        line[agents - 1] = 1.0
        step = line.itemsize
        weights = np.lib.stride_tricks.as_strided(
            line[agents - 1 :], shape=(agents, agents), strides=(-step, step), writeable=False
        )
        every = np.arange(agents)
        every.setflags(write=False)
        made = object.__new__(Graph)
        derived = {"name": name, "weights": weights, "connected": False, "sums": mixing.Sums.BOTH}
        derived |= {"absent": frozenset[int](), "unannounced": False}
        for attribute, value in {**derived, "receivers": every, "senders": every}.items():
            object.__setattr__(made, attribute, value)
        return made

    @property
    def has_links(self) -> bool:
        """Whether agents can hear another one, where there is one and it is not absent."""
        return self.receivers.size > self.agents or self.agents == 1 or bool(self.absent)

    def check_links(self, what: str) -> None:
        """Refuse what sends along links where there are none.

        Raises:
            UndeclaredOperation: no agent hears another one.
        """
        if not self.has_links:
            raise UndeclaredOperation(
                f"{what} on graph {self.name!r}, which has no links between agents: choose another "
                "graph, or an algorithm with a server"
            )

    @property
    def agents(self) -> int:
        """A, the number of agents."""
        return int(self.weights.shape[0])

    @property
    def active(self) -> NDArray[np.bool_]:
        """(A,) which agents take part."""
        mask = np.ones(self.agents, dtype=bool)
        mask[list(self.absent)] = False
        return mask

    @property
    def announced(self) -> NDArray[np.bool_]:
        """(A,) which agents take part, as far as is known when noise is made."""
        return np.ones_like(self.active) if self.unannounced else self.active

    @property
    def lasting(self) -> Graph | None:
        """The one graph behind all rounds: itself."""
        return self

    @property
    def edge_weights(self) -> NDArray[np.float64]:
        """(E,) the weight of each directed edge, in the order of `receivers` and `senders`."""
        return self.weights[self.receivers, self.senders]

    @property
    def degrees(self) -> NDArray[np.int64]:
        """(A,) n_i: how many agents i hears, itself included."""
        return np.bincount(self.receivers, minlength=self.agents).astype(np.int64)

    @property
    def symmetric(self) -> bool:
        """Whether every link is used in both directions; the weights may differ."""
        if not self.has_links:
            return True
        return bool(self.weights[self.senders, self.receivers].all())

    @property
    def graphs(self) -> tuple[Graph]:
        """The graph itself: one for all rounds."""
        return (self,)

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Every (sender, receiver) between two agents, in the order of the edges."""
        pairs = zip(self.senders.tolist(), self.receivers.tolist(), strict=True)
        return tuple((j, i) for j, i in pairs if j != i)

    def at(self, round: int) -> Graph:
        """The graph of a round: itself."""
        del round
        return self

    def neighbours(self, agent: int) -> tuple[int, ...]:
        """N_i: the agents that agent i hears, itself included, ascending."""
        self._check_agent(agent)
        return tuple(np.flatnonzero(self.weights[agent]).tolist())

    def degree(self, agent: int) -> int:
        """n_i: the number of `neighbours`, the agent itself included."""
        self._check_agent(agent)
        return int(np.count_nonzero(self.weights[agent]))

    def _check_agent(self, agent: int) -> None:
        if not 0 <= agent < self.agents:  # a negative index would quietly name another agent
            raise InputError(
                f"agent={agent} must lie in [0, {self.agents - 1}]; agents count from 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphSequence:
    """Graphs that take turns, one a round, again and again.

    Args:
        name: What the sequence is called in reports.
        graphs: One period. Round 1 has the first; so has the start, round 0. Each may fall into
            pieces, but not all of them together.

    Attributes:
        sums: Which sums are 1 in every graph.

    Raises:
        ValueError: If there is no graph, if the graphs differ in their agents, if neither rows nor
            columns sum to 1 in all of them, or if all of them together fall into pieces.

    >>> there = Graph(name="there", weights=np.array([[0.5, 0.0], [0.5, 1.0]]), connected=False)
    >>> back = Graph(name="back", weights=np.array([[1.0, 0.5], [0.0, 0.5]]), connected=False)
    >>> both = GraphSequence(name="to and fro", graphs=(there, back))
    >>> [both.at(number).name for number in (1, 2, 3)], both.neighbours(0)
    (['there', 'back', 'there'], (0, 1))
    """

    name: str
    graphs: tuple[Graph, ...]
    sums: mixing.Sums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graphs", tuple(self.graphs))
        if not self.graphs:
            raise InputError(f"graphs of {self.name!r} is empty; give one graph for every round")
        counts = [graph.agents for graph in self.graphs]
        if len(set(counts)) > 1:
            raise InputError(f"graphs of {self.name!r} have {counts} agents, must be equally many")
        shared = [s for s in mixing.Sums if all(graph.sums.serve(s) for graph in self.graphs)]
        if not shared:
            raise InputError(
                f"graphs of {self.name!r} differ: in some only rows sum to 1, in others only "
                "columns; give all of them the same"
            )
        object.__setattr__(self, "sums", shared[0])
        found = mixing.pieces(self._support(), both_ways=False)
        if len(found) > 1:
            raise InputError(
                f"the graphs of {self.name!r} together fall into {len(found)} pieces "
                f"({name_pieces(found)}) that do not hear each other both ways; join them, or run "
                "them separately"
            )

    @property
    def agents(self) -> int:
        """A, the number of agents."""
        return self.graphs[0].agents

    @property
    def lasting(self) -> Graph | None:
        """The one graph behind all rounds: none, where several take turns."""
        return self.graphs[0] if len(self.graphs) == 1 else None

    @property
    def symmetric(self) -> bool:
        """Whether every link is used in both directions, in every round."""
        return all(graph.symmetric for graph in self.graphs)

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Every (sender, receiver) of a period, sorted by receiver and sender."""
        receivers, senders = np.nonzero(self._support())
        pairs = zip(senders.tolist(), receivers.tolist(), strict=True)
        return tuple((j, i) for j, i in pairs if j != i)

    def at(self, round: int) -> Graph:
        """The graph of a round; rounds count from 1, and 0 is the start."""
        within("round", round, "[0, inf]", "rounds count from 1")
        return self.graphs[max(round - 1, 0) % len(self.graphs)]

    def neighbours(self, agent: int) -> tuple[int, ...]:
        """The agents that an agent hears in some round, itself included, ascending."""
        return tuple(sorted({j for graph in self.graphs for j in graph.neighbours(agent)}))

    def _support(self) -> NDArray[np.bool_]:
        return reduce(np.logical_or, [graph.weights != 0 for graph in self.graphs])  # (A, A)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScheduledGraph:
    """A topology of whose agents some are absent in some rounds, by a public list.

    Everybody takes part in the start, round 0. `participation.scheduled` makes one.

    Args:
        base: Who talks to whom where everybody takes part.
        graphs: The graph of every round of the list, in order; equal patterns are one object.
        told: Where the list is from, in words: "public list, seed 4".

    Attributes:
        name: That of the base.

    Raises:
        ValueError: If there is no round, if a round has other agents than the base, or if neither
            rows nor columns sum to 1 in all of them.

    >>> pair = Graph(name="pair", weights=np.array([[0.5, 0.5], [0.5, 0.5]]))
    >>> apart = Graph(name="pair", weights=np.eye(2), connected=False, absent=frozenset({1}))
    >>> run = ScheduledGraph(base=pair, graphs=(pair, apart, pair), told="public list")
    >>> [run.at(number).active.tolist() for number in (0, 1, 2)]
    [[True, True], [True, True], [True, False]]
    """

    base: Graph | GraphSequence
    graphs: tuple[Graph, ...]
    told: str
    name: str = field(init=False)
    sums: mixing.Sums = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "graphs", tuple(self.graphs))
        object.__setattr__(self, "name", self.base.name)
        if not self.graphs:
            raise InputError(f"the list of who takes part in {self.name!r} has no round")
        if any(graph.agents != self.base.agents for graph in self.graphs):
            raise InputError(f"rounds of {self.name!r} must have its {self.base.agents} agents")
        distinct = (self.base, *dict.fromkeys(self.graphs))
        shared = [s for s in mixing.Sums if all(graph.sums.serve(s) for graph in distinct)]
        if not shared:
            raise InputError(
                f"with agents absent, in some rounds of {self.name!r} only rows of the weights "
                "sum to 1, in others only columns; give all of them the same"
            )
        object.__setattr__(self, "sums", shared[0])

    @property
    def agents(self) -> int:
        """A, the number of agents, absent ones among them."""
        return self.base.agents

    @property
    def lasting(self) -> Graph | None:
        """The graph of which agents are absent in some rounds; None where several take turns."""
        return self.base.lasting

    @property
    def symmetric(self) -> bool:
        """Whether every link is used in both directions, in every round."""
        return all(graph.symmetric for graph in (self.base, *dict.fromkeys(self.graphs)))

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Every (sender, receiver) of the base."""
        return self.base.links

    @property
    def active(self) -> NDArray[np.bool_]:
        """(T, A) which agents take part in which round."""
        return np.stack([graph.active for graph in self.graphs])

    @property
    def digest(self) -> str:
        """SHA-256 of the list."""
        active = self.active
        return hashlib.sha256(
            f"{active.shape}".encode() + np.packbits(active).tobytes()
        ).hexdigest()

    def at(self, round: int) -> Graph:
        """The graph of a round; rounds count from 1, and in the start, 0, everybody takes part."""
        within("round", round, "[0, inf]", "rounds count from 1")
        if round > len(self.graphs):
            raise InputError(
                f"round {round} is beyond the list of who takes part, which has "
                f"{len(self.graphs)} rounds; give a list of every round"
            )
        return self.graphs[round - 1] if round else self.base.at(0)

    def neighbours(self, agent: int) -> tuple[int, ...]:
        """The agents that an agent hears in the base, itself included, ascending."""
        return self.base.neighbours(agent)


Topology = Graph | GraphSequence | ScheduledGraph


# The spectrum of mixing weights.


@lru_cache(maxsize=16)
def spectral_gap(graph: Graph) -> float:
    """How fast gossip forgets where it started: 1 - lambda_2(W), in (0, 2]; 1 for a single agent.

    lambda_1 = 1 >= lambda_2 >= ... are the eigenvalues of W.

    Args:
        graph: with symmetric weights, such as Metropolis-Hastings weights on undirected links.

    Raises:
        ValueError: the weights are not symmetric, so lambda_2 may be complex.
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


# Random directed graphs that change from round to round, and how soon they join everybody.
#
# A sequence of graphs is B-strongly-connected if the links of any B rounds in a row, together, join
# every agent to every other one in both directions. Push-sum then finds the mean, the faster the
# smaller B is (A. Nedic, A. Olshevsky, "Distributed optimization over time-varying directed
# graphs", IEEE TAC 2015; Dyn-D2P and stochastic gradient push assume it of their graphs).
#
#     arc j -> i of round k:   present with probability p, independently of all others
#     P^k[i, j] = 1 / (1 + arcs that leave j),  where j -> i or i = j        (columns sum to 1)
#
# | symbol | name here        | shape  | meaning                                                |
# |--------|------------------|--------|--------------------------------------------------------|
# | p      | edge_probability | scalar | of each of the A (A - 1) arcs, in each round           |
# | L      | graphs           | scalar | rounds until the sequence begins again                 |
# | B      | window           | scalar | rounds in a row whose links join everybody, at most    |
#
# The sequence is drawn before the run from a public seed and is the same for everybody who reads
# the run file: it amplifies nothing, and each of its graphs is accounted for as it is.


def random_digraph(
    agents: int,
    edge_probability: float,
    *,
    graphs: int = 16,
    window: int | None = None,
    seed: int = 0,
    weights: mixing.WeightScheme = "metropolis",
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
    mixing.check_agents(name, agents, graphs=graphs)
    # Each arc of each graph by a coin of its own.
    draw = np.random.default_rng(seed)
    arcs = [draw.random((agents, agents)) < edge_probability for _ in range(graphs)]
    drawn = (
        f"{name} with agents={agents}, edge_probability={edge_probability}, graphs={graphs}, "
        f"seed={seed}"
    )
    # A draw that does not join everybody is refused: to draw again would change its law.
    if len(found := mixing.pieces(np.logical_or.reduce(arcs), both_ways=False)) > 1:
        raise InputError(
            f"all graphs of {drawn} together fall into {len(found)} pieces ({name_pieces(found)}) "
            "that do not hear each other both ways; raise edge_probability or graphs, or take "
            "another seed"
        )
    sequence = GraphSequence(
        name=name,
        graphs=tuple(
            Graph(name=f"{name} {k}", weights=mixing.push_weights(of), connected=False)
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
    """`strong_window` of graphs in turn; None of others, and where some agents are absent."""
    if isinstance(graph, GraphSequence) and len(graph.graphs) > 1:
        return strong_window(graph)
    return None


def _all_join(links: list[NDArray[np.bool_]], window: int) -> bool:
    """Whether the links of any so many rounds in a row join everybody."""
    held = np.asarray(np.sum(links[:window], axis=0, dtype=np.int64))  # (A, A) in how many
    for start in range(len(links)):
        if len(mixing.pieces(held.astype(np.bool_), both_ways=False)) > 1:
            return False
        held -= links[start]
        held += links[(start + window) % len(links)]
    return True
