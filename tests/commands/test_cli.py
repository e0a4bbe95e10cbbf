"""The command line: exit codes, what goes to which stream, and what help costs."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from overhear.commands import __main__ as program
from overhear.commands import cli
from overhear.privacy import second_opinion
from overhear.privacy.accounting.accountant import epsilon, noise_multiplier
from overhear.privacy.formats.codec import as_text, load
from overhear.privacy.guarantee import Guarantee
from overhear.runs.audit.evidence_schema import Attack
from overhear.runs.folder.records import TrainSummary
from overhear.runs.plan import opinions as second_opinions
from overhear.runs.plan import plan as plans
from overhear.runs.plan.opinions import described
from overhear.runs.plan.schema import SecondOpinion
from overhear.runs.requests import ACCOUNTANTS, ADJACENCIES
from tests.conftest import typed

SETTING = ["--delta", "1e-5", "--rounds", "10", "--sampling-rate", "1"]
HEAVY = ("torch", "opacus", "scipy", "numpy", "sklearn", "skimage", "dp_accounting")
Plan = dict[str, Any]


@pytest.fixture(autouse=True)
def _folders(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    for name in ("DIR", "A", "B"):
        Path(name).mkdir()


@pytest.fixture
def stub(monkeypatch):
    """Puts a function in the place of one that a command imports late."""

    def put(module: str, name: str, value: Any) -> None:
        stand_in = ModuleType(f"overhear.{module}")
        setattr(stand_in, name, value)
        monkeypatch.setitem(sys.modules, f"overhear.{module}", stand_in)

    return put


def test_help_imports_nothing_heavy():
    names = ("plan", "budget", "train", "attack", "report", "check", "compare", "total", "schema")
    program = (
        "import sys; from overhear.commands.cli import main\n"
        f"for name in {['', *names]}:\n"
        "    assert main([*name.split(), '--help']) == 0\n"
        f"    assert not [name for name in {HEAVY} if name in sys.modules], name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: overhear") == 10


GRADIENTS = "--model linear --out none --input-shape 1,8,8 --classes 10"
# What a command refuses, and a word of the refusal.
REFUSED = {
    "plan unknown.toml": "foo is unknown", "plan unknown.toml --statement": "foo is unknown",
    "train unknown.toml --out none": "foo is unknown", "audit unknown.toml": "foo is unknown",
    "audit-last-model unknown.toml": "foo is unknown", "design unknown.toml": "foo is unknown",
    "sweep unknown.toml --out none": "base is missing", "plan torn.toml": "torn.toml",
    "plan absent.toml": "absent.toml",
    "plan run.toml --set algorithm.momentum=2": "momentum=2.0 must lie in [0, 1)",
    "plan run.toml --set algorithm.name=dpld": "did you mean dpdl?",
    "plan run.toml --set algorithm.name=dp-fedavg": "momentum is unknown to dp-fedavg",
    "plan run.toml --set privacy.adversary=nobody": "nobody",
    "plan run.toml --set privacy.holders=[0,99]": "holders=99 must be at most 9",
    'plan run.toml --set attack.scenarios=["momentun"]': "did you mean momentum?",
    "train run.toml --out none --set algorithm.name=dsgd": "momentum is unknown to dsgd",
    "train run.toml --out none --set data.name=csv --set data.root=x.csv": "columns and target",
    "reproduce nothing --out none": "nothing", "review absent.csv": "no table at absent.csv",
    "review run.toml": "has 1 columns",
    "train absent.toml --out none": "no run file at absent.toml",
    "design absent.toml": "no run file at absent.toml",
    "sweep absent.toml --out none": "no sweep file at absent.toml",
    "attack absent": "is absent the --out folder",
    "attack-sweep absent.toml --out none --set a.b=1": "no run file at absent.toml",
    "audit absent": "is absent the --out folder", "audit absent.toml": "no run file at absent.toml",
    "audit-last-model absent.toml": "no run file at absent.toml",
    "audit-log absent --oracle a:b": "absent does not exist; name a log",
    "audit-scores absent.csv --claim epsilon=3": "absent.csv",
    "membership absent": "is absent the --out folder",
    "report absent": "is absent the --out folder",
    "sign absent --key none": "absent does not exist",
    "check absent --policy none.toml": "is absent the --out folder",
    "check . --policy none.toml": "no policy at none.toml",
    "compare absent": "is absent the --out folder", "total absent": "is absent the --out folder",
    "person absent": "no ledger of a person at absent; begin one",
    "person absent --add none": "is none the --out folder",
    "account absent": "absent does not exist; name a log",
    "account . --policy none.toml": "no policy at none.toml",
    "check-account absent.toml": "no run file at absent.toml",
    "table absent": "absent holds no sweep", "plot absent --out x.svg": "absent holds no sweep",
    f"invert absent {GRADIENTS}": "absent: No such file",
    f"invert run.toml {GRADIENTS} --truth absent": "absent: No such file",
}  # fmt: skip
# What takes no path of a file that must be there.
PATHLESS = {"new", "budget", "membership-training", "schema", "demo"}


def test_a_path_that_is_wrong_is_tried_of_every_command_that_takes_one():
    commands = {
        command.name or command.callback.__name__ for command in cli.app.registered_commands
    }
    named = {name.replace("_", "-") for name in commands}
    assert named - {line.split()[0] for line in REFUSED} == PATHLESS


def test_a_bad_run_file_is_told_without_torch(run_file):
    folder = run_file.parent
    text = run_file.read_text(encoding="utf-8")
    (folder / "unknown.toml").write_text(text.replace("[model]", "foo = 1\n[model]"), "utf-8")
    (folder / "torn.toml").write_text("[data", "utf-8")
    program = (
        "import sys; from overhear.commands.cli import main\n"
        f"for line in {list(REFUSED)}:\n"
        "    assert main(line.split()) == 2, line\n"
        "    assert 'torch' not in sys.modules, line\n"
        "    print('told', file=sys.stderr)\n"
        "assert main(['reproduce', '--list']) == 0 and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    refusals = " ".join(done.stderr.split()).split("told")[:-1]
    assert len(refusals) == len(REFUSED)
    for (line, words), said in zip(REFUSED.items(), refusals, strict=True):
        assert words in said, line


@pytest.mark.parametrize("code", [0, None, 3])
def test_an_exit_from_within_a_command_is_no_verdict(code, capsys, monkeypatch):
    def leaves(*_: object, **__: object) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("overhear.commands.account.print_json", leaves)
    assert cli.main(["budget", "--epsilon", "4", *SETTING, "--json"]) == cli.CRASH
    assert f"the command was left by SystemExit({code})" in capsys.readouterr().err


def test_a_model_that_exits_passes_no_gate(tmp_path, capsys, monkeypatch):
    (tmp_path / "model_that_exits.py").write_text("import sys; sys.exit(0)", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run.toml"
    run.write_text(
        '[data]\nname = "digits"\nagents = 3\n[model]\nname = "model_that_exits:f"\n'
        '[algorithm]\nname = "dp-dpsgd"\n[privacy]\nnoise_multiplier = 1\ndelta = 1e-5\n'
        "[training]\nrounds = 1\nsampling_rate = 0.05\n",
        encoding="utf-8",
    )
    assert cli.main(["plan", str(run), "--strict", "--check"]) == cli.BAD_INPUT
    assert "importing 'model_that_exits' raised SystemExit: 0 in line 1" in capsys.readouterr().err
    assert cli.main(["train", str(run), "--out", str(tmp_path / "out")]) == cli.BAD_INPUT


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_output_that_nobody_reads_ends_a_command_without_a_traceback(extra):
    asked = [
        "budget", "--epsilon", "1", "--delta", "1e-5", "--rounds", "2", "--sampling-rate", "1",
        *extra,
    ]  # fmt: skip
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "overhear", *asked], stdout=writer, stderr=subprocess.PIPE,
            text=True, check=False, timeout=60,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (cli.UNREAD, "")


def test_budget_prints_one_json_object(capsys):
    assert cli.main(["budget", "--epsilon", "4", *SETTING, "--json"]) == 0
    expected = noise_multiplier(epsilon=4, delta=1e-5, rounds=10, sampling_rate=1)
    assert json.loads(capsys.readouterr().out) == {
        "noise_multiplier": expected,
        "epsilon": 4.0,
        "delta": 1e-5,
        "rounds": 10,
        "sampling_rate": 1.0,
        "adjacency": "add-or-remove-one",
        "accountant": "pld",
        "computed": "noise_multiplier",
        "kind": "upper bound",
        "schema": 1,
    }


def test_budget_gives_epsilon_for_a_noise(capsys):
    assert cli.main(["budget", "--noise-multiplier", "5", *SETTING, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = epsilon(noise_multiplier=5, delta=1e-5, rounds=10, sampling_rate=1)
    assert found["epsilon"] == expected


@pytest.mark.parametrize(("missing", "expected"), [("rounds", 1202), ("sampling-rate", 0.0108628)])
def test_budget_gives_the_rounds_or_the_rate_that_are_left_out(missing, expected, capsys):
    setting = {"epsilon": 2, "noise-multiplier": 1, "rounds": 1000, "sampling-rate": 0.01}
    arguments = ["budget", "--delta", "1e-5"]
    for name, value in setting.items():
        arguments += [] if name == missing else [f"--{name}", str(value)]
    assert cli.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[missing.replace("-", "_")] == pytest.approx(expected, rel=1e-5)
    assert found["computed"] == missing.replace("-", "_")
    assert cli.main(arguments) == 0
    shown = capsys.readouterr().out
    assert f"computed         {missing.replace('-', ' ')}, the largest for the rest" in shown
    assert str(expected) in shown


def test_a_largest_rate_is_shown_rounded_down(monkeypatch, capsys):
    monkeypatch.setattr(
        "overhear.privacy.accounting.limits.max_sampling_rate", lambda **_: 0.0123456999
    )
    arguments = ["--epsilon", "2", "--noise-multiplier", "1", "--rounds", "9", "--delta", "1e-5"]
    assert cli.main(["budget", *arguments]) == 0
    assert "at rate 0.0123456\n" in capsys.readouterr().out


def test_an_infinite_figure_is_a_string_in_json(capsys):
    assert cli.main(["budget", "--noise-multiplier", "0", *SETTING, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == "inf"


def test_budget_says_that_the_central_limit_may_be_too_small(capsys):
    arguments = ["budget", "--noise-multiplier", "5", *SETTING, "--accountant", "gdp-clt"]
    assert cli.main(arguments) == 0
    assert "gdp-clt: approximation, may be too small" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["budget", "--epsilon", "-1", *SETTING], "epsilon=-1.0 must be"),
        (["budget", *SETTING], "all but one of them: epsilon, noise_multiplier are missing"),
        (["budget", "--epsilon", "1", "--noise-multiplier", "1", *SETTING], "none is missing"),
        (["plan", "nothing.toml"], "no run file at nothing.toml"),
        (
            ["budget", "--epsilon", "4"],
            "delta, rounds, sampling_rate, noise_multiplier are missing",
        ),
        (["budget", "--epsilon", "four", *SETTING], "--epsilon"),
        (["schema", "table"], "table"),
        (["check", "DIR"], "Missing option"),
        (["check", "DIR", "--policy", "none.toml"], "no policy at none.toml"),
        (["compare", "DIR"], "needs 2 or more"),
        (["report", "DIR", "--format", "md", "--show-records"], "--show-records belongs to"),
        (["plna"], "plna"),
    ],
)
def test_bad_input_exits_with_2_and_a_sentence(arguments, words, capsys):
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""


def test_a_wrong_run_file_exits_with_2_and_one_line(run_file, capsys):
    assert cli.main(["plan", str(run_file), "--set", "privacy.epsilom=3"]) == 2
    shown = capsys.readouterr().err
    assert shown == f"error: {run_file}: [privacy] epsilom is unknown; did you mean epsilon?\n"


def test_debug_shows_where_bad_input_was_found(monkeypatch, capsys):
    monkeypatch.setenv("OVERHEAR_DEBUG", "1")
    assert cli.main(["plan", "nothing.toml"]) == 2
    assert "Traceback" in capsys.readouterr().err


def _slip() -> Any:
    return {}["missing"]


def _library() -> Any:
    return np.zeros(2).reshape(3)


def _deep() -> Any:
    raise RuntimeError("unforeseen")


@pytest.mark.parametrize("fault", [_slip, _library, _deep])
def test_what_our_code_does_not_state_is_a_crash(fault, stub, capsys):
    stub(
        "reports.document.collect",
        "report_run",
        lambda _, *, show_records, **__: show_records or fault(),
    )
    assert cli.main(["report", "DIR"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_plan_prints_one_json_object(run_file, report, stub, monkeypatch, capsys):
    report["plan"]["adversaries"][0] |= {"epsilon": math.inf, "status": "no protection"}
    stub("reports.judgement.remedies", "advise", lambda *_, **__: [])
    monkeypatch.setattr(plans, "make_plan", lambda *_, **__: None)
    described_plan = _Described(report["plan"])
    monkeypatch.setattr(second_opinions, "with_opinions", lambda _: described_plan)
    assert cli.main(["plan", str(run_file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["adversaries"][0]["epsilon"] == "inf"
    assert found["target"] == report["plan"]["target"]


def test_plan_marks_what_is_heuristic_and_prints_warnings(
    run_file, report, stub, monkeypatch, capsys
):
    report["plan"]["warnings"] = ["Nothing protects [privacy]."]
    stub("reports.judgement.remedies", "advise", lambda *_, **__: [])
    monkeypatch.setattr(plans, "make_plan", lambda *_, **__: None)
    described_plan = _Described(report["plan"])
    monkeypatch.setattr(second_opinions, "with_opinions", lambda _: described_plan)
    assert cli.main(["plan", str(run_file)]) == 0
    shown = capsys.readouterr().out
    for words in ("eavesdropper", "heuristic: at least this bad", "Warning: Nothing protects [pri"):
        assert words in shown


def test_a_plan_that_a_second_opinion_contradicts_ends_with_exit_code_4(
    run_file, report, stub, monkeypatch, capsys
):
    wrong = described(second_opinion({(1.0, 1.0): 1}, ours=0.5, delta=1e-5))
    found = _Described(report["plan"])
    found.second_opinion = {"eavesdropper": wrong}
    stub("reports.judgement.remedies", "advise", lambda *_, **__: [])
    monkeypatch.setattr(plans, "make_plan", lambda *_, **__: None)
    monkeypatch.setattr(second_opinions, "with_opinions", lambda _: found)
    for more in ([], ["--json"]):
        assert cli.main(["plan", str(run_file), *more]) == 4
        shown = capsys.readouterr()
        assert "more than the 0.5 that is stated" in shown.err
        assert ("CONTRADICTED" in shown.out) is not bool(more)


def test_a_report_that_a_second_opinion_contradicts_ends_with_exit_code_4(report, stub, capsys):
    wrong = described(second_opinion({(1.0, 1.0): 1}, ours=0.5, delta=1e-5))
    found = typed(report | {"second_opinion": {"eavesdropper": wrong.dump()}})
    stub("reports.document.collect", "collect", lambda _, **__: found)
    for shape in ("json", "md"):
        assert cli.main(["report", "DIR", "--format", shape]) == 4
        shown = capsys.readouterr()
        assert "do not rely on any figure" in shown.err
        assert "contradicted" in shown.out.lower()


def test_budget_explains_a_figure_by_a_second_opinion(capsys):
    asked = ["budget", "--noise-multiplier", "1", "--rounds", "1000", "--sampling-rate", "0.01"]
    assert cli.main([*asked, "--delta", "1e-5", "--explain"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("second opinion   dp-accounting 0.")
    assert "epsilon between 1.70 and 1.83" in said
    assert cli.main([*asked, "--delta", "1e-12", "--explain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["second_opinion"]
    assert (found["verdict"], found["optimistic"]) == ("none", None)
    assert found["because"].startswith("delta=1e-12 is below 1e-10")
    assert cli.main([*asked, "--delta", "1e-5"]) == 0
    assert "second opinion" not in capsys.readouterr().out


def test_train_reports_epsilon_against_its_limit_on_standard_error(run_file, report, stub, capsys):
    def train_run(_: Any, out: Path, *, progress: Callable[..., None], **how: Any) -> TrainSummary:
        assert how["group"] is None
        metrics = type("Metrics", (), {"consensus_accuracy": 0.5})
        progress(1, 200, None, None)
        progress(2, 200, 1.234, metrics)
        adversaries = typed(report).plan.adversaries
        return TrainSummary.model_construct(out=str(out), adversaries=adversaries)

    stub("runs.folder.run", "train_run", train_run)
    assert cli.main(["train", str(run_file), "--out", "DIR", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["out"] == "DIR"
    line = "training 2/200: epsilon 1.24 of 4.00 at delta 1e-5, accuracy 50.0%\n"
    assert shown.err == line


def test_attack_prints_a_table_for_each_scenario(report, stub, capsys):
    def attack_run(_: Path, *, progress: Callable[..., None], **how: Any) -> Attack | None:
        assert how["device"] is None
        progress(1, 12, "image 1")
        return typed(report).attack

    stub("runs.attack.attack", "attack_run", attack_run)
    assert cli.main(["attack", "DIR"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "attack 1/12: image 1\n"
    for words in ("cross-gradient, round 100", "blind guess", "defended", "No leak shown"):
        assert words in shown.out


def test_report_prints_the_path_of_the_page(stub, capsys):
    asked: list[tuple[bool, list[Path]]] = []

    def report_run(folder: Path, *, show_records: bool, others: Sequence[Path], **_: Any) -> Path:
        asked.append((show_records, list(others)))
        return folder / "report.html"

    stub("reports.document.collect", "report_run", report_run)
    assert cli.main(["report", "DIR", "--show-records"]) == 0
    assert capsys.readouterr().out == f"{Path('DIR') / 'report.html'}\n"
    assert cli.main(["report", "DIR", "--total", "A", "--total", "B"]) == 0
    assert asked == [(True, []), (False, [Path("A"), Path("B")])]


@pytest.mark.parametrize("form", ["json", "md"])
def test_report_prints_the_same_figures_and_writes_nothing(form, report, tmp_path, stub, capsys):
    stub("reports.document.collect", "collect", lambda _, **__: typed(report))
    assert cli.main(["report", str(tmp_path), "--format", form]) == 0
    shown = capsys.readouterr().out
    if form == "json":
        assert json.loads(shown) == report
    else:
        assert shown.startswith("# The target is met against the eavesdropper")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("what", "key"),
    [
        ("policy", "limits"),
        ("report", "ledger"),
        ("total", "holders"),
        ("plan", "schema"),
        ("train", "schema"),
        ("sweep", "schema"),
        ("attack", "scenarios"),
        ("invert", "stage"),
    ],
)
def test_a_schema_describes_what_is_asked_for(what, key, capsys):
    assert cli.main(["schema", what]) == 0
    assert key in json.loads(capsys.readouterr().out)["properties"]


def test_schema_run_is_a_json_schema_with_every_table(capsys):
    assert cli.main(["schema", "run"]) == 0
    assert "intercept" in json.loads(capsys.readouterr().out)["properties"]


def test_version_is_that_of_the_package(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("overhear ")


def test_names_of_choices_are_those_of_the_accountant():
    from overhear.privacy.accounting.request import Accountant, Adjacency

    assert set(ACCOUNTANTS) == set(Accountant)
    assert set(ADJACENCIES) == set(Adjacency)


class _Described:
    def __init__(self, plan: Plan) -> None:
        self.second_opinion: dict[str, SecondOpinion] | None = None
        self.adversaries = [
            load(Guarantee, as_text(row), refusal="{} {}".format) for row in plan["adversaries"]
        ]
        self._plan = plan

    def dump(self) -> Plan:
        return self._plan


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize(("what", "code"), [("run", 0), ("nope", 2)])
def test_a_command_whose_streams_are_closed_ends_as_it_does_with_them(what, code):
    given = ["sh", "-c", 'exec "$0" -m overhear.commands schema "$1" <&- >&- 2>&-']
    assert subprocess.run([*given, sys.executable, what], check=False).returncode == code


def test_a_closed_stream_leads_nowhere(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    program._open_closed()
    with sys.stderr as opened:
        assert opened.name == os.devnull
