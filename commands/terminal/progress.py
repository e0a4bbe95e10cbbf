"""How a command tells how far it is: a bar on a terminal, plain lines elsewhere and in a log.

A terminal or a pipe that is gone ends no run: how far it is then is told to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...runs.numbers import bound, small
from .log import Remaining, current_log

__all__ = [
    "AttackProgress",
    "TrainProgress",
    "attack_progress",
    "audit_progress",
    "sweep_progress",
    "train_progress",
]


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
    with _steps(console, "training") as show:

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
    with _steps(console, "attack") as show:
        yield show


@contextmanager
def audit_progress(console: Console) -> Iterator[AttackProgress]:
    """Rounds done, of the checks and then of the canaries' runs; ten lines of each elsewhere."""
    with _steps(console, "audit", tenths=True) as show:
        yield show


@contextmanager
def sweep_progress(console: Console) -> Iterator[AttackProgress]:
    """Runs that have ended, and which one did last."""
    with _steps(console, "sweep") as show:
        yield show


@contextmanager
def _steps(console: Console, what: str, *, tenths: bool = False) -> Iterator[AttackProgress]:
    """Steps on the console, unless it is to be quiet, and in the log.

    Args:
        console: of standard error.
        what: the name of the work.
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

    with _shown(console, what) if not log.quiet else nullcontext() as show:

        def step(done: int, total: int, text: str, /) -> None:
            left = remaining.setdefault(total, Remaining()).words(done, total)
            due = is_due(done, total, text)
            if due:
                log.line(f"{what} {done}/{total}: {text}{left}")
            if show is not None and (due or console.is_terminal):
                show(done, total, text)

        yield step


@contextmanager
def _shown(console: Console, what: str) -> Iterator[AttackProgress]:
    if not console.is_terminal:

        def line(done: int, total: int, text: str, /) -> None:
            with suppress(OSError):
                console.print(f"{what} {done}/{total}: {text}", markup=False, highlight=False)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task(what, total=None, words="")

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
