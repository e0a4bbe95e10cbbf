"""A run that is asked to stop: where it ends at once, what it finishes first, and what it says.

Nothing here listens for signals: the command line does, and asks. Who calls from Python may give a
`Stop` of his own and ask from another thread.

Asked once, a command ends where it is, by `Interrupted`, unless it is held: what is held is
finished, and the command ends after it. Asked twice it ends at once, wherever it is, as if it were
killed; what is on the disk then is whole, as after a crash, and `note` says what that costs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal as signals
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

SIGNALS = tuple(
    getattr(signals, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signals, name)
)
"""The signals that ask a command to stop."""

NOTHING_KEPT = "nothing of this audit is kept, and nothing was changed; start it again"
"""What a stopped audit says."""


class Interrupted(BaseException):
    """A request stopped the command; no mistake, so nothing that looks for errors takes it.

    Args:
        words: the sentence that says what is kept, and how to go on.

    >>> Interrupted("stopped after round 3", signal=15).code
    143
    """

    def __init__(self, words: str, *, signal: int) -> None:
        super().__init__(words)
        self.signal = signal

    @property
    def code(self) -> int:
        """The exit code, as a shell gives it to what a signal ended."""
        return 128 + self.signal


def tell(words: str) -> None:
    """Say something on standard error, if anybody is there to read it: a terminal may be gone.

    What is not shown stands as its escape.
    """
    from ..privacy.plain_text import plain_lines  # a command starts without it

    try:
        print(plain_lines(words), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # or the interpreter fails as it leaves
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextlib.contextmanager
def naming(command: str, *, run_file: Path) -> Iterator[None]:
    """Where training is a part of another command, name the command by which it goes on.

    Args:
        run_file: which is there once there is something to go on with.
    """
    try:
        yield
    except Interrupted as stopped:
        if not run_file.exists():
            raise
        raise Interrupted(f"{stopped}: {command}", signal=stopped.signal) from None


class Stop:
    """Whether a request to stop a command came, and whether it may end where it is.

    Attributes:
        signal: which asked; 0 is none.
        quiet: whether another process says what there is to say.
        at_once: what ends the process when it is asked twice, or does not end by itself.

    >>> stop = Stop()
    >>> stop.note("2 of 3 points are kept")
    >>> try:
    ...     with stop.held():
    ...         stop.ask(2)
    ...         print("finished")
    ... except Interrupted as stopped:
    ...     print(stopped, stopped.code)
    finished
    stopped; 2 of 3 points are kept 130
    """

    def __init__(self) -> None:
        self.signal = 0
        self.quiet = False
        self.at_once: Callable[[Interrupted], object] = self._end_process
        self._depth, self._raised, self._note = 0, False, "nothing was written"
        self._noting = threading.Lock()

    def note(self, words: str) -> None:
        """Say what is kept from here on, should the command end at once, and how to go on."""
        with self._noting:  # who says it lets nothing change any more
            self._note = words

    def ask(self, signal: int) -> None:
        """Ask the command to stop; on its own thread, where it is not held, it ends here.

        Raises:
            Interrupted: there.
        """
        self.signal = self.signal or signal
        if not self._raised and threading.current_thread() is threading.main_thread():
            self.check()

    def check(self) -> None:
        """End here if that was asked, unless something is held.

        Raises:
            Interrupted: it was asked.
        """
        if self.signal and self._depth == 0:
            raise self.ended(f"stopped; {self._note}")

    def ended(self, words: str, *, signal: int = 0) -> Interrupted:
        """The end, to be raised; no signal raises another on the way out.

        Args:
            words: what is kept, and how to go on.
            signal: which asked; by default the one that asked here.
        """
        self._raised = True
        return Interrupted(words, signal=signal or self.signal)

    def lose(self) -> None:
        """The end that was raised went where Python ignores it, such as into a finalizer."""
        self._raised = False

    @property
    def is_held(self) -> bool:
        """Whether something is to be finished first."""
        return self._depth > 0

    @property
    def is_ending(self) -> bool:
        """Whether the command is on its way out."""
        return self._raised

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Finish what is in the block, and end after it if that was asked meanwhile.

        Raises:
            Interrupted: before or after the block.
        """
        self.check()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        self.check()

    def finish(self) -> None:
        """Hold all that follows, because the work is done: it ends as if nobody had asked."""
        self._depth += 1

    def go_on(self) -> None:
        """After `finish`: there is more to do, so end here if that was asked.

        Raises:
            Interrupted: it was asked.
        """
        self._depth = 0
        self.check()

    def end_now(self) -> None:
        """End the process from another thread than its own, wherever that is."""
        with self._noting:
            self.at_once(self.ended(f"ended at once; {self._note}"))

    def _end_process(self, stopped: Interrupted) -> NoReturn:
        """End this process wherever it is, and say so."""
        with contextlib.suppress(OSError, ValueError):
            if sys.stderr.isatty():
                tell("\x1b[?25h")  # a bar of progress has hidden the cursor
        if not self.quiet:
            tell(str(stopped))
        os._exit(stopped.code)


# Memory that a process frees stays with it, or does not.

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
