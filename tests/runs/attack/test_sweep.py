"""Many runs trained and attacked by one call, and a sweep that goes on where it stopped."""

import json
import shutil

import pytest

from overhear.commands import cli
from overhear.runs.attack import attack
from overhear.runs.attack import attack as module
from overhear.runs.attack.attack import attack_sweep, attack_sweep_rows, contradictions
from overhear.runs.folder.folder import check_sums
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=4, privacy={"epsilon": 8, "delta": 0.0001},
    training={"rounds": 2, "sampling_rate": 0.1}, intercept={"rounds": [2]},
    attack={"presets": ["idlg"], "images": 1, "restarts": 1},
)  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "run.toml").write_text(RUN)
    found = attack_sweep(
        folder / "run.toml", folder / "out", sweeps=["graph.name=ring,full,bipartitte"]
    )
    return folder, found


@pytest.mark.slow
def test_every_combination_has_its_scenarios_or_a_reason(swept):
    _, found = swept
    assert [one.swept["graph.name"] for one in found] == ["ring", "full", "bipartitte"]
    assert [len(one.scenarios) for one in found] == [1, 1, 0]
    assert "bipartite" in found[2].refused


def test_each_row_shows_the_references_and_what_the_proof_allows(swept):
    _, found = swept
    rows = list(attack_sweep_rows(found))
    assert len(rows) == 3
    assert rows[0]["scenario"] == "view"
    assert {"blind guess", "no defence", "clipping only", "defended"} <= set(rows[0])
    assert rows[0]["rebuilt, proof allows"].startswith("0/1, ")
    assert rows[2]["scenario"].startswith("refused: ")


def test_the_paper_s_convention_scales_the_error_by_four(swept):
    _, found = swept
    plain = found[0].scenarios[0].rows[0].mean.mse
    shown = next(attack_sweep_rows(found, convention="dpdl"))
    assert shown["scenario"] == "blind guess"
    assert float(shown["MSE"].split()[0]) == pytest.approx(4 * plain, abs=6e-4)


def test_what_is_done_is_not_done_again(swept, monkeypatch):
    folder, found = swept
    monkeypatch.setattr(module, "train_run", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(module, "attack_run", lambda *_, **__: pytest.fail("attacked again"))
    again = attack_sweep(folder / "run.toml", folder / "out", sweeps=["graph.name=ring,full"])
    assert again[0].dump() == found[0].dump()


def test_a_folder_of_another_run_is_refused(swept):
    folder, _ = swept
    with pytest.raises(FileExistsError, match="holds a run of another run file"):
        attack_sweep(folder / "run.toml", folder / "out", overrides=["training.rounds=3"])


def test_an_unfinished_training_is_never_overwritten(swept, tmp_path):
    folder, _ = swept
    done = folder / "out" / "00"
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "run.toml").write_text((done / "run.toml").read_text())
    with pytest.raises(FileExistsError, match=r"`overhear train .*/run\.toml --out .* --resume`"):
        attack_sweep(folder / "run.toml", tmp_path, sweeps=["graph.name=ring"])


def test_nothing_but_refusals_is_an_error(swept, tmp_path):
    folder, _ = swept
    with pytest.raises(ValueError, match="none of the 1 combinations can be attacked"):
        attack_sweep(folder / "run.toml", tmp_path / "out", sweeps=["graph.name=rink"])


def test_a_result_that_was_changed_is_not_shown_again(swept, tmp_path):
    folder, _ = swept
    shutil.copytree(folder / "out" / "00", tmp_path / "out" / "00")
    held = tmp_path / "out" / "00" / "attacks" / "attack.json"
    held.write_text(held.read_text().replace("view", "mood"))
    with pytest.raises(ValueError, match="the run was changed after it was written"):
        attack_sweep(folder / "run.toml", tmp_path / "out", sweeps=["graph.name=ring"])


def test_an_interrupted_attack_of_a_combination_goes_on(swept, tmp_path):
    folder, found = swept
    run = tmp_path / "out" / "00"
    shutil.copytree(folder / "out" / "00", run)
    point = found[0].scenarios[0]
    name = "point-round2-agent0-view-idlg.json"
    (run / "attacks" / "attack.json").unlink()
    (run / "attacks" / name).write_text(json.dumps(point.dump()))
    kept = [s for s in (run / "SHA256SUMS").read_text().splitlines(True) if "attack.json" not in s]
    (run / "SHA256SUMS").write_text("".join(kept))
    again = attack_sweep(folder / "run.toml", tmp_path / "out", sweeps=["graph.name=ring"])
    assert [one.dump() for one in again[0].scenarios] == [point.dump()]
    check_sums(run)


@pytest.mark.slow
def test_a_contradiction_stops_no_combination_and_is_exit_code_4_each_time(
    tmp_path, monkeypatch, capsys
):
    text = RUN.replace("epsilon = 8", "noise_multiplier = 0").replace("images = 1", "images = 8")
    (tmp_path / "run.toml").write_text(text)
    monkeypatch.setattr(attack, "proven_mu", lambda *_: 0.0)
    asked = ["attack-sweep", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")]
    asked += ["--markdown", "--sweep", "graph.name=ring,full"]
    assert cli.main(asked) == 4
    shown = capsys.readouterr()
    assert shown.out.count("| 8/8, ") == 2
    assert "graph.name=ring: 8 of 8 images were rebuilt" in shown.err
    assert "graph.name=full: 8 of 8 images were rebuilt" in shown.err
    monkeypatch.setattr(module, "attack_run", lambda *_, **__: pytest.fail("attacked again"))
    assert cli.main(asked) == 4


def test_what_the_proof_allows_is_no_contradiction(swept):
    _, found = swept
    assert contradictions(found) == []
