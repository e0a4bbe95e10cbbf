"""Steps that would be called proven and are not: none is planned, or none gets past its plan.

Each is planned on a ring and, where the plan lets it pass, run; what it sends is heard. A step is
caught where the plan refuses it, or where the run stops before the first message that the plan
does not have. Steps whose figure is right although they look odd are tried beside them.
"""

import contextlib
import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError, InputTypeError, UndeclaredOperation
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import ring
from overhear.training.step import script
from overhear.training.step.handles import Agents
from overhear.training.step.script import UnplannedOperation
from overhear.training.tracing.trace import trace
from overhear.training.tracing.traced_round import TracedRound
from tests.training.contract import setting

ROUNDS = 8
GRAPH = ring(4)
REFUSALS = (InputError, InputTypeError)


class X(NamedTuple):
    x: Agents


class Counted(NamedTuple):
    x: Agents
    t: torch.Tensor


def start(round):
    return X(round.initial())


def start_counted(round):
    return Counted(round.initial(), torch.zeros(1, dtype=torch.float64))


def clipped(state, round, *, clip_norm=1.0):
    return round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)


def noised(sums, round, *, std=1.0):
    return sums + round.noise(sums, std=std)


@dataclass
class Outcome:
    """What became of a step.

    Attributes:
        planned: mu of a round for the eavesdropper; None where the plan was refused.
        refused: the error of the plan or of the run; None where all rounds were done.
        heard: the kinds of all messages that were sent.
        rounds: how many rounds were done.
    """

    planned: list[float] | None
    refused: Exception | None
    heard: list[str]
    rounds: int


def tried(init, step, *, rounds=ROUNDS) -> Outcome:
    heard: list[str] = []
    planned = None
    try:
        found = trace(init, step, graph=GRAPH, rounds=rounds, noise_multiplier=1.0)
        [(_, joint)] = joint_sensitivities(found, ["eavesdropper"], sampling_rate=0.5)
        planned = [r.joint_sensitivity for r in joint.releases for _ in range(r.rounds)]
    except REFUSALS as error:
        return Outcome(None, error, heard, 0)
    engine = Engine(
        setting(GRAPH), Bound(init, step), randomness=SecretRandomness(7),
        taps=[lambda message: heard.append(message.kind)], scripts=found.scripts,
    )  # fmt: skip
    try:
        for _ in range(rounds):
            engine.advance()
    except REFUSALS as error:
        return Outcome(planned, error, heard, engine.round)
    return Outcome(planned, None, heard, engine.round)


def caught(init, step, *, rounds=ROUNDS) -> Outcome:
    """The outcome of a step that must not run to its end."""
    outcome = tried(init, step, rounds=rounds)
    assert outcome.refused is not None, f"planned {outcome.planned}, and nothing stopped it"
    assert "stolen" not in outcome.heard, "a message left that the plan does not have"
    return outcome


# Steps that the trace sees otherwise than the run would.


def closure_counter():
    calls = itertools.count()

    def step(state, round):
        sums = clipped(state, round)
        std = 1.0 if next(calls) < 2 else 0.0
        return X(round.mix(sums + round.noise(sums, std=std), kind="model"))

    return step


def late_counter():
    """Does what was planned for a hundred calls, which no plan waits for."""
    calls = itertools.count()

    def step(state, round):
        sums = clipped(state, round)
        kind = "model" if next(calls) < 12 else "stolen"
        return X(round.mix(noised(sums, round), kind=kind))

    return step


def iterator_of_clips():
    clips = iter([1.0] * 9 + [1e9] * 100)

    def step(state, round):
        sums = clipped(state, round, clip_norm=next(clips))
        return X(round.mix(noised(sums, round), kind="model"))

    return step


def one_noise_for_all_rounds():
    kept = []

    def step(state, round):
        sums = clipped(state, round)
        if not kept:
            kept.append(round.noise(sums, std=1.0))
        return X(round.mix(sums + kept[0], kind="model"))

    return step


def noise_of_the_run():
    """A noise of its own in the trace, the first one ever in a run."""
    kept = {}

    def step(state, round):
        sums = clipped(state, round)
        z = round.noise(sums, std=1.0)
        try:
            return X(round.mix(sums + kept.setdefault("z", z), kind="model"))
        except UndeclaredOperation:
            return X(round.mix(sums + z, kind="model"))

    return step


def caught_refusal():
    def step(state, round):
        sums = clipped(state, round)
        with contextlib.suppress(UndeclaredOperation):
            sums = sums * float(sums.norm())
        return X(round.mix(noised(sums, round), kind="model"))

    return step


def caught_refusal_of_everything():
    def step(state, round):
        sums = clipped(state, round)
        noisy = noised(sums, round)
        with contextlib.suppress(BaseException):
            round.broadcast(torch.tanh(sums), kind="stolen")
        return X(round.mix(noisy, kind="model"))

    return step


def told_by_hasattr():
    def step(state, round):
        sums = clipped(state, round)
        std = 0.0 if hasattr(sums, "rows") else 1.0
        return X(round.mix(sums + round.noise(sums, std=std), kind="model"))

    return step


def told_by_type():
    def step(state, round):
        sums = clipped(state, round)
        real = "TracedRound" not in repr(round) + str(type(round)) + str(type(sums))
        kind = "model" if not isinstance(round, TracedRound) else "traced"
        std = 0.0 if real and isinstance(round, TensorRound) else 1.0
        return X(round.mix(sums + round.noise(sums, std=std), kind=kind))

    return step


def told_by_the_stack():
    def step(state, round):
        import sys

        frame, names = sys._getframe(), []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        sums = clipped(state, round)
        std = 1.0 if "trace_round" in names or "trace" in names else 0.0
        return X(round.mix(sums + round.noise(sums, std=std), kind="model"))

    return step


def more_messages_in_the_run():
    calls = itertools.count()

    def step(state, round):
        sums = clipped(state, round)
        noisy = noised(sums, round)
        end = X(round.mix(noisy, kind="model"))
        if next(calls) >= 6:
            round.broadcast(sums, kind="stolen")
        return end

    return step


def fewer_messages_in_the_run():
    calls = itertools.count()

    def step(state, round):
        noisy = noised(clipped(state, round), round)
        mixed = round.mix(noisy, kind="model")
        if next(calls) < 6:
            round.broadcast(noisy, kind="again")
        return X(mixed)

    return step


def message_in_round_three():
    turn = []

    def step(state, round):
        turn.append(1)
        sums = clipped(state, round)
        kind = "stolen" if len(turn) % 8 == 3 else "model"
        return X(round.mix(noised(sums, round), kind=kind))

    return step


def public_tensor_of_the_outside():
    table = torch.ones(4, 1, dtype=torch.float64)

    def step(state, round):
        sums = clipped(state, round)
        noise = round.noise(sums, std=1.0) * round.of_agents(table)
        table.mul_(0.5)
        return X(round.mix(sums + noise, kind="model"))

    return step


def array_of_the_outside():
    table = np.ones((4, 1))

    def step(state, round):
        sums = clipped(state, round)
        noise = round.noise(sums, std=1.0) * round.of_agents(torch.from_numpy(table))
        table[...] *= 0.5
        return X(round.mix(sums + noise, kind="model"))

    return step


def random_numbers():
    rng = np.random.default_rng(5)

    def step(state, round):
        sums = clipped(state, round)
        return X(round.mix(sums + round.noise(sums, std=float(rng.uniform(0, 2))), kind="model"))

    return step


def a_generator():
    def step(state, round):
        yield clipped(state, round)

    return step


def attributes_of_the_function():
    def step(state, round):
        step.calls = getattr(step, "calls", 0) + 1
        sums = clipped(state, round)
        return X(round.mix(sums + round.noise(sums, std=1.0 / step.calls), kind="model"))

    return step


def a_stale_state():
    kept = []

    def step(state, round):
        kept.append(state)
        sums = clipped(kept[0], round)
        return X(round.mix(noised(sums, round), kind="model"))

    return step


def a_value_of_another_round():
    kept = []

    def step(state, round):
        sums = clipped(state, round)
        kept.append(sums)
        return X(round.mix(noised(kept[0], round), kind="model"))

    return step


def a_batch_of_another_round():
    kept = []

    def step(state, round):
        kept.append(round.draw())
        sums = round.clipped_sums(state.x, batch=kept[0], clip_norm=1.0)
        return X(round.mix(noised(sums, round), kind="model"))

    return step


def a_list_that_turns():
    looks = itertools.count()

    class Turning(list):
        def __iter__(self):
            return iter([1.0 + next(looks) % 2])

    def step(state, round):
        how = {"batch": round.draw(), "coefs": Turning(), "clip_norm": 1.0}
        return X(round.mix(noised(round.clipped_sums(state.x, **how), round), kind="model"))

    return step


def a_round_that_is_kept():
    kept = []

    def step(state, round):
        kept.append(round)
        sums = kept[0].clipped_sums(state.x, batch=kept[0].draw(), clip_norm=1.0)
        return X(round.mix(noised(sums, round), kind="model"))

    return step


def a_factor_that_is_no_number():
    class Less(float):
        calls = 0

        def __float__(self):
            Less.calls += 1
            return 1.0 if Less.calls < 40 else 0.0

        __mul__ = __rmul__ = None

    def step(state, round):
        sums = clipped(state, round)
        return X(round.mix(sums + Less() * round.noise(sums, std=1.0), kind="model"))

    return step


def the_clock():
    def step(state, round):
        import time

        sums = clipped(state, round)
        std = 1.0 + (time.perf_counter_ns() % 1000) / 1000
        return X(round.mix(sums + round.noise(sums, std=std), kind="model"))

    return step


def the_address():
    def step(state, round):
        sums = clipped(state, round)
        return X(round.mix(noised(sums, round), kind=f"model {id(sums)}"))

    return step


CAUGHT = [
    closure_counter, late_counter, iterator_of_clips, one_noise_for_all_rounds, noise_of_the_run,
    caught_refusal, caught_refusal_of_everything, told_by_hasattr, told_by_the_stack,
    more_messages_in_the_run, fewer_messages_in_the_run, message_in_round_three,
    public_tensor_of_the_outside, array_of_the_outside, random_numbers, a_generator,
    attributes_of_the_function, a_stale_state, a_value_of_another_round, a_batch_of_another_round,
    a_list_that_turns, a_round_that_is_kept, the_clock, the_address,
]  # fmt: skip


@pytest.mark.parametrize("made", CAUGHT, ids=lambda f: f.__name__)
def test_a_step_that_does_another_thing_than_its_trace_is_caught(made):
    outcome = caught(start, made())
    assert len(str(outcome.refused)) > 30


def test_what_was_planned_may_run():
    def step(state, round):
        return X(round.mix(noised(clipped(state, round), round), kind="model"))

    outcome = tried(start, step)
    assert outcome.refused is None
    assert outcome.planned == pytest.approx([1.0] * ROUNDS)
    assert outcome.heard == ["model"] * ROUNDS


@pytest.mark.parametrize(
    "made", [late_counter, more_messages_in_the_run, iterator_of_clips], ids=lambda f: f.__name__
)
def test_without_the_comparison_they_would_run(made, monkeypatch):
    monkeypatch.setattr(script.Script, "_differs", lambda *_: False)
    with pytest.raises(AssertionError):
        caught(start, made())


@pytest.mark.parametrize(("noise", "mu"), [(0.0, math.inf), (1.0, 1.0)])
def test_a_secret_that_is_held_fixed_costs_what_its_noise_does_not_hide(noise, mu):
    def step(state, round):
        sums = clipped(state, round)
        how = {"private": [noised(sums, round, std=noise)], "lipschitz": 1.0, "blame": "a test"}
        less = round.bounded(lambda _, held: held, 1e-9 * sums, **how)
        return X(round.mix(less + round.noise(less, std=1e-9), kind="model"))

    assert tried(start, step, rounds=1).planned == pytest.approx([mu])


def test_what_rounds_carry_without_noise_is_not_held_fixed():
    def step(state, round):
        sums = clipped(state, round)
        how = {"private": [state.t], "lipschitz": 1.0, "blame": "a test"}
        less = round.bounded(lambda _, held: held, sums, **how)
        return Counted(round.mix(noised(less, round), kind="model"), sums)

    caught(lambda round: Counted(round.initial(), 0.0 * round.initial()), step)


def test_a_type_tells_nothing_about_trace_and_run():
    outcome = tried(start, told_by_type())
    assert outcome.refused is None
    assert outcome.planned == pytest.approx([1.0] * ROUNDS)


# Odd steps that are counted as what they are.


def in_place(tensor_op):
    def step(state, round):
        t = tensor_op(state.t)
        sums = clipped(state, round)
        std = 1.0 if float(t) < 4 else 0.0
        return Counted(round.mix(sums + round.noise(sums, std=std), kind="model"), t)

    return step


def by_numpy(t):
    t.numpy()[...] += 1.0
    return t


@pytest.mark.parametrize(
    "op", [lambda t: t.add_(1), by_numpy, lambda t: t + 1], ids=["add_", "numpy", "sum"]
)
def test_a_public_counter_counts_however_it_is_changed(op):
    outcome = tried(start_counted, in_place(op))
    assert outcome.planned is None or outcome.planned[3:] == [math.inf] * (ROUNDS - 3)


def test_a_schedule_that_stops_noise_after_a_warm_up_is_infinite():
    def step(state, round):
        sums = clipped(state, round)
        std = 1.0 if round.index <= 6 else 0.0
        return X(round.mix(sums + round.noise(sums, std=std), kind="model"))

    outcome = tried(start, step)
    assert outcome.planned[:6] == pytest.approx([1.0] * 6)
    assert outcome.planned[6:] == [math.inf] * 2


@pytest.mark.parametrize(
    "bound", [[1.0], np.ones(1), torch.ones(1)], ids=["list", "array", "tensor"]
)
def test_an_argument_that_a_step_changes_is_caught(bound):
    def step(state, round, *, scale):
        sums = clipped(state, round)
        noisy = sums + round.noise(sums, std=float(scale[0]))
        scale[0] *= 0.5
        return X(round.mix(noisy, kind="model"))

    caught(start, functools.partial(step, scale=bound))
    assert float(bound[0]) == 1.0  # the plan worked on a copy


# What a step holds shows nothing.


PEEKS = {
    "rows": lambda v: v.rows, "array": np.asarray, "tensor": torch.as_tensor, "iteration": list,
    "index": lambda v: v[0], "float": float, "bool": bool, "len": len, "equal": lambda v: v == v,
    "vars": vars, "dict": lambda v: v.__dict__,
    "slots": lambda v: [getattr(v, name) for name in type(v).__mro__[1].__slots__],
    "pickle": lambda v: __import__("pickle").dumps(v), "format": lambda v: f"{v:.3f}",
    "dlpack": torch.from_dlpack, "buffer": memoryview, "linalg": torch.linalg.vector_norm,
    "numpy": np.sqrt, "stack": lambda v: torch.stack([v, v]),
    "set": lambda v: setattr(v, "rows", 1),
}  # fmt: skip


@pytest.mark.parametrize("peek", PEEKS.values(), ids=PEEKS.keys())
def test_a_value_shows_nothing(peek):
    def step(state, round):
        sums = clipped(state, round)
        peek(sums)
        return X(round.mix(noised(sums, round), kind="model"))

    with pytest.raises((UndeclaredOperation, AttributeError, TypeError)):
        trace(start, step, graph=GRAPH, rounds=1, noise_multiplier=None)
    engine = Engine(setting(GRAPH), Bound(start, step), randomness=SecretRandomness(7))
    engine.scripts = _Anything()
    with pytest.raises((UndeclaredOperation, AttributeError, TypeError)):
        engine.advance()


class _Anything:
    """No plan: the run is on its own."""

    start = None

    def of(self, *_):
        return None


@pytest.mark.parametrize(
    "name", ["_links", "_draw", "_gradients", "_initial", "_randomness", "_operations", "_records"]
)
def test_a_round_shows_nothing_but_its_operations(name):
    def step(state, round):
        getattr(round, name)
        return state

    with pytest.raises(UndeclaredOperation, match="is no operation"):
        trace(start, step, graph=GRAPH, rounds=1, noise_multiplier=None)


@pytest.mark.parametrize("returned", [None, (1, 2), {"x": 1}, 3.0, [1], X], ids=repr)
def test_what_is_no_state_is_refused(returned):
    with pytest.raises(UndeclaredOperation, match="a state is a NamedTuple"):
        trace(start, lambda state, round: returned, graph=GRAPH, rounds=2, noise_multiplier=None)


def test_a_run_past_its_plan_is_refused():
    def step(state, round):
        sums = clipped(state, round)
        return X(round.mix(sums + round.noise(sums, std=float(round.index)), kind="model"))

    found = trace(start, step, graph=GRAPH, rounds=2, noise_multiplier=None)
    engine = Engine(setting(GRAPH), Bound(start, step), scripts=found.scripts)
    engine.advance()
    engine.advance()
    with pytest.raises(UnplannedOperation, match="round 3 was not planned"):
        engine.advance()


def _to_its_end(engine):
    for _ in range(20):
        engine.advance()


def test_a_round_that_was_stopped_is_not_tried_again():
    found = trace(start, (step := late_counter()), graph=GRAPH, rounds=40, noise_multiplier=None)
    engine = Engine(setting(GRAPH), Bound(start, step), scripts=found.scripts)
    while engine.round < 3:
        engine.advance()
    with pytest.raises(UnplannedOperation, match="kind='stolen', but its trace has 'model'"):
        _to_its_end(engine)
    with pytest.raises(RuntimeError, match="failed when it was tried"):
        engine.advance()


def test_the_code_of_a_state_never_meets_a_value():
    met = list[str]()

    class Curious(NamedTuple("Curious", [("x", Agents)])):
        def __new__(cls, x):
            met.append(type(x).__module__)
            return super().__new__(cls, x)

        def _asdict(self):
            raise AssertionError("asked")

    def step(state, round):
        return Curious(round.mix(noised(clipped(state, round), round), kind="model"))

    outcome = tried(lambda round: Curious(round.initial()), step)
    assert outcome.refused is None
    assert {name.rsplit(".", 1)[1] for name in met} == {"handles"}


def test_a_round_that_is_over_does_nothing_more():
    kept = []

    def step(state, round):
        sums = clipped(state, round)
        kept.append((round, sums))
        earlier, clean = kept[0]
        with contextlib.suppress(UndeclaredOperation):
            if len(kept) > 1:
                earlier.broadcast(clean, kind="stolen")
        return X(round.mix(noised(sums, round), kind="model"))

    outcome = tried(start, step)
    assert outcome.refused is None
    assert set(outcome.heard) == {"model"}
