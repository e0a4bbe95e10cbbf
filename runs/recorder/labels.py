"""Which batch a release is made of, as its line says it: drawn by the recorder, or as declared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError, needed
from ...privacy.releases.lines import Header, Played, Release, Vector
from ...privacy.releases.received import Received
from ...privacy.releases.values import check_name, integer, positive, probability, shown
from ...training.data.partition import poisson_batch
from ...training.device.later import is_tensor, torch
from ...training.engine.randomness import Purpose, SecretRandomness
from . import keeping

if TYPE_CHECKING:
    from torch import Tensor

    from ...attacks.foreign.audit_training import Planted

# What earlier lines say, which later ones may not deny.
#
# A reader refuses a log that contradicts itself, so a line that would is never written.

# (owner, batch, None) with its rate, or (owner, batch, vector) with its clip norm.
_Fact = tuple[tuple[int, str, str | None], float]


class EarlierLines:
    """Rates of batches, clip norms of vectors, knowers of sources, and who received what.

    Rounds that are alike share what is held of them.
    """

    def __init__(self, header: Header) -> None:
        self._received = Received(header)
        self._sent: set[tuple[int, str, int | None]] = set()
        self._now: dict[tuple[int, str, str | None], float] = {}
        self._past: dict[int, frozenset[_Fact]] = {}
        self._played: set[int] = set()
        self._held: dict[frozenset[_Fact], frozenset[_Fact]] = {}
        self._knowers: dict[str, frozenset[int]] = {}

    def batches(self, owner: int) -> set[str]:
        """Names of the batches of an owner in this round."""
        return {batch for who, batch, vector in self._now if who == owner and vector is None}

    def sources(self) -> frozenset[str]:
        """Names of all noise so far."""
        return frozenset(self._knowers)

    def new_round(self, last: int) -> None:
        """What was said of the last round is of the past."""
        self._add(last, self._now.items())
        self._played.add(last)
        self._now = {}
        self._sent.clear()

    def take_in(self, release: Release, *, round: int) -> None:
        """Take in a release of an earlier session."""
        self._played.add(round)
        for vector in release.of:
            self._add(round if vector.round is None else vector.round, _facts(vector))
        self._know(release)
        self._received.take_in(release, Played(round, 0))

    def carried_on(self, vector: dict[str, Any]) -> dict[str, Any]:
        """A vector of an earlier round, with the rate that its batch was drawn at."""
        at, batch = vector.get("round"), str(vector.get("batch", 0))
        past = self._past.get(at, frozenset()) if isinstance(at, int) else frozenset()
        rates = {rate for key, rate in past if key == (vector.get("owner"), batch, None)}
        if len(rates) != 1 or "rate" in vector or "sampler" in vector:
            return vector
        (rate,) = rates
        return {**vector, "rate": rate, **({"sampler": "poisson"} if rate < 1 else {})}

    def check(self, release: Release, *, round: int) -> None:
        """Refuse a release that contradicts an earlier line, and take it in.

        Raises:
            ValueError: it does, or does not say what it holds of what its sender received.
        """
        # A message of a round is released once to each receiver.
        ends = [None] if release.to is None else sorted(release.to)
        if any((release.sender, release.kind, to) in self._sent for to in ends):
            raise InputError(
                f"round {round} has a release {release.kind!r} to the same receiver already; give "
                "another message of the round another kind, or the next round its number"
            )
        # A batch or a vector with a name has the same facts in each release.
        now: dict[tuple[int, str, str | None], float] = dict(self._now)
        past: dict[int, dict[tuple[int, str, str | None], float]] = {}
        for vector in release.of:
            for key, value in _facts(vector):
                at, said = round if vector.round is None else vector.round, {value}
                # A round that is gone through again draws its batches anew.
                if vector.round is not None or round not in self._played:
                    said |= {of for fact, of in self._past.get(at, ()) if fact == key}
                of = now if vector.round is None else past.setdefault(at, {})
                said.add(of.setdefault(key, value))
                if said != {value}:
                    raise _contradiction(vector, key[2], sorted(said))
        for one in release.noise:
            if one.id is not None and self._knowers.get(one.id, one.known_to) != one.known_to:
                raise InputError(
                    f"noise {one.id!r} is declared as known to others than before; name all who "
                    "know it, each time"
                )
        # What was received is checked, too; only then does the line count as said.
        self._received.check(release, Played(round, 0))
        self._received.with_knowers(release, Played(round, 0))
        self._received.take_in(release, Played(round, 0))
        self._now = now
        for number, facts in past.items():
            self._add(number, facts.items())
        self._sent |= {(release.sender, release.kind, to) for to in ends}
        self._know(release)

    def _know(self, release: Release) -> None:
        self._knowers.update({one.id: one.known_to for one in release.noise if one.id is not None})

    def _add(self, round: int, facts: Iterable[_Fact]) -> None:
        whole = self._past.get(round, frozenset()) | frozenset(facts)
        self._past[round] = self._held.setdefault(whole, whole)


def _facts(vector: Vector) -> list[_Fact]:
    found: list[_Fact] = [((vector.owner, vector.batch, None), vector.rate)]
    if vector.vector is not None:
        found.append(((vector.owner, vector.batch, vector.vector), vector.clip))
    return found


def _contradiction(vector: Vector, name: str | None, values: list[float]) -> InputError:
    several = " and ".join(f"{value:g}" for value in values)
    of = f"of agent {vector.owner}" + ("" if vector.round is None else f" in round {vector.round}")
    if name is None:
        return InputError(
            f"batch {vector.batch} {of} has the rates {several}; a batch is drawn once, so give "
            "another its own name"
        )
    return InputError(f"vector {name!r} {of} has the clip norms {several}; it is clipped once")


# Batches and noise that a recorder draws, and the round that each belongs to.
#
# Both come from the engine's secret randomness under a root of the system's entropy, each from a
# stream of its own that is never used again. What was drawn since the last release belongs to the
# round of the next. Noise is held as the place of its stream, not as its numbers.

_MOST_RECORDS = 10**9
_MOST_VALUES = 2**31


@dataclass(kw_only=True, slots=True, eq=False)
class DrawnBatch:
    """A Poisson batch of one owner; its name is given when its round is known."""

    owner: int
    positions: NDArray[np.int64]
    records: int
    rate: float
    name: str = ""


@dataclass(kw_only=True, slots=True, eq=False)
class DrawnNoise:
    """Gaussian noise, as the place of its stream.

    Attributes:
        number: of the draw.
        std: the deviation of each value.
        id: the source's name, where it has one.
        dtype: "float32" or "float64".
        device: where a tensor of it lies; an array lies on the "cpu".
        used: whether a release has it, so that no other may have it without its name.
    """

    number: int
    shape: tuple[int, ...]
    std: float
    id: str | None
    dtype: str
    device: str
    used: bool = False

    @property
    def values(self) -> int:
        """How many numbers it has."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(slots=True)
class Draws:
    """What was drawn in the current round, and what waits for the round of the next release."""

    batches: list[DrawnBatch] = field(default_factory=list)
    noise: list[DrawnNoise] = field(default_factory=list)
    named: dict[str, DrawnNoise] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()  # names of an earlier session's noise
    _randomness: SecretRandomness = field(default_factory=SecretRandomness)
    _waiting_batches: list[DrawnBatch] = field(default_factory=list)
    _waiting_noise: list[DrawnNoise] = field(default_factory=list)
    _count: int = 0
    _process: int = field(default_factory=os.getpid)

    def batch(
        self, owner: int, records: Any, rate: Any, *, planted: Planted | None
    ) -> NDArray[np.int64]:
        """Positions (B,), ascending, each drawn on its own at the rate; of an audit those there."""
        self.check_process()
        records = integer(keeping.plain(records), "n", least=0, most=_MOST_RECORDS)
        rate = probability(keeping.plain(rate))
        stream = self._randomness.stream(Purpose.BATCH, round=self._next(), call=0, row=owner)
        if planted is not None and records != len(planted):
            raise InputError(
                f"n={records} is not the length of the data, {len(planted)} with their canaries; "
                "draw from as many as len(data) says"
            )
        found = poisson_batch(records, rate, generator=stream)
        here = found if planted is None else planted.present(found.tolist())
        drawn = DrawnBatch(
            owner=owner, positions=np.asarray(here, dtype=np.int64), records=records, rate=rate
        )
        self._waiting_batches.append(drawn)
        return drawn.positions.copy()

    def draw_noise(self, shape: Any, std: Any, id: str | None, like: Any) -> Tensor | NDArray[Any]:
        """Noise of a shape, as a tensor or, where `like` is one, an array."""
        self.check_process()
        of = self._noise_of(shape, std, id, like)
        made = self.made(of).reshape(of.shape)
        return made if isinstance(like, np.ndarray) else keeping.as_tensor(made)

    def _noise_of(self, shape: Any, std: Any, id: str | None, like: Any) -> DrawnNoise:
        dtype, device = _kind(like)
        std, sizes = positive(keeping.plain(std), "std"), _sizes(shape)
        if id is not None:
            check_name(id, "id")
        if id in self.gone:
            raise InputError(
                f"noise {id!r} is that of an earlier session, whose randomness is gone, so what "
                "were drawn now would be other noise under its name; give it another name"
            )
        # New noise, or the source that has the name already, requested alike.
        one = None if id is None else self.named.get(id)
        if one is None:
            one = DrawnNoise(
                number=self._next(), shape=sizes, std=std, id=id, dtype=dtype, device=device
            )
            self._waiting_noise.append(one)
            if id is not None:
                self.named[id] = one
        elif (one.shape, one.std, one.dtype, one.device) != (sizes, std, dtype, device):
            raise InputError(
                f"noise {id!r} was drawn with shape {one.shape} and std={one.std:g} "
                f"({one.dtype} on {one.device}), and is requested with {sizes} and {std:g} "
                f"({dtype} on {device}); one source has one of each: weight it in the sum"
            )
        return one

    def made(self, one: DrawnNoise) -> Tensor | NDArray[Any]:
        """(D,) the numbers of some noise."""
        place: Any = {"round": one.number, "call": 0, "rows": [0], "width": one.values}
        if one.device == "cpu":
            return one.std * self._randomness.normal_array(**place, dtype=np.dtype(one.dtype))[0]
        dtype = getattr(torch, one.dtype)
        return one.std * self._randomness.normal(**place, dtype=dtype, device=one.device)[0]

    def enter(self, *, new: bool) -> None:
        """Give what waits to the round of a release; `new` where it is another than before."""
        if new:
            self.batches, self.noise = [], []
        self.batches += self._waiting_batches
        self.noise += self._waiting_noise
        self._waiting_batches, self._waiting_noise = [], []

    def check_process(self) -> None:
        """Refuse a copy of the process, which would draw the same noise again.

        Raises:
            ValueError: this is another process than the one that began.
        """
        if os.getpid() != self._process:
            raise InputError(
                "this recorder was copied into another process, where it would draw the same noise "
                "and the same batches once more; open a recorder in each process, after the fork"
            )

    def _next(self) -> int:
        self._count += 1
        return self._count


def _kind(like: Any) -> tuple[str, str]:
    """The precision of noise, and the device that it is on."""
    if like is None:
        with needed("noise without like=, an array,"):
            return str(torch.get_default_dtype()).removeprefix("torch."), "cpu"
    if is_tensor(like):
        device = str(like.device)
    elif isinstance(like, np.ndarray) and like.dtype.kind == "f" and like.dtype.itemsize <= 8:
        device = "cpu"
    else:
        raise InputError(f"like={shown(like)} must be a tensor or an array of floats")
    if not keeping.is_precise(like):
        raise InputError(f"like holds {like.dtype}; noise is drawn in float32 or float64")
    return keeping.precision_of(like), device


def _sizes(shape: Any) -> tuple[int, ...]:
    every = [shape] if isinstance(shape, int | np.integer) else shape
    try:
        sizes = tuple(integer(keeping.plain(n), "shape", least=0, most=_MOST_VALUES) for n in every)
    except TypeError:
        raise InputError(f"shape={shown(shape)} must be a number or a tuple of them") from None
    if np.prod(sizes, dtype=float) > _MOST_VALUES:
        raise InputError(f"shape={shown(shape)} must have at most {_MOST_VALUES} values")
    return sizes


def labelled(
    entry: dict[str, Any],
    header: Header,
    *,
    sender: int,
    round: int,
    drawn: Sequence[DrawnBatch],
    said: EarlierLines,
    positions: Sequence[NDArray[np.int64] | None],
) -> dict[str, Any]:
    """A release's line with the batches that were drawn for its round.

    Args:
        entry: the line as the caller gives it; `of` may be missing.
        positions: of each vector, None where they are not given.

    Returns:
        The line, with batch, rate and sampler where the recorder drew the batch.

    Raises:
        ValueError: a batch that nobody drew, or several that it may be.
    """
    of = entry.get("of")
    if of is None:
        if not any(one.owner == sender for one in drawn):
            return entry
        of = [{"owner": sender}]
    elif not isinstance(of, Sequence) or not all(isinstance(one, Mapping) for one in of):
        return entry  # the reader says what is wrong
    marked = []
    for place, vector in enumerate(of):
        mine = [one for one in drawn if one.owner == vector.get("owner")]
        given = positions[place] if place < len(positions) else None
        if vector.get("round", round) != round:
            marked.append(said.carried_on(dict(vector)))
        elif mine:
            marked.append(_marked(dict(vector), _which(vector, mine, given), header))
        else:
            marked.append(dict(vector))
    return {**entry, "of": marked}


def _which(
    vector: Mapping[str, Any], drawn: Sequence[DrawnBatch], given: NDArray[np.int64] | None
) -> DrawnBatch:
    """The drawn batch that a vector is made of."""
    # A batch by its name, by its positions, or the only one of its owner.
    owner = vector["owner"]
    if "batch" in vector:
        named = [one for one in drawn if one.name == str(vector["batch"])]
        if not named:
            raise InputError(
                f"batch={shown(vector['batch'])} of agent {owner} was not drawn in this round; "
                f"drawn are {', '.join(one.name for one in drawn)}"
            )
        # Positions that are given must be those that were drawn.
        if given is not None and not np.array_equal(given, named[0].positions):
            raise InputError(
                f"the positions given are not those of batch {named[0].name} of agent {owner}, as "
                "ledger.batch drew it; give what it returned"
            )
        return named[0]
    if given is not None:
        same = [one for one in drawn if np.array_equal(given, one.positions)]
        if not same:
            raise InputError(
                f"batch is none of the {len(drawn)} that ledger.batch drew for agent {owner} in "
                "this round; give what it returned, or draw all batches elsewhere and declare the "
                "sampler in record(...)"
            )
        return same[-1]
    if len(drawn) > 1:
        raise InputError(
            f"{len(drawn)} batches of agent {owner} were drawn in this round, and a release does "
            "not say of which it is made; give batch=..., as ledger.batch returned it, or "
            f'of=[{{"owner": {owner}, "batch": 0}}, ...]'
        )
    return drawn[0]


def _marked(vector: dict[str, Any], one: DrawnBatch, header: Header) -> dict[str, Any]:
    if vector.get("rate", one.rate) != one.rate:
        raise InputError(
            f"rate={shown(vector['rate'])} of a vector is not {one.rate:g}, at which its batch was "
            "drawn; leave it out"
        )
    vector["batch"] = one.name
    if one.rate != header.rate:
        vector["rate"] = one.rate
    if not header.poisson or "sampler" in vector:
        vector["sampler"] = "poisson"
    return vector


# From a release and what its caller gave to the transcript that is kept of it.


class Sent(NamedTuple):
    """What leaves: known + scale (sum of clipped vectors + noise).

    Attributes:
        value: (D,), None where it is not given.
        known: (D,) what of it everybody may know, None for nothing.
        scale: of the sum and its noise.
    """

    value: Tensor | NDArray[Any] | None
    known: Tensor | NDArray[Any] | None
    scale: float


def transcribed(
    release: Release,
    *,
    drawn: Draws,
    sent: Sent,
    batches: Sequence[NDArray[np.int64] | None],
    point: Any,
    records: int | None,
    rows: Any,
    order: Any,
) -> keeping.KeptTranscript:
    """The transcript of a release, of what was drawn for its round and given to `release`.

    Args:
        batches: positions of each vector, None where none were given.
        order: positions in the order of the rows, as the caller gave the batch.

    Raises:
        ValueError: sizes that do not fit.
    """
    value, known = (None if of is None else keeping.as_tensor(of) for of in sent[:2])
    assert value is not None  # noqa: S101 # who keeps a round looked
    keeping.check_precise(value, "value")
    # Positions and records: of a batch that was drawn here, or as they were given.
    mine = {(one.owner, one.name): one for one in drawn.batches}
    positions: dict[int, Tensor] = {}
    held: dict[int, int] = {}
    points: dict[int, Tensor] = {}
    given = keeping.each_of(point, len(release.of), "point")
    for j, vector in enumerate(release.of):
        if given[j] is not None:
            points[j] = keeping.vector_of(given[j], "point")
        one = mine.get((vector.owner, vector.batch)) if vector.round is None else None
        at = batches[j] if j < len(batches) else None
        if at is None and one is not None:
            at = one.positions
        if at is not None:
            positions[j] = torch.from_numpy(at.copy())
        if one is not None:
            held[j] = one.records
        elif records is not None and at is not None:
            held[j] = records
    if known is not None and known.shape != value.shape:
        told = f"known has {len(known)} coordinates and value {len(value)}"
        raise InputError(f"{told}; they are added up")
    return keeping.KeptTranscript(
        value=value,
        known=known,
        scale=sent.scale,
        batches=positions,
        records=held,
        points=points,
        noise=_noise(release, drawn, len(value)),
        rows=_rows(release, rows, order, positions),
    )


def _noise(release: Release, drawn: Draws, width: int) -> dict[int, Tensor]:
    """Of each source that the recorder drew what is in the sum; an unnamed draw is used once."""
    found: dict[int, Tensor] = {}
    for j, source in enumerate(release.noise):
        if source.id is not None:
            one = drawn.named.get(source.id)
        else:
            free = (of for of in drawn.noise if of.id is None and not of.used)
            fits = (of for of in free if of.std == abs(source.std) and of.values == width)
            one = next(fits, None)
        if one is not None and one.values == width:
            one.used = True
            found[j] = (source.std / one.std) * keeping.as_tensor(drawn.made(one)).cpu()
    return found


def _rows(
    release: Release, rows: Any, order: Any, positions: Mapping[int, Tensor]
) -> dict[int, Tensor]:
    """Sketches of what each record of a vector's batch added, in the order of its positions."""
    from .outcome import kept_rows

    found: dict[int, Tensor] = {}
    given = keeping.each_of(order, len(release.of), "batch")
    for j, one in enumerate(keeping.each_of(rows, len(release.of), "rows")):
        if one is None:
            continue
        if j not in positions:
            raise InputError("rows are given without a batch; give batch=, whose records they are")
        at = positions[j] if given[j] is None else torch.as_tensor(given[j]).reshape(-1)
        found[j] = kept_rows(one, at.cpu(), release.of[j].clip)
    return found
