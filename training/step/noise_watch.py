"""Who looks at the noise of a round before anything that holds it is sent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from .values import Value

__all__ = ["NoiseWatch"]


class NoiseWatch(Protocol):
    """Is shown every noise as the step gets it, and stops a round whose noise is wrong."""

    def note(self, value: Value, *, std: float, factor: Tensor | None) -> None:
        """Take note of what an operation `noise` gave, and of what was asked for."""
        ...

    def settle(self, *, at_end: bool) -> None:
        """Decide on what was noted: before something is sent, and at the end of the round.

        Raises:
            Exception: the noise is not what was asked for.
        """
        ...
