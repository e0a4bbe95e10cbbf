"""Transcript: messages that a run really sent are no smaller than their noise alone can be.

Nobody knows afterwards which records were in a batch, so what a message holds beside its noise is
unknown. Whatever it is, it does not depend on noise that was drawn after it. Such a row is

    m = r + b z        r independent of z, of which the row's trace gives b

and what is added to independent normal numbers makes them larger, never smaller: |r + b z| exceeds
any bound at least as often as |b z| does, in every coordinate (Anderson 1955) and so in any sum.
All tests are one-sided by this, and exact or bounded at any r:

    squares        |m|^2 / b^2 is at least chi-square, D degrees: by row, by parameter tensor, by
                   coordinate, and over all rows that share no noise
    small values   no share of |m_d| / b lies below t more often than of |z|: one-sided Kolmogorov-
                   Smirnov by Massart's bound, exp(-2 n x^2), of the same
    pairs          |m_i / b_i +- m_j / b_j|^2 is at least 2 chi-square where both were drawn at
                   once, and at least chi-square where one was drawn after the other
    repeated       values of a row that equal another of it, by a bound on a float's probability

So noise that is missing, too small, on a grid or drawn twice shows where the messages' gradients
are small beside it, and hides where they are large. A row whose noise was drawn before something
that it also holds is left out: what is added may then depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...training.engine.transcript import Message, Transcript
from ...training.noise_tests import laws
from ...training.tracing.linear_forms import Contributions, Known, Messages, NoiseSources
from ...training.tracing.round_trace import RoundTrace
from ...training.tracing.trace import AlgorithmTrace
from .result import TOTAL_FALSE_ALARM, Check, Finding

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_NAME = "transcript"
_DROWNED = 0.01  # rounding, as a share of the noise's deviation, from which on a row is left out
_MOST_PAIRED = 400  # rows, the first ones, that are looked at in pairs
_LEAST = 16  # values, below which next to nothing can be said


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Row:
    """One message that was sent, over the deviation of its own noise."""

    name: str  # in words
    values: NDArray[np.float64]  # (D,) m / b
    sources: frozenset[tuple[int, int, int]]  # the noise that is its own: (release, round, column)
    drawn: tuple[int, int, int]  # (release, round, first column) of what drew the first of it
    rounding: float  # what one value may be off by


def transcript_check(
    transcripts: Sequence[Transcript],
    traces: AlgorithmTrace,
    *,
    states: Mapping[int, Mapping[str, Tensor]] | None = None,
    parts: Mapping[int, Sequence[int]] | None = None,
    fresh: bool = True,
) -> Check:
    """Hold the messages of a run against the noise that they must hold.

    Args:
        transcripts: what was kept of the run, and then of rounds that it released again.
        states: by round the state after it, field by field, where it was kept.
        traces: of the run, at the noise of its ledger.
        parts: by number of coordinates the sizes of the parameter tensors.
        fresh: whether a round that was released again drew fresh noise.

    Returns:
        Passed if no test is beyond a false-alarm rate of 1e-6 for all of them together; with
        nothing looked at where nothing was kept, or no kept row has noise of its own.
    """
    # Parts of the trace by number of the round; 0 is the start.
    rounds = [one for one, count in traces.rounds for _ in range(count)]
    by_number = [traces.start, *rounds]
    rows, left_out, seen = list[_Row](), 0, set[int]()
    # Every kept message and state whose row has noise of its own.
    for release, transcript in enumerate(transcripts):
        kept = {message.round for message in transcript}
        for number in sorted(kept.union(states or ()) if release == 0 else kept):
            messages = transcript.of(round=number)
            if number >= len(by_number) or not _fits(messages, by_number[number]):
                words = f"The messages of round {number} are not those of its trace."
                return Check.exact(_NAME, words, tests=1, passed=False)
            seen.add(number)
            after = (states or {}).get(number, {}) if release == 0 else {}
            found = list(
                _rows_of(messages, by_number[number], at=(release * fresh, number), states=after)
            )
            rows += [one for one in found if one is not None]
            left_out += found.count(None)
    if not rows:
        words = (
            "Nothing was looked at: no message or state with noise of its own was kept; name "
            "rounds in [intercept] to keep theirs."
        )
        return Check.exact(_NAME, words, tests=0)
    whole = Finding.of(_findings(rows, dict(parts or {})))
    what = (
        f"{len(rows)} messages and end states of {len(seen)} round{'s' * (len(seen) > 1)} of the "
        f"run itself ({sum(row.values.size for row in rows)} values) were checked against the "
        "noise that the ledger names, one-sided, since gradients can only enlarge them"
    )
    outcome = (
        f"none fails; they fit noise of up to {_largest_fitting(rows):.3g} times the declared "
        "deviation, and a fault that takes less than that factor off may hide behind gradients"
        if whole.passed
        else f"the worst, {whole.what}, has p {whole.p:.1e} together with the others"
    )
    left = f" ({left_out} rows without noise of their own left out)" if left_out else ""
    return whole.check(_NAME, what, outcome=outcome + left)


def _fits(messages: Sequence[Message], trace: RoundTrace) -> bool:
    """Whether kept messages are of the calls of a round's trace."""
    sent = trace.messages
    return all(m.call < len(sent) and sent[m.call].kind == m.kind for m in messages)


def _rows_of(
    messages: Sequence[Message],
    trace: RoundTrace,
    *,
    at: tuple[int, int],
    states: Mapping[str, Tensor],
) -> Iterator[_Row | None]:
    """Messages and end states with noise of their own, None for each other one."""
    kept: dict[int, tuple[NDArray[np.float64], float]] = {}  # by column of the trace
    found = list[_Value]()
    # Messages that were kept, at their places in the trace.
    for message in messages:
        group = trace.messages[message.call]
        places = _places(group.senders, group.links)
        values, unit = _numbers(message.rows)
        for row, ends in enumerate(_ends(message.senders.numpy(), message.links.numpy())):
            if ends not in places:
                yield None
                continue
            place = places[ends]
            kept[group.start + place] = values[row], unit
            found.append((group.name(place), group.rows, place, *kept[group.start + place]))
    for field, rows in trace.record.end_state.items():
        if field in states and len(states[field]) == rows.shape[0]:
            values, unit = _numbers(states[field])
            for agent, value in enumerate(values):
                found.append((f"state {field} of agent {agent}", rows, agent, value, unit))
    # A message that was not kept counts as what it holds.
    whole = {
        id(rows): trace.expand(rows, unseen=lambda one: _missing(one, kept))
        for _, rows, *_ in found
    }
    for name, rows, place, value, unit in found:
        yield _row(value, whole[id(rows)], place, trace, kept, name=name, unit=unit, at=at)


def _numbers(rows: Tensor) -> tuple[NDArray[np.float64], float]:
    """Values in double precision, and the unit of rounding that they had."""
    return rows.double().numpy(), float(torch.finfo(rows.dtype).eps)


def _missing(group: Messages, kept: Mapping[int, object]) -> NDArray[np.bool_]:
    """Which messages of a group were not kept, so that what they hold is put in their place."""
    return np.array([group.start + place not in kept for place in range(group.size)], dtype=bool)


def _row(
    value: NDArray[np.float64],
    rows: csr_array,
    place: int,
    trace: RoundTrace,
    kept: Mapping[int, tuple[NDArray[np.float64], float]],
    *,
    name: str,
    unit: float,
    at: tuple[int, int],
) -> _Row | None:
    """What is left of a value without the kept messages that it holds, if it has noise."""
    span = slice(rows.indptr[place], rows.indptr[place + 1])
    columns, weights = rows.indices[span], rows.data[span]
    # The noise drawn after everything else that is left.
    latest, drawn = -1, np.full(len(columns), -1)
    for group in trace.groups:
        held = (columns >= group.start) & (columns < group.start + group.size) & (weights != 0)
        if isinstance(group, Contributions | Known) and held.any():
            latest = max(latest, group.start)
        if isinstance(group, NoiseSources):
            drawn[held] = group.start
    own = drawn > latest
    deviation = float(np.linalg.norm(weights[own]))
    if deviation == 0 or not len(value):
        return None
    # Kept messages in the value are subtracted, which adds their rounding.
    left, lost = value, unit * float(np.abs(value).max())
    for column, weight in zip(columns.tolist(), weights.tolist(), strict=True):
        if column in kept:
            message, its_unit = kept[column]
            left = left - weight * message
            lost += its_unit * abs(weight) * float(np.abs(message).max())
    # Where rounding covers the noise, nothing can be tested.
    rounding = 8 * lost / deviation
    if not rounding <= _DROWNED:  # nor where something is no number
        return None
    return _Row(
        name=f"{name} in round {at[1]}",
        values=left / deviation,
        sources=frozenset((*at, int(column)) for column in columns[own]),
        drawn=(*at, int(drawn[own].min())),
        rounding=rounding + laws.RESOLUTION,
    )


_Ends = tuple[int, tuple[int, ...]]
_Value = tuple[str, "csr_array", int, NDArray[np.float64], float]


def _ends(senders: NDArray[np.int64], links: NDArray[np.int64]) -> list[_Ends]:
    """Of each row who sends it, and to whom."""
    to: list[list[int]] = [[] for _ in senders]
    for row, receiver in links.tolist():
        to[row].append(receiver)
    return [(int(s), tuple(sorted(of))) for s, of in zip(senders, to, strict=True)]


def _places(senders: NDArray[np.int64], links: NDArray[np.int64]) -> dict[_Ends, int]:
    """The row of a traced message by its ends; those that several have are left out."""
    ends = _ends(senders, links)
    return {where: row for row, where in enumerate(ends) if ends.count(where) == 1}


def _apart(rows: Sequence[_Row]) -> list[_Row]:
    """Rows none of which holds noise of another, the first that are met."""
    taken: set[tuple[int, int, int]] = set()
    found = []
    for row in rows:
        if not taken & row.sources:
            taken |= row.sources
            found.append(row)
    return found


def _findings(rows: Sequence[_Row], parts: Mapping[int, Sequence[int]]) -> list[Finding]:
    """The plainest words come first."""
    squares, small, pairs, repeated = Finding(), Finding(), Finding(), Finding()
    # Each row by itself: its length, that of its parts, small and repeated values.
    for row in rows:
        count = row.values.size
        p = float(_squares(row.values, row.rounding))
        squares.note(p, what=f"the length of the {row.name}")
        for place, part in enumerate(_split(row.values, parts)):
            words = f"the length of part {place + 1} of the {row.name}"
            squares.note(_squares(part, row.rounding), what=words)
        if count < _LEAST:
            continue
        words = f"the number of small values in the {row.name}"
        small.note(_small(np.abs(row.values) + row.rounding), what=words)
        ordered = np.sort(np.abs(row.values))
        same = int((ordered[1:] == ordered[:-1]).sum())
        atom = min(1.0, count * (laws.ATOM + 2 * row.rounding))
        p = float(laws.at_least(same, count, atom))
        repeated.note(p, what=f"the number of values that are repeated in the {row.name}")
    # Rows that share no source are independent, and tested together.
    apart = _apart(rows)
    for name, some in _together(apart, parts):
        worst = max(row.rounding for row in apart)
        squares.note(_squares(some, worst), what=f"the length of {name}")
        if some.size >= _LEAST:
            words = f"the number of small values in {name}"
            small.note(_small(np.abs(some) + worst), what=words)
    # Coordinates, and pairs of rows, of each width.
    for width in sorted({row.values.size for row in rows}):
        _note_coordinates(squares, [row for row in apart if row.values.size == width])
        of_width = [row for row in rows if row.values.size == width]
        _note_pairs(pairs, of_width[:_MOST_PAIRED])
    return [squares, small, pairs, repeated]


def _split(values: NDArray[np.float64], parts: Mapping[int, Sequence[int]]) -> list[Any]:
    sizes = parts.get(values.size, ())
    return np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) > 1 else []


def _together(
    rows: Sequence[_Row], parts: Mapping[int, Sequence[int]]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Values of all rows, and of each parameter tensor of all rows, as one."""
    yield (
        f"all {len(rows)} messages and states that share no noise",
        np.concatenate([r.values for r in rows]),
    )
    for width, sizes in parts.items():
        split = [_split(row.values, parts) for row in rows if row.values.size == width]
        if split and len(sizes) > 1:
            for place in range(len(sizes)):
                joined = np.concatenate([one[place] for one in split])
                yield f"part {place + 1} of {len(split)} messages that share no noise", joined


def _squares(values: NDArray[np.float64], rounding: float) -> NDArray[np.float64]:
    norm = np.linalg.norm(values) + np.sqrt(values.size) * rounding
    return laws.smaller(norm**2, values.size)


def _small(sizes: NDArray[np.float64]) -> float:
    """Bound on p that so many of n sizes are so small, at the place where it is least."""
    from scipy.special import erf

    ordered = np.sort(sizes)
    share = np.arange(1, len(ordered) + 1) / len(ordered)
    excess = float(np.max(share - erf(ordered / np.sqrt(2))))
    return float(np.exp(-2 * len(ordered) * max(excess, 0.0) ** 2))


def _note_coordinates(found: Finding, rows: Sequence[_Row]) -> None:
    """Each coordinate of all rows that share no noise."""
    if len(rows) < 2:
        return
    more = len(rows) ** 0.5 * max(row.rounding for row in rows)
    norms = np.linalg.norm(np.stack([row.values for row in rows]), axis=0)
    p = laws.smaller((norms + more) ** 2, len(rows))
    found.worst(p, lambda at: f"the length of coordinate {at} of {len(rows)} messages and states")


def _note_pairs(found: Finding, rows: Sequence[_Row]) -> None:
    """Sums and differences of all pairs of rows that share no noise by declaration."""
    if len(rows) < 2:
        return
    values = np.stack([row.values for row in rows])
    width = values.shape[1]
    gram = values @ values.T
    every = [(i, j) for j in range(len(rows)) for i in range(j)]
    pairs = [(i, j) for i, j in every if not rows[i].sources & rows[j].sources]
    if not pairs:
        return
    first, second = np.array(pairs).T
    squares, rounding = np.diag(gram), np.array([row.rounding for row in rows])
    at_once = np.array([rows[i].drawn == rows[j].drawn for i, j in pairs])
    variance = np.where(at_once, 2.0, 1.0)
    more = np.sqrt(width) * (rounding[first] + rounding[second])
    for sign, word in ((-1, "difference"), (1, "sum")):
        norms = squares[first] + squares[second] + sign * 2 * gram[first, second]
        p = laws.smaller((np.sqrt(np.maximum(norms, 0.0)) + more) ** 2 / variance, width)
        i, j = pairs[int(p.argmin())]
        what = f"the {word} of the {rows[i].name} and the {rows[j].name}"
        found.note(float(p.min()), tests=len(p), what=what)


def _largest_fitting(rows: Sequence[_Row]) -> float:
    """By how much larger the declared noise could be before these messages were too small."""
    apart = _apart(rows)
    values = np.concatenate([row.values for row in apart])
    worst = max(row.rounding for row in apart)

    def fits(factor: float) -> bool:
        less = values / factor
        p = min(float(_squares(less, worst)), _small(np.abs(less) + worst))
        return 2 * p >= TOTAL_FALSE_ALARM

    low, high = 1.0, 64.0
    if fits(high):
        return high
    for _ in range(12):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
