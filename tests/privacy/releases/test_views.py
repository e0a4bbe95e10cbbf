"""Figures of declared releases: each fact of the log moves them as the algebra says."""

import math

import pytest

from overhear.privacy.accounting.accountant import epsilon
from overhear.privacy.errors import InputError, UnsupportedView
from tests.privacy.releases.logs import account, mu, one, write


def shared(sender: int = 0, *, weight: float = 1.0, **changed):
    return one(sender, of=[{"owner": sender, "vector": "g", "weight": weight}], **changed)


def test_equal_rounds_cost_what_the_accountant_says(tmp_path):
    log = write(tmp_path / "a.jsonl", {t: [one()] for t in range(1, 101)})
    found = account(log)["eavesdropper"]
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=100, sampling_rate=0.1)
    assert found.epsilon == expected
    assert str(found.status) == "declared"


def test_a_release_without_noise_is_infinite_and_named(tmp_path):
    log = write(tmp_path / "a.jsonl", {1: [one(noise=[])]})
    found = account(log)["eavesdropper"]
    assert found.epsilon == math.inf
    assert str(found.status) == "no protection"
    assert "model of agent 0 to agent 1" in found.because


@pytest.mark.parametrize(
    ("releases", "expected"),
    [
        ([one()], 0.5),
        ([one(noise=1.0)], 1.0),
        ([one(clip=3.0)], 1.5),
        ([one(of=[{"owner": 0, "weight": 0.25}])], 0.125),
        ([one(of=[{"owner": 0, "weight": -1}])], 0.5),
        # Two sums of one batch: two vectors, the worst of which align with their own noise each.
        ([one(), one(kind="other")], 2**0.5 / 2),
        # The same vector twice is two looks at it.
        ([shared(), shared(kind="other")], 2**0.5 / 2),
        # Two vectors in one release under one noise add up.
        ([one(of=[{"owner": 0}, {"owner": 0}])], 1.0),
        # Parts of one vector share its bound.
        (
            [
                one(of=[{"owner": 0, "vector": "g", "part": "x"}], noise=1.0),
                one(kind="dual", of=[{"owner": 0, "vector": "g", "part": "y"}], noise=1.0),
            ],
            1.0,
        ),
        # Noise of two deviations adds up in squares.
        ([one(noise=[{"std": 3.0}, {"std": 4.0}])], 0.2),
        # A release that holds no data costs nothing.
        ([one(), one(kind="public", of=[], noise=[])], 0.5),
    ],
)
def test_mu_of_a_round(tmp_path, releases, expected):
    assert mu(write(tmp_path / "a.jsonl", {1: releases})) == pytest.approx(expected, rel=1e-9)


def test_noise_that_cancels_between_two_messages_is_found(tmp_path):
    first = shared(noise=[{"id": "z", "std": 2.0}])
    second = shared(kind="other", weight=0.5, noise=[{"id": "z", "std": 2.0}])
    log = write(tmp_path / "a.jsonl", {1: [first, second]})
    found = account(log)["eavesdropper"]
    assert found.epsilon == math.inf
    assert "model of agent 0" in found.because
    assert "other of agent 0" in found.because


def test_pairwise_noise_hides_from_outsiders_and_not_from_those_who_know_it(tmp_path):
    """Two agents add z and -z; a third sees both messages, whose sum shows both vectors."""
    known = {"id": "pair 0-1", "std": 10.0, "known_to": [0, 1]}
    releases = [
        one(0, to=[2], noise=[{"std": 2.0}, known]),
        one(1, to=[2], noise=[{"std": 2.0}, {**known, "weight": -1}]),
    ]
    log = write(tmp_path / "a.jsonl", {1: releases}, depends_on="public")
    # Of messages g0 + n0 + z and g1 + n1 - z a victim in the first moves (1, 0).
    covariance = (104.0, -100.0)
    outsider = math.sqrt(covariance[0] / (covariance[0] ** 2 - covariance[1] ** 2))
    assert mu(log, "neighbour:2") == pytest.approx(outsider, rel=1e-9)
    assert mu(log, "coalition:1,2") == pytest.approx(0.5, rel=1e-9)
    assert mu(log, "eavesdropper") == pytest.approx(outsider, rel=1e-9)
    # Agent 1 sees its own message alone, which holds nothing of agent 0's.
    assert mu(log, "neighbour:1") == 0.0


def test_where_anything_may_depend_on_any_release_everybody_counts_as_seeing_all(tmp_path):
    log = write(tmp_path / "a.jsonl", {1: [one(0, to=[1])]})
    assert mu(log, "neighbour:2") == 0.5
    public = write(tmp_path / "b.jsonl", {1: [one(0, to=[1])]}, depends_on="public")
    assert mu(public, "neighbour:2") == 0.0
    assert mu(public, "neighbour:1") == 0.5


def test_encrypted_links_hide_from_the_eavesdropper_what_is_not_public(tmp_path):
    rounds = {1: [one(0, to=[1]), one(0, to="all", kind="sum", noise=4.0)]}
    log = write(tmp_path / "a.jsonl", rounds, depends_on="public", links="encrypted")
    assert mu(log, "eavesdropper") == 0.25
    assert mu(log, "neighbour:1") == pytest.approx(math.hypot(0.5, 0.25))
    released = write(tmp_path / "b.jsonl", rounds, links="encrypted")
    assert mu(released, "eavesdropper") == pytest.approx(math.hypot(0.5, 0.25))


def test_the_server_is_asked_about_where_it_takes_part(tmp_path):
    rounds = {1: [one(0, to="server", noise=[{"std": 1.0, "known_to": [0]}])]}
    log = write(tmp_path / "a.jsonl", rounds, depends_on="public", links="encrypted")
    found = account(log)
    assert list(found) == ["server", "eavesdropper", "neighbour"]
    assert found["server"].mu_per_round == 1.0
    assert found["neighbour"].mu_per_round == 0.0


def test_noise_that_the_server_knows_hides_nothing_from_it(tmp_path):
    noise = [{"std": 1.0, "known_to": ["server"]}]
    log = write(tmp_path / "a.jsonl", {1: [one(0, to="server", noise=noise)]})
    assert account(log)["server"].epsilon == math.inf
    assert account(log)["eavesdropper"].mu_per_round == 1.0


def test_a_rate_without_a_sampler_counts_as_one(tmp_path):
    log = write(tmp_path / "a.jsonl", {1: [one()]}, sampler="other")
    found = account(log)
    assert found["eavesdropper"].epsilon == epsilon(
        noise_multiplier=2.0, delta=1e-5, rounds=1, sampling_rate=1.0
    )
    assert "count at rate 1" in found.warnings[0]
    sampled = write(tmp_path / "b.jsonl", {1: [one(sampler="poisson")]}, sampler="other")
    assert account(sampled)["eavesdropper"].epsilon < found["eavesdropper"].epsilon


def test_two_batches_of_a_round_are_two_releases(tmp_path):
    first, second = one(), one(kind="other", of=[{"owner": 0, "batch": "second"}])
    log = write(tmp_path / "a.jsonl", {1: [first, second]})
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=2, sampling_rate=0.1)
    assert account(log)["eavesdropper"].epsilon == pytest.approx(expected, rel=1e-9)


def test_two_batches_under_one_noise_are_not_amplified(tmp_path):
    both = one(of=[{"owner": 0}, {"owner": 0, "batch": 1}])
    log = write(tmp_path / "a.jsonl", {1: [both]})
    expected = epsilon(noise_multiplier=1.0, delta=1e-5, rounds=1, sampling_rate=1.0)
    assert account(log)["eavesdropper"].epsilon == pytest.approx(expected, rel=1e-9)


def test_noise_that_goes_from_round_to_round_makes_one_release_of_all(tmp_path):
    """A difference of two rounds shows both vectors without the noise that they share."""
    shared_noise = [{"id": "z", "std": 2.0}]
    log = write(tmp_path / "a.jsonl", {t: [one(noise=shared_noise)] for t in (1, 2)})
    assert account(log)["eavesdropper"].epsilon == math.inf
    hidden = [{"id": "z", "std": 2.0}, {"std": 1.0}]
    log = write(tmp_path / "b.jsonl", {t: [one(noise=hidden)] for t in (1, 2)})
    found = account(log)["eavesdropper"]
    # Covariance (5, 4; 4, 5) and vectors (1, -1) for the worst signs: 2 / (5 - 4).
    assert found.mu_per_round == pytest.approx(2**0.5, rel=1e-9)
    assert found.sampling.startswith("any")
    expected = epsilon(noise_multiplier=2**-0.5, delta=1e-5, rounds=1, sampling_rate=1.0)
    assert found.epsilon == pytest.approx(expected, rel=1e-9)


def test_a_vector_that_is_sent_again_later_is_one_vector(tmp_path):
    again = one(of=[{"owner": 0, "vector": "g", "round": 1}])
    log = write(tmp_path / "a.jsonl", {1: [shared()], 2: [again]})
    assert mu(log) == pytest.approx(2**0.5 / 2)
    assert account(log)["eavesdropper"].sampling.startswith("any")


def test_a_round_that_is_gone_through_again_costs_again(tmp_path):
    once = [{"round": t, "releases": [one()]} for t in (1, 2, 3)]
    again = [{"resumed_after": 1}, *once[1:]]
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=5, sampling_rate=0.1)
    assert account(write(tmp_path / "a.jsonl", once + again))["eavesdropper"].epsilon == expected


def test_a_line_that_was_cut_off_counts_as_one_more_of_each_release(tmp_path):
    lines = [{"round": t, "releases": [one()]} for t in (1, 2, 3)]
    torn = write(tmp_path / "a.jsonl", [*lines, '{"round": 4, "rel'], end="")
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=4, sampling_rate=0.1)
    found = account(torn)
    assert found["eavesdropper"].epsilon == expected
    assert "cut off" in found.warnings[0]
    went_on = write(tmp_path / "b.jsonl", [*lines, '{"round": 4, "rel', {"resumed_after": 3}])
    assert account(went_on)["eavesdropper"].epsilon == expected


def test_the_worst_victim_and_the_worst_neighbour_are_found(tmp_path):
    rounds = {t: [one(0), one(1, noise=1.0), one(2, noise=3.0)] for t in (1, 2)}
    found = account(write(tmp_path / "a.jsonl", rounds), adversaries=["neighbour", "all-others"])
    assert found["neighbour"].victim == 1
    assert found["neighbour"].mu_per_round == 1.0
    assert found["all-others"].victim == 1


def test_agents_with_different_rates_are_compared_by_epsilon(tmp_path):
    rounds = {t: [one(0, rate=0.5), one(1, noise=1.9, rate=0.01)] for t in (1, 2)}
    found = account(write(tmp_path / "a.jsonl", rounds))["eavesdropper"]
    assert found.victim == 0
    assert found.epsilon == epsilon(noise_multiplier=2.0, delta=1e-5, rounds=2, sampling_rate=0.5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "b", "of": [{"owner": 0, "vector": "g", "clip": 2}]}, "clip norms 1 and 2"),
        ({"kind": "b", "of": [{"owner": 0, "rate": 0.2}]}, "rates 0.1 and 0.2"),
        ({"kind": "b", "noise": [{"id": "z", "std": 1, "known_to": [1]}]}, "known to"),
    ],
)
def test_statements_that_contradict_each_other_are_refused(tmp_path, changed, message):
    first = shared(noise=[{"id": "z", "std": 1.0}])
    with pytest.raises(InputError, match=message):
        account(write(tmp_path / "a.jsonl", {1: [first, one(**changed)]}))


@pytest.mark.parametrize("name", ["final-models", "single-message"])
def test_adversaries_that_a_log_does_not_know_are_refused(tmp_path, name):
    log = write(tmp_path / "a.jsonl", {1: [one()]})
    with pytest.raises(InputError, match="a log does not say"):
        account(log, adversaries=[name])


def test_a_torn_line_where_noise_goes_on_is_refused(tmp_path):
    noise = [{"id": "z", "std": 2.0}, {"std": 1.0}]
    lines = [{"round": t, "releases": [one(noise=noise)]} for t in (1, 2)]
    with pytest.raises(UnsupportedView, match="cut off"):
        account(write(tmp_path / "a.jsonl", [*lines, '{"rou'], end=""))


def test_clients_are_not_amplified_against_who_sees_that_they_take_part(tmp_path):
    """To the server a client's own message is that; to all goes the sum, which does not tell."""
    own = [
        one(k, to="server", of=[{"owner": k, "vector": "g"}], noise=[{"std": 1.0}])
        for k in range(3)
    ]
    total = one("server", to="all", of=[{"owner": k, "vector": "g"} for k in range(3)], noise=4.0)
    how = {"unit": "client", "depends_on": "public", "links": "encrypted"}
    log = write(tmp_path / "a.jsonl", {t: [*own, total] for t in range(1, 11)}, **how)
    found = account(log, adversaries=["server", "eavesdropper"])
    hidden = {"delta": 1e-5, "rounds": 10, "noise_multiplier": 4.0}
    assert found["eavesdropper"].epsilon == pytest.approx(epsilon(sampling_rate=0.1, **hidden))
    # The server added the noise of the sum, and knows it: the sum of three vectors is clean.
    assert found["server"].epsilon == math.inf
    alone = write(tmp_path / "b.jsonl", dict.fromkeys(range(1, 11), own), **how)
    seen = {"delta": 1e-5, "rounds": 10, "noise_multiplier": 1.0}
    assert account(alone)["server"].epsilon == epsilon(sampling_rate=1.0, **seen)
    records = write(
        tmp_path / "c.jsonl", dict.fromkeys(range(1, 11), own), **{**how, "unit": "record"}
    )
    assert account(records)["server"].epsilon == epsilon(sampling_rate=0.1, **seen)


def test_a_client_is_the_unit_where_the_log_says_so(tmp_path):
    found = account(write(tmp_path / "a.jsonl", {1: [one()]}, unit="client"))
    assert str(found.said_of.unit) == "client"


def test_ten_thousand_rounds_that_differ_by_names_alone_are_looked_at_once(tmp_path):
    rounds = {
        t: [one(k, noise=[{"id": f"{k} in {t}", "std": 2.0}]) for k in range(3)]
        for t in range(1, 10_001)
    }
    log = write(tmp_path / "a.jsonl", rounds)
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=10_000, sampling_rate=0.1)
    assert account(log)["neighbour"].epsilon == expected
