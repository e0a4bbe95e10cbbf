"""The command `overhear attack` on a file of gradients: its options, output and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file

from overhear.attacks.problem.observation import sent_gradient
from overhear.commands.run.attack import attack
from overhear.runs.attack.sweep import AttackedCombination
from overhear.runs.evidence.schema import AllowedByProof, AttackRow, Means, Scenario
from overhear.training.models.parameters import build_model, flatten, unflatten


@pytest.fixture(autouse=True)
def _gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of gradients of one record of 16 pixels."""
    monkeypatch.chdir(tmp_path)
    model = build_model(
        "mlp", input_shape=(1, 4, 4), classes=3, generator=torch.Generator().manual_seed(0)
    )
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    sent = sent_gradient(
        model, flatten(model), inputs=x, targets=torch.tensor([2]), clip_norm=None
    ).detach()
    tensors = {f"gradient.{name}": g.contiguous() for name, g in unflatten(model, sent).items()}
    tensors |= {f"parameter.{name}": p.detach() for name, p in model.named_parameters()}
    save_file(tensors, "g.st")


def call(*arguments: str) -> Any:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(attack)
    return typer.main.get_command(app)(list(arguments), standalone_mode=False)


BASIC = ("--gradients", "g.st", "--model", "mlp", "--out", "found")


def test_it_prints_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    call(*BASIC, "--input-shape", "1,4,4")
    shown = capsys.readouterr()
    assert shown.out.startswith("1 record from 1 intercept of 323 parameters, preset matched\n")
    assert "record 0: label 2, exact\n" in shown.out
    assert shown.err == ""


def test_it_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    call(*BASIC, "--input-shape", "1,4,4", "--low", "0", "--high", "1", "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["labels"], found["stage"]) == ([2], ["exact"])
    assert found == json.loads(Path("found/attack.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give DIR, RUN.toml or --gradients FILE"),
        (("run", *BASIC), "give DIR, RUN.toml or --gradients FILE"),
        (("run", "--noise-std", "1"), "--noise-std belongs to --gradients FILE"),
        (BASIC[:4], "--gradients needs --out too"),
        (BASIC[:2], "--gradients needs --model too"),
        ((*BASIC, "--input-shape", "4x4"), "input_shape='4x4' must be whole numbers"),
        ((*BASIC, "--input-shape", "1,4,4", "--mean", "a"), "mean='a' must be numbers"),
        (BASIC, "input_shape is not given"),
        (("run", "--sweep", "graph.name=ring"), "belong to RUN.toml"),
        (("run.toml",), "RUN.toml needs --out too"),
        (("run.toml", "--out", "found", "--noise-std", "1"), "--noise-std belongs to --gradients"),
        (("run.toml", "--out", "found", "--json", "--markdown"), "exclude each other"),
        ((*BASIC, "--convention", "dpdl"), "--convention belongs to runs"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call(*arguments)
    assert not Path("found").exists()


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    def means(mse: float, ssim: float) -> Means:
        return Means(mse=mse, psnr=10.0, ssim=ssim)

    rows = [
        AttackRow(
            name=name,
            mse=[0.1],
            psnr=[10.0],
            ssim=[0.5],
            mean=means(0.1, 0.5),
            conventions={"dpdl": means(0.4, 0.6)},
        )
        for name in ("blind guess", "defended")
    ]
    scenario = Scenario(
        scenario="view",
        adversary="eavesdropper",
        round=2,
        model_owner=0,
        victim=0,
        preset="matched",
        rows=rows,
        conclusion="No leak shown.",
        bound=AllowedByProof(rebuilt=1, images=4, most=0.25, exceeded=False, sentence="allowed"),
    )
    found = [
        AttackedCombination(
            swept={"graph.name": "ring"}, folder="00", refused=None, scenarios=[scenario]
        )
    ]
    monkeypatch.setattr("overhear.runs.attack.sweep.attack_sweep", lambda *_, **__: found)


@pytest.mark.usefixtures("swept")
def test_a_run_file_prints_one_row_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    call("run.toml", "--out", "found", "--sweep", "graph.name=ring", "--markdown")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| graph.name | round | scenario | attack | blind guess |")
    assert lines[2] == "| ring | 2 | view | matched | 10.0 dB | 10.0 dB | 1/4, 25% |"


@pytest.mark.usefixtures("swept")
def test_the_paper_s_convention_is_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    call("run.toml", "--out", "found", "--markdown", "--convention", "dpdl")
    assert "0.400 / 10.0 / 0.60" in capsys.readouterr().out
