"""The view of all rounds of a run, taken in round by round as dense rows.

The state is carried from round to round as rows over everything that ever entered it; what is sent,
the points at which gradients are taken and the final models count as seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.adversary import Adversary
from ...privacy.view.whole_run import Rows, StreamedView
from ..tracing.linear_forms import Contributions, Known, widened
from ..tracing.round_trace import RoundTrace
from ..tracing.scripts import state_column
from ..tracing.trace import AlgorithmTrace

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["contributions_of", "streamed_view"]

_RELEASED = ("x", "y")  # fields that hold models and dual variables; out after the last round


def streamed_view(
    traces: AlgorithmTrace,
    adversary: Adversary,
    *,
    victims: Sequence[int],
    until_leak: bool = False,
) -> StreamedView:
    """The view of all rounds, with the contributions of `victims`; other agents' are held fixed.

    With `until_leak` it ends once a contribution of every victim was shown without noise.

    >>> from overhear.privacy import EAVESDROPPER
    >>> from overhear.training import ALGORITHMS, bind, build_graph
    >>> from overhear.training.tracing.trace import trace
    >>> known = ALGORITHMS["dp-dpsgd"]
    >>> run = bind(known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0,
    ...     batch_size=1.0)
    >>> traces = trace(run.init, run.step, graph=build_graph("ring", 4), rounds=9,
    ...     noise_multiplier=1.0)
    >>> round(streamed_view(traces, EAVESDROPPER, victims=[0]).mu(0), 6)
    3.0
    """
    view = StreamedView()
    last: _DenseRound | None = None
    # Equal rounds are made into dense rows once, and taken in as often as they occur.
    for part, count in ((traces.start, 1), *traces.rounds):
        last = _DenseRound.of(part, adversary, victims)
        for _ in range(count):
            view.advance(
                last.seen,
                last.carried,
                owners=last.owners,
                vectors=last.vectors,
                messages=last.messages,
            )
            if until_leak and all(view.leaks(v) for v in victims):
                return view
    # After the last round models and dual variables are released as they are.
    if last is not None:
        size = len(last.carried.carried)
        released = np.eye(size)[last.released]
        none = np.zeros((size, 0))
        view.advance(
            Rows(released, none[: len(released)], none[: len(released)]),
            Rows(np.eye(size), none, none),
            owners=[],
            messages=[f"final model, row {i}" for i in range(len(released))],
        )
    return view


class _DenseRound(NamedTuple):
    """One round of an adversary's view over carried | contributions | unknown noise."""

    seen: Rows
    carried: Rows
    owners: list[int]
    vectors: list[int]
    messages: list[str]
    released: list[int]  # positions of models and dual variables among the carried rows

    @classmethod
    def of(cls, part: RoundTrace, adversary: Adversary, victims: Sequence[int]) -> _DenseRound:
        rows, names, unseen = part.seen_rows(adversary, end_state=False)
        at, owners, _, vectors = contributions_of(part, victims)
        columns = (_carried_columns(part), at, part.unknown_noise(adversary))
        released: list[int] = []
        ends: list[csr_array] = []
        position = 0
        for field, matrix in part.record.end_state.items():
            if field in _RELEASED:
                released += range(position, position + matrix.shape[0])
            position += matrix.shape[0]
            ends.append(widened(matrix, part.columns))
        return cls(
            _dense(part.expand(rows, unseen=unseen), columns),
            _dense(part.expand(_stacked(ends, part.columns), unseen=unseen), columns),
            owners,
            vectors,
            names,
            released,
        )


def _dense(rows: csr_array, columns: tuple[np.ndarray, ...]) -> Rows:
    return Rows(*(rows[:, chosen].toarray() for chosen in columns))


def _stacked(parts: Sequence[csr_array], width: int) -> csr_array:
    from scipy.sparse import csr_array, vstack

    return csr_array(vstack([csr_array((0, width)), *parts]))


def _carried_columns(part: RoundTrace) -> np.ndarray:
    """The columns of the state that the round began with, in the order of its fields."""
    known = {g.what: g for g in part.groups if isinstance(g, Known)}
    at = [known.get(state_column(field)) for field in part.record.end_state]
    ranges = [np.arange(g.start, g.start + g.size) for g in at if g is not None]
    return np.concatenate(ranges) if ranges else np.zeros(0, dtype=int)


def contributions_of(
    part: RoundTrace, victims: Sequence[int]
) -> tuple[np.ndarray, list[int], list[float], list[int]]:
    """Columns, owners, bounds and vectors of the victims' contributions."""
    columns, owners, bounds = list[int](), list[int](), list[float]()
    positions = list[int]()
    position = 0
    for g in part.groups:
        if isinstance(g, Contributions):
            mine = np.flatnonzero(np.isin(g.owners, list(victims)))
            columns += (g.start + mine).tolist()
            owners += g.owners[mine].tolist()
            bounds += g.bounds[mine].tolist()
            positions += (position + mine).tolist()
            position += g.size
    return np.asarray(columns, dtype=int), owners, bounds, part.vectors[positions].tolist()
