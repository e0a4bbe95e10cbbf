"""A traced round: what one message alone shows, looked at where it decides and in parts."""

from typing import NamedTuple

import pytest

from overhear.training.algorithms import Form
from overhear.training.graphs.topologies import full, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing import round_trace
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.contract import bound_to


def traced(name, graph, form=Form.REPAIRED) -> RoundTrace:
    bound = bound_to(name, graph, form=form)
    ((one, _),) = trace(bound.init, bound.step, graph=graph, rounds=3, noise_multiplier=None).rounds
    return one


def alone(one: RoundTrace) -> list[list[tuple[float, str]]]:
    fresh = RoundTrace(one.record)
    kinds = [None, *{message.kind for message in one.messages}]
    return [
        [fresh.single_message(v, kind=kind) for v in range(one.record.agents)] for kind in kinds
    ]


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("name", ["dpdl", "muffliato", "dp-dpsgd", "decor"])
def test_rows_looked_at_in_parts_show_what_all_of_them_show(monkeypatch, name, form):
    one = traced(name, star(5), form)
    together = alone(one)
    for most in (1, 30):
        monkeypatch.setattr(round_trace, "_ENTRIES_AT_ONCE", most)
        assert alone(one) == together


def looked_at(monkeypatch, one: RoundTrace) -> list[int]:
    """How many entries the rows have, once no message is left in them."""
    sizes, expand = list[int](), RoundTrace.expand

    def expanded(self, rows, *, unseen):
        found = expand(self, rows, unseen=unseen)
        sizes.append(found.nnz)
        return found

    monkeypatch.setattr(RoundTrace, "expand", expanded)
    for victim in range(one.record.agents):
        one.single_message(victim)
    return sizes


def test_end_states_are_not_written_out_where_messages_decide(monkeypatch):
    one = traced("dpdl", full(8))
    # Of its 64 noisy cross-gradients an end state holds all, in each of its 8 rows.
    assert sum(looked_at(monkeypatch, one)) < 8 * 64
    assert one.single_message(0)[1] == "cross-gradient"


def test_parts_of_rows_are_as_large_as_is_allowed(monkeypatch):
    one = traced("dpdl", full(8))
    monkeypatch.setattr(round_trace, "_ENTRIES_AT_ONCE", 40)
    sizes = looked_at(monkeypatch, one)
    assert max(sizes) <= 40
    assert len(sizes) < sum(sizes) / 10


class Model(NamedTuple):
    x: Agents


def start(round: Round) -> Model:
    return Model(round.initial())


def taking(kinds: str) -> RoundTrace:
    """A round of contributions to batches a and b: capitals are clipped means, others sums."""

    def step(state: Model, round: Round) -> Model:
        drawn = {name: round.draw() for name in sorted(set(kinds.lower()))}
        x = state.x
        for kind in kinds:
            batch = drawn[kind.lower()]
            if kind.isupper():
                found = round.clipped_mean(x, batch=batch, batch_size=1.0, clip_norm=1.0)
            else:
                found = round.clipped_sums(x, batch=batch, clip_norm=1.0)
            x = x - (found + round.noise(found, std=1.0))
        return Model(round.mix(x, kind="model"))

    ((one, _),) = trace(start, step, graph=full(3), rounds=1, noise_multiplier=None).rounds
    return one


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("A", [("ball", False)]),
        ("aA", [("sum", False)]),
        ("AAbb", [("ball", False), ("sum", False)]),
        ("AbA", [("ball", True), ("sum", True)]),
        # What a sum's batch shows last decides on which side the ball's dearest data lie.
        ("aBa", [("sum", True), ("ball", True)]),
        ("ABAB", [("ball", True), ("ball", True)]),
        ("aBAb", [("sum", True), ("sum", True)]),
    ],
)
def test_a_batch_knows_its_reach_and_whether_it_meets_another(kinds, expected):
    assert taking(kinds).reaches(0) == expected
