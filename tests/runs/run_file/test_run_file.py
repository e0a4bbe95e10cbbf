"""The run file: what it accepts, what it refuses and in which words."""

import math
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from overhear.attacks.problem.objective import PRESETS
from overhear.runs.run_file.data_table import DATA_NAMES
from overhear.runs.run_file.run_file import RunFile, load_run_file, run_file_schema
from overhear.runs.run_file.tables import MODEL_NAMES, GraphName, PresetName
from overhear.training.algorithms import ALGORITHMS
from overhear.training.algorithms.dp_dpsgd import Order
from overhear.training.data import load as data
from overhear.training.graphs import topologies
from overhear.training.models import parameters as models

DSGD: dict[str, Any] = {
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "algorithm": {"name": "dsgd"},
    "training": {"rounds": 3, "batch_size": 4},
}


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ValueError, match=r"run\.toml") as caught:
        load_run_file(path, overrides)
    return str(caught.value).removeprefix(f"{path}: ")


def test_defaults_are_those_of_the_documentation(run_file):
    run = load_run_file(run_file)
    assert (run.data.agents, run.graph.name, run.graph.links) == (10, "ring", "clear")
    assert run.privacy is not None
    assert (run.privacy.clip_norm, run.privacy.adversary) == (1.0, "eavesdropper")
    assert (run.training.learning_rate, run.training.evaluate_every) == (0.01, 10)
    assert run.algorithm.form == "repaired"


def test_hyper_parameters_reach_the_algorithms_own_dataclass(run_file):
    settings = load_run_file(run_file).algorithm.settings()
    assert type(settings) is ALGORITHMS["dpdl"].settings
    assert settings.momentum == 0.5


def test_an_enum_hyper_parameter_is_read_from_its_name(run_file):
    text = run_file.read_text().replace('"dpdl"\nmomentum = 0.5', '"dp-dpsgd"')
    run_file.write_text(text)
    run = load_run_file(run_file, ["algorithm.order=step-then-mix"])
    assert run.algorithm.settings().order is Order.STEP_THEN_MIX


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["data.partition=dirichlet", "data.concentration=0.1", "graph.name=grid"],
        ["graph.name=erdos-renyi", "graph.edge_probability=0.4", "graph.seed=3"],
        ["privacy.noise_multiplier=0", "privacy.clip_norm=inf", "graph.links=encrypted"],
        ['training.learning_rate={schedule="cosine",start=0.5,warmup=9}'],
        ["training.rounds=3", "training.learning_rate=[0.3,0.2,0.1]", "intercept.rounds=[1]"],
        ["intercept.rounds=[]", "intercept.victims=[3]", 'data.root="a \\"b\\" \\\\ é"'],
    ],
)
def test_the_resolved_run_file_reads_back_equal(run_file, overrides):
    run = load_run_file(run_file, overrides)
    run_file.write_text(run.to_toml(), encoding="utf-8")
    again = load_run_file(run_file)
    assert again == run
    assert again.to_toml() == run.to_toml()


def test_the_resolved_run_file_names_every_hyper_parameter(run_file):
    written = tomllib.loads(load_run_file(run_file).to_toml())["algorithm"]
    assert written.keys() == {"name", "form", "alpha", "momentum"}


def test_defaults_that_need_another_table_are_resolved(run_file):
    run = load_run_file(run_file, ["privacy.victim=7", "privacy.adversary=coalition:1,9"])
    assert (run.intercept.rounds, run.intercept.victims) == ((1, 200), (7,))
    assert run.attack.rounds == (1, 200)
    assert run.privacy is not None
    assert run.privacy.adversaries[:2] == ("coalition:1,9", "eavesdropper")


@pytest.mark.parametrize(
    "override",
    ["together=3", "adversary=all-others", "adversary=final-models", "adversary=coalition:1,9"],
)
def test_an_attack_that_can_be_mounted_is_accepted(run_file, override):
    run = load_run_file(run_file, ["intercept.rounds=[1, 198]", f"attack.{override}"])
    key, _, value = override.partition("=")
    assert str(getattr(run.attack, key)) == value


def test_a_scenario_that_the_algorithm_lacks_is_refused_with_those_it_has():
    attack = {"scenarios": ["view", "momentum"]}
    with pytest.raises(ValueError, match=r"\[attack\] scenarios: 'momentum' .* 'dsgd'; use view"):
        RunFile.model_validate(DSGD | {"attack": attack})


def test_an_empty_list_of_rounds_means_that_nothing_is_kept(run_file):
    run = load_run_file(run_file, ["intercept.rounds=[]"])
    assert (run.intercept.rounds, run.attack.rounds) == ((), ())


def test_the_environment_gives_the_root_of_data_that_has_files(run_file, monkeypatch):
    monkeypatch.setenv("OVERHEAR_DATA", "somewhere")
    assert load_run_file(run_file, ["data.name=mnist"]).data.root == "somewhere"
    assert load_run_file(run_file).data.root is None


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("privacy.epsillon=3", "[privacy] epsillon is unknown; did you mean epsilon?"),
        ("privcy.epsilon=3", "[privcy] is unknown; did you mean [privacy]?"),
        ("training.epsilon=3", "[training] epsilon is unknown; it belongs under [privacy]"),
        ("algorithm.momentm=0.1", "[algorithm] momentm is unknown to dpdl; did you mean momentum?"),
        ("privacy.epsilon=-1", "[privacy] epsilon=-1 must be greater than 0"),
        ("privacy.epsilon=inf", "[privacy] epsilon=inf must be finite"),
        ("privacy.delta=1.0", "[privacy] delta=1.0 must lie in (0, 1)"),
        ("privacy.victim=10", "[privacy] victim=10 must be at most 9; agents count from 0"),
        (
            "training.sampling_rate=1.3",
            "[training] sampling_rate=1.3 must lie in (0, 1]; did you mean batch_size?",
        ),
        ("training.rounds=0", "[training] rounds=0 must be at least 1"),
        ("training.rounds=2.5", "[training] rounds=2.5 must be an integer"),
        ("training.rounds=true", "[training] rounds=True must be an integer"),
        ("algorithm.momentum=1.0", "[algorithm] momentum=1.0 must lie in [0, 1)"),
        (
            "training.device=cud",
            "[training] device='cud' is unknown; choose auto, cpu, cuda, cuda:N for one of several "
            "GPUs, counted from 0, or mps",
        ),
        (
            "training.precision=tf32",
            "[training] precision='tf32' cannot be accounted for: products would come out "
            "otherwise by the size of the batch, which one record changes, and nothing bounds what "
            'that moves in the gradients of the others; use precision = "float32", or leave it out',
        ),
        (
            "training.precision=fp32",
            "[training] precision='fp32' must be one of float32, tf32, bfloat16; did you mean "
            "tf32?",
        ),
        (
            "data.concentration=0.1",
            "[data] concentration=0.1 has no effect with partition='iid'; it belongs to "
            "partition='dirichlet', leave it out",
        ),
        ("graph.name=file", "[graph] path is missing; graph 'file' needs it"),
        (
            "intercept.rounds=[201]",
            "[intercept] rounds=201 must be at most 200; rounds count from 1",
        ),
        (
            "attack.rounds=[7]",
            "[attack] rounds names round 7, which is not in [intercept] rounds; add it there",
        ),
        (
            "attack.together=2",
            "[attack] together=2 from round 200 goes beyond the 200 rounds of [training]; use at "
            "most 1, or attack an earlier round",
        ),
        (
            "attack.adversary=neighbour",
            "[attack] adversary='neighbour' names no agent; name one, neighbour:K",
        ),
        (
            "attack.adversary=neighbour:0",
            "[attack] adversary='neighbour:0' contains victim 0 of [intercept] victims; leave one "
            "of them out",
        ),
        (
            "attack.adversary=coalition:1,10",
            "[attack] adversary 'coalition:1,10' names agent 10, which must lie in 0..9",
        ),
        (
            "privacy.accountant=gdp-clt",
            "[privacy] accountant='gdp-clt' must be one of pld, rdp, prv, dp-accounting",
        ),
    ],
)
def test_a_mistake_is_answered_by_one_sentence(run_file, override, sentence):
    assert refusal(run_file, override) == sentence


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("algorithm.name=dpdll", "did you mean dpdl?"),
        ("model.name=lenett", "did you mean lenet?"),
        ("privacy.adversary=neighbor", "use one of eavesdropper"),
        ("privacy.adversary=neighbour:10", "must lie in 0..9"),
        ("privacy.clip_norm=inf", "does not clip"),
        ("privacy.target_quantile=0.5", "that count is a release in every round"),
        ("privacy.clipping=quantile", "that count is a release in every round"),
        ("privacy.adaptive_clipping=true", "that count is a release in every round"),
        ("privacy.clipping=flat", "clipping is unknown"),
        ("algorithm.alpha='x'", "alpha='x' of dpdl"),
        ("intercept.rounds=3", "must be a list"),
        ("intercept.victims=[-1]", "victims[0]=-1 must be at least 0"),
        ("attack.presets=['dlgg']", "did you mean dlg?"),
        ("attack.adversary=single-message", "has no view of its own to attack from; use eaves"),
        ("attack.adversary=everybody", "is unknown; use eavesdropper, neighbour:K"),
        ("attack.adversary=coalition:a", "must name agents by number"),
        ("data.name=libsvm", "root is missing"),
        ("data.nonsense=1", "known keys: name, root, agents"),
    ],
)
def test_a_mistake_comes_with_its_remedy(run_file, override, part):
    assert part in refusal(run_file, override)


def test_several_mistakes_are_told_together(run_file):
    told = refusal(run_file, "privacy.delta=2", "training.seed=-1")
    assert told.splitlines()[1:] == [
        "  [privacy] delta=2 must lie in (0, 1)",
        "  [training] seed=-1 must lie in [0, 9.22337e+18]",
    ]


@pytest.mark.parametrize("keys", [("epsilon = 4\n", "noise_multiplier = 1\nepsilon = 4\n")])
def test_a_target_is_given_in_exactly_one_way(run_file, keys):
    text = run_file.read_text()
    run_file.write_text(text.replace(*keys))
    assert "epsilon and noise_multiplier given" in refusal(run_file)
    run_file.write_text(text.replace(keys[0], ""))
    assert "none given" in refusal(run_file)


def test_an_override_of_the_target_replaces_the_other_kind(run_file):
    privacy = load_run_file(run_file, ["privacy.noise_multiplier=1.5"]).privacy
    assert privacy is not None
    assert (privacy.epsilon, privacy.noise_multiplier) == (None, 1.5)


def test_a_private_algorithm_needs_a_privacy_table():
    values = DSGD | {"algorithm": {"name": "dpdl"}}
    with pytest.raises(ValueError, match=r"\[privacy\] is missing"):
        RunFile.model_validate(values)


def test_dsgd_runs_without_a_privacy_table():
    run = RunFile.model_validate(DSGD)
    assert run.privacy is None
    assert "[privacy]" not in run.to_toml()


@pytest.mark.parametrize(
    ("privacy", "part"),
    [
        ({"epsilon": 4.0, "delta": 1e-5}, "cannot be met: dsgd adds no noise"),
        ({"noise_multiplier": 1.0, "delta": 1e-5}, "has no effect: dsgd adds no noise"),
        ({"noise_multiplier": 0, "delta": 1e-5, "clip_norm": 1.0}, "dsgd does not clip"),
    ],
)
def test_dsgd_refuses_a_promise_it_cannot_keep(privacy, part):
    with pytest.raises(ValueError, match=part):
        RunFile.model_validate(DSGD | {"privacy": privacy})


def test_dsgd_with_a_privacy_table_does_not_clip():
    values = DSGD | {"privacy": {"noise_multiplier": 0, "delta": 1e-5}}
    privacy = RunFile.model_validate(values).privacy
    assert privacy is not None
    assert privacy.clip_norm == math.inf


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run file at .*nothing\.toml"):
        load_run_file(tmp_path / "nothing.toml")


@pytest.mark.parametrize("content", [b"[data\n", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_named(tmp_path, content):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    assert "is not TOML" in refusal(path)


def test_names_are_those_of_the_registries():
    assert set(DATA_NAMES) == {*data.DATASET_NAMES, "quadratic", "csv", "parquet", "npz", "npy"}
    assert set(get_args(GraphName)) == set(topologies.GRAPH_NAMES)
    assert set(MODEL_NAMES) == set(models.MODEL_NAMES)
    assert set(get_args(PresetName)) == set(PRESETS)


def test_the_schema_knows_every_table_and_every_algorithm():
    schema = run_file_schema()
    assert set(schema["properties"]) == set(RunFile.model_fields)
    cases = schema["$defs"]["AlgorithmTable"]["allOf"]
    assert [case["if"]["properties"]["name"]["const"] for case in cases] == list(ALGORITHMS)
    assert "Target" in schema["$defs"]["PrivacyTable"]["properties"]["epsilon"]["description"]
