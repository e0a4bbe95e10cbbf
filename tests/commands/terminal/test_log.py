"""`--quiet` and `--log-file`: what the terminal shows, and what the file keeps."""

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.main import get_command

from overhear.commands.cli import app, main
from overhear.commands.terminal.progress import attack_progress
from overhear.commands.terminal.terminal import Log, current_log, logging

BUDGET = ["budget", "--epsilon", "1", "--delta", "1e-5", "--rounds", "10", "--sampling-rate", "1"]
STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)


def lines() -> list[str]:
    text = Path("log.txt").read_text(encoding="utf-8")
    assert all(STAMP.match(line) for line in text.splitlines())
    return [STAMP.sub("", line) for line in text.splitlines()]


def trained(run_file: Path, *options: str) -> None:
    few = ["--set", "training.rounds=4", "--set", "data.agents=4", "--set", "intercept.rounds=[1]"]
    few += ["--set", "training.evaluate_every=1"]
    assert main([*options, "train", str(run_file), "--out", "run", *few]) == 0


def test_a_log_has_the_progress_with_time_stamps_and_time_left(run_file, capsys):
    trained(run_file, "--log-file", "log.txt")
    begin, reading, *steps, end = lines()
    assert (begin, end) == ("overhear train", "ended with exit code 0")
    assert reading == "training: reading the run file and its data"  # before there are rounds
    assert [step.split(":")[0] for step in steps] == [f"training {n}/4" for n in range(5)] or [
        step.split(":")[0] for step in steps
    ] == [f"training {n}/4" for n in range(1, 5)]
    assert any(re.search(r"\(about \d+ \w+ left\)$", step) for step in steps)
    assert "training 4/4: epsilon" in capsys.readouterr().err


def test_quiet_shows_the_result_and_no_progress(run_file, capsys):
    trained(run_file, "--quiet", "--log-file", "log.txt")
    shown = capsys.readouterr()
    assert "training" not in shown.err
    assert "The run is in run." in shown.out
    assert any(line.startswith("training 4/4: ") for line in lines())


def test_errors_are_told_to_the_terminal_and_to_the_log(capsys):
    assert main(["--quiet", "--log-file", "log.txt", "plan", "nothing.toml"]) == 2
    assert "error: no run file at nothing.toml" in capsys.readouterr().err
    assert lines() == [
        "overhear plan",
        "error: no run file at nothing.toml",
        "ended with exit code 2",
    ]


def test_the_options_of_the_program_may_stand_behind_a_command_too(run_file, capsys):
    assert main(["plan", "nothing.toml", "--quiet", "--log-file", "log.txt"]) == 2
    assert lines() == [
        "overhear plan",
        "error: no run file at nothing.toml",
        "ended with exit code 2",
    ]
    capsys.readouterr()
    few = ["--set", "training.rounds=2", "--set", "data.agents=3"]
    assert main(["train", str(run_file), "--quiet", "--out", "run", *few]) == 0
    shown = capsys.readouterr()
    assert "training" not in shown.err
    assert "The run is in run." in shown.out


def test_quiet_before_a_command_stays_with_a_log_behind_it():
    with logging() as log:
        log.begin("overhear train", quiet=True)
        log.begin(log.title, path=Path("log.txt"))
        assert log.options == ["--quiet", "--log-file=log.txt"]
    assert lines() == ["overhear train"]


def test_every_command_takes_the_options_of_the_program(capsys):
    for name in get_command(app).commands:  # type: ignore[attr-defined]  # a group
        assert main([name, "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--quiet" in shown
        assert "--log-file FILE" in shown


def test_two_logs_are_refused_and_the_same_one_twice_is_one(capsys):
    same = ["log.txt", str(Path("log.txt").absolute())]
    for again in same:
        assert main(["--log-file", "log.txt", *BUDGET, "--log-file", again]) == 0
    assert lines() == ["overhear budget", "ended with exit code 0"] * len(same)
    assert main(["--log-file", "log.txt", *BUDGET, "--log-file", "other.txt"]) == 2
    assert capsys.readouterr().err == (
        "error: --log-file is given twice, as log.txt and as other.txt; name one file\n"
    )
    assert not Path("other.txt").exists()


def test_what_an_earlier_command_wrote_stays():
    for _ in range(2):
        assert main(["--log-file", "log.txt", *BUDGET]) == 0
    assert lines() == ["overhear budget", "ended with exit code 0"] * 2


def test_a_log_that_cannot_be_written_is_refused_before_anything_runs(capsys):
    assert main(["--log-file", "nowhere/log.txt", *BUDGET]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "error: --log-file nowhere/log.txt cannot be written (No such file or directory); name a "
        "file in a folder that exists, or a pipe that is read\n"
    )


def test_a_log_on_a_full_disk_ends_no_command(capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    assert main(["--log-file", "/dev/full", *BUDGET]) == 0
    assert "noise multiplier" in capsys.readouterr().out


def test_of_several_ranks_the_first_writes(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with logging() as log:
        log.begin("overhear train", path=Path("log.txt"))
        log.line("told")
    assert not Path("log.txt").exists()


def test_other_processes_of_a_command_are_given_its_options():
    with logging() as log:
        log.begin("overhear train", quiet=True, path=Path("log.txt"))
        assert current_log().options == ["--quiet", "--log-file=log.txt"]
    assert Log().options == []


def test_the_time_left_is_that_of_the_steps_since_the_first(monkeypatch):
    times = iter([100.0, 110.0, 130.0, 131.0, 141.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    with logging() as log:
        log.begin("overhear attack", quiet=True, path=Path("log.txt"))
        with attack_progress(Console(file=io.StringIO())) as step:
            # Resumed at step 50 of 100: two steps a second are not taken for ten.
            # Then other work of the same size.
            for done in (50, 60, 100, 10, 20):
                step(done, 100, "x")
    assert [line.partition(": x")[2] for line in lines() if "/100: x" in line] == [
        "",
        " (about 40 seconds left)",
        "",
        "",
        " (about 80 seconds left)",
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_that_nobody_reads_is_refused_at_once_and_one_that_is_read_is_written(capsys):
    os.mkfifo("pipe")
    assert main(["--log-file", "pipe", *BUDGET]) == 2
    assert "error: --log-file pipe cannot be written" in capsys.readouterr().err
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert main(["--log-file", "pipe", *BUDGET]) == 0
    assert b"overhear" in os.read(reader, 1000)
    os.close(reader)
