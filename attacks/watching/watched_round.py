"""One round of a watched run: what it drew, computed and sent, beside its trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ...training.data.dataset import Examples
from ...training.engine.engine import Setting
from ...training.engine.function_calls import FunctionCall
from ...training.engine.recording import Recorded
from ...training.engine.transcript import Message
from ...training.tracing.linear_forms import Contributions, Group, Known, Messages, NoiseSources
from ...training.tracing.round_trace import RoundTrace


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WatchedRound:
    """One round of a watched run.

    Attributes:
        number: of the round; 0 is the start.
        trace: the round on symbols, at the noise of the run.
        recorded: what it drew and computed.
        messages: what crossed the links, in the order of sending.
        before: the Agents fields of the state that it began with; none at the start.
        after: those of the state that it returned.
        planted: the batches that were given instead of drawn.
        calls: of the functions that the step gave, one an agent.
        public: the public tensors of the state that it began with.
    """

    number: int
    trace: RoundTrace
    recorded: Recorded
    messages: Sequence[Message]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]
    planted: Mapping[int, Examples]
    calls: Sequence[FunctionCall] = ()
    public: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def noise_columns(self) -> np.ndarray:
        """(N,) the trace's columns of noise sources, in the order of the calls."""
        ranges = [
            np.arange(g.start, g.start + g.size)
            for g in self.trace.groups
            if isinstance(g, NoiseSources)
        ]
        return np.concatenate(ranges) if ranges else np.zeros(0, dtype=int)

    def batches(self, setting: Setting, call: int) -> list[Examples]:
        """Each agent's records of one call of `draw`, in the precision of the run.

        A batch is a set: a position that was drawn twice counts once.
        """
        found = []
        for agent, at in enumerate(self.recorded.batches[call]):
            shard = self.planted[agent] if at is None else setting.shards[agent]
            batch = shard.take(torch.arange(shard.size) if at is None else at.unique())
            found.append(Examples(batch.inputs.cpu().to(setting.dtype), batch.targets.cpu()))
        return found

    @property
    def known(self) -> list[Tensor]:
        """The rows of each group of known values of the trace, and of what is too many."""
        return self.recorded.known_of(self.trace.groups, self.before.values())

    def columns(self) -> Iterator[tuple[Group, Tensor]]:
        """Each group of the trace's columns, with the rows (columns, D) that it had."""
        made, noise = iter(self.recorded.contributions), iter(self.recorded.noise)
        known, sent = iter(self.known), (message.rows for message in self.messages)
        for group in self.trace.groups:
            if isinstance(group, Contributions):
                yield group, next(made)
            elif isinstance(group, NoiseSources):
                yield group, next(noise)
            else:
                yield group, next(known if isinstance(group, Known) else sent)

    @property
    def mismatch(self) -> str:
        """What the round did otherwise than its trace; empty where nothing."""
        where, recorded = f"round {self.number}", self.recorded
        made: dict[type, list[int]] = {
            Contributions: [len(rows) for rows in recorded.contributions],
            NoiseSources: [len(rows) for rows in recorded.noise],
            Known: [len(rows) for rows in self.known],
            Messages: [len(message.rows) for message in self.messages],
        }
        for kind, sizes in made.items():
            traced = [group.size for group in self.trace.groups if isinstance(group, kind)]
            if traced != sizes:
                return f"{where} has {kind.__name__} of {sizes} rows, its trace {traced}"
        for group, message in zip(self.trace.messages, self.messages, strict=True):
            same = (
                message.kind == group.kind
                and message.senders.tolist() == group.senders.tolist()
                and message.links.tolist() == group.links.tolist()
            )
            if not same:
                return f"{where} sends {message.kind!r} otherwise than its trace {group.kind!r}"
        if set(self.after) != set(self.trace.record.end_state):
            return f"{where} returns other fields of the state than its trace"
        return ""
