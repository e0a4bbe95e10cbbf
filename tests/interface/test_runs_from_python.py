"""A run folder from Python: the same files, figures and sentences as from the command line."""

import json

import pytest

import overhear as oh
from overhear.interface.shown import overrides_of
from overhear.privacy.errors import InputError

RUN = {
    "data": {"name": "digits", "agents": 3}, "model": {"name": "linear"},
    "algorithm": {"name": "dp-dpsgd"}, "privacy": {"epsilon": 3, "delta": 1e-5},
    "training": {"rounds": 4, "sampling_rate": 0.1, "learning_rate": 0.5},
    "intercept": {"rounds": [1]}, "audit": {"canaries": 30, "checked_rounds": 2},
}  # fmt: skip
POLICY = {"schema": 1, "limits": [{"adversary": "eavesdropper", "epsilon": 3, "delta": 1e-5}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return oh.train(RUN, tmp_path_factory.mktemp("runs") / "one")


def test_a_plan_is_that_of_the_command_line(capsys, tmp_path):
    import tomli_w

    from overhear.commands.cli import main

    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(RUN))
    assert main(["plan", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = oh.plan(RUN)
    assert found.to_json().items() <= printed.items()
    assert found.to_json() == oh.plan(path).to_json() == oh.plan(str(path)).to_json()
    assert "eavesdropper" in repr(found)
    assert "<table>" in found._repr_html_()
    assert found.__rich__().row_count == len(found.guarantees)
    assert "changes the distribution of all that is seen" in found.statement()
    assert "eavesdropper and a record of agent" in str(found.explain("eavesdropper"))
    assert oh.plan(path, set={"privacy.epsilon": 1}).guarantees[0].epsilon <= 1
    assert oh.plan(RUN, set={"privacy": {"epsilon": 1}}).guarantees[0].epsilon <= 1


def test_noise_that_can_be_repeated_is_drawn_as_heuristic():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    found = oh.plan(RUN, set={"training.evaluation_noise_seed": 1})
    assert "heuristic: at least" in found.plot().lines[0].get_label()
    assert "proven" not in str(found.explain("eavesdropper"))


def test_a_run_has_its_ledger_metrics_and_models(run):
    assert run.ledger.rounds == 4
    assert run.metrics.rows[-1]["round"] == 4
    assert len(run.models()) == 3
    assert sum(p.numel() for p in run.models()[0].parameters()) == 650
    assert run.plan.guarantees[0].epsilon <= 3
    assert "4 of 4 rounds released" in repr(run)
    assert "<table>" in run._repr_html_()
    assert repr(run.metrics).startswith("Test metrics")


def test_a_table_of_metrics_for_pandas(run):
    pytest.importorskip("pandas")
    assert list(run.metrics.to_pandas()["round"])[-1] == 4


def test_a_run_is_audited_reported_and_checked(tmp_path):
    run = oh.train(RUN, tmp_path / "run")
    assert run.audit_result is None
    # So few canaries say something by luck alone, and exceed at such a confidence but in 1e-5.
    found = run.audit(canaries=20, confidence=0.99999)
    assert found.verdict == run.audit_result.verdict
    assert found.verdict in ("not measured", "consistent")
    assert found.passed == (found.verdict == "consistent")
    assert found.found.canaries == 20
    assert all(one.passed for one in found.found.checks)
    assert "eavesdropper" in repr(found)
    assert found.statement().startswith(f"Audit with 20 canaries: {found.verdict}. eavesdropper: ")
    assert found.to_json() == json.loads((run.folder / "audit.json").read_text())
    page = run.report()
    assert page.path == tmp_path / "run" / "report.html"
    assert page.text.startswith("<!doctype html>")
    assert 'sandbox=""' in page._repr_html_()
    assert "<script" not in page._repr_html_()
    assert oh.report(run, "json").to_json()["audit"]["canaries"] == 20
    checked = run.check(POLICY)
    assert checked.passed
    assert bool(checked)
    assert "PASSED" in repr(checked).upper()
    strict = {**POLICY, "limits": [{**POLICY["limits"][0], "epsilon": 0.1}]}
    assert not run.check(strict).passed
    # What membership tests come to is found as by `overhear check`.
    tests = {"adversary": "eavesdropper", "max_advantage": 0.999}
    assert run.check({**POLICY, "limits": [tests]}).passed
    assert not run.check({**POLICY, "limits": [tests | {"max_advantage": 1e-3}]}).passed
    with pytest.raises(FileExistsError, match="exists"):
        run.audit()


@pytest.mark.slow
def test_a_run_is_attacked_with_other_keys_than_its_own(tmp_path):
    run = oh.train(RUN, tmp_path / "run")
    assert run.attacks is None
    found = run.attack(images=1, presets=["idlg"], restarts=1)
    assert {row["preset"] for row in found.rows} == {"idlg"}
    assert run.attacks.rows == found.rows
    assert found.to_json()["scenarios"][0]["preset"] == "idlg"
    assert found.found.scenarios[0].conclusion in found.statement()
    assert "<img" in found._repr_html_()


def test_gradients_are_attacked_by_paths_as_text(tmp_path, monkeypatch):
    import torch
    from safetensors.torch import save_file

    x, model = torch.linspace(0, 1, 16).reshape(1, 1, 4, 4), torch.nn.Linear(16, 2)
    torch.nn.functional.cross_entropy(model(x.flatten(1)), torch.tensor([1])).backward()
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))\n"
    )
    sent = {f"gradient.1.{name}": one.grad for name, one in model.named_parameters()}
    at = {f"parameter.1.{name}": one.detach() for name, one in model.named_parameters()}
    save_file({**sent, **at}, tmp_path / "sent.safetensors", {"input_shape": "1,4,4"})
    save_file({"pixels": x}, tmp_path / "truth.safetensors")
    monkeypatch.chdir(tmp_path)
    found = oh.attack(
        str(tmp_path / "sent.safetensors"), model="./mine.py:build",
        truth=str(tmp_path / "truth.safetensors"), out=str(tmp_path / "found"),
    )  # fmt: skip
    assert float(found.scores.mean.psnr) > 60
    assert found.arrays()["pixels"].shape == (1, 1, 4, 4)
    assert [(row["label"], row["supported"]) for row in found.rows] == [(1, True)]
    assert "record 0: label 1, rebuilt: exact" in repr(found)
    assert "srcdoc=" in found._repr_html_()
    assert "image-rendering:pixelated" in found._repr_html_()
    assert "What a gradient gave away" in oh.report(tmp_path / "found").text
    assert oh.report(tmp_path / "found" / "attack.json", "json").to_json() == found.to_json()
    torch.save([one.grad for one in model.parameters()], tmp_path / "sent.pt")
    whole = torch.nn.Sequential(torch.nn.Flatten(), model)
    for given, out in ((whole, "network"), (lambda *_: whole, "function")):
        of = {"input_shape": (1, 4, 4), "truth": tmp_path / "truth.safetensors"}
        again = oh.attack(tmp_path / "sent.pt", model=given, out=tmp_path / out, **of)
        assert float(again.scores.mean.psnr) > 60
    assert whole[1].weight.grad is not None  # the network is copied, and left as it was
    with pytest.raises(InputError, match="model must be a network, a function"):
        oh.attack(tmp_path / "sent.safetensors", model=3, out=tmp_path / "other")


def test_pictures_that_were_rebuilt_are_drawn(tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    import torch

    x, model = torch.linspace(0, 1, 16).reshape(1, 1, 4, 4), torch.nn.Linear(16, 2)
    torch.nn.functional.cross_entropy(model(x.flatten(1)), torch.tensor([1])).backward()
    torch.save([one.grad for one in model.parameters()], tmp_path / "sent.pt")
    whole = torch.nn.Sequential(torch.nn.Flatten(), model)
    found = oh.attack(tmp_path / "sent.pt", model=whole, out=tmp_path / "a", input_shape=(1, 4, 4))
    figure = found.plot()
    assert len(figure.axes[0].images) == 3  # rebuilt, blind guess, what a defence would leave
    assert pyplot.gcf() is figure  # which a notebook shows


def test_epsilon_is_told_round_by_round(tmp_path):
    told = []
    oh.train(RUN, tmp_path / "run", on_round=lambda *what: told.append(what[:3]))
    assert [one[0] for one in told][-1] == 4
    assert told[-1][2] <= 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: oh.plan({"data": {"nam": "digits"}}), "name"),
        (lambda: oh.plan(7), "run must be the path of a run file, a dict"),
        (lambda: oh.plan(RUN, set={"epsilon": 3}), "must name a table and a key"),
        (lambda: oh.plan(RUN, set={"privacy.epsilon": print}), "is nothing that a run file holds"),
        (lambda: oh.plan(RUN, set={"privacy.epsilom": 3}), "did you mean"),
        (lambda: oh.train(RUN, "x", on_round=3), "on_round=3 must be a function"),
        (lambda: oh.report("x", "pdf"), "format='pdf' must be one of"),
        (lambda: oh.attack(3), "target must be a Run"),
        (lambda: oh.audit(3), "target must be a Run"),
        (oh.audit, "audit needs a run"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message) as told:
        call()
    assert "pydantic" not in str(told.value)


@pytest.mark.parametrize("name", [oh.Run, oh.report, oh.attack])
def test_a_folder_without_a_run_is_told(name, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run|run\.toml|does not exist"):
        name(tmp_path / "absent")


def test_values_become_overrides_as_toml_has_them():
    found = overrides_of({"attack.presets": ("idlg",), "data": {"name": 'a"b  c'}, "a.b": True})
    assert found == ['attack.presets=["idlg"]', 'data.name="a\\"b  c"', "a.b=true"]


def test_a_report_of_logs_is_that_of_a_declared_system(tmp_path):
    from tests.privacy.releases.logs import one, write

    write(tmp_path / "logs" / "a.jsonl", {1: [one()]})
    page = oh.report(tmp_path / "logs")
    assert "○ declared" in page.text
    assert str(page) == f"The report: {tmp_path / 'logs' / 'report.html'}"
    assert oh.report(tmp_path / "logs", "json").to_json()["declared"]["status"] == "declared"


def test_a_folder_of_logs_is_no_run_and_says_what_reads_it(tmp_path):
    with oh.record(tmp_path / "logs" / "a.jsonl", agent=0, agents=2, clip=1.0, rate=0.1):
        pass
    with pytest.raises(FileNotFoundError, match=r"holds logs of releases .* `overhear account"):
        oh.audit(tmp_path / "logs")


@pytest.mark.slow
def test_commands_have_their_names_in_python(run, tmp_path):
    import tomli_w

    (tmp_path / "run.toml").write_text(tomli_w.dumps(RUN))
    sweep = 'base = "run.toml"\nseeds = 2\n\n[grid]\n"training.learning_rate" = [0.1, 0.5]\n'
    (tmp_path / "sweep.toml").write_text(sweep)
    swept = oh.sweep(tmp_path / "sweep.toml", tmp_path / "swept", jobs=1)
    assert len(swept.results) == 4
    assert "learning_rate" in str(oh.table(tmp_path / "swept"))
    assert str(oh.table(swept)) == str(oh.table(tmp_path / "swept"))
    figure = oh.plot(swept)
    assert figure.axes
    assert figure.canvas.manager is not None  # which a notebook shows
    other = oh.train(RUN, tmp_path / "other", set={"privacy.epsilon": 1})
    assert "| epsilon: eavesdropper |" in oh.compare([run, other.folder])._repr_markdown_()
    assert not oh.check(run, POLICY).passed  # no report of it is there
    run.report()
    assert oh.check(run.folder, POLICY).passed
    assert oh.design(RUN, groups=2).dump()["rows"]


def test_inversion_takes_the_keywords_of_its_request(tmp_path):
    import inspect

    assert {"gradients", "model", "out", "clip_norm"} <= set(
        inspect.signature(oh.invert).parameters
    )
    assert inspect.signature(oh.invert).return_annotation == "GradientAttack"
    assert inspect.signature(oh.budget).return_annotation == "Budget"
    with pytest.raises(FileNotFoundError, match="no file of gradients"):
        oh.invert(tmp_path / "absent.safetensors", model="linear", out=tmp_path)
