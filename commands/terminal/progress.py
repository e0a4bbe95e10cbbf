"""How a command tells how far it is: a bar on a terminal, plain lines elsewhere and in a log.

A terminal or a pipe that is gone ends no run: how far it is then is told to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
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

from ...runs.numbers import bound, small
from .log import Remaining, current_log

__all__ = [
    "AttackProgress",
    "TrainProgress",
    "attack_progress",
    "audit_progress",
    "sweep_progress",
    "train_progress",
    "waiting",
]

_SURE_S = 1.0  # from when on the time of a step is known well enough
_LONG_S = 30.0  # work that takes longer is told of when it begins


class TrainProgress(Protocol):
    """Called after a round; epsilon and metrics come with the rounds that are evaluated."""

    def __call__(self, at: int, rounds: int, epsilon: float | None, metrics: Any | None, /) -> None:
        """Show the round."""


class AttackProgress(Protocol):
    """Called after each reconstruction."""

    def __call__(self, done: int, total: int, text: str, /) -> None:
        """Show the step."""


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
    with _steps(console, "training", begins="reading the run file and its data") as show:

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
            show(at, rounds, ", ".join(words))

        yield step


@contextmanager
def attack_progress(console: Console) -> Iterator[AttackProgress]:
    """Reconstructions done, and which one comes next."""
    with _steps(console, "attack", begins="reading what was intercepted") as show:
        yield show


@contextmanager
def audit_progress(console: Console) -> Iterator[AttackProgress]:
    """Rounds done, of the checks and then of the canaries' runs; ten lines of each elsewhere."""
    with _steps(console, "audit", begins="reading the run", tenths=True) as show:
        yield show


@contextmanager
def sweep_progress(console: Console) -> Iterator[AttackProgress]:
    """Runs that have ended, and which one did last."""
    with _steps(console, "sweep", begins="reading what has ended") as show:
        yield show


@contextmanager
def waiting(console: Console, what: str, words: str) -> Iterator[None]:
    """Say on a terminal what is done, of work that has no steps; the line goes when it ends."""
    log = current_log()
    log.line(f"{what}: {words}")
    shown = console.is_terminal and not log.quiet
    with console.status(f"{what}: {words}") if shown else nullcontext():
        yield


@contextmanager
def _steps(
    console: Console, what: str, *, begins: str, tenths: bool = False
) -> Iterator[AttackProgress]:
    """Steps on the console, unless it is to be quiet, and in the log.

    Args:
        console: of standard error.
        what: the name of the work.
        begins: what is done before the first step.
        tenths: whether lines are ten of each text and total, and not one of each step.
    """
    log, remaining = current_log(), dict[int, Remaining]()
    told: dict[tuple[str, int], int] = {}

    def is_due(done: int, total: int, text: str) -> bool:
        if not text:
            return False
        tenth = 10 * done // max(total, 1)
        due = not tenths or told.get((text, total)) != tenth
        told[text, total] = tenth
        return due

    log.line(f"{what}: {begins}")
    begun, priced = time.monotonic(), False
    with _shown(console, what, begins) if not log.quiet else nullcontext() as show:

        def step(done: int, total: int, text: str, /) -> None:
            nonlocal priced
            of_total = remaining.setdefault(total, Remaining())
            left = of_total.words(done, total)
            if left and not priced and time.monotonic() - begun > _SURE_S:
                priced = True
                if of_total.seconds > _LONG_S and not (log.quiet or console.is_terminal):
                    _say(console, f"{what}: {total} steps, {left.strip(' ()')}")
            due = is_due(done, total, text)
            if due:
                log.line(f"{what} {done}/{total}: {text}{left}")
            if show is not None and (due or console.is_terminal):
                show(done, total, text)

        yield step


def _say(console: Console, text: str) -> None:
    with suppress(OSError):
        console.print(text, markup=False, highlight=False)


class _Count(MofNCompleteColumn):
    """So many of so many, once it is known how many there are."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


@contextmanager
def _shown(console: Console, what: str, begins: str) -> Iterator[AttackProgress]:
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
