"""A run that is asked to stop, at a named moment, loses nothing and releases nothing twice."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder import run as running
from overhear.runs.folder.released import price_of_loss
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.build import Built
from overhear.runs.run_file.run_file import load_run_file
from overhear.runs.stop import Interrupted, Stop
from overhear.training.engine.engine import Engine
from overhear.training.engine.tensor_file import load_checkpoint
from tests.runs.folder.interrupted import NO_TARGET, plan_once, write_run_file
from tests.runs.folder.rank_processes import started_by_hand, unchanged

CHANGES = [NO_TARGET, "training.evaluation_noise_seed=3", "privacy.adversaries=[]"]
SETS = [f"--set={change}" for change in CHANGES]


@pytest.fixture(autouse=True)
def _plan_once(monkeypatch):
    plan_once(monkeypatch)


@pytest.fixture
def config(tmp_path):
    return load_run_file(write_run_file(tmp_path), CHANGES)


def final(out: Path) -> torch.Tensor:
    return load_checkpoint(run_folder.checkpoint(out, 12)).state["x"]


def asks_before(monkeypatch, stop: Stop, owner: object, name: str, *, call: int) -> None:
    """Ask to stop when a function is called for the n-th time, and carry it out."""
    real, calls = getattr(owner, name), [0]

    def asking(*given, **how):
        calls[0] += 1
        if calls[0] == call:
            stop.ask(signal.SIGTERM)
        return real(*given, **how)

    monkeypatch.setattr(owner, name, asking)


MOMENTS = [  # what is under way when it is asked, and after which round the run ends
    pytest.param(Engine, "start", 1, 0, id="the start"),
    pytest.param(Engine, "advance", 6, 6, id="a round"),
    pytest.param(Built, "measured", 2, 2, id="an evaluation"),
    pytest.param(running, "save_checkpoint", 3, 4, id="a checkpoint"),
    pytest.param(running, "save_transcript", 1, 3, id="a transcript"),
    pytest.param(running.Ledger, "append", 6, 5, id="a line of the ledger"),
    pytest.param(running, "write_durably", 1, 0, id="the run file"),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same run, which nobody asked to stop."""
    folder = tmp_path_factory.mktemp("whole")
    train_run(load_run_file(write_run_file(folder), CHANGES), folder / "out")
    return folder / "out"


@pytest.mark.parametrize(("owner", "name", "call", "round"), MOMENTS)
def test_a_run_ends_after_the_round_that_runs_and_goes_on_to_the_same_models(
    config, whole, tmp_path, monkeypatch, owner, name, call, round
):
    out, stop = tmp_path / "out", Stop()
    with monkeypatch.context() as patched:
        asks_before(patched, stop, owner, name, call=call)
        with pytest.raises(Interrupted, match="nothing is released twice") as ended:
            train_run(config, out, stop=stop)
    assert ended.value.code == 143
    assert str(ended.value).startswith(f"stopped after round {round};")
    assert read_ledger(out / "ledger.jsonl").numbers == list(range(round + 1))
    resume_run(config, out)
    assert read_ledger(out / "ledger.jsonl").numbers == list(range(13))
    assert torch.equal(final(out), final(whole))
    assert (out / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    tested = [read_ledger(one / "ledger.jsonl").tested_rounds for one in (out, whole)]
    assert tested[0] == tested[1]


@pytest.mark.parametrize(
    ("owner", "name"), [(running.run_folder, "tell_layout"), (running, "write_sums")]
)
def test_a_run_that_is_done_ends_as_if_nobody_had_asked(config, tmp_path, monkeypatch, owner, name):
    stop = Stop()
    asks_before(monkeypatch, stop, owner, name, call=1)
    train_run(config, tmp_path / "out", stop=stop)
    assert run_folder.is_finished(tmp_path / "out")


def test_before_the_run_nothing_is_written(config, tmp_path, monkeypatch):
    stop = Stop()
    asks_before(monkeypatch, stop, running, "plan_session", call=1)
    with pytest.raises(Interrupted, match="nothing was released; start the run again"):
        train_run(config, tmp_path / "out", stop=stop)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_stops_the_command_which_leaves_handlers_as_they_were(
    config, tmp_path, monkeypatch, capfd, number, code
):
    measured, before = Built.measured, signal.getsignal(number)

    def signalled(*given, **how):
        signal.raise_signal(number)
        return measured(*given, **how)

    monkeypatch.setattr(Built, "measured", signalled)
    given = ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), *SETS]
    assert cli.main(given) == code
    said = "stopped after round 0; nothing is released twice; continue with --resume\n"
    assert capfd.readouterr().err.endswith(said)
    assert signal.getsignal(number) is before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_library_listens_to_no_signal(config, tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    seen = []

    def progress(at: int, *_: object) -> None:
        seen.append([signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)])

    train_run(config, tmp_path / "out", progress=progress)
    assert all(found == before for found in seen)


def test_what_it_costs_to_end_at_once_is_told(config, tmp_path):
    plan = running.plan_session(config, tmp_path / "out").plan
    assert "no round was released since" in price_of_loss(plan, kept=8, announced=8)
    said = price_of_loss(plan, kept=8, announced=11)
    assert "rounds 9 to 11 were released since the checkpoint after round 8" in said
    assert "counts twice" in said
    assert "there is no checkpoint" in price_of_loss(plan, kept=-1, announced=0)


def stop_rank_in(round: int, *, times: int = 1, pause: float = 0.0) -> None:
    advance = Engine.advance

    def signalled(self: Engine, **how) -> None:
        if self.round == round:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGHUP)
                time.sleep(pause)
        advance(self, **how)

    Engine.advance = signalled


def stop_in_a_round() -> None:
    stop_rank_in(5)


def stop_twice() -> None:
    stop_rank_in(5, times=2, pause=0.5)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("asked", "last"),
    [
        pytest.param([stop_in_a_round, unchanged], 6, id="rank 0"),
        pytest.param([unchanged, stop_in_a_round], 7, id="rank 1"),
        pytest.param([stop_in_a_round] * 2, 6, id="both", marks=pytest.mark.slow),
    ],
)
def test_all_ranks_end_after_one_round_with_one_code(config, tmp_path, asked, last):
    out = tmp_path / "out"
    given = ["train", str(tmp_path / "run.toml"), "--out", str(out), *SETS]
    ended = started_by_hand([given, given], tmp_path, changes=asked)
    assert ended.codes == [129, 129], ended.said
    lines = [line for said in ended.said for line in said.splitlines() if "stopped" in line]
    assert lines == [
        f"stopped after round {last}; nothing is released twice; continue with --resume"
    ]
    assert read_ledger(out / "ledger.jsonl").numbers == list(range(last + 1))
    assert run_folder.checkpoint(out, last).is_file()


@pytest.mark.distributed
@pytest.mark.slow
def test_a_second_signal_ends_at_once_and_says_what_it_costs(config, tmp_path):
    given = ["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), *SETS]
    ended = started_by_hand([given], tmp_path, changes=[stop_twice])
    assert ended.codes == [129], ended.said
    assert "ended at once; rounds 5 to 6 were released since the checkpoint" in ended.said[0]
    assert read_ledger(tmp_path / "out/ledger.jsonl").numbers == list(range(7))
