"""How a command tells how far it is: a bar on a terminal, plain lines elsewhere and in a log.

A terminal or a pipe that is gone ends no run: how far it is then is told to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

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

from ...runs.numbers import Cost, bound, duration, small
from .terminal import current_log

if TYPE_CHECKING:
    from ...runs.folder.run import Progress as TrainProgress
    from ...training.models.metrics import Metrics

_WARM_S = 1.0  # after so many seconds without the first step the time of a step is known
_SLOW_S = 10.0  # and with it


@contextmanager
def train_progress(
    console: Console, *, limit: float | None, delta: float | None
) -> Iterator[TrainProgress]:
    """Rounds with epsilon against its limit, accuracy and consensus distance.

    Args:
        limit: target epsilon, None without one.
    """
    with _steps(console, "training", "rounds", begins="reading the run file and its data") as show:

        def step(at: int, rounds: int, epsilon: float | None, metrics: Metrics | None, /) -> None:
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


def attack_progress(console: Console) -> AbstractContextManager[Steps]:
    """Reconstructions done, and which one comes next."""
    return _steps(console, "attack", "steps", begins="reading what was intercepted")


def audit_progress(console: Console) -> AbstractContextManager[Steps]:
    """Rounds done, of the checks and then of the canaries' runs."""
    return _steps(console, "audit", "steps", begins="reading the run")


def sweep_progress(console: Console) -> AbstractContextManager[Steps]:
    """Runs that have ended, and which one did last."""
    return _steps(console, "sweep", "runs", begins="reading what has ended")


@contextmanager
def waiting(console: Console, what: str, words: str) -> Iterator[None]:
    """Say on a terminal what is done, of work that has no steps; the line goes when it ends."""
    log = current_log()
    log.line(f"{what}: {words}")
    shown = console.is_terminal and not log.quiet
    with console.status(Text(f"{what}: {words}")) if shown else nullcontext():
        yield


class _Count(MofNCompleteColumn):
    """So many of so many, once it is known how many there are."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


@contextmanager
def _steps(console: Console, what: str, steps: str, *, begins: str) -> Iterator[Steps]:
    """Steps on the console, unless it is to be quiet, and in the log.

    Args:
        begins: what is done before the first step.
    """
    log = current_log()
    log.line(f"{what}: {begins}")
    if log.quiet or not console.is_terminal:
        yield Steps(console, what, steps)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        _Count(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console)
    bar.add_task(what, total=None, words=begins)
    try:
        with suppress(OSError):
            bar.start()
        yield Steps(console, what, steps, bar=bar)
    finally:
        with suppress(OSError):
            bar.stop()


class Steps:
    """Tells of steps, and once of each total what it takes: on the console and in the log.

    Args:
        what: the name of the work.
        steps: what its steps are.
        bar: of one task, on a terminal; elsewhere, and in the log, there are ten lines of each
            text and total.
    """

    def __init__(
        self, console: Console, what: str, steps: str, *, bar: Progress | None = None
    ) -> None:
        self._console, self._what, self._steps = console, what, steps
        self._bar, self._log = bar, current_log()
        self._paces = dict[int, _Pace]()
        self._due = dict[tuple[str, int], int]()
        self._priced = set[int]()

    def __call__(self, done: int, total: int, text: str, /, *, look: bool = False) -> None:
        """Show a step, which may be followed by a look at what it did, such as an evaluation."""
        left, due = self._time(done, total, look=look), self._is_due(done, total, text)
        if due:
            self._log.line(f"{self._what} {done}/{total}: {text}{left}")
        if self._bar is not None:
            with suppress(OSError):
                task = self._bar.task_ids[0]
                self._bar.update(task, completed=done, total=total)
                if text:
                    self._bar.update(task, words=text)
        elif due:
            self._say(f"{self._what} {done}/{total}: {text}")

    def expect(self, cost: Cost, /) -> None:
        """Say what the work will take, where that is long."""
        self._priced.add(cost.steps)
        if cost.words is not None:
            self._log.line(f"{self._what}: {cost.words}")
            self._say(f"{self._what}: {cost.words}")

    def _time(self, done: int, total: int, *, look: bool) -> str:
        """What is left, in words; what all of it takes is told where it is known first."""
        pace = self._paces.get(total)
        if pace is None or done < pace.last:  # other work of the same size has begun
            self._paces[total] = _Pace(done, looks=look)
            return ""
        left, sure = pace.left(done, total, look=look)
        if sure and total not in self._priced:
            of = f"{total - pace.first} {self._steps}"
            self.expect(Cost(pace.spent + left, total, of))
        return f" (about {duration(left)} left)" if left else ""

    def _is_due(self, done: int, total: int, text: str) -> bool:
        if not text:
            return False
        tenth = 10 * done // max(total, 1)
        due = self._due.get((text, total)) != tenth
        self._due[text, total] = tenth
        return due

    def _say(self, text: str) -> None:
        if not self._log.quiet:
            with suppress(OSError):
                self._console.print(text, markup=False, highlight=False)


class _Pace:
    """The time of equal steps, from those since the first, which warms the machine up.

    Args:
        done: steps that are done when this begins.
        looks: whether some steps, at equal distances, are followed by a look.

    Attributes:
        first, last: steps that were done when this began, and when it last heard.
        spent: seconds between.
    """

    def __init__(self, done: int, *, looks: bool) -> None:
        self.first = self.last = self._from = done
        self._begun = self._since = time.monotonic()
        self._looks, self._warm, self.spent = looks, False, 0.0

    def left(self, done: int, total: int, *, look: bool) -> tuple[float, bool]:
        """Seconds that the other steps take, 0 as long as that is unknown; and whether surely."""
        if done <= self._from:
            return 0.0, False
        now = time.monotonic()
        took, self.last, self.spent = now - self._since, done, now - self._begun
        left = (total - done) * took / (done - self._from)
        known = self._warm and took >= _WARM_S and (look or not self._looks)
        if not self._warm:  # later words go without the first step
            self._from, self._since, self._warm = done, now, True
        return left, known or took >= _SLOW_S
