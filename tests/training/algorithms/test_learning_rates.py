"""Learning rates that change: the schedules, the step of every round, and what rounds cost."""

import warnings
from typing import NamedTuple

import pytest
import torch

from overhear.privacy import Statement
from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, poisson
from overhear.training.accounts.account import account
from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.algorithms.learning_rates import RateSchedule, rates_of, read_rates
from overhear.training.graphs.topologies import ring
from overhear.training.tracing.equivalent_rounds import is_equivalent
from overhear.training.tracing.trace import trace
from tests.training import contract

RATES = (0.3, 0.1, 0.2, 0.05, 0.4)
TWO_RATES = {"dpmixsgd", "dm-hsgd", "sgda", "dp-sgda"}
ONE_RATE = sorted(ALGORITHMS.keys() - TWO_RATES)
BY_ALL_RATES = {"mafalda", "dp-ftrl", "joint-dsgd", "decor-over-time"}  # whose noise is made so


def bound(name: str, learning_rate):
    known, graph = ALGORITHMS[name], ring(5)
    return bind(
        known, known.settings(), learning_rate=learning_rate,
        clip_norm=contract.CLIP if known.private else None,
        noise_std=contract.NOISE if known.private else 0.0, batch_size=4.5, graph=graph,
        rounds=len(RATES), records=9,
    )  # fmt: skip


def by_torch(make, rounds: int, start: float) -> list[float]:
    """The rates that a scheduler of torch gives to so many steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=start)
    scheduler, found = make(optimizer), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that nothing is optimised here
        for _ in range(rounds):
            found.append(optimizer.param_groups[0]["lr"])
            scheduler.step()
    return found


SCHEDULERS = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("table", "make"),
    [
        (
            {"schedule": "step", "factor": 0.5, "every": 3},
            lambda o: SCHEDULERS.StepLR(o, step_size=3, gamma=0.5),
        ),
        (
            {"schedule": "cosine", "end": 0.02},
            lambda o: SCHEDULERS.CosineAnnealingLR(o, T_max=10, eta_min=0.02),
        ),
        ({"schedule": "cosine"}, lambda o: SCHEDULERS.CosineAnnealingLR(o, T_max=10)),
        (
            {"schedule": "linear", "end": 0.1},
            lambda o: SCHEDULERS.LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=10),
        ),
        ({"schedule": "inverse-sqrt"}, lambda o: SCHEDULERS.LambdaLR(o, lambda t: (t + 1) ** -0.5)),
    ],
    ids=["step", "cosine to .02", "cosine", "linear", "inverse-sqrt"],
)
def test_schedules_are_those_of_torch(table, make):
    rates = read_rates({"start": 0.4, **table}).rates(10)
    assert rates == pytest.approx(by_torch(make, 10, 0.4), rel=1e-12)


def test_the_rate_rises_to_its_start_and_the_schedule_counts_from_there():
    plain = read_rates({"schedule": "cosine", "start": 0.4}).rates(6)
    risen = read_rates({"schedule": "cosine", "start": 0.4, "warmup": 3}).rates(9)
    assert risen[:3] == pytest.approx((0.1, 0.2, 0.3), rel=1e-12)
    assert risen[3:] == plain
    roots = read_rates({"schedule": "inverse-sqrt", "start": 0.4, "warmup": 4}).rates(14)
    assert roots[4:] == pytest.approx([0.4 * (4 / t) ** 0.5 for t in range(4, 14)], rel=1e-12)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], r"learning_rate=\[\] must have one rate for each round"),
        ([0.1, 0.0], "learning_rate=0.0 of round 2 must be a finite number above 0; end the run"),
        ([0.1, -1], "learning_rate=-1 of round 2 must be a finite number above 0"),
        ([0.1, float("nan")], "learning_rate=nan of round 2"),
        ([0.1, True], "learning_rate of round 2=True must be a number"),
        ([0.1, [0.2]], r"learning_rate of round 2=\[0.2\] must be a number"),
        (float("inf"), "learning_rate=inf must be a finite number above 0"),
        (10**400, "must be at most 1e308"),
        (None, "learning_rate=None must be a number"),
        ("cosine", "must be a number, a list with one rate for each round, or a table"),
        ({"schedule": "cosine"}, "lacks start"),
        ({"schedule": "cosinus", "start": 1}, "did you mean 'cosine'"),
        ({"schedule": "cosine", "strat": 1}, "did you mean 'start'"),
        ({"schedule": "step", "start": 1, "factor": 0.5}, "lacks every"),
        (
            {"schedule": "step", "start": 1, "factor": 0.0, "every": 2},
            "factor=0.0 of learning_rate",
        ),
        ({"schedule": "step", "start": 1, "factor": 0.5, "every": 2.0}, "every=2.0 of learning_"),
        ({"schedule": "linear", "start": 1, "every": 2}, "has no effect with schedule='linear'"),
        ({"schedule": "linear", "start": 1, "end": -1}, "end=-1 of learning_rate"),
        ({"schedule": "cosine", "start": 1, "warmup": -1}, "warmup=-1 of learning_rate"),
    ],
)
def test_what_is_no_learning_rate_is_refused_in_a_sentence(value, said):
    with pytest.raises(InputError, match=said):
        read_rates(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([0.1, 0.2], "learning_rate has 2 rates, and the run has rounds=3"),
        ({"schedule": "cosine", "start": 1, "warmup": 3}, "warmup=3 of learning_rate must be less"),
        (
            {"schedule": "step", "start": 1, "factor": 1e-200, "every": 1},
            "learning_rate of round 3 would be 0",
        ),
        (
            {"schedule": "step", "start": 1, "factor": 1e200, "every": 1},
            "learning_rate of round 3 would be inf",
        ),
    ],
)
def test_rates_have_to_fit_the_rounds(value, said):
    with pytest.raises(InputError, match=said):
        rates_of(read_rates(value), 3)


def test_a_step_at_the_edge_of_a_stretch_has_its_own_rate():
    rates = RateSchedule(schedule="step", start=1.0, factor=0.5, every=2).rates(4)
    assert rates == (1.0, 1.0, 0.5, 0.5)


@pytest.mark.some_quick(6)
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - TWO_RATES - BY_ALL_RATES))
def test_every_round_of_a_run_takes_its_own_rate(name):
    """The round as an engine does it whose only rate is that of the round."""
    run = contract.started(bound(name, RATES), ring(5))
    for number, rate in enumerate(RATES, start=1):
        before = run.snapshot()
        run.advance()
        alone = contract.started(bound(name, rate), ring(5))
        alone.restore(before, round=number - 1)
        alone.advance()
        for field, value in alone.snapshot().items():
            assert torch.equal(value, run.snapshot()[field]), (field, number)


@pytest.mark.some_quick(6)
@pytest.mark.parametrize("name", ONE_RATE)
def test_what_is_traced_is_what_runs_at_the_rate_of_its_round(name):
    contract.check_rows(bound(name, RATES), ring(5))


@pytest.mark.parametrize("name", ["dp-dpsgd", "dpdl", "dp-netfleet", "whisper", "dyn-d2p"])
def test_a_round_is_traced_at_its_own_rate(name):
    def traced(learning_rate):
        of = bound(name, learning_rate)
        found = trace(of.init, of.step, graph=ring(5), rounds=5, noise_multiplier=None)
        return [one for one, count in found.rounds for _ in range(count)]

    for number, rate in enumerate(RATES):
        assert is_equivalent(traced(RATES)[number].record, traced(rate)[number].record)


@pytest.mark.parametrize("name", ["dp-dpsgd", "dpdl", "muffliato", "choco-sgd", "porter"])
def test_rounds_whose_cost_no_rate_changes_are_a_scale_of_the_first(name):
    of = bound(name, RATES)
    found = trace(of.init, of.step, graph=ring(5), rounds=5, noise_multiplier=2.0)
    first = found.rounds[0][0]
    assert [one.scale_of for one, _ in found.rounds[1:]] == [(first, 1.0)] * 4


RUN = {"graph": "ring:5", "sampling_rate": 0.1, "delta": 1e-5}


@pytest.mark.parametrize("name", ["dp-dpsgd", "dpdl"])
def test_a_schedule_costs_what_one_rate_does_where_no_rate_changes_the_cost(name):
    one = account(name, **RUN, rounds=5, noise_multiplier=1.5, learning_rate=0.3)
    every = account(name, **RUN, rounds=5, noise_multiplier=1.5, learning_rate=RATES)
    for who in one.guarantees:
        assert every.epsilon(who) == pytest.approx(one.epsilon(who), rel=1e-12)


class _X(NamedTuple):
    x: object


def _start(round):
    return _X(round.initial())


def _fixed_noise(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Noise that does not shrink with the rate: a round costs the more, the larger its rate is."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise = round.noise(sums, std=noise_std)
    return _X(round.mix(state.x - (learning_rate * sums + noise) / batch_size, kind="model"))


@pytest.mark.parametrize("rates", [(0.1, 0.1, 0.4), (0.4, 0.1, 0.1), (0.1, 0.4, 0.2)])
def test_where_a_round_costs_by_its_rate_every_round_counts_with_its_own(rates):
    found = account(
        _start, _fixed_noise, **RUN, rounds=3, noise_multiplier=1.0, learning_rate=rates,
        adversaries=["eavesdropper"],
    )  # fmt: skip
    events = [(1.0 / rate, 0.1) for rate in rates]
    expected = composed_epsilon(
        {Event(m, poisson(q)): events.count((m, q)) for m, q in set(events)},
        delta=1e-5,
        adjacency=Statement(delta=1e-5).adjacency,
    )
    assert found.epsilon("eavesdropper") == pytest.approx(expected, rel=1e-9)
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(max(rates), rel=1e-9)


def test_equal_rates_are_one_rate():
    same = account("mafalda", **RUN, rounds=4, noise_multiplier=1.0, learning_rate=[0.3] * 4)
    one = account("mafalda", **RUN, rounds=4, noise_multiplier=1.0, learning_rate=0.3)
    assert [same.epsilon(who) for who in one.guarantees] == [*map(one.epsilon, one.guarantees)]


@pytest.mark.parametrize("name", sorted(TWO_RATES))
def test_a_schedule_of_one_of_two_rates_is_refused(name):
    with pytest.raises(InputError, match="has two rates, learning_rate and learning_rate_y"):
        bound(name, RATES)


def test_a_schedule_that_nothing_takes_is_refused():
    def step(state, round, *, clip_norm, noise_std):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        return _X(round.mix(state.x - sums - round.noise(sums, std=noise_std), kind="model"))

    with pytest.raises(InputError, match="takes no learning_rate, so that a schedule of it"):
        account(_start, step, **RUN, rounds=2, noise_multiplier=1.0, learning_rate=[0.1, 0.2])


def test_a_start_with_a_rate_of_its_own_has_none_of_a_schedule():
    def start(round, *, learning_rate):
        return _X(learning_rate * round.initial())

    with pytest.raises(InputError, match="a schedule has none of the start"):
        account(start, _fixed_noise, **RUN, rounds=2, noise_multiplier=1.0, learning_rate=[1, 2])


def test_no_round_beyond_the_schedule_is_done():
    run = contract.started(bound("dp-dpsgd", RATES), ring(5))
    for _ in RATES:
        run.advance()
    with pytest.raises(InputError, match="round 6 is beyond the planned rounds=5"):
        run.advance()


def test_rates_may_stand_in_an_array():
    assert read_rates(torch.tensor([0.5, 0.25])) == (0.5, 0.25)


def test_noise_with_memory_is_not_made_for_a_rate_that_vanishes():
    with pytest.raises(InputError, match="must lie within a factor of 1e6 for a design of noise"):
        account("mafalda", **RUN, rounds=2, noise_multiplier=1.0, learning_rate=[1.0, 1e-7])


def test_of_a_schedule_no_more_rounds_are_stated_than_it_has():
    found = account("dp-dpsgd", **RUN, rounds=5, noise_multiplier=1.0, learning_rate=RATES)
    one = account("dp-dpsgd", **RUN, rounds=5, noise_multiplier=1.0, learning_rate=0.1)
    three = one.epsilon("eavesdropper", rounds=3)
    assert found.epsilon("eavesdropper", rounds=3) == pytest.approx(three, rel=1e-9)
    with pytest.raises(InputError, match="6 rounds of 5 that differ"):
        found.epsilon("eavesdropper", rounds=6)
