"""Replay any training on neighbouring data, with the same randomness: what moved, and how far?

The guarantee composes adaptively: given all that left before, what leaves next may move by the
record's own, clipped part alone, and nothing else may move at all. So each thing that leaves is put
back to what it was in a first run, after it has been compared:

    what leaves                                    is compared
    `released(value)`, or a recorder's `release`   by its length, with 2 clip scale
    gradients that a torch optimiser is given      the same, where nothing leaves by the two above
    settings of an optimiser, lines of a log,      exactly
    what is printed or logged, and its order
    what the training returns                      exactly, as everything before was the same

Where nothing is put back, numbers that move together with others may be made of them alone; that is
then reported, and does not pass.
"""

from __future__ import annotations

import contextlib
import copy
import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import bdtrc, gammaincinv
from torch import Tensor
from torch.utils.data import TensorDataset

from ..attacks.checks.result import TOTAL_FALSE_ALARM, Check, Finding
from ..attacks.checks.secrecy import HoldingModules, frozen
from ..attacks.foreign.own_training import check_dataset
from ..privacy.errors import InputError, InputTypeError, within
from ..training.noise_tests.laws import at_least, smaller
from .tape import Tape, Values, differing, differs, leaves, moved_first, ulp

Scale = float | Callable[[int], float]
_ROUNDING = 0.01  # of a bound, by which a sum of floats may be off
_LOST = 16.0  # units in the last place that a value may be off
_UNSEEN = 5e-4  # chance of equal numbers where none differ, which would tell their spread
_GRID, _ON_GRID = 2.0**-14, 2.0**-7  # of noise of 16 bits; of float32 the share that lies on it
_PAIRED = 1000  # numbers of the noise of which every two are compared
_DOES = f"lie on a grid of {_GRID:.2g}", "come twice"
_FINE = 2.0**-22  # of a deviation, by which two numbers of float32 are often as near
_EXTREME = 4  # records of which one is made infinite, and has the largest floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """What replays of a training found.

    Attributes:
        checks: "public", "releases", "rate", "noise" and "secrecy".
        trainings: how many were run.
        remarks: what else was seen, and fails nothing.
    """

    checks: tuple[Check, ...]
    trainings: int
    remarks: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check that applies ran and passed."""
        return all(one.passed for one in self.checks if one.applies)

    def __getitem__(self, name: str) -> Check:
        """A check by its name."""
        return next(one for one in self.checks if one.name == name)

    def __repr__(self) -> str:
        """A line for each check, and the remarks."""
        lines = [f"{one.name:9} {one.verdict}: {one.words}" for one in self.checks]
        return "\n".join([f"{self.trainings} trainings", *lines, *self.remarks])


def replay(
    train: Callable[[Any], Any],
    data: Any,
    *,
    clip: float | None = None,
    noise: float | None = None,
    scale: Scale = 1.0,
    rate: float | None = None,
    records: int = 16,
    seed: int = 0,
) -> Replayed:
    """Run a training on neighbouring data with the same randomness, and name what moved.

    One record is replaced by another, and by itself scaled up, of either sign, up to the largest
    float and infinite. Randomness of Python, NumPy, torch, the clock and the system is the same;
    then trainings get other entropy, and must share no noise. It takes five trainings or so
    for each record.

    Args:
        train: data -> anything; numbers in what it returns must not move.
        data: a map-style data set or list of records, which `train` gets as a list; or an array, a
            tensor, a `TensorDataset`, or a tuple or dict of them with a row for each record, such
            as (X, y).
        clip: bound on the L2 norm of what one record adds to a sum, with all its items.
        noise: deviation of the noise on each coordinate of that sum.
        scale: what multiplies sum and noise in a release, or a function of its number from 1.
        rate: probability that a record is in a release.
        records: how many are replaced.
        seed: of the same randomness, and of the records.

    Raises:
        ValueError: a training that cannot be repeated, that raises, or a value out of range.
        TypeError: train is no function, or data of another kind.

    >>> from overhear.testing import released
    >>> def mean(data):
    ...     return released(np.clip(data, 0, 1).mean() + np.random.laplace())
    >>> found = replay(mean, np.arange(9.0), clip=0.5, scale=1 / 9)
    >>> str(found["releases"].verdict), str(found["secrecy"].verdict)
    ('passed', 'passed')
    """
    if not callable(train):
        raise InputTypeError(f"train={train!r:.60} must be a function that takes data")
    for name, value in (("clip", clip), ("noise", noise), ("records", records)):
        if value is not None:
            within(name, value, "(0, inf)")
    if rate is not None:
        within("rate", rate, "(0, 1]")
    game = _Replays(train, _Records(data), seed=seed, clip=clip, scale=scale)
    game.check_repeated()
    game.replace_records(records, rate=rate)
    checks = [game.public_check(), game.releases_check(), game.rate_check(rate)]
    return Replayed(
        checks=(*checks, *game.noise_checks(noise)),
        trainings=game.trainings,
        remarks=tuple(game.remarks.values()),
    )


# The user's data, with records replaced.


class _Records:
    """Data by records: columns of arrays, or a list of items."""

    def __init__(self, data: Any) -> None:
        self._kind = type(data)
        self._columns: dict[Any, Any] = {}
        if isinstance(data, TensorDataset | tuple | dict | np.ndarray | Tensor):
            held = data.tensors if isinstance(data, TensorDataset) else data
            parts = held if isinstance(held, tuple) else (held,)
            self._columns = dict(held) if isinstance(held, dict) else dict(enumerate(parts))
            rows = {
                len(of) if isinstance(of, np.ndarray | Tensor) and of.ndim else 0
                for of in self._columns.values()
            }
            if len(rows) != 1 or 0 in rows:
                raise InputTypeError(
                    f"data of {self._kind.__name__} must hold arrays or tensors with one row a "
                    "record; give (X, y), a list of records, or a map-style data set"
                )
            self.size = rows.pop()
        else:
            self.size = check_dataset(data, name="data")
            self._items = [data[at] for at in range(self.size)]

    def record(self, at: int) -> Any:
        if not self._columns:
            return self._items[at]
        return {name: copy.deepcopy(of[at]) for name, of in self._columns.items()}

    def replaced(self, records: dict[int, Any], *, less: int = 0) -> Any:
        """The data with other records at some places, and so many less at the end."""
        size = self.size - less
        if not self._columns:
            return [copy.deepcopy(records.get(at, self._items[at])) for at in range(size)]
        columns = {name: copy.deepcopy(of[:size]) for name, of in self._columns.items()}
        for at, record in records.items():
            for name, of in record.items():
                columns[name][at] = of
        if issubclass(self._kind, dict):
            return columns
        parts = tuple(columns.values())
        if issubclass(self._kind, tuple):
            return parts
        return TensorDataset(*parts) if issubclass(self._kind, TensorDataset) else parts[0]


Change = Callable[[Tensor, float], Tensor]  # of float64 numbers, and the largest of their kind


def _changed(record: Any, change: Change) -> Any:
    """A record with other floating-point numbers, of the same kind."""
    if isinstance(record, tuple | list):
        return type(record)(_changed(of, change) for of in record)
    if isinstance(record, dict):
        return {key: _changed(of, change) for key, of in record.items()}
    if isinstance(record, Tensor):
        if not record.is_floating_point():
            return record
        most = torch.finfo(record.dtype).max
        made = change(record.double(), most).nan_to_num(0.0, math.inf, -math.inf)
        return torch.where(made.isinf(), made, made.clamp(-most, most)).to(record.dtype)
    if np.asarray(record).dtype.kind != "f":
        return record
    made = _changed(torch.from_numpy(np.array(record)), change).numpy()
    return made if isinstance(record, np.ndarray) else type(record)(made)


def _times(record: Any, k: float) -> Any:
    return _changed(record, lambda numbers, _: numbers * k)


def _made(record: Any, other: Any, *, extreme: bool, chance: np.random.Generator) -> dict[str, Any]:
    """Records that take the place of one, by what they are."""
    made, sizes = {"replaced by another": other}, list[int]()

    def look(numbers: Tensor, _: float) -> Tensor:
        sizes.append(numbers.numel())
        return numbers

    def with_single(k: float) -> Any:
        return _changed(record, lambda of, _: torch.full_like(of, k) if of.numel() == 1 else of)

    _changed(record, look)
    up, far = 10.0 ** chance.uniform(0, 4), chance.random()
    for k in (up, -up) if sizes else ():
        made[f"times {k:.3g}"] = _times(record, k)
        if 1 in sizes:  # of a square, gradients of both signs of inputs may point the same way
            made[f"with {k:.3g} as single number"] = with_single(k)
    if extreme and sizes:
        made["infinite"] = _times(record, math.inf)
        made[f"replaced by another times the largest float to {far:.2f}"] = _changed(
            other, lambda numbers, most: numbers * most**far
        )
    return made


# Trainings, and what moved between them.


class _Replays:
    """Plays the training, first on the data as they are."""

    def __init__(
        self, train: Any, data: _Records, *, seed: int, clip: float | None, scale: Scale
    ) -> None:
        self._train, self._data, self._seed = train, data, seed
        self._clip, self._scale = clip, scale
        self.remarks, self._by_hand, self._holding = dict[str, str](), False, HoldingModules()
        self._leak = self._open = self._worst = ""
        self.trainings = self._public = self._compared = 0
        self._in: list[int] = []  # releases that each record was in
        self._batches, self._adds = Finding(), dict[str, list[NDArray[Any]]]()
        self._ratio, self._moved = 0.0, set[tuple[int, str]]()  # of which release, and where in it
        # A first training fills caches, and tells whether releases are named.
        tried = self._play({}, warm=True)
        self._by_hand = any("gradient of step" not in one.name for one in tried.releases)
        self._first = self._play({})

    def _play(
        self,
        records: dict[int, Any],
        *,
        first: Tape | None = None,
        entropy: int | None = None,
        warm: bool = False,
        less: int = 0,
    ) -> Tape:
        self.trainings += 1
        tape, data = Tape(first, self._by_hand), self._data.replaced(records, less=less)
        namespace = getattr(getattr(self._train, "func", self._train), "__globals__", {})
        seed = self._seed if entropy is None else entropy
        held = frozen(namespace, seed=seed, holding=self._holding)
        try:
            with (
                warnings.catch_warnings(),
                tape.watching(),
                contextlib.nullcontext() if warm else held,
            ):
                warnings.simplefilter("ignore")  # of overflows, which made records shall have
                tape.returned = leaves(self._train(data))
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"train raised {type(error).__name__} in a replay: {error!s:.200}; call "
                "train(data) by itself to see where"
            ) from error
        return tape

    def _attempt(self, records: dict[int, Any], how: str, **of: Any) -> Tape | None:
        try:
            return self._play(records, **of)
        except InputError as error:
            self.remarks.setdefault(
                "raised", f"With {how}, {error!s:.150}; that itself tells of it."
            )
            return None

    def check_repeated(self) -> None:
        """Refuse a training that gives something else on equal data with equal randomness."""
        found = self._play({})
        moved = moved_first(self._first, found, releases=True)
        if moved := moved or differs("what is returned:", self._first.returned, found.returned):
            raise InputError(
                f"train gave two things for the same data and the same randomness: {moved}. So "
                "nothing follows of what a record moves; make all state inside train, and take "
                "its randomness from Python, NumPy, torch or the system, in one thread"
            )

    def replace_records(self, count: int, *, rate: float | None) -> None:
        """Replace so many records, each by some others, and note what moves."""
        chance = np.random.default_rng([self._seed, 1])
        size, entropy = self._data.size, _fresh()
        sizes, alike = chance.choice([1e-3, 1e3], size), list[tuple[set[int], set[int]]]()
        # Among records of one direction and unlike sizes a bound that follows a batch moves far.
        unlike = {at: _times(self._data.record(0), sizes[at]) for at in range(size)}
        mixed = self._attempt(unlike, "records of unlike sizes", first=self._first)
        below = (rate or 1.0) < 1.0
        anew = self._play({}, first=self._first, entropy=entropy) if below else None
        for done, at in enumerate(chance.permutation(size)[:count].tolist()):
            other = self._data.record((at + 1 + int(chance.integers(max(1, size - 1)))) % size)
            own, extreme = self._data.record(at), done % _EXTREME == 0
            made = _made(own, other, extreme=extreme, chance=chance)
            tapes, moves = {"": self._first}, set[int]()
            for what, record in made.items():
                how = f"record {at} {what}"
                tape = self._attempt({at: record}, how, first=self._first)
                if tape is not None:
                    tapes[how] = tape
                    self._note_public(tape, how)
                    moves |= (moved := self._note_releases(self._first, tape, how))
                if tape and record is other:
                    self._keep_added(tape, moved)
                    of = {"first": self._first, "entropy": entropy}
                    if anew and (again := self._attempt({at: other}, how, **of)):
                        alike.append((moved, self._note_releases(anew, again, how)))
            for (one, a), (two, b) in combinations(list(tapes.items())[1:], 2):
                self._note_releases(a, b, f"{one} in place of {two}")
            if mixed and len(made) > 1:
                how = f"record {at} times {1 / sizes[at]:g} among such times 0.001 or 1000"
                turned = unlike | {at: _times(self._data.record(0), 1 / sizes[at])}
                if tape := self._attempt(turned, how, first=self._first):
                    self._note_releases(mixed, tape, how)
            self._in.append(len(moves))
        if rate and alike:
            self._note_batches(alike, rate)
        tape = self._attempt({}, "one record less", first=self._first, less=1)
        if tape and (less := self._beside(tape)[0]):
            self.remarks["less"] = f"With one record less, {less}: their number counts as public."

    def _keep_added(self, tape: Tape, moved: set[int]) -> None:
        """Keep what a record adds to the first release that it is in."""
        for number in sorted(moved)[:1]:
            values = [of.releases[number - 1].values for of in (self._first, tape)]
            for at, x, y in _numbers(*values):
                added = (y.astype(float) - x).ravel()[: _PAIRED // 10] / self._factor(number)
                self._adds.setdefault(at, []).append(added[np.isfinite(added)])

    def _note_batches(self, alike: list[tuple[set[int], set[int]]], rate: float) -> None:
        """Of releases that a record is in by either entropy, it is in by both with r / (2 - r)."""
        either, both = np.array([(len(one | two), len(one & two)) for one, two in alike]).T
        chance = rate / (2.0 - rate)
        distinct = {tuple(map(frozenset, of)) for of in alike}  # of a group that comes and goes
        whole = sum(len(one | two) for one, two in distinct) * bool((either == both).all())
        told = "releases that {} in are the same with other entropy"
        self._batches.note(chance**whole, what=told.format("records are"))
        self._batches.worst(at_least(both, either, chance), lambda _: told.format("a record is"))

    def _beside(self, tape: Tape) -> tuple[str, set[str]]:
        """What moved that is no release; and which returned floats did, where none was seen."""
        first, floats = self._first, set[str]()
        if not first.releases:  # what is returned may be what leaves under noise
            floats = {at for at, x, _ in _numbers(first.returned, first.returned) if ulp(x)}
        gone = {
            at
            for at in floats
            if differing({at: first.returned[at]}, {at: tape.returned.get(at, "")})
        }
        of, there = (
            {at: v for at, v in one.returned.items() if at not in floats or not np.ndim(v)}
            for one in (first, tape)
        )
        return moved_first(first, tape) or differs("what is returned:", of, there), gone

    def _note_public(self, tape: Tape, how: str) -> None:
        moved, gone = self._beside(tape)
        self._public += len(self._first.events) - len(self._first.releases)
        self._public += len(self._first.returned)
        self._moved |= {(1, at) for at in gone}
        if moved and gone:
            self._open = self._open or f"{moved} with {how}"
        elif moved:
            self._leak = self._leak or f"{moved} with {how}"

    def _note_releases(self, one: Tape, other: Tape, how: str) -> set[int]:
        """Note how far releases lie apart; the numbers of those that do."""
        moves = set[int]()
        for number, (a, b) in enumerate(zip(one.releases, other.releases, strict=False), start=1):
            apart, slack = [np.zeros(1)], 0.0
            for at, x, y in _numbers(a.values, b.values):
                with np.errstate(all="ignore"):
                    apart.append((y.astype(float) - x.astype(float)).ravel())
                slack += _LOST * ulp(x) * _length(x.ravel().astype(float))
                self._moved |= {(number, at)} if apart[-1].any() else set()
            length = _length(np.concatenate(apart))
            moves |= {number} if length else set()
            bound = self._clip * self._factor(number) if self._clip is not None else a.bound
            if not math.isfinite(length):
                self.remarks.setdefault(
                    "finite", f"{a.name} is not finite with {how}; hold inputs to a public range."
                )
            elif bound is not None and math.isfinite(bound):
                self._compared += 1
                if length > 2 * bound * (1 + _ROUNDING) + slack and length / bound > self._ratio:
                    self._ratio = length / bound
                    self._worst = (
                        f"{a.name} moves by {length:.4g} with {how}, and as claimed by at most "
                        f"{2 * bound:.4g}, which is 2 clip scale"
                    )
        return moves

    def _factor(self, number: int) -> float:
        return abs(self._scale(number) if callable(self._scale) else self._scale)

    def public_check(self) -> Check:
        """Whether anything moved that nothing hides."""
        if self._open and not self._leak:
            return Check.not_run(
                "public",
                f"{self._open}, and whether it is made of releases alone is unknown; let train "
                "hand over what leaves, as in w = overhear.testing.released(w)",
            )
        words = f"{self._public} numbers and lines beside releases stay what they were."
        if self._leak:
            words = (
                f"{self._leak}, and no noise hides it; compute it of public data or of releases."
            )
        return Check.exact("public", words, tests=self._public, passed=not self._leak)

    def releases_check(self) -> Check:
        """Whether releases move by no more than is claimed."""
        if self._worst:
            words = f"{self._worst}. Clip all that a record adds, before any sum or mean."
            return Check.exact("releases", words, tests=self._compared, passed=False)
        if not self._first.releases:
            why = (
                "nothing was seen to leave; let train hand it over after each step, as in w = "
                "overhear.testing.released(w)"
            )
            return Check.not_run("releases", why)
        if not self._compared:
            return Check.not_run("releases", "no bound is claimed; give clip= and scale=")
        words = f"{self._compared} times a release moves by at most 2 clip scale."
        return Check.exact("releases", words, tests=self._compared)

    def rate_check(self, rate: float | None) -> Check:
        """Whether records are in no more releases than is claimed."""
        rounds, total = len(self._first.releases), sum(self._in)
        if rate is None or not rounds:
            why = "no rate is claimed" if rate is None else "nothing was seen to leave"
            return Check.not_run("rate", why, applies=rate is not None)
        self.remarks["drawn"] = (
            "Whether records are drawn independently is not seen: shuffled batches, batches of one "
            "size, two records that share a draw, draws of which a part is public, or draws that "
            "are numbers of the noise, can pass at a rate that is accounted for as Poisson."
        )
        found, remedy = Finding(), "draw each record on its own and once, at one rate"
        all_of = rounds * len(self._in)
        counts, draws = np.array([total, *self._in]), np.array([all_of] + [rounds] * len(self._in))
        p = np.where(counts > 0, bdtrc(counts - 1.0, draws, rate), 1.0)
        found.worst(
            p,
            lambda at: (
                f"{'a record is' if at else 'records are'} in {counts[at]} of {draws[at]}, and "
                f"a share of {rate:.4g} is claimed; {remedy}"
            ),
        )
        return found.check("rate", f"Records are in {total} of {all_of} releases")

    def noise_checks(self, noise: float | None) -> Iterator[Check]:
        """Whether noise is as large as claimed, and new with each entropy."""
        pairs = [(self._first, self._play({}, first=self._first, entropy=_fresh())) for _ in "ab"]
        # Without inputs much of a gradient is 0, so that noise is by itself.
        zero = {at: _times(self._data.record(at), 0.0) for at in range(self._data.size)}
        blank = self._attempt(zero, "inputs of 0")
        other = blank and self._attempt(zero, "inputs of 0", first=blank, entropy=_fresh())
        if blank and other:
            pairs.append((blank, other))
        drawn = [self._drawn(*pair) for pair in pairs]
        secrecy, size, most = Finding(), Finding(), 0
        for at in sorted(set().union(*drawn)):
            here = [of[at] for of in drawn if at in of]
            x, y, of, _ = map(np.concatenate, zip(*here, strict=True))
            equal = int((x == y).sum())
            p = float(bdtrc(equal - 1, x.size, _chance_of_equal(x / of, y / of))) if equal else 1.0
            secrecy.note(p, what=f"{equal} of {x.size} numbers of {at or 'what leaves'} are equal")
            if noise is not None and self._first.releases:
                x, y, factors, places = here[-1]
                squares = np.square((y.astype(float) - x) / factors / noise) / 2
                most = max(most, squares.size)
                on = f"the sum in {at or 'what leaves'}, and {noise:.3g} is claimed; add it to the "
                on += "sum, so that scale multiplies both"
                # All releases together, and each alone, of which some may have less.
                for part in (squares, *np.split(squares, np.flatnonzero(places == 0)[1:])):
                    less, seen = smaller(part.sum(), part.size), noise * math.sqrt(part.mean())
                    size.note(float(less), what=f"noise of at most {seen:.3g} is on {on}")
                some = places < max(1, _PAIRED // int((places == 0).sum()))
                z = ((y.astype(float) - x) / factors)[some]
                added = np.concatenate(self._adds.get(at, [z[:0]]))
                slack = 4.0 * ulp(x) * float(np.abs(x).max()) / float(factors.min())
                for unit in (1.0, noise):
                    told, chances, n = _repeats(z / unit, slack / unit)
                    own, _, of_own = _repeats(added / unit, slack / unit)
                    for k, usual, chance, does in zip(told, own, chances, _DOES, strict=True):
                        # Whole numbers, or one sum that leaves twice, do so without noise as well.
                        p = float(at_least(k, n, chance)) if usual * n < k * of_own / 2 else 1.0
                        what = f"{k} of {n} numbers of noise in {at or 'what leaves'} {does}"
                        size.note(p, what=f"{what}; draw each anew, in float32 or finer")
        nothing = "nothing was seen that leaves and moves"
        if noise is None:
            yield Check.not_run("noise", "no noise is claimed", applies=False)
        elif size.tests:
            ends = gammaincinv(most / 2, [TOTAL_FALSE_ALARM / size.tests, 0.95])
            power = f"noise of up to {noise * math.sqrt(ends[0] / ends[1]):.3g} is found in 95 of "
            power += "100 trainings, and more may pass"
            yield size.check("noise", "Noise is as large as claimed", beside=power)
        else:
            yield Check.not_run("noise", nothing)
        fault = (
            "noise or batches are known to anyone who knows the seed, the clock or the process, or "
            "there is no noise; draw them from the system's entropy"
        )
        if secrecy.tests:
            secrecy = Finding.of([secrecy, self._batches])
            fault = "" if secrecy.passed else fault
            unseen = "whether a seed has too few bits is not seen"
            yield secrecy.check("secrecy", "Trainings share no noise", beside=unseen, fault=fault)
        else:
            yield Check.not_run("secrecy", nothing)

    def _drawn(self, one: Tape, other: Tape) -> dict[str, tuple[NDArray[Any], ...]]:
        """By place what left under two entropies, (n,) each, and what multiplies its noise."""
        both = [(a.values, b.values) for a, b in zip(one.releases, other.releases, strict=False)]
        if not self._first.releases:
            both = [(one.returned, other.returned)]
        found = dict[str, list[Any]]()
        for number, values in enumerate(both, start=1):
            for at, x, y in _numbers(*values):
                if (number, at) in self._moved and np.isfinite([x, y]).all():
                    factors, places = np.full(x.size, self._factor(number)), np.arange(x.size)
                    found.setdefault(at, []).append((x.ravel(), y.ravel(), factors, places))
        return {
            at: tuple(map(np.concatenate, zip(*parts, strict=True))) for at, parts in found.items()
        }


def _numbers(one: Values, other: Values) -> Iterator[tuple[str, NDArray[Any], NDArray[Any]]]:
    """Numbers of two values at each place where both have as many."""
    for at in sorted(one.keys() & other.keys()):
        x, y = one[at], other[at]
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.shape == y.shape:
            yield at, x, y


def _length(vector: NDArray[np.float64]) -> float:
    largest = float(np.abs(vector).max(initial=0.0))
    finite = 0 < largest < math.inf
    return largest * float(np.linalg.norm(vector / largest)) if finite else largest


def _chance_of_equal(x: NDArray[Any], y: NDArray[Any]) -> float:
    """The most that two draws are equal by chance, which lie as far apart and on such a grid."""
    apart = np.abs(y.astype(float) - x)
    if not apart.any():
        return 0.5 if np.array_equal(x, np.rint(x)) else _UNSEEN  # of whole numbers few may occur
    near, gaps = _LOST * ulp(x) * float(np.abs(x).max()), np.diff(np.sort(np.append(apart, 0.0)))
    grid = float(gaps[gaps > near].min(initial=float(apart.max())))
    return min(1.0, 2.0 * grid / math.sqrt(np.square(apart).mean()))


def _repeats(numbers: NDArray[Any], slack: float) -> tuple[list[int], list[float], int]:
    """Of how many numbers, up to slack, some lie on a grid and some come twice; and the chances."""
    sizes = np.sort(np.abs(numbers[:_PAIRED]))
    sizes = sizes[sizes > slack]
    n, steps = sizes.size, sizes / _GRID
    spread = math.sqrt(np.square(sizes).mean()) if n else 1.0
    near = slack / spread + _FINE
    on = int((np.abs(steps - np.rint(steps)) <= slack / _GRID).sum())
    twice = int((np.diff(sizes) <= near * spread).sum())
    return [on, twice], [min(1.0, 2 * slack / _GRID + _ON_GRID), min(1.0, 2 * n * near)], n


def _fresh() -> int:
    return random.SystemRandom().getrandbits(64)
