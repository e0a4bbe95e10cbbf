"""Every algorithm trained from its example: what the ledger costs is what the plan said."""

import inspect
import json
import math
import tomllib
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from overhear.commands import cli
from overhear.privacy import Statement, read_ledger
from overhear.reports.document.collect import collect
from overhear.runs.folder import run as running
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.algorithms import ALGORITHMS, Form
from overhear.training.exposure.guarantees import run_epsilon
from tests.real_data import root_with

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples"
RUN_FILES = sorted(set(EXAMPLES.glob("*.toml")) - {EXAMPLES / "policy.toml"})

ROUNDS = 20
SHORT = [f"training.rounds={ROUNDS}", "intercept.rounds=[]", "attack.rounds=[]"]
REFERENCES = [name for name, algorithm in ALGORITHMS.items() if not algorithm.private]
COME_ALONG = ("digits", "faces", "quadratic")  # data that need no files
ON_A_RING = ("dsgd", "dp-dpsgd")  # whose example is not one of the runs with 150 rounds


def example(name: str) -> Path:
    return EXAMPLES / f"{name}-{'ring' if name in ON_A_RING else 'digits'}.toml"


def forms(name: str) -> list[Form]:
    """The forms of an algorithm, only one where its start and its step do not tell them apart."""
    algorithm = ALGORITHMS[name]
    told_apart = "form" in {
        parameter
        for function in (algorithm.init, algorithm.step)
        for parameter in inspect.signature(function).parameters
    }
    return list(Form) if told_apart else [Form.REPAIRED]


QUICK = {"dpdl", "dsgd", "whisper"}  # the others are trained by the slow tests
MATRIX = [
    pytest.param(
        *(name, form),
        marks=[] if name in QUICK and form is Form.REPAIRED else [pytest.mark.slow],
        id=f"{name}-{form}",
    )
    for name in ALGORITHMS
    for form in forms(name)
]


def planned(plan: Plan) -> dict[str, float]:
    return {guarantee.adversary: guarantee.epsilon for guarantee in plan.guarantees}


def number(value: float | str) -> float:
    return float(value)  # "inf" in JSON


@pytest.mark.some_quick(1)
@pytest.mark.some_cases(10)
@pytest.mark.parametrize(("name", "form"), MATRIX)
def test_the_ledger_of_a_run_costs_what_its_plan_said(name, form, tmp_path, monkeypatch):
    config, plans = load_run_file(example(name), [*SHORT, f"algorithm.form={form}"]), list[Plan]()
    plan = lambda *of, **how: plans.append(make_plan(*of, **how)) or plans[-1]  # noqa: E731
    monkeypatch.setattr(running, "make_plan", plan)  # the goldens hold it to that of `plan`
    summary = train_run(config, tmp_path / "run")
    [expected] = map(planned, plans)
    assert {one.adversary: one.epsilon for one in summary.adversaries} == expected
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").numbers == list(range(ROUNDS + 1))

    ledger = collect(tmp_path / "run").ledger
    assert (ledger.rounds, ledger.rounds_accounted) == (ROUNDS, ROUNDS)
    assert ledger.epsilon.keys() == ledger.reading.keys() == expected.keys()
    for adversary, epsilon in expected.items():
        # What may be signed counts the planned rounds too; the reading, the entries alone.
        assert ledger.epsilon[adversary] == pytest.approx(epsilon, rel=1e-9)
        assert ledger.reading[adversary] == pytest.approx(epsilon, rel=1e-9)
    _check_protection(config, expected)
    assert summary.metrics.round == ROUNDS
    assert 0 < summary.metrics.consensus_loss < math.inf


def _check_protection(config: RunFile, epsilons: dict[str, float]) -> None:
    """References protect from nobody; the others keep to their target, and Whisper to no more."""
    if config.privacy is None:
        assert set(epsilons.values()) == {math.inf}
        return
    if config.privacy.epsilon is not None:
        assert epsilons[config.privacy.adversary] <= config.privacy.epsilon
    seed_is_shared = config.algorithm.name == "whisper"
    for adversary, epsilon in epsilons.items():
        assert epsilon > 0
        assert math.isinf(epsilon) == (seed_is_shared and adversary == "neighbour"), adversary


def test_a_round_that_the_ledger_lacks_would_be_seen_in_the_reading(tmp_path):
    config = load_run_file(example("dp-dpsgd"), SHORT)
    train_run(config, tmp_path)
    numbers = read_ledger(tmp_path / "ledger.jsonl").numbers
    plan = make_plan(config)
    known = plan.guarantee("eavesdropper")
    readings = [
        run_epsilon(
            plan.exposures["eavesdropper"],
            noise_multiplier=plan.noise_multiplier,
            statement=Statement(delta=known.delta),
            rounds=rounds,
        )
        for rounds in (numbers, numbers[:-1], [*numbers, ROUNDS])
    ]
    assert readings[0] == pytest.approx(known.epsilon, rel=1e-9)
    assert readings[1] < readings[0] < readings[2]


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_refused_an_epsilon(name, command, tmp_path, capsys):
    asked = ["--set", "privacy.epsilon=3", "--set", "privacy.delta=1e-5"]
    out = ["--out", str(tmp_path / "run")] if command == "train" else []
    assert cli.main([command, str(example(name)), *asked, *out]) == 2
    shown = capsys.readouterr()
    assert f"[privacy] epsilon=3.0 cannot be met: {name} adds no noise" in shown.err
    assert shown.out == ""
    assert not (tmp_path / "run").exists()


def every_example() -> list[ParameterSet]:
    """Run files of the folder, marked where their data are not bundled or their plan is long."""
    found = []
    for path in RUN_FILES:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        bundled = table["data"]["name"] in COME_ALONG
        marks = [] if bundled else [pytest.mark.data]
        if table["algorithm"]["name"] == "dyn-d2p" or not bundled:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(path, marks=marks, id=path.stem))
    return found


def data_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What points the run file at its data; skips where they are not there."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))["data"]
    if data["name"] in COME_ALONG:
        return []
    bundled = {"mnist": "MNIST", "cifar10": "cifar-10-batches-py"}
    wanted = f"libsvm/{Path(data['root']).name}" if "root" in data else bundled[data["name"]]
    root = root_with(wanted)
    if "root" in data:
        return ["--set", f'data.root="{root / wanted}"']
    monkeypatch.setenv("OVERHEAR_DATA", str(root))
    return []


@pytest.mark.some_quick(6)
@pytest.mark.parametrize("path", every_example())
def test_an_example_is_planned_and_keeps_to_its_target(path, monkeypatch, capsys):
    assert cli.main(["plan", str(path), "--json", *data_of(path, monkeypatch)]) == 0
    plan = json.loads(capsys.readouterr().out)
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    of = {one["name"]: number(one["epsilon"]) for one in plan["adversaries"]}
    privacy = table.get("privacy", {"noise_multiplier": 0})
    if privacy.get("noise_multiplier") == 0:
        assert set(of.values()) == {math.inf}
    elif "epsilon" in privacy:
        target = privacy["epsilon"]
        assert plan["target"]["adversary"] == privacy.get("adversary", "eavesdropper")
        # Calibrated to the target from below, and with no more noise than it takes.
        assert 0.999 * target < of[plan["target"]["adversary"]] <= target
    else:
        assert plan["noise_multiplier"] == privacy["noise_multiplier"]
        assert 0 < of["eavesdropper"] < math.inf


def test_every_algorithm_has_an_example():
    names = {
        tomllib.loads(path.read_text(encoding="utf-8"))["algorithm"]["name"] for path in RUN_FILES
    }
    assert names == ALGORITHMS.keys()
