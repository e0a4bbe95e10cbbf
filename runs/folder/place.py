"""Which rank of how many a process is, as who started it tells in the environment."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...privacy.errors import InputError
from .names import AGENT_STORE


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Which rank of how many a process is, and which of those on its machine.

    Attributes:
        rank, size: among all.
        local_rank, local_size: among those of this machine.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def of_environment(cls) -> Place | None:
        """As torchrun tells it; None of a process that nobody started as a rank.

        Raises:
            ValueError: a variable that is not a number, or a rank beyond the number of ranks.

        >>> from unittest import mock
        >>> told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        >>> with mock.patch.dict("os.environ", told):
        ...     print(Place.of_environment().rank)
        1
        """
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return None
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        if rank >= size:
            raise InputError(
                f"RANK={rank} in the environment must lie in [0, {size - 1}], below WORLD_SIZE; "
                "start with torchrun"
            )
        return cls(
            rank=rank,
            size=size,
            local_rank=_number("LOCAL_RANK", rank),
            local_size=_number("LOCAL_WORLD_SIZE", size),
        )

    def check_size(self, ranks: int | None) -> None:
        """Refuse another number of ranks than those that were started.

        Raises:
            ValueError: they differ.
        """
        if ranks is not None and ranks != self.size:
            raise InputError(
                f"--ranks {ranks} differs from the {self.size} ranks that are started already "
                "(WORLD_SIZE); leave --ranks out under torchrun"
            )

    @staticmethod
    def quieten_libraries() -> None:
        """Keep torch's stacks off the terminal, unless asked for; to be called before it loads.

        A rank that is gone, or does not come, is told in a sentence.
        """
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")

    @property
    def keeps_store(self) -> bool:
        """Whether the ranks meet at a store of this process, and not of the one that began it."""
        return self.rank == 0 and os.environ.get(AGENT_STORE) != str(True)


def _number(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    if not given.isdecimal():
        raise InputError(
            f"{name}={given!r} in the environment must be a number; start with torchrun"
        )
    return int(given)


# What must be the same on all ranks, or they would not compute one run.

_OURS = Path(__file__).resolve().parents[2]
_PACKAGES = ("privacy", "training", "attacks", "runs", "reports", "commands", "testing")


def program_facts(packages: Mapping[str, str]) -> dict[str, str]:
    """The program that a rank runs, which can be told before anything is computed."""
    code = hashlib.sha256()
    for path in sorted(path for ours in _PACKAGES for path in (_OURS / ours).rglob("*.py")):
        text = path.read_bytes().replace(b"\r\n", b"\n")
        code.update(f"{path.relative_to(_OURS).as_posix()} {len(text)} ".encode() + text)
    return {
        "version of Python": "{}.{}".format(*sys.version_info),
        **{f"version of {name}": version for name, version in packages.items()},
        "code of overhear": code.hexdigest(),
    }


def check_same_facts(mine: Mapping[str, str], first: Mapping[str, str], *, name: str) -> None:
    """Refuse a rank that would compute something else than rank 0.

    Raises:
        InputError: they differ, with what differs; of a text of several lines the first that does.
    """
    for what in (*first, *(mine.keys() - first.keys())):
        ours, theirs = mine.get(what, "none"), first.get(what, "none")
        if ours != theirs:
            raise InputError(
                f"{name} has another {what} than rank 0 ({_where_they_differ(ours, theirs)}), so "
                "they would not compute one run; give all ranks the same"
            )


def _where_they_differ(ours: str, theirs: str) -> str:
    """The first line of each that the other has not in its place."""
    lines, others = ours.splitlines(), theirs.splitlines()
    shorter = min(len(lines), len(others))
    at = next((n for n in range(shorter) if lines[n] != others[n]), shorter)
    here, there = (held[at] if at < len(held) else "nothing more" for held in (lines, others))
    return f"{here}, not {there}"


# The network interface over which ranks exchange rows: that of the route between their hosts.
#
# Left alone, gloo listens on the address of the machine's own name, which on many machines is a
# loopback address that no other host reaches. The route to the store is known to work, since the
# rank has come there; so rows take the interface that this route leaves by. On the host of the
# store that route may be the loopback. Then it is the route to another host, which has told its
# address.
#
# The system says by which address a route leaves (a UDP socket that is connected sends nothing),
# and on Linux which interface has that address.

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
