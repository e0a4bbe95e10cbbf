"""A demo that is stopped names the commands that do the rest of it."""

import signal
from pathlib import Path
from typing import Any

import pytest

from overhear.commands.cli import main


@pytest.fixture
def out(tmp_path, monkeypatch):
    """The folder of a demo whose parts do nothing but begin a run."""

    def train(_: Any, folder: Path, **how: Any) -> None:
        (folder / "run.toml").touch()
        how["stop"].note("no round was released since the checkpoint")

    def audit(*_: Any, **how: Any) -> None:
        how["stop"].finish()

    monkeypatch.setattr("overhear.runs.folder.run.train_run", train)
    monkeypatch.setattr("overhear.runs.attack.attack.attack_run", audit)
    monkeypatch.setattr("overhear.runs.audit.audit.audit_folder", audit)
    return tmp_path / "out"


def stopped(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGTERM)


def stopped_when_done(_: Any, folder: Path, **how: Any) -> None:
    (folder / "run.toml").touch()
    how["stop"].finish()
    signal.raise_signal(signal.SIGTERM)


TRAIN, ATTACK, AUDIT = (
    "folder.run.train_run",
    "attack.attack.attack_run",
    "audit.audit.audit_folder",
)


@pytest.mark.parametrize(
    ("part", "does", "kept", "rest"),
    [
        (TRAIN, stopped, "nothing was written", ""),
        (TRAIN, stopped_when_done, "the run is trained, and not attacked yet", "attack"),
        (ATTACK, stopped, "the run is trained, and not attacked yet", "attack"),
        (AUDIT, stopped, "the run is trained and attacked, and not audited yet", "audit"),
    ],
)
def test_the_sentence_names_what_is_left(out, part, does, kept, rest, monkeypatch, capfd):
    monkeypatch.setattr(f"overhear.runs.{part}", does)
    assert main(["demo", "--out", str(out)]) == 143
    audit = f"`overhear audit {out}`, then `overhear report {out}`"
    left = {"": "", "attack": f": `overhear attack {out}`, {audit}", "audit": f": {audit}"}
    assert capfd.readouterr().err == f"stopped; {kept}{left[rest]}\n"


def test_a_folder_that_is_being_claimed_is_left_empty(out, monkeypatch, capfd):
    touch = Path.touch

    def touched(self: Path, **how: Any) -> None:
        touch(self, **how)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Path, "touch", touched)
    assert main(["demo", "--out", str(out)]) == 130
    assert capfd.readouterr().err == "stopped; nothing was written\n"
    assert list(out.iterdir()) == []
