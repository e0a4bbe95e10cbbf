"""A disk that is full, or that may not be written to, loses no release."""

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.reports.document.collect import collect
from overhear.runs.errors import STATED, sentence
from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.engine.transcript import Transcript
from tests.runs.folder.interrupted import plan_once, write_run_file


@pytest.fixture(autouse=True)
def planned(monkeypatch):
    plan_once(monkeypatch)


@pytest.fixture
def run_file(tmp_path):
    return write_run_file(tmp_path)


class Disk:
    """Takes a number of writes, syncs and renamings, half of the next one, and then no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, takes: int) -> None:
        self.takes, self.calls = takes, 0
        for name in ("write", "fsync", "replace", "link"):
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self.takes + 1 and name == "write":
                return call(given[0], given[1][: len(given[1]) // 2])
            if self.calls > self.takes:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*given, **named)

        return counted


def refusal(config: RunFile, out: Path) -> str | None:
    """What a run says that cannot go on; None if it is trained."""
    try:
        train_run(config, out)
    except (OSError, ValueError) as error:
        return sentence(error) if isinstance(error, STATED) else "a crash"
    return None


def check_full_disk(config: RunFile, out: Path, *, takes: int) -> bool:
    """A run on a disk that is full after so many calls; whether it was cut off."""
    seen: Counter[int] = Counter()
    keep, last = Transcript.__call__, [-1]

    def tap(self: Transcript, message: Any) -> None:
        seen[message.round] += message.round != last[0]
        last[0] = message.round
        keep(self, message)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Transcript, "__call__", tap)
        Disk(patched, takes=takes)
        said = refusal(config, out)
    if said is None:
        return False
    told = "No space left on device; what was released is in the ledger: make room"
    assert told in said or "cannot be written to (No space left on device)" in said
    assert str(out) in said
    if (out / "ledger.jsonl").exists():
        spent = read_ledger(out / "ledger.jsonl")
        assert not seen - Counter(spent.numbers)
    else:
        assert not seen
    if (out / "run.toml").exists():
        resume_run(config, out)
    else:
        train_run(config, out)
    assert is_finished(out)
    assert collect(out).ledger.epsilon["eavesdropper"] <= 4
    return True


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_moment_loses_nothing(run_file):
    few = ["training.rounds=3", "training.checkpoint_every=1", "training.evaluate_every=1"]
    config = load_run_file(run_file, [*few, "intercept.rounds=[2]", "attack.rounds=[2]"])
    takes = 0
    while check_full_disk(config, run_file.parent / f"out-{takes}", takes=takes):
        takes += 3  # a write, its sync and the naming alternate, so each comes to be the one
    assert takes > 40


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_that_is_read_only_is_named(run_file, capsys):
    out = run_file.parent / "out"
    out.mkdir(mode=0o500)
    assert cli.main(["train", str(run_file), "--out", str(out)]) == 2
    assert f"{out} cannot be written to (Permission denied)" in capsys.readouterr().err
