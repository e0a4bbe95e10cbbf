"""What the batches of one round cost a victim: each by itself, those of a secret cohort as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...privacy.errors import InexpressibleView
from ...privacy.guarantee import Unit
from ...privacy.participation import Draws, Reach
from ...privacy.view.view import View

__all__ = ["Key", "Sensitivity", "joined", "mu_by_batch"]

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


def joined(found: Sequence[Sensitivity], keys: Sequence[Key], *, unit: Unit) -> list[Sensitivity]:
    """Sensitivities by batch, those of one secret cohort as one: its coin is theirs together.

    Args:
        found: one for each batch and cohort.
        keys: the batch and the cohort of each.
        unit: whose data they are of.

    Raises:
        InexpressibleView: what is seen of a batch depends on a cohort only in part.
    """
    joint, seen = list(found), [i for i, one in enumerate(found) if one.mu > 0]
    if unit is Unit.AGENT or all(cohort is None for _, cohort in keys):
        return joint
    if len({keys[i][0] for i in seen}) < len(seen):
        raise InexpressibleView(
            "one batch is seen both with and without its secret cohort, or under two of them, "
            "whose coins go together; give each a batch of its own"
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


def mu_by_batch(
    view: View, batches: Sequence[tuple[Sequence[int], Sequence[float]]]
) -> list[float]:
    """Mu of a victim's batches, each by its columns and their bounds.

    Raises:
        InexpressibleView: the releases of two batches share noise.
    """
    mus = [view.mu(columns, bounds=bounds) if columns else 0.0 for columns, bounds in batches]
    if len(batches) == 1:
        return mus
    touched = [[c for c, b in zip(*batch, strict=True) if b > 0] for batch in batches]
    finite = [of for of, mu in zip(touched, mus, strict=True) if math.isfinite(mu)]
    if not _share_noise(view, finite):
        return mus
    # A batch that is infinite by itself makes what all of them release infinite.
    if len(finite) < len(batches):
        return [math.inf if columns else 0.0 for columns in touched]
    raise InexpressibleView(
        "the releases of two batches of one round share noise, so they cannot be accounted for "
        "batch by batch; give each batch its own noise"
    )


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
