"""What commands print with: one style of tables, no blanks in a pipe, and words before a step."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from overhear.commands.cli import main
from overhear.commands.terminal import progress
from overhear.commands.terminal.tables import rows_table
from overhear.commands.terminal.terminal import logging, make_console, make_table
from overhear.runs.numbers import Cost

_METRICS = SimpleNamespace(consensus_accuracy=0.5)


def test_in_a_pipe_no_line_ends_in_a_blank(capsys):
    make_console().print(rows_table([{"graph": "ring", "noise": "2"}], title="A table"))
    printed = capsys.readouterr().out
    assert "ring" in printed
    assert [line for line in printed.splitlines() if line != line.rstrip()] == []


def test_every_table_has_the_same_rules():
    boxes = {make_table("one").box, rows_table([{"a": "1"}], title="other").box}
    assert len(boxes) == 1


def test_no_summary_of_a_command_is_cut(capsys, monkeypatch):
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
def test_before_its_first_step_a_terminal_says_what_is_done(show, words):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with show(console):  # type: ignore[attr-defined]
        pass
    assert words in text.getvalue()
    assert "0/?" not in text.getvalue()


def _told(monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False, quiet: bool = False) -> str:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=terminal)
    with logging() as log:
        log.quiet = quiet
        with progress.train_progress(console, limit=None, delta=None) as step:
            step(0, 4000, None, _METRICS)
            for done in range(1, 101):
                now[0] += 5.0 if done == 1 else 0.02  # the first round warms up
                now[0] += 0.4 * (done % 10 == 0)  # an evaluation
                step(done, 4000, None, _METRICS if done % 10 == 0 else None)
    return text.getvalue()


def test_long_work_is_told_once_without_its_first_step(monkeypatch):
    # 4,000 rounds of 0.02 s and 400 evaluations of 0.4 s are 4 minutes, whatever the first took.
    told = _told(monkeypatch)
    assert told.count("training: about 4 minutes for 4000 rounds\n") == told.count("about") == 1
    assert "about 4 minutes for 4000 rounds" in _told(monkeypatch, terminal=True)
    assert _told(monkeypatch, quiet=True) == ""


def test_what_was_told_of_beforehand_is_not_told_again(monkeypatch):
    now = iter(float(10 * k) for k in range(100))
    monkeypatch.setattr("time.monotonic", lambda: next(now))  # ten seconds a look
    text = io.StringIO()
    with progress.audit_progress(Console(file=text, width=100)) as step:
        step.expect(Cost(29.0, 90, "a short look"))
        step.expect(Cost(1000.0, 100, "a long one"))
        for total in (90, 100, 110):
            for done in range(5):
                step(done, total, "")
    assert text.getvalue().splitlines()[0] == "audit: about 17 minutes for a long one"
    assert [line[-9:] for line in text.getvalue().splitlines()[1:]] == ["110 steps"]
