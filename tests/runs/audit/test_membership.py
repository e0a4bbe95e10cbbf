"""The command `overhear membership`, on small runs of digits."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from overhear.attacks.membership import scores as played
from overhear.commands.cli import main
from overhear.privacy.formats.codec import schema_of
from overhear.reports.document.collect import read_checked_run, report_run
from overhear.runs.audit import membership as module
from overhear.runs.audit.evidence import Membership
from overhear.runs.audit.membership import audit_membership
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.folder import check_sums
from overhear.runs.folder.run import train_run
from overhear.runs.requests import MembershipRequest
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.engine import Engine
from tests.small_run import run_text

PRIVATE = run_text(
    "dp-dpsgd", agents=4, privacy={"epsilon": 1, "delta": 1e-05},
    training={"rounds": 2, "sampling_rate": 0.5},
)  # fmt: skip
PLAIN = run_text("dsgd", agents=4, training={"rounds": 2, "sampling_rate": 0.5})
FEW = MembershipRequest(references=2, games=1)


def trained(tmp_path: Path, text: str, *overrides: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    folder = tmp_path / "run"
    train_run(load_run_file(path, overrides), folder)
    return folder


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("private"), PRIVATE)


@pytest.fixture
def folder(private, tmp_path):
    shutil.copytree(private, tmp_path / "copy")
    return tmp_path / "copy"


def test_what_is_found_is_kept_and_summed(folder, capsys):
    assert main(["membership", str(folder), "--references", "2", "--games", "1"]) == 0
    said = capsys.readouterr().out
    assert "needs 1000" in said  # 359 and about as many: a thousandth is never made up
    assert "Verdict: within the proof" in said
    check_sums(folder)
    kept = json.loads((folder / "membership.json").read_text(encoding="utf-8"))
    assert kept["run"]["members"] == kept["run"]["others"] == 359
    assert kept["run"]["rows"][0]["rates"][0]["true_positive_rate"] is None
    assert 0 < kept["proven_epsilon"] <= 1.0 + 1e-9
    assert "exposed" not in kept
    assert main(["membership", str(folder)]) == 2
    assert "--again attacks once more" in capsys.readouterr().err


def test_once_more_keeps_what_was_found(folder):
    audit_membership(folder, FEW)
    again = audit_membership(folder, MembershipRequest(references=2, games=1, again=True))
    assert [(one.file, one.games) for one in again.earlier] == [("membership-1.json", 1)]
    check_sums(folder)
    (folder / "membership-2.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"membership-2\.json is not in SHA256SUMS"):
        check_sums(folder)


def test_records_are_named_only_where_that_is_asked_for(folder, capsys):
    few = ["--references", "2", "--games", "0"]
    assert main(["membership", str(folder), "--show-records", *few]) == 0
    assert "of agent" in capsys.readouterr().out
    kept = json.loads((folder / "membership.json").read_text(encoding="utf-8"))
    assert len(kept["exposed"]) == 10
    assert all(0 <= one["record"] < 1438 for one in kept["exposed"])
    report_run(folder)
    told = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    assert told["membership"]["exposed"] == []
    assert read_checked_run(folder).report.membership is not None


def test_a_run_without_privacy_is_attacked_and_nothing_is_held_against_it(tmp_path):
    found = audit_membership(trained(tmp_path, PLAIN), FEW)
    assert found.verdict == "nothing proven"
    assert found.proven_epsilon is None
    assert found.limit == []
    assert found.run.rows[0].above_limit is None
    assert "no success of an attack is too large" in found.words


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("name", ["dpdl", "dpmixsgd", "muffliato"])
def test_other_algorithms_are_attacked_too(tmp_path, name):
    folder = trained(tmp_path, PRIVATE.replace("dp-dpsgd", name))
    found = audit_membership(folder, FEW)
    assert found.verdict in ("within the proof", "nothing proven")
    assert len(found.run.agents) == 4


@pytest.mark.slow
def test_guesses_that_are_all_right_contradict_the_proof(folder, monkeypatch):
    """Models that hold their training sets: every coin is guessed, and epsilon 1 is proven."""
    held: list[np.ndarray] = []
    shards, ask = played.Pool.shards, played.confidences_by_model

    def noted(pool, included):
        held.append(included)
        return shards(pool, included)

    def leaking(model, models, pool):
        found = ask(model, models, pool)
        inside = held[-1] if len(held) < 3 or len(leaks) < 3 else pool.trained
        leaks.append(1)
        return {name: value + 20.0 * inside for name, value in found.items()}

    leaks: list[int] = []
    monkeypatch.setattr(played.Pool, "shards", noted)
    monkeypatch.setattr(played, "confidences_by_model", leaking)
    with pytest.raises(ContradictedProof, match="more than the proven epsilon"):
        audit_membership(folder, FEW)
    kept = json.loads((folder / "membership.json").read_text(encoding="utf-8"))
    assert kept["verdict"] == "contradicted"
    assert kept["guessed"]["right"] == kept["guessed"]["guesses"]
    check_sums(folder)


@pytest.mark.slow
def test_noise_that_is_missing_is_contradicted(tmp_path, monkeypatch):
    """An overfitted network without its noise, 16 agents, epsilon .1 at delta 1e-5 as proven."""
    text = PRIVATE.replace("agents = 4", "agents = 16").replace('"linear"', '"mlp"')
    changes = ("privacy.epsilon=0.05", "training.rounds=40", "training.learning_rate=4.0")
    folder = trained(tmp_path, text, *changes)
    bound = module.build

    class Silent:
        """What was built, whose algorithm has lost its noise."""

        def __init__(self, built):
            self._built = built

        def __getattr__(self, name):
            return getattr(self._built, name)

        def bound(self, multiplier):
            return self._built.bound(1e-6 * multiplier)

    monkeypatch.setattr(module, "build", lambda config, **how: Silent(bound(config, **how)))
    monkeypatch.setattr(played, "Engine", lambda setting, bound, scripts: Engine(setting, bound))
    with pytest.raises(ContradictedProof, match="more than the proven epsilon"):
        audit_membership(folder, MembershipRequest(references=8, games=8))


def test_a_run_that_is_not_finished_is_refused(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]), encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match="not finished"):
        audit_membership(folder, FEW)


def test_a_run_without_final_models_is_refused(folder):
    (folder / "checkpoints" / "round-000002.safetensors").unlink()
    with pytest.raises((ValueError, FileNotFoundError), match="round-000002"):
        audit_membership(folder, FEW)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--references", "1"], "references=1 must lie in [2, 10000]"),
        (["--games", "-1"], "games=-1 must lie in [0, 10000]"),
        (["--minutes", "0"], "minutes=0.0 must be above 0"),
        (["--minutes", "1e-9"], "are allowed; ask for fewer"),
        (["--records", "5"], "needs at least 10 of each"),
        (["--set", "audit.canaries=5"], "No such option: --set"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(folder, capsys, options, said):
    assert main(["membership", str(folder), *options]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not (folder / "membership.json").exists()


def test_a_run_file_has_no_final_models(tmp_path, capsys):
    assert main(["membership", str(tmp_path / "run.toml")]) == 2
    assert "train the run file first" in capsys.readouterr().err


def test_the_schema_describes_every_key():
    schema = schema_of(Membership, "")
    assert schema["properties"].keys() == {
        field.alias or name for name, field in Membership.model_fields.items()
    }
