"""What a run does with the functions of its step: copies in, copies out, tensors alone."""

import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Calls, KeptCalls, Recorded, ReplayedCalls
from overhear.training.graphs.topologies import ring
from overhear.training.step.purity import PureFunction
from tests.training.contract import setting
from tests.training.states import State


def start(round):
    return State(0.5 * round.initial())


def ran(step, *, recorded: Recorded | None = None) -> Engine:
    engine = Engine(setting(ring(3)), Bound(start, step), randomness=SecretRandomness(5))
    engine.start()
    engine.advance(recorded=recorded)
    return engine


def _same(row):
    return row


def _view(row):
    return row[:]


def _writes(row):
    row.mul_(2.0)
    return row


def _writes_all(row, rows, weights):
    rows.zero_()
    weights.zero_()
    return row.zero_()


@pytest.mark.parametrize(("fn", "factor"), [(_same, 1.0), (_view, 1.0), (_writes, 2.0)])
def test_a_function_gets_copies_and_what_it_returns_is_one(fn, factor):
    def step(state, round):
        first = round.postprocess(fn, state.x)
        second = round.postprocess(fn, state.x)
        third = round.postprocess(_writes, first)  # does not reach what `first` holds
        return State(first + second + 0.0 * third)

    engine = ran(step)
    expected = Engine(setting(ring(3)), Bound(start, step), randomness=SecretRandomness(5))
    expected.start()
    assert torch.equal(engine.models(), 2.0 * factor * expected.models())


def test_a_function_that_writes_into_all_that_it_gets_does_no_harm():
    def step(state, round):
        received = round.broadcast(state.x, kind="model")
        round.postprocess(_writes_all, state.x, received, round.weights)
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        round.bounded(
            _writes_all, sums, released=(received, round.weights), lipschitz=1.0, blame="a test"
        )
        return State(round.sum_in(received, weights=round.weights))

    plain = ran(lambda state, round: State(round.mix(state.x, kind="model")))
    assert torch.equal(ran(step).models(), plain.models())


@pytest.mark.parametrize("returned", [1.0, None, (1.0, 2.0)])
def test_what_returns_no_tensor_is_refused(returned):
    def step(state, round):
        return State(round.postprocess(lambda row: returned, state.x))

    with pytest.raises(UndeclaredOperation, match=rf"returned {type(returned).__name__}; it must"):
        ran(step)


def test_what_runs_is_the_copy():
    def step(state, round):
        return State(round.postprocess(lambda row: row * len(held), state.x))

    held = (1.0, 2.0)
    kept = KeptCalls()
    engine = ran(step, recorded=Recorded(functions=kept))
    assert [call.name for call in kept.calls] == [kept.calls[0].name] * 3
    assert torch.equal(torch.stack([call.output for call in kept.calls]), engine.models())
    assert torch.equal(kept.calls[0].output, 2 * kept.calls[0].inputs[0])


def test_kept_inputs_are_those_before_the_call():
    kept = KeptCalls()
    doubled = PureFunction(name="doubled", fingerprint="", run=_writes)
    assert kept(doubled, [torch.ones(2)]).tolist() == [2.0, 2.0]
    assert kept.calls[0].inputs[0].tolist() == [1.0, 1.0]
    again = ReplayedCalls(kept.calls)
    assert again(doubled, [torch.full((2,), 7.0)]).tolist() == [2.0, 2.0]
    assert again.different == []
    assert kept.calls[0].inputs[0].tolist() == [1.0, 1.0]  # a replay gets a copy


def test_a_replay_finds_another_result_name_and_shape():
    kept = KeptCalls()
    one = PureFunction(name="one", fingerprint="", run=lambda row: row)
    for _ in range(4):
        kept(one, [torch.ones(2)])
    again = ReplayedCalls(kept.calls)
    again(one, [torch.ones(2)])
    again(PureFunction(name="two", fingerprint="", run=lambda row: row), [torch.ones(2)])
    again(PureFunction(name="one", fingerprint="", run=lambda row: -row), [torch.ones(2)])
    again(PureFunction(name="one", fingerprint="", run=lambda row: row[:1]), [torch.ones(2)])
    assert again.different == [1, 2, 3]
    again = ReplayedCalls(kept.calls)
    again(PureFunction(name="one", fingerprint="", run=lambda row: 1.0), [torch.ones(2)])
    assert again.different == [0]
    again.made = 4
    assert again(one, [torch.zeros(2)]).tolist() == [0.0, 0.0]  # beyond what was kept
    assert again.made == 5


def test_a_run_that_nobody_watches_keeps_no_calls():
    recorded = Recorded()
    ran(lambda state, round: State(round.postprocess(_same, state.x)), recorded=recorded)
    assert type(recorded.functions) is Calls
