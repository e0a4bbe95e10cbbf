"""What `overhear design --json` prints, as types."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from ...privacy.formats.codec import Count, Delta, NotNegative
from ..described import Described

__all__ = ["Compared", "Row"]


class Row(Described):
    """One kind of noise at the epsilon of the run."""

    kind: str
    """Along what noise is correlated."""
    memory: bool
    """Whether noise of a round is partly taken back later."""
    coefficients: Count
    """Of the strategy over time of each eigenspace; 1 has no memory."""
    groups: Count
    """Groups of records that take turns; 1 is plain Poisson."""
    rate: Annotated[float, Field(ge=0, le=1)]
    """At which a record is drawn in its turn."""
    amplified: bool
    """Whether the secret draw counts for epsilon; else a record is taken to be in every turn."""
    own_sampling: bool
    """Whether these are the batches of the run file."""
    noise_multiplier: NotNegative
    """Noise on a sum of clipped gradients / clip norm, at which the target is met."""
    joint_sensitivity: NotNegative
    """Of a turn, or of the run where it is one release, at noise multiplier 1."""
    noise: NotNegative
    """Root mean square of the noise in the models, in clip norms of a sum, over agents, rounds and
    coordinates; times the largest learning rate and clip norm over batch size it is that of the
    run."""
    energy: NotNegative
    """Its square at noise multiplier 1, of a record that takes all of its turns where that is what
    is accounted for, and of one turn where rounds are composed."""
    less_energy: NotNegative
    """How many times less squared noise than independent noise under the run's own sampling."""
    gap: NotNegative | None
    """How far, relatively, the squared noise is from a proven lower bound; null where none is."""
    bound_of: str | None
    """Of what noise the lower bound is one."""
    outsider: NotNegative
    """Epsilon against who knows no noise."""
    one_agent: NotNegative
    """Epsilon against the single agent that knows most. Memory made of pair secrets is not
    amplified for one that does not hear all links, so this can exceed that of all others."""
    all_others: NotNegative
    """Epsilon against all agents but the victim together."""
    undone_by: str
    """Who can subtract the noise, or a part of it."""
    algorithm: str
    """That trains with it."""
    settings: dict[str, str | int | float]
    """Hyper-parameters of that algorithm."""

    @property
    def meets(self) -> bool:
        """Whether some noise of the kind meets the target."""
        return math.isfinite(self.noise)


class Compared(Described):
    """Kinds of noise at one epsilon, least noise first."""

    version: Count
    epsilon: NotNegative
    delta: Delta
    adversary: str
    rounds: Count
    sampling_rate: Annotated[float, Field(ge=0, le=1)]
    rows: list[Row]
    advice: list[str]
