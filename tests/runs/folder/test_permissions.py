"""What a run writes is readable by its user alone, whoever writes it."""

import os
import re
import stat
from functools import partial
from pathlib import Path

import pytest

from overhear.commands import cli
from overhear.privacy.files import SHOWN, make_folder, part_of, write_durably
from overhear.privacy.releases.chained_file import ChainedFile
from overhear.runs.folder.folder import claim
from tests.runs.folder.rank_processes import started_by_hand
from tests.runs.folder.test_ranks import RUN

ROOT = Path(__file__).resolve().parents[3]
SHOWN_FILES = {
    "ledger.jsonl",
    "privacy.json",
    "report.html",
}  # figures, which say what may be known

# Who opens a new file or makes a folder otherwise than by `files.py`: what a user asked for by
# name, locks without content, ledgers and logs of figures, and what is private by itself.
OTHER_WRITERS = {
    *("privacy/files.py", "privacy/releases/chained_file.py", "adapters/opacus/oracle.py"),
    *("attacks/foreign/assignment.py", "attacks/foreign/audit_training.py", "commands/plan.py"),
    *("commands/train.py", "commands/report.py", "commands/sweep.py"),
    *("reports/document/markdown.py", "reports/reproduced/reproduce.py"),
    *("runs/audit/evidence.py", "runs/recorder/record.py", "runs/sweep/engine.py"),
    "privacy/formats/tensor_archives.py",  # in lines that a user may type
    *("runs/folder/launch.py", "runs/folder/signature.py", "runs/sweep/sweep.py"),
}
WRITES = re.compile(
    r"open\((?:[^()]*, )?\"[wxa]b?\"(?!.*opener=)|\.write_(text|bytes)\(|\.mkdir\(|makedirs\("
    r"|\.touch\(\)|chmod\(|O_CREAT|np\.savez?\(|(?<!safetensors\.)torch\.save\("
)


@pytest.fixture(autouse=True)
def usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_is_its_users_alone_and_an_old_one_keeps_what_it_had(tmp_path):
    write_durably(tmp_path / "models", b"1")
    assert mode(tmp_path / "models") == 0o600
    (tmp_path / "models").chmod(0o640)
    write_durably(tmp_path / "models", b"2")
    assert mode(tmp_path / "models") == 0o640
    write_durably(tmp_path / "page", b"3", mode=SHOWN)
    assert mode(tmp_path / "page") == 0o644


@pytest.mark.skipif(os.name == "nt", reason="has no modes")
def test_a_file_of_somebody_else_opens_and_leads_nothing_of_ours(tmp_path, monkeypatch):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "models"
    elsewhere.write_text("kept")
    elsewhere.chmod(0o644)
    path.symlink_to(elsewhere)
    part_of(path).symlink_to(elsewhere)
    write_durably(path, b"1")  # neither where a link leads, nor readable as what is there
    assert (mode(path), path.read_bytes(), elsewhere.read_text()) == (0o600, b"1", "kept")

    part_of(path).write_text("of a process that died")
    part_of(path).chmod(0o644)
    write_durably(path, b"2")
    assert mode(path) == 0o600

    path.chmod(0o666)
    own = path.lstat()
    other = os.stat_result((*own[:4], own.st_uid + 1, *own[5:]))
    monkeypatch.setattr(type(path), "lstat", lambda _: other)
    write_durably(path, b"3")
    monkeypatch.undo()
    assert mode(path) == 0o600


@pytest.mark.skipif(os.name == "nt", reason="has no modes")
def test_nobody_else_writes_to_a_ledger_whatever_the_mask(tmp_path):
    os.umask(0)
    ChainedFile(tmp_path / "ledger.jsonl", {"schema": 1}, exists="it exists").close()
    write_durably(tmp_path / "page", b"1", mode=SHOWN)
    make_folder(tmp_path / "run")
    (tmp_path / "old").touch(0o666)
    write_durably(tmp_path / "old", b"2")
    held = [mode(tmp_path / name) for name in ("ledger.jsonl", "page", "run", "old")]
    assert held == [0o664, 0o664, 0o700, 0o664]


def test_folders_that_are_missing_are_their_users_alone_and_others_stay(tmp_path):
    make_folder(tmp_path / "runs/one")
    claim(tmp_path / "runs/two")
    (tmp_path / "open").mkdir()
    claim(tmp_path / "open")
    assert [mode(tmp_path / name) for name in ("runs", "runs/one", "runs/two", "open")] == [
        *(0o700, 0o700, 0o700),
        0o755,
    ]


def test_no_other_file_opens_what_a_run_writes():
    parts = ("privacy", "training", "attacks", "runs", "reports", "commands", "adapters")
    found = {
        path.relative_to(ROOT).as_posix()
        for part in parts
        for path in (ROOT / part).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if WRITES.search(line) and not line.lstrip().startswith((">>>", "..."))
    }
    assert found == OTHER_WRITERS


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [False, pytest.param(True, marks=pytest.mark.distributed)])
def test_every_file_of_a_run_is_its_users_alone(tmp_path, ranks, capsys):
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    out, run = str(tmp_path / "runs/out"), str(tmp_path / "run.toml")
    changes = ["--set=attack.images=1", "--set=attack.restarts=1", "--set=attack.rounds=[3]"]
    changes += [f"--set=audit.{few}" for few in ("canaries=20", "rounds=1", "checked_rounds=1")]
    train = ["train", run, "--out", out, *changes]
    if ranks:  # which are no children of a launcher that writes nothing
        umask = partial(os.umask, 0o022)
        assert started_by_hand([train] * 2, tmp_path, changes=[umask] * 2).codes == [0, 0]
    for given in [] if ranks else [train, ["attack", out], ["audit", out], ["report", out]]:
        assert cli.main(given) == 0, capsys.readouterr().err
    held = list((tmp_path / "runs").rglob("*"))
    names = {path.name for path in held}
    made = set() if ranks else {"attack.json", "audit.json", "original-0.png", "report.html"}
    assert {"checkpoints", "transcript"} | made <= names
    open_to_others = {
        path.name
        for path in [tmp_path / "runs", *held]
        if mode(path) != (0o700 if path.is_dir() else 0o600)
    }
    assert open_to_others == SHOWN_FILES & names
