"""What kept releases hold beside their gradients, which must be the declared noise.

By its line a release is

    value = known + scale (sum_j w_j G_j + sum_k s_k z_k)

G_j the clipped gradients of a batch at a kept point by the auditor's oracle, z_k standard normal.
What is left,

    left = (value - known) / scale - sum_j w_j G_j

is the noise alone: exactly where the recorder drew it, and N(0, B B^T) in any case. A row is a
release; rows of a round share the sources that their lines name, and rows of different rounds
those whose names come again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from ...attacks.checks.recording import Part, Residual
from ...privacy.errors import InputError, within
from ...privacy.guarantee import Unit
from ...privacy.releases.chained_file import round_number, rounds_text
from ...privacy.releases.lines import Header, Played, Release, Vector, party_name
from ...privacy.releases.log import ReleaseLog
from ...privacy.releases.values import shown
from .keeping import ClippedSum, KeptTranscript, Oracle, read_kept

# The rounds of a log whose transcripts were kept, and those of them that are looked at.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeptRelease:
    """A release with its transcript.

    Attributes:
        played: its round.
        release: what its line says.
        kept: what it was made of.
        name: in words, such as "model of agent 0".
    """

    played: Played
    release: Release
    kept: KeptTranscript
    name: str

    @property
    def where(self) -> str:
        """Its name and its round, in words."""
        return f"{self.name} in round {self.played.round}"


class KeptRounds:
    """The transcripts of a log.

    Args:
        rounds: which to look at: numbers, how many to draw by chance, or None for all.
        seed: of the drawing; the system's entropy when None.

    Attributes:
        log: as given.
        numbers: of the rounds that are looked at, in order.
        unkept: how many releases of these rounds were not kept.

    Raises:
        FileNotFoundError: a transcript that the log names is missing.
        ValueError: a transcript that is not what the log names, or a round that was not kept.
    """

    def __init__(
        self, log: ReleaseLog, *, rounds: Sequence[int] | int | None, seed: int | None
    ) -> None:
        self.log = log
        held = {played for played, of in log.rounds.items() if any(r.kept for r in of)}
        if not held:
            raise InputError(
                f"{log.paths[0]} names no kept transcript, so nothing of it can be checked; record "
                'with keep="all", or with the rounds to keep'
            )
        self.numbers = _chosen(sorted({played.round for played in held}), rounds, seed)
        self._read: dict[Played, list[KeptRelease]] = {}
        self.unkept = sum(
            release.kept is None
            for played, of in log.rounds.items()
            if played.round in self.numbers
            for release in of
        )
        self.releases = [one for number in self.numbers for one in self.of_round(number)]

    def of_round(self, number: int) -> list[KeptRelease]:
        """The kept releases of a round, each time that it was played."""
        return [
            one for played in self.log.rounds if played.round == number for one in self._of(played)
        ]

    def is_whole(self, number: int) -> bool:
        """Whether every release of a round was kept."""
        every = [of for played, of in self.log.rounds.items() if played.round == number]
        return all(release.kept is not None for of in every for release in of)

    def _of(self, played: Played) -> list[KeptRelease]:
        if played not in self._read:
            of = self.log.rounds[played]
            self._read[played] = [
                KeptRelease(
                    played=played,
                    release=release,
                    kept=read_kept(self.log.paths, release.kept, played.round),
                    name=_named(release, of, self.log.header),
                )
                for release in of
                if release.kept is not None
            ]
        return self._read[played]


def _named(release: Release, of: Sequence[Release], header: Header) -> str:
    name = f"{release.kind} of {party_name(release.sender, header)}"
    alike = [one for one in of if (one.kind, one.sender) == (release.kind, release.sender)]
    if len(alike) > 1 and release.to is not None:
        name += f" to {', '.join(party_name(k, header) for k in sorted(release.to))}"
    return name


def _chosen(kept: list[int], rounds: Any, seed: int | None) -> list[int]:
    if rounds is None:
        return kept
    if isinstance(rounds, int) and not isinstance(rounds, bool):
        within("rounds", rounds, f"[1, {len(kept)}]", ", as many as were kept")
        chance = np.random.default_rng(seed)
        return sorted(chance.choice(kept, size=rounds, replace=False).tolist())
    if isinstance(rounds, str) or not isinstance(rounds, Sequence | set | range) or not rounds:
        raise InputError(f"rounds={shown(rounds)} must be numbers of rounds, or how many to draw")
    for number in rounds:
        if round_number(number, least=0) is None or number not in kept:
            some = ", ".join(map(str, kept[:8])) + f" and {len(kept) - 8} more" * (len(kept) > 8)
            raise InputError(f"round {shown(number)} was not kept; {some} were: name some of these")
    return sorted(set(rounds))


_ROUNDING = 64  # units of rounding that adding up a row may lose
_USUAL = 4  # and that it usually does
_NOBODY = torch.zeros(0, dtype=torch.int64)
_Key = tuple[int, Played, str, str]  # owner, round, batch and name of a vector
_KINK = 0.1  # of the clip norm: what one record's gradient may jump by in float32


class OracleBatch(NamedTuple):
    """A batch of some records, whose gradients the oracle gave.

    Attributes:
        where: of which release, in words.
        rows: (B, 64) sketches of what it gave, clipped.
        kept: (B, 64) of what the training added, None where that was not kept.
    """

    where: str
    owner: int
    point: Tensor
    positions: Tensor
    clip: float
    width: int
    rows: Tensor
    kept: Tensor | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """A release and what is left of it.

    Attributes:
        left: (D,) float64, of which the noise is all.
        total: (D,) the weighted sum of clipped gradients.
        cut_off: (D,) what clipping took off, weighted.
        clipped, gradients: how many gradients are longer than their bound, of how many.
        rounding: Euclidean norm that rounding may account for.
        resolution: Euclidean norm that it usually has.
        batches: of which it is made.
    """

    at: KeptRelease
    left: Tensor
    total: Tensor
    cut_off: Tensor
    clipped: int
    gradients: int
    rounding: float
    resolution: float
    batches: Sequence[OracleBatch]

    @property
    def deviation(self) -> float:
        """Of each coordinate's noise, as declared."""
        return math.sqrt(sum(one.std**2 for one in self.at.release.noise))

    @property
    def is_drawn(self) -> bool:
        """Whether all of its noise is known to the transcript."""
        return len(self.at.kept.noise) == len(self.at.release.noise)

    @property
    def drawn(self) -> Tensor:
        """(D,) the noise that the recorder drew for it."""
        every = (one.double() for one in self.at.kept.noise.values())
        return sum(every, torch.zeros_like(self.left))


class LeftOver:
    """The rows of the rounds that are looked at; a `Recording`.

    Args:
        rounds: what was kept.

    Attributes:
        rows: the releases that could be taken apart.
        unknown: for each of the others why not, in words.
        rounds: as given.
    """

    mismatch = ""

    def __init__(self, rounds: KeptRounds, oracle: Oracle) -> None:
        self.rounds, self._oracle = rounds, oracle
        self._places, self._by_client = _places(rounds), rounds.log.header.unit is Unit.CLIENT
        self._sums: dict[tuple[object, ...], ClippedSum] = {}
        self.rows, self.unknown = list[Row](), list[str]()
        for at in rounds.releases:
            found = self._row(at)
            if isinstance(found, Row):
                self.rows.append(found)
            else:
                self.unknown.append(f"{at.where}: {found}")

    def _row(self, at: KeptRelease) -> Row | str:
        """The row of a release, or why there is none."""
        kept, width = at.kept, len(at.kept.value)
        if not at.release.of and not at.release.noise and kept.known is None:
            return "it is declared as made of what was released, and of what was not kept as known="
        # The value in units of its sum, and the rounding that it comes with.
        value = kept.value.double()
        known = torch.zeros_like(value) if kept.known is None else kept.known.double()
        unit = torch.finfo(kept.value.dtype).eps
        size = unit * float(value.norm() + known.norm()) / abs(kept.scale)
        more, total, cut_off = 0.0, torch.zeros_like(value), torch.zeros_like(value)
        clipped, gradients, batches = 0, 0, list[OracleBatch]()
        # Each vector's clipped sum by the oracle, and what clipping took off.
        for j, vector in enumerate(at.release.of):
            held = self._place(at, j, vector)
            if isinstance(held, str):
                return held
            of, place = held
            positions = of.batches.get(place, _NOBODY)
            found = self._sum(vector, of, place, positions, width)
            if len(positions):
                asked = vector.owner, of.points[place], positions, vector.clip, width
                batches.append(OracleBatch(at.where, *asked, found.rows, of.rows.get(place)))
            total += vector.weight * found.value
            cut_off += vector.weight * found.cut_off
            clipped += found.longer
            gradients += len(found.norms)
            lengths = float(found.norms.clamp(max=found.clip).sum())
            size += unit * abs(vector.weight) * lengths
            jump = float(found.norms.clamp(max=found.clip).max()) if len(found.norms) else 0.0
            kink = _KINK * jump if unit > torch.finfo(torch.float64).eps else 0.0
            more += abs(vector.weight) * (math.sqrt(unit) * lengths + kink)
        # Noise that was kept adds its rounding.
        for one in kept.noise.values():
            size += unit * float(one.double().norm())
        return Row(
            at=at,
            left=(value - known) / kept.scale - total,
            total=total,
            cut_off=cut_off,
            clipped=clipped,
            gradients=gradients,
            rounding=_ROUNDING * size + more,
            resolution=_USUAL * size,
            batches=batches,
        )

    def _place(self, at: KeptRelease, j: int, vector: Vector) -> tuple[KeptTranscript, int] | str:
        """Where the batch and the point of a vector were kept, or why there is no such place."""
        if vector.part is not None:
            return "it holds a part of a vector, and which coordinates is not recorded"
        if j in at.kept.points and (self._by_client or j in at.kept.batches):
            return at.kept, j
        found = self._places.get(_key(at, vector))
        return found or f"the batch or the point of vector {j} was not kept"

    def _sum(
        self, vector: Vector, of: KeptTranscript, place: int, positions: Tensor, width: int
    ) -> ClippedSum:
        made = (vector.owner, id(of), place, vector.clip, width)
        if made not in self._sums:
            shape = (1 if self._by_client else len(positions), width)
            self._sums[made] = self._oracle.clipped_sum(
                vector.owner, of.points[place], positions, clip=vector.clip, shape=shape
            )
        return self._sums[made]

    @property
    def residuals(self) -> Sequence[Sequence[Residual]]:
        """See `Recording`; rounds that share a source are one."""
        return [[self._residual(of) for of in _grouped(rows, _kind)] for rows in self._blocks]

    @cached_property
    def _blocks(self) -> list[list[Row]]:
        every = {(row.at.played, one.id) for row in self.rows for one in row.at.release.noise}
        named = [name for _, name in every if name is not None]
        if len(set(named)) < len(named):
            return [self.rows]
        return _grouped(self.rows, lambda row: row.at.played)

    @cached_property
    def _columns(self) -> dict[object, int]:
        """Each source's number: of a name, or of a release's own."""
        found: dict[object, int] = {}
        for row in chain.from_iterable(self._blocks):
            for j, one in enumerate(row.at.release.noise):
                found.setdefault(_source(row, j, one.id), len(found))
        return found

    def _residual(self, rows: Sequence[Row]) -> Residual:
        columns = self._columns
        entries = [
            (i, columns[_source(row, j, one.id)], one.std)
            for i, row in enumerate(rows)
            for j, one in enumerate(row.at.release.noise)
        ]
        at, to, std = zip(*entries, strict=True) if entries else ((), (), ())
        first, many = rows[0].at, len(self._blocks) == 1 and len(self.rounds.numbers) > 1
        return Residual(
            round=first.played.round,
            kind=f"message {first.release.kind}",
            names=[
                row.at.name + (f" of round {row.at.played.round}" if many else "") for row in rows
            ],
            value=torch.stack([row.left for row in rows]),
            rounding=torch.tensor([row.rounding for row in rows]),
            resolution=torch.tensor([row.resolution for row in rows]),
            noise=csr_array((std, (at, to)), shape=(len(rows), len(columns)), dtype=float),
        )

    @property
    def source_starts(self) -> tuple[Sequence[int], int]:
        """See `Recording`: sources are numbered over all rounds."""
        return [0] * len(self._blocks), len(self._columns)

    @property
    def made_noise(self) -> Sequence[tuple[str, Tensor]]:
        """See `Recording`: what the recorder drew, each source once."""
        found: dict[object, tuple[str, Tensor]] = {}
        for row in self.rows:
            for j, z in row.at.kept.noise.items():
                source = _source(row, j, row.at.release.noise[j].id)
                found.setdefault(source, (f"the noise of {row.at.where}", z[None]))
        return list(found.values())

    @property
    def parts(self) -> Mapping[int, Sequence[Part]]:
        """See `Recording`: what a message's coordinates are is not recorded."""
        return {}

    @property
    def told(self) -> str:
        """See `Recording`."""
        return rounds_text(self.rounds.numbers)


def _grouped(rows: Sequence[Row], key: Callable[[Row], object]) -> list[list[Row]]:
    """Rows whose keys are equal together, in order."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return list(found.values())


def _kind(row: Row) -> object:
    return row.at.release.kind, len(row.left)


def _source(row: Row, j: int, id: str | None) -> object:
    return (id,) if id is not None else (row.at.played, row.at.kept, j)


def _key(at: KeptRelease, vector: Vector) -> _Key | None:
    if vector.vector is None:
        return None
    played = at.played if vector.round is None else Played(vector.round, vector.again)
    return vector.owner, played, vector.batch, vector.vector


def _places(rounds: KeptRounds) -> dict[_Key | None, tuple[KeptTranscript, int]]:
    """Where the batch and the point of a vector with a name were kept."""
    found: dict[_Key | None, tuple[KeptTranscript, int]] = {}
    for at in rounds.releases:
        for j, vector in enumerate(at.release.of):
            key = _key(at, vector)
            if key is not None and j in at.kept.points and j in at.kept.batches:
                found.setdefault(key, (at.kept, j))
    return found
