"""Where a run, its attack and its audit compute: a device by name, which has to be there."""

from __future__ import annotations

import torch

from ...privacy.errors import InputError
from .device_name import check_rounds_device, gpu_number

__all__ = ["find_device"]


def find_device(name: str, *, rounds: bool = False) -> torch.device:
    """The device of a name.

    Args:
        name: "auto", which is CUDA where there is some and else the CPU, "cpu", "cuda", "cuda:1"
            and so on, or "mps".
        rounds: whether rounds of training run there, whose noise is made in float64.

    Raises:
        ValueError: there is no such device, or it has no float64 and needs it.

    Examples:
        >>> find_device("cpu")
        device(type='cpu')
        >>> find_device("gpu")
        Traceback (most recent call last):
            ...
        overhear.privacy.errors.InputError: device='gpu' is unknown; choose auto, cpu, cuda, \
cuda:N for one of several GPUs, counted from 0, or mps
    """
    number = gpu_number(name)
    if rounds:
        check_rounds_device(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        _check_cuda(name, number)
    if name == "mps" and not torch.backends.mps.is_available():
        raise InputError(f"device='mps' but no MPS device is there; {_INSTEAD}")
    return torch.device(name)


_INSTEAD = "use device='auto' or 'cpu', as --device or as [training] device"


def _check_cuda(name: str, number: int | None) -> None:
    if not torch.cuda.is_available():
        raise InputError(f"device={name!r} but no CUDA device is there; {_INSTEAD}")
    count = torch.cuda.device_count()
    if number is not None and number >= count:
        held = "one, cuda:0" if count == 1 else f"{count}, cuda:0 to cuda:{count - 1}"
        raise InputError(f"device={name!r} is not there: CUDA has {held}; {_INSTEAD}")
