"""Residual: what a message holds beside its gradients and what is known.

Every message and every end state is, by the trace of its round,

    value = A G + K known + M earlier + B z

    A  over contributions    K  over known values    M  over earlier messages    B  over noise

and its residual is what is left without the noise, when every other part is put in by other means:

    residual = value - A G - K known - M earlier

G by the oracle, at the models and the batches that the run recorded; earlier messages as they
really crossed, so that a residual holds only the noise that this row adds itself, with the row of
B that is declared for it. Values of `round.bounded`, which no oracle can form, are as recorded, and
so is what is known: the state that a round begins with, and results of `round.postprocess`.

In float32 a ReLU whose input is zero up to rounding may be open for the layouts and closed for the
oracle, and then one record's gradient differs by more than rounding: a tenth of the clip bound is
allowed for it. Run it in float64 where every difference shall count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...training.engine.engine import Setting
from ...training.engine.recording import GradientCall
from ...training.tracing.linear_forms import Contributions, NoiseSources
from ...training.tracing.sparse_rows import widened
from .reference_sums import Oracle
from .watched_round import WatchedRound

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_ROUNDING = 64  # units of rounding that adding up a row may lose
_USUAL = 4  # and that it usually does
_KINK = 0.1  # of the clip bound: what one record's gradient may jump by in float32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Residual:
    """The residuals of one message or one field of the state, a row for each sender or agent.

    Attributes:
        round: the number of the round.
        kind: "message cross-gradient", "state x"; numbered where a round sends several.
        names: (R,) each row in words.
        value: (R, D) float64, the residuals.
        rounding: (R,) Euclidean norm that rounding may account for.
        resolution: (R,) Euclidean norm that it usually has.
        noise: (R, N) the declared rows of B, over the noise sources of the round.
    """

    round: int
    kind: str
    names: list[str]
    value: Tensor
    rounding: Tensor
    resolution: Tensor
    noise: csr_array

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
    """Residuals of the rounds of one setting.

    Args:
        setting: graph, model and data of the run.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._oracle = Oracle(setting.task or setting.model)
        self._dimensions = setting.task.dimensions if setting.task else None

    def of_round(self, watched: WatchedRound) -> list[Residual]:
        """Residuals of a round's messages, in the order of sending, and then of its end state."""
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
        for field, rows in watched.trace.record.end_state.items():
            found.append(
                self._residual(
                    watched,
                    columns,
                    kind=f"state {field}",
                    names=[f"state {field} of agent {i}" for i in range(rows.shape[0])],
                    rows=rows,
                    value=watched.after[field],
                )
            )
        return found

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
