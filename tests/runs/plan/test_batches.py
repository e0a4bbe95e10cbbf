"""A run file says how batches are drawn; plan, run, ledger and report say the same of them.

Five agents hold 287 or 288 records each; the figures are those of the worst of them.
"""

import json
import math

import pytest

from overhear.privacy import composed_epsilon, poisson
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach
from overhear.runs.folder.resume import read_run
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file

RUN = """
[data]
name = "digits"
agents = 5
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 2.0
delta = 1e-5
adjacency = "ADJACENCY"
[training]
rounds = 60
SAMPLING
"""


def config_of(folder, sampling, adjacency="zero-out", **more):
    text = RUN.replace("ADJACENCY", adjacency).replace("SAMPLING", sampling)
    for old, new in more.items():
        text = text.replace(old, new)
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_run_file(path)


def worst(plan):
    return plan.guarantee("eavesdropper")


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_a_fixed_size_is_accounted_at_the_rate_of_the_agent_with_fewest_records(
    tmp_path, adjacency
):
    plan = make_plan(config_of(tmp_path, 'batches = "fixed"\nbatch_size = 20', adjacency))
    event = Event(2.0, poisson(20 / 287), Reach.PLACE)
    expected = composed_epsilon({event: 60}, delta=1e-5, adjacency=adjacency)
    assert worst(plan).epsilon == pytest.approx(expected, rel=1e-9)
    assert worst(plan).sampling == "fixed"


@pytest.mark.parametrize("batches", ["shuffled", "cyclic"])
@pytest.mark.parametrize(("adjacency", "far"), [("zero-out", 1.0), ("replace-one", 2.0)])
def test_epochs_are_one_gaussian(tmp_path, batches, adjacency, far):
    plan = make_plan(config_of(tmp_path, f'batches = "{batches}"\nbatch_size = 20', adjacency))
    epochs = math.ceil(60 / (287 // 20))
    assert worst(plan).epsilon == pytest.approx(epsilon_from_mu(far * epochs**0.5 / 2, 1e-5))
    assert (worst(plan).at_least is not None) == (batches == "shuffled")
    said = " ".join(plan.warnings)
    assert "How many records each agent holds (287 to 288) counts as public." in said


def test_every_agent_has_the_figure_of_its_own_number_of_records(tmp_path):
    config = config_of(tmp_path, 'batches = "shuffled"\nbatch_size = 288')
    with pytest.raises(InputError, match=r"spread over 5 agents can give; lower it$"):
        make_plan(config)
    more = {"agents = 5": "agents = 5\npartition = 'dirichlet'"}
    config = config_of(tmp_path, 'batches = "shuffled"\nbatch_size = 250', **more)
    with pytest.raises(InputError, match=r"more than the \d+ records of agent \d"):
        make_plan(config)
    config = config_of(tmp_path, 'batches = "fixed"\nbatch_size = 100')
    plan = make_plan(config, every_agent=True)
    found = plan.victims["eavesdropper"]
    assert found[0] == found[1] == found[2] < found[3] == found[4] == worst(plan).epsilon


def test_batches_that_are_rarely_cut_cost_what_poisson_ones_do(tmp_path):
    plain = make_plan(config_of(tmp_path, "batch_size = 20"))
    cut = make_plan(config_of(tmp_path, 'batch_size = 20\nlargest_batch = "auto"'))
    low = make_plan(config_of(tmp_path, "batch_size = 20\nlargest_batch = 24"))
    assert worst(cut).epsilon == pytest.approx(worst(plain).epsilon, rel=1e-3)
    assert worst(low).epsilon > 1.05 * worst(plain).epsilon
    assert worst(cut).sampling == "truncated"


def test_a_target_is_met_with_every_scheme(tmp_path):
    for sampling in (
        'batches = "fixed"\nbatch_size = 20',
        'batches = "shuffled"\nbatch_size = 20',
        "batch_size = 20\nlargest_batch = 24",
    ):
        config = config_of(tmp_path, sampling, **{"noise_multiplier = 2.0": "epsilon = 3.0"})
        plan = make_plan(config)
        assert 2.999 < worst(plan).epsilon <= 3.0


@pytest.mark.parametrize(
    ("sampling", "adjacency", "words"),
    [
        ('batches = "fixed"\nsampling_rate = 0.1', "zero-out", "needs batch_size, an integer"),
        ('batches = "fixed"\nbatch_size = 2.5', "zero-out", "needs batch_size, an integer"),
        (
            'batches = "cyclic"\nbatch_size = 20\nlargest_batch = 30',
            "zero-out",
            "largest_batch=30 has no effect",
        ),
        ("batch_size = 20\nlargest_batch = 0", "zero-out", "at least 1, or 'auto'"),
        ('batches = "shuffled"\nbatch_size = 20', "add-or-remove-one", "every later batch holds"),
    ],
)
def test_what_cannot_be_drawn_or_proven_is_refused(tmp_path, sampling, adjacency, words):
    with pytest.raises(InputError, match=words):
        make_plan(config_of(tmp_path, sampling, adjacency))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({'adjacency = "zero-out"': "records_per_person = 2"}, "push each other out"),
        ({'adjacency = "zero-out"': 'accountant = "rdp"'}, "adds up Poisson batches alone"),
        ({'name = "dp-dpsgd"': 'name = "dpmixsgd"'}, "at a rate of its own"),
    ],
)
def test_requests_without_a_proof_for_a_fixed_size_are_refused(tmp_path, more, words):
    with pytest.raises(InputError, match=words):
        make_plan(config_of(tmp_path, 'batches = "fixed"\nbatch_size = 20', **more))


def test_several_batches_of_a_round_have_no_epoch(tmp_path):
    more = {'name = "dp-dpsgd"': 'name = "dp-netfleet"'}
    assert (
        worst(make_plan(config_of(tmp_path, 'batches = "fixed"\nbatch_size = 20', **more))).epsilon
        < math.inf
    )
    with pytest.raises(InputError, match="several batches a round"):
        make_plan(config_of(tmp_path, 'batches = "cyclic"\nbatch_size = 20', **more))


def test_without_noise_any_scheme_runs_and_protects_nothing(tmp_path):
    config = config_of(
        tmp_path, 'batches = "shuffled"\nbatch_size = 20', "add-or-remove-one",
        **{"noise_multiplier = 2.0": "noise_multiplier = 0"},
    )  # fmt: skip
    assert worst(make_plan(config)).epsilon == math.inf


@pytest.mark.parametrize(
    "sampling", ['batches = "shuffled"\nbatch_size = 40', "batch_size = 20\nlargest_batch = 21"]
)
def test_a_run_is_what_was_planned(tmp_path, sampling):
    config = config_of(tmp_path, sampling, **{"rounds = 60": "rounds = 8"})
    out = tmp_path / "run"
    planned = make_plan(config)
    train_run(config, out)
    again = read_run(out)  # holds the ledger against the plan
    assert again.plan.exposures == planned.exposures
    first = json.loads((out / "ledger.jsonl").read_text().splitlines()[0])
    assert "releases" in json.dumps(first)
    sampler = build(config).setting.sampler
    assert sampler.drawn[0].records == 288
