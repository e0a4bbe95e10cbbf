"""Run a step on unit sources: its messages and end states as rows, and any adversary's view.

The view is closed. Besides the messages that an adversary sees it holds every value through which
the past acts on the future: the models at which gradients are taken, the inputs of `postprocess`,
the released inputs of `bounded`, and the whole state that the step returns. Then rounds compose
adaptively and other agents' contributions may be held fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..privacy.adversary import Adversary, Sees
from ..privacy.view import UnsupportedView, View
from .graph import Graph
from .round import Agents
from .sources import Contributions, Messages, NoiseSources, pruned, widened
from .traced_round import RoundRecord, TracedRound

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Step = Callable[..., Any]


class Sensitivity(NamedTuple):
    """mu of one batch's releases for one victim, and what decided it."""

    mu: float
    sampling_rate: float | None
    contributions: int
    because: str


class RoundTrace:
    """One round as any adversary sees it.

    Args:
        record: what the round sent and returned, over its columns.
    """

    def __init__(self, record: RoundRecord) -> None:
        self.record = record
        self.groups = record.groups
        self.blames = record.blames

    @property
    def columns(self) -> int:
        """The number of columns."""
        return sum(group.size for group in self.groups)

    @property
    def messages(self) -> list[Messages]:
        """The messages, in the order of sending."""
        return [g for g in self.groups if isinstance(g, Messages)]

    @property
    def has_contributions(self) -> bool:
        """Whether the round touches data at all."""
        return any(isinstance(g, Contributions) for g in self.groups)

    def expand(self, rows: csr_array, *, unseen: Callable[[Messages], np.ndarray]) -> csr_array:
        """Replace references to messages that `unseen` masks by what the messages hold."""
        from scipy.sparse import csr_array

        width = self.columns
        rows = widened(rows, width)
        for group in reversed(self.messages):
            hidden = np.flatnonzero(unseen(group))
            if not len(hidden):
                continue
            columns = group.start + hidden
            weight = csr_array(rows[:, columns])
            if not weight.nnz:
                continue
            mask = np.ones(width)
            mask[columns] = 0.0
            rest = csr_array(rows.multiply(mask[None, :]))
            held = widened(csr_array(group.rows[hidden]), width)
            total = csr_array(rest + weight @ held)
            rows = pruned(total, csr_array(abs(rest) + abs(weight) @ abs(held)))
        return rows

    def view(self, adversary: Adversary) -> View:
        """The closed view of an adversary, over all agents' contributions."""
        rows, names, unseen = self._seen_rows(adversary)
        rows = self.expand(rows, unseen=unseen)
        keep = np.flatnonzero(np.diff(rows[:, self._private_columns(adversary)].indptr))
        rows = rows[keep]
        return View(
            contributions=rows[:, self._contribution_columns()],
            noise=rows[:, self._unknown_noise(adversary)],
            messages=[names[i] for i in keep],
        )

    def _seen_rows(
        self, adversary: Adversary
    ) -> tuple[csr_array, list[str], Callable[[Messages], np.ndarray]]:
        from scipy.sparse import csr_array, vstack

        if adversary.sees is Sees.LINKS:
            masks = {g.start: g.crossing for g in self.messages}
        elif adversary.sees is Sees.OWN_LINKS:
            masks = {g.start: g.seen_by(adversary.agents) for g in self.messages}
        elif adversary.sees is Sees.END_STATES:
            masks = {g.start: np.zeros(g.size, dtype=bool) for g in self.messages}
        else:
            raise UnsupportedView(f"{adversary.name} has no closed view; use single_message")
        parts: list[Any] = [csr_array((0, self.columns))]
        names: list[str] = []
        for g in self.messages:
            seen = np.flatnonzero(masks[g.start])
            parts.append(widened(csr_array(g.rows[seen]), self.columns))
            names += [g.name(int(i)) for i in seen] if len(seen) <= 10_000 else [g.kind] * len(seen)
        for what, matrix in (*self.record.closure, *self.record.end_state.items()):
            parts.append(widened(matrix, self.columns))
            names += [f"{what}, row {i}" for i in range(matrix.shape[0])]
        return csr_array(vstack(parts)), names, lambda g: ~masks[g.start]

    def _contribution_columns(self) -> np.ndarray:
        return _columns(g for g in self.groups if isinstance(g, Contributions))

    def _unknown_noise(self, adversary: Adversary) -> np.ndarray:
        unknown = [
            g.start + i
            for g in self.groups
            if isinstance(g, NoiseSources)
            for i, knowers in enumerate(g.known_to)
            if not knowers & adversary.agents
        ]
        return np.asarray(unknown, dtype=int)

    def _private_columns(self, adversary: Adversary) -> np.ndarray:
        return np.r_[self._contribution_columns(), self._unknown_noise(adversary)]

    def _of_victim(self, victim: int) -> dict[int, tuple[list[int], list[float], float | None]]:
        """Positions among the contributions, bounds and sampling rate, by batch."""
        batches: dict[int, tuple[list[int], list[float], float | None]] = {}
        position = 0
        for g in self.groups:
            if isinstance(g, Contributions):
                columns, bounds, _ = batches.setdefault(g.batch, ([], [], g.sampling_rate))
                mine = np.flatnonzero(g.owners == victim)
                columns += (position + mine).tolist()
                bounds += g.bounds[mine].tolist()
                position += g.size
        return batches

    def sensitivities(self, adversary: Adversary, victim: int) -> list[Sensitivity]:
        """Give mu of a record of `victim` for an adversary, one entry per batch drawn in the round.

        Raises:
            UnsupportedView: the victim is one of the adversary's agents, or the releases of two
                batches share noise, so that they cannot be accounted for one by one.
        """
        return self.sensitivities_in(self.view(adversary), adversary, victim)

    def sensitivities_in(self, view: View, adversary: Adversary, victim: int) -> list[Sensitivity]:
        """As `sensitivities`, in a view that was already formed."""
        if victim in adversary.agents:
            raise UnsupportedView(f"{adversary.name} contains the victim {victim}; choose another")
        batches = self._of_victim(victim)
        if len(batches) > 1:
            _check_blocks(view, [columns for columns, _, _ in batches.values()])
        found = []
        for columns, bounds, rate in batches.values():
            mu = view.mu(columns, bounds=bounds) if columns else 0.0
            found.append(
                Sensitivity(mu, rate, len(columns), self._because(view, columns, bounds, mu))
            )
        return found

    def _because(self, view: View, columns: list[int], bounds: list[float], mu: float) -> str:
        if math.isinf(mu):
            if any(math.isinf(b) for b in bounds):
                return "gradients are not clipped, so one record's influence has no bound"
            leaks = view.leaks(columns)
            if len(leaks) > 1:
                return f"the noise cancels between: {'; '.join(leaks)}"
            return f"sent or kept without noise: {', '.join(leaks)}"
        if self.blames:
            return "; ".join(self.blames)
        count = len(columns)
        return (
            "one contribution of the batch is released"
            if count == 1
            else f"{count} contributions of one batch are released, counted jointly"
        )

    def single_message(self, victim: int, *, kind: str | None = None) -> tuple[float, str]:
        """The largest mu of one message alone, and the kind of that message.

        Messages that hold a `bounded` contribution are passed over unless `kind` asks for them.
        Where no message of the round touches the victim's data, the end state is looked at: it is
        what the next round sends.
        """
        found = [
            (self._alone(rows, victim), name)
            for name, rows in self._sent_rows(kind)
            if kind is not None or not self._holds_bounded(rows)
        ]
        if not any(mu for mu, _ in found):
            found = [(self._alone(rows, victim), name) for name, rows in self._end_rows()]
        return max(found, default=(0.0, "none"))

    def _sent_rows(self, kind: str | None) -> Iterator[tuple[str, csr_array]]:
        for g in self.messages:
            if kind in (None, g.kind):
                yield g.kind, self.expand(g.rows[np.flatnonzero(g.crossing)], unseen=_every)

    def _end_rows(self) -> Iterator[tuple[str, csr_array]]:
        for name, rows in self.record.end_state.items():
            yield name, self.expand(rows, unseen=_every)

    def _holds_bounded(self, rows: csr_array) -> bool:
        blamed = _columns(g for g in self.groups if isinstance(g, Contributions) and g.blame)
        return bool(rows[:, blamed].nnz)

    def _alone(self, rows: csr_array, victim: int) -> float:
        """The largest mu among rows of which only one is seen."""
        bounds = np.zeros(self.columns)
        for g in self.groups:
            if isinstance(g, Contributions):
                bounds[g.start : g.start + g.size] = np.where(g.owners == victim, g.bounds, 0.0)
        columns = np.flatnonzero(bounds)
        noise = _columns(g for g in self.groups if isinstance(g, NoiseSources))
        moved = np.zeros(rows.shape[0])
        if len(columns):
            touched = abs(rows[:, columns]).tocoo()
            np.add.at(moved, touched.coords[0], touched.data * bounds[columns[touched.coords[1]]])
        hidden = np.sqrt(np.asarray((rows[:, noise] ** 2).sum(axis=1)).ravel())
        with np.errstate(divide="ignore", invalid="ignore"):
            mu = np.where(moved > 0, moved / hidden, 0.0)
        return float(mu.max(initial=0.0))


def _every(messages: Messages) -> np.ndarray:
    return np.ones(messages.size, dtype=bool)


def _columns(groups: Any) -> np.ndarray:
    ranges = [np.arange(g.start, g.start + g.size) for g in groups]
    return np.concatenate(ranges) if ranges else np.zeros(0, dtype=int)


def _check_blocks(view: View, blocks: Sequence[list[int]]) -> None:
    columns = [c for block in blocks for c in block]
    if view.leaks(columns):
        return  # that batch is infinite by itself, whatever the others share with it
    information = view.information(columns)
    own = np.sqrt(np.diag(information))
    share = np.abs(information) / np.maximum(np.outer(own, own), np.finfo(float).tiny)
    of = np.repeat(np.arange(len(blocks)), [len(b) for b in blocks])
    across = of[:, None] != of[None, :]
    if across.any() and share[across].max() > 1e-9:
        raise UnsupportedView(
            "the releases of two batches of one round share noise, so they cannot be accounted "
            "for batch by batch; give each batch its own noise"
        )


class AlgorithmTrace(NamedTuple):
    """Traces of the start and of the rounds; one stands for all when rounds do not differ."""

    start: RoundTrace
    rounds: Sequence[tuple[RoundTrace, int]]


def trace(init: Step, step: Step, *, graph: Graph, rounds: int) -> AlgorithmTrace:
    """Run `init` and `step` on unit sources.

    A step that reads `round.index`, or whose state carries public tensors that change, is traced
    in every round; otherwise one trace counts for all.

    Raises:
        UnsupportedView: two rounds differ although neither their number nor their state does.
        UndeclaredOperation: the step does what no operation declares.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} must be at least 1")
    first = TracedRound(graph, index=0)
    state = init(first)
    start = RoundTrace(first.finish(state))
    first_round, after = _trace_round(step, state, graph=graph, index=1)
    if first_round.record.reads_index or not _same_public(state, after):
        every = [first_round]
        for index in range(2, rounds + 1):
            one, after = _trace_round(step, after, graph=graph, index=index)
            every.append(one)
        return AlgorithmTrace(start, [(one, 1) for one in every])
    again, _ = _trace_round(step, after, graph=graph, index=rounds)
    if not _same_rows(first_round.record, again.record):
        raise UnsupportedView(
            "the step differs between rounds without reading round.index: keep what changes in "
            "the state, as a public tensor, or read round.index"
        )
    return AlgorithmTrace(start, [(first_round, rounds)])


def _trace_round(step: Step, state: Any, *, graph: Graph, index: int) -> tuple[RoundTrace, Any]:
    """One round from a state whose Agents are known, and the state that it returns."""
    traced = TracedRound(graph, index=index)
    fields = {
        name: traced.known(f"state {name}") if isinstance(value, Agents) else value
        for name, value in state._asdict().items()
    }
    end = step(type(state)(**fields), traced)
    return RoundTrace(traced.finish(end)), end


def _same_public(before: Any, after: Any) -> bool:
    pairs = zip(before, after, strict=True)
    return all(torch.equal(a, b) for a, b in pairs if isinstance(a, Tensor))


def _same_rows(one: RoundRecord, other: RoundRecord) -> bool:
    """Whether two rounds have the same columns, messages, closure and end state."""

    def matrices(record: RoundRecord) -> list[csr_array]:
        sent = [g.rows for g in record.groups if isinstance(g, Messages)]
        return [*sent, *(rows for _, rows in record.closure), *record.end_state.values()]

    if [(type(g), g.size) for g in one.groups] != [(type(g), g.size) for g in other.groups]:
        return False
    for a, b in zip(one.groups, other.groups, strict=True):
        if isinstance(a, Contributions) and isinstance(b, Contributions):
            if (a.batch, a.sampling_rate, a.blame) != (b.batch, b.sampling_rate, b.blame):
                return False
            if not np.array_equal(a.bounds, b.bounds):
                return False
        known = [list(g.known_to) for g in (a, b) if isinstance(g, NoiseSources)]
        if len(known) == 2 and known[0] != known[1]:
            return False
    pairs = list(zip(matrices(one), matrices(other), strict=False))
    return len(matrices(one)) == len(matrices(other)) and all(
        a.shape == b.shape and not (a != b).nnz for a, b in pairs
    )
