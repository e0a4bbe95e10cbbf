"""The lines of a log of releases: closed keys, and what each of them must hold.

    {"schema": "releases-1", "system": "mine", "agents": 6, "clip": 1.0, "rate": 0.1,
     "sampler": "poisson", "depends_on": "released"}
    {"round": 1, "releases": [{"from": 0, "to": [1, 5], "kind": "model", "noise": 2.0}]}
    {"round": 2, "releases": [{"from": 0, "to": "all", "kind": "sum",
      "of": [{"owner": 0, "vector": "g"}, {"owner": 3, "weight": 0.5}],
      "noise": [{"std": 1.5}, {"id": "pair 0-1", "std": 1.0, "weight": -1, "known_to": [0, 1]}]}]}
    {"resumed_after": 2}

A release is a sum of clipped vectors, of Gaussian noise, and of what `depends_on` says that
everybody may know. What is left out is taken at its worst: a rate without the sampler "poisson" is
1, a vector without a name is another one than every other, and noise without an id is fresh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..guarantee import Unit
from . import values
from .values import digest, party, shown

SCHEMA = "releases-1"
MOST_AGENTS = 100_000
_HEADER_KEYS = (
    "schema", "system", "agents", "agent", "unit", "clip", "rate", "sampler", "depends_on", "links",
    "rounds", "scale", "noise", "weight", "lr",
)  # fmt: skip
_RELEASE_KEYS = (
    "from", "to", "kind", "of", "noise", "clip", "rate", "sampler", "at", "kept", "public",
    "noise_first",
)  # fmt: skip
_VECTOR_KEYS = ("owner", "batch", "vector", "part", "weight", "clip", "rate", "sampler", "round")
_NOISE_KEYS = ("std", "id", "weight", "known_to", "law")
_ULPS = 4e-16  # relative, by which a sum of squares may be rounded


class Loose(NamedTuple):
    """A number of a line that its header does not declare.

    Attributes:
        name: "clip", "noise", "rate" or "weight".
        value: in the line.
        said: what the header declares in its place, None for nothing.
    """

    name: str
    value: float
    said: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What all releases of a log have in common.

    Attributes:
        system: its name, for the reader.
        agents: number of agents A, from 1; a server is none of them.
        agent: whose releases the file holds, `agents` for the server; None for everybody's.
        unit: a record, or all that a client holds.
        clip: bound on the L2 norm of a vector, and so on what one unit changes in it.
        rate: probability that a unit is in a batch.
        poisson: whether each unit is drawn on its own at that rate; else the rate counts as 1.
        public: whether everything else in a release is a function of public releases alone;
            else of any release.
        encrypted: whether nobody on a link can read what crosses it.
        rounds: the number of the last round, where it is declared.
        numbers: clip, scale, noise, weight and lr as they are declared before the first batch:
            numbers, one for each round, or for each vector of weight; by kind where a mapping; the
            name of a public function where a text.
    """

    system: str
    agents: int
    agent: int | None
    unit: Unit
    clip: float | None
    rate: float
    poisson: bool
    public: bool
    encrypted: bool
    rounds: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def said(self, name: str, kind: str, place: int) -> float | None:
        """What is declared of a number, of a kind of releases; None for nothing.

        Args:
            name: "clip", "scale", "noise", "weight" or "lr".
            kind: of the release.
            place: from 0, of the round after round 1, or of the vector.
        """
        found = self.numbers.get(name)
        found = found.get(kind) if isinstance(found, Mapping) else found
        if isinstance(found, tuple):
            found = found[place] if 0 <= place < len(found) else None
        return None if isinstance(found, str) else found

    @property
    def by_round(self) -> bool:
        """Whether a declared number is another one in another round."""
        every = (of.values() if isinstance(of, Mapping) else [of] for of in self.numbers.values())
        return any(isinstance(one, tuple) for of in every for one in of)


@dataclass(frozen=True, kw_only=True, slots=True)
class Vector:
    """A clipped vector in a release: weight times the vector.

    Attributes:
        owner: whose records it is made of.
        batch: of the owner and round; one batch is drawn once, whatever is made of it.
        vector: its name in that batch; None where it is in no other release.
        part: the name of some of its coordinates, where it is sent in parts; the bound is that of
            the whole vector.
        weight: its factor, of either sign.
        clip: bound on its L2 norm, infinite where it is not clipped.
        rate: probability that a unit is in the batch, 1 where it is not known to be Poisson.
        round: of the batch, where it is an earlier one than the release's.
        again: how often that round had been gone through again by then.
    """

    owner: int
    batch: str
    vector: str | None
    part: str | None
    weight: float
    clip: float
    rate: float
    round: int | None
    again: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """Gaussian noise in a release.

    Attributes:
        std: deviation of each coordinate, in the unit of the sum as it is weighted; signed where
            the same source is in other releases with another sign.
        id: the source's name, where it is in several releases; None for fresh noise.
        known_to: agents that know it, `agents` for the server.
    """

    std: float
    id: str | None
    known_to: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """What one party sends or publishes at once.

    Attributes:
        sender: the agent, `agents` for the server.
        to: who receives it; None for everybody.
        of: vectors in it.
        noise: noise in it.
        unsampled: whether a rate was given and counts as 1, since no sampler is declared.
        kept: the SHA-256 of the transcript that was kept of it, None where none was; it changes
            no figure.
        public: why nothing that its sender received is in it beside what is listed; None where
            that is not said.
        noise_first: whether its noise is said to have met the bare sum, before anything else was
            added, so that no rounding beside other numbers came before it.
        scale: the factor of its sum that the header declares, None where it declares none.
        loose: numbers of it that the header does not declare.
    """

    sender: int
    to: frozenset[int] | None
    kind: str
    of: tuple[Vector, ...]
    noise: tuple[Noise, ...]
    unsampled: bool = False
    kept: str | None = None
    public: str | None = None
    noise_first: bool = False
    scale: float | None = None
    loose: tuple[Loose, ...] = ()

    @property
    def numbers(self) -> Iterator[tuple[str, float]]:
        """The numbers that its line says, by name."""
        for vector in self.of:
            yield from (("weight", vector.weight), ("clip", vector.clip), ("rate", vector.rate))
        if self.noise:
            yield "noise", math.hypot(*(one.std for one in self.noise))


class Played(NamedTuple):
    """A round as often as it was played: once more for each time that it was gone through again."""

    round: int
    again: int


@dataclass(kw_only=True, slots=True)
class LogFile:
    """One file of a log.

    Attributes:
        rounds: its releases, by round.
        at: the numbers of their lines, where somebody must have received what they hold.
        torn: how many of its lines were cut off.
        resumed_after: the rounds after which the system went on.
    """

    path: Path
    header: Header
    rounds: dict[Played, Sequence[Release]] = field(default_factory=dict)
    at: dict[Played, list[int]] = field(default_factory=dict)
    torn: int = 0
    resumed_after: list[int] = field(default_factory=list)


def join(
    rounds: dict[Played, Sequence[Release]], played: Played, releases: Sequence[Release]
) -> None:
    """Put releases of a round behind those that are there; a tuple may be that of many rounds."""
    held = rounds.get(played)
    if isinstance(held, list):
        held.extend(releases)
    else:
        rounds[played] = releases if held is None else [*held, *releases]


def read_header(found: Mapping[str, Any]) -> Header:
    """The header of a log.

    Raises:
        ValueError: a key that is unknown or missing, or a value out of range.

    >>> read_header({"schema": "releases-1", "agents": 6, "clip": 1.0}).agents
    6
    """
    if found.get("schema") != SCHEMA:
        raise InputError(
            f"schema={shown(found.get('schema'))} must be {SCHEMA!r}, the first line of a log of "
            "releases; the ledger of a run of ours is read by `overhear report`"
        )
    values.check_keys(found, _HEADER_KEYS, "the header")
    if "agents" not in found:
        raise InputError("agents is missing; the header says how many agents there are")
    agents = values.integer(found["agents"], "agents", least=1, most=MOST_AGENTS)
    system = found.get("system", "a system of your own")
    values.check_text(system, "system")
    values.check_choice(found, "unit", [str(Unit.RECORD), str(Unit.CLIENT)])
    values.check_choice(found, "depends_on", ["released", "public"])
    values.check_choice(found, "links", ["clear", "encrypted"])
    numbers = {
        key: values.declaration(found[key], key)
        for key in ("clip", "scale", "noise", "weight", "lr")
        if found.get(key) is not None
    }
    clip = numbers.get("clip")
    rounds = found.get("rounds")
    return Header(
        system=system,
        agents=agents,
        agent=None if found.get("agent") is None else party(found["agent"], "agent", agents),
        unit=Unit(found.get("unit", "record")),
        clip=clip if isinstance(clip, float) else None,
        rate=values.probability(found.get("rate", 1.0)),
        poisson=values.said_poisson(found) or False,
        public=found.get("depends_on") == "public",
        encrypted=found.get("links") == "encrypted",
        rounds=None
        if rounds is None
        else values.integer(rounds, "rounds", least=1, most=values.MOST_ROUND),
        numbers=numbers,
    )


def party_name(party: int, header: Header) -> str:
    """An agent by its number, or the server.

    >>> party_name(6, read_header({"schema": "releases-1", "agents": 6}))
    'the server'
    """
    return "the server" if party == header.agents else f"agent {party}"


def read_release(found: Any, header: Header, *, round: int) -> Release:
    """A release of a round.

    Raises:
        ValueError: a key that is unknown or missing, or a value out of range.
    """
    # Keys and kinds first, so that a refusal names what is missing.
    if not isinstance(found, Mapping):
        raise InputError(f"a release must be an object with from, to and kind, not {shown(found)}")
    values.check_keys(found, _RELEASE_KEYS, "a release")
    for key in ("from", "to", "kind", "noise"):
        if key not in found:
            remedy = "; [] says that there is none" if key == "noise" else ""
            raise InputError(f"{key} is missing in a release of round {round}{remedy}")
    if found.get("at", "released") != "released":
        raise InputError(
            f"at={shown(found['at'])}: a gradient at a point that is not released, such as one "
            "between local steps, moves with the records by more than its clip norm; declare the "
            "clipped difference of the local steps as the vector"
        )
    sender = party(found["from"], "from", header.agents)
    values.check_text(found["kind"], "kind")
    if found.get("public") is not None:
        values.check_text(found["public"], "public")
    if not isinstance(found.get("noise_first", False), bool):
        raise InputError(f"noise_first={shown(found['noise_first'])} must be true or false")
    # What is in it: the vectors listed, or else one of the sender's own.
    if "of" in found:
        if not isinstance(found["of"], Sequence) or isinstance(found["of"], str):
            raise InputError(f"of={shown(found['of'])} must be a list of vectors")
        specs = list(found["of"])
    elif sender == header.agents:
        raise InputError(
            "of is missing in a release of the server, which holds no records: list the vectors "
            "that are in it, or [] where it is a function of what everybody may know"
        )
    else:
        specs = [{"owner": sender}]
    of = tuple(_vector(spec, found, header, round=round) for spec in specs)
    noise = _noise(found["noise"], header, sender=sender)
    scale = header.said("scale", found["kind"], round - 1)
    # The parts read the rest of the release themselves, by the same rules.
    return Release(
        sender=sender,
        to=values.receivers(found["to"], header.agents),
        kind=found["kind"],
        of=of,
        noise=noise,
        unsampled=any(_unsampled(spec, found, header) for spec in specs),
        kept=None if found.get("kept") is None else digest(found["kept"]),
        public=found.get("public"),
        noise_first=found.get("noise_first", False),
        scale=scale,
        loose=tuple(_loose(found["kind"], of, noise, header, round=round)),
    )


def _loose(
    kind: str, of: Sequence[Vector], noise: Sequence[Noise], header: Header, *, round: int
) -> Iterator[Loose]:
    """Numbers of a line that are not those of its header."""
    clip, std = (header.said(name, kind, round - 1) for name in ("clip", "noise"))
    for place, vector in enumerate(of):
        weight = header.said("weight", kind, place)
        if vector.weight != (1.0 if weight is None else weight):
            yield Loose("weight", vector.weight, weight)
        if vector.clip != clip and math.isfinite(vector.clip):
            yield Loose("clip", vector.clip, clip)
        if vector.rate not in (1.0, header.rate):
            yield Loose("rate", vector.rate, None)
    total = math.hypot(*(one.std for one in noise))
    if noise and (std is None or not math.isclose(total, std, rel_tol=_ULPS)):
        yield Loose("noise", total, std)


def _vector(found: Any, release: Mapping[str, Any], header: Header, *, round: int) -> Vector:
    if not isinstance(found, Mapping):
        raise InputError(f"a vector of `of` must be an object with its owner, not {shown(found)}")
    values.check_keys(found, _VECTOR_KEYS, "a vector of `of`")
    if "owner" not in found:
        raise InputError("owner is missing in a vector of `of`: the agent whose records it holds")
    # The clip norm that stands nearest: the vector's, the release's or the header's.
    said = header.said("clip", release["kind"], round - 1)
    clip = found.get("clip", release.get("clip", said))
    if clip is None:
        raise InputError(
            "clip is missing: without a bound on what one unit changes, no noise hides it; give "
            'clip in the header, in the release or in the vector, or "none" if nothing is clipped'
        )
    # Parts, and vectors of earlier rounds, are known for the same ones by a name alone.
    at = found.get("round")
    if at is not None:
        at = values.integer(at, "round of a vector", least=0, most=round)
    name, part = found.get("vector"), found.get("part")
    for key, text in (("vector", name), ("part", part)):
        if text is not None:
            values.check_name(text, key)
    if part is not None and name is None:
        raise InputError(
            f"part={shown(part)} of a vector without a name: give the name as `vector`, by which "
            "its parts are known for those of one vector"
        )
    if at not in (None, round) and name is None:
        raise InputError(
            f"a vector of round {at} in a release of round {round} needs its name as `vector`, so "
            "that it is known for the same one"
        )
    weight = values.number(found.get("weight", 1.0), "weight")
    values.check_size(weight, "weight")
    return Vector(
        owner=values.integer(found["owner"], "owner", least=0, most=header.agents - 1),
        batch=values.batch_name(found.get("batch", 0)),
        vector=name,
        part=part,
        weight=weight,
        clip=said if clip is said else values.read_clip(clip),
        rate=_rate_of(found, release, header),
        round=None if at == round else at,
    )


def _rate_of(found: Mapping[str, Any], release: Mapping[str, Any], header: Header) -> float:
    rate = values.probability(found.get("rate", release.get("rate", header.rate)))
    return rate if _is_poisson(found, release, header) else 1.0


def _is_poisson(found: Mapping[str, Any], release: Mapping[str, Any], header: Header) -> bool:
    for said in (values.said_poisson(found), values.said_poisson(release)):
        if said is not None:
            return said
    return header.poisson


def _unsampled(found: Any, release: Mapping[str, Any], header: Header) -> bool:
    rate = found.get("rate", release.get("rate", header.rate))
    return rate < 1 and not _is_poisson(found, release, header)


def _noise(found: Any, header: Header, *, sender: int) -> tuple[Noise, ...]:
    if isinstance(found, bool) or not isinstance(found, Sequence | int | float):
        raise InputError(
            f"noise={shown(found)} must be a deviation, or a list of objects with std; [] is none"
        )
    if isinstance(found, int | float):
        found = [{"std": found}] if found != 0 else []
    if isinstance(found, str):
        raise InputError(f"noise={shown(found)} must be a deviation, or a list of objects")
    every = [_source(one, header, sender=sender) for one in found]
    ids = [one.id for one in every if one.id is not None]
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise InputError(f"noise id={shown(twice)} stands twice in one release; add their std")
    return tuple(every)


def _source(found: Any, header: Header, *, sender: int) -> Noise:
    if not isinstance(found, Mapping):
        raise InputError(f"noise of a list must be an object with std, not {shown(found)}")
    values.check_keys(found, _NOISE_KEYS, "noise")
    if "std" not in found:
        raise InputError("std is missing in noise: the deviation of each coordinate")
    if found.get("law", "gaussian") != "gaussian":
        raise InputError(
            f"law={shown(found['law'])}: only Gaussian noise is accounted for, and another law "
            "has another price; leave the release out and account for it elsewhere"
        )
    std = values.positive(found["std"], "std")
    weight = values.number(found.get("weight", 1.0), "weight of noise")
    values.check_size(weight, "weight of noise")
    name = found.get("id")
    if name is not None:
        values.check_name(name, "id")
    known = found.get("known_to", [values.SERVER if sender == header.agents else sender])
    if not isinstance(known, Sequence) or isinstance(known, str):
        raise InputError(f"known_to={shown(known)} must be a list of agents")
    knowers = frozenset(party(one, "known_to", header.agents) for one in known)
    return Noise(std=std * weight, id=name, known_to=knowers)
