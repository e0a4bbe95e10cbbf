"""Recording: what checks of noise read of a run, whether it is ours or somebody else's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from .residual_values import Residual


class Part(NamedTuple):
    """A tensor of parameters, as coordinates of a row.

    Attributes:
        name: of the parameter.
        start: its first coordinate.
        shape: of the tensor.
    """

    name: str
    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One beyond its last coordinate."""
        return self.start + math.prod(self.shape)


class Recording(Protocol):
    """Rounds of a run that were kept, each as what its messages hold beside gradients."""

    @property
    def mismatch(self) -> str:
        """What a round did otherwise than it is declared to; empty where nothing."""
        ...

    @property
    def residuals(self) -> Sequence[Sequence[Residual]]:
        """Of each round that was kept."""
        ...

    @property
    def source_starts(self) -> tuple[Sequence[int], int]:
        """For each round where its sources of noise begin among those of all, and their number."""
        ...

    @property
    def made_noise(self) -> Sequence[tuple[str, Tensor]]:
        """The noise (n, D) that was recorded as it was made, with where it was made in words."""
        ...

    @property
    def parts(self) -> Mapping[int, Sequence[Part]]:
        """The tensors of parameters that a row consists of, by its width."""
        ...

    @property
    def told(self) -> str:
        """The rounds in words, behind "of"."""
        ...
