"""How often the proof lets any ranking put the victim's record first, beside how often it was.

The record is one of k with equal probability, so a guess is right with probability 1 / k, exactly
known here, and `reconstruction_bound` gives Phi(Phi^-1(1 / k) + mu) for whatever is mu-GDP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...privacy._validate import within
from ...privacy.errors import InputError
from .reconstruction_bound import CONFIDENCE, ReconstructionBound, reconstruction_bound


@dataclass(frozen=True, kw_only=True, slots=True)
class LineupBound:
    """First places in lineups of one size, and the proof's limit on them.

    Attributes:
        size: records in a lineup, k.
        ranks: of the victims' records, 1 for the first.
        limit: first places as successes, with 1 / k as the probability of a guess.
    """

    size: int
    ranks: tuple[int, ...]
    limit: ReconstructionBound

    def sentence(self) -> str:
        """First places beside the bound, in a sentence."""
        limit = self.limit
        seen = f"{limit.hits} of {limit.images} records rank first among {self.size:,}"
        if limit.mu == math.inf:
            return f"{seen} (nothing is proven)."
        said = f"{seen} (guessing {1 / self.size:.3g}, the proof allows {limit.bound:.1%}"
        if not limit.exceeded:
            return f"{said}{', nearly all' if limit.allows_nearly_all else ''})."
        return (
            f"{said}), that is at least {limit.lower_limit:.1%} at "
            f"{100 * limit.confidence:.6g}% confidence: a contradiction. The noise or the "
            "accounting is wrong."
        )


def lineup_bound(
    *,
    mu: float,
    size: int,
    ranks: Sequence[int],
    confidence: float = CONFIDENCE,
    tests: int = 1,
) -> LineupBound:
    """Set first places against what the proof allows.

    Args:
        mu: as of `reconstruction_bound`; may be infinite.
        size: records in a lineup, at least 2.
        ranks: of the victims' records, at least one.
        confidence: that none of all tests gives a false positive.
        tests: how many bounds are looked at together.

    Raises:
        ValueError: a number is out of range.

    Source: Hayes et al. 2023, Theorem 2, with a prior of 1 / size.

    >>> found = lineup_bound(mu=0.67, size=100, ranks=[3, 1, 57, 20])
    >>> round(found.limit.bound, 3), found.limit.exceeded
    (0.049, False)
    """
    within("size", size, "[2, inf)", ": a lineup of one has no others")
    if not all(1 <= rank <= size for rank in ranks):
        raise InputError(f"ranks={list(ranks)} must lie between 1 and size={size}")
    limit = reconstruction_bound(
        mu=mu,
        threshold=0.0,
        hits=sum(rank == 1 for rank in ranks),
        images=len(ranks),
        prior_hit_rate=1 / size,
        confidence=confidence,
        tests=tests,
    )
    return LineupBound(size=size, ranks=tuple(ranks), limit=limit)
