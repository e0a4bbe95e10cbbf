"""Public lists of who takes part in which round, and the graphs that follow from them.

A list is drawn before the run from a public seed, or read from a file. Whoever reads links sees who
sends, so the list is taken as known to everybody: it amplifies nothing, and what is proven with it
is proven for this list.

    .csv    a row a round, a column an agent: 1 takes part, 0 is absent; # starts a comment
    .json   {"active": [[0, 2], [1], ...]}: of each round the agents that take part

The weights of a round are those of the graph, and what an agent would give to one that is absent it
keeps. A sender keeps what the absent would have received where the columns of W sum to 1, a
receiver weighs itself where the rows do; with symmetric weights that is the same, and both sums
stay 1. An absent agent has weight 1 on itself.

| symbol | name here | shape  | meaning                         |
|--------|-----------|--------|---------------------------------|
| A, T   |           | scalar | agents, rounds                  |
| W      | weights   | (A, A) | weights [receiver, sender]      |
|        | active    | (T, A) | who takes part in which round   |
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, whole, within
from ...privacy.files import read_bounded
from ...privacy.formats.codec import parse_json
from .graph import Graph, GraphSequence, ScheduledGraph, Topology
from .mixing import Sums

_MOST_ENTRIES = 50_000_000  # of a list: rounds times agents
_MOST_WEIGHTS = 2**27  # over all patterns: 1 GB of weights
_LARGEST_TEXT = 256 << 20  # bytes
_SYMMETRIC = 1e-12


def drawn_list(
    agents: int,
    rounds: int,
    *,
    probability: float | None = None,
    agents_per_round: int | None = None,
    seed: int = 0,
) -> NDArray[np.bool_]:
    """A list that anybody who knows the seed can draw again.

    Args:
        agents: A.
        rounds: T.
        probability: of each agent to take part in each round, independently; in (0, 1].
        agents_per_round: how many take part in each round, every set being as likely.
        seed: public; it protects nothing.

    Returns:
        (T, A) who takes part.

    Raises:
        ValueError: not exactly one of the two, or a number out of range.
    """
    if (probability is None) == (agents_per_round is None):
        raise InputError("give a probability or agents_per_round, exactly one of them")
    _check_entries(rounds, agents)
    generator = np.random.Generator(np.random.Philox(seed))
    if probability is not None:
        within("probability", probability, "(0, 1]", ", of taking part; at 0 no one trains")
        return np.asarray(generator.random((rounds, agents)) < probability)
    whole("agents_per_round", agents_per_round, f"[1, {agents}]")
    order = generator.random((rounds, agents)).argsort(axis=1, kind="stable")
    active = np.zeros((rounds, agents), dtype=bool)
    np.put_along_axis(active, order[:, :agents_per_round], values=True, axis=1)
    return active


def read_active_file(path: str | Path, *, agents: int) -> NDArray[np.bool_]:
    """A list from a file; the suffix decides how it is read.

    Returns:
        (T, A) who takes part.

    Raises:
        FileNotFoundError: no such file.
        ValueError: contents that are not as the head of the module says.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no list of who takes part at {path.absolute()}")
    try:
        text = read_bounded(path, _LARGEST_TEXT).decode("utf-8-sig")
        if path.suffix == ".json":
            return _of_json(text, agents)
        if path.suffix == ".csv":
            return _of_csv(text, agents)
        raise InputError(f"its suffix {path.suffix!r} must be .csv or .json")
    except ValueError as error:
        raise InputError(f"cannot read who takes part from {path}: {error}") from error


def _of_csv(text: str, agents: int) -> NDArray[np.bool_]:
    lines = (line[0].partition("#")[0].strip() for line in re.finditer(r"[^\n]+", text))
    active = bytearray()  # lines are made one at a time, and as many as there may be
    for number, row in enumerate(filter(None, lines), start=1):
        _check_entries(number, agents)
        cells = [cell.strip() for cell in row.split(",", agents)]
        if len(cells) != agents or not set(cells) <= {"0", "1"}:
            raise InputError(
                f"round {number} reads {row!r:.60}; it must have {agents} numbers, 1 for an agent "
                "that takes part and 0 for one that is absent"
            )
        active += bytes(cell == "1" for cell in cells)
    return np.frombuffer(active, dtype=bool).reshape(-1, agents)


def _of_json(text: str, agents: int) -> NDArray[np.bool_]:
    content = parse_json(text)
    if not isinstance(content, dict) or set(content) != {"active"}:
        raise InputError('it must hold "active" alone, a list of agents for each round')
    rounds = content["active"]
    if not isinstance(rounds, list) or not all(isinstance(row, list) for row in rounds):
        raise InputError('"active" must be a list of rounds, each a list of agents')
    _check_entries(len(rounds), agents)
    active = np.zeros((len(rounds), agents), dtype=bool)
    for number, row in enumerate(rounds, start=1):
        wrong = [a for a in row if type(a) is not int or not 0 <= a < agents]
        if wrong or len(set(row)) < len(row):
            shown = wrong[0] if wrong else Counter(row).most_common(1)[0][0]
            raise InputError(
                f"round {number} names agent {shown!r:.40}; it must name agents between 0 and "
                f"{agents - 1}, each once"
            )
        active[number - 1, row] = True
    return active


def _check_entries(rounds: int, agents: int) -> None:
    if rounds * agents > _MOST_ENTRIES:
        raise InputError(
            f"a list of {rounds} rounds or more of {agents} agents has over {_MOST_ENTRIES} "
            "entries; lower rounds or agents"
        )


def check_active(active: object, *, agents: int, rounds: int) -> NDArray[np.bool_]:
    """A list as a table of its own.

    Args:
        active: (T, A) of True and False, or of 1 and 0.

    Raises:
        ValueError: another shape, or other entries.
    """
    try:
        table = np.array(active)
    except ValueError:  # rows of different lengths
        table = np.array(None)
    if table.shape != (rounds, agents):
        raise InputError(
            f"a list of who takes part of shape {table.shape} must be ({rounds}, {agents}): a row "
            "for each round, and in it 1 or 0 for each agent"
        )
    if table.dtype.kind not in "biuf" or not np.isin(table, (0, 1)).all():
        raise InputError("a list of who takes part must hold 1 (or True) and 0 (or False) alone")
    return np.asarray(table.astype(bool))


def scheduled(graph: Topology, active: NDArray[np.bool_], *, told: str) -> ScheduledGraph:
    """The topology with a public list of who takes part in which round.

    Args:
        graph: who talks to whom where everybody takes part.
        active: (T, A).
        told: where the list is from, in words.

    Raises:
        ValueError: a list of other agents, a topology that has a list already, or patterns whose
            weights take too much memory.
    """
    if isinstance(graph, ScheduledGraph):
        raise InputError(f"graph {graph.name!r} has a list of who takes part already; give one")
    if active.ndim != 2 or active.shape[1] != graph.agents:
        raise InputError(
            f"a list of shape {active.shape} must have a column for each of {graph.agents} agents"
        )
    made: dict[tuple[Graph, bytes], Graph] = {}
    graphs = []
    for number, row in enumerate(active, start=1):
        whole = graph.at(number)
        key = (whole, np.packbits(row).tobytes())
        if key not in made:
            if (len(made) + 1) * graph.agents**2 > _MOST_WEIGHTS:
                raise InputError(
                    f"the list has more than {len(made)} different sets of agents, too many for "
                    f"agents={graph.agents}: lower rounds or agents, or repeat sets of agents"
                )
            made[key] = without(whole, row)
        graphs.append(made[key])
    return ScheduledGraph(base=graph, graphs=tuple(graphs), told=told)


def without(graph: Graph, active: NDArray[np.bool_]) -> Graph:
    """The graph of those that take part, by a mask; the others have themselves alone."""
    if active.all():
        return graph
    weights = graph.weights * np.outer(active, active)
    symmetric = float(np.abs(graph.weights - graph.weights.T).max()) <= _SYMMETRIC
    # What is lost is kept: of rows what absent senders would have given, of columns what absent
    # receivers would have got. Where the two differ, columns stay as push-sum needs them.
    rows = graph.sums is Sums.ROWS or (graph.sums is Sums.BOTH and symmetric)
    lost = graph.weights.sum(axis=1 if rows else 0) - weights.sum(axis=1 if rows else 0)
    np.fill_diagonal(weights, weights.diagonal() + np.where(active, lost, 1.0))
    return Graph(
        name=graph.name,
        weights=weights,
        connected=False,
        absent=frozenset(np.flatnonzero(~active).tolist()),
    )


def participation_words(topology: Topology, *, agent: int | None = None) -> str | None:
    """How often an agent takes part, or how many do; None where everybody always does."""
    if not isinstance(topology, ScheduledGraph):
        return None
    if not any(graph.absent for graph in topology.graphs):
        return f"every round ({topology.told})"
    counts = topology.active.sum(axis=0)
    low, high = (counts.min(), counts.max()) if agent is None else (counts[agent],) * 2
    rounds = len(topology.graphs)
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"{number} of {rounds} {'round' if rounds == 1 else 'rounds'} ({topology.told})"


# Agents that are missing from a round although nobody knew it beforehand.
#
# In every round any set S of at most m agents may be missing, and who is decided by neither the
# data nor the noise of the round. Noise was made for everybody: no step knows S when it adds noise,
# and a mean is the sum of what arrives over A, whoever sent. A missing agent draws and sends
# nothing in the whole round, and keeps its state; in the start everybody takes part. Its links
# carry nothing; of what it would have given, or got,
#
#     lost    nothing is made up for: weights are those of the graph without its links
#     kept    the others keep it, as they do with agents that are absent by a public list
#
# Both are looked at. In a round the figure is that of the worst S that leaves the victim in, since
# a record of a missing agent is not released. As rounds are accounted for one by one, S may depend
# on all that was released before.
#
# | symbol | name here | meaning                                   |
# |--------|-----------|-------------------------------------------|
# | A      | agents    | of the run                                |
# | m      | missing   | the most agents that are missing at once  |
# | S      | away      | agents that are                           |

# What is assumed of them, in sentences for reports.
MISSING = (
    "Who is missing from a round depends on neither the data nor the noise. An agent is missing "
    "from all of a round, in which it draws and sends nothing and keeps its state. A sum of what "
    "arrives is divided by the number of all agents, and no one takes noise back or scales it for "
    "those who are missing. What no one gives is left out of a mixture, or everybody keeps it."
)

_MOST_SETS = 2_000


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
        missing: m.
        alike: agents that can change places with each other.
        victim: who is in no set; None where nobody is named.

    Raises:
        ValueError: more than two thousand, or their graphs take more than a gigabyte.
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
    """The sets of missing agents, that of nobody left out; of alike agents one set a number."""
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
