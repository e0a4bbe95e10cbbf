"""What commands print with: one style of tables, no blanks in a pipe, and words before a step."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from overhear.commands.cli import main
from overhear.commands.terminal import progress
from overhear.commands.terminal.tables import rows_table
from overhear.commands.terminal.terminal import make_console, make_table


def test_in_a_pipe_no_line_ends_in_a_blank(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print(rows_table([{"graph": "ring", "noise": "2"}], title="A table"))
    printed = capsys.readouterr().out
    assert "ring" in printed
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_every_table_has_the_same_rules() -> None:
    boxes = {make_table("one").box, rows_table([{"a": "1"}], title="other").box}
    assert len(boxes) == 1


def test_no_summary_of_a_command_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    _, found, summaries = printed.partition("Commands:")
    assert found
    assert "..." not in summaries


@pytest.mark.parametrize(
    ("show", "words"),
    [
        (progress.attack_progress, "reading what was intercepted"),
        (progress.audit_progress, "reading the run"),
        (progress.sweep_progress, "reading what has ended"),
    ],
)
def test_before_its_first_step_a_terminal_says_what_is_done(
    show: Callable[[Console], object], words: str
) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with show(console):  # type: ignore[attr-defined]
        pass
    assert words in text.getvalue()
    assert "0/?" not in text.getvalue()


def test_long_work_is_told_once_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(float(10 * k) for k in range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(now))  # ten seconds a look
    text = io.StringIO()
    with progress.attack_progress(Console(file=text, width=100)) as step:
        for done in range(5):
            step(done, 100, "")
    assert text.getvalue().count("attack: 100 steps, about") == 1
