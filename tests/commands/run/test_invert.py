"""The command `overhear invert`: its options, output and refusals."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file

from overhear.attacks.problem.observation import Sent, sent_gradient
from overhear.commands.cli import main
from overhear.commands.invert import invert
from overhear.commands.terminal.options import with_requests
from overhear.runs.attack import invert as gradients_attack
from overhear.training.models.parameters import build_model, flatten, unflatten


@pytest.fixture(autouse=True)
def _gradients(tmp_path, monkeypatch):
    """A file of gradients of one record of 16 pixels."""
    monkeypatch.chdir(tmp_path)
    model = build_model(
        "mlp", input_shape=(1, 4, 4), classes=3, generator=torch.Generator().manual_seed(0)
    )
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    sent = sent_gradient(
        model, flatten(model), inputs=x, targets=torch.tensor([2]), of=Sent(clip_norm=None)
    ).detach()
    tensors = {f"gradient.{name}": g.contiguous() for name, g in unflatten(model, sent).items()}
    tensors |= {f"parameter.{name}": p.detach() for name, p in model.named_parameters()}
    save_file(tensors, "g.st")


def call(*arguments: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(with_requests(invert))
    return typer.main.get_command(app)(list(arguments), standalone_mode=False)


BASIC = ("g.st", "--model", "mlp", "--out", "found")


def test_it_prints_lines_for_people(capsys):
    call(*BASIC, "--input-shape", "1,4,4")
    shown = capsys.readouterr()
    assert shown.out.startswith("1 record from 1 intercept of 323 parameters, preset matched\n")
    assert "record 0: label 2, exact\n" in shown.out
    assert shown.err == ""


def test_it_prints_one_json_object(capsys):
    call(*BASIC, "--input-shape", "1,4,4", "--low", "0", "--high", "1", "--format=json")
    found = json.loads(capsys.readouterr().out)
    assert (found["labels"], found["stage"]) == ([2], ["exact"])
    assert found == json.loads(Path("found/attack.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*BASIC, "--input-shape", "4x4"), "input_shape='4x4' must be whole numbers"),
        ((*BASIC, "--input-shape", "1,4,4", "--mean", "a"), "mean='a' must be numbers"),
        (BASIC, "input_shape is not given"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call(*arguments)
    assert not Path("found").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing argument 'FILE'"),
        (BASIC[:1], "Missing option '--model'"),
        (BASIC[:3], "Missing option '--out'"),
        ((*BASIC, "--convention", "dpdl"), "No such option: --convention"),
        ((*BASIC, "--sweep", "graph.name=ring"), "No such option: --sweep"),
    ],
)
def test_what_is_missing_or_belongs_to_runs_is_named(arguments, words, capsys):
    assert main(["invert", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not Path("found").exists()


INVERT = ("invert", *BASIC, "--input-shape", "1,4,4", "--low", "0", "--high", "1")


def _signals_in(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    real = getattr(gradients_attack, name)

    def signalled(*given: Any, **how: Any) -> Any:
        signal.raise_signal(number)
        return real(*given, **how)

    monkeypatch.setattr(gradients_attack, name, signalled)


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("build_problem", "stopped; nothing was written\n"),
        ("reconstruct", "stopped; the same command goes on from the last state of the search"),
    ],
)
def test_a_search_that_is_stopped_is_given_again(moment, said, monkeypatch, capfd):
    with monkeypatch.context() as patched:
        _signals_in(patched, moment, signal.SIGINT)
        assert main(list(INVERT)) == 130
    shown = capfd.readouterr().err
    assert shown.startswith(said)
    assert shown.count("\n") == 1
    assert main(list(INVERT)) == 0
    assert Path("found/attack.json").is_file()


def test_a_signal_while_the_result_is_written_stops_nothing(monkeypatch, capfd):
    _signals_in(monkeypatch, "_save_pictures", signal.SIGTERM)
    assert main(list(INVERT)) == 0
    said = "the signal came when the work was done, so nothing was stopped\n"
    assert capfd.readouterr().err == said
    assert Path("found/attack.json").is_file()
