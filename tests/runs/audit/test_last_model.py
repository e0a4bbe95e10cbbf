"""The command `overhear audit-last-model`, on small runs of digits."""

import json
import shutil
from types import SimpleNamespace

import pytest

from overhear.attacks.membership import black_box
from overhear.commands.cli import main
from overhear.privacy.formats.codec import schema_of
from overhear.reports.document.collect import read_checked_run, report_run
from overhear.runs.audit import last_model
from overhear.runs.audit.evidence import LastModel
from overhear.runs.audit.last_model import audit_last_model
from overhear.runs.folder.folder import check_sums
from overhear.runs.requests import LastModelRequest
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.engine import Engine
from tests.small_run import run_text

RUN = run_text(
    "dp-dpsgd", agents=3, privacy={"epsilon": 8, "delta": 1e-05},
    training={"rounds": 2, "sampling_rate": 1},
)  # fmt: skip
FEW = LastModelRequest(runs=20)


@pytest.fixture
def folder(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.slow
def test_what_is_found_of_a_folder_is_kept_summed_and_reported(folder, capsys):
    assert main(["audit-last-model", str(folder), "--runs", "20"]) == 0
    assert "a coin decided about one record of agent" in " ".join(capsys.readouterr().out.split())
    check_sums(folder)
    kept = json.loads((folder / "last-model.json").read_text(encoding="utf-8"))
    assert kept["guesses"] == 16
    assert kept["measured_epsilon"] <= kept["proven_epsilon"] <= 8.0 + 1e-9
    assert main(["audit-last-model", str(folder)]) == 2
    assert "--again audits once more" in capsys.readouterr().err
    assert main(["audit-last-model", str(folder), "--runs", "20", "--again"]) == 0
    again = json.loads((folder / "last-model.json").read_text(encoding="utf-8"))
    assert [one["file"] for one in again["earlier"]] == ["last-model-1.json"]
    assert again["seed"] != kept["seed"]
    check_sums(folder)
    report_run(folder)
    found = read_checked_run(folder).report.last_model
    assert found is not None
    assert found.words == again["words"]


def test_a_run_file_is_audited_before_it_is_trained(run_file, tmp_path):
    out = tmp_path / "found.json"
    command = ["audit-last-model", str(run_file), "--runs", "20", "--out", str(out)]
    assert main([*command, "--set", "training.rounds=1"]) == 0
    assert LastModel.read(out, refusal="{}: {}".format).rounds == 1
    assert main(command) == 2  # nothing is overwritten


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpdl", "dpmixsgd", "decor"])
def test_other_algorithms_are_audited_too(run_file, name):
    changes = [f"algorithm.name={name}", "training.sampling_rate=0.5"]
    found = audit_last_model(load_run_file(run_file, changes), FEW)
    assert found.verdict in ("consistent", "not measured")


@pytest.mark.slow
def test_replaced_records_are_audited_too(run_file):
    changes = ["privacy.adjacency=replace-one"]
    found = audit_last_model(load_run_file(run_file, changes), FEW)
    assert found.measured_epsilon <= found.proven_epsilon


@pytest.mark.slow
def test_noise_that_is_missing_is_contradicted_with_exit_code_4(folder, capsys, monkeypatch):
    """Nothing is left to chance: twelve drawn coins that set a threshold are alike in 5e-4."""
    given = SimpleNamespace(randbits=lambda bits: 1)
    monkeypatch.setattr(last_model, "secrets", given)

    class Silent(Engine):
        def __init__(self, setting, bound, *, scripts=None):
            super().__init__(setting, _silent(bound))

    def _silent(bound):
        from overhear.runs.run_file.build import build

        config = load_run_file(folder / "run.toml")
        return build(config).bound(1e-6)

    monkeypatch.setattr(black_box, "Engine", Silent)
    command = ["audit-last-model", str(folder), "--runs", "60"]
    assert main(command) == 4
    assert "proof, code or this test is wrong" in " ".join(capsys.readouterr().err.split())
    kept = json.loads((folder / "last-model.json").read_text(encoding="utf-8"))
    assert kept["verdict"] == "contradicted"
    check_sums(folder)
    report_run(folder)
    policy = folder.parent / "policy.toml"
    policy.write_text(
        'schema = 1\n[[limits]]\nadversary = "final-models"\nepsilon = 100\ndelta = 1e-5\n'
    )
    assert main(["check", str(folder), "--policy", str(policy)]) == 4
    assert "Last models tell more than is proven" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--runs", "5"], "runs=5 must lie in [20, 100000]"),
        (["--minutes", "0"], "minutes=0.0 must be above 0"),
        (["--minutes", "1e-9"], "are allowed; ask for fewer runs"),
        (["--games", "3"], "No such option: --games"),
        (["--set", "training.rounds=1"], "--set is of a run file"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(folder, capsys, options, said):
    assert main(["audit-last-model", str(folder), *options]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert said in told
    assert "Traceback" not in told
    assert not (folder / "last-model.json").exists()


@pytest.mark.parametrize("change", ["privacy.form=none", "training.evaluation_noise_seed=1"])
def test_where_nothing_is_proven_nothing_is_measured(run_file, capsys, change):
    assert main(["audit-last-model", str(run_file), "--set", change]) == 2


def test_the_schema_describes_every_key():
    assert schema_of(LastModel, "")["properties"].keys() == {
        field.alias or name for name, field in LastModel.model_fields.items()
    }
