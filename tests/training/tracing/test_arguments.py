"""What a step gives to operations besides values: a sentence for what is no number."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import InputError, UndeclaredOperation
from overhear.training.algorithms import Form
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing import round_trace
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.contract import bound_to
from tests.training.states import State, start


class _Two(NamedTuple):
    x: Agents
    y: Agents


@dataclass
class _Record:
    x: Agents


def _trace(value):
    def step(state, round):
        s = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(value(round, state.x, s))

    trace(start, step, graph=ring(5), rounds=2, noise_multiplier=None)


@pytest.mark.parametrize("std", [math.nan, math.inf, -1.0, "1", None, True])
def test_a_deviation_that_is_none_is_refused(std):
    with pytest.raises(InputError, match=r"^std="):
        _trace(lambda r, x, s: s + r.noise(s, std=std))


@pytest.mark.parametrize("clip_norm", [math.nan, math.inf, -1.0, 0, "1", True])
def test_a_clip_norm_that_is_none_is_refused(clip_norm):
    with pytest.raises(InputError, match=r"^clip_norm="):
        _trace(lambda r, x, s: r.clipped_sums(x, batch=r.draw(), clip_norm=clip_norm))
    with pytest.raises(InputError, match=r"^clip_norm="):
        _trace(lambda r, x, s: r.clipped_mean(x, batch=r.draw(), batch_size=2, clip_norm=clip_norm))


@pytest.mark.parametrize("rate", [math.nan, math.inf, -0.1, 2.0, "1", True])
def test_a_sampling_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match=r"^sampling_rate="):
        _trace(lambda r, x, s: r.clipped_sums(x, batch=r.draw(rate), clip_norm=1.0))


@pytest.mark.parametrize("size", [math.nan, math.inf, -1.0, 0, "1", None])
def test_a_batch_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match=r"^batch_size="):
        _trace(lambda r, x, s: r.clipped_mean(x, batch=r.draw(), batch_size=size, clip_norm=1.0))


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf, 1e-300, 1e200, 10**400])
def test_a_scale_that_no_float_of_a_run_holds_is_refused(factor):
    with pytest.raises(UndeclaredOperation, match="scaling"):
        _trace(lambda r, x, s: factor * s)


def test_scales_that_leave_the_floats_together_are_refused():
    with pytest.raises(UndeclaredOperation, match="underflows or overflows"):
        _trace(lambda r, x, s: 1e24 * (1e-13 * (1e-13 * s)))
    with pytest.raises(UndeclaredOperation, match=r"scaling by nan|no number"):
        _trace(lambda r, x, s: torch.tensor(math.nan) * s)
    with pytest.raises(UndeclaredOperation, match="scaling by inf"):
        _trace(lambda r, x, s: r.of_agents(torch.full((5, 1), math.inf)) * s)


@pytest.mark.parametrize(
    "known_to",
    [[frozenset({5})] * 5, [frozenset({-1})] * 5, [frozenset({0})], [1] * 5, [{"a"}] * 5, "abcde"],
)
def test_knowers_that_are_no_agents_are_refused(known_to):
    with pytest.raises(InputError, match="known_to"):
        _trace(lambda r, x, s: s + r.noise(s, std=1.0, known_to=known_to))


@pytest.mark.parametrize(
    "factor", [torch.full((5, 5), math.nan), torch.ones(5), torch.ones(4, 4), [[1.0]]]
)
def test_a_factor_that_is_no_matrix_of_numbers_is_refused(factor):
    with pytest.raises(InputError, match=r"^(round\.noise: )?factor"):
        _trace(lambda r, x, s: s + r.noise(s, std=1.0, factor=factor))


@pytest.mark.parametrize("lipschitz", [math.nan, -1.0, math.inf, "1"])
def test_a_lipschitz_constant_that_is_none_is_refused(lipschitz):
    with pytest.raises(InputError, match=r"^lipschitz="):
        _trace(lambda r, x, s: r.bounded(torch.abs, s, lipschitz=lipschitz, blame="-"))


def test_an_operation_that_no_round_has_is_refused():
    with pytest.raises(UndeclaredOperation, match=r"round\.foo is no operation; there are"):
        _trace(lambda r, x, s: r.foo(s))


@pytest.mark.parametrize(
    "returned",
    [lambda x: None, lambda x: (x,), lambda x: {"x": x}, _Record, lambda x: x],
    ids=["None", "tuple", "dict", "dataclass", "value"],
)
def test_a_state_that_is_no_named_tuple_is_refused(returned):
    with pytest.raises(UndeclaredOperation, match="a state is a NamedTuple"):
        trace(
            start, lambda state, round: returned(state.x), graph=ring(5), rounds=2,
            noise_multiplier=None,
        )  # fmt: skip
    with pytest.raises(UndeclaredOperation, match="a state is a NamedTuple"):
        trace(
            lambda round: returned(round.initial()), lambda state, round: state, graph=ring(5),
            rounds=2, noise_multiplier=None,
        )  # fmt: skip


def test_a_state_of_other_fields_than_before_is_refused():
    with pytest.raises(UndeclaredOperation, match="return the same NamedTuple"):
        trace(
            start, lambda state, round: _Two(state.x, state.x), graph=ring(5), rounds=2,
            noise_multiplier=None,
        )  # fmt: skip


# A traced round: what one message alone shows, looked at where it decides and in parts.


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


def taking(kinds: str) -> RoundTrace:
    """A round of contributions to batches a and b: capitals are clipped means, others sums."""

    def step(state: State, round: Round) -> State:
        drawn = {name: round.draw() for name in sorted(set(kinds.lower()))}
        x = state.x
        for kind in kinds:
            batch = drawn[kind.lower()]
            if kind.isupper():
                found = round.clipped_mean(x, batch=batch, batch_size=1.0, clip_norm=1.0)
            else:
                found = round.clipped_sums(x, batch=batch, clip_norm=1.0)
            x = x - (found + round.noise(found, std=1.0))
        return State(round.mix(x, kind="model"))

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
