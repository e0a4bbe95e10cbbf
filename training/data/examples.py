"""Records in memory.

Shape letters: B records; shape is that of one record.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Examples"]


class Examples(NamedTuple):
    """Inputs (B, *shape) and targets of one agent: (B,) labels, or (B,) or (B, K) numbers."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """B."""
        return len(self.targets)

    @property
    def record_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.inputs.shape[1:])

    def take(self, positions: Tensor) -> Examples:
        """The records at positions (b,), copies."""
        return Examples(self.inputs[positions], self.targets[positions])
