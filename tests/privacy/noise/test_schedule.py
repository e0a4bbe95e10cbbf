"""Schedules of clip bounds and budgets."""

import math

import numpy as np
import pytest

from overhear.privacy import Statement, composed_epsilon, epsilon, mu_from, noise_multiplier
from overhear.privacy.noise.schedule import Schedule, calibrated_schedule, scheduled_epsilon

ANY = {"rounds": 5, "sampling_rate": 0.05}
STATEMENT = Statement(delta=1e-5)
TARGET = {"epsilon": 2.0, "statement": STATEMENT}


def test_the_clip_norm_falls_and_the_budget_rises_by_their_factors_over_the_run():
    plan = Schedule(rounds=100, sampling_rate=0.1, clip_norm=2.0, clip_decay=8.0, budget_growth=5.0)
    one_round = 1 - 1 / 100  # the last round is one short of the whole course
    assert plan.clip_norms[[0, -1]] == pytest.approx([2.0, 2.0 * 8.0**-one_round])
    assert plan.relative_multipliers[[0, -1]] == pytest.approx([1.0, 5.0**-one_round])
    assert plan.clip_norms[50] == pytest.approx(2.0 / math.sqrt(8.0))
    assert (np.diff(plan.clip_norms) < 0).all()
    assert (np.diff(plan.relative_multipliers) < 0).all()


def test_the_noise_is_the_clip_norm_over_mu():
    plan = Schedule(**ANY, clip_norm=3.0)
    mu = 1.0 / plan.noise_multipliers(4.0)
    assert plan.noise_stds(4.0) == pytest.approx(plan.clip_norms / mu)


@pytest.mark.parametrize(
    ("decay", "growth", "clips", "multipliers"),
    [(4.0, 4.0, 5, 5), (4.0, 1.0, 5, 1), (1.0, 4.0, 1, 5), (1.0, 1.0, 1, 1)],
    ids=["dyn", "dyn-c", "dyn-mu", "const"],
)
def test_a_factor_of_one_keeps_every_round_alike(decay, growth, clips, multipliers):
    plan = Schedule(**ANY, clip_decay=decay, budget_growth=growth)
    assert len(set(plan.clip_norms)) == clips
    assert len(set(plan.relative_multipliers)) == multipliers


def test_the_clip_decay_does_not_change_privacy():
    plans = [Schedule(**ANY, clip_norm=c, clip_decay=d) for c, d in ((1, 1), (5, 4))]
    spent = {scheduled_epsilon(p, 6.0, statement=STATEMENT) for p in plans}
    assert len(spent) == 1
    assert len({calibrated_schedule(p, **TARGET) for p in plans}) == 1


def test_the_loss_is_that_of_the_rounds_written_out():
    plan = Schedule(**ANY, budget_growth=3.0)
    written = [(6.0 * 3.0 ** (-k / 5) / 1.5, 0.05) for k in range(5)]
    found = scheduled_epsilon(plan, 6.0, statement=STATEMENT, joint_sensitivity=1.5)
    assert found == pytest.approx(composed_epsilon(written, delta=1e-5), rel=1e-9)


def test_a_constant_schedule_needs_the_multiplier_of_equal_rounds():
    plan = Schedule(**ANY, budget_growth=1.0)
    equal = noise_multiplier(epsilon=2.0, delta=1e-5, rounds=5, sampling_rate=0.05)
    assert calibrated_schedule(plan, **TARGET) == pytest.approx(equal, rel=1e-4)


def test_full_batches_are_one_gaussian_release():
    plan = Schedule(rounds=30, sampling_rate=1.0)
    mu = [4.0 ** (k / 30) for k in range(30)]  # of each round, over the first one's
    exact = math.hypot(*mu) / mu_from(2.0, 1e-5)
    assert calibrated_schedule(plan, **TARGET) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize("target", [0.3, 3.0], ids=["tight", "loose"])
def test_the_calibrated_multiplier_meets_the_target_and_little_less_does_not(adjacency, target):
    plan = Schedule(rounds=8, sampling_rate=0.1)
    setting = {"statement": Statement(delta=1e-5, adjacency=adjacency)}
    found = calibrated_schedule(plan, epsilon=target, **setting)
    assert scheduled_epsilon(plan, found, **setting) <= target
    assert scheduled_epsilon(plan, 0.995 * found, **setting) > target


def test_noise_grows_in_proportion_to_the_joint_sensitivity():
    plan = Schedule(**ANY)
    one = calibrated_schedule(plan, **TARGET)
    three = calibrated_schedule(plan, **TARGET, joint_sensitivity=math.sqrt(3.0))
    assert three == pytest.approx(math.sqrt(3.0) * one, rel=1e-9)
    spent = scheduled_epsilon(plan, three, statement=STATEMENT, joint_sensitivity=math.sqrt(3.0))
    assert spent <= TARGET["epsilon"]


def test_a_delta_that_sampling_alone_meets_is_refused():
    with pytest.raises(ValueError, match="choose a smaller delta"):
        calibrated_schedule(
            Schedule(rounds=2, sampling_rate=0.01), epsilon=1.0, statement=Statement(delta=0.5)
        )


def test_growth_saves_noise_late_and_costs_it_early():
    const, dyn = Schedule(**ANY, budget_growth=1.0), Schedule(**ANY, budget_growth=4.0)
    equal, first = calibrated_schedule(const, **TARGET), calibrated_schedule(dyn, **TARGET)
    assert first > equal > dyn.noise_multipliers(first)[-1]


def test_nothing_released_costs_nothing():
    assert (
        scheduled_epsilon(Schedule(**ANY), 1.0, statement=STATEMENT, joint_sensitivity=0.0) == 0.0
    )
    never = Schedule(rounds=5, sampling_rate=0.0)
    assert (
        scheduled_epsilon(never, 1.0, statement=STATEMENT)
        == calibrated_schedule(never, **TARGET)
        == 0.0
    )


def test_no_noise_or_an_infinite_sensitivity_costs_everything():
    plan = Schedule(**ANY)
    assert scheduled_epsilon(plan, 0.0, statement=STATEMENT) == math.inf
    assert scheduled_epsilon(plan, 5.0, statement=STATEMENT, joint_sensitivity=math.inf) == math.inf
    with pytest.raises(ValueError, match="joint_sensitivity=inf"):
        calibrated_schedule(plan, **TARGET, joint_sensitivity=math.inf)


def test_one_round_is_one_sampled_gaussian():
    plan = Schedule(rounds=1, sampling_rate=0.2)
    one = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=1, sampling_rate=0.2)
    assert scheduled_epsilon(plan, 2.0, statement=STATEMENT) == pytest.approx(one, rel=1e-9)


@pytest.mark.slow
def test_hundreds_of_different_rounds_are_calibrated():
    plan = Schedule(rounds=400, sampling_rate=0.01)
    found = calibrated_schedule(plan, epsilon=3.0, statement=STATEMENT)
    spent = scheduled_epsilon(plan, found, statement=STATEMENT)
    assert 2.999 < spent <= 3.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"sampling_rate": 1.5}, "sampling_rate=1.5"),
        ({"clip_norm": 0.0}, "clip_norm=0.0"),
        ({"clip_decay": 0.0}, "clip_decay=0.0"),
        ({"budget_growth": math.inf}, "budget_growth=inf"),
        ({"clip_decay": math.nan}, "clip_decay=nan"),
    ],
    ids=["rounds", "rate", "clip", "decay", "growth", "nan"],
)
def test_a_wrong_number_is_named(wrong, named):
    with pytest.raises(ValueError, match=named):
        Schedule(**{**ANY, **wrong})


def test_a_fraction_of_a_round_is_refused():
    with pytest.raises(TypeError, match=r"rounds=2\.5"):
        Schedule(rounds=2.5, sampling_rate=0.1)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_multiplier_or_sensitivity_below_zero_is_refused(value):
    plan = Schedule(**ANY)
    with pytest.raises(ValueError, match="first_multiplier="):
        scheduled_epsilon(plan, value, statement=STATEMENT)
    with pytest.raises(ValueError, match="joint_sensitivity="):
        scheduled_epsilon(plan, 1.0, statement=STATEMENT, joint_sensitivity=value)
