"""Which batch a release is made of, as its line says it: drawn by the recorder, or as declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.releases.fields import shown
from ...privacy.releases.lines import Header, Release
from .drawn import DrawnBatch

__all__ = ["Said", "labelled"]


def labelled(
    entry: dict[str, Any],
    header: Header,
    *,
    sender: int,
    round: int,
    drawn: Sequence[DrawnBatch],
    said: Said,
    positions: Sequence[NDArray[np.int64] | None] | None,
) -> dict[str, Any]:
    """A release's line with the batches that were drawn for its round.

    Args:
        entry: the line as the caller gives it; `of` may be missing.
        header: of the log.
        sender: whose release it is.
        round: the number of its round.
        drawn: the batches of the round so far.
        said: by earlier lines.
        positions: of each vector, where they are given.

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
        given = positions[place] if positions is not None and place < len(positions) else None
        if vector.get("round", round) != round:
            marked.append(said.carried_on(dict(vector)))
            continue
        if not mine:
            marked.append(dict(vector))
            continue
        marked.append(_marked(dict(vector), _which(vector, mine, given), header))
    return {**entry, "of": marked}


def _which(
    vector: Mapping[str, Any], drawn: Sequence[DrawnBatch], given: NDArray[np.int64] | None
) -> DrawnBatch:
    """The drawn batch that a vector is made of."""
    owner = vector["owner"]
    if "batch" in vector:
        named = [one for one in drawn if one.name == str(vector["batch"])]
        if not named:
            raise InputError(
                f"batch={shown(vector['batch'])} of agent {owner} was not drawn in this round; "
                f"drawn are {', '.join(one.name for one in drawn)}"
            )
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


class Said:
    """What earlier lines say of rounds, batches, vectors and sources.

    A reader refuses a log that contradicts itself, so a line that would is never written.
    """

    def __init__(self) -> None:
        self._sent: set[tuple[int, str, int | None]] = set()
        self._rates: dict[tuple[int, int | None, str], float] = {}
        self._clips: dict[tuple[int, int | None, str, str], float] = {}
        self._knowers: dict[str, frozenset[int]] = {}

    def batches(self, owner: int) -> set[str]:
        """Names of the batches of an owner in this round."""
        return {name for who, at, name in self._rates if who == owner and at is None}

    def new_round(self, last: int) -> None:
        """Forget what the last round alone may not say twice."""
        self._sent.clear()
        named = {(who, at, batch) for who, at, batch, _ in self._clips if at is None}
        # Vectors with names may be carried on into later rounds.
        self._rates = {
            (who, last if at is None else at, batch): rate
            for (who, at, batch), rate in self._rates.items()
            if at is not None or (who, at, batch) in named
        }
        self._clips = {
            (who, last if at is None else at, batch, name): clip
            for (who, at, batch, name), clip in self._clips.items()
        }

    def take_in(self, release: Release, *, round: int) -> None:
        """Take in a release of an earlier session: its named vectors and sources."""
        self._knowers.update({one.id: one.known_to for one in release.noise if one.id is not None})
        for vector in release.of:
            if vector.vector is not None:
                at = round if vector.round is None else vector.round
                key = vector.owner, at, vector.batch
                self._rates[key] = vector.rate
                self._clips[*key, vector.vector] = vector.clip

    def carried_on(self, vector: dict[str, Any]) -> dict[str, Any]:
        """A vector of an earlier round, with the rate that its batch was drawn at."""
        key = vector.get("owner"), vector.get("round"), str(vector.get("batch", 0))
        rate = next((of for at, of in self._rates.items() if at == key), None)
        if rate is None or "rate" in vector or "sampler" in vector:
            return vector
        return {**vector, "rate": rate, **({"sampler": "poisson"} if rate < 1 else {})}

    def check(self, release: Release, *, round: int) -> None:
        """Refuse a release that contradicts an earlier line, and take it in.

        Raises:
            ValueError: it does.
        """
        ends = [None] if release.to is None else sorted(release.to)
        for to in ends:
            if (release.sender, release.kind, to) in self._sent:
                raise InputError(
                    f"round {round} has a release {release.kind!r} to the same receiver already; "
                    "give another message of the round another kind, or the next round its number"
                )
        rates, clips = dict(self._rates), dict(self._clips)
        for vector in release.of:
            key = vector.owner, vector.round, vector.batch
            if rates.setdefault(key, vector.rate) != vector.rate:
                raise InputError(
                    f"batch {vector.batch} of agent {vector.owner} has the rates {rates[key]:g} "
                    f"and {vector.rate:g}; a batch is drawn once, so give another its own name"
                )
            if vector.vector is not None:
                name = *key, vector.vector
                if clips.setdefault(name, vector.clip) != vector.clip:
                    raise InputError(
                        f"vector {vector.vector!r} of agent {vector.owner} has the clip norms "
                        f"{clips[name]:g} and {vector.clip:g}; it is clipped once"
                    )
        for one in release.noise:
            if one.id is not None and self._knowers.get(one.id, one.known_to) != one.known_to:
                raise InputError(
                    f"noise {one.id!r} is said to be known to others than before; name all who "
                    "know it, each time"
                )
        self._rates, self._clips = rates, clips
        self._sent |= {(release.sender, release.kind, to) for to in ends}
        self._knowers.update({one.id: one.known_to for one in release.noise if one.id is not None})
