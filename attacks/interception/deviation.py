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
from ...training.step.operations import CarryOut, How, Operations, Values
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
        if index in self._crafted:
            made.wrap(_Deviating(agent=self._agent, model=self._crafted[index]))
        return made


class _Deviating:
    """Wrapped around a round, it lets an agent send another model than its own."""

    def __init__(self, *, agent: int, model: Tensor) -> None:
        self._agent, self._model = agent, model

    def __call__(self, carry_out: CarryOut, name: str, values: Values, how: How) -> Any:
        """See `Operations.wrap`."""
        if name != "broadcast" or how["kind"] != MODEL:
            return carry_out(name, values, how)
        (value,) = values
        own = value.rows[self._agent]
        rows = value.rows.clone()
        rows[self._agent] = self._model.to(own)
        sent = carry_out(name, (Agents(rows),), how)
        # What the agent sends to itself is its own model, one row more.
        numbers = Edges(torch.arange(len(sent.rows), device=sent.base.device)[:, None].double())
        loop = int(carry_out("own", (numbers,), {}).rows[self._agent, 0])
        pick = torch.arange(len(sent.base)) if sent.pick is None else sent.pick.clone()
        pick[loop] = len(sent.base)
        return Edges(torch.cat([sent.base, own[None]]), pick)
