"""Ranks as processes of this machine: started together, ended together.

`overhear train --ranks R` is a parent that computes nothing. Its R children run the same command,
told by their environment which of the ranks they are, in the way of torchrun. They meet at a store
in a temporary folder that their user alone enters, and exchange rows over the loopback alone,
because these are not encrypted. Their ports there are open to every user of the machine; a secret
in their environment tells ranks from strangers. The disk of the store has room reserved, since it
may be everybody's, and ranks would read a part of a value forever.

Whatever the children say, the exit code is 0 only where the folder is that of a finished run.

The parent says why all end where it is asked to stop before the ranks have met: they are silent by
then, however many of them are asked, too. Who claims the key `FAILED_FIRST` first says it.

No child outlives its parent: each holds the end of a pipe that the system closes with the parent,
and Linux kills it then, even one that hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from ..stop import SIGNALS, Stop, tell
from .names import AGENT_STORE, CAME, CLOSED, LIFELINE, SAID, SECRET, STORE_FILE
from .place import GLOO, NCCL, interface_names

if TYPE_CHECKING:
    from .rendezvous import RankStore


_FAILED = 2
_POLL = 0.05  # seconds between two looks at the children
_GRACE = 5.0  # seconds that the others have once a child has ended by itself
_STOPPED = 10.0  # seconds that a child may be stopped
_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl
_KEEP_SIZE = 1  # of Linux's fallocate
_ROOM = 1 << 16  # bytes, for what one rank tells the others; a kilobyte, and more with more ranks


def exit_with_parent() -> None:
    """End this process with its parent, where `launch` is the parent."""
    if os.environ.get(LIFELINE) == "1":
        if sys.platform == "linux":  # the thread of a process that hangs does not run
            ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    while os.read(0, 1):  # standard input is the pipe; nothing is ever written into it
        pass
    os._exit(_FAILED)


def launch(
    arguments: Sequence[str], *, out: Path, ranks: int, timeout: float, stop: Stop | None = None
) -> int:
    """Run a command of ours as so many ranks.

    Args:
        timeout: seconds in which ranks miss each other by themselves; what is left somewhat later
            is killed.
        stop: of the command; all ranks are asked what it is asked.

    Returns:
        The exit code of the ranks, 0 only if the folder holds a finished run; 2 if signals ended
        them all.
    """
    stop, twice = stop or Stop(), threading.Event()
    stop.finish()  # from here on the ranks are asked
    stop.quiet = True  # and say what there is to say
    stop.at_once = lambda _: twice.set()
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="overhear-") as private:  # of mode 0700
        try:
            # Ranks meet at a store, and know each other by a common secret.
            told = {STORE_FILE: str(Path(private) / "store"), SECRET: secrets.token_hex(32)}
            _reserve(told[STORE_FILE], ranks * _ROOM)
            _start(children, arguments, ranks=ranks, told=told)
            patience = min(timeout + _GRACE, _STOPPED + _GRACE)
            return _watch(
                children, store=_store_of(told), out=out, patience=patience, stop=stop, twice=twice
            )
        except RuntimeError as error:  # of torch's store
            raise OSError(
                f"the ranks have lost their store in {private} ({error}), and were ended: name a "
                "folder that no one clears in TMPDIR, and --resume where there is a ledger"
            ) from error
        finally:
            for child in children:
                child.kill()
                child.wait()
                if child.stdin is not None:
                    child.stdin.close()


def _reserve(path: str, room: int) -> None:
    """Make the file of the store, with room on its disk where the system can reserve some.

    Raises:
        OSError: the disk is full.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if sys.platform != "linux":
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(file, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(room)) == 0:
            return
        number = ctypes.get_errno()
        if number in (errno.ENOSPC, errno.EDQUOT):
            why = f"{os.strerror(number)}; make room there, or name another folder in TMPDIR"
            raise OSError(number, why, path)
    finally:
        os.close(file)


def _store_of(told: Mapping[str, str]) -> RankStore:
    """The store of the children, which load torch at the same time."""
    from torch._C._distributed_c10d import FileStore

    from .rendezvous import RankStore

    file = FileStore(told[STORE_FILE], -1)
    file.set_timeout(timedelta(seconds=_GRACE))  # of waiting for a file that was removed
    return RankStore(file, told[SECRET].encode())


def _has_met(store: RankStore, ranks: int) -> bool:
    """Whether all ranks have come, before which none releases anything."""
    return store.has(*(f"{CAME}/{rank}" for rank in range(ranks)))


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Let a child that is started here begin with these signals blocked, until it hears them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    children: list[subprocess.Popen[bytes]],
    arguments: Sequence[str],
    *,
    ranks: int,
    told: Mapping[str, str],
) -> None:
    """Add the children one by one, so that those that run are known when one cannot be started."""
    common = {**_environment(ranks), **told}
    for rank in range(ranks):
        with _signals_blocked():
            child = subprocess.Popen(  # noqa: S603 # our own command line
                [sys.executable, "-m", "overhear.commands", *arguments],
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the parent, which tells all ranks
            )
        children.append(child)


def _environment(ranks: int) -> dict[str, str]:
    told = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        AGENT_STORE: str(True),  # no rank keeps the store
        "TORCHELASTIC_RESTART_COUNT": "0",
        LIFELINE: "1",
    }
    for loopback in {"lo", "lo0"} & set(interface_names()):
        told |= {GLOO: loopback, NCCL: f"={loopback}"}
    # Two threads in each of several processes take each other's cores.
    return {"OMP_NUM_THREADS": "1"} | dict(os.environ) | told


def _watch(
    children: Sequence[subprocess.Popen[bytes]],
    *,
    store: RankStore,
    out: Path,
    patience: float,
    stop: Stop,
    twice: threading.Event,
) -> int:
    """Wait for all: once a signal has ended one, until the others miss it; else only shortly.

    One that is stopped is given up after `_STOPPED` seconds, however long the others would wait.
    A run whose folder is closed is finished, whichever rank was lost afterwards. Asked to stop, all
    ranks are asked, once they hear it; asked twice, they have `_GRACE` seconds. Before they have
    met, all end where one was stopped.
    """
    left, until, asked, met = list(children), math.inf, False, False
    seen_running = {child.pid: time.monotonic() for child in children}
    # Until all have ended, or nothing is left to wait for.
    while left and time.monotonic() < until:
        ended = [child for child in left if child.poll() is not None]
        number = stop.signal or max(map(_stopped_by, ended), default=0)
        # From there on it does without a store, which may be cleared away.
        met = met or _has_met(store, len(children))
        if number and not asked and not met:
            return _end_all(children, number, store=store)
        if stop.signal and (twice.is_set() or not asked):
            asked = True
            for child in left:
                child.send_signal(stop.signal)
        if twice.is_set():
            until = min(until, time.monotonic() + _GRACE)
        # A rank that is stopped is given up in time, and one that ended leaves the others some.
        for child in left:
            if not _is_stopped(child):
                seen_running[child.pid] = time.monotonic()
            elif time.monotonic() - seen_running[child.pid] > _STOPPED:
                until = 0.0
        for child in ended:
            left.remove(child)
            until = min(until, time.monotonic() + (patience if child.returncode < 0 else _GRACE))
        time.sleep(_POLL)
    codes = [child.poll() for child in children]
    # What a rank says of itself is another matter than what is on the disk.
    if codes[0] == 0 and _is_finished(out):
        return 0
    first_is_lost = codes[0] is None or codes[0] < 0
    if first_is_lost and store.has(CLOSED) and _is_finished(out):
        tell("rank 0 was lost after the end; the run is finished")
        return 0
    # An exit code that a rank gave, or else which one was lost and how.
    said = [code for code in codes if code is not None and code > 0]
    if said:
        return said[0]
    killed = [(rank, code) for rank, code in enumerate(codes) if code is not None and code < 0]
    silent = [(rank, code) for rank, code in enumerate(codes) if code is None]
    early = [(0, 0)]  # all ended as if they had finished
    rank, code = (killed or silent or early)[0]
    stopped = [number for number, child in enumerate(children) if _is_stopped(child)]
    why = "does not answer" if code is None else f"was ended by signal {-code}"
    if code == 0:
        why = f"ended before the run in {out} was finished"
    if stopped:
        rank, why = stopped[0], "is stopped and does not answer"
    begun = "ended at once;" if asked else "error:"
    tell(
        f"{begun} rank {rank} of {len(children)} {why}; what was released is in the "
        "ledger: --resume continues the run, or start it again where there is no ledger"
    )
    return 128 + stop.signal if asked else _FAILED


def _is_finished(out: Path) -> bool:
    """Whether the folder holds a run that is closed, looked at here."""
    from .folder import is_finished

    return is_finished(out)


def _stopped_by(child: subprocess.Popen[bytes]) -> int:
    """The signal that stopped a child that has ended, whether it listened or not; 0 if none did."""
    codes = {code: number for number in SIGNALS for code in (-number, 128 + number)}
    return int(codes.get(child.returncode, 0))


def _end_all(children: Sequence[subprocess.Popen[bytes]], number: int, *, store: RankStore) -> int:
    """End ranks that have not met, and say what was released, unless a rank says why all end."""
    first, code = store.claim(-1, 128 + number)
    mine, until = first == -1, time.monotonic() + _GRACE
    while not mine and not store.has(SAID) and time.monotonic() < until:
        time.sleep(_POLL)
    for child in children:
        child.kill()
        child.wait()
    if mine or not store.has(SAID):
        kept = "what was released is in the ledger: continue with --resume where there is one"
        nothing = "nothing was released; give the command again"
        tell(f"stopped; {kept if _has_met(store, len(children)) else nothing}")
    return code


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    """Whether a signal has stopped a child that may still be continued."""
    if sys.platform == "win32" or child.returncode is not None:
        return False
    with contextlib.suppress(ChildProcessError):
        asked = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, child.pid, asked) is not None
    return False
