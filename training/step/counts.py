"""What a count looks at, and numbers that were released and that gradients are divided by."""

from __future__ import annotations

import enum
import math

from torch import Tensor

from ...privacy.errors import InputError

__all__ = ["Of", "checked_scale"]


class Of(enum.StrEnum):
    """What the function of a count is given of one record."""

    LOSS = "loss"
    NORM = "norm"
    OUTPUTS = "outputs"

    @classmethod
    def _missing_(cls, value: object) -> Of:
        known = ", ".join(f"'{member}'" for member in cls)
        raise InputError(f"of={value!r:.40} of round.count must be one of {known}")


def checked_scale(rows: Tensor) -> list[float]:
    """The numbers (A, 1) by which vectors are divided before they are clipped.

    Raises:
        InputError: another shape, or one that is no positive finite number.
    """
    if rows.ndim != 2 or rows.shape[1] != 1:
        raise InputError(
            f"scale of shape {tuple(rows.shape)} of round.clipped_sums must be (A, 1): one number "
            "an agent"
        )
    found: list[float] = rows[:, 0].tolist()
    for number in found:
        if not 0.0 < number < math.inf:
            raise InputError(
                f"scale={number} of round.clipped_sums must be a positive number; keep it away "
                "from 0 by round.postprocess, which may clamp it"
            )
    return found
