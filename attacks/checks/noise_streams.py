"""Streams: every source of noise of every planned round is new.

The noise of all planned rounds is drawn without training, by a bare run of the real engine (see
`watching.bare_run`) and, where that would take too long, by the randomness itself, a few numbers of
each source. Then

    no two sources are equal, up to sign and scale      exact, but for the rounding of a ratio
    what is added is std times its factor times them    exact, to rounding
    sums of squares of a round, a call, a row, and      chi-square
    of every window of rounds
    numbers are normal far into the tails, and new      `shape`, `values`

That no other run shares any is for the check of `secrecy`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...training.algorithms.algorithm import Bound
from ...training.engine.randomness import SecretRandomness
from ...training.engine.recording import AddedNoise
from ...training.engine.setting import Setting
from ...training.noise_tests.laws import many, two_sided
from ...training.tracing.linear_forms import NoiseSources
from ...training.tracing.trace import AlgorithmTrace
from .noise_rows import note_shape
from .recording import Part
from .result import Check, Finding
from .watched_run import BareRound, bare_engine, bare_rounds

# Numbers that noise is made of do not come twice: no grid, no coarse rounding, no copies.
#
# Of two independent normal numbers, rounded to floats of p bits, the sizes are equal with
# probability
#
#     P(|a| = |b|) <= integral of (2 phi(x))^2 ulp(x) dx, about .5 2^-p
#
# and the tests allow 4 times as much, for what samplers and the multiplication by a deviation do to
# the last bit. So of n numbers at most n^2 / 2 times 2^(1-p) pairs are expected to be equal, and
# their number is about Poisson: noise on a grid, in half precision or in 8 bits, cut off at a
# bound, copied within a row or from row to row in any order and sign, has many more. Counted are
# pairs within all, within each row, each tensor of parameters and each coordinate, among the
# largest, and between rows.
#
# A grid of h deviations is found in n numbers from h of about 16 2^-p on, where p = 24 in single
# precision.

_BITS = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}
_LARGEST = 256  # numbers among which a bound would show
_MOST_VALUES = 600_000  # of which rows are left out beyond


def note_values(
    found: Finding,
    rows: NDArray[np.floating],
    names: Sequence[str],
    parts: Sequence[Part],
    what: str,
) -> None:
    """Note how many sizes are equal of (n, D) numbers, as made in the precision of the run."""
    step = max(1, -(-rows.size // _MOST_VALUES))
    rows, names = rows[::step], list(names)[::step]
    n, D = rows.shape
    # The chance that two numbers of this precision have one size.
    chance = 2.0 ** (1 - _BITS[rows.dtype])
    size = np.abs(rows)

    def note(equal: NDArray[np.int64], of: NDArray[np.int64], words: list[str]) -> None:
        pairs = of * (of - 1.0) / 2.0
        found.worst(
            many(equal, pairs * chance),
            lambda at: (
                f"{int(equal[at]):,} pairs of the {int(of[at]):,} numbers of {words[at]} "
                f"are of equal size, where at most {pairs[at] * chance:.3g} are expected"
            ),
        )

    # In each row, in each coordinate, in each tensor, and in all together.
    by_row = _equal_pairs(np.sort(size, axis=1))
    note(by_row, np.full(n, D), [f"the noise of {name}" for name in names])
    pairs = n * D * (D - 1.0) / 2.0
    p = float(many(by_row.sum(), pairs * chance))
    told = (
        f"{int(by_row.sum()):,} pairs of numbers within one row of {what} are of equal size, where"
    )
    found.note(p, what=f"{told} at most {pairs * chance:.3g} are expected")
    words = [f"{what} on coordinate {j}" for j in range(D)]
    note(_equal_pairs(np.sort(size.T, axis=1)), np.full(D, n), words)
    for part in parts:
        held = np.sort(size[:, part.start : part.stop], axis=None)[None]
        note(_equal_pairs(held), np.array([held.size]), [f"{what} on {part.name}"])
    order = np.argsort(size, axis=None, kind="stable")
    ordered = size.ravel()[order]
    note(_equal_pairs(ordered[None]), np.array([size.size]), [what])
    # A bound on sizes shows in the largest of them.
    largest = ordered[-_LARGEST:]
    if len(largest) > 2 and size.size >= 100 * _LARGEST:
        _note_bound(found, largest, what)
    _note_rows(found, ordered, order // D, names, chance * D * D)


def _equal_pairs(ordered: NDArray[np.floating]) -> NDArray[np.int64]:
    """(rows,) pairs of equal numbers in each sorted row."""
    # A run of k equal numbers has k (k - 1) / 2 pairs: each counts the equal ones before it.
    if ordered.shape[1] == 0:
        return np.zeros(len(ordered), dtype=np.int64)
    same = np.zeros(ordered.shape, dtype=bool)
    same[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    place = np.broadcast_to(np.arange(ordered.shape[1]), ordered.shape)
    begun = np.maximum.accumulate(np.where(same, 0, place), axis=1)
    return np.asarray((place - begun).sum(axis=1))


def _note_bound(found: Finding, largest: NDArray[np.floating], what: str) -> None:
    """Note how often the largest number comes."""
    # Numbers grow rarer towards the end, so that fewer than so many are expected at its very float;
    # 32 times as many allow for what samplers do to the last bits of their tails.
    spacing = float(np.spacing(largest[-1]))
    span = max(float(largest[-1] - largest[0]), spacing)
    mean = 32.0 * len(largest) * spacing / span
    count = int((largest == largest[-1]).sum())
    told = f"the largest size of {what} comes {count} times, as if noise were cut off there"
    found.note(many(count - 1, mean), what=told)


def _note_rows(
    found: Finding,
    ordered: NDArray[np.floating],
    row_of: NDArray[np.int64],
    names: Sequence[str],
    mean: float,
) -> None:
    """Note the pair of rows with most neighbouring equal numbers."""
    n = len(names)
    at = np.flatnonzero(ordered[1:] == ordered[:-1])
    one, other = row_of[at], row_of[at + 1]
    low, high = np.minimum(one, other), np.maximum(one, other)
    pairs, counts = np.unique((low * n + high)[low < high], return_counts=True)
    if not len(pairs):
        return
    worst = int(counts.argmax())
    i, j = divmod(int(pairs[worst]), n)
    told = (
        f"{counts[worst]} numbers of {names[i]} are those of {names[j]}, in some order and sign, "
    )
    told += f"where at most {mean:.2g} equal ones are expected"
    found.note(many(counts[worst], mean), tests=n * (n - 1) // 2, what=told)


_NAME = "streams"
_WIDTH = 64  # numbers of a source that are drawn
_SECONDS = 2.0  # that the bare run may take
_MOST_ROWS = 80_000  # sources that are drawn one by one beyond it
_SOME = 8  # sources of a call in rounds of which not all are drawn
_SHAPE_VALUES = 2_000_000  # numbers whose shape is looked at
_COMPARED = 8  # of the numbers of a source, as ratios to the first
_DIGITS = 4  # of a ratio


class _Sources(NamedTuple):
    """Sources with their places: (n, 3) round, call and row, and (n, width) numbers."""

    places: NDArray[np.int64]
    values: NDArray[np.floating]


@dataclass(frozen=True)
class _Run:
    """A run by its parts, of which noise alone is drawn."""

    setting: Setting
    bound: Bound
    traces: AlgorithmTrace
    randomness: SecretRandomness

    @property
    def planned(self) -> int:
        return sum(count for _, count in self.traces.rounds)

    def bare(
        self, rounds: Sequence[int], *, width: int = _WIDTH, start: bool = True, seconds: float
    ) -> tuple[list[BareRound], str]:
        engine = bare_engine(
            self.setting,
            self.bound,
            width=width,
            randomness=self.randomness,
            scripts=self.traces.scripts,
        )
        return bare_rounds(engine, rounds=rounds, start=start, seconds=seconds)

    def normal(self, number: int, call: int, rows: range, *, width: int) -> Tensor:
        return self.randomness.normal(
            round=number,
            call=call,
            rows=list(rows),
            width=width,
            dtype=self.setting.dtype,
            device=self.setting.device,
        ).cpu()


_Part = tuple[int, int, range, Tensor]  # round, call, rows and their numbers


def stream_check(
    setting: Setting,
    bound: Bound,
    traces: AlgorithmTrace,
    *,
    randomness: SecretRandomness,
    generator: np.random.Generator,
) -> Check:
    """Draw the noise of the planned rounds, and look for noise that is not new or not right.

    The generator chooses rounds where not all are run.
    """
    run = _Run(setting, bound, traces, randomness)
    made, broken = _bare(run, generator)
    ran = {one.number for one in made}
    exact, spread, shapes = Finding(), Finding(), Finding()
    # Sources of rounds that ran, and of the others by their seeds alone.
    width = max((z.shape[1] for one in made for z in one.sources), default=_WIDTH)
    every = _joined([*_drawn(run, made, width=width), *_by_hand(run, ran, width=width)])
    _note_added(exact, made)
    _note_equal(exact, every)
    _note_spread(spread, every)
    looked_at = _note_shapes(shapes, run)
    whole = Finding.of([exact, spread, shapes])
    rounds = len(set(every.places[:, 0].tolist()) - {0})
    words = (
        f"the first {every.values.shape[1]} numbers of {len(every.places):,} sources of noise "
        f"were drawn, of {rounds:,} of {run.planned:,} planned rounds ({len(ran - {0}):,} by "
        f"running them without records), and compared up to sign and scale; {looked_at:,} numbers "
        "were looked at for their shape"
    )
    # A function of the step may need the width of the run's own model.
    beside = f"the rest was drawn from the seeds alone, as {broken}" if broken else ""
    return whole.check(_NAME, words, beside=beside)


def _bare(run: _Run, generator: np.random.Generator) -> tuple[list[BareRound], str]:
    """Half of the time from the first round on, the rest in rounds that are drawn, and the last."""
    planned, half = run.planned, _SECONDS / 2.0
    made, broken = run.bare(range(1, planned + 1), seconds=half)
    left = np.arange(made[-1].number + 1 if made else 1, planned + 1)
    if broken or not len(left):
        return made, broken
    # So many more as half of the time allows, the last ones among them.
    more = min(len(left), max(2, len(made)))
    chosen = set(generator.choice(left, size=more, replace=False).tolist())
    chosen |= set(range(max(int(left[0]), planned - more // 4), planned + 1))
    later, broken = run.bare(sorted(chosen), start=False, seconds=half)
    return made + later, broken


def _drawn(run: _Run, made: Sequence[BareRound], *, width: int) -> Iterator[_Part]:
    """All sources of rounds that ran; those of single numbers, such as counts, are drawn longer."""
    for one in made:
        for call, z in enumerate(one.sources):
            rows = range(len(z))
            long = z if z.shape[1] >= width else run.normal(one.number, call, rows, width=width)
            yield one.number, call, rows, long


def _by_hand(run: _Run, ran: set[int], *, width: int) -> Iterator[_Part]:
    """Sources of rounds that did not run, drawn as a round draws them.

    A few of every round, and all of as many rounds, evenly over the run, as the work allows.
    """
    by_round = [one for one, count in run.traces.rounds for _ in range(count)]
    left = [number for number in range(1, len(by_round) + 1) if number not in ran]
    sizes = [
        [group.size for group in one.groups if isinstance(group, NoiseSources)] for one in by_round
    ]
    step = max(1, -(-sum(sum(sizes[number - 1]) for number in left) // _MOST_ROWS))
    whole = set(left[::-1][::step])  # the last one is among them
    for number in left[:: max(1, -(-len(left) // (_MOST_ROWS // _SOME)))]:
        for call, size in enumerate(sizes[number - 1]):
            rows = range(0, size, 1 if number in whole else max(1, size // _SOME))
            yield number, call, rows, run.normal(number, call, rows, width=width)


def _joined(parts: Sequence[_Part]) -> _Sources:
    places = [(number, call, row) for number, call, rows, _ in parts for row in rows]
    values = [z.numpy() for *_, z in parts] or [np.zeros((0, _WIDTH))]
    return _Sources(np.array(places, dtype=np.int64).reshape(-1, 3), np.concatenate(values))


def _note_added(found: Finding, made: Sequence[BareRound]) -> None:
    """What is added is std times the factor times the sources."""
    faults, rows = list[str](), 0
    for one in made:
        if len(one.sources) != len(one.added):
            faults.append(f"round {one.number} adds noise that does not come from its randomness")
        for call, (z, added) in enumerate(zip(one.sources, one.added, strict=False)):
            rows += len(added.rows)
            if fault := _wrongly_added(z, added):
                faults.append(fault.format(call=call, number=one.number))
    found.exact(not faults, faults[0] if faults else "", tests=max(rows, 1))


def _wrongly_added(z: Tensor, added: AddedNoise) -> str:
    # What should be added, and the size that its rounding is relative to.
    mixed, size, rows = z.double(), z.double().abs(), added.rows.double()
    if added.factor is not None:
        mixed, size = added.factor.double() @ mixed, added.factor.double().abs() @ size
    mixed, size = mixed * added.std, size * abs(added.std)
    if added.active is not None:  # an absent agent makes no noise
        mixed = mixed * added.active.double()[:, None]
    if rows.shape != mixed.shape:
        return "noise call {call} of round {number} has another shape"
    wrong = ~((rows - mixed).abs() <= 16.0 * torch.finfo(added.rows.dtype).eps * size)
    if not wrong.any():
        return ""
    row = int(wrong.any(dim=1).nonzero()[0])
    share = float(rows[row].norm() / mixed[row].norm().clamp(min=1e-300))
    return (
        f"row {row} of noise call {{call}} in round {{number}} is not what was requested: it is "
        f"{share:.3g} times as long as its sources at the declared deviation"
    )


def _note_equal(found: Finding, of: _Sources) -> None:
    """No two sources are equal, up to sign and scale."""
    values = of.values[:, :_COMPARED].astype(np.float64)
    if len(values) < 2 or values.shape[1] < _COMPARED:
        return
    at_first = np.argmax(np.abs(values), axis=1)  # the largest, which no other divides badly
    with np.errstate(divide="ignore", invalid="ignore"):  # sources of 0 are told below
        ratios = values / values[np.arange(len(values)), at_first][:, None]
    kept = np.isfinite(ratios).all(axis=1)
    # In units of its largest number a source has the digits of any multiple of it.
    keys = np.round(ratios[kept] * 10.0**_DIGITS).astype(np.int32)
    places = of.places[kept]
    _, first, counts = np.unique(
        np.ascontiguousarray(keys).view([("", keys.dtype)] * keys.shape[1]).ravel(),
        return_index=True,
        return_counts=True,
    )
    again, what = int((counts - 1).sum()), ""
    if not kept.all():
        round_, call, row = of.places[np.flatnonzero(~kept)[0]]
        what = f"source {row} of noise call {call} in round {round_} is 0 or no number"
    elif again:
        key = keys[first[np.flatnonzero(counts > 1)[0]]]
        one, other = places[np.flatnonzero((keys == key).all(axis=1))[:2]]
        what = (
            f"{again:,} sources are others again: source {other[2]} of noise call {other[1]} in "
            f"round {other[0]} is source {one[2]} of call {one[1]} in round {one[0]}, up to sign "
            "and scale"
        )
    found.exact(not what, what, tests=len(values))


def _note_spread(found: Finding, of: _Sources) -> None:
    """Variance of the sources of each round and call, of each row, and of windows of rounds."""
    if not len(of.places):
        return
    squares = np.square(of.values.astype(np.float64)).sum(axis=1)
    width = of.values.shape[1]
    total, degrees = float(squares.sum()), width * len(squares)
    _note_sums(found, np.array([total]), np.array([degrees]), ["all sources"])
    for columns, words in (
        ((0, 1), "noise call {1} in round {0}"),
        ((1, 2), "source {1} of noise call {0} over all rounds"),
        ((0,), "round {0}"),
    ):
        keys, at = np.unique(of.places[:, columns], axis=0, return_inverse=True)
        sums = np.bincount(at.ravel(), squares)
        counts = width * np.bincount(at.ravel())
        names = [words.format(*key) for key in keys.tolist()]
        _note_sums(found, sums, counts, names)
    # `sums` are of rounds in their order: all beginnings, ends and windows of powers of two.
    number = keys[:, 0]
    below = np.concatenate([[0.0], np.cumsum(sums)])
    many = np.concatenate([[0], np.cumsum(counts)])
    T = len(number)
    lengths = [2**k for k in range(1, T.bit_length())]
    spans = [(first, first + n) for n in lengths for first in range(0, T - n + 1, max(1, n // 2))]
    spans += [(0, k) for k in range(1, T)] + [(k, T) for k in range(1, T)]
    if spans:
        first, stop = np.array(spans).T
        names = [f"rounds {number[i]} to {number[j - 1]}" for i, j in spans]
        _note_sums(found, below[stop] - below[first], many[stop] - many[first], names)


def _note_sums(
    found: Finding, sums: NDArray[Any], degrees: NDArray[np.int64], names: Sequence[str]
) -> None:
    found.worst(
        two_sided(sums, degrees),
        lambda at: (
            f"the sources of {names[at]} have {sums[at] / degrees[at]:.3g} times the "
            f"variance of standard normal noise (n = {int(degrees[at]):,})"
        ),
    )


def _note_shapes(found: Finding, run: _Run) -> int:
    """Shape and sameness of many numbers of one more bare run; how many there were."""
    rows = sum(g.size for g in run.traces.rounds[0][0].groups if isinstance(g, NoiseSources))
    if not rows:
        return 0
    count = min(run.planned, 4)
    width = max(_WIDTH, min(2**15, _SHAPE_VALUES // (rows * count)))
    made, _ = run.bare(range(1, count + 1), width=width, start=False, seconds=_SECONDS)
    width = max((z.shape[1] for one in made for z in one.sources), default=_WIDTH)
    drawn = _joined(list(_drawn(run, made, width=width)))
    if not len(drawn.values):
        return 0
    names = [
        f"source {row} of noise call {call} in round {round_}"
        for round_, call, row in drawn.places.tolist()
    ]
    note_shape(found, drawn.values.astype(np.float64), "the sources of noise")
    note_values(found, drawn.values, names, (), "the sources of noise")
    return int(drawn.values.size)
