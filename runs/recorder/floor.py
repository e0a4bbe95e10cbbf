"""Whether a release's numbers are too large for its noise; see `privacy.noise.floor`.

In which order a system of one's own adds up what it knows, data and noise, nobody can see. So it
counts as the worst unless its line says `noise_first`, where noise comes last: what is known, or
else the whole of what leaves, is rounded with clean data beside it. What leaves in fewer digits
than float32 was summed in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...privacy.errors import InputError
from ...privacy.noise.floor import MOST_LOST, mu_lost
from ...privacy.releases.lines import Release

__all__ = ["check_floor"]

_SUMMED = (torch.float32, torch.float64)


def check_floor(release: Release, value: Tensor | None, known: Tensor | None, scale: float) -> None:
    """Refuse a release whose noise is lost in the rounding of the numbers beside it.

    Args:
        release: as its line says it; one without noise, or whose noise came first, is not looked
            at.
        value: (D,) what leaves, None where it is not given.
        known: (D,) what of it everybody may know, likewise.
        scale: of the sum and its noise in the value.

    Raises:
        ValueError: rounding would add more than 2^-8 to mu.
    """
    beside = value if known is None else known
    if beside is None or not len(beside) or not release.noise or release.noise_first:
        return
    # Noise that two parties know hides nothing from one of them, unless there is no other.
    own = [n.std for n in release.noise if len(n.known_to) <= 1] or [n.std for n in release.noise]
    deviation, name = abs(scale) * math.hypot(*own), "value" if known is None else "known"
    kind = torch.float32 if known is None and beside.dtype not in _SUMMED else beside.dtype
    beside = beside.double()
    lost = mu_lost(float(beside.norm()), deviation, eps=torch.finfo(kind).eps)
    if lost <= MOST_LOST:
        return
    at = int(beside.abs().argmax())
    raise InputError(
        f"{name} is as large as {float(beside[at]):g} (coordinate {at}), and its noise has "
        f"deviation {deviation:.3g}: where noise comes in last, the rounding of "
        f"{str(kind).removeprefix('torch.')} adds {lost:.2g} to mu, and {MOST_LOST:.2g} is the "
        "most; where noise is added to the clipped sum before anything else, say noise_first=True, "
        "which is then assumed; else add it there, or centre the values"
    )
