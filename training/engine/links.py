"""The edges of a graph as tensors on a device, made once for all rounds.

A agents   D parameters   E directed edges, self-loops included, sorted by (receiver, sender)

With ranks (`overhear.training.engine.exchange`) a rank has the edges that end at its own agents.
They are a slice of all edges, because agents are spread contiguously. Where positions are needed on
the host they are kept there, so that a round reads nothing back from a device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import UndeclaredOperation
from ..graphs.graph import Graph
from ..noise_tests.noise_tests import Place
from ..step.operations import Coef, reply_order
from ..step.values import SERVER, Agents, Edges, Value
from .exchange import Arrivals, Ranks, gather
from .transcript import Message, Tap

_ENTRIES = 16  # of a matrix of weights for each that is not 0, up to which its product is taken
_ALIGNMENT = 64  # bytes: a vector register, and what memory is allocated at


class Route(NamedTuple):
    """Who sends each row of a message, (M,), and the pairs (row, receiver) that cross, (L, 2)."""

    senders: Tensor
    links: Tensor


class Routes(NamedTuple):
    """The routes of the four sending operations."""

    broadcast: Route
    reply: Route
    upload: Route
    download: Route


class Neighbourhoods(NamedTuple):
    """The agents here that have equally many in-edges, and these edges.

    Attributes:
        agents: (G,) positions among the agents that are here.
        edges: (G, n) their in-edges.
        others: (G, n - 1) those that come from other agents.
    """

    agents: Tensor
    edges: Tensor
    others: Tensor


class Links:
    """Who sends to whom, and which row of a message goes where.

    Args:
        graph: all agents.
        device: where a round computes.
        dtype: of the mixing weights.
        ranks: this process among several; None holds every agent.

    Attributes:
        agents: A, of the whole graph.
        mine, edges: the agents and the edges that are here; all of them without ranks.
        receivers, senders: (E,) the agents of each edge that is here, by their number in the graph.
        receivers_here: (E,) each receiver's position among the agents that are here.
        weights: (E, 1) mixing weights.
        active: (A,) which agents take part; `active_here` of those that are here, and `everybody`
            whether nobody is absent.
        active_positions: (active agents,) their numbers, by which rows are taken without waiting:
            of a mask the host would have to count what is left.
        self_loops, other_edges: the edges that stay with their agent, and those that do not.
        in_degrees: for each agent that is here the number of its in-edges.
        neighbourhoods: the agents here by their number of in-edges.
        broadcast_rows: (E,) each sender's row among those that a broadcast brings here.
        reply_rows: (E,) for each edge d -> m the row of m -> d among those that a reply brings
            here; None where some link has no way back.
        server_rows: (agents here,) the server's one row for each of them.
        broadcasts, replies: what ranks exchange; None without ranks.
        agent_shares, edge_shares: for each rank its agents and its edges.
    """

    def __init__(
        self, graph: Graph, *, device: torch.device, dtype: torch.dtype, ranks: Ranks | None = None
    ) -> None:
        self.graph, self.ranks, self._device = graph, ranks, device
        self._host: dict[int, list[int]] = {}
        self.agents = graph.agents
        self.everybody = not graph.absent

        # Which agents are here, and with them the edges that end there: both are slices.
        shares = [range(self.agents)] if ranks is None else [*map(ranks.share, range(ranks.size))]
        rank = 0 if ranks is None else ranks.rank
        self.agent_shares = shares
        self.edge_shares = [_edges_of(graph, share) for share in shares]
        self.mine, self.edges = shares[rank], self.edge_shares[rank]
        here = slice(self.edges.start, self.edges.stop)
        receivers, senders = graph.receivers[here], graph.senders[here]

        # The ends and the weight of each of these edges.
        self.receivers, self.senders = self._keep(receivers), self._keep(senders)
        self.receivers_here = (
            self._keep(receivers - self.mine.start) if self.mine.start else self.receivers
        )
        self.weights = torch.from_numpy(graph.edge_weights[here]).to(device, dtype)[:, None]
        self.active = torch.from_numpy(graph.active.copy()).to(device)
        self.active_positions = self._keep(np.flatnonzero(graph.active))
        here_active = graph.active[self.mine.start : self.mine.stop]
        self.active_here = torch.from_numpy(here_active.copy()).to(device)
        self.self_loops = self._keep(np.flatnonzero(receivers == senders))
        self.other_edges = self._keep(np.flatnonzero(receivers != senders))
        self.in_degrees = graph.degrees[self.mine.start : self.mine.stop].tolist()
        self.neighbourhoods = _neighbourhoods(receivers != senders, self.in_degrees, device=device)

        # Where each edge finds the row that it carries: with ranks among those that arrive here,
        # without among those of all agents or edges. The server has one row for all agents.
        back = reply_order(graph).numpy() if graph.symmetric else None
        self.server_rows = self._keep(np.zeros(len(self.mine), dtype=np.int64))
        self.broadcasts: Arrivals | None = None
        self.replies: Arrivals | None = None
        if ranks is None:
            self.broadcast_rows = self.senders
            self.reply_rows = None if back is None else self._keep(back)
        else:
            self.broadcasts, self.broadcast_rows = self._arriving(graph.senders, shares)
            self.replies, self.reply_rows = (
                (None, None) if back is None else self._arriving(back, self.edge_shares)
            )

    @property
    def places(self) -> dict[str, Place]:
        """By kind of value which of the rows of all agents are here."""
        return {
            "Agents": Place(self.mine.start, self.agents),
            "Edges": Place(self.edges.start, self.edge_shares[-1].stop),
            "Server": Place(0, 1),
        }

    @property
    def active_rows(self) -> dict[str, NDArray[np.bool_]] | None:
        """By kind of value which of the rows of all agents are of agents that take part.

        None where nobody is absent.
        """
        if self.everybody:
            return None
        active = self.graph.active
        return {
            "Agents": active,
            "Edges": active[self.graph.receivers],
            "Server": np.ones(1, dtype=bool),
        }

    def _keep(self, positions: NDArray[np.int64]) -> Tensor:
        """Positions on the device, and on the host as well."""
        kept = torch.from_numpy(positions.copy()).to(self._device)
        self._host[id(kept)] = positions.tolist()  # `kept` is an attribute, so its id stays taken
        return kept

    def _arriving(
        self, rows: NDArray[np.int64], shares: Sequence[range]
    ) -> tuple[Arrivals, Tensor]:
        """What ranks exchange where each edge needs a row, and where that row comes to lie here."""
        wanted = [np.unique(rows[edges.start : edges.stop]) for edges in self.edge_shares]
        assert self.ranks is not None  # noqa: S101 - for the type checker
        rank = self.ranks.rank
        plan = Arrivals.of(wanted, shares=shares, rank=rank, device=self._device)
        here = rows[self.edges.start : self.edges.stop]
        return plan, self._keep(np.searchsorted(wanted[rank], here))

    def on_host(self, positions: Tensor) -> list[int]:
        """Positions without reading them back, where they are one of the attributes."""
        kept = self._host.get(id(positions))
        return positions.tolist() if kept is None else kept

    @cached_property
    def routes(self) -> Routes:
        """What is sent from here; the server is at rank 0."""
        if self.ranks is None:
            return self.all_routes
        of = self.all_routes
        server = range(1 if self.ranks.rank == 0 else 0)
        rows = (self.mine, self.edges, self.mine, server)
        return Routes(*(_part(route, row) for route, row in zip(of, rows, strict=True)))

    @cached_property
    def all_routes(self) -> Routes:
        """What is sent by everybody."""
        senders = torch.from_numpy(self.graph.senders.copy()).to(self._device)
        receivers = torch.from_numpy(self.graph.receivers.copy()).to(self._device)
        crossing = np.flatnonzero(self.graph.receivers != self.graph.senders)
        crosses = torch.from_numpy(crossing).to(self._device)
        every = torch.arange(self.agents, device=self._device)
        active = self.active_positions
        server = torch.full_like(active, SERVER)
        return Routes(
            broadcast=Route(every, torch.stack([senders[crosses], receivers[crosses]], dim=1)),
            reply=Route(receivers, torch.stack([crosses, senders[crosses]], dim=1)),
            upload=Route(every, torch.stack([active, server], dim=1)),
            download=Route(
                torch.full_like(every[:1], SERVER),
                torch.stack([torch.zeros_like(active), active], dim=1),
            ),
        )

    def rows_by_receiver(self, value: Edges) -> list[Tensor]:
        """For each receiver here its (n_i, .) rows, each block at an address of its own.

        A product may round differently at another alignment, so a block that lay within a larger
        tensor would depend on how agents are spread.
        """
        if value.pick is None:
            return [block.clone() for block in value.base.split(self.in_degrees)]
        return [value.base[at] for at in value.pick.split(self.in_degrees)]

    def weighted_sums(self, rows: Tensor, weights: Tensor, pick: Tensor | None) -> Tensor:
        """For each receiver here the weighted sum of its in-edges' rows, base[pick]: (A, D).

        Terms add up in the order of the edges, so a receiver's sum has the same bits wherever it
        is computed. A dense product has not: it rounds by its shape.
        """
        # A sparse product adds in the order of its entries; on a device it does not.
        if rows.device.type != "cpu":
            return self._sums_on_a_device(rows, weights, pick)
        edges = torch.arange(len(self.receivers)) if pick is None else pick
        # Some releases of torch warn of checks that are left out, unless they are left out by name.
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            matrix = torch.sparse_coo_tensor(
                torch.stack([self.receivers_here, edges]),
                weights[:, 0],
                (len(self.mine), rows.shape[0]),
                is_coalesced=True,  # in the order of receivers: all that the product asks for
            )
            return torch.sparse.mm(matrix, rows)

    def _sums_on_a_device(self, rows: Tensor, weights: Tensor, pick: Tensor | None) -> Tensor:
        """The same without a sparse product, which reads back how many entries there are.

        Where most agents hear most others the sums are one product with the matrix of weights: on a
        full graph of a thousand agents it reads each row once in place of a thousand times. Where
        few do, edges are added one after the other: the first in-edge of all, the second, and so
        on. A product rounds by what a rank holds, as `grouped` does, which a device computes in.
        """
        dense = len(self.edges) * _ENTRIES >= len(self.mine) * len(rows)
        if pick is self.broadcast_rows and dense:  # one entry an edge, none twice
            matrix = rows.new_zeros(len(self.mine), len(rows))
            matrix.index_put_((self.receivers_here, pick), weights[:, 0])
            return matrix @ rows
        out = rows.new_empty(len(self.mine), rows.shape[1])
        for agents, edges, _ in self.neighbourhoods:
            at, by = edges if pick is None else pick[edges], weights[edges]  # (G, n), (G, n, 1)
            sums = rows.new_zeros(len(agents), rows.shape[1])
            for number in range(edges.shape[1]):
                sums += rows.index_select(0, at[:, number]) * by[:, number]
            out.index_copy_(0, agents, sums)
        return out


def _edges_of(graph: Graph, agents: range) -> range:
    """The edges that end at consecutive agents."""
    start, stop = np.searchsorted(graph.receivers, [agents.start, agents.stop]).tolist()
    return range(start, stop)


def _part(route: Route, rows: range) -> Route:
    """What is sent of some consecutive rows."""
    row, receiver = route.links.T
    here = (row >= rows.start) & (row < rows.stop)
    links = torch.stack([row[here] - rows.start, receiver[here]], dim=1)
    return Route(route.senders[rows.start : rows.stop], links)


def _neighbourhoods(
    crosses: NDArray[np.bool_], in_degrees: Sequence[int], *, device: torch.device
) -> list[Neighbourhoods]:
    """Agents by their number of in-edges, of which `crosses` says whether it is no self-loop."""
    counts = np.array(in_degrees)
    first = np.cumsum(counts) - counts
    found = []
    for count in np.unique(counts):
        agents = np.flatnonzero(counts == count)
        edges = first[agents][:, None] + np.arange(count)
        others = edges[crosses[edges]].reshape(len(agents), count - 1)
        found.append(
            Neighbourhoods(*(torch.from_numpy(of).to(device) for of in (agents, edges, others)))
        )
    return found


def of_agents(operation: str, rows: list[Tensor], *, width: int) -> Agents:
    """What a function gave for each agent: all coordinates, for which noise is counted.

    Raises:
        UndeclaredOperation: it gave no tensor, or another shape than (width,).
    """
    for row in rows:
        if not isinstance(row, Tensor):
            raise UndeclaredOperation(
                f"the function of round.{operation} returned {type(row).__name__}; it must return "
                f"a tensor ({width},)"
            )
    wrong = [tuple(row.shape) for row in rows if tuple(row.shape) != (width,)]
    if wrong:
        raise UndeclaredOperation(
            f"the function of round.{operation} returned shape {wrong[0]}; it must return "
            f"({width},)"
        )
    return Agents(torch.stack(rows))


def stacked(
    points: Sequence[tuple[Value, ...]], *, sizes: Sequence[int], links: Links
) -> tuple[Tensor, list[int]]:
    """The points at which gradients are taken as models, and whose model is which.

    Each model starts at the same alignment, by which products round, so its gradients do not depend
    on which models come before it.

    Args:
        points: of K points the blocks.
        sizes: coordinates of each block of the run.
        links: of the round.

    Returns:
        Models (K, M, D), the blocks side by side, and for each row of the values its position in M.

    Raises:
        UndeclaredOperation: a point without all blocks, or with them in another order.
    """
    values = [_joined(point, sizes) for point in points]
    first = values[0]
    shared = all(_same_pick(value, first) for value in values)
    models = [value.base if shared else value.rows for value in values]
    width = models[0].shape[1]
    step = _ALIGNMENT // models[0].element_size()
    padded = models[0].new_empty(len(models), len(models[0]), -(-width // step) * step)
    for into, model in zip(padded, models, strict=True):
        into[:, :width] = model
    if shared and first.pick is not None:
        return padded[:, :, :width], links.on_host(first.pick)
    return padded[:, :, :width], list(range(len(models[0])))


def _joined(point: tuple[Value, ...], sizes: Sequence[int]) -> Value:
    """The blocks of a point side by side, (rows, D)."""
    widths = tuple(value.base.shape[1] for value in point)
    if widths != tuple(sizes):
        raise UndeclaredOperation(
            f"round.clipped_sums at a point of blocks of widths {widths}: the gradient is clipped "
            f"with respect to all of {tuple(sizes)}, in this order"
        )
    if len(point) == 1:
        return point[0]
    if all(_same_pick(value, point[0]) for value in point):
        return Value(torch.cat([value.base for value in point], dim=1), point[0].pick)
    return Value(torch.cat([value.rows for value in point], dim=1))


def by_coordinate(coef: Coef, *, sizes: Sequence[int], like: Tensor) -> float | Tensor:
    """A coefficient as one number, or as (D,) like another tensor where its blocks differ."""
    if not isinstance(coef, tuple):
        return coef
    if len(set(coef)) == 1:
        return coef[0]
    return torch.cat([like.new_full((n,), c) for n, c in zip(sizes, coef, strict=True)])


def _same_pick(one: Value, other: Value) -> bool:
    """Whether two values keep their rows in the same order, as far as that costs nothing to see."""
    if len(one.base) != len(other.base):
        return False
    if one.pick is None or other.pick is None:
        return one.pick is other.pick
    if one.pick is other.pick:
        return True
    on_host = one.pick.device.type == other.pick.device.type == "cpu"  # elsewhere it is read back
    return on_host and torch.equal(one.pick, other.pick)


# What is sent, as it is told to taps; of chosen rounds put together from all ranks.


class Gathered:
    """Rounds whose messages are observed whole.

    Args:
        rounds: the same on every rank; the messages of other rounds stay where they are.
        taps: called with every message of those rounds, on rank 0 alone where there are ranks.
    """

    def __init__(self, rounds: Collection[int], taps: Sequence[Tap]) -> None:
        self.rounds, self.taps = frozenset(rounds), tuple(taps)


def whole_message(mine: Message, operation: str, *, links: Links) -> Message | None:
    """The message of all agents; every rank takes part, and rank 0 alone gets it.

    Args:
        mine: what this rank's agents send, in the order of their rows.
        operation: "broadcast", "reply", "upload" or "download".

    Raises:
        MissingRank: a rank did not answer in time.
    """
    # Rank 0 gets every rank's rows in their order, which is that of one process.
    rows, ranks = mine.rows, links.ranks
    if ranks is not None:
        if operation != "download":  # the server is at rank 0
            shares = links.edge_shares if operation == "reply" else links.agent_shares
            rows = gather(rows, shares=shares, ranks=ranks, to=0)
        if ranks.rank != 0:
            return None
    route: Route = getattr(links.all_routes, operation)
    return replace(mine, senders=route.senders, links=route.links, rows=rows)


class Outbox:
    """Tells the taps of a round every message before it is delivered.

    Args:
        round: its number.
        taps: called with what this rank's agents send, but for those of `Gathered` rounds.
    """

    def __init__(self, links: Links, *, round: int, taps: Sequence[Tap | Gathered]) -> None:
        self._links, self._round, self._calls = links, round, 0
        self._taps = [tap for tap in taps if not isinstance(tap, Gathered)]
        gathered = [tap for tap in taps if isinstance(tap, Gathered) and round in tap.rounds]
        self._of_whole = [tap for one in gathered for tap in one.taps]

    def tell(self, operation: str, value: Value, *, kind: str) -> Tensor:
        """Let the taps hear a message; its rows that are here."""
        # Whom this rank's rows go to.
        rows: Tensor = value.rows
        route: Route = getattr(self._links.routes, operation)
        message = Message(
            round=self._round,
            call=self._calls,
            kind=kind,
            senders=route.senders,
            links=route.links,
            rows=rows[: len(route.senders)],  # all of them, or none of the server's beside rank 0
        )
        self._calls += 1
        for tap in self._taps:
            tap(message)
        # In rounds that are kept whole, rank 0 hears what everybody sends as well.
        if self._of_whole:
            whole = whole_message(message, operation, links=self._links)
            if whole is not None:
                for tap in self._of_whole:
                    tap(whole)
        return rows
