"""The audit's check of functions, with what may hold things let through as if nobody looked."""

import itertools

import pytest
import torch

from overhear.attacks.checks.checks import function_check
from overhear.attacks.checks.watched_run import watch
from overhear.privacy.errors import UndeclaredOperation
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from overhear.training.models.tasks import ClassWeights
from overhear.training.step import script
from overhear.training.step.handles import value_of
from overhear.training.step.purity import PureFunction
from tests.attacks.checks.watched import PRIVATE, a_run, a_setting
from tests.training.states import State, start

STASH: list[torch.Tensor] = []


def noisy(state, round):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return sums, sums + round.noise(sums, std=1.0)


def run_of(step, *, rounds: int = 2, setting=None):
    bound = Bound(init=start, step=step, blocks=1)
    return watch(
        setting or a_setting(ring(3)), bound, rounds=rounds, randomness=SecretRandomness(3)
    )


@pytest.fixture
def unlooked_at(monkeypatch):
    """Every function passes, and runs as it is given."""

    def passed(fn, operation):
        return PureFunction(name=getattr(fn, "__qualname__", "?"), fingerprint=operation, run=fn)

    monkeypatch.setattr(script, "purified", passed)
    STASH.clear()


def held_sum(state, round):
    """The clean sum of all agents in a lambda."""
    clean, sent = noisy(state, round)
    held = value_of(clean).base.clone() if isinstance(value_of(clean).base, torch.Tensor) else None
    return State(round.postprocess(lambda row: row + 1e-9 * held.sum(), round.mix(sent, kind="x")))


def one_agents_sum(state, round):
    """The clean sum of one agent, rounded to very few bits."""
    clean, sent = noisy(state, round)
    held = value_of(clean).base.clone() if isinstance(value_of(clean).base, torch.Tensor) else None
    return State(
        round.postprocess(lambda row: row + (held[2] * 8).round() / 8, round.mix(sent, kind="x"))
    )


def stash(state, round):
    """A global that holds the sum of the round before."""
    clean, sent = noisy(state, round)
    mixed = round.mix(sent, kind="x")

    def from_stash(row):
        return row + STASH[-2].sum() if len(STASH) > 1 else row

    if isinstance(value_of(clean).base, torch.Tensor):
        STASH.append(value_of(clean).base.clone())
    return State(round.postprocess(from_stash, mixed))


def in_bounded(state, round):
    clean, sent = noisy(state, round)
    held = value_of(clean).base.clone() if isinstance(value_of(clean).base, torch.Tensor) else None
    pull = round.bounded(lambda own: own + held[0], clean, lipschitz=1.0, blame="a test")
    return State(round.mix(sent + pull, kind="x"))


def of_weights(state, round):
    """Through the argument of a function that sees the public weights alone."""
    clean, sent = noisy(state, round)
    held = [value_of(clean).base.clone()] if isinstance(value_of(clean).base, torch.Tensor) else []
    x = round.mix(sent, kind="x")
    pull = round.postprocess(lambda row, _: row + held[0].mean(), x, round.weights)
    return State(pull)


@pytest.mark.parametrize("step", [held_sum, one_agents_sum, stash, in_bounded, of_weights])
def test_a_function_that_holds_a_clean_sum_fails_and_is_named(step, unlooked_at):
    found = function_check(run_of(step, rounds=3))
    assert not found.passed
    assert found.p is None
    assert f"{step.__name__}.<locals>." in found.words
    assert "depends on something besides them" in found.words


@pytest.mark.parametrize("step", [held_sum, stash, in_bounded])
def test_the_same_functions_are_refused_before_they_run(step):
    with pytest.raises(UndeclaredOperation):
        run_of(step)


def counter_of(change):
    """A step whose function counts its calls."""
    count = itertools.count()

    def counted(state, round):
        _, sent = noisy(state, round)
        return State(round.postprocess(lambda row: change(row, next(count)), sent))

    return counted


@pytest.mark.parametrize(
    "change",
    [
        lambda row, calls: row * calls,
        lambda row, calls: row if calls < 2 else row / 2,  # from the third call on
        lambda row, calls: row + torch.finfo(row.dtype).eps * row * (calls % 5),
        lambda row, _: row + 1e-6 * torch.rand(()),
        lambda row, calls: row if calls % 2 else -row,  # as before after six calls
        lambda row, calls: row if calls % 6 < 3 else -row,  # the same, and alike in each round
    ],
)
def test_a_function_that_changes_from_call_to_call_fails(change, unlooked_at):
    found = function_check(run_of(counter_of(change)))
    assert not found.passed
    assert "round 1: " in found.words


def test_a_step_that_gives_another_function_on_other_records_fails(unlooked_at):
    def chosen(state, round):
        clean, sent = noisy(state, round)
        at_hand = isinstance(value_of(clean).base, torch.Tensor)
        STASH.append(value_of(clean).base.sum() if at_hand else torch.zeros(()))

        def one(row):
            return row

        def other(row):
            return row

        second = len(STASH) > 8  # six calls of the trace, and two rounds of the first run
        return State(round.postprocess(other if second else one, sent))

    found = function_check(run_of(chosen))
    assert not found.passed
    assert "one (agent 0)" in found.words


def test_a_function_more_on_other_records_fails(unlooked_at):
    rounds = itertools.count()

    def more(state, round):
        _, sent = noisy(state, round)
        x = round.postprocess(_identity, sent)
        return State(round.postprocess(_identity, x) if next(rounds) > 7 else x)

    found = function_check(run_of(more))  # after six calls of the trace and two of the run
    assert not found.passed
    assert "round 1 calls functions 6 times on other records, not 3 times" in found.words


def _identity(row):
    return row


def test_a_round_that_fails_on_other_records_is_told(unlooked_at):
    def fails(state, round):
        clean, sent = noisy(state, round)
        x = round.postprocess(lambda row: row, sent)
        if isinstance(value_of(clean).base, torch.Tensor):
            STASH.append(value_of(clean).base)
            if len(STASH) > 2:
                raise ValueError("too many records")
        return State(x)

    found = function_check(run_of(fails))
    assert not found.passed
    assert "round 1 fails on other records: the algorithm's step raised ValueError: too many" in (
        found.words
    )


class Moody(ClassWeights):
    """A task whose projection depends on how often it was asked, two calls alike."""

    calls = 0

    def project(self, value):
        Moody.calls += 1
        return super().project(value) * (1.0 if Moody.calls < 10 else 0.5)


def test_a_projection_with_a_memory_fails():
    from dataclasses import replace

    from tests.training.contract import bound_to

    setting = a_setting(ring(3), min_max=True)
    moody = replace(setting, task=Moody(setting.model, classes=3))
    bound = bound_to("sgda", ring(3), rounds=3)
    sound = watch(setting, bound, rounds=2, randomness=SecretRandomness(3))
    assert function_check(sound).passed
    Moody.calls = 0
    found = function_check(watch(moody, bound, rounds=2, randomness=SecretRandomness(3)))
    assert not found.passed
    assert "Moody" in found.words


@pytest.mark.parametrize(
    ("name", "calls"), [("dpdl", 5), ("dp-cga", 5), ("dp-sgda", 5), ("dp-dpsgd", 0)]
)
def test_a_sound_run_passes_and_says_how_many_calls_were_made_again(name, calls):
    found = function_check(a_run(name, rounds=2))
    assert found.passed, found.words
    assert found.tests == 2 * calls
    assert ("bit for bit" in found.words) == bool(calls)


@pytest.mark.parametrize(("name", "form"), PRIVATE)
def test_every_algorithm_passes(name, form):
    found = function_check(a_run(name, form=form, rounds=1, dtype=torch.float32))
    assert found.passed, found.words


def test_a_record_is_missing_from_every_batch_of_the_second_run():
    from overhear.attacks.checks.checks import _OneRecordLess

    run = a_run("dp-dpsgd", rounds=1)
    second = _OneRecordLess(run.setting, run.bound, randomness=run.randomness)
    for agent, drawn in enumerate(run.rounds[1].recorded.batches[0]):
        less = second.draw_batch(round=1, call=0, agent=agent, rate=None)
        assert torch.equal(less, drawn[1:]) if len(drawn) else less.tolist() == [0]
    none = second.draw_batch(round=1, call=0, agent=0, rate=0.0)
    assert none.tolist() == [0]
