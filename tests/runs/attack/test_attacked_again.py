"""A run that is attacked more than once: where each attack lies, and what all of them say."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.reports.document.collect import read_checked_run
from overhear.reports.judgement.findings import Kind
from overhear.reports.judgement.proofs import against_proofs
from overhear.runs.attack import attack as module
from overhear.runs.attack.attack import attack_run
from overhear.runs.attack.scenario import alone, find_place
from overhear.runs.audit.evidence import read_attack
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder.folder import check_sums
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"noise_multiplier": 1, "delta": 0.0001},
    training={"rounds": 1, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    attack={"presets": ["matched"], "images": 2, "restarts": 1},
)  # fmt: skip


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _held(folder: Path) -> list[str]:
    return run_folder.attack_files(folder)


@pytest.mark.slow
def test_each_attack_has_a_folder_of_its_own_and_all_are_read_as_one(folder):
    attack_run(folder)
    attack_run(folder, overrides=["attack.images=3", "attack.adversary='neighbour:1'"])
    attack_run(folder, name="once-more")
    assert _held(folder) == [
        "attacks/attack.json",
        "attacks/images-3-neighbour-1/attack.json",
        "attacks/once-more/attack.json",
    ]
    found = read_attack(folder)
    assert found is not None
    told = [(s.attack, s.adversary, len(s.originals)) for s in found.scenarios]
    assert told[:2] == [("", "eavesdropper", 2), ("images-3-neighbour-1", "neighbour:1", 3)]
    assert all((folder / path).is_file() for s in found.scenarios for path in s.originals)
    check_sums(folder)
    # The risk of a false contradiction is spent once: .001, then a quarter, then a ninth of it.
    levels = [1 - float(s.bound.confidence or 0) for s in found.scenarios]
    # Of each attack three limits are tested: images, and two lineups.
    assert levels == pytest.approx([1e-3 / 3, 1e-3 / 12, 1e-3 / 27], rel=1e-6)
    assert read_checked_run(folder).report.reproduce.commands[2:5] == [
        "overhear attack DIR",
        "overhear attack DIR --name images-3-neighbour-1 --images 3 --adversary neighbour:1",
        "overhear attack DIR --name once-more",
    ]


@pytest.mark.slow
def test_the_same_attack_needs_a_name(folder):
    attack_run(folder)
    with pytest.raises(FileExistsError, match=r"attacks/attack\.json exists; .* by a --name"):
        attack_run(folder)
    with pytest.raises(FileExistsError, match="--name"):
        attack_run(folder, overrides=["attack.images=2"])
    attack_run(folder, name="x")
    with pytest.raises(FileExistsError, match=r"attacks/x/attack\.json exists"):
        attack_run(folder, name="x", overrides=["attack.images=1"])


@pytest.mark.slow
def test_two_processes_never_attack_one_run_at_a_time(folder):
    with alone(folder), pytest.raises(InputError, match=f"is attacking {folder}; wait until"):
        attack_run(folder, overrides=["attack.images=3"])
    assert _held(folder) == []
    with alone(folder):  # it was let go
        pass


def test_the_folder_of_an_older_version_stays_first(folder):
    attack_run(folder)
    (folder / "attacks/asked.json").unlink()
    lines = (folder / "SHA256SUMS").read_text().splitlines(True)
    (folder / "SHA256SUMS").write_text("".join(x for x in lines if "asked.json" not in x))
    attack_run(folder, overrides=["attack.images=1"])
    assert _held(folder) == ["attacks/attack.json", "attacks/images-1/attack.json"]


def test_a_weaker_attack_takes_no_contradiction_away(folder, monkeypatch):
    many = ["attack.images=8"]
    with monkeypatch.context() as patch:
        # Every record counts as rebuilt, and nothing is allowed: the first attack contradicts.
        patch.setattr(module, "proven_mu", lambda *_: 0.0)
        patch.setattr(module, "count_rebuilt", lambda errors, **_: len(errors))
        with pytest.raises(ContradictedProof):
            attack_run(folder, overrides=many)
    before = against_proofs(read_checked_run(folder).facts)
    attack_run(folder, overrides=["attack.images=1"])
    after = against_proofs(read_checked_run(folder).facts)
    assert [one.kind for one in before] == [one.kind for one in after] == [Kind.REBUILT]


def test_an_attack_that_nobody_listed_is_refused(folder):
    attack_run(folder, name="one")
    shutil.copytree(folder / "attacks/one", folder / "attacks/two")
    with pytest.raises(ValueError, match=r"attacks/two/attack\.json is not in SHA256SUMS"):
        check_sums(folder)


@pytest.mark.parametrize("name", ["../up", "", "A", "x" * 61, "attack.json", "."])
def test_a_name_that_is_no_folder_below_is_refused(folder, name):
    with pytest.raises(ValueError, match="names its folder below attacks"):
        find_place(folder, {}, of_run={}, name=name)


def test_an_unfinished_attack_is_gone_on_with_by_the_same_keys_alone(folder):
    with pytest.raises(KeyboardInterrupt):
        attack_run(folder, name="x", progress=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(FileExistsError, match=r"unfinished attack with images=2; give that again"):
        attack_run(folder, name="x", overrides=["attack.images=1"])
    attack_run(folder, name="x")
    check_sums(folder)


def test_an_attack_that_was_killed_before_its_sums_goes_on_from_its_points(folder, monkeypatch):
    attack_run(folder)

    def die(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("overhear.runs.attack.scenario.write_sums", die)
        with pytest.raises(KeyboardInterrupt):
            attack_run(folder, overrides=["attack.images=1"])
    kept = json.loads((folder / "attacks/images-1/attack.json").read_text())
    assert attack_run(folder, overrides=["attack.images=1"]).dump() == kept
    assert not list(folder.glob("attacks/images-1/point-*"))
    check_sums(folder)


@pytest.mark.slow
def test_a_killed_attack_loses_nothing_of_the_others(folder):
    attack_run(folder)
    before = (folder / "attacks/attack.json").read_bytes()
    command = [sys.executable, "-m", "overhear", "attack", str(folder), "--images", "6"]
    for _ in range(2):
        running = subprocess.Popen(command, env=os.environ, stderr=subprocess.DEVNULL)
        while not (folder / "attacks/images-6/asked.json").exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGKILL)
        running.wait()
        check_sums(folder)
    attack_run(folder, overrides=["attack.images=6"])
    assert (folder / "attacks/attack.json").read_bytes() == before
    check_sums(folder)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--preset", "none"], "presets[0]='none' must be one of"),
        (["--adversary", "me"], "adversary='me' is unknown"),
        (["--images", "0"], "images=0 must be at least 1"),
        (["--set", "training.rounds=2"], "[attack] alone can be changed"),
        (["--name", "a/b"], "name='a/b' of an attack names its folder"),
        (["--sweep", "attack.images=1,2"], "is refused, too: attack-sweep takes a run file"),
    ],
)
def test_bad_options_are_refused_with_the_value(folder, given, words, capsys):
    assert cli.main(["attack", str(folder), *given]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (folder / "attacks").exists()


def test_a_run_without_a_transcript_is_refused(folder, capsys):
    given = ["attack", str(folder), "--set", "attack.rounds=[2]"]
    assert cli.main(given) == 2
    assert "rounds" in capsys.readouterr().err
