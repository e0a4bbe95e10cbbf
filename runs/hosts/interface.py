"""The network interface over which ranks exchange rows: that of the route between their hosts.

Left alone, gloo listens on the address of the machine's own name, which on many machines is a
loopback address that no other host reaches. The route to the store is known to work, since the rank
has come there; so rows take the interface that this route leaves by. On the host of the store that
route may be the loopback. Then it is the route to another host, which has told its address.

The system says by which address a route leaves (a UDP socket that is connected sends nothing), and
on Linux which interface has that address.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from ...privacy.errors import InputError

__all__ = ["GLOO", "NCCL", "address_towards", "choose_interface", "interface_names"]

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""The variables by which the libraries are told an interface."""

_LIST_ADDRESSES = 0x8912  # SIOCGIFCONF: the IPv4 addresses of all interfaces
_ROW = 40  # bytes of a `struct ifreq` on 64 bits: a name of 16, then a socket address
_MOST_ROWS = 1024


def address_towards(host: str) -> str | None:
    """The address by which this machine's packets to a host leave; None if there is no route.

    >>> address_towards("127.0.0.1")
    '127.0.0.1'
    """
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, end in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as asked:
                asked.connect(end)
                return str(asked.getsockname()[0]).partition("%")[0]
    return None


def choose_interface(own: str | None, others: Sequence[str | None], *, several: bool) -> str | None:
    """Tell gloo and, between hosts, NCCL which interface to take; what the user has set stays.

    Args:
        own: the address by which this machine reaches the store.
        others: of the other ranks, as they have told it.
        several: whether ranks run on several hosts.

    Returns:
        The interface, as gloo is told it; None if it is not told any.

    Raises:
        ValueError: the user has named an interface that this machine has not.
    """
    set_by_user = os.environ.get(GLOO)
    if set_by_user:
        _check_named(set_by_user)
        return set_by_user
    if own is not None and _is_loopback(own):
        far = [address for address in others if address and not _is_loopback(address)]
        own = address_towards(far[0]) if far else own
    found = _interface_of(own)
    if found is None:
        return None
    os.environ[GLOO] = found
    if several and not os.environ.get(NCCL):
        os.environ[NCCL] = f"={found}"  # by its whole name, and not by how names begin
    return found


def interface_names() -> list[str]:
    """The network interfaces of this machine."""
    with contextlib.suppress(OSError, AttributeError):
        return [name for _, name in socket.if_nameindex()]
    return []


def _check_named(given: str) -> None:
    """Refuse names of which no interface of this machine is one."""
    names = interface_names() if os.name == "posix" else []  # elsewhere gloo has other names
    if names and not {name.strip() for name in given.split(",")} & set(names):
        raise InputError(
            f"{GLOO}={given!r} in the environment names no network interface of this machine "
            f"({', '.join(names)}); name the one by which the hosts reach each other, or leave the "
            "variable out"
        )


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _interface_of(address: str | None) -> str | None:
    """The interface that has an address."""
    if address is None:
        return None
    wanted = ipaddress.ip_address(address)
    with contextlib.suppress(OSError, ValueError, ImportError):
        found = _addresses4() if wanted.version == 4 else _addresses6()
        if wanted in found:
            return found[wanted]
        if wanted.is_loopback:  # of 127.0.0.0/8 the interface lists one address
            return next((name for at, name in found.items() if at.is_loopback), None)
    return None


_Addresses = dict[ipaddress.IPv4Address | ipaddress.IPv6Address, str]


def _addresses4() -> _Addresses:
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return {}
    import array
    import fcntl

    rows = array.array("B", bytes(_ROW * _MOST_ROWS))
    at, length = rows.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        told = fcntl.ioctl(asked, _LIST_ADDRESSES, struct.pack("iP", length, at))
    held = rows.tobytes()[: struct.unpack("iP", told)[0]]
    return {
        ipaddress.IPv4Address(row[20:24]): row[:16].split(b"\0")[0].decode().partition(":")[0]
        for row in (held[start : start + _ROW] for start in range(0, len(held), _ROW))
    }


def _addresses6() -> _Addresses:
    rows = map(str.split, Path("/proc/net/if_inet6").read_text(encoding="ascii").splitlines())
    return {ipaddress.IPv6Address(bytes.fromhex(row[0])): row[5] for row in rows}
