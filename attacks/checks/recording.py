"""Recording: what checks of noise read of a run, whether it is ours or somebody else's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ...training.data.store import Examples
from ...training.engine.recording import GradientCall, Recorded
from ...training.engine.setting import Setting
from ...training.engine.transcript import Message
from ...training.tracing.linear_forms import Contributions, Group, Known, Messages, NoiseSources
from ...training.tracing.round_trace import RoundTrace
from ...training.tracing.sparse_rows import widened
from .reference_sums import Oracle

if TYPE_CHECKING:
    from scipy.sparse import csr_array


# One round of a watched run: what it drew, computed and sent, beside its trace.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WatchedRound:
    """One round of a watched run, or of one with canaries."""

    number: int  # of the round; 0 is the start
    trace: RoundTrace  # the round on symbols, at the noise of the run
    recorded: Recorded  # what it drew and computed
    messages: Sequence[Message]  # what crossed the links, in the order of sending
    before: Mapping[str, Tensor]  # Agents fields of the state that it began with; none at the start
    after: Mapping[str, Tensor]  # those of the state that it returned
    planted: Mapping[int, Examples] = field(default_factory=dict)  # batches given, not drawn
    calls: Sequence[Any] = ()  # a `FunctionCall` an agent, or what was planted: `Released`, `Sent`
    public: Mapping[str, Tensor] = field(default_factory=dict)  # tensors of the state before

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
            dtype = setting.dtype if batch.inputs.is_floating_point() else None  # not of indices
            found.append(Examples(batch.inputs.to("cpu", dtype), batch.targets.cpu()))
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


# Residual: what a message holds beside its gradients and what is known.
#
# Every message and every end state is, by the trace of its round,
#
#     value = A G + K known + M earlier + B z
#
#     A  over contributions    K  over known values    M  over earlier messages    B  over noise
#
# and its residual is what is left without the noise, when every other part is put in by other
# means:
#
#     residual = value - A G - K known - M earlier
#
# G by the oracle, at the models and the batches that the run recorded; earlier messages as they
# really crossed, so that a residual holds only the noise that this row adds itself, with the row of
# B that is declared for it. Values of `round.bounded`, which no oracle can form, are as recorded,
# and so is what is known: the state that a round begins with, and results of `round.postprocess`.
#
# In float32 a ReLU whose input is zero up to rounding may be open for the layouts and closed for
# the oracle, and then one record's gradient differs by more than rounding: a tenth of the clip
# bound is allowed for it. Run it in float64 where every difference shall count.

_ROUNDING = 64  # units of rounding that adding up a row may lose
_USUAL = 4  # and that it usually does
_KINK = 0.1  # of the clip bound: what one record's gradient may jump by in float32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Residual:
    """The residuals of one message or one field of the state, a row for each sender or agent."""

    round: int  # the number of the round
    kind: str  # "message cross-gradient", "state x"; numbered where a round sends several
    names: list[str]  # (R,) each row in words
    value: Tensor  # (R, D) float64, the residuals
    rounding: Tensor  # (R,) Euclidean norm that rounding may account for
    resolution: Tensor  # (R,) Euclidean norm that it usually has
    noise: csr_array  # (R, N) the declared rows of B, over the noise sources of the round

    def recorded_noise(self, watched: WatchedRound) -> Tensor:
        """(R, D) B z: the noise in rows, from what the run recorded."""
        total, first = torch.zeros_like(self.value), 0
        for z in watched.recorded.noise:
            part = self.noise[:, first : first + len(z)]
            first += len(z)
            if part.nnz:  # rows hold no noise of another block, whose width differs
                total += torch.from_numpy(part @ z.double().numpy())
        return total


class _Column(NamedTuple):
    """Columns of a group: values (columns, D), and norms (columns,) that rounding may lose."""

    start: int
    values: np.ndarray
    rounding: np.ndarray
    resolution: np.ndarray


class Residuals:
    """Residuals of the rounds of one setting."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._oracle = Oracle(setting.task or setting.model)
        self._dimensions = setting.task.dimensions if setting.task else None

    def of_round(self, watched: WatchedRound) -> list[Residual]:
        """Residuals of a round's messages, in the order of sending, and then of its end state."""
        # Messages first; of several of a kind each has its place in its name.
        columns = self._columns(watched)
        found, kinds = list[Residual](), [group.kind for group in watched.trace.messages]
        for place, (group, message) in enumerate(
            zip(watched.trace.messages, watched.messages, strict=True)
        ):
            again = kinds.count(group.kind) > 1
            found.append(
                self._residual(
                    watched,
                    columns,
                    kind=f"message {group.kind}{f' {place + 1}' if again else ''}",
                    names=[f"message {group.name(i)}" for i in range(group.size)],
                    rows=group.rows,
                    value=message.rows,
                )
            )
        for name, rows in watched.trace.record.end_state.items():
            found.append(
                self._residual(
                    watched,
                    columns,
                    kind=f"state {name}",
                    names=[f"state {name} of agent {i}" for i in range(rows.shape[0])],
                    rows=rows,
                    value=watched.after[name],
                )
            )
        return found

    def fault(self, watched: WatchedRound) -> str:
        """Which contribution is another than by the oracle, in words; empty where none is."""
        groups = [pair for pair in watched.columns() if not isinstance(pair[0], NoiseSources)]
        for (group, made), column in zip(groups, self._columns(watched), strict=True):
            left = np.linalg.norm(made.double().numpy() - column.values, axis=1)
            wrong = ~(left <= column.rounding)
            if isinstance(group, Contributions) and wrong.any():
                at = int(wrong.argmax())
                return (
                    f"a contribution of agent {group.owners[at]} is off by {left[at]:.2g} from the "
                    f"sum over its records, where rounding accounts for {column.rounding[at]:.2g}"
                )
        return ""

    def _residual(
        self,
        watched: WatchedRound,
        columns: Sequence[_Column],
        *,
        kind: str,
        names: list[str],
        rows: csr_array,
        value: Tensor,
    ) -> Residual:
        from scipy.sparse import csr_array

        left = value.double().numpy().copy()
        unit = torch.finfo(value.dtype).eps
        rounding = _ROUNDING * unit * np.linalg.norm(left, axis=1)
        resolution = _USUAL * unit * np.linalg.norm(left, axis=1)
        for of in columns:
            part = rows[:, of.start : of.start + len(of.values)]
            if part.nnz:  # a column of another block has another width, and does not occur
                count = part.shape[1]
                left -= part @ of.values[:count]
                rounding += abs(part) @ of.rounding[:count]
                resolution += abs(part) @ of.resolution[:count]
        return Residual(
            round=watched.number,
            kind=kind,
            names=names,
            value=torch.from_numpy(left),
            rounding=torch.from_numpy(rounding),
            resolution=torch.from_numpy(resolution),
            noise=csr_array(widened(rows, watched.trace.columns)[:, watched.noise_columns]),
        )

    def _columns(self, watched: WatchedRound) -> list[_Column]:
        """The round's contributions, known values and messages."""
        calls = iter(watched.recorded.calls)
        sums: dict[int, Tensor] = {}  # by call: blocks are parts of one
        found = []
        for group, made in watched.columns():
            if isinstance(group, NoiseSources):
                continue
            more, value = np.zeros(group.size), made
            # A contribution by the oracle; a gradient is known to the root of a unit only.
            if isinstance(group, Contributions):
                how = next(calls)
                unit = torch.finfo(made.dtype).eps
                if isinstance(how, GradientCall):
                    value = self._part(watched, how, sums, group.block)
                    more = math.sqrt(unit) * _norms(made, value)
                    more += self._lost(watched, how, group.bounds, unit=unit)
                size = unit * _norms(made, value)
            else:
                size = torch.finfo(self._setting.dtype).eps * _norms(value)
            found.append(
                _Column(
                    start=group.start,
                    values=value.double().numpy(),
                    rounding=_ROUNDING * size + more,
                    resolution=_USUAL * size,
                )
            )
        return found

    def _lost(
        self, watched: WatchedRound, call: GradientCall, bounds: np.ndarray, *, unit: float
    ) -> np.ndarray:
        """(rows,) what a contribution may lose that is small because its records cancel."""
        sizes = [
            len(watched.planted[agent].targets if at is None else at)
            for agent, at in enumerate(watched.recorded.batches[call.batch])
        ]
        records = np.array(sizes, dtype=float)[call.holders.numpy()]
        finite = np.where(np.isfinite(bounds), bounds, 0.0)
        kink = _KINK * (records > 0) if unit > torch.finfo(torch.float64).eps else 0.0
        return np.asarray(finite * (_ROUNDING * unit * records + kink))

    def _part(
        self, watched: WatchedRound, call: GradientCall, sums: dict[int, Tensor], block: int
    ) -> Tensor:
        """The contributions of a call in one block, by the oracle."""
        if id(call) not in sums:
            at = watched.recorded.batches[call.batch]
            drawn = [None if of is None else of.unique() for of in at]
            users = [self._setting.whose(agent, of) for agent, of in enumerate(drawn)]
            sums[id(call)] = self._oracle.contributions(
                call, watched.batches(self._setting, call.batch), users=users
            )
        whole = sums[id(call)]
        if self._dimensions is None:
            return whole
        return whole.split(self._dimensions, dim=1)[block]


def _norms(*values: Tensor) -> np.ndarray:
    """(rows,) the largest Euclidean norm of each row."""
    each = [np.linalg.norm(value.double().numpy(), axis=1) for value in values]
    return np.asarray(np.max(each, axis=0))


class Part(NamedTuple):
    """A tensor of parameters, as coordinates of a row."""

    name: str  # of the parameter
    start: int  # its first coordinate
    shape: tuple[int, ...]  # of the tensor

    @property
    def stop(self) -> int:
        """One beyond its last coordinate."""
        return self.start + math.prod(self.shape)


class Recording(Protocol):
    """Rounds of a run that were kept, each as what its messages hold beside gradients."""

    @property
    def mismatch(self) -> str:
        """What a round did otherwise than it is declared to; empty where nothing."""
        ...

    @property
    def residuals(self) -> Sequence[Sequence[Residual]]:
        """Of each round that was kept."""
        ...

    @property
    def source_starts(self) -> tuple[Sequence[int], int]:
        """For each round where its sources of noise begin among those of all, and their number."""
        ...

    @property
    def made_noise(self) -> Sequence[tuple[str, Tensor]]:
        """The noise (n, D) that was recorded as it was made, with where it was made in words."""
        ...

    @property
    def parts(self) -> Mapping[int, Sequence[Part]]:
        """The tensors of parameters that a row consists of, by its width."""
        ...

    @property
    def told(self) -> str:
        """The rounds in words, behind "of"."""
        ...


# Recorded columns: what a watched round had in the columns of its trace.


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Columns from `start` on: their values (columns, D), and how long each is."""

    start: int
    values: Tensor
    sizes: np.ndarray


class RecordedColumns:
    """The values of a round's columns, all as the run recorded them."""

    def __init__(self, watched: WatchedRound) -> None:
        self._groups, units = list[_Group](), [torch.finfo(torch.float64).eps]
        for group, value in watched.columns():
            units.append(torch.finfo(value.dtype).eps)
            sizes = torch.linalg.vector_norm(value, dim=1, dtype=torch.float64).numpy()
            self._groups.append(_Group(start=group.start, values=value, sizes=sizes))
        self.unit = max(units)

    def value(self, rows: csr_array, *, width: int) -> np.ndarray:
        """(R, width) what rows of the trace come to."""
        total = np.zeros((rows.shape[0], width))
        for group in self._groups:
            if rows[:, group.start : group.start + len(group.sizes)].nnz:
                values = group.values.double().numpy()
                total += influence(rows, [group.start], [values], width=width)
        return total

    def rounding(self, rows: csr_array) -> np.ndarray:
        """(R,) the norm that rounding may account for in rows of the trace."""
        return self.rounding_of(
            rows, [group.start for group in self._groups], [group.sizes for group in self._groups]
        )

    def rounding_of(
        self, rows: csr_array, starts: Sequence[int], sizes: Sequence[np.ndarray]
    ) -> np.ndarray:
        """(R,) the same, where groups from `starts` on have columns of the lengths `sizes`."""
        lengths = [size[:, None] for size in sizes]
        return _ROUNDING * self.unit * influence(abs(rows), starts, lengths, width=1)[:, 0]


def influence(
    rows: csr_array, starts: Sequence[int], differences: Sequence[np.ndarray], *, width: int
) -> np.ndarray:
    """(R, width) what rows of the trace change by, where some groups of columns change.

    Rows are over the columns of the round; each group has its first column and a difference
    (columns, D), where D is `width`.
    """
    total = np.zeros((rows.shape[0], width))
    for start, values in zip(starts, differences, strict=True):
        part = rows[:, start : start + len(values)]
        if part.nnz:  # a column of another block has another width, and does not occur
            total += part @ values[: part.shape[1]]
    return total
