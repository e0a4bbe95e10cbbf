"""Guarantees that follow from traces."""

import functools
import math
from typing import NamedTuple

import pytest

from overhear.privacy import EAVESDROPPER, Statement, Status, UnsupportedView, epsilon
from overhear.privacy.accounting.request import Bound
from overhear.privacy.participation import Reach
from overhear.training.algorithms import Form, dp_dpsgd, dpdl, dsgd
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import calibrated_multiplier, guarantee, run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.sensitivity import (
    JointSensitivity,
    Release,
    UnsupportedMechanism,
    worst,
)
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.step.handles import Agents
from overhear.training.step.round import Round
from overhear.training.tracing.trace import trace

STATEMENT = Statement(delta=1e-5)
NUMBERS = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}


def traces(graph, form=Form.REPAIRED, alpha=1.0, rounds=1000):
    settings = dpdl.Settings(alpha=alpha, momentum=0.9)
    step = functools.partial(dpdl.step, form=form, settings=settings, **NUMBERS)
    return trace(dpdl.init, step, graph=graph, rounds=rounds, noise_multiplier=1.0)


def exposed(of, *names, rate=0.02, **more):
    """Joint sensitivities of steps whose noise scales with noise_std, so at any noise."""
    found = joint_sensitivities(of, names, sampling_rate=rate, **more)
    return {name: one._replace(noise_multiplier=None) for name, one in found}


@pytest.mark.parametrize(
    ("form", "graph", "expected", "status"),
    [
        (Form.PUBLISHED, ring(10), 33.3, Status.HEURISTIC),
        (Form.REPAIRED, ring(10), 2.07, Status.PROVEN),
    ],
)
def test_dpdl_at_a_per_message_epsilon_of_one(form, graph, expected, status):
    found = exposed(traces(graph, form), "eavesdropper", "single-message")
    said = {
        name: guarantee(name, e, noise_multiplier=2.512, statement=STATEMENT)
        for name, e in found.items()
    }
    assert said["eavesdropper"].epsilon == pytest.approx(expected, rel=5e-3)
    assert said["eavesdropper"].status is status
    assert said["single-message"].epsilon == pytest.approx(1.0, abs=5e-3)
    assert said["single-message"].status is Status.HEURISTIC


def test_published_dpdl_on_thirty_agents_is_five_hundred_times_its_message():
    found = exposed(traces(ring(30), Form.PUBLISHED), "eavesdropper")["eavesdropper"]
    assert run_epsilon(found, noise_multiplier=2.512, statement=STATEMENT) == pytest.approx(
        517, rel=5e-3
    )


@pytest.mark.parametrize("order", list(dp_dpsgd.Order))
def test_a_single_message_is_never_free_although_it_is_sent_a_round_later(order):
    step = functools.partial(dp_dpsgd.step, order=order, **NUMBERS)
    of = trace(dp_dpsgd.init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    found = exposed(of, "single-message")["single-message"]
    assert found.largest == pytest.approx(1.0)
    assert ("state x" in found.because) == (order is dp_dpsgd.Order.MIX_THEN_STEP)


def test_a_single_message_without_noise_is_infinite():
    step = functools.partial(dsgd.step, learning_rate=0.1, batch_size=1.0)
    of = trace(dsgd.init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    assert exposed(of, "single-message")["single-message"].largest == math.inf


def test_the_worst_victim_is_reported():
    found = exposed(traces(star(10), Form.PUBLISHED), "eavesdropper")["eavesdropper"]
    assert found.victim != 0
    assert found.largest == pytest.approx(8.25, abs=5e-3)


def test_a_named_victim_is_asked_about():
    found = exposed(traces(star(10)), "eavesdropper", victim=0)["eavesdropper"]
    assert (found.victim, found.largest) == (0, pytest.approx(math.sqrt(10)))


def test_the_worst_neighbour_is_named_and_is_not_the_victim():
    found = exposed(traces(ring(5)), "neighbour", "all-others")
    assert found["neighbour"].victim not in found["neighbour"].adversary.agents
    assert len(found["all-others"].adversary.agents) == 4


def test_a_coalition_is_not_asked_about_itself():
    found = exposed(traces(ring(5)), "coalition:0,1")["coalition:0,1"]
    assert found.victim not in (0, 1)


def test_an_adversary_that_leaves_no_victim_is_refused():
    with pytest.raises(UnsupportedView, match="no victim"):
        exposed(traces(ring(3)), "coalition:0,1,2")


def test_encrypted_links_leave_the_eavesdropper_the_end_states():
    step = functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.STEP_THEN_MIX, **NUMBERS)
    of = trace(dp_dpsgd.init, step, graph=full(10), rounds=10, noise_multiplier=1.0)
    clear = exposed(of, "eavesdropper")["eavesdropper"].largest
    sealed = exposed(of, "eavesdropper", encrypted=True)["eavesdropper"].largest
    assert (clear**2, sealed**2) == (pytest.approx(1.0), pytest.approx(0.1))


@pytest.mark.parametrize("target", [0.5, 8.0])
def test_calibration_meets_the_target_and_not_by_much(target):
    found = exposed(traces(ring(10)), "eavesdropper")["eavesdropper"]
    multiplier = calibrated_multiplier(found, epsilon=target, statement=STATEMENT)
    spent = run_epsilon(found, noise_multiplier=multiplier, statement=STATEMENT)
    assert target * 0.995 < spent <= target


def test_no_noise_is_infinite_and_says_why():
    found = exposed(traces(ring(5)), "eavesdropper")["eavesdropper"]
    said = guarantee("eavesdropper", found, noise_multiplier=0.0, statement=STATEMENT)
    assert said.epsilon == math.inf
    assert "noise multiplier is 0" in said.because


def test_dsgd_is_infinite_and_cannot_be_calibrated():
    step = functools.partial(dsgd.step, learning_rate=0.1, batch_size=1.0)
    of = trace(dsgd.init, step, graph=ring(5), rounds=3, noise_multiplier=1.0)
    found = exposed(of, "eavesdropper")["eavesdropper"]
    assert found.largest == math.inf
    with pytest.raises(UnsupportedView, match="not clipped"):
        calibrated_multiplier(found, epsilon=1.0, statement=STATEMENT)


def test_a_prefix_of_the_rounds_costs_what_so_many_rounds_cost():
    found = exposed(traces(ring(10)), "eavesdropper")["eavesdropper"]
    spent = run_epsilon(found, noise_multiplier=3.0, statement=STATEMENT, rounds=100)
    again = epsilon(noise_multiplier=3.0 / math.sqrt(3), delta=1e-5, rounds=100, sampling_rate=0.02)
    assert spent == pytest.approx(again, rel=1e-12)
    assert run_epsilon(found, noise_multiplier=3.0, statement=STATEMENT, rounds=0) == 0.0


def test_several_contributions_of_a_replaced_record_cost_what_one_of_their_sensitivity_does():
    found = exposed(traces(ring(10)), "eavesdropper")["eavesdropper"]
    args = {"delta": 1e-5, "adjacency": "replace-one"}
    statement = Statement(**args)
    spent = run_epsilon(found, statement=statement, noise_multiplier=2.512)
    assert spent == pytest.approx(3.798754, rel=1e-4)  # of another accountant
    multiplier = calibrated_multiplier(found, statement=statement, epsilon=1.0)
    assert 0.999 < run_epsilon(found, statement=statement, noise_multiplier=multiplier) <= 1.0


@pytest.mark.parametrize(
    ("rate", "multiplier", "how", "bound"),
    [
        (0.02, 4.0, {}, Bound.PLD),
        (1.0, 4.0, {}, Bound.CLOSED_FORM),
        (0.02, 0.0, {}, Bound.CLOSED_FORM),
        (0.02, 4.0, {"adjacency": "replace-one"}, Bound.PLD),
        (1.0, 4.0, {"adjacency": "replace-one"}, Bound.CLOSED_FORM),
        (0.02, 4.0, {"accountant": "rdp"}, Bound.RENYI),
        (0.02, 4.0, {"accountant": "gdp-clt"}, Bound.CENTRAL_LIMIT),
    ],
)
def test_a_guarantee_names_the_bound_that_was_used(rate, multiplier, how, bound):
    found = exposed(traces(ring(10), rounds=5), "eavesdropper", rate=rate)["eavesdropper"]
    said = guarantee(
        "eavesdropper", found, noise_multiplier=multiplier, statement=Statement(delta=1e-5, **how)
    )
    assert said.bound is bound


def test_one_contribution_of_a_replaced_record_has_its_own_pair():
    single = JointSensitivity(
        EAVESDROPPER, 0, (Release(1.0, 0.1, 9, 1, 1),), Status.PROVEN, "a test"
    )
    args = {"noise_multiplier": 2.0, "statement": Statement(delta=1e-5, adjacency="replace-one")}
    assert guarantee("eavesdropper", single, **args).bound is Bound.PLD
    full = single._replace(releases=(*single.releases, Release(1.0, 1.0, 1, 7, 0)))
    assert guarantee("eavesdropper", full, **args).bound is Bound.PLD


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_rounds_that_differ_are_calibrated_together(adjacency):
    releases = (Release(0.5, 1.0, 1, 1, 0), *(Release(1 + t / 9, 0.1, 2, 2, t) for t in (1, 3, 5)))
    every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
    args = {"statement": Statement(delta=1e-5, adjacency=adjacency)}
    multiplier = calibrated_multiplier(every, epsilon=2.0, **args)
    assert run_epsilon(every, noise_multiplier=multiplier, **args) <= 2.0
    assert run_epsilon(every, noise_multiplier=multiplier * (1 - 1e-4), **args) > 2.0
    with pytest.raises(UnsupportedMechanism, match="rounds that differ; use 'pld'"):
        calibrated_multiplier(every, epsilon=2.0, statement=Statement(delta=1e-5, accountant="rdp"))


def test_nothing_released_cannot_be_calibrated():
    nothing = JointSensitivity(
        EAVESDROPPER, 0, (Release(0.0, 0.1, 5, 0, 1),), Status.PROVEN, "a test"
    )
    with pytest.raises(UnsupportedView, match="epsilon is 0 at every noise"):
        calibrated_multiplier(nothing, epsilon=1.0, statement=STATEMENT)


def test_replace_one_on_full_batches_doubles_the_distance():
    found = exposed(traces(ring(10), rounds=1), "eavesdropper", rate=1.0)["eavesdropper"]
    replaced = run_epsilon(
        found, noise_multiplier=8.0, statement=Statement(delta=1e-5, adjacency="replace-one")
    )
    assert replaced == pytest.approx(
        run_epsilon(found, noise_multiplier=4.0, statement=STATEMENT), rel=1e-9
    )


def test_batches_with_rates_of_their_own_are_composed_each_at_its_rate():
    def init(round):
        x = round.initial()
        sums = round.clipped_sums(x, batch=round.draw(1.0), clip_norm=1.0)
        return dp_dpsgd.State(x - (sums + round.noise(sums, std=5.0)))

    step = functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.MIX_THEN_STEP, **NUMBERS)
    of = trace(init, step, graph=ring(3), rounds=50, noise_multiplier=1.0)
    found = exposed(of, "eavesdropper")["eavesdropper"]
    assert [(r.sampling_rate, r.rounds) for r in found.releases] == [(1.0, 1), (0.02, 50)]
    spent = run_epsilon(found, noise_multiplier=2.0, statement=STATEMENT)
    rounds_only = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=50, sampling_rate=0.02)
    start_only = epsilon(noise_multiplier=10.0, delta=1e-5, rounds=1, sampling_rate=1.0)
    assert max(rounds_only, start_only) < spent < rounds_only + start_only


def test_an_unknown_victim_is_refused():
    with pytest.raises(ValueError, match="victim=9"):
        exposed(traces(ring(5)), "eavesdropper", victim=9)


@pytest.mark.parametrize("target", [2.1, 3.0, 3.3, 4.2])
def test_a_target_at_full_batches_is_met_to_the_last_digit(target):
    found = exposed(traces(ring(10)), "eavesdropper", rate=1.0)["eavesdropper"]
    multiplier = calibrated_multiplier(found, epsilon=target, statement=STATEMENT)
    assert run_epsilon(found, noise_multiplier=multiplier, statement=STATEMENT) <= target


def test_where_no_victim_is_worst_in_every_round_each_round_counts_its_worst():
    def sensitivity(victim, *joint):
        releases = tuple(Release(j, 0.02, 5, 1, 1 + 5 * k) for k, j in enumerate(joint))
        return JointSensitivity(EAVESDROPPER, victim, releases, Status.PROVEN, "a test")

    mixed = worst([sensitivity(0, 3.0, 1.0), sensitivity(1, 1.0, 2.0)])
    assert [r.joint_sensitivity for r in mixed.releases] == [3.0, 2.0]
    assert worst([sensitivity(0, 3.0, 1.0), sensitivity(1, 1.0, 0.5)]).victim == 0


def test_a_prefix_of_rounds_that_differ_holds_the_start_and_those_rounds():
    releases = (Release(1.0, 1.0, 1, 1, 0), *(Release(2.0, 0.1, 1, 1, t) for t in (1, 2, 3)))
    every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
    two = every._replace(releases=releases[:3])
    args = {"noise_multiplier": 4.0, "statement": STATEMENT}
    assert run_epsilon(every, rounds=2, **args) == run_epsilon(two, **args)
    assert run_epsilon(every, rounds=0, **args) == pytest.approx(
        epsilon(noise_multiplier=4.0, delta=1e-5, rounds=1, sampling_rate=1.0)
    )
    with pytest.raises(UnsupportedView, match="no trace"):
        run_epsilon(every, rounds=4, **args)


def test_replayed_rounds_are_counted_beyond_the_plan():
    found = exposed(traces(ring(10), rounds=50), "eavesdropper")["eavesdropper"]
    args = {"noise_multiplier": 3.0, "statement": STATEMENT}
    assert run_epsilon(found, rounds=60, **args) > run_epsilon(found, rounds=50, **args)


def test_the_ledger_counts_rounds_by_number_where_they_differ():
    releases = tuple(Release(float(t), 0.1, 1, 1, t) for t in (1, 2, 3))
    every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
    again = every._replace(releases=(*releases[:2], releases[2]._replace(rounds=2)))
    args = {"noise_multiplier": 4.0, "statement": STATEMENT}
    assert accounted(every, [1, 2, 3, 3]) == again
    assert run_epsilon(every, rounds=[1, 2, 3, 3], **args) == run_epsilon(again, **args)
    with pytest.raises(UnsupportedView, match="only 3 were traced"):
        accounted(every, [4])


def test_a_start_that_was_released_twice_costs_twice():
    start, rounds = Release(2.0, 1.0, 1, 1, 0), Release(1.0, 0.1, 9, 1, 1)
    every = JointSensitivity(EAVESDROPPER, 0, (start, rounds), Status.PROVEN, "a test")
    twice = every._replace(releases=(start._replace(rounds=2), rounds))
    args = {"noise_multiplier": 4.0, "statement": STATEMENT}
    assert accounted(every, [0, 0, 1, 2]) == twice
    assert run_epsilon(every, rounds=[0, 0, *range(1, 10)], **args) == run_epsilon(twice, **args)
    assert run_epsilon(twice, **args) > 1.3 * run_epsilon(every, **args)


def test_a_run_that_stopped_early_is_accounted_as_planned():
    found = exposed(traces(ring(10), rounds=50), "eavesdropper")["eavesdropper"]
    assert accounted(found, list(range(1, 18))) == found
    assert accounted(found, list(range(61))).releases[0].rounds == 60


def test_a_torn_line_counts_whichever_round_it_was():
    releases = tuple(Release(float(t), 0.1, 1, 1, t) for t in (1, 2, 3))
    every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
    assert [r.rounds for r in accounted(every, [1], torn=True).releases] == [2, 2, 2]


def test_an_approximation_is_never_called_proven():
    found = exposed(traces(ring(10)), "eavesdropper")["eavesdropper"]
    said = guarantee(
        "eavesdropper", found, noise_multiplier=3.0,
        statement=Statement(delta=1e-5, accountant="gdp-clt"),
    )  # fmt: skip
    assert said.status is Status.HEURISTIC


@pytest.mark.parametrize("rate", [float("nan"), -1.0, 2.0])
def test_a_rate_that_is_none_does_not_cost_nothing(rate):
    found = exposed(traces(ring(5), Form.REPAIRED), "eavesdropper", rate=rate)["eavesdropper"]
    with pytest.raises(ValueError, match="sampling_rate"):
        run_epsilon(found, statement=STATEMENT, noise_multiplier=1.0)


@pytest.mark.parametrize("rounds", [-1, 1.5, True])
def test_a_number_of_rounds_that_is_none_does_not_cost_nothing(rounds):
    found = exposed(traces(ring(5), Form.REPAIRED), "eavesdropper")["eavesdropper"]
    with pytest.raises(ValueError, match="rounds="):
        run_epsilon(found, statement=STATEMENT, noise_multiplier=1.0, rounds=rounds)


@pytest.mark.parametrize("mu", [float("nan"), -1.0])
def test_a_joint_sensitivity_that_is_none_does_not_cost_nothing(mu):
    found = exposed(traces(ring(5), Form.REPAIRED), "eavesdropper")["eavesdropper"]
    wrong = [release._replace(joint_sensitivity=mu) for release in found.releases]
    with pytest.raises(ValueError, match="joint_sensitivity="):
        run_epsilon(
            found._replace(releases=tuple(wrong)), statement=STATEMENT, noise_multiplier=1.0
        )


# What a release costs by how far a record reaches in it.


def test_each_release_is_told_apart_by_its_own_reach():
    def of(*releases):
        every = JointSensitivity(EAVESDROPPER, 0, releases, Status.PROVEN, "a test")
        statement = Statement(delta=1e-5, adjacency="replace-one")
        return guarantee("eavesdropper", every, noise_multiplier=3.0, statement=statement)

    added = Release(1.0, 0.02, 500, 1, 1)
    mean = Release(2.0, 0.02, 500, 1, 501, Reach.BALL)
    assert of(added).bound is Bound.PLD
    assert of(added, mean).bound is Bound.PROFILE
    # A mean is dearer than a sum of its norm and cheaper than one of twice that.
    sums = of(added, mean._replace(reach=Reach.SUM)).epsilon
    ones = of(added, mean._replace(reach=Reach.SUM, joint_sensitivity=1.0)).epsilon
    assert ones < of(added, mean).epsilon < sums


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_mean_that_a_record_is_added_to_is_a_sum_of_its_diameter(accountant):
    statement = Statement(delta=1e-5, accountant=accountant)
    sums, means = (
        JointSensitivity(
            EAVESDROPPER, 0, (Release(2.0, 0.02, 500, 1, 1, reach),), Status.PROVEN, "a test"
        )
        for reach in (Reach.SUM, Reach.BALL)
    )
    asked = {"statement": statement, "noise_multiplier": 3.0}
    assert run_epsilon(means, **asked) == run_epsilon(sums, **asked)


@pytest.mark.parametrize(
    ("release", "adjacency", "records", "expected"),
    [
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "replace-one", 1, 4.723421),
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "zero-out", 1, 4.723421),
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "add-or-remove-one", 1, 3.899),
        (Release(1.0, 0.02, 1000, 1), "replace-one", 1, 2.603),
        (Release(1.0, 0.02, 1000, 1), "add-or-remove-one", 3, 4.5969),
        (Release(1.0, 0.02, 1000, 1), "replace-one", 3, 9.352),
        # Three records move one clipped mean as one does that is drawn 1 - .98^3 of the time.
        (Release(2.0, 0.02, 1000, 1, 1, Reach.BALL), "add-or-remove-one", 3, 13.2855),
    ],
)
def test_a_release_costs_what_its_reach_and_its_person_make_of_it(
    release, adjacency, records, expected
):
    every = JointSensitivity(EAVESDROPPER, 0, (release,), Status.PROVEN, "a test")
    statement = Statement(delta=1e-5, adjacency=adjacency)
    spent = run_epsilon(every, statement=statement, noise_multiplier=2.0, records=records)
    assert spent == pytest.approx(expected, rel=3e-4)


def test_a_clipped_mean_reaches_twice_its_norm_and_a_clipped_sum_once():
    class State(NamedTuple):
        x: Agents

    def init(round: Round) -> State:
        return State(round.initial())

    def step(state: State, round: Round, *, mean: bool) -> State:
        batch = round.draw()
        how = {"batch": batch, "clip_norm": 0.5}
        if mean:
            clipped = round.clipped_mean(state.x, batch_size=3.0, **how)
        else:
            clipped = round.clipped_sums(state.x, **how)
        return State(round.mix(state.x - clipped + round.noise(clipped, std=1.0), kind="model"))

    for mean, joint in ((True, 1.0), (False, 0.5)):
        traced = trace(
            init, functools.partial(step, mean=mean), graph=ring(5), rounds=3, noise_multiplier=1.0
        )
        ((_, found),) = joint_sensitivities(traced, ["eavesdropper"], sampling_rate=0.1)
        assert found.largest == pytest.approx(joint, rel=1e-12)
        assert found.releases[0].reach is (Reach.BALL if mean else Reach.SUM)


def test_means_of_two_batches_that_interleave_have_no_bound_when_a_record_is_replaced():
    release = Release(2.0, 0.02, 500, 2, 1, Reach.BALL, interleaved=True)
    every = JointSensitivity(EAVESDROPPER, 0, (release,), Status.PROVEN, "a test")
    asked = {"noise_multiplier": 3.0}
    for adjacency in ("replace-one", "zero-out"):
        with pytest.raises(UnsupportedMechanism, match="interleaves with another batch"):
            run_epsilon(every, statement=Statement(delta=1e-5, adjacency=adjacency), **asked)
    assert run_epsilon(every, statement=STATEMENT, **asked) > 0
    full = every._replace(releases=(release._replace(sampling_rate=1.0),))
    assert run_epsilon(full, statement=Statement(delta=1e-5, adjacency="replace-one"), **asked) > 0
