"""Cohorts of agents of a fixed size, shuffled, or in one order: what an agent and a record pay."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from overhear import account
from overhear.privacy import Event, composed_epsilon, poisson
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.batches.sampling import Sampling, drawing_of_cohort
from overhear.privacy.errors import InputError, UnsupportedView
from overhear.privacy.participation import Draws, Reach
from overhear.training import ALL, UndeclaredOperation
from tests.training.states import State, start

RUN = {"rounds": 1000, "sampling_rate": 0.02, "delta": 1e-5, "noise_multiplier": 1.0}
HUNDRED = {"graph": "server:100", "cohort_rate": 0.01, "unit": "agent"}
WATCH = {"adversaries": ["eavesdropper"]}


def step(state, round, *, rate, scheme, clip_norm, noise_std):
    """One secret cohort, whose members' steps on a batch get noise."""
    members = round.cohort(rate, scheme=scheme)
    change = round.local_update(
        state.x, steps=1, learning_rate=0.1, batch=round.draw(), clip_norm=clip_norm
    )
    mean = round.average(change, cohort=members)
    noisy = mean + round.noise(mean, std=noise_std / (rate * round.agents))
    return State(state.x + round.download(noisy, kind="mean"))


def of(which, **asked):
    given = RUN | {"graph": "server:10"} | WATCH | asked
    return account(start, which, **given)["eavesdropper"]


@pytest.mark.parametrize(
    ("scheme", "adjacency", "expected"),
    [
        ("poisson", "zero-out", 1.8283),
        ("fixed", "zero-out", 10.499),
        ("fixed", "replace-one", 14.821),
        ("shuffled", "zero-out", 17.857),
        ("shuffled", "replace-one", 46.211),
        ("cyclic", "zero-out", 17.857),
    ],
)
def test_dp_fedavg_costs_what_its_cohorts_cost(scheme, adjacency, expected):
    found = account("dp-fedavg", **RUN, **HUNDRED, **WATCH, cohort=scheme, adjacency=adjacency)
    stated = found["eavesdropper"]
    assert stated.epsilon == pytest.approx(expected, rel=1e-4)
    assert stated.epsilon > 3.58 or scheme == "poisson"  # by replace-one that is not doubled
    assert (stated.at_least is not None) == (scheme == "shuffled")


def test_a_lower_bound_stands_beside_shuffled_cohorts():
    found = account("dp-fedavg", **RUN, **HUNDRED, **WATCH, cohort="shuffled")
    assert found["eavesdropper"].at_least == pytest.approx(7.061, rel=1e-4)
    assert "Of cohorts that are shuffled" in " ".join(found.warnings)


@pytest.mark.parametrize(
    ("scheme", "sampling", "said"),
    [
        ("fixed", Sampling.FIXED_COHORT, "secret cohorts of as many agents each"),
        ("shuffled", Sampling.SHUFFLED_COHORT, "once an epoch at most"),
        ("cyclic", Sampling.CYCLIC_COHORT, "in cohorts of as many each and one order"),
    ],
)
def test_an_account_says_how_cohorts_are_drawn(scheme, sampling, said):
    found = account("dp-fedavg", **RUN, **HUNDRED, **WATCH, cohort=scheme)
    assert found["eavesdropper"].sampling is sampling
    assert "0.01 of the agents" in found["eavesdropper"].because
    assert said in found.statement()
    assert ("as who takes part, is secret" in found.statement()) == (scheme == "fixed")


def test_everybody_takes_part_however_cohorts_are_drawn():
    given = RUN | HUNDRED | WATCH | {"cohort_rate": 1.0, "noise_multiplier": 20.0}
    figures = {
        account("dp-fedavg", **given, cohort=s).epsilon("eavesdropper")
        for s in ("poisson", "fixed", "shuffled", "cyclic")
    }
    assert len(figures) == 1
    assert max(figures) == pytest.approx(7.5113, rel=1e-4)


def _exact(rate, *, z=1.0, delta=1e-5):
    """Epsilon of one round: an agent at +1 or 0 in the place of another one, which is at -1."""
    x = np.linspace(-12.0, 12.0, 240_001)
    other = (1.0 - rate) * norm.pdf(x, -1.0, z)
    there, blank = other + rate * norm.pdf(x, 1.0, z), other + rate * norm.pdf(x, 0.0, z)
    grid = np.linspace(0.0, 8.0, 801)

    def smallest(one, two, share):
        at = [share * np.maximum(one - math.exp(e) * two, 0).sum() * (x[1] - x[0]) for e in grid]
        return float(grid[int(np.argmax(np.array(at) <= delta))])

    return lambda share=1.0: max(smallest(there, blank, share), smallest(blank, there, share))


def test_agents_that_are_left_out_know_more_of_the_others():
    # One of 20 agents takes part. If 18 of them do not, once in ten, it is one of the other two.
    given = {"graph": "server:20", "rounds": 1, "unit": "agent", "cohort_rate": 0.05}
    names = ["eavesdropper", "coalition:" + ",".join(map(str, range(18)))]
    found = account("dp-fedavg", **RUN | given, cohort="fixed", adversaries=names)
    seen, known = (found.epsilon(name) for name in names)
    truth_seen, truth_known = _exact(0.05)(), _exact(0.5)(0.1)
    assert truth_seen - 0.01 <= seen < truth_known  # an outsider's figure would be too small
    assert truth_known - 0.01 <= known


def test_a_coalition_of_most_agents_knows_who_takes_part():
    given = RUN | HUNDRED | {"noise_multiplier": 20.0, "graph": "server:4", "cohort_rate": 0.5}
    names = ["eavesdropper", "coalition:0,1", "all-others"]
    found = account("dp-fedavg", **given, cohort="fixed", adversaries=names)
    one, two, three = (found.epsilon(name) for name in names)
    assert one < two == three == pytest.approx(epsilon_from_mu(1000**0.5 / 20, 1e-5), rel=1e-6)
    order = account("dp-fedavg", **given, cohort="cyclic", adversaries=names)
    assert len({order.epsilon(name) for name in names}) == 1  # it is public


def test_a_larger_cohort_among_fewer_agents_has_the_rate_that_is_left():
    draws = Draws((), 0.1, "fixed")
    rates = [drawing_of_cohort(draws, agents=100, known=k).rate for k in (0, 1, 80, 90, 95, 99)]
    assert rates == [10 / 100, 10 / 99, 10 / 20, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_who_is_in_a_fixed_cohort_counts_as_seen_by_a_record(adjacency):
    found = of(step, rate=0.1, scheme="fixed", adjacency=adjacency, rounds=200)
    whole = adjacency == "add-or-remove-one"
    event = Event(0.5 if whole else 1.0, poisson(0.02), Reach.SUM if whole else Reach.BALL, 0.1)
    expected = composed_epsilon({event: 200}, delta=1e-5, adjacency=adjacency)
    assert found.epsilon == pytest.approx(expected, rel=1e-9)
    assert (
        found.epsilon
        >= of(step, rate=0.1, scheme="poisson", adjacency=adjacency, rounds=200).epsilon
    )
    assert found.sampling is Sampling.FIXED_COHORT


@pytest.mark.parametrize("scheme", ["shuffled", "cyclic"])
@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "zero-out", "replace-one"])
def test_a_record_is_drawn_in_one_round_of_every_epoch_of_its_agent(scheme, adjacency):
    found = of(step, rate=0.2, scheme=scheme, adjacency=adjacency, rounds=201)
    whole = adjacency == "add-or-remove-one"
    event = Event(0.5 if whole else 1.0, poisson(0.02), Reach.SUM if whole else Reach.BALL)
    expected = composed_epsilon({event: 41}, delta=1e-5, adjacency=adjacency)  # epochs of 5
    assert found.epsilon == pytest.approx(expected, rel=1e-9)


def test_epochs_whose_rounds_differ_have_no_figure_of_a_record():
    def changing(state, round, *, scheme, clip_norm, noise_std):
        members = round.cohort(0.2, scheme=scheme)
        batch = round.draw(0.5 if round.index > 3 else 0.1)
        change = round.local_update(
            state.x, steps=1, learning_rate=0.1, batch=batch, clip_norm=clip_norm
        )
        mean = round.average(change, cohort=members)
        noisy = mean + round.noise(mean, std=noise_std / (0.2 * round.agents))
        return State(state.x + round.download(noisy, kind="mean"))

    with pytest.raises(InputError, match="drawn at different rates"):
        of(changing, scheme="cyclic", rounds=6)
    assert of(changing, scheme="cyclic", rounds=6, unit="agent").epsilon == pytest.approx(
        epsilon_from_mu(2**0.5, 1e-5), rel=1e-9
    )


def test_noise_that_falls_costs_the_dearest_round_of_each_epoch():
    def louder(state, round, *, scheme, clip_norm, noise_std):
        members = round.cohort(0.5, scheme=scheme)
        change = round.local_update(
            state.x, steps=1, learning_rate=0.1, batch=ALL, clip_norm=clip_norm
        )
        mean = round.average(change, cohort=members)
        std = noise_std * (2.0 if round.index in (1, 4) else 1.0)
        noisy = mean + round.noise(mean, std=std / (0.5 * round.agents))
        return State(state.x + round.download(noisy, kind="mean"))

    found = of(louder, scheme="shuffled", rounds=4, unit="agent")
    assert found.epsilon == pytest.approx(epsilon_from_mu(2**0.5, 1e-5), rel=1e-9)


def two_cohorts(state, round, *, schemes, clip_norm, noise_std):
    x = state.x
    for scheme in schemes:
        members = round.cohort(0.5, scheme=scheme)
        change = round.local_update(x, steps=1, learning_rate=0.1, batch=ALL, clip_norm=clip_norm)
        mean = round.average(change, cohort=members)
        x = x + round.download(mean + round.noise(mean, std=noise_std / 5), kind="mean")
    return State(x)


def test_an_epoch_has_one_cohort_a_round():
    for schemes in (("shuffled", "shuffled"), ("cyclic", "poisson"), ("fixed", "cyclic")):
        with pytest.raises(UndeclaredOperation, match="one for each round"):
            of(two_cohorts, schemes=schemes, unit="agent", rounds=2)
    with pytest.raises(InputError, match="cohorts 'fixed' of which one interleaves with another"):
        of(two_cohorts, schemes=("fixed", "fixed"), unit="agent", rounds=2)
    both = of(two_cohorts, schemes=("poisson", "poisson"), unit="agent", rounds=2)
    assert both.epsilon == pytest.approx(
        composed_epsilon({Event(1.0, poisson(0.5)): 4}, delta=1e-5), rel=1e-9
    )


def test_the_start_is_in_no_epoch():
    def begin(round):
        round.cohort(0.5, scheme="shuffled")
        return State(round.initial())

    with pytest.raises(UndeclaredOperation, match="the start draws a cohort"):
        account(begin, step, **RUN, graph="server:10", rate=0.5, scheme="fixed")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"scheme": "weighted"}, "scheme='weighted' must be one of 'poisson', 'fixed', 'shuf"),
        ({"scheme": "truncated"}, "no bound is known here for cohorts drawn otherwise"),
        ({"scheme": 3}, "scheme=3 must be one of"),
        ({"rate": 0.15}, "1.5 members; with cohorts 'fixed' it must be a whole number of them"),
        ({"rate": 1e-9}, "use a rate such as 1/10 = 0.1"),
        ({"rate": 0.0}, "rate=0.0 must lie in"),
    ],
)
def test_a_cohort_that_nobody_can_draw_is_refused(asked, message):
    with pytest.raises((InputError, UndeclaredOperation), match=message):
        of(step, **{"rate": 0.5, "scheme": "fixed", "unit": "agent"} | asked)


def test_an_accountant_of_poisson_rounds_does_not_answer_for_other_cohorts():
    for scheme in ("fixed", "shuffled"):
        with pytest.raises((InputError, UnsupportedView), match="use 'pld'"):
            account("dp-fedavg", **RUN, **HUNDRED, **WATCH, cohort=scheme, accountant="rdp")


@pytest.mark.parametrize("scheme", ["fixed", "shuffled"])
def test_a_target_is_met_by_every_kind_of_cohort(scheme):
    given = RUN | HUNDRED | WATCH | {"epsilon": 2.0, "noise_multiplier": None, "rounds": 200}
    found = account("dp-fedavg", **given, cohort=scheme)
    assert 1.99 < found.epsilon("eavesdropper") <= 2.0


@pytest.mark.parametrize("unit", [{}, {"unit": "user", "records_per_person": 3}])
@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove-one"])
@pytest.mark.parametrize("local_data", ["all", "one-batch", "batches"])
def test_one_message_of_a_cohort_costs_what_everybody_sees(unit, adjacency, local_data):
    # There is one message, the noisy mean: who sees it alone sees what the eavesdropper does.
    asked = {"rounds": 20, "sampling_rate": 0.1, "noise_multiplier": 2.0, "delta": 1e-5}
    asked |= {"adversaries": ["eavesdropper", "single-message"], "cohort_rate": 0.2} | unit
    found = account(
        "dp-fedavg", graph="server:10", adjacency=adjacency, local_data=local_data, **asked
    )
    assert found["single-message"].epsilon == found["eavesdropper"].epsilon
