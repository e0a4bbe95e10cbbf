"""Where a run, its attack and its audit compute: a device by name, which has to be there."""

from __future__ import annotations

import re

import torch

from ...privacy.errors import InputError

__all__ = ["find_device"]

_KNOWN = re.compile(r"auto|cpu|mps|cuda(:(?P<number>[0-9]{1,9}))?")
_LONGEST = 40  # characters of a name that is told


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
    known = _KNOWN.fullmatch(name)
    if known is None:
        shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        raise InputError(
            f"device={shown!r} is unknown; choose auto, cpu, cuda, cuda:N for one of several GPUs, "
            "counted from 0, or mps"
        )
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        _check_cuda(name, known["number"])
    if name == "mps":
        if rounds:
            raise InputError(
                "device='mps' has no float64, in which the noise of rounds is made; use "
                "device='cpu'"
            )
        if not torch.backends.mps.is_available():
            raise InputError(f"device='mps' but no MPS device is there; {_INSTEAD}")
    return torch.device(name)


_INSTEAD = "use device='auto' or 'cpu', which attack, invert and audit take as --device"


def _check_cuda(name: str, number: str | None) -> None:
    if not torch.cuda.is_available():
        raise InputError(f"device={name!r} but no CUDA device is there; {_INSTEAD}")
    count = torch.cuda.device_count()
    if number is not None and int(number) >= count:
        held = "one, cuda:0" if count == 1 else f"{count}, cuda:0 to cuda:{count - 1}"
        raise InputError(f"device={name!r} is not there: CUDA has {held}; {_INSTEAD}")
