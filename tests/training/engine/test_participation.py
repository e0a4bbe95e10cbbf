"""Runs in which agents are absent do what their trace says, for every algorithm."""

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.testing import algorithm as contract
from overhear.training.algorithms import ALGORITHMS
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.participation import scheduled
from overhear.training.graphs.topologies import build_graph

# Whose rounds no agent may be absent from, and why.
REFUSED = {
    "dp-fedavg": "nothing is known of both together",
    "choco-sgd": "changes from round to round, as any does from which agents are absent",
    "porter": "changes from round to round, as any does from which agents are absent",
}
NAMES = list(ALGORITHMS)
SERVED = [name for name in NAMES if name not in REFUSED]
# Rounds 1 to 5, of which the contract looks at the third, and the rest so that noise can be drawn.
LIST = np.array(
    [[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]] * 20,
    dtype=bool,
)


def _topology(active):
    return scheduled(build_graph("ring", 5), active, told="public list")


def _bound(name, graph, *, form=None):
    known = ALGORITHMS[name]
    return contract._bound(
        known, known.settings(), form or known.forms[0], graph, noise=known.private
    )


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in SERVED for form in ALGORITHMS[name].forms]
)
def test_messages_and_states_with_absent_agents_are_what_the_trace_says(name, form):
    graph = _topology(LIST)
    bound = _bound(name, graph, form=form)
    contract._check_rows(bound, graph)
    contract._check_same_root(bound, graph)
    if ALGORITHMS[name].private:
        contract._check_contributions(bound, graph)


@pytest.mark.parametrize("name", NAMES)
def test_a_list_of_everybody_changes_no_bit(name):
    ring = build_graph("ring", 5)
    whole = _topology(np.ones_like(LIST))
    plain, listed = (contract._engine(_bound(name, graph), graph) for graph in (ring, whole))
    for _ in range(3):
        plain.advance()
        listed.advance()
    for field, value in plain.snapshot().items():
        assert torch.equal(value, listed.snapshot()[field]), field


def _tapped(name, graph, heard):
    bound = _bound(name, graph)
    setting = contract._setting(bound, graph)
    engine = Engine(setting, bound, randomness=SecretRandomness(5), taps=[heard])
    engine.start()
    return engine


@pytest.mark.parametrize("name", REFUSED)
def test_an_absent_agent_is_refused_before_anything_is_sent_where_no_round_can_be_without_it(name):
    graph, heard = _topology(LIST), Transcript()

    def run():
        engine = _tapped(name, graph, heard)
        engine.advance()  # the first round of the list has everybody
        engine.advance()

    with pytest.raises(InputError, match=REFUSED[name]):
        run()
    assert not heard.of(round=2)


@pytest.mark.parametrize("name", SERVED)
def test_an_absent_agent_draws_nothing_sends_nothing_and_keeps_its_state(name):
    graph = _topology(LIST)
    heard = Transcript()
    engine = _tapped(name, graph, heard)
    for number in range(1, 6):
        before, recorded = engine.snapshot(), Recorded()
        engine.advance(recorded=recorded)
        after, absent = engine.snapshot(), np.flatnonzero(~LIST[number - 1]).tolist()
        for field, value in after.items():
            assert torch.equal(value[absent], before[field][absent]), (number, field)
        for batches in recorded.batches:
            assert all(len(batches[agent]) == 0 for agent in absent)
        for message in heard.of(round=number):
            rows, receivers = message.links.T
            ends = {*message.senders[rows].tolist(), *receivers.tolist()}
            assert not ends & set(absent), (number, message.kind)


def test_what_is_planted_with_an_absent_agent_is_not_used():
    graph = _topology(LIST[1:])  # agents 1 and 4 are absent from the first round
    runs = [contract._engine(_bound("dp-dpsgd", graph), graph) for _ in range(2)]
    shard = runs[0].setting.shards[1]
    runs[0].advance(planted={1: shard})
    runs[1].advance()
    assert torch.equal(runs[0].models(), runs[1].models())


def test_a_step_can_read_who_takes_part():
    from typing import NamedTuple

    from overhear.training.step.handles import Agents
    from overhear.training.step.perform import perform
    from overhear.training.tracing.traced_round import TracedRound

    class State(NamedTuple):
        x: Agents

    seen = []

    def init(round):
        seen.append(round.active.public()[:, 0].tolist())
        return State(round.initial() * round.active)

    graph = _topology(LIST)
    perform(init, TracedRound(graph.at(2)), number=2)
    assert seen == [[1.0, 0.0, 1.0, 1.0, 0.0]]
