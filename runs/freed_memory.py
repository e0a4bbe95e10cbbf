"""Memory that a process frees stays with it, or does not."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MAP_THRESHOLD = -1, -3  # of mallopt(3)
_TRIM_FROM, _MAP_FROM, _LARGE = 2**31 - 1, 2**30, 2**20  # bytes


def keep_freed_memory() -> bool:
    """Keep freed memory in this process, so that a round does not ask the system for it again.

    A round allocates and frees arrays of tens of megabytes. glibc maps such arrays anew each time,
    or gives the top of its heap back, and the system then clears every page again: a third of the
    time of a round of large convolutions. What is kept is at most what the largest round needs.

    Returns:
        Whether it could be set: the C library has to be glibc.

    >>> print(int(keep_freed_memory() or sys.platform != "linux"))  # glibc on Linux
    1
    """
    return _set({_MAP_THRESHOLD: _MAP_FROM, _TRIM_THRESHOLD: _TRIM_FROM})


def give_freed_memory_back() -> bool:
    """Give arrays of a megabyte or more back to the system as they are freed.

    Work of many kinds keeps small arrays between large ones, whose place then fits no other: the
    checks of a hundred agents took half as much memory again as they held at any time.

    >>> print(int(give_freed_memory_back() or sys.platform != "linux"))
    1
    """
    return _set({_MAP_THRESHOLD: _LARGE})


def _set(options: dict[int, int]) -> bool:
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library, such as musl
    return all(set_option(option, value) for option, value in options.items())
