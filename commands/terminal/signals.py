"""Signals that ask a command to stop: SIGINT, SIGTERM and SIGHUP, while a command runs.

The first is passed on to `Stop`; a second ends the process at once. A thread hears them as soon as
they come: Python's own handlers wait until the main thread leaves what it is in, which may be a
wait of minutes for another rank.

Some callers send one signal twice: a terminal tells all processes of a command and `torchrun`
tells its ranks once more, as `timeout` does. So what follows the first at once is no second.

A rank that `launch` has started says nothing of a stop before it has met the others, since the
process that started it does. It begins with these signals blocked: what comes before it listens
waits for it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ...runs.folder.names import LIFELINE
from ...runs.stop import SIGNALS, Interrupted, Stop, tell

_SAME = 0.15  # seconds in which a signal is the first one once more; longer of ranks,
_SAME_OF = {"TORCHELASTIC_RUN_ID": 1.5, LIFELINE: 0.5}  # known by their environment
_PATIENCE = 3.0  # seconds in which a command that may end where it is begins to do so by itself
_WAY_OUT = 60.0  # seconds that this takes at the most
_LOOK = 0.1
_current: ContextVar[Stop | None] = ContextVar("stop", default=None)


def stop_of_command() -> Stop:
    """What the signals of this command ask; of a caller from Python nothing does."""
    return _current.get() or Stop()


def until_stopped(command: Callable[[], int]) -> int:
    """Run a command; its exit code, or that of the signal that stopped it, with a sentence.

    Args:
        command: returns its exit code. Within another that is run so, it is a part of that one.

    >>> until_stopped(lambda: 3)
    3
    """
    if _current.get() is not None:
        return command()
    with _listening() as stop:
        try:
            stop.go_on()
            code = command()
            stop.finish()
        except Interrupted as stopped:
            if not stop.quiet:
                tell(str(stopped))
            return stopped.code
        if stop.signal and code == 0 and not stop.quiet:
            tell("the signal came when the work was done, so nothing was stopped")
        return code


@contextmanager
def _listening() -> Iterator[Stop]:
    """Hear the signals of the process as long as a command runs; then all is as it was before.

    What comes before the command runs is kept for it, as if it were held.

    Only the main thread can hear them, and what is ignored, as under `nohup`, stays so.
    """
    stop, launched = Stop(), os.environ.get(LIFELINE) == "1"
    stop.quiet = launched  # until it has met the others
    stop.finish()
    told = _current.set(stop)
    try:
        # Only the main thread hears signals; others take part in the command's stop.
        if threading.current_thread() is not threading.main_thread():
            yield stop
            return
        heard = {number: signal.getsignal(number) for number in SIGNALS}
        mine = [n for n, handler in heard.items() if handler not in (signal.SIG_IGN, None)]
        # A thread hears them, too, by a socket, and ends what does not end by itself.
        near, far = socket.socketpair()
        near.setblocking(False)
        thread = threading.Thread(target=_listen, args=(far, stop, mine), daemon=True)
        before = signal.set_wakeup_fd(near.fileno(), warn_on_full_buffer=False)
        ignored = sys.unraisablehook

        def ignore(found: sys.UnraisableHookArgs) -> None:
            if isinstance(found.exc_value, Interrupted):
                stop.lose()  # so the thread ends what does not end by itself
            else:
                ignored(found)

        sys.unraisablehook = ignore
        thread.start()
        # Handlers are set last, and put back first.
        try:
            for number in mine:
                signal.signal(number, lambda number, _: stop.ask(number))
            if launched and hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            yield stop
        finally:
            for number in mine:
                signal.signal(number, heard[number])
            sys.unraisablehook = ignored
            signal.set_wakeup_fd(before)
            near.close()  # ends the thread
            thread.join()
            far.close()
    finally:
        _current.reset(told)


def _listen(far: socket.socket, stop: Stop, numbers: list[int]) -> None:
    """Until the command is over: end the process at a second signal, or where it does not end.

    A command does not end by itself where it waits for something that does not come.
    """
    far.settimeout(_LOOK)
    first, free = 0.0, 0.0  # when the first came, and since when the command may end
    while True:
        came = b""
        try:
            came = far.recv(64)
            if not came:
                return
        except TimeoutError:
            pass
        now = time.monotonic()
        for number in came:
            if number not in numbers:
                continue
            if not first:
                first = free = now
                stop.signal = stop.signal or number
            elif now - first > _repeated():
                stop.end_now()
        if first:
            free = now if stop.is_held else free
            if now - free > (_WAY_OUT if stop.is_ending else _PATIENCE):
                stop.end_now()


def _repeated() -> float:
    """How long the first signal may come again, in seconds."""
    return max([_SAME, *(span for name, span in _SAME_OF.items() if name in os.environ)])
