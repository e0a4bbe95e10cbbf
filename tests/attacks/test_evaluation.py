"""What the four rows of an attack say."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.evaluation import BLIND, Row, attack_images, conclusion
from overhear.attacks.metrics import Scores
from overhear.attacks.presets import PRESETS
from overhear.attacks.scenarios import Scenario
from overhear.attacks.trial import Protection
from overhear.training.data import Dataset
from tests.attacks.replays import trial


def test_an_attack_that_fails_undefended_says_nothing_about_the_defence():
    def row(name, mse):
        scores = Scores(mse=(mse,), psnr=(1.0,), ssim=(0.0,), order=(0,))
        return Row(name=name, scores=scores, images=torch.zeros(1, 1, 2, 2), stages=("",))

    def rows(undefended, defended):
        return [
            row(BLIND, 0.1),
            row(Protection.NONE, undefended),
            row(Protection.CLIPPING, undefended),
            row(Protection.DEFENDED, defended),
        ]

    assert "says nothing about the defence" in conclusion(rows(0.2, 0.2))
    assert conclusion(rows(0.001, 0.1)).startswith("No leak shown")
    assert conclusion(rows(0.001, 0.05)).startswith("A leak is shown")


def test_a_gain_within_the_spread_of_the_images_is_no_leak_shown():
    def row(name, mse):
        n = len(mse)
        scores = Scores(mse=mse, psnr=(1.0,) * n, ssim=(0.0,) * n, order=tuple(range(n)))
        return Row(name=name, scores=scores, images=torch.zeros(n, 1, 2, 2), stages=("",) * n)

    def say(defended):
        blind, clean = (0.1, 0.1, 0.1, 0.1), (0.001, 0.001, 0.001, 0.001)
        rows = [row(BLIND, blind), row(Protection.NONE, clean), row(Protection.CLIPPING, clean)]
        return conclusion([*rows, row(Protection.DEFENDED, defended)])

    assert "beyond chance" in say((0.05, 0.13, 0.12, 0.09))
    assert say((0.05, 0.06, 0.05, 0.04)).startswith("A leak is shown")


def _data():
    pixels = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    return Dataset(
        name="toy", inputs=pixels, targets=torch.arange(12) % 3, test_inputs=pixels,
        test_targets=torch.arange(12) % 3, classes=3, mean=(0.0,), std=(1.0,), image=True,
    )  # fmt: skip


def _attack(one, **changes):
    data = _data()
    return attack_images(
        one, data, scenario=Scenario.VIEW, preset=replace(PRESETS["matched"], starts=1),
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
    blind, none, _, defended = _attack(trial("cdp-dsgd", noise_std=5.0))
    assert none.scores.mse == blind.scores.mse
    assert set(none.stages) == {"not identified"}
    assert math.isnan(none.noise_std)
    rows = [blind, none, none, defended]
    assert "does not single out" in conclusion(rows)


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="batch=0 must be at least 1"):
        _attack(trial("dp-dpsgd"), batch=0)
