"""Topologies and their doubly stochastic mixing matrices.

A graph is its matrix W: ``weights[i, j]`` is the weight that agent i gives to the message of agent
j, and a link j -> i exists exactly where it is not zero. Every agent keeps a share of its own
value, so each has a self-loop.

The weights themselves are in `mixing`.

======  =============================================  ============
Symbol  Meaning                                        Shape
======  =============================================  ============
A       agents                                         scalar
E       directed edges, self-loops included            scalar
W       ``Graph.weights``, rows and columns sum to 1   (A, A)
N_i     ``Graph.neighbours(i)``, includes i            n_i = |N_i|
======  =============================================  ============
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .graph_file import read_graph_file
from .mixing import WeightScheme, check_mixing, mixing_weights, name_pieces, pieces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "GRAPH_NAMES",
    "Graph",
    "WeightScheme",
    "bipartite",
    "build_graph",
    "erdos_renyi",
    "from_file",
    "full",
    "grid",
    "ring",
    "star",
]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Graph:
    """A connected graph with doubly stochastic weights.

    Args:
        name: What the graph is called in reports.
        weights: W, (A, A): W[i, j] is the weight agent i gives to agent j's message. Copied, and
            read-only afterwards.

    Attributes:
        receivers: (E,) int64, the receiving agent of each directed edge.
        senders: (E,) int64, the sending agent. Edges are sorted by (receiver, sender) and include
            the self-loops.

    Raises:
        ValueError: If W is not square, finite, nonnegative and doubly stochastic (to 1e-9), if an
            agent gives itself no weight, or if the graph falls into pieces.

    Examples:
        >>> graph = ring(10)
        >>> graph.neighbours(0), round(float(graph.weights[0, 1]), 4), graph.senders.size
        ((0, 1, 9), 0.3333, 30)
    """

    name: str
    weights: NDArray[np.float64]
    receivers: NDArray[np.int64] = field(init=False, repr=False)
    senders: NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = np.array(self.weights, dtype=np.float64)  # (A, A), a copy of its own
        check_mixing(self.name, weights)
        receivers, senders = np.nonzero(weights)  # row-major, so already (receiver, sender)
        derived = {
            "weights": weights,
            "receivers": receivers.astype(np.int64),
            "senders": senders.astype(np.int64),
        }
        for attribute, value in derived.items():
            value.setflags(write=False)
            object.__setattr__(self, attribute, value)

    @property
    def agents(self) -> int:
        """A, the number of agents."""
        return int(self.weights.shape[0])

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
        support = self.weights != 0
        return bool(np.array_equal(support, support.T))

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
            raise ValueError(
                f"agent={agent} must lie in [0, {self.agents - 1}]; agents count from 0"
            )


def ring(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Each agent joined to the one before and the one after; 2 agents are a pair, 1 is alone.

    Examples:
        >>> ring(4).weights[0].round(3).tolist()
        [0.333, 0.333, 0.0, 0.333]
    """
    _check_agents("ring", agents, least=1)
    one = np.arange(agents)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[one, (one + 1) % agents] = True
    return _weighted("ring", adjacency, scheme=weights)


def full(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Every agent joined to every other: one mixing step is the mean.

    Examples:
        >>> full(4).weights[0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    _check_agents("full", agents, least=1)
    return _weighted("full", np.ones((agents, agents), dtype=bool), scheme=weights)


def bipartite(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agents 0..A-3 each joined to the last two, A-2 and A-1, and to nobody else.

    The DPDL paper does not define its "bipartite" graph; this is the one of the cross-gradient
    aggregation line (Esfandiari et al., ICML 2021). The last two are not joined to each other.

    Examples:
        >>> bipartite(5).neighbours(0), bipartite(5).neighbours(4)
        ((0, 3, 4), (0, 1, 2, 4))
    """
    _check_agents("bipartite", agents, least=3)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[:-2, -2:] = True
    return _weighted("bipartite", adjacency, scheme=weights)


def star(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agent 0 joined to every other agent, the others only to it.

    Examples:
        >>> star(4).degree(0), star(4).degree(3)
        (4, 2)
    """
    _check_agents("star", agents, least=2)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[0, 1:] = True
    return _weighted("star", adjacency, scheme=weights)


def grid(agents: int, columns: int | None = None, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agents in rows, joined to those beside, above and below; the edges do not wrap around.

    Args:
        agents: A.
        columns: Agents in a row; by default the most nearly square layout.
        weights: Weight scheme.

    Raises:
        ValueError: If columns does not divide agents, or if only a line would be left.

    Examples:
        >>> grid(6).neighbours(4)  # two rows of three
        (1, 3, 4, 5)
    """
    _check_agents("grid", agents, least=1)
    if columns is None:
        columns = next(c for c in range(math.isqrt(agents - 1) + 1, agents + 1) if agents % c == 0)
        if columns == agents > 2:
            raise ValueError(
                f"agents={agents} makes no grid, only a line; pass columns={agents} if a line is "
                f"meant, or use {agents + 1} agents"
            )
    if columns < 1 or agents % columns:
        raise ValueError(f"columns={columns} must divide agents={agents} into full rows")
    one = np.arange(agents)
    adjacency = np.zeros((agents, agents), dtype=bool)
    beside = one[(one + 1) % columns != 0]
    adjacency[beside, beside + 1] = True
    above = one[: agents - columns]
    adjacency[above, above + columns] = True
    return _weighted("grid", adjacency, scheme=weights)


def erdos_renyi(
    agents: int, edge_probability: float, *, seed: int = 0, weights: WeightScheme = "metropolis"
) -> Graph:
    """Each of the A(A-1)/2 links present with the same probability, as the seed decides.

    Raises:
        ValueError: If edge_probability is outside [0, 1] or the drawn graph is not connected.

    Examples:
        >>> graph = erdos_renyi(20, 0.3, seed=1)
        >>> int(graph.degrees.sum() - 20) // 2  # links; 57 are expected
        58
    """
    import networkx as nx

    _check_agents("erdos-renyi", agents, least=1)
    if not 0 <= edge_probability <= 1:
        raise ValueError(f"edge_probability={edge_probability} must lie in [0, 1]")
    drawn = nx.gnp_random_graph(agents, edge_probability, seed=seed)
    adjacency = np.zeros((agents, agents), dtype=bool)
    for i, j in drawn.edges:
        adjacency[i, j] = True
    name = "erdos-renyi"
    found = pieces(adjacency)
    if len(found) > 1:
        raise ValueError(
            f"{name} with agents={agents}, edge_probability={edge_probability}, seed={seed} falls "
            f"into {len(found)} pieces ({name_pieces(found)}); raise edge_probability above "
            f"ln(A)/A = {math.log(agents) / agents:.3f} or take another seed"
        )
    return _weighted(name, adjacency, scheme=weights)


def from_file(path: str | Path, agents: int | None = None, *, weights: WeightScheme) -> Graph:
    """A graph read from a file; see `overhear.training.graph_file` for the formats.

    Args:
        path: A matrix W (.npy, .csv, .txt or JSON "weights") or a JSON list of links ("edges").
        agents: If given, the number of agents the file must have.
        weights: Weight scheme for a list of links. A matrix brings its own weights: "uniform" is
            refused there and "metropolis", the default everywhere, has no effect.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read as described, or has another number of agents.
    """
    read = read_graph_file(path)
    found = read.matrix.shape[0]
    if agents is not None and found != agents:
        raise ValueError(
            f"agents={agents} but {path} describes {found}; set agents={found} or use another file"
        )
    if not read.weighted:
        return _weighted("file", read.matrix != 0, scheme=weights)
    if weights != "metropolis":
        raise ValueError(
            f"weights={weights!r} cannot apply to {path}, which brings its own weights; give a "
            'JSON list of "edges", or leave weights out'
        )
    return Graph(name="file", weights=read.matrix)


_TOPOLOGIES: dict[str, Callable[..., Graph]] = {
    "ring": ring,
    "full": full,
    "bipartite": bipartite,
    "grid": grid,
    "star": star,
    "erdos-renyi": erdos_renyi,
    "file": from_file,
}

GRAPH_NAMES = tuple(_TOPOLOGIES)


def build_graph(
    name: str,
    agents: int,
    *,
    weights: WeightScheme = "metropolis",
    edge_probability: float | None = None,
    seed: int = 0,
    path: str | Path | None = None,
    columns: int | None = None,
) -> Graph:
    """A topology by name.

    Args:
        name: "ring", "full", "bipartite", "grid", "star", "erdos-renyi" or "file".
        agents: A; for "file" it must equal the file's.
        weights: "metropolis", or "uniform" (1/n_i) on graphs where all degrees are equal.
        edge_probability: For "erdos-renyi" only, and required there.
        seed: Read by "erdos-renyi" only.
        path: For "file" only, and required there.
        columns: For "grid" only.

    Raises:
        ValueError: If the name is unknown, an option is missing or belongs to another topology, or
            the topology cannot be built on so many agents.

    Examples:
        >>> build_graph("bipartite", 10).degrees.tolist()
        [3, 3, 3, 3, 3, 3, 3, 3, 9, 9]
    """
    if name not in _TOPOLOGIES:
        raise ValueError(f"graph name={name!r} is unknown; choose one of {', '.join(GRAPH_NAMES)}")
    options: dict[str, Any] = {"weights": weights}
    belongs = {
        "edge_probability": ("erdos-renyi", edge_probability),
        "path": ("file", path),
        "columns": ("grid", columns),
    }
    for option, (owner, value) in belongs.items():
        if value is not None and name != owner:
            raise ValueError(f"{option}={value!r} belongs to {owner!r} and not to {name!r}")
        if value is None and name == owner and option != "columns":
            raise ValueError(f"graph {name!r} needs {option}")
        if name == owner:
            options[option] = value
    if name == "erdos-renyi":
        options["seed"] = seed
    return _TOPOLOGIES[name](agents=agents, **options)


def _weighted(name: str, adjacency: NDArray[np.bool_], *, scheme: WeightScheme) -> Graph:
    return Graph(name=name, weights=mixing_weights(name, adjacency, scheme=scheme))


def _check_agents(name: str, agents: int, *, least: int) -> None:
    if agents < least:
        raise ValueError(f"agents={agents} is too few for {name!r}; it needs at least {least}")
