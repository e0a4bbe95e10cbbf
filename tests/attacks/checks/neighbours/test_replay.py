"""A round made again differs by the record that was changed, and by nothing else."""

import torch

from overhear.attacks.checks.reference_sums import Oracle
from overhear.attacks.checks.replayed_round import Change, Judge, Replay
from overhear.training.data.store import Examples
from tests.attacks.checks.watched import a_run


def one(run, agent, at) -> Examples:
    shard = run.setting.shards[agent]
    return Examples(shard.inputs[at : at + 1], shard.targets[at : at + 1])


def test_without_a_change_a_round_is_what_it_was():
    run = a_run("dpdl")
    engine = Replay(run)
    for watched in reversed(run.rounds):
        found = engine.again(watched, {})
        values = [*found.given, *found.contributions, *found.end.values()]
        assert not any(value.any() for value in values)
        assert (found.noise, found.functions, found.messages) == (True, True, True)
        assert not engine.moved


def test_a_flipped_record_moves_each_sum_by_its_own_clipped_gradient():
    run = a_run("dpdl")
    watched, agent = run.rounds[2], 3
    drawn = watched.recorded.batches[0][agent].tolist()
    out, into = drawn[0], next(i for i in range(12) if i not in drawn)
    call = watched.recorded.calls[0]
    nothing = Examples(run.setting.shards[0].inputs[:0], run.setting.shards[0].targets[:0])
    for position, sign in ((out, -1.0), (into, 1.0)):
        found = Replay(run).again(watched, {agent: Change(position, one(run, 0, 0))})
        batches = [one(run, agent, position) if a == agent else nothing for a in range(5)]
        expected = sign * Oracle(run.setting.model).contributions(call, batches)
        torch.testing.assert_close(found.contributions[0], expected, rtol=1e-9, atol=1e-12)


def test_an_added_record_leaves_the_coins_of_all_others():
    run = a_run("dp-dpsgd", rate=1.0)
    engine = Replay(run)
    found = engine.again(run.rounds[1], {1: Change(None, one(run, 0, 0))})
    assert not engine.moved
    assert found.contributions[0][1].any()
    assert not found.contributions[0][[0, 2, 3, 4]].any()


def test_batches_and_shards_of_others_are_compared_with_a_replay_among_them():
    run = a_run("dpdl")
    engine, watched = Replay(run), run.rounds[1]
    world = {
        "shards": {0: run.setting.shards[4]},
        "batches": {0: torch.arange(3), 1: torch.arange(0)},
    }
    changed = engine.again(watched, {0: Change(None, one(run, 2, 2))}, **world)
    found = changed.beside(engine.again(watched, {}, **world))
    verdict = Judge(watched).verdict(found, frozenset({0}))
    assert verdict.fault == ""
    assert 0 < verdict.share <= 1 + 1e-9


def test_a_difference_of_an_unchanged_agent_is_a_fault():
    run = a_run("dpdl")
    found = Replay(run).again(run.rounds[1], {2: Change(0, one(run, 0, 0))})
    assert Judge(run.rounds[1]).verdict(found, frozenset({2})).fault == ""
    verdict = Judge(run.rounds[1]).verdict(found, frozenset({1}))
    assert "moves a contribution of agent 2" in verdict.fault
    assert verdict.agent == 2
