"""Public records are planted, attacked, and scored in four rows."""

import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.names import Scenario
from overhear.attacks.interception.replay import Protection, ReplayedRun, trace_of
from overhear.attacks.inversion.inversion import Reconstruction
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.scoring import evaluation
from overhear.attacks.scoring.conclusion import conclusion
from overhear.attacks.scoring.evaluation import attack_images
from overhear.attacks.scoring.reconstruction_bound import proven_mu
from overhear.privacy.errors import UnsupportedView
from overhear.training.algorithms import Form
from overhear.training.data.load import Dataset
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import star
from tests.attacks.interception.replays import CLIP, trial


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


# What is proven of the attacked rounds, for one planted record.


def _mu(one: ReplayedRun) -> float:
    return proven_mu(one, trace_of(one))


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
def test_dpdl_shows_a_record_in_three_gradients_on_a_ring(multiplier):
    one = trial("dpdl", noise_std=multiplier * CLIP)
    assert _mu(one) == pytest.approx(math.sqrt(3) / multiplier)


def test_dpdl_shows_a_record_in_a_gradient_for_each_neighbour_of_a_star():
    leaf = trial("dpdl", noise_std=CLIP, graph=star(5))
    assert _mu(leaf) == pytest.approx(math.sqrt(2))
    assert _mu(replace(leaf, victim=0, model_owner=1)) == pytest.approx(math.sqrt(5))


def test_dp_dpsgd_shows_a_record_in_one_gradient():
    assert _mu(trial("dp-dpsgd", noise_std=CLIP)) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["dpdl", "dp-dpsgd"])
def test_rounds_with_the_same_record_add_their_squares(name):
    alone = _mu(trial(name, noise_std=CLIP))
    assert _mu(trial(name, noise_std=CLIP, together=2)) == pytest.approx(math.sqrt(2) * alone)
    assert _mu(trial(name, noise_std=CLIP, together=3)) == pytest.approx(math.sqrt(3) * alone)


def test_a_record_that_is_planted_is_not_amplified_by_sampling():
    one = trial("dp-dpsgd", noise_std=CLIP)
    setting = replace(one.setting, sampling_rate=0.01)
    assert _mu(replace(one, setting=setting)) == _mu(one)


@pytest.mark.parametrize("adversary", ["eavesdropper", "final-models", "neighbour:0", "all-others"])
def test_everybody_who_sees_the_victim_s_messages_is_bounded_alike(adversary):
    one = trial("dpdl", noise_std=CLIP, adversary=adversary)
    assert _mu(one) == pytest.approx(math.sqrt(3))


def test_all_others_are_the_coalition_of_all_but_the_victim():
    one = trial("dpdl", noise_std=CLIP, adversary="all-others")
    named = trial("dpdl", noise_std=CLIP, adversary="coalition:0,2,3,4")
    assert _mu(one) == _mu(named)


def test_nothing_is_proven_of_dpdl_as_published():
    assert _mu(trial("dpdl", noise_std=CLIP, form=Form.PUBLISHED)) == math.inf


def test_a_figure_of_one_message_is_no_proof():
    one = trial("dpdl", noise_std=CLIP, adversary="single-message")
    ((_, found),) = joint_sensitivities(
        trace_of(one), ["single-message"], sampling_rate=1.0, victim=1
    )
    assert found.largest < math.inf
    assert _mu(one) == math.inf


@pytest.mark.parametrize("protection", [Protection.NONE, Protection.CLIPPING])
def test_nothing_is_proven_without_noise(protection):
    assert _mu(trial("dpdl", noise_std=CLIP).under(protection)) == math.inf


def test_a_view_that_cannot_be_closed_proves_nothing(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise UnsupportedView("no closed view")

    monkeypatch.setattr("overhear.attacks.scoring.reconstruction_bound.joint_sensitivities", refuse)
    assert _mu(trial("dpdl", noise_std=CLIP)) == math.inf
