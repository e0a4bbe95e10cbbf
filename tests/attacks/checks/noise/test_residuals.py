"""What messages hold beside their gradients is the declared noise, row by row and in pairs.

Sound runs have fixed roots and pass at a total false-alarm rate of 1e-6 each; n is 243 coordinates
a row, 240 and 3 in two blocks.
"""

import math

import numpy as np
import pytest
import torch

from overhear.attacks.checks.noise_residuals import residual_check
from overhear.privacy.errors import UndeclaredOperation
from overhear.training.algorithms import decor, whisper
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.graphs.topologies import star
from overhear.training.step.values import Edges
from overhear.training.tracing import cancellation
from tests.attacks.checks.watched import PRIVATE, a_run, sound_run, with_bug


@pytest.mark.some_quick(6)
@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_a_sound_run_passes(name, form):
    found = residual_check(sound_run(name, form=form))
    assert found.passed, found.words
    assert found.tests > 30


@pytest.mark.parametrize("name", ["dpdl", "whisper", "dpmixsgd", "dp-netfleet"])
def test_a_sound_run_in_single_precision_passes(name):
    found = residual_check(a_run(name, dtype=torch.float32))
    assert found.passed, found.words


def test_a_star_and_a_partly_shared_seed_pass():
    assert residual_check(a_run("dpdl", graph=star(4))).passed
    assert residual_check(a_run("whisper", settings=whisper.Settings(correlation=0.5))).passed
    assert residual_check(a_run("decor", settings=decor.Settings(correlation=9.0))).passed


def test_a_run_without_noise_is_compared_exactly():
    found = residual_check(a_run("dpdl", noise_std=0.0))
    assert found.passed, found.words
    assert found.words.startswith("0 rows with declared noise")


@pytest.mark.parametrize("name", ["dpdl", "dp-dpsgd", "whisper", "cdp-dsgd", "dpmixsgd", "dyn-d2p"])
def test_halved_noise_is_found(name):
    assert not with_bug("noise halved", residual_check, name).passed


@pytest.mark.parametrize("name", ["dpdl", "dp-dpsgd", "decor", "dp-netfleet"])
def test_halved_noise_on_one_release_is_found(name):
    assert not with_bug("noise halved on one release", residual_check, name).passed


def test_the_link_with_less_noise_is_named():
    found = with_bug("one link without noise", residual_check)
    assert not found.passed
    # The first link on a ring of five: agent 0 replies to agent 1.
    assert "the noise of message cross-gradient of agent 0 to 1" in found.words


@pytest.mark.parametrize("name", ["dpdl", "dp-dpsgd", "whisper", "dpmixsgd"])
def test_a_seed_used_for_two_releases_is_found(name):
    found = with_bug("seed reused for two releases", residual_check, name)
    assert not found.passed
    assert "do not go together as declared" in found.words or "variance" in found.words


@pytest.mark.parametrize("name", ["dp-netfleet", "dpmixsgd", "dp-sgda"])
def test_a_seed_used_for_two_calls_is_found_across_blocks_too(name):
    """The blocks of a min-max task have 240 and 3 coordinates; the first three are alike."""
    assert not with_bug("seed reused for two calls", residual_check, name).passed


@pytest.mark.parametrize("name", ["dpdl", "muffliato", "whisper", "cdp-dsgd", "dp-sgda"])
def test_a_seed_used_for_two_rounds_is_found(name):
    found = with_bug("seed reused for two rounds", residual_check, name)
    assert not found.passed
    if name == "dpdl":
        assert "in round 1 and" in found.words
        assert "in round 2 do not go together" in found.words


def test_a_seed_used_again_at_another_link_two_rounds_later_is_found(monkeypatch):
    """No row meets itself: edge 1 of round 3 has the noise of edge 5 of round 1."""
    sound, kept = TensorRound.noise, dict[int, torch.Tensor]()

    def noise(self, like, **how):
        rows = sound(self, like, **how).rows
        kept[self.index] = rows.clone()
        if self.index == 3:
            rows[1] = kept[1][5]
        return Edges(rows)

    monkeypatch.setattr(TensorRound, "noise", noise)
    found = residual_check(a_run("dpdl"))
    assert not found.passed
    assert "in round 1 and" in found.words
    assert "in round 3 do not go together" in found.words


def test_noise_that_is_correlated_although_its_variance_is_right_is_found(monkeypatch):
    sound = TensorRound.noise

    def noise(self, like, **how):
        rows = sound(self, like, **how).rows
        rows[1] = 0.6 * rows[0] + 0.8 * rows[1]
        return type(like)(rows)

    monkeypatch.setattr(TensorRound, "noise", noise)
    found = residual_check(a_run("dp-dpsgd"))
    assert not found.passed
    assert "over all rounds do not go together" in found.words


def test_a_combination_that_hides_too_little_is_found_in_correlated_noise(monkeypatch):
    """The least noisy combination of all agents is halved; every row alone looks all right."""
    run = sound_run("decor", settings=decor.Settings(correlation=30.0))
    residual = next(of for of in run.residuals[1] if of.kind == "message model")
    covariance = (residual.noise @ residual.noise.T).toarray()
    values, vectors = np.linalg.eigh(covariance)
    assert values[0] < 0.02 * covariance.diagonal().min()
    least = torch.from_numpy(vectors[:, 0])
    sound = TensorRound.noise

    def noise(self, like, **how):
        rows = sound(self, like, **how).rows
        return type(like)(rows - 0.5 * torch.outer(least, least @ rows))

    monkeypatch.setattr(TensorRound, "noise", noise)
    found = residual_check(a_run("decor", settings=decor.Settings(correlation=30.0)))
    assert not found.passed
    assert "combination" in found.words


def test_a_row_without_declared_noise_that_holds_some_is_found(monkeypatch):
    sound = TensorRound.broadcast

    def broadcast(self, value, *, kind):
        return sound(self, value * (1.0 + 1e-9), kind=kind)

    monkeypatch.setattr(TensorRound, "broadcast", broadcast)
    found = residual_check(a_run("dp-dpsgd"))
    assert not found.passed
    assert "is declared without noise but is off" in found.words


def test_noise_below_the_grid_of_floats_fails(monkeypatch):
    with pytest.raises(UndeclaredOperation, match="in whose float32 rounding it is lost"):
        a_run("dp-dpsgd", dtype=torch.float32, noise_std=1e-7)
    monkeypatch.setattr(cancellation.Columns, "check_absorbed", lambda *_: None)
    found = residual_check(a_run("dp-dpsgd", dtype=torch.float32, noise_std=1e-7))
    assert not found.passed
    assert "rounding hides it" in found.words


@pytest.mark.slow
def test_p_is_not_too_small_by_chance():
    """30 runs: p, corrected for its tests, is below .1 in at most 9 (false alarm below 1e-3)."""
    found = [residual_check(a_run("dp-dpsgd", rounds=2, root=100 + i)).p for i in range(30)]
    assert sum(p < 0.1 for p in found) <= 9
    assert min(found) > 1e-6
    assert math.isfinite(sum(found))
