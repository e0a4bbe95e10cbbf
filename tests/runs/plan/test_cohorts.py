"""A run file says how cohorts are drawn; plan, run, ledger, resumption and report say the same."""

import json
import math

import pytest

from overhear.commands import cli
from overhear.privacy import composed_epsilon, poisson
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach
from overhear.runs.folder.resume import epsilon_of_ledger, read_run, resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.folder.interrupted import CutOffError, cut_off_at
from tests.small_run import run_text

RUN = run_text(
    "dp-fedavg", agents=6, graph={"name": "server"},
    algorithm={"cohort": "SCHEME", "cohort_rate": 0.3333333333333333, "local_steps": 1},
    privacy={"unit": "UNIT", "noise_multiplier": 1.0, "delta": 1e-05},
    training={"rounds": 8, "sampling_rate": 0.1, "checkpoint_every": 2, "learning_rate": 0.5},
)  # fmt: skip


def config_of(folder, scheme, *changes, unit="agent"):
    path = folder / "run.toml"
    path.write_text(RUN.replace("SCHEME", scheme).replace("UNIT", unit), encoding="utf-8")
    return load_run_file(path, list(changes))


@pytest.mark.parametrize("scheme", ["fixed", "shuffled", "cyclic"])
def test_a_run_is_accounted_as_planned_and_goes_on_where_it_was(tmp_path, scheme):
    config = config_of(tmp_path, scheme)
    planned = make_plan(config)
    out = tmp_path / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(5))  # the newest checkpoint is of round 4
    resume_run(config, out)
    found = read_run(out)  # holds the ledger against the plan
    spent = epsilon_of_ledger(found.plan, found.spent)
    for g in planned.guarantees:
        assert spent[g.adversary] > g.epsilon  # round 5 was released twice
    if scheme != "fixed":  # once in each of three epochs, and once more with the same agents
        assert planned.guarantee("eavesdropper").epsilon == gaussian(3)
        assert spent["eavesdropper"] == gaussian(4)
    else:
        event = Event(1.0, poisson(1 / 3), Reach.PLACE)
        twice = composed_epsilon({event: 9}, delta=1e-5, adjacency="zero-out")
        assert spent["eavesdropper"] == pytest.approx(twice, rel=1e-9)
    exposure = found.header.exposures["eavesdropper"]
    assert [one for one in exposure.schemes if one] == [(scheme, 2, 6)]


def gaussian(squares):
    return pytest.approx(epsilon_from_mu(math.sqrt(squares), 1e-5), rel=1e-9)


def test_a_run_of_another_kind_of_cohort_does_not_go_on(tmp_path):
    config, out = config_of(tmp_path, "poisson"), tmp_path / "out"
    with pytest.raises(CutOffError):
        train_run(config, out, progress=cut_off_at(3))
    with pytest.raises(InputError, match="a run is continued as it was begun"):
        resume_run(config_of(tmp_path, "fixed"), out)


def test_the_command_says_how_cohorts_are_drawn(tmp_path, capsys):
    config_of(tmp_path, "shuffled")
    path = str(tmp_path / "run.toml")
    assert cli.main(["plan", path, "--json"]) == 0
    (found, *_) = json.loads(capsys.readouterr().out)["adversaries"]
    assert found["sampling"] == "shuffled cohorts"
    assert found["epsilon"] == gaussian(3)
    assert 0 < found["at_least"] < found["epsilon"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("data.agents=7", "2.33333333333 members; with cohorts 'fixed' it must be a whole number"),
        ('algorithm.cohort="weighted"', "'poisson', 'fixed', 'shuffled' or 'cyclic'"),
        ("algorithm.cohort_rate=2", "cohort_rate=2"),
    ],
)
def test_the_command_refuses_what_cannot_be_drawn(tmp_path, capsys, change, words):
    config_of(tmp_path, "fixed")
    assert cli.main(["plan", str(tmp_path / "run.toml"), "--set", change]) == 2
    assert words in capsys.readouterr().err
