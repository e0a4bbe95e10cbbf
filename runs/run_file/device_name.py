"""Names of devices, without torch: which are known, and which two are one device."""

from __future__ import annotations

import re

from ...privacy.errors import InputError

__all__ = ["check_rounds_device", "gpu_number", "is_same_device"]

_KNOWN = re.compile(r"auto|cpu|mps|cuda(:(?P<number>0|[1-9][0-9]{0,8}))?")
_LONGEST = 40  # characters of a name that is told


def gpu_number(name: str) -> int | None:
    """The number of the GPU that a device's name gives, if it gives one.

    Args:
        name: "auto", "cpu", "mps", "cuda" or "cuda:N".

    Raises:
        ValueError: no device has such a name.

    Examples:
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


def is_same_device(one: str, other: str) -> bool:
    """Whether two names are of one device of a process; "cuda" is the first GPU.

    Args:
        one: "cpu", "mps", "cuda" or "cuda:N".
        other: likewise.

    Examples:
        >>> is_same_device("cuda", "cuda:0"), is_same_device("cuda:0", "cuda:1")
        (True, False)
    """
    first = {"cuda": "cuda:0"}
    return first.get(one, one) == first.get(other, other)
