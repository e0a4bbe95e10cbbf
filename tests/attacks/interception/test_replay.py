import math
from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.estimate import intercept, join
from overhear.attacks.interception.names import Scenario, scenarios_of
from overhear.attacks.interception.replay import Protection, replay, trace_of
from overhear.attacks.problem.observation import Observation
from overhear.training.algorithms import Form, dpdl
from overhear.training.graphs.topologies import ring, star
from tests.attacks.interception.replays import planted, shown, trial


def test_a_replay_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="neighbour"):
        replace(trial("dpdl", graph=star(5)), model_owner=3)
    with pytest.raises(ValueError, match="contains the victim 1"):
        trial("dpdl", adversary="neighbour:1")
    with pytest.raises(ValueError, match="must lie within the 5 rounds"):
        trial("dpdl", round=5, together=2)


def test_a_replay_holds_the_attacked_rounds_and_the_one_after():
    played = replay(trial("dp-dpsgd", round=2, together=2), planted())
    assert list(played.rounds) == [0, 1, 2, 3, 4]
    assert played.attacked == [2, 3]


def test_all_others_are_everybody_but_the_victim():
    assert trial("dpdl", adversary="all-others").parsed_adversary().agents == {0, 2, 3, 4}


# What is intercepted in each scenario is the gradient that was sent, with its declared noise.

CASES = [("dpdl", scenario) for scenario in scenarios_of("dpdl")] + [
    ("dp-cga", Scenario.CROSS_GRADIENT),
    ("dp-dpsgd", Scenario.VIEW),
]


def held(name: str, scenario: Scenario, **changes) -> Observation:
    seen = intercept(replay(trial(name, **changes), planted()), scenario=scenario).observation
    assert seen is not None
    return seen


@pytest.mark.some_quick(7)
@pytest.mark.parametrize(("name", "scenario"), CASES)
@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("round", [1, 3])
def test_without_noise_the_planted_gradient_comes_back(name, scenario, records, round):
    t, batch = trial(name, round=round), planted(records)
    seen = intercept(replay(t, batch), scenario=scenario).observation
    assert seen is not None
    torch.testing.assert_close(seen.gradient, shown(t, seen, batch), rtol=1e-8, atol=1e-10)
    assert not seen.is_noisy


@pytest.mark.parametrize("form", list(Form))
def test_the_momentum_on_an_irregular_graph_gives_the_self_gradient(form):
    t = trial("dpdl", graph=star(5), form=form)
    seen = intercept(replay(t, planted()), scenario=Scenario.MOMENTUM).observation
    assert seen is not None
    torch.testing.assert_close(seen.gradient, shown(t, seen, planted()), rtol=1e-8, atol=1e-10)


@pytest.mark.some_quick(2)
@pytest.mark.parametrize(("name", "scenario"), CASES)
def test_the_error_has_the_declared_deviation(name, scenario):
    t = trial(name, noise_std=0.3, round=2)
    traces, errors = trace_of(t), []
    for _ in range(6):
        seen = intercept(replay(t, planted(), traces=traces), scenario=scenario).observation
        assert seen is not None
        errors.append((seen.gradient - shown(t, seen, planted())).sum(0) / len(seen.gradient))
    deviation = math.sqrt(float(seen.covariance.sum())) / len(seen.gradient)
    z = torch.cat(errors) / deviation
    # n = 1938 standard normals: variance within 5 standard errors, false alarm 6e-7
    assert abs(float(z.var()) - 1) < 5 * math.sqrt(2 / z.numel())


def test_published_momentum_is_less_noisy_than_any_message():
    published = held("dpdl", Scenario.MOMENTUM, form=Form.PUBLISHED, noise_std=0.3)
    repaired = held("dpdl", Scenario.MOMENTUM, noise_std=0.3)
    assert published.noise_std < 0.9 * repaired.noise_std
    assert repaired.noise_std == pytest.approx(0.3)


def test_the_view_joins_cross_gradients_and_momentum():
    seen = held("dpdl", Scenario.VIEW, noise_std=0.3)
    assert len(seen.gradient) == 3
    assert seen.noise_std == pytest.approx(0.3 / math.sqrt(3))  # the joint sensitivity of a ring


def test_the_published_view_gains_what_the_weights_of_the_calibration_give():
    """Ring of 10, alpha 1: two cross-gradients, and the own one with less noise by a factor."""
    strong = {"graph": ring(10), "settings": dpdl.Settings(alpha=1.0), "form": Form.PUBLISHED}
    seen = held("dpdl", Scenario.VIEW, noise_std=0.3, **strong)
    kappa = 0.3 / math.sqrt(float(seen.covariance[2, 2]))
    assert 0.3 / seen.noise_std == pytest.approx(math.sqrt(2 + kappa**2))
    # Weights 1 / (1 + e^cos) lie between .269 and .731, the bound of the accountant takes .758.
    assert 1 + 0.268 * 10 / math.sqrt(3) < kappa < 1 + 0.758 * 10 / math.sqrt(3)


def test_a_listener_that_misses_the_momenta_of_others_has_cross_gradients_alone():
    seen = held("dpdl", Scenario.VIEW, noise_std=0.3, adversary="neighbour:2")
    assert len(seen.gradient) == 1


def test_the_cross_gradient_is_the_one_on_the_named_model():
    found = intercept(replay(trial("dpdl"), planted()), scenario=Scenario.CROSS_GRADIENT)
    assert found.owners == (0,)


def test_joined_observations_without_noise_drop_the_noisy_ones():
    one = Observation.single(
        gradient=torch.ones(3), model=torch.zeros(3), noise_std=1.0, clip_norm=None, records=1
    )
    clean = replace(one, covariance=torch.zeros(1, 1))
    assert len(join([one, clean, one]).gradient) == 1
    assert not join([one, clean]).is_noisy


def test_observations_of_different_clips_are_not_joined():
    one = Observation.single(
        gradient=torch.ones(3), model=torch.zeros(3), noise_std=1.0, clip_norm=None, records=1
    )
    with pytest.raises(ValueError, match="different clips"):
        join([one, replace(one, clip_norm=1.0)])


def test_a_scenario_of_another_algorithm_is_refused():
    with pytest.raises(ValueError, match="'momentum' does not exist for 'dp-dpsgd'"):
        intercept(replay(trial("dp-dpsgd"), planted()), scenario=Scenario.MOMENTUM)


def test_switching_the_defence_off_leaves_plain_gradients():
    t = trial("dpdl", noise_std=0.3).under(Protection.NONE)
    seen = intercept(replay(t, planted()), scenario=Scenario.VIEW).observation
    assert seen is not None
    assert seen.clip_norm is None
    torch.testing.assert_close(seen.gradient, shown(t, seen, planted()), rtol=1e-8, atol=1e-10)
