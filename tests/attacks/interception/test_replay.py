from dataclasses import replace

import pytest

from overhear.attacks.interception.replay import replay
from overhear.training.graphs.topologies import star
from tests.attacks.interception.replays import planted, trial


def test_a_replay_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="neighbour"):
        replace(trial("dpdl", graph=star(5)), model_owner=3)
    with pytest.raises(ValueError, match="contains the victim 1"):
        trial("dpdl", adversary="neighbour:1")
    with pytest.raises(ValueError, match="must lie within the 5 rounds"):
        trial("dpdl", round=5, together=2)


def test_a_replay_holds_the_attacked_rounds_and_the_one_after():
    played = replay(trial("dp-dpsgd", round=2, together=2), planted())
    assert list(played.rounds) == [0, 1, 2, 3, 4]
    assert played.attacked == [2, 3]


def test_all_others_are_everybody_but_the_victim():
    assert trial("dpdl", adversary="all-others").parsed_adversary().agents == {0, 2, 3, 4}
