"""The edges of a graph as tensors on a device, made once for all rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from .graph import Graph
from .round import reply_order

_DENSE_ENTRIES = 64 * 64  # above this, mixing is a sparse product


class Links:
    """Who sends to whom, and which row of a message goes where."""

    def __init__(self, graph: Graph, *, device: torch.device, dtype: torch.dtype) -> None:
        self.graph = graph
        self.agents = graph.agents
        self.receivers = torch.from_numpy(graph.receivers.copy()).to(device)
        self.senders = torch.from_numpy(graph.senders.copy()).to(device)
        self.weights = torch.from_numpy(graph.edge_weights.copy()).to(device, dtype)[:, None]
        self.loops = torch.nonzero(self.receivers == self.senders).flatten()
        self.spans = torch.from_numpy(graph.degrees).tolist()
        crosses = self.receivers != self.senders
        self.outgoing = torch.stack([self.senders[crosses], self.receivers[crosses]], dim=1)
        self.replies = torch.stack([torch.nonzero(crosses).flatten(), self.senders[crosses]], dim=1)
        self.back = reply_order(graph).to(device) if graph.symmetric else None

    def blocks(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Split (E, .) rows into one (n_i, .) block for each receiver."""
        return rows.split(self.spans)

    def combine(self, rows: Tensor, weights: Tensor, pick: Tensor | None) -> Tensor:
        """For each receiver the weighted sum of its in-edges' rows, base[pick]: (A, D)."""
        edges = torch.arange(len(self.receivers), device=rows.device) if pick is None else pick
        index = torch.stack([self.receivers, edges])
        shape = (self.agents, rows.shape[0])
        matrix = torch.sparse_coo_tensor(index, weights[:, 0], shape, check_invariants=False)
        if self.agents * rows.shape[0] <= _DENSE_ENTRIES:
            return matrix.to_dense() @ rows
        return torch.sparse.mm(matrix.coalesce(), rows)
