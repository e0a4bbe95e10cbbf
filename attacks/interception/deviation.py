"""The engine with one agent that deviates: it sends crafted models in place of its own.

Everything else runs as the code does, at that agent too: what it keeps, draws and mixes is made
from its own model, and it replies to others as ever. What its neighbours compute on the crafted
model, and what they mix it into, is what a run would compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...training.engine.engine import Engine
from ...training.step.delegated import Delegated
from ...training.step.operations import Operations
from ...training.step.values import Agents, Edges

MODEL = "model"  # the kind of message on which a neighbour takes its gradient


class DeviatingEngine(Engine):
    """An engine of one process in which an agent deviates.

    Args:
        crafted: by round what it sends for its model, (D,); in other rounds it follows.
        how: as of `Engine`.
    """

    def __init__(self, *given: Any, agent: int, crafted: Mapping[int, Tensor], **how: Any) -> None:
        super().__init__(*given, **how)
        self._agent, self._crafted = agent, dict(crafted)

    def _make_round(self, index: int, **how: Any) -> Operations:
        made = super()._make_round(index, **how)
        if index not in self._crafted:
            return made
        return _Deviating(made, agent=self._agent, model=self._crafted[index])


class _Deviating(Delegated):
    """A round in which an agent sends another model than its own."""

    def __init__(self, inner: Operations, *, agent: int, model: Tensor) -> None:
        super().__init__(inner)
        self._agent, self._model = agent, model

    def broadcast(self, value: Agents, *, kind: str) -> Edges:
        """See `Round.broadcast`."""
        if kind != MODEL:
            return super().broadcast(value, kind=kind)
        own = value.rows[self._agent]
        rows = value.rows.clone()
        rows[self._agent] = self._model.to(own)
        sent = super().broadcast(Agents(rows), kind=kind)
        # What the agent sends to itself is its own model, one row more.
        pick = torch.arange(len(sent.base)) if sent.pick is None else sent.pick.clone()
        pick[self._loop(sent)] = len(sent.base)
        return Edges(torch.cat([sent.base, own[None]]), pick)

    def _loop(self, sent: Edges) -> int:
        """The edge from the agent to itself: the row that `own` gives it."""
        numbers = Edges(torch.arange(len(sent.rows), device=sent.base.device)[:, None].double())
        return int(self.own(numbers).rows[self._agent, 0])
