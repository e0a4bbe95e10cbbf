"""Tests of every round's noise while a run trains, before anything that holds it is sent.

The noise is looked at as the step gets it, against the deviation that the step was traced with. A
failed test stops the round. Nothing of the figures is kept, written or said, not even rounded: who
knows a message m and |z| of its noise can try data sets s by |m - s|, without noise. That all
tests were passed is no such figure. Their outcome depends on the noise alone, sound noise fails
with probability at most eta over the whole run, and so epsilon and delta of what is released hold
with (1 + e^epsilon) eta added to delta (docs/mathematics.md, "Noise that was tested").

The i-th decision of a run has eta / (i (i + 1)), which adds up to eta, in equal shares for its
tests: sums of squares by row, by part and in all, of the round and of all rounds so far; sums;
zeros; how many values are beyond 1, 3 and 4 deviations; values that are repeated in a row; rows
whose signs are those of an earlier one; and of noise that is mixed its covariance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import InputError
from ..step.values import Value
from . import laws
from .measured import THRESHOLDS, Measured, Reading, measure

__all__ = ["RATE", "NoiseTestFailed", "NoiseTests", "Place", "RoundNoise"]

RATE = 1e-30
"""The false-alarm rate of all tests of a run, unless its figures need a smaller one."""

_SIGNS = 160  # coordinates, from which on equal signs are no chance
_EXACT = 16  # coordinates, from which on equal numbers are none
_MOST_ROWS = 1 << 18  # whose signs are remembered, the newest
_LEAST_EIGENVALUE = 1e-6  # of a mixed noise's covariance that rounding leaves alone


class NoiseTestFailed(Exception):
    """The noise of a run is not what it was accounted for; the round was stopped."""


class Place(NamedTuple):
    """Where the rows of a kind of value are among those of all agents: the first, and how many."""

    first: int
    of: int


class _Noise(NamedTuple):
    """One operation of noise: how its rows are summed up, and what was measured."""

    key: tuple[int, str, int, int]
    sizes: NDArray[np.float64]
    width: int
    mixing: NDArray[np.float64] | None
    measured: Measured


class NoiseTests:
    """The tests of one run, or of what one process does of it.

    Args:
        parts: by number of coordinates the sizes of the parameter tensors.
        rate: eta, of all decisions together.

    Raises:
        ValueError: a rate that is none.
    """

    def __init__(self, *, parts: Mapping[int, Sequence[int]] | None = None, rate: float = RATE):
        if not 0 < rate < 1:
            raise InputError(f"rate={rate} must lie strictly between 0 and 1")
        self._parts = dict(parts or {})
        self._rate, self._decisions = rate, 0
        self._turn = 0
        self._rows: dict[tuple[int, str, int, int], tuple[NDArray[np.float64], int]] = {}
        self._pooled: dict[str, NDArray[np.float64]] = {}
        self._signs: dict[bytes, None] = {}
        self._spectra: dict[Any, tuple[NDArray[np.float64], ...]] = {}
        self.rounds = self.numbers = 0

    def of_round(self, number: int, places: Mapping[str, Place]) -> RoundNoise:
        """Who looks at the noise of one round.

        Args:
            number: of the round.
            places: by kind of value where the rows that are here are among those of all agents.
        """
        return RoundNoise(self, number, places)

    def decide(self, number: int, noted: Sequence[_Noise]) -> None:
        """Test what was noted.

        Raises:
            NoiseTestFailed: it is not the noise of the run.
        """
        readings = _read([one.measured for one in noted])
        found: list[tuple[str, NDArray[np.float64]]] = []
        for one, reading in zip(noted, readings, strict=True):
            found += self._of_operation(one, reading)
        found += self._of_all()
        self._decisions += 1
        share = self._rate / (self._decisions * (self._decisions + 1))
        each = share / max(1, sum(p.size for _, p in found))
        failed = [name for name, p in found if p.size and not p.min() >= each]
        if failed:
            raise NoiseTestFailed(
                f"round {number} was stopped: its noise is not what the run is accounted for, by "
                f"its {failed[0]} (a false alarm has probability {self._rate:.1g} in the whole "
                "run); nothing of the round was kept, and it was announced, so it counts as "
                "released: find what changed the noise, and start a new run in another folder"
            )

    def _of_operation(
        self, one: _Noise, reading: Reading
    ) -> Iterator[tuple[str, NDArray[np.float64]]]:
        count, width = len(reading.sums), one.width
        mixed = one.mixing is not None
        rows = reading.squares.sum(axis=1)
        yield "sums of squares of rows", laws.squares(rows, width)
        yield "sums of squares of parts", laws.squares(reading.squares, one.sizes)
        yield "sums of rows", laws.beyond(np.abs(reading.sums) / np.sqrt(width))
        yield "zeros in a row", laws.at_least(reading.zeros, width, laws.ATOM)
        # The same of all rounds so far.
        so_far, rounds = self._rows.get(one.key, (np.zeros_like(reading.squares), 0))
        so_far, rounds = so_far + reading.squares, rounds + 1
        self._rows[one.key] = so_far, rounds
        if rounds > 1:
            yield "sums of squares of rows", laws.squares(so_far.sum(axis=1), rounds * width)
            yield "sums of squares of parts", laws.squares(so_far, rounds * one.sizes)
        if mixed:
            yield "covariance of rows", self._whitened(one, reading.sample)
        else:
            yield (
                "sums of squares of a part",
                laws.squares(so_far.sum(axis=0), rounds * count * one.sizes),
            )
            self._add("squares", rows.sum(), count * width)
            self._add("sums", reading.sums.sum(), count * width)
        if not mixed or count == 1:
            yield "zeros", laws.at_least(reading.zeros.sum(), count * width, laws.ATOM)
            self._add("zeros", reading.zeros.sum(), count * width)
        self._add("beyond", *reading.beyond, reading.shaped)
        yield "values beyond its deviation", _counts(reading.beyond, reading.shaped)
        if reading.sorted >= _EXACT:
            atom = min(1.0, reading.sorted * laws.ATOM / 2)
            yield (
                "repeated values",
                np.atleast_1d(laws.at_least(reading.repeated, reading.sorted, atom)),
            )
        yield "rows that were there before", np.array([float(self._is_new(reading, mixed=mixed))])

    def _whitened(self, one: _Noise, sample: NDArray[np.float64]) -> NDArray[np.float64]:
        """P of the independent directions of mixed noise, and of what must cancel.

        Args:
            one: of R rows; its mixing (R, sources) has rows of norm 1.
            sample: (R, K) values.
        """
        mixing, width = one.mixing, sample.shape[1]
        assert mixing is not None  # noqa: S101 - for the type checker
        known = self._spectra.get(one.key)
        if known is None or not np.array_equal(known[0], mixing):
            known = self._spectra[one.key] = mixing, *np.linalg.eigh(mixing @ mixing.T)
        _, values, vectors = known
        least = _LEAST_EIGENVALUE * max(1.0, float(values.max()))
        held = values > least
        sums = np.square(vectors.T @ sample).sum(axis=1)  # (R,)
        unit = sums[held] / values[held]
        # What has next to no variance by the declaration must be next to nothing.
        nothing = np.where(sums[~held] > 400 * least * width, 0.0, 1.0)
        in_all = np.atleast_1d(laws.squares(unit.sum(), width * held.sum()))
        return np.concatenate([laws.squares(unit, width), in_all, nothing])

    def _add(self, name: str, *found: float) -> None:
        self._pooled[name] = self._pooled.get(name, np.zeros(len(found))) + np.array(found)

    def _of_all(self) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Everything so far as one."""
        if (held := self._pooled.get("squares")) is not None:
            yield "sum of squares", np.atleast_1d(laws.squares(*held))
        if (held := self._pooled.get("sums")) is not None:
            yield "sum", np.atleast_1d(laws.beyond(abs(held[0]) / np.sqrt(held[1])))
        if (held := self._pooled.get("zeros")) is not None:
            yield "zeros", np.atleast_1d(laws.at_least(held[0], held[1], laws.ATOM))
        if (held := self._pooled.get("beyond")) is not None:
            yield "values beyond its deviation", _counts(held[:-1], held[-1])

    def _is_new(self, reading: Reading, *, mixed: bool) -> bool:
        """Whether no row has the signs of an earlier one, or of one beside it that is not mixed.

        Signs of 160 coordinates or more are equal, all of them or none, with probability 2^-159;
        of fewer coordinates, 16 at the least, the numbers are compared in place of their signs.
        """
        width = reading.sample.shape[1]
        if width < _EXACT:
            return True
        if width >= _SIGNS:
            signs = reading.sample > 0
            keys = [row.tobytes() for row in np.packbits(signs ^ signs[:, :1], axis=1)]
        else:
            keys = [row.tobytes() for row in np.abs(reading.sample)]
        new = not any(key in self._signs for key in keys) and (mixed or len(set(keys)) == len(keys))
        self._signs.update(dict.fromkeys(keys))
        while len(self._signs) > _MOST_ROWS:
            del self._signs[next(iter(self._signs))]
        return new

    def noise_of(
        self,
        place: Place,
        value: Value,
        *,
        call: int,
        std: float,
        factor: Tensor | None,
    ) -> _Noise | None:
        """Measure what an operation gave; None where there is nothing to test."""
        rows: Tensor = value.rows.detach()
        count, width = rows.shape
        mixing, known = None, place.of if std > 0 else 0
        scales = np.full((count, 1), float(std))
        if factor is not None:
            table = factor.detach().cpu().double().numpy() * std
            norms = np.linalg.norm(table, axis=1)
            known = int((norms > 0).sum())
            mixing = table[place.first : place.first + count]
            scales = norms[place.first : place.first + count, None]
        kept = np.flatnonzero(scales[:, 0])
        self.numbers += known * width
        if not len(kept) or not width:
            return None
        if len(kept) < count:
            rows, scales = rows[torch.from_numpy(kept).to(rows.device)], scales[kept]
        self._turn += 1
        parts = self._parts.get(width, (width,))
        return _Noise(
            key=(call, type(value).__name__, len(kept), width),
            sizes=np.asarray(parts, dtype=float),
            width=width,
            mixing=None if mixing is None else mixing[kept] / scales,
            measured=measure(
                rows,
                torch.from_numpy(scales),
                parts=parts,
                turn=self._turn,
                mixed=mixing is not None,
            ),
        )


class RoundNoise:
    """Looks at the noise of one round; a `NoiseWatch`."""

    def __init__(self, tests: NoiseTests, number: int, places: Mapping[str, Place]) -> None:
        self._tests, self._number, self._places = tests, number, places
        self._noted: list[_Noise] = []
        self._calls = 0

    def note(self, value: Value, *, std: float, factor: Tensor | None) -> None:
        """See `NoiseWatch.note`."""
        place = self._places[type(value).__name__]
        noted = self._tests.noise_of(place, value, call=self._calls, std=std, factor=factor)
        self._calls += 1
        if noted is not None:
            self._noted.append(noted)

    def settle(self, *, at_end: bool) -> None:
        """See `NoiseWatch.settle`; what is on a device waits for the end of the round.

        Raises:
            NoiseTestFailed: the noise is not that of the run.
        """
        if self._noted and (at_end or all(_is_here(one.measured) for one in self._noted)):
            self._tests.decide(self._number, self._noted)
            self._noted = []
        if at_end:
            self._tests.rounds += 1


def _is_here(measured: Measured) -> bool:
    """Whether reading it waits for no device."""
    return measured.values.device.type == "cpu"


def _read(measured: Sequence[Measured]) -> list[Reading]:
    """All of them by one copy to the host."""
    values = torch.cat([one.values for one in measured]).cpu().numpy()
    ends = np.cumsum([len(one.values) for one in measured])[:-1]
    return [one.taken(part) for one, part in zip(measured, np.split(values, ends), strict=True)]


def _counts(beyond: NDArray[np.float64], of: float) -> NDArray[np.float64]:
    """Two-sided p of how many values are beyond each threshold."""
    share = laws.beyond(THRESHOLDS)
    tails = laws.at_least(beyond, of, share), laws.at_most(beyond, of, share)
    return np.minimum(1.0, 2 * np.minimum(*tails))
