"""Ranks as processes of this machine: started together, ended together.

`overhear train --ranks R` is a parent that computes nothing. Its R children run the same command,
told by their environment which of the ranks they are, in the way of torchrun. They meet on a port
of 127.0.0.1 that the parent has open before any of them starts, and exchange rows over the loopback
alone, because these are not encrypted.

No child outlives its parent: each holds the end of a pipe that the system closes with the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...privacy.errors import InputError

__all__ = ["Place", "hold_on", "launch"]

_LIFELINE, _STORE_FILE = "OVERHEAR_LIFELINE", "OVERHEAR_STORE_FILE"
_FAILED = 2
_POLL = 0.05  # seconds between two looks at the children
_GRACE = 10.0  # seconds beyond the ranks' own time limit in which they end by themselves
_LAST_WORDS = 3.0  # seconds that others have once rank 0 has ended


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
            ValueError: a variable that is not a number.

        >>> from unittest import mock
        >>> told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        >>> with mock.patch.dict("os.environ", told):
        ...     print(Place.of_environment().rank)
        1
        """
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
            return None
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
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

    @property
    def store_file(self) -> int | None:
        """The listening socket that the parent gave to rank 0; None where it gave none."""
        return _number(_STORE_FILE, 0) if _STORE_FILE in os.environ else None


def _number(name: str, default: int) -> int:
    given = os.environ.get(name, str(default))
    if not given.isdecimal():
        raise InputError(
            f"{name}={given!r} in the environment must be a number; start with torchrun"
        )
    return int(given)


def hold_on() -> None:
    """End this process with its parent, where `launch` is the parent."""
    if os.environ.get(_LIFELINE) == "1":
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    while os.read(0, 1):  # standard input is the pipe; nothing is ever written into it
        pass
    os._exit(_FAILED)


def launch(arguments: Sequence[str], *, ranks: int, timeout: float) -> int:
    """Run a command of ours as so many ranks, and return the exit code of rank 0.

    Args:
        arguments: of the command.
        ranks: how many, R.
        timeout: seconds in which ranks miss each other by themselves; what is left somewhat later
            is killed.

    Returns:
        The exit code of rank 0; 2 if a signal ended it.
    """
    children = _start(arguments, ranks=ranks)
    try:
        return _watch(children, limit=timeout + _GRACE)
    except KeyboardInterrupt:
        children[0].send_signal(signal.SIGINT)  # it tells the others
        return _watch(children, limit=_GRACE, interrupted=True)
    finally:
        for child in children:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _start(arguments: Sequence[str], *, ranks: int) -> list[subprocess.Popen[bytes]]:
    children: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0), backlog=max(128, ranks)) as server:
        common = _environment(ranks, port=server.getsockname()[1])
        handed = os.name == "posix"
        if not handed:
            server.close()
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            if rank == 0 and handed:
                own[_STORE_FILE] = str(server.fileno())
            try:
                children.append(
                    subprocess.Popen(  # noqa: S603 # our own command line
                        [sys.executable, "-m", "overhear.commands.cli", *arguments],
                        env=common | own,
                        stdin=subprocess.PIPE,
                        pass_fds=(server.fileno(),) if rank == 0 and handed else (),
                        start_new_session=True,  # Ctrl-C is for the parent, which tells rank 0
                    )
                )
            except OSError:
                for child in children:
                    child.kill()
                raise
    return children


def _environment(ranks: int, *, port: int) -> dict[str, str]:
    told = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        _LIFELINE: "1",
    }
    # Two threads in each of several processes take each other's cores; and a rank that is gone is
    # told in a sentence, which needs no stack of the library's beside it.
    defaults = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    loopback = {"lo", "lo0"} & {name for _, name in _interfaces()}
    if loopback:
        defaults["GLOO_SOCKET_IFNAME"] = loopback.pop()
    return defaults | dict(os.environ) | told


def _interfaces() -> list[tuple[int, str]]:
    with contextlib.suppress(OSError, AttributeError):
        return socket.if_nameindex()
    return []


def _watch(
    children: Sequence[subprocess.Popen[bytes]], *, limit: float, interrupted: bool = False
) -> int:
    """Wait for rank 0, not for ever once another has failed, then shortly for the others."""
    first, *others = children
    since = time.monotonic() if interrupted else None
    while first.poll() is None:
        if since is None and any(child.poll() not in (None, 0) for child in others):
            since = time.monotonic()
        alone = all(child.poll() is not None for child in others)
        patience = min(limit, _GRACE) if alone else limit
        if since is not None and time.monotonic() - since > patience:
            break
        time.sleep(_POLL)
    until = time.monotonic() + _LAST_WORDS
    while any(child.poll() is None for child in others) and time.monotonic() < until:
        time.sleep(_POLL)
    code = first.poll()
    if code is not None and code >= 0:
        return code
    if not any(child.poll() == _FAILED for child in others):  # else they have said it
        why = "does not answer" if code is None else f"was ended by signal {-code}"
        print(
            f"error: rank 0 of {len(children)} {why}; what was released is in the ledger, "
            "continue the run with --resume",
            file=sys.stderr,
        )
    return _FAILED
