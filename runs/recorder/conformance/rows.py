"""Rows: whether what was summed for a record is what the oracle makes of this record alone.

A bound on what one record adds holds only where each summand is made of one record. Batches that
are counted do not show it: a collation that mixes records, a loss over two targets or a layer that
looks at the whole batch leave their number as it is. So each row

    of the oracle       is asked for again among half of its batch, and must come out the same
    of the training     is held against the oracle's, by what was kept of it; where the recorder
                        drew the noise, the sum is known, and messages compare it

What is kept of a clipped row r is short: bucket b holds the sum of +-r_d over d = b mod 64, so that
its length is |r| to a fifth. A row may be off by rounding, and at a kink of its network by as much
as the oracle's own row moves when the last bits of its point do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....attacks.watching.result import Check, Verdict
from ....privacy.errors import InputError, InputTypeError
from ....privacy.guarantee import Unit
from .left_over import Asked, LeftOver
from .oracle import Oracle
from .sketches import sketch

_OFF = 1e-3  # of the clip norm, more than rounding in float32 moves a row
_SEEN = 2 * _OFF  # what a sketch of 64 numbers shows at least
_REPEATS, _FEW = 8, 3
_KINK = 4.0  # times what the oracle's row moves by
_LAST_BITS = 16.0  # units of rounding by which a point is moved to find a kink
_COARSE = 2.0**-7  # of bfloat16
_DOUBTFUL = 0.03  # of the clip norm, what bfloat16 and TF32 may make of any row
_RANDOM = "is another each time"
_MOST = 64  # rows that are looked at closely


class _Row(NamedTuple):
    """A row that differs from that of its record alone."""

    asked: Asked
    place: int
    apart: float


def kept_rows(rows: Any, batch: Tensor, clip: float) -> Tensor:
    """(B, 64) what is kept of the gradients of a batch, in the order of ascending positions.

    Args:
        rows: (B, ...) gradients of its records before clipping, or a list of tensors (B, ...) that
            are laid end to end, in the order of the batch.
        batch: (B,) the positions as the caller has them.
        clip: the clip norm.

    Raises:
        TypeError: no tensors or arrays of floats.
        ValueError: another number of rows.
    """
    every = rows if isinstance(rows, list) else [rows]
    parts = [torch.as_tensor(one) for one in every if isinstance(one, Tensor | np.ndarray)]
    if len(parts) < len(every) or not all(one.is_floating_point() and one.ndim for one in parts):
        raise InputTypeError(
            "rows must be gradients (B, D), one for each record of the batch, as a tensor, an "
            "array, or a list of tensors (B, ...) that are laid end to end"
        )
    if wrong := [len(one) for one in parts if len(one) != len(batch)]:
        raise InputError(
            f"rows has {wrong[0]} gradients, and the batch {len(batch)} records; give one for each"
        )
    return sketch(parts, clip)[torch.argsort(batch)]


def check_rows(of: LeftOver, oracle: Oracle) -> Check:
    """Each row is that of its record alone, for the oracle and in the training.

    Args:
        of: what is left of the releases.
        oracle: of gradients.
    """
    name, header = "rows", of.rounds.log.header
    every = [one for one in of.asked if len(one.positions)]
    if header.unit is Unit.CLIENT or not every:
        words = "no release of these rounds is made of a batch of records"
        return Check.not_run(name, words, applies=False)
    before = _generators()
    off = [row for one in every for row in _among_half(one, oracle)]
    drawn = _generators() != before
    if off:
        why = _why(off, oracle, drawn=drawn, rows=_count(every))
        return why or _failed(
            off, _count(every), "the oracle gives another row where other records are with it; "
            "let it take each record by itself"
        )  # fmt: skip
    kept = [one for one in every if one.kept is not None]
    unkept = [one for one in every if one.kept is None and not one.is_drawn]
    if unkept:
        return Check.not_run(
            name,
            f"what {unkept[0].name} added for each record was not kept, so that no one compared it "
            "with the record: give rows=, or let the recorder draw the noise",
        )
    off, shorter = [], next((one for one in kept if _rows_of(one) != len(one.positions)), None)
    if shorter is not None:
        raise InputError(f"{shorter.name} keeps another number of rows than its batch has records")
    for one in kept:
        off += _differing(one, one.kept)
    if off and not _all_move(off, oracle, bits=_LAST_BITS):
        why = _why(off, oracle, drawn=drawn, rows=_count(kept))
        return why or _failed(
            off, _count(kept), "collate_fn, the training loop, the loss or a layer mixes records, "
            "or the data are others now"
        )  # fmt: skip
    exact = [one for one in every if one.kept is None]
    least = max([_SEEN if kept else 0.0, *(one.rounding / _bound(one) for one in exact)])
    words = f"{_count(every)} rows of {len(every)} batches are those of their records alone"
    if off:
        words += f", {len(off)} of them at a kink of the network"
    words += (
        f"; a part of another record longer than {least:.2g} of the clip norm would have shown"
        + (" in a row" if kept else " in a sum")
    )
    return Check.exact(name, f"{words}.", tests=_count(every))


def _failed(off: Sequence[_Row], rows: int, why: str) -> Check:
    worst = max(off, key=lambda row: row.apart)
    words = (
        f"{len(off)} of {rows} rows are not those of their records alone, first that of record "
        f"{int(worst.asked.positions[worst.place])} in {worst.asked.name}, which is off by "
        f"{worst.apart:.2g} of the clip norm: {why}."
    )
    return Check.exact("rows", words, tests=rows, passed=False)


def _why(off: Sequence[_Row], oracle: Oracle, *, drawn: bool, rows: int) -> Check | None:
    """Why rows that differ say nothing of the training; None where they do."""
    times = _REPEATS if drawn else _FEW
    looked = sorted(off, key=lambda row: -row.apart)[:times]
    for row in looked:
        again = [_alone(row, oracle) for _ in range(times)]
        if any(float((one - again[0]).norm()) > _OFF * _bound(row.asked) for one in again):
            return _random(row)
    if drawn and 2 * len(off) < rows:  # an augmentation that is seldom
        return _random(looked[0])
    far = [row for row in off if row.apart > _DOUBTFUL]
    if _all_move(far, oracle, relative=_COARSE):
        return Check.not_run(
            "rows",
            f"{len(off)} of {rows} rows are off by up to {looked[0].apart:.2g} of the clip norm, "
            "which numbers of few bits may make as well as a part of other records; keep rounds "
            "that are trained in float32, without autocast and TF32",
        )
    return None


def _random(row: _Row) -> Check:
    at = int(row.asked.positions[row.place])
    return Check.not_run(
        "rows",
        f"the gradient of record {at} {_RANDOM}, as with random augmentation or dropout, so that "
        "nothing that was trained on can be compared with it",
    )


def is_random(found: Check) -> bool:
    """Whether rows were not compared because the oracle's are others each time."""
    return found.verdict is Verdict.NOT_RUN and _RANDOM in found.words


def _among_half(one: Asked, oracle: Oracle) -> Iterator[_Row]:
    """Rows that come out another way among half of their batch."""
    count = len(one.positions)
    if count < 2:
        return
    order = np.random.default_rng(count).permutation(count)
    again = torch.zeros_like(one.rows)
    for part in (np.sort(order[: count // 2]), np.sort(order[count // 2 :])):
        again[part] = oracle.clipped_rows(
            one.owner, one.point, one.positions[part], clip=one.clip, width=one.width
        )
    yield from _differing(one, again)


def _differing(one: Asked, other: Tensor | None) -> list[_Row]:
    """Rows of a batch that are off, by the best assignment where their order is another."""
    if other is None:
        return []
    apart = (other - one.rows).norm(dim=1)
    off = apart > _OFF * _bound(one)
    if int(off.sum()) > 1:  # a collation may sort the records of its batch
        from scipy.optimize import linear_sum_assignment

        at = off.nonzero()[:, 0]
        distances = torch.cdist(one.rows[at], other[at])
        mine, theirs = linear_sum_assignment(distances.numpy())
        apart[at[mine]] = distances[mine, theirs]
    return [
        _Row(one, place, float(apart[place]) / _bound(one))
        for place in (apart > _OFF * _bound(one)).nonzero()[:, 0].tolist()
    ]


def _all_move(
    off: Sequence[_Row], oracle: Oracle, *, bits: float = 0.0, relative: float = 0.0
) -> bool:
    """Whether the oracle's own rows move as far when their points do, in units or relatively."""
    for row in sorted(off, key=lambda row: -row.apart)[:_MOST]:
        by = relative or bits * torch.finfo(row.asked.point.dtype).eps
        if _moves(row, oracle, by) < row.apart:
            return False
    return len(off) <= _MOST or not bits


def _moves(row: _Row, oracle: Oracle, relative: float) -> float:
    """By how much of the clip norm the oracle's row may move with the last bits of its point."""
    chance = torch.Generator().manual_seed(row.place)
    point, here = row.asked.point, _alone(row, oracle)
    far = 0.0
    for _ in range(_REPEATS):
        signs = torch.randn(point.shape, generator=chance, dtype=torch.float64)
        moved = _alone(row, oracle, point=(point.double() * (1 + relative * signs)).to(point.dtype))
        far = max(far, float((moved - here).norm()))
    return _KINK * far / _bound(row.asked)


def _alone(row: _Row, oracle: Oracle, *, point: Tensor | None = None) -> Tensor:
    one = row.asked
    return oracle.clipped_rows(
        one.owner,
        one.point if point is None else point,
        one.positions[row.place : row.place + 1],
        clip=one.clip,
        width=one.width,
    )[0]


def _bound(one: Asked) -> float:
    return one.clip if math.isfinite(one.clip) else max(float(one.rows.norm(dim=1).max()), 1e-300)


def _rows_of(one: Asked) -> int:
    return 0 if one.kept is None else len(one.kept)


def _count(every: Sequence[Asked]) -> int:
    return sum(len(one.positions) for one in every)


def _generators() -> tuple[object, ...]:
    """The states of the generators that data sets and collations draw from."""
    numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 the one that others use
    return bytes(torch.get_rng_state().numpy()), str(numpy), random.getstate()
