"""The command `overhear attack` on runs: its options, output and refusals."""

from pathlib import Path

import pytest

from overhear.commands.cli import main
from overhear.runs.attack.attack import AttackedCombination
from overhear.runs.audit.evidence_schema import (
    AllowedByProof,
    AttackRow,
    Means,
    ScaledMeans,
    Scenario,
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").touch()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("attack", "run.toml"), "type `overhear attack-sweep run.toml --out DIR`"),
        (("attack", "gradients.safetensors"), "overhear invert gradients.safetensors"),
        (
            ("attack-sweep", "run", "--out", "found"),
            "of the folder of a run: `overhear attack run`",
        ),
        (("attack-sweep", "run.toml", "--out", "x", "--noise-std", "1"), "No such option: --noise"),
        (("attack-sweep", "run.toml", "--out", "x", "--format", "xml"), "is not one of"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, words, capsys):
    Path("gradients.safetensors").touch()
    assert main([*arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("found").exists()


@pytest.fixture
def swept(monkeypatch):
    def means(mse: float, ssim: float) -> Means:
        return Means(mse=mse, psnr=10.0, ssim=ssim)

    rows = [
        AttackRow(
            name=name,
            mse=[0.1],
            psnr=[10.0],
            ssim=[0.5],
            mean=means(0.1, 0.5),
            conventions={
                "dpdl": ScaledMeans(mse=0.4, psnr=10.0, ssim=0.6, interval={"mse": (0.3, 0.5)})
            },
        )
        for name in ("blind guess", "defended")
    ]
    scenario = Scenario(
        scenario="view", adversary="eavesdropper", round=2, model_owner=0, victim=0,
        preset="matched", rows=rows, conclusion="No leak shown.",
        bound=AllowedByProof(rebuilt=1, images=4, most=0.25, exceeded=False, sentence="allowed"),
    )  # fmt: skip
    found = [
        AttackedCombination(
            swept={"graph.name": "ring"}, folder="00", refused=None, scenarios=[scenario]
        )
    ]
    monkeypatch.setattr("overhear.runs.attack.attack.attack_sweep", lambda *_, **__: found)


@pytest.mark.usefixtures("swept")
def test_a_run_file_prints_one_row_a_scenario(capsys):
    main(["attack-sweep", "run.toml", "--out", "found", "--sweep", "graph.name=ring", "--markdown"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| graph.name | round | scenario | attack | blind guess |")
    assert lines[2] == "| ring | 2 | view | matched | 10.0 dB | 10.0 dB | 1/4, 25% |"


@pytest.mark.usefixtures("swept")
def test_the_paper_s_convention_is_printed_on_request(capsys):
    main(["attack-sweep", "run.toml", "--out", "found", "--markdown", "--convention", "dpdl"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| graph.name | round | scenario | MSE | PSNR | SSIM | labels |")
    assert lines[2].startswith("| ring | 2 | blind guess | 0.400 (0.300 to 0.500) | 10.0 | 0.60 |")
    assert lines[3].startswith("| ring | 2 | defended, view | 0.400")
