"""A run of dense rounds: what is seen and what is carried on, and the view of them all together.

The state is carried from round to round as rows over everything that ever entered it; only what is
sent, the points at which gradients are taken and what leaves after the last round count as seen.

A view of round after round finds the round in which noise cancels, and forgets what was sent before
it. Where noise is used again, what shows it is an earlier message; so for the witness all rounds up
to that one are written out as one matrix,

    O_t = C_t S_t-1 + A_t G_t + B_t Z_t
    S_t = F_t S_t-1 + K_t G_t + L_t Z_t

and the rows of O_0 .. O_t whose combination is free of noise are named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...privacy.errors import UnsupportedView
from ...privacy.guarantee import Adversary
from ...privacy.view.elimination import in_round
from ...privacy.view.view import View
from ...privacy.view.whole_run import Rows, StreamedView
from ..step.final_release import NOTHING, FinalRelease
from ..tracing.linear_forms import Contributions, Known
from ..tracing.round_trace import RoundTrace
from ..tracing.scripts import state_column
from ..tracing.sparse_rows import stacked
from ..tracing.trace import AlgorithmTrace

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_MOST_ENTRIES = 4_000_000  # of the matrix of all rounds: 32 MB


def streamed_view(
    traces: AlgorithmTrace,
    adversary: Adversary,
    *,
    victims: Sequence[int],
    until_leak: bool = False,
    ended: bool = True,
    closed: bool = True,
) -> StreamedView:
    """The view of all rounds, with the contributions of `victims`; other agents' are held fixed.

    With `until_leak` it ends once a contribution of every victim was shown without noise; without
    `ended` the traces are the first rounds of a run, whose last state is not released. If not
    `closed` messages and what is released at the end alone count as seen: what leaks then is shown,
    and where nothing does, nothing is proven.
    """
    view = StreamedView()
    for dense_round in dense_rounds(traces, adversary, victims=victims, ended=ended, closed=closed):
        view.advance(
            dense_round.seen,
            dense_round.carried,
            owners=dense_round.owners,
            vectors=dense_round.vectors,
            messages=dense_round.messages,
        )
        if until_leak and all(view.leaks(v) for v in victims):
            return view
    return view


def dense_rounds(
    traces: AlgorithmTrace,
    adversary: Adversary,
    *,
    victims: Sequence[int],
    ended: bool,
    closed: bool,
) -> Iterator[DenseRound]:
    """The start, every round, and what is released after the last one if that has `ended` the run.

    Equal rounds are made into dense rows once, and given as often as they occur.
    """
    last: DenseRound | None = None
    for part, count in ((traces.start, 1), *traces.rounds):
        last = DenseRound.of(part, adversary, victims, closed=closed, release=traces.release)
        yield from itertools.repeat(last, count)
    if last is not None and ended:
        yield last.after()


class DenseRound(NamedTuple):
    """One round of an adversary's view over carried | contributions | unknown noise.

    Attributes:
        seen, carried: what the adversary sees, and what outlives the round.
        owners, vectors: of each contribution, as `StreamedView.advance` takes them.
        messages: the name of each seen row.
        released: positions among the carried rows of those that leave after the last round, each
            with its name.
    """

    seen: Rows
    carried: Rows
    owners: list[int]
    vectors: list[int]
    messages: list[str]
    released: dict[int, str]

    @classmethod
    def of(
        cls,
        part: RoundTrace,
        adversary: Adversary,
        victims: Sequence[int],
        *,
        closed: bool,
        release: FinalRelease = NOTHING,
    ) -> DenseRound:
        """The round with the contributions of `victims`; other agents' are held fixed."""
        rows = RoundRows.of(part, adversary, closed=closed, release=release)
        at, owners, _, vectors = contributions_of(part, victims)
        return cls(
            rows.over(rows.seen, at),
            rows.over(rows.carried, at),
            owners,
            vectors,
            rows.messages,
            rows.released,
        )

    def after(self) -> DenseRound:
        """What the end of a run releases: its models, and the fields that leave with them."""
        from scipy.sparse import csr_array, eye_array

        size = self.carried.carried.shape[0]
        kept, none = csr_array(eye_array(size)), np.zeros((size, 0))
        models, many = kept[list(self.released)], len(self.released)
        return DenseRound(
            Rows(models, none[:many], none[:many]),
            Rows(kept, none, none),
            [],
            [],
            list(self.released.values()),
            self.released,
        )


class RoundRows(NamedTuple):
    """Rows of one round of an adversary's view, over all columns of its trace.

    Messages that the adversary does not see are replaced by what they hold; one that it does see
    stays a column of its own.

    Attributes:
        held: columns of the state that the round began with.
        unknown: columns of noise that the adversary does not know.
    """

    seen: csr_array
    carried: csr_array
    messages: list[str]
    released: dict[int, str]
    held: np.ndarray
    unknown: np.ndarray

    @classmethod
    def of(
        cls,
        part: RoundTrace,
        adversary: Adversary,
        *,
        closed: bool,
        release: FinalRelease = NOTHING,
    ) -> RoundRows:
        """The rows of a traced round; if not `closed` messages alone are seen."""
        rows, names, unseen = part.seen_rows(adversary, end_state=False, closed=closed)
        released: dict[int, str] = {}
        ends: list[csr_array] = []
        position = 0
        for field, matrix in part.record.end_state.items():
            if release.includes(field):
                names_of = release.row_names(field, matrix.shape[0])
                released |= {position + i: name for i, name in enumerate(names_of)}
            position += matrix.shape[0]
            ends.append(matrix)
        carried = part.expand(stacked(ends, part.columns), unseen=unseen)
        seen, unknown = part.expand(rows, unseen=unseen), part.unknown_noise(adversary)
        return cls(seen, carried, names, released, _carried_columns(part), unknown)

    def over(self, rows: csr_array, contributions: np.ndarray) -> Rows:
        """Some rows over the state, some columns of contributions, and unknown noise."""
        added, noise = (rows[:, at].toarray() for at in (contributions, self.unknown))
        return Rows(rows[:, self.held], added, noise)


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


def witness(
    traces: AlgorithmTrace,
    adversary: Adversary,
    *,
    victim: int,
    ended: bool = True,
    closed: bool = False,
) -> tuple[str, ...]:
    """The messages, in their order, that show a contribution of the victim; none if nothing does.

    Args:
        traces: of a run, or of its first rounds.
        adversary: who sees.
        victim: the agent that holds the record.
        ended: whether the traces are a whole run, whose last models are released.
        closed: whether what the view is closed with counts as seen, such as the points at which
            gradients are taken. A witness without it is what the adversary was sent.

    Raises:
        UnsupportedView: rounding hides what is shown, or a round is too large.
    """
    seen: dict[str, bool] = {"ended": ended, "closed": closed}
    view = streamed_view(traces, adversary, victims=[victim], until_leak=True, **seen)
    shown = view.leaks(victim)
    if not shown:
        return ()
    rounds = dense_rounds(traces, adversary, victims=[victim], **seen)
    return _across(list(itertools.islice(rounds, view.round + 1))) or shown


def _across(rounds: Sequence[DenseRound]) -> tuple[str, ...]:
    """What leaks from rounds written out as one matrix; nothing where that would be too large."""
    rows = sum(one.seen.carried.shape[0] for one in rounds)
    widths = [(one.seen.contributions.shape[1], one.seen.noise.shape[1]) for one in rounds]
    columns, sources = sum(c for c, _ in widths), sum(n for _, n in widths)
    if rows * (columns + sources) > _MOST_ENTRIES:
        return ()
    # Each round over the columns of all rounds; its own stand behind those of the rounds before.
    state = np.zeros((rounds[0].seen.carried.shape[1], columns + sources))
    seen, names = [np.zeros((0, columns + sources))], list[str]()
    at, source = 0, columns
    for number, (one, (added, noise)) in enumerate(zip(rounds, widths, strict=True)):
        seen.append(one.seen.carried @ state)
        after = one.carried.carried @ state
        for rows_of, block in ((one.seen, seen[-1]), (one.carried, after)):
            block[:, at : at + added] += rows_of.contributions
            block[:, source : source + noise] += rows_of.noise
        names += [in_round(name, number) for name in one.messages]
        state, at, source = after, at + added, source + noise
    matrix = np.vstack(seen)
    view = View(contributions=matrix[:, :columns], noise=matrix[:, columns:], messages=names)
    try:
        return view.leaks(range(columns))
    except UnsupportedView:  # the names of the last round alone are sure
        return ()
