"""Topologies by name, with their mixing weights.

============================  =====================================================  ============
Name                          Links                                                  Sums to 1
============================  =====================================================  ============
``ring``, ``full``, ``star``  both ways                                              both
``bipartite``, ``grid``       both ways                                              both
``erdos-renyi``               both ways, drawn by a seed                             both
``directed-ring``             i -> i + 1                                             both
``directed-exponential``      i -> i + 2^k, another k in every round                 both
``random-digraph``            directed, drawn anew for every round: see `digraphs`   columns
``server``                    none: agents reach a server alone                      both
``file``                      as the file says: see `graph_file`                     as it says
============================  =====================================================  ============

The directed exponential graph is that of stochastic gradient push (Assran et al., ICML 2019).
"""

from __future__ import annotations

import enum
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, within
from ...privacy.files import read_bounded
from ...privacy.formats.codec import read_json
from ...privacy.formats.tensor_archives import header_of, read_array
from .graph import Graph, GraphSequence, Topology, random_digraph
from .mixing import (
    MOST_AGENTS,
    WeightScheme,
    check_agents,
    check_scheme,
    mixing_weights,
    name_pieces,
    pieces,
    push_weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable


# Graphs read from a file: a matrix of weights, or a list of links.
#
# ==========  ==================================================================================
# Suffix      Contents
# ==========  ==================================================================================
# ``.csv``    W, one row a line, separated by commas; ``#`` starts a comment
# ``.txt``    W, one row a line, separated by blanks; ``#`` starts a comment
# ``.npy``    W, a NumPy array of numbers
# ``.json``   ``{"weights": [[...], ...]}``, or ``{"agents": 4, "edges": [[0, 1], [1, 2], ...]}``,
#             or ``{"agents": 4, "arcs": [[0, 1], [1, 2], ...]}``
# ==========  ==================================================================================
#
# W[i, j] is the weight agent i gives to agent j. Edges are links in both directions, arcs go from
# the first agent to the second; agents count from 0; self-loops need not be listed.

_LARGEST_TEXT = 256 << 20  # bytes


class FileKind(enum.StrEnum):
    """What a file holds."""

    WEIGHTS = "weights"
    EDGES = "edges"
    ARCS = "arcs"


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFile:
    """What a file says: an (A, A) matrix [receiver, sender], of weights or only of links (ones)."""

    matrix: NDArray[np.float64]
    kind: FileKind


def read_graph_file(path: str | Path) -> GraphFile:
    """Reads a weight matrix or a list of links; the suffix decides how.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the suffix is unknown or the contents are not as the module describes.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no graph file at {path.absolute()}")
    # Sizes are looked at before text becomes a matrix.
    try:
        if path.suffix == ".json":
            return _read_json(path)
        if path.suffix == ".npy":
            matrix = _read_npy(path)
        elif path.suffix in {".csv", ".txt"}:
            delimiter = "," if path.suffix == ".csv" else None
            text = read_bounded(path, _LARGEST_TEXT).decode("utf-8")
            _check_agents(text.count("\n"))  # before it is made into lines, and one into cells
            lines = text.split("\n")
            _check_agents(len(lines[0].split(delimiter, MOST_AGENTS)))
            if not any(line.partition("#")[0].strip() for line in lines):
                raise InputError("it holds no numbers")
            matrix = np.loadtxt(lines, delimiter=delimiter, ndmin=2)
        else:
            raise InputError(f"its suffix {path.suffix!r} must be .csv, .txt, .npy or .json")
    except (ValueError, TypeError) as error:
        raise InputError(f"cannot read a graph from {path}: {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"the matrix in {path} has shape {matrix.shape}, must be square (A, A)")
    return GraphFile(matrix=matrix, kind=FileKind.WEIGHTS)


def _check_agents(agents: int) -> None:
    if agents > MOST_AGENTS:
        raise InputError(f"it has {agents} agents, must have at most {MOST_AGENTS}")


def _read_npy(path: Path) -> NDArray[np.float64]:
    """A matrix whose header says no more than the file holds."""
    shape = header_of(path).shape
    if len(shape) != 2:
        raise InputError(f"it announces the shape {shape}, must be (A, A)")
    _check_agents(max(shape))
    return np.asarray(read_array(path), dtype=np.float64)


def _read_json(path: Path) -> GraphFile:
    content = read_json(path, _LARGEST_TEXT)
    known = [{"weights"}, {"agents", "edges"}, {"agents", "arcs"}]
    if not isinstance(content, dict) or set(content) not in known:
        raise InputError(
            'the keys must be "agents" and "edges", or "agents" and "arcs", or "weights" alone'
        )
    if "weights" in content:
        matrix = np.array(content["weights"], dtype=np.float64)
        return GraphFile(matrix=matrix, kind=FileKind.WEIGHTS)
    agents = content["agents"]
    if type(agents) is not int or agents < 1:
        raise InputError(f'"agents"={agents!r} must be a whole number of at least 1')
    _check_agents(agents)
    # An edge goes both ways, and an arc one.
    kind = FileKind.EDGES if "edges" in content else FileKind.ARCS
    links = np.zeros((agents, agents))
    for link in content[kind]:
        ends = link if isinstance(link, list) else [link]
        if len(ends) != 2 or not all(type(end) is int and 0 <= end < agents for end in ends):
            raise InputError(
                f"{kind[:-1]} {link!r} must name two agents between 0 and {agents - 1}; agents "
                "count from 0"
            )
        links[ends[1], ends[0]] = 1.0
        if kind is FileKind.EDGES:
            links[ends[0], ends[1]] = 1.0
    return GraphFile(matrix=links, kind=kind)


def ring(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Each agent joined to the one before and the one after; 2 agents are a pair, 1 is alone.

    >>> ring(4).weights[0].round(3).tolist()
    [0.333, 0.333, 0.0, 0.333]
    """
    _check_agents_topologies("ring", agents, least=1)
    one = np.arange(agents)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[one, (one + 1) % agents] = True
    return _weighted("ring", adjacency, scheme=weights)


def full(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Every agent joined to every other: one mixing step is the mean.

    >>> full(4).weights[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    _check_agents_topologies("full", agents, least=1)
    return _weighted("full", np.ones((agents, agents), dtype=bool), scheme=weights)


def bipartite(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agents 0..A-3 each joined to the last two, A-2 and A-1, and to nobody else.

    The DPDL paper does not define its "bipartite" graph; this is the one of the cross-gradient
    aggregation line (Esfandiari et al., ICML 2021). The last two are not joined to each other.

    >>> bipartite(5).neighbours(0), bipartite(5).neighbours(4)
    ((0, 3, 4), (0, 1, 2, 4))
    """
    _check_agents_topologies("bipartite", agents, least=3)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[:-2, -2:] = True
    return _weighted("bipartite", adjacency, scheme=weights)


def star(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agent 0 joined to every other agent, the others only to it.

    >>> star(4).degree(0), star(4).degree(3)
    (4, 2)
    """
    _check_agents_topologies("star", agents, least=2)
    adjacency = np.zeros((agents, agents), dtype=bool)
    adjacency[0, 1:] = True
    return _weighted("star", adjacency, scheme=weights)


def server(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """No agent joined to another: each of them reaches a server, or a trusted sum, alone.

    An algorithm that sends along links is refused on it.

    >>> graph = server(10_000)
    >>> graph.links, graph.has_links
    ((), False)
    """
    check_scheme(weights)
    _check_agents_topologies("server", agents, least=1)
    return Graph.without_links("server", agents)


def grid(agents: int, columns: int | None = None, *, weights: WeightScheme = "metropolis") -> Graph:
    """Agents in rows, joined to those beside, above and below; the edges do not wrap around.

    Args:
        agents: A.
        columns: Agents in a row; by default the most nearly square layout.

    Raises:
        ValueError: If columns does not divide agents, or if only a line would be left.

    >>> grid(6).neighbours(4)  # two rows of three
    (1, 3, 4, 5)
    """
    _check_agents_topologies("grid", agents, least=1)
    if columns is None:
        columns = next(c for c in range(math.isqrt(agents - 1) + 1, agents + 1) if agents % c == 0)
        if columns == agents > 2:
            raise InputError(
                f"agents={agents} makes no grid, only a line; pass columns={agents} if a line is "
                f"meant, or use {agents + 1} agents"
            )
    if columns < 1 or agents % columns:
        raise InputError(f"columns={columns} must divide agents={agents} into full rows")
    # Each agent to the one on its right, but for the last of a row, and to the one below.
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
    """
    _check_agents_topologies("erdos-renyi", agents, least=1)
    within("edge_probability", edge_probability, "[0, 1]")
    # The graph of networkx.gnp_random_graph, whose own object would take gigabytes.
    draw = random.Random(seed).random  # noqa: S311 - a public graph
    adjacency = np.zeros((agents, agents), dtype=bool)
    for i in range(agents - 1):
        adjacency[i, i + 1 :] = [draw() < edge_probability for _ in range(agents - 1 - i)]
    # Another seed is not tried in its place: the graph would not be the one that was asked for.
    name = "erdos-renyi"
    found = pieces(adjacency)
    if len(found) > 1:
        raise InputError(
            f"{name} with agents={agents}, edge_probability={edge_probability}, seed={seed} falls "
            f"into {len(found)} pieces ({name_pieces(found)}); raise edge_probability above "
            f"ln(A)/A = {math.log(agents) / agents:.3f} or take another seed"
        )
    return _weighted(name, adjacency, scheme=weights)


def directed_ring(agents: int, *, weights: WeightScheme = "metropolis") -> Graph:
    """Each agent sends to the one after it alone; it keeps half of its value and passes on half.

    >>> directed_ring(4).weights[0].tolist(), directed_ring(4).symmetric
    ([0.5, 0.0, 0.0, 0.5], False)
    """
    _check_agents_topologies("directed-ring", agents, least=2)
    return _shifted("directed-ring", agents, shift=1, scheme=weights)


def directed_exponential(agents: int, *, weights: WeightScheme = "metropolis") -> GraphSequence:
    """In turn each agent sends to the one 1, 2, 4, ... places after it, and to no other.

    After one period everybody has heard of everybody. A single graph may fall into pieces.

    Args:
        agents: A; the period is floor(log2(A - 1)) + 1.
        weights: "metropolis" or "uniform": with one receiver both give 1/2.
    """
    period = (agents - 1).bit_length()
    _check_agents_topologies("directed-exponential", agents, least=2, graphs=max(period, 1))
    return GraphSequence(
        name="directed-exponential",
        graphs=tuple(
            _shifted(f"directed-exponential {2**k}", agents, shift=2**k, scheme=weights)
            for k in range(period)
        ),
    )


def _shifted(name: str, agents: int, *, shift: int, scheme: WeightScheme) -> Graph:
    """Agent i keeps half and sends half to i + shift; half of what it gets is a share of 1 too."""
    check_scheme(scheme)
    keep = 0.5 * np.eye(agents)
    return Graph(name=name, weights=keep + np.roll(keep, shift, axis=0), connected=shift == 1)


def from_file(path: str | Path, agents: int | None = None, *, weights: WeightScheme) -> Graph:
    """A graph read from a file; see `overhear.training.graphs.topologies` for the formats.

    Args:
        path: A matrix W (.npy, .csv, .txt or JSON "weights") or a JSON list of links: "edges" that
            go both ways, or "arcs" from sender to receiver, whose weights are those of push-sum.
        agents: If given, the number of agents the file must have.
        weights: Weight scheme for a list of edges. A matrix brings its own weights and arcs have
            only one kind: "uniform" is refused there and "metropolis", the default everywhere,
            has no effect.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read as described, or has another number of agents.
    """
    # Links that go both ways get weights by the scheme; a matrix and arcs have theirs.
    read = read_graph_file(path)
    found = read.matrix.shape[0]
    if agents is not None and found != agents:
        raise InputError(
            f"agents={agents} but {path} describes {found}; set agents={found} or use another file"
        )
    if read.kind is FileKind.EDGES:
        return _weighted("file", read.matrix != 0, scheme=weights)
    if weights != "metropolis":
        raise InputError(
            f"weights={weights!r} cannot apply to {path}, which brings its own weights; give a "
            'JSON list of "edges", or leave weights out'
        )
    arcs = read.kind is FileKind.ARCS
    return Graph(name="file", weights=push_weights(read.matrix != 0) if arcs else read.matrix)


_TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    "ring": ring,
    "full": full,
    "bipartite": bipartite,
    "grid": grid,
    "star": star,
    "server": server,
    "erdos-renyi": erdos_renyi,
    "directed-ring": directed_ring,
    "directed-exponential": directed_exponential,
    "random-digraph": random_digraph,
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
    graphs: int | None = None,
    window: int | None = None,
) -> Topology:
    """A topology by name.

    Args:
        name: "ring", "full", "bipartite", "grid", "star", "server", "erdos-renyi",
            "directed-ring", "directed-exponential", "random-digraph" or "file".
        agents: A; for "file" it must equal the file's.
        weights: "metropolis", or "uniform" (1/n_i) on graphs where all degrees are equal.
        edge_probability: For "erdos-renyi" and "random-digraph" only, and required there.
        seed: Read by these two only.
        path: For "file" only, and required there.
        columns: For "grid" only.
        graphs: For "random-digraph" only: how many take turns.
        window: For "random-digraph" only: in how many rounds they must join everybody.

    Returns:
        One graph for all rounds, or a sequence of graphs that take turns.

    Raises:
        ValueError: If the name is unknown, an option is missing or belongs to another topology, or
            the topology cannot be built on so many agents.

    >>> build_graph("bipartite", 10).at(1).degrees.tolist()
    [3, 3, 3, 3, 3, 3, 3, 3, 9, 9]
    """
    if name not in _TOPOLOGIES:
        raise InputError(f"graph name={name!r} is unknown; choose one of {', '.join(GRAPH_NAMES)}")
    given = {
        "edge_probability": edge_probability,
        "path": path,
        "columns": columns,
        "graphs": graphs,
        "window": window,
    }
    options = _options_of(name, given)
    if name in _DRAWN:
        options["seed"] = seed
    return _TOPOLOGIES[name](agents=agents, weights=weights, **options)


_DRAWN = ("erdos-renyi", "random-digraph")
_OWNERS: dict[str, tuple[str, ...]] = {
    "edge_probability": _DRAWN,
    "path": ("file",),
    "columns": ("grid",),
    "graphs": ("random-digraph",),
    "window": ("random-digraph",),
}
_NEEDED = ("edge_probability", "path")


def _options_of(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that the topology takes; one of another topology's is refused."""
    options: dict[str, Any] = {}
    for option, owners in _OWNERS.items():
        value = given[option]
        if value is not None and name not in owners:
            belongs = " or ".join(map(repr, owners))
            raise InputError(f"{option}={value!r} belongs to {belongs} and not to {name!r}")
        if value is None and name in owners and option in _NEEDED:
            raise InputError(f"graph {name!r} needs {option}")
        if value is not None:
            options[option] = value
    return options


def _weighted(name: str, adjacency: NDArray[np.bool_], *, scheme: WeightScheme) -> Graph:
    return Graph(name=name, weights=mixing_weights(name, adjacency, scheme=scheme))


def _check_agents_topologies(name: str, agents: int, *, least: int, graphs: int = 1) -> None:
    if agents < least:
        raise InputError(f"agents={agents} is too few for {name!r}; it needs at least {least}")
    check_agents(name, agents, graphs=graphs)
