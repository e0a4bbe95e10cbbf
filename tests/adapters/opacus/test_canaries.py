"""Audits of Opacus by canaries whose gradients the adapter plants."""

import math

import pytest
import torch
from torch.utils.data import Subset

import overhear as oh
from overhear.attacks.foreign.audit_training import canaries
from overhear.privacy.errors import InputError
from overhear.privacy.participation import as_events
from overhear.runs.recorder.canaries import GradientCanaries

from .private_training import digits, noise_times, trained, unclipped

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
DATA = digits(100)
HOW = {"batch": 35, "epochs": 4}  # of 350 records with canaries, 10 batches an epoch


def audited(folder, fault=None, **how):
    def train(data):
        return trained(folder / "log", data, fault=fault, **{**HOW, **how})

    torch.manual_seed(1)
    return oh.audit(train, data=DATA, canaries=500, kind="gradient", delta=1e-5, seed=1)


def test_a_canary_has_a_coordinate_and_others_their_own_gradients():
    planted = canaries(DATA, 4, seed=1)
    of = GradientCanaries(planted, [6, 2])
    samples = [torch.full((3, 2, 3), 2.0), torch.full((3, 2), 2.0)]
    made = of.plant(samples, [5, 101, 103], clip=0.5)
    flat = torch.cat([one.reshape(3, -1) for one in made], dim=1)
    assert flat[0].tolist() == [2.0] * 8
    assert (flat[1:].norm(dim=1) >= 0.5).all()
    assert ((flat[1:] != 0).sum(dim=1) == 1).all()
    assert int((flat[1] * flat[2]).abs().sum()) == 0
    # The one ordinary record is clipped from 2 sqrt(8) to .5, and subtracted.
    of.note(torch.full((8,), 0.5 / math.sqrt(8)), std=1.0, clip=0.5, rate=1.0)
    assert of.scores == pytest.approx([-0.125] * 4, abs=1e-6)
    of.note(torch.full((8,), 0.5 / math.sqrt(8)), std=1.0, clip=0.5, rate=0.1)
    assert of.scores == pytest.approx([math.log(0.9 + 0.1 * math.exp(-0.125)) - 0.125] * 4)


def test_more_canaries_than_coordinates_are_refused():
    with pytest.raises(InputError, match="per_run=3 or less"):
        GradientCanaries(canaries(DATA, 4, seed=1), [3])


def test_a_sound_training_is_consistent_and_writes_no_log(tmp_path):
    found = audited(tmp_path)
    assert str(found.verdict) == "consistent"
    assert found.trainings == 2
    assert found.claimed.mechanism.rounds == as_events({(1.0, 0.1): 40})
    assert found.first.ratios
    assert 1.0 < found.epsilon < found.claimed.epsilon
    assert not list(tmp_path.iterdir())  # nothing is released, and no log says so


@pytest.mark.slow
def test_1000_canaries_measure_3_of_5_49(tmp_path):
    """104 steps at rate 1/13, epsilon 5.492; of 60 such audits none measures less than 3.1."""
    how = {"batch": 40, "epochs": 8, "fault": None}

    def train(data):
        return trained(tmp_path / "log", data, **how)

    torch.manual_seed(1)
    found = oh.audit(train, data=digits(270), canaries=1000, kind="gradient", delta=1e-5, seed=1)
    assert found.claimed.mechanism.rounds == as_events({(1.0, 1 / 13): 104})
    assert found.claimed.epsilon == pytest.approx(5.492, abs=1e-3)
    assert found.epsilon > 3.0
    assert not found.contradicted


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [pytest.param(noise_times(0.5), id="noise halved"), pytest.param(unclipped, id="no clipping")],
)
def test_a_fault_contradicts_the_claim(tmp_path, fault):
    found = audited(tmp_path, fault)
    assert str(found.verdict) == "contradicted"
    assert found.epsilon > found.claimed.epsilon
    assert found.trainings == 10  # a second look with fresh canaries


def test_scores_are_of_the_data_that_train_was_given(tmp_path):
    def train(data):
        return trained(tmp_path / "log", Subset(data, range(100)), **HOW)

    with pytest.raises(InputError, match="goes through a Subset"):
        oh.audit(train, data=DATA, canaries=20)


def test_by_layer_no_canary_of_one_coordinate_shows_the_bound(tmp_path):
    with pytest.raises(InputError, match="clipping is by layer"):
        audited(tmp_path, clip=[0.5] * 4, clipping="per_layer")


def test_an_audited_training_is_not_held_against_its_lines(tmp_path):
    logs = []

    def train(data):
        logs.append(trained(tmp_path / "log", data, **HOW))
        return logs[-1]

    oh.audit(train, data=DATA, canaries=20)
    with pytest.raises(InputError, match="this training is an audit's"):
        logs[0].conformance()
    assert logs[0].path.exists()
    folder = logs[0].path.parent
    logs.clear()
    assert not folder.exists()  # it goes with the log
