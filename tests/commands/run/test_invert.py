"""The command `overhear invert`: its options, output and refusals."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file

from overhear.attacks.problem.observation import Sent, sent_gradient
from overhear.commands.attack import invert
from overhear.commands.cli import main
from overhear.commands.terminal.terminal import with_requests
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
        monkeypatch.setattr(gradients_attack, name, real)  # once
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


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_a_network_of_torch_and_one_of_keras_give_a_page_of_pictures(framework, capsys):
    Path(f"{framework}_net.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Conv2d(shape[0], 3, 3, padding=1), nn.Sigmoid(),\n"
        "                         nn.Flatten(), nn.Linear(48, classes))\n",
        encoding="utf-8",
    )
    made = torch.Generator().manual_seed(3)
    x, y = torch.rand(1, 4, 4, 3, generator=made), torch.tensor([1])
    sizes = {"conv2d/kernel:0": (3, 3, 3, 3), "conv2d/bias:0": (3,),
             "dense/kernel:0": (48, 5), "dense/bias:0": (5,)}  # fmt: skip
    at = {n: torch.randn(s, generator=made).requires_grad_() for n, s in sizes.items()}
    kernel, bias, dense, last = at.values()
    fed = torch.nn.functional.pad(x, (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
    hidden = torch.sigmoid(torch.einsum("nyxcij,ijco->nyxo", fed, kernel) + bias)
    loss = torch.nn.functional.cross_entropy(hidden.flatten(1) @ dense + last, y)
    sent = dict(zip(at, torch.autograd.grad(loss, list(at.values())), strict=True))
    if framework == "keras":
        np.savez("g.npz", **{f"gradient/{n}": g.numpy() for n, g in sent.items()},
                 **{f"parameter/{n}": p.detach().numpy() for n, p in at.items()})  # fmt: skip
        np.save("truth.npy", x.permute(0, 3, 1, 2).numpy())
        files = ("g.npz", "--truth", "truth.npy")
    else:

        def turned(of: dict[str, torch.Tensor]) -> list[torch.Tensor]:
            k, b, d, e = (tensor.detach() for tensor in of.values())
            rows = d.reshape(4, 4, 3, 5).permute(3, 2, 0, 1).reshape(5, 48)
            return [k.permute(3, 2, 0, 1), b, rows, e]

        torch.save({"grads": turned(sent), "params": turned(at)}, "g.pt")
        torch.save(x.permute(0, 3, 1, 2), "truth.pt")
        files = ("g.pt", "--truth", "truth.pt")
    of = ("--model", f"{framework}_net:build", "--input-shape", "3,4,4", "--out", "f")
    assert main(["invert", *files, *of]) == 0
    found = json.loads(Path("f/attack.json").read_text(encoding="utf-8"))
    assert float(found["scores"]["mean"]["psnr"]) > 50
    page = Path("f/report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") == 4
    assert main(["report", "f"]) == 0
    assert page == Path("f/report.html").read_text(encoding="utf-8")
