"""What the batches of one round cost a victim: each by itself, those of a secret cohort as one.

Batches whose releases share noise are not each by itself. Where they enter all that is seen as one
sum, such as that of k sums accumulated under one noise, a record moves it once for each batch that
it is in, and each of them has a coin of its own: as k records of one person move one batch. Other
batches that share noise are charged what the certificate of all their columns together says
(`privacy.view.view.certificate`), as those of several holders are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...privacy.errors import InexpressibleView
from ...privacy.guarantee import Unit
from ...privacy.participation import Draws, Reach
from ...privacy.view.view import View

Key = tuple[int, int | None]  # the calls of `draw` and `cohort`


class Sensitivity(NamedTuple):
    """mu of one batch's releases for one victim, and what decided it."""

    mu: float
    draws: Draws
    contributions: int
    because: str
    reach: Reach = Reach.SUM
    interleaved: bool = False
    several: int = 1  # batches of one secret cohort, each released with noise of its own
    summed: int = 1  # batches of one sum, of which the record is in some
    shares: bool = False  # whether its noise is that of another batch of the round, too


class Charge(NamedTuple):
    """What one batch is charged: mu, for how many batches, and whether its noise is theirs, too."""

    mu: float
    summed: int = 1
    shares: bool = False


def joined(found: Sequence[Sensitivity], keys: Sequence[Key], *, unit: Unit) -> list[Sensitivity]:
    """Sensitivities by batch, those of one secret cohort as one: its coin is theirs together.

    Args:
        found: one for each batch and cohort.
        keys: the batch and the cohort of each.
        unit: whose data they are of.

    Raises:
        InexpressibleView: what is seen of a batch depends on a cohort only in part.
    """
    joint, seen = list(found), [i for i, sensitivity in enumerate(found) if sensitivity.mu > 0]
    if unit is Unit.AGENT or all(cohort is None for _, cohort in keys):
        return joint
    if len({keys[i][0] for i in seen}) < len(seen):
        raise InexpressibleView(
            "one batch is seen both with and without its secret cohort, or under two of them, "
            "whose draws go together; give each a batch of its own"
        )
    for cohort in {keys[i][1] for i in seen} - {None}:
        same = [i for i in seen if keys[i][1] == cohort]
        if len(same) == 1:
            continue
        if len({joint[i].draws for i in same}) > 1:
            raise InexpressibleView(
                "batches of one secret cohort are drawn at different rates, for which no "
                "bound is known; draw them at one rate"
            )
        # The worst batch of a cohort stands for all of them, and says how many they are.
        parts = [joint[i] for i in same]
        reaches = {part.reach for part in parts}
        worst = max(parts, key=lambda part: part.mu)
        for i in same:
            joint[i] = joint[i]._replace(mu=0.0)
        joint[same[0]] = worst._replace(
            contributions=sum(part.contributions for part in parts),
            reach=Reach.BALL if reaches == {Reach.BALL} else Reach.SUM,
            interleaved=True,
            several=len(parts),
        )
    return joint


def kinds(batches: Sequence[Draws], reaches: Sequence[tuple[Reach, bool]]) -> list[Draws | None]:
    """How records are drawn for each batch that another one may be added to; None of others.

    Each record adds to the sums of such a batch, and has a coin of its own for it.
    """
    found: list[Draws | None] = []
    for draws, (reach, _) in zip(batches, reaches, strict=True):
        plain = len(draws.rates) == 1 and draws == Draws(draws.rates)
        found.append(draws if plain and reach is Reach.SUM else None)
    return found


def charges(
    view: View,
    batches: Sequence[tuple[Sequence[int], Sequence[float]]],
    kinds: Sequence[Draws | None],
) -> list[Charge]:
    """Mu of a victim's batches, each by its columns and their bounds.

    Args:
        view: what is seen.
        batches: the columns of each, and their bounds.
        kinds: as `kinds` gives them; batches of one kind may be one sum.

    Returns:
        One charge a batch; of those that are one sum the first has all of it.
    """
    # Each batch by itself, which is all where batches have no noise in common.
    mus = [view.mu(columns, bounds=bounds) if columns else 0.0 for columns, bounds in batches]
    alone = [Charge(mu) for mu in mus]
    if len(batches) == 1:
        return alone
    moved = [
        [(c, b) for c, b in zip(columns, bounds, strict=True) if b > 0]
        for columns, bounds in batches
    ]
    finite = [[c for c, _ in of] for of, mu in zip(moved, mus, strict=True) if math.isfinite(mu)]
    if not _share_noise(view, finite):
        return alone
    # A batch that is infinite by itself makes what all of them release infinite.
    if len(finite) < len(batches):
        return [Charge(math.inf if of else 0.0) for of in moved]
    # Batches of one kind that move what is released alike are one sum.
    sums: dict[object, list[int]] = {}
    for number, (of, kind) in enumerate(zip(moved, kinds, strict=True)):
        key = number if kind is None or not of else (kind, _as_one(view, of))
        sums.setdefault(key, []).append(number)
    # What is left is each by itself, or shares noise with the others.
    heads = [of[0] for of in sums.values()]
    shared = _share_noise(view, [[c for c, _ in moved[head]] for head in heads])
    if shared:
        blocks = [([c for c, _ in moved[head]], [b for _, b in moved[head]]) for head in heads]
        together = view.shares(blocks)
        for head, mu in zip(heads, together, strict=True):
            mus[head] = mu
    found = [Charge(0.0)] * len(batches)
    for head, same in zip(heads, sums.values(), strict=True):
        if mus[head] > 0:
            found[head] = Charge(mus[head], len(same), shares=shared or len(same) > 1)
    return found


def _as_one(view: View, moved: Sequence[tuple[int, float]]) -> tuple[bytes, bytes]:
    """What a batch does to the view, the same for batches that enter it as one sum.

    Each column times its bound, up to the sign of all, and which of them are one vector's.
    """
    from scipy.sparse import csc_array

    names = [c for c, _ in moved]
    columns = csc_array(view.contributions)[:, names].toarray() * np.array([b for _, b in moved])
    entries = columns.ravel()
    first = entries[np.flatnonzero(entries)[:1]]
    vectors = [int(view.vectors[c]) for c in names] if len(view.vectors) else names
    parts = np.unique(vectors, return_inverse=True)[1]
    return (columns * (np.sign(first[0]) if first.size else 1.0) + 0.0).tobytes(), parts.tobytes()


def _share_noise(view: View, blocks: Sequence[Sequence[int]]) -> bool:
    """Whether batches' releases are correlated: off-diagonal blocks of the information."""
    columns = [c for block in blocks for c in block]
    if not columns:
        return False
    information = view.information(columns)
    own = np.sqrt(np.diag(information))
    share = np.abs(information) / np.maximum(np.outer(own, own), np.finfo(float).tiny)
    of = np.repeat(np.arange(len(blocks)), [len(b) for b in blocks])
    across = of[:, None] != of[None, :]
    return bool(across.any() and share[across].max() > 1e-9)
