"""dp-accounting's estimates: around exact values, and refused where they would be none."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from overhear.privacy import delta, epsilon, noise_multiplier
from overhear.privacy.accounting.accountant import composed_delta, composed_epsilon
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.limits import max_rounds, scale_for
from overhear.privacy.accounting.request import Accountant
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.participation import (
    Event,
    ParticipationPattern,
    Reach,
    cohort,
    group,
    poisson,
)
from overhear.privacy.reference import second_opinion as estimates
from overhear.privacy.reference.distributions import Kind, Law, Unanswered
from overhear.privacy.reference.second_opinion import (
    delta_estimate,
    epsilon_estimate,
    losses_of,
    second_opinion,
)


def bracket(rounds, **how):
    high = epsilon_estimate(rounds, **how)
    near = high.figure
    return epsilon_estimate(rounds, **how, pessimistic=False, near=near, seconds=0.3), high


def exact_epsilon_of_one_round(multiplier, rate, delta):
    """Of the pair that removes a record, in closed form."""
    d = 1.0 / multiplier

    def excess(e):
        z = (math.log((math.exp(e) - (1 - rate)) / rate) + d * d / 2) / d
        moved = rate * norm.sf(z - d) + (1 - rate) * norm.sf(z)
        return moved - math.exp(e) * norm.sf(z) - delta

    return brentq(excess, 1e-9, 50.0, xtol=1e-12)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize(("multiplier", "count", "dlt"), [(2.0, 4, 1e-5), (30.0, 1000, 1e-9)])
def test_full_batches_lie_around_the_closed_form(multiplier, count, dlt, adjacency):
    reach = 2.0 if adjacency == "replace-one" else 1.0
    exact = epsilon_from_mu(reach * math.sqrt(count) / multiplier, dlt)
    low, high = bracket({(multiplier, 1.0): count}, delta=dlt, adjacency=adjacency)
    assert 0.998 * exact < low.figure < exact < high.figure < 1.0005 * exact


@pytest.mark.parametrize(
    ("multiplier", "rate", "dlt"), [(1.0, 0.01, 1e-5), (0.5, 1e-5, 1e-6), (5.0, 0.3, 1e-8)]
)
def test_one_sampled_round_lies_around_the_closed_form(multiplier, rate, dlt):
    exact = exact_epsilon_of_one_round(multiplier, rate, dlt)
    low, high = bracket({(multiplier, rate): 1}, delta=dlt)
    assert low.figure <= exact <= high.figure * (1 + 1e-6)
    assert high.figure < 1.002 * exact
    assert low.interval > 0.0


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
def test_ours_lies_within_it_for_many_rounds_that_differ(adjacency):
    rounds = {(1.0, 0.01): 300, (1.3, 0.02): 200, (6.0, 1.0): 2, (9.0, 0.0): 5}
    ours = composed_epsilon(rounds, delta=1e-6, adjacency=adjacency)
    low, high = bracket(rounds, delta=1e-6, adjacency=adjacency)
    assert low.figure <= ours <= 1.001 * high.figure
    assert high.figure <= 1.001 * ours
    backwards = dict(reversed(rounds.items()))
    assert epsilon_estimate(backwards, delta=1e-6, adjacency=adjacency) == high


@pytest.mark.parametrize(
    ("rounds", "how", "said"),
    [
        ({(1.0, 0.01): 10}, {"delta": 1e-12}, "delta=1e-12 is below 1e-10"),
        ({(100.0, 0.01): 10**6}, {"delta": 1e-9}, "delta=1e-09 is below 1e-08"),
        ({(1e-5, 0.01): 10}, {}, "noise_multiplier=1e-05 makes losses too large"),
        ({(0.02, 0.3): 4}, {}, "epsilon above 700 is beyond it"),
        ({(1e9, 0.5): 10}, {"delta": 1e-10}, "rounding errors: the loss of a round is too small"),
        ({(0.3, 0.5): 10**7}, {}, "it would need .* grid points, and 20 seconds and 1 GB allow"),
        (
            {(1.0 + k / 1000, 0.01): 1 for k in range(1000)},
            {},
            "1000 different rounds take too long",
        ),
        ({(1.0 + k / 100, 0.01): 3 for k in range(250)}, {}, "it would need .* grid points"),
        (
            {Event(1.0, group(3, 0.01)): 10},
            {"adjacency": "replace-one"},
            "no bound for several records that are replaced",
        ),
    ],
)
def test_what_it_cannot_do_is_refused_before_a_grid_is_filled(rounds, how, said, monkeypatch):
    if "700" not in said:
        monkeypatch.setattr(estimates, "_composed", None)  # whoever fills a grid fails
    with pytest.raises(Unanswered, match=said):
        epsilon_estimate(rounds, **{"delta": 1e-5, **how})


def test_a_ball_is_answered_where_it_is_one_step_of_its_diameter():
    step = epsilon_estimate({(5.0, 0.1): 10}, delta=1e-5).figure
    ball = {Event(10.0, poisson(0.1), Reach.BALL): 10}
    assert epsilon_estimate(ball, delta=1e-5).figure == step
    # In full batches replacing moves a sum, and a ball, by twice the clip norm alike.
    full = {Event(20.0, poisson(1.0), reach): 10 for reach in (Reach.SUM, Reach.BALL)}
    one, other = (
        epsilon_estimate({event: 10}, delta=1e-5, adjacency="replace-one").figure for event in full
    )
    assert one == other > 0


ADDED, BLANK, REPLACED = "add-or-remove-one", "zero-out", "replace-one"
CUT = Drawing(Scheme.TRUNCATED, 20, 6, 20).event(1.5, Reach.SUM, 0.3, added=False)


@pytest.mark.parametrize(
    ("event", "count", "adjacency"),
    [
        (Event(2.0, group(3, 0.1)), 20, ADDED),
        (Event(2.0, group(3, 0.1)), 20, BLANK),
        (Event(2.0, cohort(0.2, 3, 0.1)), 50, ADDED),
        (Event(2.0, poisson(0.02), coin=0.1), 1000, REPLACED),
        (Event(2.0, poisson(0.02), Reach.PLACE), 1000, BLANK),
        (Event(2.0, poisson(0.02), Reach.PLACE), 1000, REPLACED),
        (Event(2.0, poisson(0.02), Reach.BALL), 1000, BLANK),
        (CUT, 5, ADDED),
        (CUT, 5, BLANK),
        (CUT, 5, REPLACED),
    ],
)
def test_ours_lies_within_it_for_users_balls_places_and_lotteries(event, count, adjacency):
    # Two grids of two libraries, of 1e-4 and 5e-4 of epsilon: 1e-3 tells a wrong pair, whose
    # figure differs by percents.
    ours = composed_epsilon({event: count}, delta=1e-5, adjacency=adjacency)
    found = second_opinion({event: count}, ours=ours, delta=1e-5, adjacency=adjacency)
    assert found.because == ""
    assert 0.3 * ours < found.optimistic <= ours
    assert ours * (1 - 1e-4) <= found.pessimistic <= ours * (1 + 1e-3)


@pytest.mark.parametrize(
    ("event", "adjacency", "cheap"),
    [
        (Event(2.0, group(3, 0.1)), ADDED, Event(2.0, poisson(0.3))),  # as one record
        (Event(2.0, poisson(0.02), Reach.PLACE), BLANK, Event(2.0, poisson(0.02))),  # as if absent
        (CUT, REPLACED, CUT._replace(coin=1.0, otherwise=None)),  # as if it pushed nobody out
    ],
)
def test_a_pair_that_is_too_cheap_is_not_confirmed(event, adjacency, cheap):
    too_small = composed_epsilon({cheap: 20}, delta=1e-5, adjacency=adjacency)
    found = second_opinion({event: 20}, ours=too_small, delta=1e-5, adjacency=adjacency)
    assert not found.confirms


def test_several_records_that_are_always_there_are_one_of_their_distance():
    three = Event(6.0, ParticipationPattern((3.0,), (1.0,)))
    for adjacency in (ADDED, REPLACED):
        found = epsilon_estimate({three: 4}, delta=1e-5, adjacency=adjacency)
        assert found == epsilon_estimate({(2.0, 1.0): 4}, delta=1e-5, adjacency=adjacency)


@pytest.mark.parametrize(("adjacency", "printed"), [(REPLACED, 7.1107), (ADDED, 6.9445)])
def test_its_own_figure_of_cut_batches_takes_vectors_that_are_four_clip_norms_apart(
    adjacency, printed
):
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld.privacy_loss_distribution import (
        from_truncated_subsampled_gaussian_mechanism,
    )

    relation = NeighboringRelation
    one = from_truncated_subsampled_gaussian_mechanism(
        20,
        0.3,
        6,
        1.5,
        value_discretization_interval=1e-3,
        neighboring_relation=relation.REPLACE_ONE
        if adjacency == REPLACED
        else relation.ADD_OR_REMOVE_ONE,
    )
    theirs = one.self_compose(5).get_epsilon_for_delta(1e-5)
    assert theirs == pytest.approx(printed, rel=1e-3)
    # In a full batch it takes +2 against -2, at the rate of ours; with that pair ours is theirs.
    assert CUT.otherwise is not None
    apart = CUT._replace(
        otherwise=CUT.otherwise._replace(reach=Reach.SUM, noise_multiplier=1.5 / 2)
    )
    if adjacency == REPLACED:
        ours = composed_epsilon({apart: 5}, delta=1e-5, adjacency=adjacency)
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert composed_epsilon({CUT: 5}, delta=1e-5, adjacency=adjacency) < theirs


def test_what_costs_nothing_is_free_and_no_sampling_costs_more_than_being_sampled():
    assert epsilon_estimate({}, delta=1e-5).figure == 0.0
    assert epsilon_estimate({(1.0, 0.0): 5, (math.inf, 0.5): 5}, delta=1e-5).figure == 0.0
    assert epsilon_estimate({(0.5, 1e-9): 100}, delta=1e-5).figure == 0.0
    assert delta_estimate({(1.0, 0.0): 5}, epsilon=1.0) == 0.0


def test_an_error_of_the_library_is_a_reason(monkeypatch):
    from dp_accounting.pld import privacy_loss_distribution

    def fails(*_, **__):
        raise ValueError("deltas are not in order")

    monkeypatch.setattr(privacy_loss_distribution, "from_gaussian_mechanism", fails)
    with pytest.raises(Unanswered, match="it fails: deltas are not in order"):
        epsilon_estimate({(1.0, 0.01): 10}, delta=1e-5)


@pytest.mark.parametrize("place", ["get_epsilon_for_delta", "self_compose"])
@pytest.mark.parametrize("error", [OverflowError("math range error"), MemoryError(), IndexError()])
def test_an_error_of_its_distribution_is_a_reason(place, error, monkeypatch):
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(PrivacyLossDistribution, place, fails)
    with pytest.raises(Unanswered, match=f"it fails: {str(error) or type(error).__name__}"):
        epsilon_estimate({(1.0, 0.01): 10}, delta=1e-5)


def test_an_error_in_delta_is_a_reason(monkeypatch):
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    def fails(*_, **__):
        raise OverflowError("math range error")

    monkeypatch.setattr(PrivacyLossDistribution, "get_delta_for_epsilon", fails)
    with pytest.raises(Unanswered, match="it fails: math range error"):
        delta_estimate({(1.0, 0.01): 10}, epsilon=1.0)


@pytest.mark.parametrize(
    ("count", "adjacency"), [(10**6, "add-or-remove-one"), (800_000, "replace-one")]
)
def test_losses_beyond_the_range_of_floats_are_a_reason_of_the_lower_bound(count, adjacency):
    found = second_opinion({(1.0, 0.01): count}, ours=139.1, delta=1e-5, adjacency=adjacency)
    assert found.because == "it fails: math range error"


@pytest.mark.slow
def test_as_an_accountant_it_answers_every_question():
    by = {"delta": 1e-5, "sampling_rate": 0.01, "accountant": "dp-accounting"}
    spent = epsilon(noise_multiplier=1.0, rounds=1000, **by)
    assert spent == pytest.approx(1.8283, rel=2e-4)
    needed = noise_multiplier(epsilon=1.0, rounds=1000, **by)
    assert needed == pytest.approx(1.41464, rel=2e-4)
    assert 0.9999 < epsilon(noise_multiplier=needed, rounds=1000, **by) <= 1.0
    assert max_rounds(noise_multiplier=1.0, epsilon=2.0, **by) == 1202
    found = delta(
        noise_multiplier=1.0, epsilon=2.0, rounds=1000, sampling_rate=0.01,
        accountant="dp-accounting",
    )  # fmt: skip
    assert found == pytest.approx(2.668e-6, rel=1e-3)
    rounds = {(1.0, 0.01): 500, (2.0, 0.01): 500}
    scale = scale_for(rounds, epsilon=1.0, delta=1e-5, accountant="dp-accounting")
    scaled = {(scale * m, q): n for (m, q), n in rounds.items()}
    assert 0.999 < composed_epsilon(scaled, delta=1e-5, accountant="dp-accounting") <= 1.0
    assert Accountant("dp-accounting").kind == "upper bound"


def test_as_an_accountant_it_is_refused_by_its_name_with_the_reason_and_the_remedy():
    said = r"accountant='dp-accounting' does not answer: delta=1e-12 .*; use accountant='pld'"
    how = {"noise_multiplier": 1.0, "rounds": 10, "sampling_rate": 0.1}
    with pytest.raises(ValueError, match=said):
        epsilon(**how, delta=1e-12, accountant="dp-accounting")
    with pytest.raises(ValueError, match="does not answer: delta at epsilon=30 lies below"):
        delta(**how, epsilon=30.0, accountant="dp-accounting")
    assert epsilon(**{**how, "noise_multiplier": 0.0}, delta=0.1, accountant="dp-accounting") == (
        math.inf
    )


def test_other_accountants_still_add_up_equal_rounds_only():
    with pytest.raises(ValueError, match="accountant='rdp' adds up equal rounds only"):
        composed_epsilon({(1.0, 0.1): 1}, delta=1e-5, accountant="rdp")
    assert composed_delta({(1.0, 0.1): 1}, epsilon=1.0) > 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_the_range_of_a_loss_and_its_moments_are_those_of_the_pair(rate, replace):
    law = Law.REPLACED if replace else Law.ADDED
    found = losses_of(Kind(multiplier=2.0, moves=poisson(rate), law=law), reach=9.0)
    assert len(found) == (1 if replace or rate == 1.0 else 2)
    for one in found:
        assert one.log_moments(np.zeros(1))[0] == pytest.approx(0.0, abs=1e-9)  # P adds up to 1
        assert one.log_moments(-np.ones(1))[0] == pytest.approx(0.0, abs=1e-3)  # and so does Q
        assert one.losses.max() <= one.range[1]
