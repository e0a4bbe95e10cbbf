"""What an estimate rests on that no equation says: gradients that change slowly.

Such an estimate sums gradients of the victim over rounds, and whatever the others' sums leave of
each other. What they leave has no known law. But an adversary has data of its own, drawn like
theirs: what its own gradients of the same rounds would have left is a sample of it.

Shape letters: T rounds, M samples, D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Drift:
    """What was summed over rounds, and what others may have left in the sum.

    Attributes:
        points: (T, D') models at which the victim's gradients were taken.
        shares: (T,) weight of each in the estimate; they sum to 1.
        others: (M, D) samples of what others left, in the units of the estimate.
        noise_std: of the noise that was added to messages and is left in a coordinate of it.
    """

    points: Tensor
    shares: tuple[float, ...]
    others: Tensor
    noise_std: float = 0.0

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Drift:
        """The same on another device, or in another floating-point type."""
        return Drift(
            points=self.points.to(device, dtype),
            shares=self.shares,
            others=self.others.to(device, dtype),
            noise_std=self.noise_std,
        )
