"""What rounds cost whose batches are not Poisson: epochs, rounds that come again, worst agents."""

import math

import pytest

from overhear.privacy import EAVESDROPPER, Statement, Status, UnsupportedView
from overhear.privacy.accounting.gaussian import epsilon_from_mu
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.batches.sampling import Drawing, Scheme
from overhear.privacy.participation import Reach
from overhear.training import account
from overhear.training.exposure.events import accounted, counted
from overhear.training.exposure.guarantees import guarantee, run_epsilon
from overhear.training.exposure.sensitivity import (
    JointSensitivity,
    Release,
    UnsupportedMechanism,
    worst,
)

BLANK = Statement(delta=1e-5, adjacency=Adjacency.ZERO_OUT)
REPLACED = Statement(delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
TEN = Drawing(Scheme.SHUFFLED, 100, 10, 100)  # epochs of ten rounds


def shuffled(*releases, victim=0):
    return JointSensitivity(EAVESDROPPER, victim, releases, Status.PROVEN, "a test")


def spent(of, statement=BLANK, rounds=None):
    return run_epsilon(of, statement=statement, noise_multiplier=2.0, rounds=rounds)


def gaussian(squares):
    return pytest.approx(epsilon_from_mu(math.sqrt(squares) / 2.0, 1e-5), rel=1e-9)


def test_every_epoch_that_is_begun_counts():
    of = shuffled(Release(1.0, 0.1, 25, 1, drawn=TEN))
    assert spent(of) == gaussian(3)
    assert spent(of, REPLACED) == gaussian(12)
    assert spent(of, rounds=20) == gaussian(2)
    assert spent(of, rounds=21) == gaussian(3)


def test_a_clipped_mean_moves_by_twice_its_radius_whatever_becomes_of_the_record():
    of = shuffled(Release(1.0, 0.1, 10, 1, reach=Reach.BALL, drawn=TEN))
    assert spent(of) == spent(of, REPLACED) == gaussian(1)


def test_of_rounds_that_differ_an_epoch_costs_the_dearest():
    of = shuffled(Release(1.0, 0.1, 15, 1, 1, drawn=TEN), Release(2.0, 0.1, 15, 1, 16, drawn=TEN))
    assert spent(of) == gaussian(1 + 4 + 4)


def test_a_round_of_the_ledger_that_comes_again_counts_for_its_own_records():
    of = shuffled(Release(1.0, 0.1, 20, 1, drawn=TEN))
    entries = [0, *range(1, 21)]
    assert spent(accounted(of, entries)) == gaussian(2)
    assert spent(accounted(of, [*entries, 7, 7])) == gaussian(4)
    assert spent(accounted(of, entries, torn=True)) == gaussian(3)
    # A run that stopped early is accounted as planned, and what came again besides.
    assert spent(accounted(of, [0, 1, 2, 3, 3])) == gaussian(3)
    assert spent(of, rounds=[0, 1, 2, 3, 3]) == gaussian(2)


def test_a_fixed_batch_that_comes_again_is_drawn_anew():
    of = Drawing(Scheme.FIXED, 100, 10, 100)
    planned = shuffled(Release(1.0, 0.1, 20, 1, drawn=of))
    more = accounted(planned, [0, *range(1, 21), 7])
    assert more.releases[0].rounds == 21
    assert spent(more) > spent(planned)


def test_records_of_one_person_cost_as_many_times_the_mu_in_epochs():
    of = shuffled(Release(1.0, 0.1, 20, 1, drawn=TEN))
    three = run_epsilon(of, statement=BLANK, noise_multiplier=2.0, records=3)
    assert three == gaussian(9 * 2)


@pytest.mark.parametrize("scheme", [Scheme.FIXED, Scheme.TRUNCATED])
def test_records_that_push_each_other_out_are_refused(scheme):
    of = shuffled(Release(1.0, 0.1, 20, 1, drawn=Drawing(scheme, 100, 10, 100)))
    with pytest.raises(UnsupportedMechanism, match="push each other out"):
        run_epsilon(of, statement=BLANK, noise_multiplier=2.0, records=2)


def test_batches_that_interleave_are_refused_but_for_a_record_more():
    of = Drawing(Scheme.FIXED, 100, 10, 100)
    released = [Release(1.0, 0.1, 20, 2, interleaved=True, drawn=of)]
    assert counted(released, 1.0, Adjacency.ADD_OR_REMOVE_ONE)
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
        with pytest.raises(UnsupportedMechanism, match="interleaves"):
            counted(released, 1.0, adjacency)


def test_a_record_more_has_no_figure_in_epochs():
    with pytest.raises(UnsupportedMechanism, match="every later batch holds other records"):
        counted([Release(1.0, 0.1, 20, 1, drawn=TEN)], 1.0, Adjacency.ADD_OR_REMOVE_ONE)


def test_the_worst_agent_is_bounded_by_the_fewest_records():
    few = Drawing(Scheme.SHUFFLED, 50, 10, 50)
    every = [
        shuffled(Release(1.0, 0.1, 20, 1, drawn=TEN)),
        shuffled(Release(0.9, 0.2, 20, 1, drawn=few), victim=1),
    ]
    top = worst(every)
    assert spent(top) == gaussian(4)
    assert spent(top) >= max(spent(one) for one in every)


def test_rounds_that_differ_in_epochs_of_two_lengths_ask_for_a_victim():
    few = Drawing(Scheme.SHUFFLED, 50, 10, 50)

    def of(drawn):
        return shuffled(
            Release(1.0, 0.1, 15, 1, 1, drawn=drawn), Release(2.0, 0.1, 15, 1, 16, drawn=drawn)
        )

    with pytest.raises(UnsupportedView, match="name one victim"):
        worst([of(TEN), of(few)])


def test_what_shuffling_costs_at_least_is_stated_where_one_sum_moves():
    of = shuffled(Release(1.0, 0.1, 20, 1, drawn=TEN))
    stated = guarantee("eavesdropper", of, statement=BLANK, noise_multiplier=2.0)
    assert 0 < stated.at_least < stated.epsilon
    two = shuffled(Release(1.0, 0.1, 20, 2, drawn=TEN))
    again = guarantee("eavesdropper", two, statement=BLANK, noise_multiplier=2.0)
    assert again.at_least is None
    cyclic = shuffled(Release(1.0, 0.1, 20, 1, drawn=TEN._replace(scheme=Scheme.CYCLIC)))
    stated = guarantee("eavesdropper", cyclic, statement=BLANK, noise_multiplier=2.0)
    assert stated.at_least is None


@pytest.mark.parametrize("links", ["clear", "encrypted"])
def test_of_final_models_alone_no_least_cost_of_shuffling_is_stated(links):
    # Its releases are those of all rounds, which bound what a final model tells from above alone.
    found = account(
        "dp-dpsgd", graph="ring:3", rounds=20, sampling_rate=0.1, delta=1e-5,
        noise_multiplier=2.0, adjacency="zero-out", sampling="shuffled", records=100,
        batch_size=10.0, links=links, adversaries=["eavesdropper", "final-models"],
    )  # fmt: skip
    assert found["final-models"].at_least is None
    assert (found["eavesdropper"].at_least is None) == (links == "encrypted")
