"""An attack on a run's folder: what it refuses, goes on with, and tells of the proof."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from overhear.commands import cli
from overhear.runs.attack import attack as module
from overhear.runs.attack.attack import attack_run
from overhear.runs.audit.evidence_schema import Scenario
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.folder import check_sums, write_sums
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from overhear.runs.stop import Interrupted, Stop
from tests.small_run import run_text

pytestmark = pytest.mark.slow  # runs and processes of their own; quick cases lie beside them

RUN = run_text(
    "dp-dpsgd", agents=4, model={"name": "mlp"}, privacy={"noise_multiplier": 0, "delta": 0.0001},
    training={"rounds": 1, "sampling_rate": 0.1}, intercept={"rounds": [1]},
    attack={"presets": ["matched"], "images": 4, "restarts": 1},
)  # fmt: skip


_IDLG = ("attack.presets=['idlg']",)


def _train(folder: Path, *overrides: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "file.toml").write_text(RUN)
    train_run(load_run_file(folder / "file.toml", overrides), folder / "out")
    return folder / "out"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return _train(tmp_path_factory.mktemp("run"), "attack.presets=['matched', 'idlg']")


@pytest.fixture
def folder(trained, tmp_path):
    """A run without noise, to be attacked by two presets."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def _interrupt(folder: Path) -> None:
    def stop(done: int, total: int, text: str) -> None:
        assert total == 2 * 3 * 4
        if done > total // 2:  # inside of the second point
            raise KeyboardInterrupt(text)

    with pytest.raises(KeyboardInterrupt):
        attack_run(folder, progress=stop)


def _count_points(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    real = module.attack_images

    def counted(*given: Any, **named: Any) -> Any:
        made.append(str(named["preset"].name if hasattr(named["preset"], "name") else "one"))
        return real(*given, **named)

    monkeypatch.setattr(module, "attack_images", counted)
    return made


@pytest.mark.slow
def test_an_interrupted_attack_goes_on_at_the_point_that_is_missing(folder, monkeypatch):
    _interrupt(folder)
    first = folder / "attacks" / "point-round1-agent0-view-matched.json"
    kept = json.loads(first.read_text())
    assert {path.name for path in folder.glob("attacks/*.json")} == {first.name, "asked.json"}
    made = _count_points(monkeypatch)
    seen: list[int] = []
    result = attack_run(folder, progress=lambda done, *_: seen.append(done))
    assert len(made) == 1
    assert seen == list(range(13, 25))
    assert result.scenarios[0].dump() == kept
    assert [s.preset for s in result.scenarios] == ["matched", "idlg"]
    assert json.loads((folder / "attacks" / "attack.json").read_text()) == result.dump()
    assert not list(folder.glob("attacks/point-*"))
    check_sums(folder)
    listed = (folder / "SHA256SUMS").read_text()
    assert "attacks/attack.json" in listed
    assert "attacks/round1-agent0-view-idlg-defended-3.png" in listed


@pytest.mark.slow
def test_an_attack_that_is_asked_to_stop_keeps_what_is_done_and_says_so(folder):
    stop = Stop()

    def ask(done: int, total: int, _: str) -> None:
        if done > total // 2:
            stop.ask(2)

    with pytest.raises(Interrupted, match=r"1 of 2 points .* are kept in .*; given again"):
        attack_run(folder, progress=ask, stop=stop)
    assert len(list(folder.glob("attacks/point-*"))) == 1
    assert not list(folder.rglob("*.part"))


@pytest.mark.slow
def test_a_point_that_is_being_written_is_kept(folder, monkeypatch):
    stop, write = Stop(), Scenario.write

    def asking(self: Scenario, path: Path) -> None:
        stop.ask(2)
        write(self, path)

    monkeypatch.setattr(Scenario, "write", asking)
    with pytest.raises(Interrupted, match="1 of 2 points"):
        attack_run(folder, stop=stop)
    assert len(list(folder.glob("attacks/point-*"))) == 1


@pytest.mark.slow
def test_a_report_of_an_unfinished_attack_does_not_stop_it(folder):
    _interrupt(folder)
    write_sums(folder)  # as a report does
    with pytest.raises(KeyboardInterrupt):
        attack_run(folder, progress=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    (folder / "attacks" / "point-round1-agent0-view-matched.json").unlink()
    _interrupt(folder)
    attack_run(folder)
    check_sums(folder)


def test_an_attack_that_is_finished_is_refused(folder):
    (folder / "attacks").mkdir()
    (folder / "attacks" / "attack.json").write_text("{}")
    with pytest.raises(FileExistsError, match=r"attack\.json exists; attack another run, or move"):
        attack_run(folder)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("attack.images=359", r"\[attack\] images=359 must be at most 358, because one public"),
        ("attack.presets=[]", r"\[attack\] presets is empty, so there is nothing to attack"),
        ("attack.rounds=[]", r"\[attack\] rounds is empty, so there is nothing to attack"),
    ],
)
def test_a_refusal_leaves_no_folder_of_attacks(folder, override, words):
    config = load_run_file(folder / "run.toml", [override])
    (folder / "run.toml").write_text(config.to_toml())
    write_sums(folder)
    with pytest.raises(ValueError, match=words):
        attack_run(folder)
    assert not (folder / "attacks").exists()


def test_what_the_proof_cannot_say_is_asked_before_anything_is_made(folder, monkeypatch):
    def fail(*_: object) -> float:
        raise ValueError("no figure")

    monkeypatch.setattr(module, "proven_mu", fail)
    with pytest.raises(ValueError, match="no figure"):
        attack_run(folder)
    assert not (folder / "attacks").exists()


def test_more_than_the_proof_allows_is_exit_code_4_and_everything_is_written(
    folder, monkeypatch, capsys
):
    monkeypatch.setattr(module, "proven_mu", lambda *_: 0.0)
    assert cli.main(["attack", str(folder)]) == 4
    assert "4 of 4 images were rebuilt" in capsys.readouterr().err
    check_sums(folder)
    held = json.loads((folder / "attacks" / "attack.json").read_text())
    bound = held["scenarios"][0]["bound"]
    assert (bound["rebuilt"], bound["images"], bound["exceeded"]) == (4, 4, True)
    # Of two points this one tests images and two sizes of lineups.
    assert bound["confidence"] == pytest.approx(1 - 0.001 / 2 / 3)
    lineups = held["scenarios"][0]["rows"][-1]["lineups"]
    assert [(one["of"], one["first"], one["exceeded"]) for one in lineups] == [
        (10, 4, True),
        (100, 4, True),
    ]
    assert lineups[1]["most"] == pytest.approx(0.01)


@pytest.mark.slow
def test_a_contradiction_found_before_an_interruption_is_told_after_it(folder, monkeypatch):
    monkeypatch.setattr(module, "proven_mu", lambda *_: 0.0)
    _interrupt(folder)
    monkeypatch.setattr(module, "proven_mu", lambda *_: float("inf"))
    with pytest.raises(ContradictedProof, match="4 of 4 images were rebuilt"):
        attack_run(folder)


def test_without_noise_nothing_is_proven_and_nothing_contradicted(tmp_path):
    result = attack_run(_train(tmp_path, "attack.images=2"))
    bound = result.scenarios[0].bound
    assert (bound.mu, bound.exceeded) == (math.inf, False)
    assert bound.sentence.endswith("(nothing is proven).")


def test_of_a_batch_only_the_first_image_is_tested(tmp_path, monkeypatch):
    real = module.attack_images  # one by one, which is solved without a search
    one_by_one = {"batch": 1}
    monkeypatch.setattr(module, "attack_images", lambda *a, **k: real(*a, **(k | one_by_one)))
    result = attack_run(_train(tmp_path, "attack.batch=2", "attack.images=3"))
    bound = result.scenarios[0].bound
    assert (bound.images, bound.guesses) == (2, 2)
    assert len(result.scenarios[0].rows[-1].mse) == 3


@pytest.mark.slow
def test_an_outsider_of_encrypted_links_attacks_the_final_models(tmp_path):
    out = _train(
        tmp_path, "graph.links=encrypted", "privacy.noise_multiplier=2", "attack.images=1", *_IDLG
    )
    (scenario,) = attack_run(out).scenarios
    assert scenario.adversary == "final-models"
    assert scenario.bound.mu == pytest.approx(0.5)


def test_a_neighbour_reads_its_own_links_though_they_are_encrypted(tmp_path):
    given = ["graph.links=encrypted", "attack.adversary=neighbour:1", "attack.images=1"]
    (scenario,) = attack_run(_train(tmp_path, *given)).scenarios
    assert scenario.adversary == "neighbour:1"
    assert scenario.rows[1].mean.psnr > 30
