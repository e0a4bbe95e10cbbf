"""What is refused when a run folder is read, whichever command reads it."""

import os
import shutil
from pathlib import Path

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.runs.folder.folder import write_sums
from overhear.runs.folder.resume import read_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.folder.interrupted import RUN

POLICY = """
schema = 1
[[limits]]
adversary = "eavesdropper"
epsilon = 9
delta = 1e-5
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("finished")
    (place / "run.toml").write_text(RUN, encoding="utf-8")
    changes = ["training.rounds=2", "intercept.rounds=[1]", "attack.rounds=[1]"]
    changes += ["training.checkpoint_every=2", "privacy.noise_multiplier=2"]
    train_run(load_run_file(place / "run.toml", changes), place / "out")
    return place / "out"


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _replace(path: Path) -> None:
    path.write_text('{"salt": "0", "digest": "0"}', encoding="utf-8")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(4 << 30)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_shorten, "is not the file that the ledger names; put it back"),
        (_replace, "is not the file that the ledger names; put it back"),
        (_pipe, "is no regular file"),
        (_endless, "leads out of"),
        (_huge, "at most 65536 are read"),
    ],
)
def test_records_that_the_ledger_does_not_name_are_refused(change, said, finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    change(folder / "records.json")
    _reopen(folder)
    with pytest.raises(InputError, match=rf"records\.json .*{said}"):
        read_run(folder)


def _reopen(folder: Path) -> None:
    """As if the last round were not measured yet: a run without sums."""
    (folder / "SHA256SUMS").unlink()
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    metrics.write_text("".join(lines[:-1]), encoding="utf-8")


def test_new_sums_do_not_hide_them_from_the_commands(finished, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    assert read_run(folder).spent.numbers
    _replace(folder / "records.json")
    write_sums(folder)
    for command in ("report", "total"):
        assert cli.main([command, str(folder)]) == cli.BAD_INPUT
        assert "is not the file that the ledger names" in capsys.readouterr().err


def test_a_run_that_was_cut_off_is_read_without_them(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    _reopen(folder)
    (folder / "records.json").unlink()
    assert read_run(folder).spent.numbers


def test_a_run_that_was_begun_is_planned_however_long_it_takes(
    finished, tmp_path, monkeypatch, capfd
):
    for name in ("_LONG", "_MOST"):
        monkeypatch.setattr(f"overhear.training.accounts.account.{name}", 0.1)

    def ended(*_: object, **__: object) -> None:
        raise InputError("the end of the plan")

    for module in ("audit.check_auditable", "membership.infer_membership"):
        monkeypatch.setattr(f"overhear.runs.audit.{module}", ended)
    monkeypatch.setattr("overhear.runs.audit.last_model.check_auditable", ended)
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    run, told = str(out / "run.toml"), "The account takes about "
    for reading in (
        ["report", str(out)],
        ["check", str(out), "--policy", str(policy)],
        ["total", str(out)],
        ["train", run, "--out", str(out), "--resume"],
    ):
        code = cli.main(reading)
        said = capfd.readouterr().err
        assert code != cli.BAD_INPUT, (reading, said)
        assert told in said, reading
    new = ["plan", run], ["train", run, "--out", str(tmp_path / "new")], ["audit", run]
    begun = ["audit", str(out)], ["membership", str(out)]
    begun += (["audit-last-model", str(out)],)
    for asked in (*new, *begun):
        refused = "the end" if asked in begun else "lower agents, or join fewer"
        assert cli.main(asked) == cli.BAD_INPUT
        said = capfd.readouterr().err
        assert refused in said, asked
        assert (told in said) == (asked in begun)
