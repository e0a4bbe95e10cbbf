"""Copies from the host to a device that nothing waits for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["on_device", "together_on_device"]


def on_device(held: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor on a device; from the host by way of pinned memory, since another copy waits.

    Args:
        held: On the host, or already on the device.
        device: Where it goes.
        dtype: Its type there; as it is for None.

    >>> on_device(torch.ones(2), torch.device("cpu"), torch.float64).dtype
    torch.float64
    """
    if device.type == "cuda" and held.device.type == "cpu":
        converted = held.to(dtype or held.dtype)
        return converted.pin_memory().to(device, non_blocking=True)
    return held.to(device, dtype)


def together_on_device(parts: Mapping[int, Tensor], device: torch.device) -> dict[int, Tensor]:
    """Tensors by agent on a device, by one copy for all; on the CPU as they are.

    Args:
        parts: (B,) each, on the host.
        device: Where they go.

    >>> together_on_device({3: torch.ones(1)}, torch.device("cpu"))
    {3: tensor([1.])}
    """
    if device.type == "cpu" or not parts:
        return dict(parts)
    every = on_device(torch.cat(list(parts.values())), device)
    return dict(zip(parts, every.split([len(part) for part in parts.values()]), strict=True))
