"""How a command tells how far it is: a bar on a terminal, plain lines elsewhere and in a log.

A terminal or a pipe that is gone ends no run: how far it is then is told to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ...runs.cost import Cost
from ...runs.numbers import bound, small
from .log import Remaining, current_log
from .pace import Pace


class TrainProgress(Protocol):
    """Called after a round; epsilon and metrics come with the rounds that are evaluated."""

    def __call__(self, at: int, rounds: int, epsilon: float | None, metrics: Any | None, /) -> None:
        """Show the round."""


class Steps(Protocol):
    """Called after each step of some work."""

    def __call__(self, done: int, total: int, text: str, /, *, look: bool = False) -> None:
        """Show the step."""

    def expect(self, cost: Cost, /) -> None:
        """Say what the work will take, where that is long."""


@contextmanager
def train_progress(
    console: Console, *, limit: float | None, delta: float | None
) -> Iterator[TrainProgress]:
    """Rounds with epsilon against its limit, accuracy and consensus distance.

    Args:
        console: of standard error.
        limit: target epsilon, None without one.
        delta: of every epsilon.
    """
    with _steps(console, "training", "rounds", begins="reading the run file and its data") as show:

        def step(at: int, rounds: int, epsilon: float | None, metrics: Any | None, /) -> None:
            words = []
            if epsilon is not None and delta is not None:
                against = "" if limit is None else f" of {bound(limit)}"
                words.append(f"epsilon {bound(epsilon)}{against} at delta {small(delta)}")
            if metrics is not None:
                if metrics.consensus_accuracy is not None:
                    words.append(f"accuracy {metrics.consensus_accuracy:.1%}")
                else:
                    words.append(f"RMSE {metrics.consensus_rmse:.4g}")
            show(at, rounds, ", ".join(words), look=metrics is not None)

        yield step


@contextmanager
def attack_progress(console: Console) -> Iterator[Steps]:
    """Reconstructions done, and which one comes next."""
    with _steps(console, "attack", "steps", begins="reading what was intercepted") as show:
        yield show


@contextmanager
def audit_progress(console: Console) -> Iterator[Steps]:
    """Rounds done, of the checks and then of the canaries' runs; ten lines of each elsewhere."""
    with _steps(console, "audit", "steps", begins="reading the run", tenths=True) as show:
        yield show


@contextmanager
def sweep_progress(console: Console) -> Iterator[Steps]:
    """Runs that have ended, and which one did last."""
    with _steps(console, "sweep", "runs", begins="reading what has ended") as show:
        yield show


@contextmanager
def waiting(console: Console, what: str, words: str) -> Iterator[None]:
    """Say on a terminal what is done, of work that has no steps; the line goes when it ends."""
    log = current_log()
    log.line(f"{what}: {words}")
    shown = console.is_terminal and not log.quiet
    with console.status(Text(f"{what}: {words}")) if shown else nullcontext():
        yield


@contextmanager
def _steps(
    console: Console, what: str, steps: str, *, begins: str, tenths: bool = False
) -> Iterator[Steps]:
    """Steps on the console, unless it is to be quiet, and in the log.

    Args:
        console: of standard error.
        what: the name of the work.
        steps: what its steps are.
        begins: what is done before the first step.
        tenths: whether lines are ten of each text and total, and not one of each step.
    """
    log = current_log()
    log.line(f"{what}: {begins}")
    with _shown(console, what, begins) if not log.quiet else nullcontext() as show:
        yield _Told(console, what, steps, tenths=tenths, show=show)


class _Told:
    """Tells of steps, and once of each total what it takes: on the console and in the log."""

    def __init__(
        self, console: Console, what: str, steps: str, *, tenths: bool, show: _Show | None
    ) -> None:
        self._console, self._what, self._steps = console, what, steps
        self._tenths, self._show, self._log = tenths, show, current_log()
        self._remaining = dict[int, Remaining]()
        self._paces = dict[int, Pace]()
        self._due = dict[tuple[str, int], int]()
        self._priced = set[int]()

    def __call__(self, done: int, total: int, text: str, /, *, look: bool = False) -> None:
        self._price(done, total, look=look)
        left = self._remaining.setdefault(total, Remaining()).words(done, total)
        due = self._is_due(done, total, text)
        if due:
            self._log.line(f"{self._what} {done}/{total}: {text}{left}")
        if self._show is not None and (due or self._console.is_terminal):
            self._show(done, total, text)

    def expect(self, cost: Cost, /) -> None:
        self._priced.add(cost.steps)
        if cost.words is not None:
            self._log.line(f"{self._what}: {cost.words}")
            if not self._log.quiet:
                _say(self._console, f"{self._what}: {cost.words}")

    def _price(self, done: int, total: int, *, look: bool) -> None:
        if total in self._priced:
            return
        pace = self._paces.get(total)
        if pace is None or done < pace.last:  # other work of the same size has begun
            self._paces[total] = Pace(done, looks=look)
        elif done > pace.last and (seconds := pace.seconds(done, total, look=look)) is not None:
            of = f"{total - pace.first} {self._steps}"
            self.expect(Cost(seconds, total, of))

    def _is_due(self, done: int, total: int, text: str) -> bool:
        if not text:
            return False
        tenth = 10 * done // max(total, 1)
        due = not self._tenths or self._due.get((text, total)) != tenth
        self._due[text, total] = tenth
        return due


def _say(console: Console, text: str) -> None:
    with suppress(OSError):
        console.print(text, markup=False, highlight=False)


_Show = Callable[[int, int, str], None]


class _Count(MofNCompleteColumn):
    """So many of so many, once it is known how many there are."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


@contextmanager
def _shown(console: Console, what: str, begins: str) -> Iterator[_Show]:
    if not console.is_terminal:

        def line(done: int, total: int, text: str, /) -> None:
            _say(console, f"{what} {done}/{total}: {text}")

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        _Count(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=False)
    task = bar.add_task(what, total=None, words=begins)

    def step(done: int, total: int, text: str, /) -> None:
        with suppress(OSError):
            if text:
                bar.update(task, words=text)
            bar.update(task, completed=done, total=total)

    try:
        with suppress(OSError):
            bar.start()
        yield step
    finally:
        with suppress(OSError):
            bar.stop()
