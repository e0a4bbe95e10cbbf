"""A vector that is clipped in parts, each to its own bound, such as the layers of a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...privacy.errors import InputError, InputTypeError


class Parts(NamedTuple):
    """The bounds of consecutive parts of a vector.

    Attributes:
        bounds: of each part.
        sizes: coordinates of each.

    >>> Parts((3.0, 4.0), (20, 3)).whole
    5.0
    """

    bounds: tuple[float, ...]
    sizes: tuple[int, ...]

    @property
    def whole(self) -> float:
        """The bound of the whole vector."""
        return math.hypot(*self.bounds)


ClipNorm = float | Parts | None  # of a vector; None does not clip


def clip_norm_of(clip_norm: object, parts: Sequence[int] | None) -> ClipNorm:
    """What a step asks for: one bound, none, or a bound for each part.

    Raises:
        TypeError: parts without a bound for each, or the other way round; sizes or bounds that are
            no numbers.
        ValueError: as many bounds as there are not parts, or a bound or size that is not positive.
    """
    if isinstance(clip_norm, Parts) or (parts is None and not isinstance(clip_norm, tuple | list)):
        return clip_norm  # type: ignore[return-value] # what is no number is refused later
    if parts is None or not isinstance(clip_norm, tuple | list):
        raise InputTypeError(
            f"clip_norm={clip_norm!r:.60} and parts={parts!r:.60} of round.clipped_sums: give one "
            "bound, or a tuple of bounds and the number of coordinates of each part"
        )
    if len(parts) != len(clip_norm) or not parts:
        raise InputError(
            f"clip_norm has {len(clip_norm)} bounds for {len(parts)} parts; give one for each"
        )
    for bound in clip_norm:
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise InputTypeError(f"clip_norm holds {bound!r:.40}, which is no number")
        if not 0.0 < bound < math.inf:
            raise InputError(f"clip_norm holds {bound}; the bound of a part is positive and finite")
    for size in parts:
        if isinstance(size, bool) or not isinstance(size, int):
            raise InputTypeError(f"parts holds {size!r:.40}, which is no number of coordinates")
        if size < 1:
            raise InputError(f"parts holds {size}; a part has at least one coordinate")
    return Parts(tuple(map(float, clip_norm)), tuple(parts))
