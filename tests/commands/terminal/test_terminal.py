"""What commands print with: one style of tables, no blanks in a pipe, and words before a step."""

import io
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from overhear.commands.cli import main
from overhear.commands.terminal import progress, signals
from overhear.commands.terminal.signals import stop_of_command, until_stopped
from overhear.commands.terminal.tables import rows_table
from overhear.commands.terminal.terminal import logging, make_console, make_table
from overhear.runs.folder.names import LIFELINE
from overhear.runs.numbers import Cost
from overhear.runs.stop import SIGNALS

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


# A signal at any moment of a command is told once, and never by a traceback.

NOTHING = "stopped; nothing was written\n"


def raising(number: int) -> int:
    signal.raise_signal(number)
    return 0


@pytest.mark.parametrize("number", SIGNALS)
def test_the_code_is_that_of_the_signal_and_one_sentence_is_printed(number, capfd):
    assert until_stopped(lambda: raising(number)) == 128 + number
    assert capfd.readouterr().err == NOTHING


def test_a_command_within_a_command_is_a_part_of_it(capfd):
    assert until_stopped(lambda: until_stopped(lambda: raising(signal.SIGTERM))) == 143
    assert capfd.readouterr().err == NOTHING


def test_a_rank_is_silent_before_it_has_met_the_others_and_hears_what_came_before(
    monkeypatch, capfd
):
    monkeypatch.setenv(LIFELINE, "1")
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # as who starts it does
    signal.raise_signal(signal.SIGTERM)
    begun: list[bool] = []
    assert until_stopped(lambda: begun.append(stop_of_command().quiet) or 0) == 143
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS) == set()
    assert begun == []
    assert capfd.readouterr().err == ""


class RaisesInItsEnd:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_stop_that_python_ignores_ends_the_command_all_the_same(monkeypatch, capfd):
    told: list[object] = []
    monkeypatch.setattr(signals, "_PATIENCE", 0.1)

    def command() -> int:
        stop_of_command().at_once = told.append
        found = RaisesInItsEnd()
        del found
        until = time.monotonic() + 10
        while not told and time.monotonic() < until:
            time.sleep(0.01)
        return 0

    hook = sys.unraisablehook
    until_stopped(command)
    assert str(told[0]) == "ended at once; nothing was written"
    assert sys.unraisablehook is hook
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("program", ["overhear.commands", "overhear.commands.cli"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_command_line_loads_stops_it(tmp_path, program, number):
    loaded = f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(30)\n"
    (tmp_path / "typer.py").write_text(loaded, encoding="utf-8")  # of the first to be loaded
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-m", program, "budget"], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (128 + number, NOTHING)
