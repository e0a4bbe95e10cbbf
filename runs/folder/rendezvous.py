"""How ranks meet: at the store, where each tells what the others need to know, and then by gloo.

    came            host, address and program of this rank; all wait until all have come
    ready           its program is that of rank 0, and it knows the interface; all wait for all
    connected       a process group by gloo, whose members have shown that they are ranks

Ranks may come at very different times, because a scheduler starts machines when it can; so the
first wait is long, and says after a while for whom. Once all have come, nothing but the network is
waited for, and the limit is short. A rank that refuses in between leaves its exit code at the store
(`overhear.runs.folder.ranks`), and the others leave their wait at once.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from ...privacy.errors import InputError
from ...privacy.releases.chained_file import sign
from ...training.engine.exchange import MissingRank, Ranks, check_peers
from ..stop import SIGNALS, tell
from .names import CAME, FAILED_FIRST, SECRET, STORE_FILE, STORE_PREFIX
from .place import GLOO, Place, address_towards, check_same_facts, choose_interface

# The store at which ranks meet, and what they believe of it: values that one of them has signed.
#
# Ranks that `overhear train --ranks` has started share a file in a folder that its owner alone
# enters. Who is started by torchrun, or by hand, shares a store that listens on a port, where
# anybody who reaches the port may read and write. So each value is signed with the secret of the
# ranks, for its key. Without a secret the signature is a checksum, and the port must be closed to
# strangers.
#
# Nothing here is unpickled: a value is a text, and an exit code is one of `CODES`.

CODES = frozenset({1, 2, 4, *(128 + number for number in SIGNALS)})
"""The exit codes with which all ranks may end because one has failed or was stopped."""

_SIGNED = 64  # hexadecimal digits of a signature
_SHORTEST_SECRET = 32  # characters


class LyingStore(ConnectionError):
    """The store holds what no rank of this run has written."""


class RankStore:
    """What ranks tell each other, before they are connected and when one fails.

    Args:
        store: where it is kept.
        prefix: of the keys, of this start of the run.

    Attributes:
        plain: the store under this prefix, with which torch connects the ranks.
    """

    def __init__(self, store: Store, secret: bytes = b"", *, prefix: str = STORE_PREFIX) -> None:
        self.plain = PrefixStore(prefix, store)
        self._secret, self._prefix = secret, prefix

    def _sign(self, key: str, text: str | bytes) -> str:
        return sign(self._secret, "store", self._prefix, key, text).hex()

    def _open(self, key: str, held: bytes) -> str:
        signed, text = held[:_SIGNED], held[_SIGNED:]
        if not hmac.compare_digest(signed, self._sign(key, text).encode()):
            raise LyingStore(
                f"the store of the ranks holds under {key!r} what no rank of this run has written; "
                f"another process writes there, or ranks have different values of {SECRET}: start "
                "all ranks again with one secret that no one else knows"
            )
        return text.decode(errors="replace")

    def set(self, key: str, text: str = "") -> None:
        """Tell a text."""
        self.plain.set(key, self._sign(key, text) + text)

    def get(self, key: str) -> str:
        """A text that a rank has told.

        Raises:
            LyingStore: no rank has.
        """
        return self._open(key, self.plain.get(key))

    def has(self, *keys: str) -> bool:
        """Whether ranks have told all of these.

        Raises:
            LyingStore: one of them was told by somebody else.
        """
        return bool(self.plain.check(list(keys))) and all(self.get(key) is not None for key in keys)

    def claim(self, rank: int, code: int) -> tuple[int, int]:
        """End all ranks with an exit code, unless another has done so: who was first, its code.

        Args:
            rank: this one; -1 is who has started the ranks.

        Raises:
            LyingStore: somebody else has.
        """
        text = json.dumps([rank, code])
        held = self.plain.compare_set(FAILED_FIRST, "", self._sign(FAILED_FIRST, text) + text)
        return self._first(held)

    def first(self) -> tuple[int, int]:
        """Who was the first to end all ranks, and its exit code.

        Raises:
            LyingStore: no rank was.
        """
        return self._first(self.plain.get(FAILED_FIRST))

    def _first(self, held: bytes) -> tuple[int, int]:
        text = self._open(FAILED_FIRST, held)
        for code in CODES:
            if (match := re.fullmatch(rf"\[(-1|\d+), {code}\]", text)) is not None:
                return int(match[1]), code
        raise LyingStore(
            f"the store of the ranks holds {text!r} for the rank that failed first and its exit "
            f"code, which no rank has written; one of {', '.join(map(str, sorted(CODES)))} was "
            "expected: start all ranks again"
        )


def secret_of_ranks() -> bytes:
    """The secret of all ranks, which leaves the environment here, so that no child gets it.

    Raises:
        InputError: it is so short that it can be guessed.
    """
    given = os.environ.pop(SECRET, "")
    if 0 < len(given) < _SHORTEST_SECRET:
        raise InputError(
            f"{SECRET} in the environment has {len(given)} characters, must have at least "
            f"{_SHORTEST_SECRET}; make one with `openssl rand -hex 32`, the same for all ranks"
        )
    return os.fsencode(given)


_POLL = 0.1
_PATIENT = 15.0  # seconds of silence while others do not come


class Guest(NamedTuple):
    """What a rank tells at the store.

    Attributes:
        host: the name of its machine.
        address: by which it reaches the store.
    """

    host: str
    address: str | None
    program: Mapping[str, str]

    @property
    def where(self) -> str:
        """Its machine in words."""
        return self.host if self.address is None else f"{self.host} ({self.address})"


def store_of(place: Place, *, secret: bytes, limit: float) -> RankStore:
    """The store of all ranks.

    Args:
        limit: seconds until who keeps the store must be there.

    Raises:
        ConnectionError: it cannot be reached.
        InputError: the environment names no port.
    """
    # Ranks of one host meet in a file, others at an address.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # who restarts may keep one store
    prefix = STORE_PREFIX if attempt == "0" else f"{STORE_PREFIX}-{attempt}"
    if path := os.environ.get(STORE_FILE):
        return RankStore(FileStore(path, -1), secret, prefix=prefix)
    at, waits = _store_address(), f"at most {limit:g} s"
    try:
        with _told_if_long(f"{_named(place)} waits for the store at {at}, {waits}"):
            found = TCPStore(
                os.environ["MASTER_ADDR"],
                _port(),
                is_master=place.keeps_store,
                wait_for_workers=False,
                timeout=timedelta(seconds=limit),
            )
    except RuntimeError as error:
        if place.keeps_store:
            raise ConnectionError(
                f"{_named(place)} cannot keep the store of the ranks at {at} ({_first_line(error)})"
                "; set MASTER_PORT to a free port"
            ) from error
        raise ConnectionError(
            f"{_named(place)} did not reach the store of the ranks at {at} within {limit:g} s "
            f"({_first_line(error)}); MASTER_ADDR must be the host of rank 0 and MASTER_PORT a "
            "port there that other hosts can reach; start all ranks again"
        ) from error
    return RankStore(found, secret, prefix=prefix)


def _port() -> int:
    given = os.environ.get("MASTER_PORT", "")
    if not given.isdecimal() or not 0 < int(given) < 2**16:
        raise InputError(
            f"MASTER_PORT={given!r} in the environment must be a port in [1, 65535]; start with "
            "torchrun"
        )
    return int(given)


def introduce(
    place: Place, store: RankStore, *, program: Mapping[str, str], limit: float
) -> list[Guest]:
    """Tell all ranks where this one is and what it runs, and hear it of them.

    Args:
        limit: seconds until all ranks must have come.

    Returns:
        Of each rank.

    Raises:
        ConnectionError: a rank does not come, or has failed.
    """
    mine = Guest(socket.gethostname(), address_towards(os.environ["MASTER_ADDR"]), program)
    told = _told_by_all(place, store, CAME, json.dumps(mine), limit=limit)
    return [Guest(*json.loads(text)) for text in told]


def hosts_of(guests: Sequence[Guest]) -> tuple[str, ...]:
    """Where each rank runs, in words; nothing where all run on one host.

    >>> hosts_of([Guest("a", "10.0.0.1", {}), Guest("b", "10.0.0.2", {})])
    ('a (10.0.0.1)', 'b (10.0.0.2)')
    """
    one = len({guest[:2] for guest in guests}) == 1
    return () if one else tuple(guest.where for guest in guests)


def connect(
    place: Place, store: RankStore, guests: Sequence[Guest], *, secret: bytes, limit: float
) -> None:
    """Become one process group with the other ranks, by gloo.

    Args:
        limit: seconds in which the ranks, which have all come, must connect.

    Raises:
        ConnectionError: they do not, or another process has taken the place of one.
        InputError: this rank runs another program than rank 0, or an interface does not exist.
    """
    # The same program everywhere, and an interface by which hosts reach each other.
    several, mine = bool(hosts_of(guests)), guests[place.rank]
    name = "it" if several else _named(place)  # the host is told before
    check_same_facts(mine.program, guests[0].program, name=name)
    others = [guest.address for guest in guests if guest is not mine]
    interface = choose_interface(mine.address, others, several=several)
    _told_by_all(place, store, "ready", "", limit=limit)
    try:
        with _silent():
            dist.init_process_group(
                "gloo",
                store=PrefixStore("group", store.plain),
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=limit),
            )
    except (RuntimeError, ValueError) as error:
        by = "an interface that gloo chose" if interface is None else f"the interface {interface}"
        raise ConnectionError(
            f"{name} met all ranks at the store, but does not reach them by {by} within "
            f"{limit:g} s ({_first_line(error)}); set {GLOO} on each host to the interface by "
            "which the hosts reach each other, and let all TCP ports through between them"
        ) from error
    # As many agents as ranks: nothing is known of the run yet.
    shown = Ranks(agents=place.size, rank=place.rank, size=place.size, timeout=limit, secret=secret)
    try:
        check_peers(shown)
    except MissingRank as error:
        raise ConnectionError(
            f"{name} is connected to processes of which one does not show within {limit:g} s that "
            "it is a rank of this run: it is gone, or another process has taken its place; nothing "
            "was released, so start all ranks again"
        ) from error


def _told_by_all(
    place: Place, store: RankStore, word: str, mine: str, *, limit: float
) -> Sequence[str]:
    """What all ranks tell under a word, once they have.

    Raises:
        ConnectionError: some did not in time, one has failed, nobody keeps the store any more, or
            it holds what no rank has told.
    """
    keys, until = [f"{word}/{rank}" for rank in range(place.size)], time.monotonic() + limit
    try:
        store.set(keys[place.rank], mine)
        with _told_if_long(f"rank 0 waits for other ranks, at most {limit:g} s", place):
            while not store.has(*keys):
                if store.has(FAILED_FIRST):
                    raise ConnectionError(f"{_named(place)}: another rank has failed")
                if time.monotonic() > until:
                    late = [rank for rank, key in enumerate(keys) if not store.has(key)]
                    raise ConnectionError(
                        f"{_named(place)} does not meet the others: rank {late[0]} did not come "
                        f"within {limit:g} s; start all ranks again"
                    )
                time.sleep(_POLL)
        return [store.get(key) for key in keys]
    except RuntimeError as error:
        raise ConnectionError(
            f"{_named(place)} does not meet the others: the store at {_store_address()} is gone "
            f"({_first_line(error)}); see what rank 0 printed, and start all ranks again"
        ) from error


def _named(place: Place) -> str:
    return f"rank {place.rank} of {place.size}"


def _store_address() -> str:
    at = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return os.environ.get(STORE_FILE, at)


def _first_line(error: Exception) -> str:
    """What a library says, without its stack and the places in its source."""
    return re.sub(r"\[\S+:\d+\] ", "", str(error).strip().partition("\n")[0]).rstrip(". ")


@contextlib.contextmanager
def _told_if_long(text: str, place: Place | None = None) -> Iterator[None]:
    """Say what is waited for, after a while; of a wait of all ranks rank 0 says it."""
    timer = threading.Timer(_PATIENT, tell, [text])
    timer.daemon = True
    if place is None or place.rank == 0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep gloo's words off the terminal: that it is connected, and each try that fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept, nowhere = {end: os.dup(end) for end in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for end in kept:
            os.dup2(nowhere, end)
        yield
    finally:
        for end, was in kept.items():
            os.dup2(was, end)
            os.close(was)
        os.close(nowhere)
