"""What an adversary really saw of a round, beside the rows that say what it is made of.

The rows are those of the closed view: messages that the adversary sees, and the end states. A
message that it does not see is replaced by what it is made of; one that it does see stays a column
of its own, whose value is known. Models at which gradients were taken, and other values that the
closure counts as seen, are left out: nobody sends them, and they mostly follow from the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.guarantee import Adversary
from ...privacy.view.view import MatchedFilter, View, matched_filter
from ...training.noise_tests.laws import least, two_sided
from ...training.tracing.linear_forms import Contributions, Known, Messages
from ...training.tracing.round_trace import RoundTrace
from ...training.tracing.scripts import state_column
from ...training.tracing.trace import AlgorithmTrace
from ..checks.recording import WatchedRound
from ..checks.result import TOTAL_FALSE_ALARM, Check, Finding
from .canary_noise import ObservedNoise

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

    def drowned(self, happened: WatchedRound) -> bool:
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

    def unexplained(self, happened: WatchedRound, project: Projected) -> np.ndarray:
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

    def __call__(self, happened: WatchedRound, who: Adversary) -> ObservedRows:
        """Those of a round to an adversary."""
        key = (id(happened.trace), who.name)
        if key not in self._held:
            self._held[key] = ObservedRows(happened.trace, who)
        return self._held[key]


def values_of(happened: WatchedRound) -> Iterator[Tensor | None]:
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


# A check of all that an adversary hears of a whole run, over rounds, rows and directions.


Array = NDArray[np.float64]
_MOST_LAGS = 100
_MOST_WORK = 3e9  # multiplications of all lags of one run, about 3 s
_POWER = 0.95
_NEARLY = 0.999  # square of a correlation


def heard_check(heard: Sequence[ObservedNoise]) -> Check:
    """Test all that was heard of whole runs against the declared noise over agents and rounds.

    Runs of one adversary are tested together.
    """
    found, values, along, lagged = Finding(), 0, 0, (0, 0)
    for of in _joined(heard):
        what = f"what the {of.name} hears"
        rounds = [np.asarray(one, dtype=np.float64) for one in of.rounds]
        degrees = 0
        _note_sizes(found, rounds, what)
        _note_along(found, of.along, f"the noise along what canaries add, to the {of.name}")
        for lag, of_rounds in _by_lag(rounds):
            _note_together(found, lag, of_rounds, what)
            degrees = sum(number for _, number in of_rounds) if lag == 1 else degrees
        values = max(values, sum(one.size for one in rounds))
        lagged = max(lagged, (sum(one.size for one in rounds[1:]), degrees))
        along = max(along, len(of.along))
    words = (
        "all that an adversary observes of a run was checked against the declared noise over "
        "agents and rounds: "
        "size, by round and row, along what canaries add, and whether rounds or rows go together"
    )
    if not found.tests:
        return Check.exact("heard", f"{words}: there was none.", tests=0)
    power = _power(values, along, lagged, tests=found.tests)
    return found.check("heard", words, power=power)


def _joined(heard: Sequence[ObservedNoise]) -> Iterator[ObservedNoise]:
    """Runs of equal rows as one of more directions, so that a small fault of all of them shows."""
    alike: dict[tuple[str, tuple[int, ...]], list[ObservedNoise]] = {}
    for of in heard:
        alike.setdefault((of.name, tuple(len(one) for one in of.rounds)), []).append(of)
    for (name, _), runs in alike.items():
        rounds = zip(*(of.rounds for of in runs), strict=True)
        yield ObservedNoise(
            name,
            [np.concatenate(parts, axis=1, dtype=np.float64) for parts in rounds],
            np.concatenate([of.along for of in runs]),
        )


def least_scales(values: int, *, tests: int) -> tuple[float, float]:
    """The noise nearest to the declared one that is told from it in 95 of 100 runs.

    Args:
        values: how many standard normals the test of size has.
        tests: among which the false-alarm rate is shared.

    Returns:
        (less, more): deviations in units of the declared one.
    """
    from scipy.stats import chi2

    each = TOTAL_FALSE_ALARM / tests / 2
    less = chi2.ppf(each, values) / chi2.ppf(_POWER, values)
    more = chi2.isf(each, values) / chi2.isf(_POWER, values)
    return math.sqrt(less), math.sqrt(more)


def least_correlation(values: int, degrees: int, *, tests: int) -> float:
    """The correlation of rounds with the one before that is told from none in 95 of 100 runs.

    Args:
        values: how many standard normals later rounds have, each of which goes together with one
            of the round before.
        degrees: of the test.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    most = chi2.isf(TOTAL_FALSE_ALARM / tests / 2, degrees)

    def missed(square: float) -> float:
        shift = square / (1.0 - square) * values
        return float(ncx2.cdf(most / (1.0 - square), degrees, shift)) - (1.0 - _POWER)

    return math.sqrt(brentq(missed, 1e-9, _NEARLY)) if missed(_NEARLY) < 0 else 1.0


def _power(values: int, along: int, lagged: tuple[int, int], *, tests: int) -> str:
    """What would be seen."""
    less, more = least_scales(values, tests=tests)
    said = (
        f"Noise of {_down(less)} or {_up(more)} times the declared deviation would be "
        f"seen in 95 of 100 runs ({values} values)"
    )
    if along:
        less, more = least_scales(along, tests=tests)
        said += f", along what canaries add of {_down(less)} or {_up(more)} ({along} values)"
    if lagged[1]:
        together = _up(least_correlation(*lagged, tests=tests))
        said += f", and so would rounds that have a correlation of {together} with the one before"
    return f"{said}."


def _down(value: float) -> str:
    return f"{math.floor(1000 * value) / 1000:.3f}".removeprefix("0")


def _up(value: float) -> str:
    return f"{math.ceil(1000 * value) / 1000:.3f}".removeprefix("0")


def _note_sizes(found: Finding, rounds: Sequence[Array], what: str) -> None:
    rounds = [one for one in rounds if one.size]
    of_rows = [(one**2).sum(axis=1) for one in rounds]
    if not of_rows:
        return
    wide = [np.full(len(one), one.shape[1]) for one in rounds]
    sums = {
        "over all rounds": [(sum(s.sum() for s in of_rows), sum(one.size for one in rounds))],
        "in one round": [(s.sum(), one.size) for s, one in zip(of_rows, rounds, strict=True)],
        "in one row": list(zip(np.concatenate(of_rows), np.concatenate(wide), strict=True)),
    }
    for where, every in sums.items():
        squares, degrees = np.array(every, dtype=float).T
        at, p = least(two_sided(squares, degrees))
        ratio = f"{squares[at] / degrees[at]:.3g} times the declared variance"
        found.note(p, tests=len(squares), what=f"{what} {where} has {ratio}")


def _note_along(found: Finding, along: Array, what: str) -> None:
    if not len(along):
        return
    squares = float((along**2).sum())
    found.note(
        two_sided(squares, len(along)),
        what=f"{what} has {squares / len(along):.3g} times the declared variance",
    )


def _by_lag(rounds: Sequence[Array]) -> Iterator[tuple[int, list[tuple[float, int]]]]:
    """By lag, of each round the squares of what lies in another one's span, and their number."""
    bases = [_basis(one) for one in rounds]
    work = sum(one.size * q.shape[1] for one, q in zip(rounds, bases, strict=True))
    lags = min(len(rounds) - 1, _MOST_LAGS, int(_MOST_WORK / max(work, 1)))
    yield 0, [_within(one) for one in rounds]
    for lag in range(1, lags + 1):
        found = []
        for one, q in zip(rounds[lag:], bases, strict=False):
            n = min(one.shape[1], q.shape[0])
            if n == one.shape[1] == q.shape[0]:
                found.append((float(((one @ q) ** 2).sum()), len(one) * q.shape[1]))
        yield lag, found


def _basis(one: Array) -> Array:
    """(n, rows) orthonormal, of the span of the rows; of half of the directions at most."""
    some = one[: max(1, one.shape[1] // 2)]
    return np.asarray(np.linalg.qr(some.T)[0])


def _within(one: Array) -> tuple[float, int]:
    """Of each row what lies in the span of the rows before it."""
    upper = np.linalg.qr(one[: max(1, one.shape[1] // 2)].T, mode="r")
    rows = len(upper)
    return float((np.triu(upper, 1) ** 2).sum()), rows * (rows - 1) // 2


def _note_together(
    found: Finding, lag: int, of_rounds: Sequence[tuple[float, int]], what: str
) -> None:
    degrees = sum(number for _, number in of_rounds)
    if not degrees:
        return
    squares = sum(size for size, _ in of_rounds)
    rows = f"rounds {lag} apart" if lag else "rows of one round"
    found.note(
        two_sided(squares, degrees),
        what=f"{rows} of {what} go together: {squares / degrees:.3g} times what chance leaves",
    )
