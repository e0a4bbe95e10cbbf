from dataclasses import replace

import pytest

from overhear.attacks.interception.replay import replay
from overhear.training.graphs.topologies import star
from tests.attacks.interception.replays import planted, trial


def test_a_trial_names_a_link_that_exists():
    with pytest.raises(ValueError, match="neighbour"):
        replace(trial("dpdl", graph=star(5)), model_owner=3)


def test_an_adversary_that_contains_the_victim_is_refused():
    with pytest.raises(ValueError, match="contains the victim 1"):
        trial("dpdl", adversary="neighbour:1")


def test_rounds_beyond_the_run_are_refused():
    with pytest.raises(ValueError, match="must lie within the 5 rounds"):
        trial("dpdl", round=5, together=2)


def test_a_replay_holds_the_attacked_rounds_and_the_one_after():
    played = replay(trial("dp-dpsgd", round=2, together=2), planted())
    assert list(played.rounds) == [0, 1, 2, 3, 4]
    assert played.attacked == [2, 3]


def test_all_others_are_everybody_but_the_victim():
    assert trial("dpdl", adversary="all-others").adversary().agents == {0, 2, 3, 4}
