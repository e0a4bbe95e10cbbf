"""`overhear new`: every template does what it is for, and none is written over a file."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest

import overhear
from overhear.commands.cli import main
from overhear.commands.train import What, template
from tests.privacy.releases.logs import one, write


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("what", list(What))
def test_what_is_printed_is_what_is_written(what, capsys):
    assert main(["new", what]) == 0
    printed = capsys.readouterr().out
    assert main(["new", what, "mine.txt"]) == 0
    assert Path("mine.txt").read_text(encoding="utf-8") == printed
    assert len(printed.splitlines()) > 2


def test_a_folder_that_is_missing_is_made():
    assert main(["new", "ci", ".github/workflows/privacy.yml"]) == 0
    assert Path(".github/workflows/privacy.yml").is_file()


@pytest.mark.parametrize(
    ("what", "header", "sent", "held"),
    [
        ("opacus", {"agents": 1, "unit": "record"}, {"to": "all"}, 1),
        ("flower", {"agents": 3, "unit": "client"}, {"to": "server"}, 3),
    ],
)
def test_a_new_policy_of_a_system_passes_it_and_stops_one_over_its_limit(
    what, header, sent, held, capsys
):
    main(["new", f"{what}-policy", "policy.toml"])
    text = Path("policy.toml").read_text(encoding="utf-8")
    Path("policy.toml").write_text(text.replace('"checked" ', '"trusted" '), encoding="utf-8")
    for noise, code in ((2.0, 0), (0.2, 3)):
        rounds = {1: [one(sender, noise=noise, **sent) for sender in range(header["agents"])]}
        write(Path("ledger/a.jsonl"), rounds, **header)
        capsys.readouterr()
        assert main(["account", "ledger", "--policy", "policy.toml"]) == code
        assert capsys.readouterr().out.count("limit: ") == held


def test_a_file_that_is_there_stays(capsys):
    Path("run.toml").write_text("mine", encoding="utf-8")
    assert main(["new", "run", "run.toml"]) == 2
    said = capsys.readouterr().err
    assert said == ("error: run.toml is there already and is not written over; name another file\n")
    assert Path("run.toml").read_text(encoding="utf-8") == "mine"


def test_a_folder_that_cannot_be_made_is_named(capsys):
    Path("there").write_text("a file")
    assert main(["new", "run", "there/run.toml"]) == 2
    assert "error: there: " in capsys.readouterr().err


def test_a_new_run_meets_its_target(capsys):
    main(["new", "run", "run.toml"])
    capsys.readouterr()
    assert main(["plan", "run.toml", "--strict", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["strict"]["exit_code"] == 0
    assert planned["target"]["epsilon"] == 4.0


def test_a_new_algorithm_is_traced_and_proven():
    main(["new", "algorithm", "fresh.py"])
    assert "from fresh import MINE" in Path("fresh.py").read_text(encoding="utf-8")
    spec = importlib.util.spec_from_file_location("fresh", "fresh.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    run = {"graph": "ring:5", "rounds": 20, "sampling_rate": 0.1, "delta": 1e-5}
    found = overhear.account(module.MINE, noise_multiplier=1.5, **run)
    assert found["eavesdropper"].status == "proven"
    alone = overhear.budget(noise_multiplier=1.5, delta=1e-5, rounds=20, sampling_rate=0.1)
    assert found["eavesdropper"].epsilon == pytest.approx(alone.epsilon, rel=1e-9)


def test_a_new_policy_passes_a_small_run_and_stops_one_over_its_limit(capsys):
    main(["new", "run", "run.toml"])
    main(["new", "policy", "policy.toml"])
    few = ["--set", "training.rounds=2", "--set", "intercept.rounds=[1]", "--set", "data.agents=3"]
    few += ["--set", "training.sampling_rate=0.5"]  # which an audit of two rounds can show
    assert main(["train", "run.toml", "--out", "runs/first", *few]) == 0
    assert main(["report", "runs/first"]) == 0
    assert main(["check", "runs/first", "--policy", "policy.toml"]) == 5  # not audited
    assert main(["audit", "runs/first"]) == 0
    assert main(["report", "runs/first"]) == 0
    assert main(["check", "runs/first", "--policy", "policy.toml"]) == 0
    more = [*few, "--set", "privacy.epsilon=9"]
    assert main(["train", "run.toml", "--out", "runs/second", *more]) == 0
    assert main(["report", "runs/second"]) == 0
    assert main(["check", "runs/second", "--policy", "policy.toml"]) == 3
    capsys.readouterr()


def test_a_new_log_of_a_system_is_accounted_for(capsys):
    assert main(["new", "system", "releases.jsonl"]) == 0
    assert main(["account", "releases.jsonl", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert found["ledger"]["rounds"] == 2
    assert {row["status"] for row in found["plan"]["adversaries"]} == {"declared"}


def test_a_new_workflow_runs_commands_that_exist_of_this_version():
    text = template(What.CI)
    assert f"Overhear {overhear.__version__}\n" in text
    main(["new", "run", "run.toml"])
    main(["new", "system", "ledger/releases.jsonl"])
    main(["new", "opacus-policy", "policy.toml"])
    trusted = Path("policy.toml").read_text(encoding="utf-8").replace('"checked" ', '"trusted" ')
    Path("policy.toml").write_text(trusted, encoding="utf-8")
    found = re.findall(r"^ +- run: (overhear .*)$", text, re.M)
    assert [shlex.split(command)[1] for command in found] == ["plan", "account"]
    for command in found:
        assert main(shlex.split(command)[1:]) == 0
    for path in (Path("run.toml"), Path("ledger/releases.jsonl")):
        path.unlink()
    assert [main(shlex.split(command)[1:]) for command in found] == [2, 2]  # nothing is passed over


def test_a_new_workflow_is_yaml():
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(template(What.CI))["jobs"]["plan"]["steps"]
    assert [next(iter(step)) for step in steps] == ["uses", "uses", "uses", "run", "run", "run"]


def test_a_new_workflow_installs_a_commit_that_its_reader_names():
    yaml = pytest.importorskip("yaml")
    steps = yaml.safe_load(template(What.CI))["jobs"]["plan"]["steps"]
    (source,) = [step["with"] for step in steps if "repository" in step.get("with", {})]
    assert not re.fullmatch(
        r"[\w.-]+/[\w.-]+", source["repository"]
    )  # nobody's until it is filled in
    assert not re.fullmatch(r"[\w./-]+", source["ref"])
    (install,) = [step["run"] for step in steps if "pip" in step.get("run", "")]
    assert install.split()[-1] == f'"./{source["path"]}[train]"'
