"""Two hops away: what rounds tell together of gradients that change slowly."""

from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.estimate import Estimate, _walk, estimate
from overhear.attacks.interception.replay import Replay, replay
from overhear.training.graphs.topologies import grid
from tests.attacks.interception.replays import planted, shown, trial


def played(*, rate: float, together: int = 5, adversary: str = "neighbour:0") -> Replay:
    """A path of five in which agent 2 is two hops from agent 0; batches are whole."""
    one = trial("dsgd", graph=grid(5, columns=5), round=1, together=together)
    setting = replace(one.setting, sampling_rate=1.0)
    one = replace(
        one,
        victim=2,
        model_owner=1,
        setting=setting,
        learning_rate=rate,
        batch_size=9.0,
        adversary=adversary,
    )
    return replay(one, planted())


def left(found: Estimate, of: Replay) -> float:
    """Relative error of the estimate."""
    seen = found.observation
    assert seen is not None
    true = shown(of.trial, seen, planted())
    return float((seen.gradient - true).norm() / true.norm())


@pytest.mark.parametrize(("rate", "error"), [(1e-5, 1e-3), (1e-3, 0.05), (0.02, 0.5)])
def test_the_slower_gradients_change_the_nearer_is_the_estimate(rate, error):
    of = played(rate=rate)
    found = estimate(of)
    assert found.approximate
    assert left(found, of) < error
    assert found.identified == ("mean over 5 rounds, approximate, at agent 2's model",)
    assert len(found.missing) == 5  # no round tells its own


def test_an_estimate_that_rests_on_a_prior_is_never_without_an_error():
    seen = estimate(played(rate=1e-3)).observation
    assert seen is not None
    assert seen.is_noisy


def test_without_the_prior_nothing_is_told():
    assert estimate(played(rate=1e-3), bounded=False).observation is None


def test_one_round_has_no_drift():
    assert estimate(played(rate=1e-3, together=1)).observation is None


def test_who_has_no_gradients_of_its_own_has_no_measure_of_others():
    found = estimate(played(rate=1e-3, adversary="final-models"))
    assert not found.approximate


def test_a_neighbour_s_rounds_are_told_exactly_and_need_no_prior():
    found = estimate(played(rate=1e-3, adversary="neighbour:1"))
    assert not found.approximate
    assert found.observation is not None


def test_a_walk_starts_in_the_middle_and_grows_by_a_step_a_round():
    spread = torch.from_numpy(_walk(5)).square().sum(dim=1)
    assert spread.tolist() == [2.0, 1.0, 0.0, 1.0, 2.0]


def test_what_own_gradients_would_have_left_is_of_the_size_of_what_others_left():
    of = played(rate=0.02)
    seen = estimate(of).observation
    assert seen is not None
    assert seen.drift is not None
    each = replace(
        seen,
        points=seen.drift.points[:, None],
        gradient=seen.gradient.expand(5, -1),
        covariance=torch.zeros(5, 5),
        drift=None,
    )
    of_victim = torch.tensor(seen.drift.shares).double() @ shown(of.trial, each, planted())
    left = float((seen.gradient[0] - of_victim).norm())
    samples = seen.drift.others.norm(dim=1)
    assert abs(sum(seen.drift.shares) - 1) < 1e-9
    assert left / 3 < float(samples.median()) < 3 * left
    assert seen.drift.noise_std == 0
