"""Public records are planted, attacked, and scored in four rows."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.names import Scenario
from overhear.attacks.inversion.inversion import Reconstruction
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.scoring import evaluation
from overhear.attacks.scoring.conclusion import conclusion
from overhear.attacks.scoring.evaluation import attack_images
from overhear.training.data.load import Dataset
from tests.attacks.interception.replays import trial


def _data():
    pixels = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    return Dataset(
        name="toy", inputs=pixels, targets=torch.arange(12) % 3, test_inputs=pixels,
        test_targets=torch.arange(12) % 3, classes=3, mean=(0.0,), std=(1.0,), image=True,
    )  # fmt: skip


def _attack(one, **changes):
    data, preset = _data(), replace(PRESETS["matched"], starts=1, adam_steps=100)
    return attack_images(
        one, data, scenario=Scenario.VIEW, preset=preset,
        images=data.test_inputs[:2], labels=data.test_targets[:2],
        prior_image=data.test_inputs[2:].mean(dim=0), generator=torch.Generator().manual_seed(0),
        **changes,
    )  # fmt: skip


def test_records_planted_together_are_paired_with_their_reconstructions():
    one = trial("dp-dpsgd", noise_std=5.0)
    blind, none, clipped, defended = _attack(one, batch=2)
    assert min(none.scores.psnr) > 40
    assert min(clipped.scores.psnr) > 40
    assert none.labels == (0, 1)
    assert defended.scores.mean_mse >= 0.999 * blind.scores.mean_mse
    assert none.noise_std == 0.0
    assert defended.noise_std == pytest.approx(5.0)
    assert defended.spectral.startswith("Not detectable spectrally")
    assert none.spectral.startswith("Detectable spectrally")


def test_a_victim_that_is_not_singled_out_keeps_the_blind_guess_and_says_so():
    one = replace(trial("cdp-dsgd", noise_std=5.0), clip_norm=None)  # others may be of any size
    blind, none, _, defended = _attack(one)
    assert none.scores.mse == blind.scores.mse
    assert set(none.stages) == {"not identified"}
    assert math.isnan(none.noise_std)
    assert none.unused == ("round 3, batch 0, at agent 1's model",)
    rows = [blind, none, none, defended]
    assert "does not single out" in conclusion(rows)


def test_the_reason_of_a_stage_that_gave_up_is_in_the_row(monkeypatch):
    def gives_up(*_, **__):
        return Reconstruction(
            inputs=torch.zeros(1, 1, 4, 4), labels=torch.zeros(1).long(), objective=0.0,
            iterations=0, stage="prior", supported=(False,), reason="units are saturated",
        )  # fmt: skip

    monkeypatch.setattr(evaluation, "reconstruct", gives_up)
    blind, none, *_ = _attack(trial("dp-dpsgd", noise_std=5.0))
    assert (blind.unsolved, none.unsolved) == ("", "units are saturated")


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="batch=0 must be at least 1"):
        _attack(trial("dp-dpsgd"), batch=0)
