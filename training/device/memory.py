"""How many elements a pass may hold at once, by the memory of the device.

On the CPU the bounds are those of its caches, measured, and the same everywhere. On CUDA a pass
costs what the host takes to launch it, so it is as large as memory allows: a 64th of the bytes,
rounded down to a power of two, so that two runs on one kind of device mostly have the same. An
evaluation run reads the whole memory and not what is free, since its bits must not depend on what
else runs; for the same reason its passes are not halved where memory runs out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...privacy.errors import InputError

_ON_CPU = 2**25  # 128 MiB in float32
# Bytes for one element: 8 of itself in float64, and what layers and sums keep beside it.
_BYTES = 64
_LEAST, _MOST = 2**20, 2**30  # above, kernels of torch count in 64 bits and slow down

_known: dict[tuple[str, bool], int] = {}


def elements_at_once(device: torch.device, *, on_cpu: int = _ON_CPU) -> int:
    """Most elements that the per-example quantities of one pass may hold.

    Args:
        device: Where the pass computes.
        on_cpu: The bound on the CPU, and on any device whose memory torch does not tell.

    >>> elements_at_once(torch.device("cpu"))
    33554432
    """
    if device.type != "cuda":
        return on_cpu
    key = _key(device)
    if key not in _known:
        free, whole = torch.cuda.mem_get_info(device)
        held = (whole if key[1] else free) // _BYTES
        _known[key] = min(max(1 << max(held.bit_length() - 1, 0), _LEAST), _MOST)
    return _known[key]


def make_room(device: torch.device) -> bool:
    """Halve what a pass may hold, after a device ran out of memory, for the rest of the process.

    Returns:
        Whether there is less now, so that it is worth trying again. Not where a device is to
        compute the same bits again: passes of another size add up in another order.
    """
    if device.type != "cuda" or _repeats() or elements_at_once(device) <= 1:
        return False
    _known[_key(device)] = elements_at_once(device) // 2
    torch.cuda.empty_cache()  # what is held in pieces of the former size
    return True


def too_large(device: torch.device, error: BaseException) -> InputError:
    """What is said where a device has no memory for a pass, nor for half of one."""
    told = " ".join(str(error).split())[:200]
    tried, instead = "in passes of half their size either", ""
    if _repeats():
        tried = "and smaller passes would not compute the bits that evaluation_noise_seed promises"
        instead = ", or leave out evaluation_noise_seed"
    return InputError(
        f"a round does not fit into the memory of {device}, {tried} ({told}); spread the agents "
        "over more ranks or devices, take a smaller network or batch, or set training.device=cpu"
        f"{instead}"
    )


def _repeats() -> bool:
    return torch.are_deterministic_algorithms_enabled()


def _key(device: torch.device) -> tuple[str, bool]:
    return str(device), _repeats()


# Copies from the host to a device that nothing waits for.


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
