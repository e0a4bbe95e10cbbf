"""Tests of every round's noise while a run trains, before anything that holds it is sent.

The noise is looked at as the step gets it, against the deviation that the step was traced with. A
failed test stops the round. Nothing of the figures is kept, written or said, not even rounded: who
knows a message m and |z| of its noise can try data sets s by |m - s|, without noise. That all
tests were passed is no such figure. Their outcome depends on the noise alone, sound noise fails
with probability at most eta over the whole run, and so epsilon and delta of what is released hold
with (1 + e^epsilon) eta added to delta (docs/mathematics.md, "Noise that was tested").

The i-th decision of a run has eta / (i (i + 1)), which adds up to eta, in equal shares for its
tests. Sums of squares by row, by part and in all, of the round and of all rounds so far, and rows
whose signs are those of an earlier one, and of noise that is mixed its covariance, are tested in
every round. A closer look is taken in turn (`measured`): sums; zeros; how many values are beyond 1,
3 and 4 deviations; values that are repeated in a row; and the sum of squares of each coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...privacy.errors import within
from ..step.values import Value
from . import laws
from .measured import THRESHOLDS, Closer, Coordinates, Measured, Reading, measure

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
    measured: Reading | Measured


class _Found:
    """What a decision rests on: probabilities, those of sums of squares computed at once."""

    def __init__(self) -> None:
        self._names: list[tuple[str, int]] = []
        self._sums: list[NDArray[np.float64]] = []
        self._counts: list[NDArray[np.float64]] = []
        self._rest: list[tuple[str, NDArray[np.float64]]] = []

    def squares(self, names: Sequence[tuple[str, int]], sums: Any, counts: Any) -> None:
        """Sums of squares, of how many numbers each is, and what one after the other is called."""
        self._names += names
        self._sums.append(sums)
        self._counts.append(counts)

    def add(self, name: str, p: NDArray[np.float64]) -> None:
        """Probabilities of a test."""
        self._rest.append((name, p.reshape(-1)))

    def failed(self, share: float) -> str | None:
        """The first test that fails where all of them share a probability."""
        p = [values for _, values in self._rest]
        if self._sums:
            squares = laws.squares(np.concatenate(self._sums), np.concatenate(self._counts))
            p.insert(0, squares)
        together = np.concatenate(p)
        sound = together >= share / len(together)
        if sound.all():
            return None
        names = [*self._names, *((name, values.size) for name, values in self._rest)]
        ends = np.cumsum([length for _, length in names])
        at = int(np.searchsorted(ends, np.flatnonzero(~sound)[0], side="right"))
        return names[at][0]


class _Kept(NamedTuple):
    """Of one kind of operation: its sums of squares of all rounds, and how many."""

    names: list[tuple[str, int]]
    counts: NDArray[np.float64]
    sums: NDArray[np.float64]
    rounds: int


class NoiseTests:
    """The tests of one run, or of what one process does of it.

    Args:
        parts: by number of coordinates the sizes of the parameter tensors.
        rate: eta, of all decisions together.

    Raises:
        ValueError: a rate that is none.
    """

    def __init__(self, *, parts: Mapping[int, Sequence[int]] | None = None, rate: float = RATE):
        within("rate", rate, "(0, 1)")
        self._parts = dict(parts or {})
        self._rate, self._decisions = rate, 0
        self._turns: dict[tuple[int, str, int, int], int] = {}
        self._kept: dict[tuple[int, str, int, int], _Kept] = {}
        self._coordinates: dict[int, Coordinates] = {}
        self._pooled: dict[str, NDArray[np.float64]] = {}
        self._signs: dict[bytes, None] = {}
        self._spectra: dict[Any, tuple[NDArray[np.float64], ...]] = {}
        self.rounds = self.numbers = 0

    def of_round(
        self,
        number: int,
        places: Mapping[str, Place],
        *,
        active: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> RoundNoise:
        """Who looks at the noise of one round.

        Args:
            places: by kind of value where the rows that are here are among those of all agents.
            active: by kind of value which of the rows of all agents have noise at all, being of
                agents that take part; None where every agent does.
        """
        return RoundNoise(self, number, places, active)

    def decide(self, number: int, noted: Sequence[_Noise]) -> None:
        """Test what was noted.

        Raises:
            NoiseTestFailed: it is not the noise of the run.
        """
        readings, found = _read([one.measured for one in noted]), _Found()
        for one, reading in zip(noted, readings, strict=True):
            self._of_operation(one, reading, found)
        if (held := self._pooled.get("squares")) is not None:
            found.squares([("sum of squares", 1)], held[:1], held[1:])
        self._decisions += 1
        failed = found.failed(self._rate / (self._decisions * (self._decisions + 1)))
        if failed is not None:
            raise NoiseTestFailed(
                f"round {number} was stopped: its noise is not what the run is accounted for, by "
                f"its {failed} (a false alarm has probability {self._rate:.1g} in the whole "
                "run); nothing of the round was kept, and it was announced, so it counts as "
                "released: find what changed the noise, and start a new run in another folder"
            )

    def _of_operation(self, one: _Noise, reading: Reading, found: _Found) -> None:
        count, width, mixed = len(reading.squares), one.width, one.mixing is not None
        rows = reading.squares.sum(axis=1)
        sums = [rows, reading.squares.ravel()]
        if mixed:
            found.add("covariance of rows", self._whitened(one, reading.sample))
        else:
            sums.append(reading.squares.sum(axis=0))
            self._add("squares", rows.sum(), count * width)
        self._squares(one, np.concatenate(sums), found)
        if reading.closer is not None:
            self._of_look(reading.closer, width, found, mixed=mixed)
        new = float(self._is_new(reading, mixed=mixed))
        found.add("rows that were there before", np.array([new]))

    def _of_look(self, closer: Closer, width: int, found: _Found, *, mixed: bool) -> None:
        """What a closer look found, and everything so far of its kind as one."""
        block = len(closer.sums)
        found.add("sums of squares of coordinates", _coordinates(closer, width))
        found.add("sums of rows", laws.normal(closer.sums / math.sqrt(width)))
        found.add("zeros in a row", _zeros(closer.zeros, width))
        if not mixed:
            held = self._add("sums", closer.sums.sum(), block * width)
            found.add("sum", laws.normal(held[0] / math.sqrt(held[1])))
        if not mixed or block == 1:
            held = self._add("zeros", closer.zeros.sum(), block * width)
            found.add("zeros", _zeros(closer.zeros.sum(), block * width))
            found.add("zeros", _zeros(held[0], held[1]))
        held = self._add("beyond", *closer.beyond, closer.shaped)
        found.add("values beyond its deviation", laws.counts(closer.beyond, closer.shaped, _BEYOND))
        found.add("values beyond its deviation", laws.counts(held[:-1], held[-1], _BEYOND))
        if closer.sorted >= _EXACT:
            atom = min(1.0, closer.sorted * laws.ATOM / 2)
            found.add("repeated values", _repeated(closer.repeated, closer.sorted, atom))

    def _squares(self, one: _Noise, sums: NDArray[np.float64], found: _Found) -> None:
        """Sums of squares of rows, of their parts, and of parts over rows that are independent."""
        kept = self._kept.get(one.key)
        if kept is None:
            count, parts = one.key[2], len(one.sizes)
            names = [
                ("sums of squares of rows", count),
                ("sums of squares of parts", count * parts),
            ]
            counts = [np.full(count, float(one.width)), np.tile(one.sizes, count)]
            if one.mixing is None:
                names.append(("sums of squares of a part", parts))
                counts.append(count * one.sizes)
            kept = _Kept(names, np.concatenate(counts), np.zeros(len(sums)), 0)
        found.squares(kept.names, sums, kept.counts)
        kept = self._kept[one.key] = kept._replace(sums=kept.sums + sums, rounds=kept.rounds + 1)
        if kept.rounds > 1:
            found.squares(kept.names, kept.sums, kept.rounds * kept.counts)

    def _whitened(self, one: _Noise, sample: NDArray[np.floating]) -> NDArray[np.float64]:
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

    def _add(self, name: str, *found: float) -> NDArray[np.float64]:
        """Everything so far of a kind as one."""
        new = self._pooled[name] = self._pooled.get(name, 0.0) + np.array(found, dtype=float)
        return new

    def _is_new(self, reading: Reading, *, mixed: bool) -> bool:
        """Whether no row has the signs of an earlier one, or of one beside it that is not mixed.

        Signs of 160 coordinates or more are equal, all of them or none, with probability 2^-159;
        of fewer coordinates, 16 at the least, the numbers are compared in place of their signs.
        """
        count, width = reading.sample.shape
        if width < _EXACT:
            return True
        if width >= _SIGNS:
            signs = reading.sample > 0
            held = np.packbits(signs ^ signs[:, :1], axis=1)
        else:
            held = np.abs(reading.sample)
        every, length = held.tobytes(), held.nbytes // count
        keys = dict.fromkeys(every[at : at + length] for at in range(0, len(every), length))
        new = self._signs.keys().isdisjoint(keys) and (mixed or len(keys) == count)
        self._signs.update(keys)
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
        active: NDArray[np.bool_] | None = None,
    ) -> _Noise | None:
        """Measure what an operation gave; None where there is nothing to test."""
        # The std of each row: one for all, by mixing, and 0 where an agent is absent.
        rows: Tensor = value.rows.detach()
        count, width = rows.shape
        here = slice(place.first, place.first + count)
        mixing, norms = None, np.full(place.of, float(std))
        if factor is not None:
            table = factor.detach().cpu().double().numpy() * std
            norms, mixing = np.linalg.norm(table, axis=1), table[here]
        if active is not None:
            norms = np.where(active, norms, 0.0)
        known, scales = int((norms > 0).sum()), norms[here, None]
        self.numbers += known * width
        if not scales.all():  # what has no noise is not tested
            kept = np.flatnonzero(scales[:, 0])
            rows, scales = rows[torch.from_numpy(kept).to(rows.device)], scales[kept]
            mixing = None if mixing is None else mixing[kept]
        if not len(rows) or not width:
            return None
        # Noise of one call and of one shape is one series.
        key = (call, type(value).__name__, len(rows), width)
        turn = self._turns[key] = self._turns.get(key, 0) + 1
        parts = self._parts.get(width, (width,))
        return _Noise(
            key=key,
            sizes=np.asarray(parts, dtype=float),
            width=width,
            mixing=None if mixing is None else mixing / scales,
            measured=measure(
                rows,
                scales,
                parts=parts,
                coordinates=self._coordinates.setdefault(width, Coordinates()),
                turn=turn,
                mixed=mixing is not None,
            ),
        )


class RoundNoise:
    """Looks at the noise of one round; a `NoiseWatch`."""

    def __init__(
        self,
        tests: NoiseTests,
        number: int,
        places: Mapping[str, Place],
        active: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> None:
        self._tests, self._number, self._places = tests, number, places
        self._active = active or {}
        self._noted: list[_Noise] = []
        self._calls = 0

    def note(self, value: Value, *, std: float, factor: Tensor | None) -> None:
        """See `NoiseWatch.note`."""
        kind = type(value).__name__
        noted = self._tests.noise_of(
            self._places[kind],
            value,
            call=self._calls,
            std=std,
            factor=factor,
            active=self._active.get(kind),
        )
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


def _is_here(measured: Reading | Measured) -> bool:
    """Whether reading it waits for no device."""
    return isinstance(measured, Reading)


def _read(measured: Sequence[Reading | Measured]) -> list[Reading]:
    """All of them by one copy to the host."""
    there = [one for one in measured if isinstance(one, Measured)]
    parts: Iterator[NDArray[np.float64]] = iter(())
    if there:
        values = torch.cat([one.values for one in there]).cpu().numpy()
        parts = iter(np.split(values, np.cumsum([len(one.values) for one in there])[:-1]))
    return [one.taken(next(parts)) if isinstance(one, Measured) else one for one in measured]


_BEYOND = np.array([math.erfc(threshold / math.sqrt(2)) for threshold in THRESHOLDS])


def _zeros(found: NDArray[np.float64], of: float) -> NDArray[np.float64]:
    """P of at least so many zeros, 1 where they are no more than twice the most expected and 3."""
    if (found <= 3 + 2 * of * laws.ATOM).all():
        return np.ones(found.shape)
    return laws.at_least(found, of, laws.ATOM)


def _repeated(found: float, of: int, atom: float) -> NDArray[np.float64]:
    """P of at least so many values that are repeated in a row."""
    return laws.at_least(found, of, atom) if found else np.ones(1)


def _coordinates(closer: Closer, width: int) -> NDArray[np.float64]:
    """P of the extremes of so many coordinates, each of which counts as a test."""
    return np.minimum(1.0, width * laws.squares(closer.extremes, float(closer.rows)))
