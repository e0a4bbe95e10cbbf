"""Many runs trained and attacked by one call, and a sweep that goes on where it stopped."""

import json

import pytest

from overhear.reports import attack_sweep as module
from overhear.reports.attack_sweep import attack_sweep, attack_sweep_rows

RUN = """
[data]
name = "digits"
agents = 4
[model]
name = "mlp"
[algorithm]
name = "dp-dpsgd"
[privacy]
epsilon = 8
delta = 1e-4
[training]
rounds = 2
sampling_rate = 0.1
[intercept]
rounds = [2]
[attack]
presets = ["matched"]
images = 1
restarts = 1
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "run.toml").write_text(RUN)
    found = attack_sweep(
        folder / "run.toml", folder / "out", sweeps=["graph.name=ring,full,bipartitte"]
    )
    return folder, found


def test_every_combination_has_its_scenarios_or_a_reason(swept):
    _, found = swept
    assert [one["swept"]["graph.name"] for one in found] == ["ring", "full", "bipartitte"]
    assert [len(one["scenarios"]) for one in found] == [1, 1, 0]
    assert "bipartite" in found[2]["refused"]


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
    plain = found[0]["scenarios"][0]["rows"][0]["mean"]["mse"]
    shown = next(attack_sweep_rows(found, convention="dpdl"))["blind guess"]
    assert float(shown.split(" / ")[0]) == pytest.approx(4 * plain, abs=6e-4)


def test_what_is_done_is_not_done_again(swept, monkeypatch):
    folder, found = swept
    monkeypatch.setattr(module, "train_run", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(module, "attack_run", lambda *_, **__: pytest.fail("attacked again"))
    again = attack_sweep(folder / "run.toml", folder / "out", sweeps=["graph.name=ring,full"])
    assert json.dumps(again[0]["scenarios"]) == json.dumps(found[0]["scenarios"])


def test_a_folder_of_another_run_is_refused(swept):
    folder, _ = swept
    with pytest.raises(FileExistsError, match="holds a run of another run file"):
        attack_sweep(folder / "run.toml", folder / "out", overrides=["training.rounds=3"])


def test_an_unfinished_training_is_never_overwritten(swept, tmp_path):
    folder, _ = swept
    done = folder / "out" / "00"
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "run.toml").write_text((done / "run.toml").read_text())
    with pytest.raises(FileExistsError, match="ledger of what it released"):
        attack_sweep(folder / "run.toml", tmp_path, sweeps=["graph.name=ring"])


def test_nothing_but_refusals_is_an_error(swept, tmp_path):
    folder, _ = swept
    with pytest.raises(ValueError, match="none of the 1 combinations can be attacked"):
        attack_sweep(folder / "run.toml", tmp_path / "out", sweeps=["graph.name=rink"])
