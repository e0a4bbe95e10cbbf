"""A signal at any moment of a command is told once, and never by a traceback."""

import os
import signal
import subprocess
import sys
import time

import pytest

from overhear.commands.terminal import signals
from overhear.commands.terminal.signals import stop_of_command, until_stopped
from overhear.runs.folder.names import LIFELINE
from overhear.runs.stop import SIGNALS

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
