"""Sums of several batches under one noise: a record moves them once for each that it is in."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from overhear.attacks.checks.checks import engine_checks
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.participation import Event, group
from overhear.training import Agents, Round, account
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.trace import trace
from tests.training.contract import check_rows, setting
from tests.training.states import State, start

RATE, PARTS, ROUNDS, MULTIPLIER, DELTA = 0.2, 4, 20, 2.0, 1e-5


def noised(total: Agents, state: State, round: Round, std: float) -> State:
    return State(round.mix(state.x - 0.1 * (total + round.noise(total, std=std)), kind="model"))


def accumulated(
    state: State,
    round: Round,
    *,
    clip_norm: float = 1.0,
    noise_std: float = 1.0,
    rate: float = RATE,
) -> State:
    """Four batches, each drawn at a quarter of the rate, and noise once."""
    total = 0
    for _ in range(PARTS):
        batch = round.draw(rate / PARTS)
        total = total + round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm)
    return noised(total, state, round, noise_std)


def a_noise_each(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """The same with a share of the noise at each batch, which nobody sees alone."""
    x = state.x
    for _ in range(PARTS):
        batch = round.draw(RATE / PARTS)
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=clip_norm)
        x = x - 0.1 * (sums + round.noise(sums, std=noise_std / math.sqrt(PARTS)))
    return State(round.mix(x, kind="model"))


def whole_rates(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """A false twin: each batch at the whole rate is four times as many records."""
    return accumulated(state, round, clip_norm=clip_norm, noise_std=noise_std, rate=PARTS * RATE)


def one_batch(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """Another: the same batch four times, of which a record moves every part."""
    batch, total = round.draw(RATE / PARTS), 0
    for part in range(PARTS):
        point = (1.0 - 0.1 * part) * state.x
        total = total + round.clipped_sums(point, batch=batch, clip_norm=clip_norm)
    return noised(total, state, round, noise_std)


def shown_beside(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """Another: one part is sent under noise of its own, which is then not that of the sum."""
    first = round.clipped_sums(state.x, batch=round.draw(RATE / PARTS), clip_norm=clip_norm)
    round.broadcast(first + round.noise(first, std=noise_std), kind="part")
    second = round.clipped_sums(state.x, batch=round.draw(RATE / PARTS), clip_norm=clip_norm)
    return noised(first + second, state, round, noise_std)


def clean_part(
    state: State, round: Round, *, clip_norm: float = 1.0, noise_std: float = 1.0
) -> State:
    """Another: one part is sent as it is, which the noise of the sum does not hide."""
    first = round.clipped_sums(state.x, batch=round.draw(RATE / PARTS), clip_norm=clip_norm)
    round.broadcast(first, kind="part")
    second = round.clipped_sums(state.x, batch=round.draw(RATE / PARTS), clip_norm=clip_norm)
    return noised(first + second, state, round, noise_std)


def found(step, **how):
    run = {"graph": "ring:5", "rounds": ROUNDS, "sampling_rate": 0.05, "delta": DELTA}
    names = ["eavesdropper", "neighbour", "final-models"]
    return account(start, step, noise_multiplier=MULTIPLIER, adversaries=names, **run | how)


def by_hand(records: int, rate: float, joint: float = 1.0, adjacency="add-or-remove-one") -> float:
    event = Event(MULTIPLIER / joint, group(records, rate))
    return composed_epsilon({event: ROUNDS}, delta=DELTA, adjacency=adjacency)


@pytest.mark.parametrize("step", [accumulated, a_noise_each])
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_a_record_moves_the_sum_once_for_each_batch_that_it_is_in(step, adjacency):
    expected = by_hand(PARTS, RATE / PARTS, adjacency=adjacency)
    every = found(step, adjacency=adjacency)
    for name in every:
        assert every[name].joint_sensitivity == pytest.approx(1.0)
        assert every[name].epsilon == pytest.approx(expected, rel=1e-9)
        assert every[name].status == "proven"
    assert "4 batches enter what is released as one sum" in every["eavesdropper"].because


def test_the_figure_is_that_of_another_hand():
    """The mixture of Gaussians of dp-accounting, within what rounding up may add."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    weights = binom.pmf(np.arange(PARTS + 1), PARTS, RATE / PARTS)
    one = pld.from_mixture_gaussian_mechanism(
        MULTIPLIER, list(range(PARTS + 1)), weights.tolist(), value_discretization_interval=1e-3
    )
    theirs = one.self_compose(ROUNDS).get_epsilon_for_delta(DELTA)
    assert found(accumulated)["eavesdropper"].epsilon == pytest.approx(theirs, rel=0.01)


def test_several_records_of_one_person_are_in_several_batches():
    of_three = found(accumulated, records_per_person=3)["eavesdropper"]
    (three,) = of_three.group or ()
    assert three.records == 3
    assert three.epsilon == pytest.approx(by_hand(3 * PARTS, RATE / PARTS), rel=1e-9)


def test_false_twins_cost_what_they_do():
    assert found(whole_rates)["eavesdropper"].epsilon == pytest.approx(by_hand(PARTS, RATE))
    again = found(one_batch)["eavesdropper"]
    assert again.joint_sensitivity == pytest.approx(PARTS)
    assert again.epsilon == pytest.approx(by_hand(1, RATE / PARTS, joint=PARTS))
    apart = found(shown_beside)
    assert apart["eavesdropper"].epsilon > by_hand(2, RATE / PARTS)
    assert apart["neighbour"].epsilon == apart["eavesdropper"].epsilon  # of whom some hear the part
    assert found(clean_part)["eavesdropper"].epsilon == math.inf


def test_batches_that_are_not_poisson_have_no_bound_under_one_noise():
    def fixed(state: State, round: Round) -> State:
        total = 0
        for _ in range(2):
            total = total + round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return noised(total, state, round, 1.0)

    drawn = [Drawing(Scheme.FIXED, 40, 4, 40)] * 5
    one = trace(start, fixed, graph=ring(5), rounds=ROUNDS, noise_multiplier=1.0)
    ((_, refused),) = joint_sensitivities(one, ["eavesdropper"], sampling_rate=0.1, drawn=drawn)
    assert refused.largest == math.inf
    assert "Poisson batches alone" in refused.because


@pytest.mark.parametrize("step", [accumulated, a_noise_each])
def test_a_run_does_what_is_traced(step):
    check_rows(Bound(start, step), ring(5))


@pytest.mark.slow
def test_a_run_is_audited():
    bound = Bound(start, accumulated, noise_multiplier=1.0)
    every = engine_checks(setting(ring(5)), bound, rounds=3, randomness=SecretRandomness(9))
    assert [one.name for one in every if not one.passed] == []


def test_local_steps_under_one_noise_are_told_of_their_operation():
    def local(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
        y = state.x
        for _ in range(3):
            y = y - 0.1 * round.clipped_sums(y, batch=round.draw(), clip_norm=clip_norm)
        return noised(y - state.x, state, round, noise_std)

    one = found(local)["eavesdropper"]
    assert one.epsilon == math.inf
    assert "for several local steps under one noise use round.local_update" in one.because
