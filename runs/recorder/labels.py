"""Which batch a release is made of, as its line says it: drawn by the recorder, or as declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.releases.fields import shown
from ...privacy.releases.lines import Header
from .drawn import DrawnBatch
from .said import Said

__all__ = ["labelled"]


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
