"""What a round needs of its public values, so that none is too large for noise that comes in late.

A trace writes a floor down (`tracing.cancellation`), and a round of a run compares its values with
it: the models that earlier rounds released, the initial one, results of functions of what was
released. It stops by numbers that every closed view holds and by nothing else, so that to stop
tells nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# How small noise may be beside large public numbers, before float rounding swallows it.


MOST_LOST = 2.0**-8
"""Of mu, that rounding before the noise came in may add in a round."""


def mu_lost(size: float, deviation: float, *, eps: float) -> float:
    """What rounding beside public numbers adds to mu at most: eps |S| / d.

    Args:
        size: |S|.
        deviation: d; 0 of no noise.
        eps: of the float type.

    Examples:
        One weight of 250,000 in float32, and noise of deviation 0.0125: far above 2^-8.

        >>> round(mu_lost(250_000.0, 0.0125, eps=2.0**-23), 3)
        2.384
    """
    if size == 0.0:
        return 0.0
    return eps * size / deviation if deviation > 0 else math.inf


INITIAL, RESULT = "initial model", "result of postprocess"
TABLE, RANDOM = "public table", "public random numbers"
UNIT = ""  # the name of values of size 1 in every coordinate


class Beside(NamedTuple):
    """Public values beside which data were rounded before their noise came in.

    Attributes:
        what: their name, such as "state x".
        size: how often they stand there, added up in absolute value over terms and roundings.
        deviation: of the noise, in each coordinate; 0 where it is known to others as well.
    """

    what: str
    size: float
    deviation: float

    def mu_lost(self, norm: float, *, eps: float) -> float:
        """See `mu_lost`, for values of a norm."""
        return mu_lost(self.size * norm, self.deviation, eps=eps)


class Floor(NamedTuple):
    """All of a round: for each name the worst that some row asks for."""

    parts: tuple[Beside, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Whose norms are looked at."""
        return frozenset(part.what for part in self.parts)

    def mu_lost(self, norms: dict[str, float], *, eps: float) -> float:
        """What rounding adds to mu at most, by the largest norm of a row of each name."""
        return sum(part.mu_lost(norms.get(part.what, 0.0), eps=eps) for part in self.parts)

    def worst(self, norms: dict[str, float], *, eps: float) -> Beside:
        """The part that adds most."""
        return max(self.parts, key=lambda part: part.mu_lost(norms.get(part.what, 0.0), eps=eps))


NO_FLOOR = Floor()
