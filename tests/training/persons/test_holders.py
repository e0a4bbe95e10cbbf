"""One person with records at several agents, for every adversary who holds none of them."""

import math

import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from dp_accounting.pld import PLDAccountant

from overhear.privacy.accounting.accountant import composed_epsilon
from overhear.privacy.errors import InputError, InputTypeError, UnsupportedView
from overhear.privacy.guarantee import Statement
from overhear.privacy.participation import Event, group, poisson
from overhear.training import account
from overhear.training.exposure.guarantees import opinion_on
from overhear.training.step.round import Round
from tests.training.states import State

AT = {"rounds": 1000, "sampling_rate": 0.02, "delta": 1e-5, "noise_multiplier": 2.0}


def of(name, holders, *, graph="ring:10", adversary="eavesdropper", **changed):
    return account(name, graph=graph, holders=holders, adversaries=[adversary], **(AT | changed))


@pytest.mark.parametrize(
    ("name", "holders", "epsilon"),
    [
        ("dp-dpsgd", [4], 1.3297),
        ("dp-dpsgd", [0, 1], 1.9335),
        ("dp-dpsgd", [0, 3, 7], 2.4150),
        ("dp-dpsgd", {0: 3, 1: 2}, 5.6429),
        ("cdp-dsgd", [0, 1], 2.8869),  # all enter the server's one noisy sum
        ("whisper", [0, 1], 2.4341),  # noise that cancels between neighbours
    ],
    ids=str,
)
def test_epsilon_is_that_of_an_event_for_each_holder(name, holders, epsilon):
    found = of(name, holders)["eavesdropper"]
    assert found.epsilon == pytest.approx(epsilon, abs=6e-5)
    assert str(found.status) == "proven"
    each = holders if isinstance(holders, dict) else dict.fromkeys(holders, 1)
    assert {one.agent: one.records for one in found.holders} == each


def test_noise_that_neighbours_share_is_charged_to_both_by_one_certificate():
    known = of("whisper", [0, 1])
    first, second = known.joint_sensitivities["eavesdropper"].releases
    together = math.hypot(first.joint_sensitivity, second.joint_sensitivity)
    assert together == pytest.approx(1.6820, abs=5e-5)
    # Where agents are far apart, and in an algorithm of independent noise, each keeps its own.
    apart = of("dp-dpsgd", [0, 5]).joint_sensitivities["eavesdropper"].releases
    assert [r.joint_sensitivity for r in apart] == pytest.approx([1.0, 1.0])


def test_one_holder_of_one_record_is_a_victim():
    for name in ("dpdl", "whisper", "decor", "dp-netfleet"):
        one = of(name, [3])["eavesdropper"].epsilon
        victim = account(name, graph="ring:10", adversaries=["eavesdropper"], victim=3, **AT)
        assert one == pytest.approx(victim["eavesdropper"].epsilon, rel=1e-9), name


def test_several_records_at_one_holder_are_the_group_that_is_stated_besides():
    several = of("dpdl", {2: 4})["eavesdropper"].epsilon
    besides = account(
        "dpdl", graph="ring:10", adversaries=["eavesdropper"], records_per_person=4, **AT
    )["eavesdropper"]
    ((records, epsilon),) = [(one.records, one.epsilon) for one in besides.group or ()]
    assert (records, epsilon) == (4, pytest.approx(several, rel=1e-6))


def test_each_holder_and_each_record_more_costs_more():
    found = [of("whisper", held)["eavesdropper"].epsilon for held in ([0], [0, 1], {0: 2, 1: 1})]
    assert found == sorted(found)
    assert found[0] < found[1] < found[2]


def test_another_library_agrees_on_a_record_at_two_agents():
    known = of("dp-dpsgd", [0, 1])
    said = opinion_on(
        known.epsilon("eavesdropper"), known.joint_sensitivities["eavesdropper"],
        statement=known.said_of, noise_multiplier=2.0,
    )  # fmt: skip
    assert said.confirms
    assert said.pessimistic == pytest.approx(1.9335, rel=2e-3)


@pytest.mark.slow
def test_another_library_agrees_on_several_records_at_two_agents():
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for records in (3, 2):
        drawn = [
            math.comb(records, j) * 0.02**j * 0.98 ** (records - j) for j in range(records + 1)
        ]
        event = MixtureOfGaussiansDpEvent(2.0, list(map(float, range(records + 1))), drawn)
        accountant.compose(event, 1000)
    other = accountant.get_epsilon(1e-5)
    assert of("dp-dpsgd", {0: 3, 1: 2}).epsilon("eavesdropper") == pytest.approx(other, rel=2e-2)


def test_what_is_composed_is_an_event_for_each_holder_in_all_rounds():
    events = {Event(2.0, group(3, 0.02)): 1000, Event(2.0, group(2, 0.02)): 1000}
    assert of("dp-dpsgd", {0: 3, 1: 2}).epsilon("eavesdropper") == pytest.approx(
        composed_epsilon(events, delta=1e-5), rel=1e-9
    )
    replaced = of("dp-dpsgd", [0, 1], adjacency="replace-one").epsilon("eavesdropper")
    assert replaced == pytest.approx(
        composed_epsilon({Event(2.0, poisson(0.02)): 2000}, delta=1e-5, adjacency="replace-one"),
        rel=1e-9,
    )


def test_a_target_is_met_for_the_person():
    known = account(
        "whisper", graph="ring:6", rounds=50, sampling_rate=0.1, delta=1e-5, epsilon=2.0,
        holders=[0, 1],
    )  # fmt: skip
    assert 1.99 < known["eavesdropper"].epsilon <= 2.0
    tests = account(
        "dp-dpsgd", graph="ring:6", rounds=50, sampling_rate=0.1, delta=1e-5, advantage=0.1,
        holders=[0, 1],
    )  # fmt: skip
    assert 0.099 < tests.reached <= 0.1


def test_the_usual_adversaries_hold_none_of_the_records():
    known = account("dp-dpsgd", graph="ring:4", holders=[0, 1], **AT)
    assert set(known) == {"eavesdropper", "neighbour", "final-models"}
    assert known["neighbour"].worst_adversary in ("neighbour:2", "neighbour:3")
    everybody = account("dp-dpsgd", graph="ring:4", holders=[0, 1, 2, 3], **AT)
    assert set(everybody) == {"eavesdropper", "final-models"}
    hidden = account("dp-dpsgd", graph="ring:4", holders=[0, 1], links="encrypted", **AT)
    assert set(hidden) == {"eavesdropper", "neighbour", "all-others", "final-models"}
    assert hidden["all-others"].epsilon >= hidden["neighbour"].epsilon


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"holders": [0, 0]}, r"holders=\[0, 0\] must be numbers of agents, from 0, each"),
        ({"holders": [0, -1]}, "from 0, each once"),
        ({"holders": [0, 10]}, "holders has agent 10, and agents are 0..9"),
        ({"holders": "01"}, "must be a list of agents"),
        ({"holders": 3}, "must be a list of agents"),
        ({"holders": [True, 2]}, "holder True must be the number of an agent"),
        ({"holders": [0.0, 2]}, "holder 0.0 must be the number of an agent"),
        ({"holders": {0: 0}}, r"records_per_person=0 must lie in \[1, 1000\]"),
        ({"holders": {0: 900, 1: 900}}, r"records_per_person=1800 must lie in \[1, 1000\]"),
        ({"holders": {0: 1.5}}, "records_per_person=1.5 must be an integer"),
        ({"holders": [0, 1], "victim": 1}, "victim=1 is about the records of one agent"),
        ({"holders": [0, 1], "records_per_person": 2}, "say how many each holds instead"),
        ({"holders": [0, 1], "unit": "agent"}, "are about records, and unit"),
        ({"holders": [0, 1], "accountant": "rdp"}, "are added up by accountant='pld' alone"),
        ({"holders": [0, 1], "adversaries": ["neighbour:1"]}, "contains agent 1, which holds"),
        ({"holders": [0, 1], "adversaries": ["coalition:1,2"]}, "contains agent 1, which holds"),
        ({"holders": [0, 1], "adversaries": ["single-message"]}, "sees one message"),
        ({"holders": list(range(10)), "adversaries": ["neighbour"]}, "leaves no one"),
        ({"holders": list(range(10)), "adversaries": ["all-others"]}, "leaves no one"),
        ({"holders": [0, 1], "adversaries": ["bob"]}, "bob"),
    ],
    ids=str,
)
def test_what_cannot_be_stated_is_refused_with_its_reason(given, said):
    with pytest.raises((InputError, InputTypeError, UnsupportedView), match=said):
        account("dp-dpsgd", graph="ring:10", **(AT | given))


def begin(round: Round) -> State:
    """Every agent starts from the same public model."""
    return State(round.initial())


def of_means(state: State, round: Round, *, noise_std, clip_norm, batch_size, learning_rate):
    """Plain steps along clipped means."""
    mean = round.clipped_mean(
        state.x, batch=round.draw(), batch_size=batch_size, clip_norm=clip_norm
    )
    noisy = mean + round.noise(mean, std=noise_std)
    return State(round.mix(state.x - learning_rate * noisy, kind="model"))


def test_clipped_means_of_several_holders_are_refused_where_no_proof_covers_them():
    def means(holders, adjacency):
        at = AT | {"rounds": 10, "batch_size": 8.0, "adjacency": adjacency}
        names = ["eavesdropper"]
        return account(begin, of_means, graph="ring:4", holders=holders, adversaries=names, **at)

    added = means([0, 1], "add-or-remove-one")
    one = means([0], "add-or-remove-one")
    assert 0.0 < one.epsilon("eavesdropper") < added.epsilon("eavesdropper") < math.inf
    for adjacency in ("replace-one", "zero-out"):
        with pytest.raises(InputError, match="one of several holders makes, have no bound"):
            means([0, 1], adjacency)
        assert math.isfinite(means([0], adjacency).epsilon("eavesdropper"))


def test_without_noise_or_clipping_nothing_is_stated():
    bare = of("dp-dpsgd", [0, 1], graph="ring:4", rounds=5, noise_multiplier=0.0)["eavesdropper"]
    assert (bare.epsilon, str(bare.status)) == (math.inf, "no protection")
    published = of("dpdl", [0, 1], graph="ring:4", rounds=5, form="published")["eavesdropper"]
    assert str(published.status) != "proven"
    unclipped = of(
        "dp-dpsgd", [0, 1], graph="ring:4", rounds=5, noise_multiplier=0.0, clip_norm=None
    )["eavesdropper"]
    assert unclipped.epsilon == math.inf


def test_what_is_about_one_agent_is_not_told_of_a_person():
    known = of("dp-dpsgd", [0, 1], graph="ring:4", rounds=5)
    with pytest.raises(InputError, match="about the records of one agent"):
        known.epsilon_by_agent()
    with pytest.raises(InputError, match="about the records of one agent"):
        known.explain("eavesdropper")
    assert "all records of one person with 1 record at agent 0 and 1 record at agent 1" in (
        known.statement()
    )
    assert known.to_json()["adversaries"][0]["holders"] == [
        {"agent": 0, "records": 1},
        {"agent": 1, "records": 1},
    ]


def test_a_statement_says_whose_records_it_is_about():
    said = Statement(delta=1e-5, holders=((0, 3), (4, 1), (2, 1))).whose
    assert said == (
        "one person with 3 records at agent 0, 1 record at agent 4 and 1 record at agent 2"
    )
    assert Statement(delta=1e-5).whose == ""
