"""What an adversary really saw of a round, beside the rows that say what it is made of.

The rows are those of the closed view: messages that the adversary sees, and the end states. A
message that it does not see is replaced by what it is made of; one that it does see stays a column
of its own, whose value is known. Models at which gradients were taken, and other values that the
closure counts as seen, are left out: nobody sends them, and they mostly follow from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...privacy.adversary import Adversary
from ...privacy.view.view import MatchedFilter, View, matched_filter
from ...training.tracing.linear_forms import Contributions, Known, Messages
from ...training.tracing.round_trace import RoundTrace
from ...training.tracing.scripts import state_column
from ...training.tracing.trace import AlgorithmTrace
from .canaries import HappenedRound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scipy.sparse import csr_array

Project = Callable[[Tensor], Tensor]  # (rows, D) to (rows, n)
_MOST_TRACES = 4  # of a run whose rounds differ; of more, noise is taken for shared
DROWNED = 1e-2  # share of the noise at which rounding begins to show in its law
_NOTHING = 1e-9  # correlation that rounding may leave


class Projected:
    """What to look at of a round's values, worked out once for all views of the round.

    Args:
        project: of (rows, D) values, row by row.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._held: dict[int, tuple[Tensor, np.ndarray]] = {}  # a tensor kept keeps its id

    def __call__(self, rows: Tensor, at: np.ndarray | None = None) -> np.ndarray:
        """(rows, n) of all rows, or of those at some positions."""
        held = self._held.get(id(rows))
        if held is None and at is not None and len(at) < len(rows):
            return self._project(rows[torch.from_numpy(at)]).numpy()
        if held is None:
            held = self._held[id(rows)] = rows, self._project(rows).numpy()
        return held[1] if at is None else held[1][at]


class ObservedRows:
    """The first block of one adversary's view of one traced round.

    Args:
        trace: of the round, at the noise of the run.
        adversary: whose view.
    """

    def __init__(self, trace: RoundTrace, adversary: Adversary) -> None:
        from scipy.sparse import csr_array

        self.trace = trace
        # Rows of the first block: messages that are seen, then fields of the end state.
        rows, names, unseen = trace.seen_rows(adversary)
        closed = sum(matrix.shape[0] for _, matrix in trace.record.closure)
        kept, start = list[np.ndarray](), 0
        self._messages: list[tuple[int, np.ndarray]] = []
        for number, group in enumerate(trace.messages):
            seen = np.flatnonzero(~unseen(group))
            if group.block == 0:
                self._messages.append((number, seen))
                kept.append(start + np.arange(len(seen)))
            start += len(seen)
        start += closed
        self._fields: list[str] = []
        for field, matrix in trace.record.end_state.items():
            if self._block(matrix) == 0:
                self._fields.append(field)
                kept.append(start + np.arange(matrix.shape[0]))
            start += matrix.shape[0]
        # Over contributions and noise, without what other messages hold.
        chosen = np.concatenate([np.zeros(0, dtype=int), *kept])
        self.rows: csr_array = csr_array(trace.expand(rows, unseen=unseen)[chosen])
        sent = sum(len(at) for _, at in self._messages)
        self.messages = [names[i] for i in chosen[:sent]]  # the first rows
        self._noise = trace.unknown_noise(adversary)
        self._of_mine = self._columns(Contributions)
        self._filters: dict[tuple[int, ...], MatchedFilter] = {}
        self._adds: dict[tuple[int, ...], np.ndarray] = {}

    def _block(self, matrix: csr_array) -> int:
        used = int(matrix.indices[0]) if matrix.nnz else -1
        return next((g.block for g in self.trace.groups if g.start <= used < g.start + g.size), 0)

    def _columns(self, *kinds: type) -> np.ndarray:
        found = [
            np.arange(g.start, g.start + g.size) for g in self.trace.groups if isinstance(g, kinds)
        ]
        return np.concatenate([np.zeros(0, dtype=int), *found])

    @cached_property
    def contributions(self) -> csr_array:
        """(rows, contributions) what each contribution adds."""
        return self.rows[:, self._of_mine]

    def adds(self, columns: Sequence[int]) -> np.ndarray:
        """(rows, columns) what contributions add, by their position among all of them."""
        key = tuple(columns)
        if key not in self._adds:
            self._adds[key] = self.contributions[:, columns].toarray()
        return self._adds[key]

    @cached_property
    def _known(self) -> list[tuple[np.ndarray, csr_array | None]]:
        """Of each group: which columns the adversary knows, and the rows' weights on them."""
        unknown = np.zeros(self.trace.columns, dtype=bool)
        unknown[self._noise] = True
        found: list[tuple[np.ndarray, csr_array | None]] = []
        for group in self.trace.groups:
            told = np.flatnonzero(~unknown[group.start : group.start + group.size])
            weight = self.rows[:, group.start + told]
            found.append((told, weight if weight.nnz else None))
        return found

    def noise_of(self, agent: int) -> np.ndarray:
        """(K, sources) the noise, over all sources of the round, in the scores of an agent."""
        found = [np.zeros((0, self.trace.columns))]
        blocks = np.concatenate(
            [np.zeros(0, dtype=int)]
            + [np.full(g.size, g.block) for g in self.trace.groups if isinstance(g, Contributions)]
        )
        for columns, bounds, _ in self.trace.of_victim(agent).values():
            mine = [c for c, b in zip(columns, bounds, strict=True) if b > 0 and blocks[c] == 0]
            if mine:
                noise = np.zeros((len(mine), self.trace.columns))
                of = self.rows[:, self._noise]
                noise[:, self._noise] = (of.T @ self.filter(mine).weights).T
                found.append(noise)
        return np.concatenate(found)

    @cached_property
    def noise_energy(self) -> np.ndarray:
        """(rows,) variance of the noise that the adversary does not know."""
        noise = self.rows[:, self._noise]
        return np.asarray(noise.multiply(noise).sum(axis=1)).ravel()

    def filter(self, columns: Sequence[int]) -> MatchedFilter:
        """The matched filter for contributions by their position among all of them."""
        key = tuple(columns)
        if key not in self._filters:
            view = View(contributions=self.contributions, noise=self.rows[:, self._noise])
            self._filters[key] = matched_filter(view, columns)
        return self._filters[key]

    def drowned(self, happened: HappenedRound) -> bool:
        """Whether rounding of what a row holds shows in the law of its noise."""
        messages, after = happened.messages, happened.after
        parts = [messages[i].rows[torch.from_numpy(at)] for i, at in self._messages]
        parts += [after[field] for field in self._fields]
        spread = np.sqrt(self.noise_energy)
        worst, start = 0.0, 0
        for rows in parts:
            of = spread[start : start + len(rows)]
            start += len(rows)
            if not len(rows) or not (of > 0).any():
                continue
            size = torch.linalg.vector_norm(rows.double(), dim=1).cpu().numpy()
            lost = torch.finfo(rows.dtype).eps * size / math.sqrt(rows.shape[1])
            worst = max(worst, float((lost[of > 0] / of[of > 0]).max()))
        return worst > DROWNED

    def unexplained(self, happened: HappenedRound, project: Projected) -> np.ndarray:
        """(rows, n) what was seen less all that is neither a contribution nor unknown noise.

        What is looked at of (rows, D) values is what `project` makes of them.
        """
        messages, after = happened.messages, happened.after
        parts = [project(messages[i].rows, at) for i, at in self._messages]
        parts += [project(after[field]) for field in self._fields]
        seen = np.concatenate(parts)
        for value, (told, weight) in zip(values_of(happened), self._known, strict=True):
            if value is not None and weight is not None:
                seen = seen - weight @ project(value)[told]
        return np.asarray(seen)


class RowsSeen:
    """Rows of traced rounds in the views of adversaries, each worked out once."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], ObservedRows] = {}

    def __call__(self, happened: HappenedRound, who: Adversary) -> ObservedRows:
        """Those of a round to an adversary."""
        key = (id(happened.trace), who.name)
        if key not in self._held:
            self._held[key] = ObservedRows(happened.trace, who)
        return self._held[key]


def values_of(happened: HappenedRound) -> Iterator[Tensor | None]:
    """The (rows, D) value of each group of a round's columns; None of contributions."""
    recorded, before = happened.recorded, happened.before
    known, noise, sent = iter(recorded.known), iter(recorded.noise), iter(happened.messages)
    for group in happened.trace.groups:
        if isinstance(group, Contributions):
            yield None
        elif isinstance(group, Known):
            if group.table is not None:
                yield group.table
                continue
            field = next((f for f in before if group.what == state_column(f)), None)
            yield next(known) if field is None else before[field]
        elif isinstance(group, Messages):
            yield next(sent).rows
        else:
            yield next(noise)


def shares_noise(
    traces: AlgorithmTrace, adversaries: Mapping[str, Mapping[int, Adversary]]
) -> bool:
    """Whether two hosts' scores go together in the view of any adversary.

    Canaries of two hosts along the same direction then meet the same noise, their errors go
    together, and a limit that takes errors for independent does not hold. Filters W_v and W_w
    share noise where W_v^T S W_w is not zero.

    Args:
        traces: of the run at its noise.
        adversaries: by name and host, whose view is scored.
    """
    parts = [traces.start, *(one for one, _ in traces.rounds)]
    distinct = list({id(one): one for one in parts if one.has_contributions}.values())
    if len(distinct) > _MOST_TRACES:
        return True
    for of in adversaries.values():
        observed: dict[str, list[int]] = {}
        for host, who in of.items():
            observed.setdefault(who.name, []).append(host)
        # Other views of the same messages hold the same noise.
        seen = {who.name: who for who in of.values()}
        for one in distinct:
            weights = []
            for name, hosts in observed.items():
                rows = ObservedRows(one, seen[name])
                for host in hosts:
                    weights.append(rows.noise_of(host))
            if _together(weights):
                return True
    return False


def _together(parts: list[np.ndarray]) -> bool:
    """Whether rows of different parts, (K, sources) each, are correlated."""
    norms = [np.linalg.norm(part, axis=1, keepdims=True) for part in parts]
    units = [part / np.where(n > 0, n, 1.0) for part, n in zip(parts, norms, strict=True)]
    return any(
        float(np.abs(units[i] @ units[j].T).max(initial=0.0)) > _NOTHING
        for i in range(len(units))
        for j in range(i)
    )
