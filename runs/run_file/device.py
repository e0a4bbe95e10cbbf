"""Devices by name: which are known, which two are one, and the one that a run computes on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, WithJsonSchema

from ...privacy.errors import InputError

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceName", "check_rounds_device", "find_device", "gpu_number", "is_same_device"]

_KNOWN = re.compile(r"auto|cpu|mps|cuda(:(?P<number>0|[1-9][0-9]{0,8}))?")
_LONGEST = 40  # characters of a name that is told


def gpu_number(name: str) -> int | None:
    """The number of the GPU that a device's name gives, if it gives one.

    Args:
        name: "auto", "cpu", "mps", "cuda" or "cuda:N".

    Raises:
        ValueError: no device has such a name.

    >>> gpu_number("cuda:1"), gpu_number("cuda")
    (1, None)
    """
    known = _KNOWN.fullmatch(name)
    if known is None:
        shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        raise InputError(
            f"device={shown!r} is unknown; choose auto, cpu, cuda, cuda:N for one of several GPUs, "
            "counted from 0, or mps"
        )
    return None if known["number"] is None else int(known["number"])


def check_rounds_device(name: str) -> str:
    """The name again, if rounds of training can run on such a device.

    Raises:
        ValueError: no device has such a name, or it has no float64, in which noise is made.
    """
    gpu_number(name)
    if name == "mps":
        raise InputError(
            "device='mps' has no float64, in which the noise of rounds is made; use device='cpu'"
        )
    return name


DeviceName = Annotated[
    str,
    AfterValidator(check_rounds_device),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["auto", "cpu", "cuda"]},
                {"type": "string", "pattern": "^cuda:(0|[1-9][0-9]{0,8})$"},
            ]
        }
    ),
]


def is_same_device(one: str, other: str) -> bool:
    """Whether two names are of one device of a process; "cuda" is the first GPU.

    Args:
        one: "cpu", "mps", "cuda" or "cuda:N".
        other: likewise.

    >>> is_same_device("cuda", "cuda:0"), is_same_device("cuda:0", "cuda:1")
    (True, False)
    """
    first = {"cuda": "cuda:0"}
    return first.get(one, one) == first.get(other, other)


def find_device(name: str, *, rounds: bool = False) -> torch.device:
    """The device of a name.

    Args:
        name: "auto", which is CUDA where there is some and else the CPU, "cpu", "cuda", "cuda:1"
            and so on, or "mps".
        rounds: whether rounds of training run there, whose noise is made in float64.

    Raises:
        ValueError: there is no such device, or it has no float64 and needs it.

    >>> find_device("cpu")
    device(type='cpu')
    >>> find_device("gpu")
    Traceback (most recent call last):
        ...
    overhear.privacy.errors.InputError: device='gpu' is unknown; choose auto, cpu, cuda, \
cuda:N for one of several GPUs, counted from 0, or mps
    """
    import torch

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
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"device={name!r} but no CUDA device is there; {_INSTEAD}")
    count = torch.cuda.device_count()
    if number is not None and number >= count:
        held = "one, cuda:0" if count == 1 else f"{count}, cuda:0 to cuda:{count - 1}"
        raise InputError(f"device={name!r} is not there: CUDA has {held}; {_INSTEAD}")
