"""The second tracer by itself: it shares no code with the first, and finds known numbers."""

import ast
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

import overhear.training
from overhear.privacy.guarantee import EAVESDROPPER, Unit, coalition, neighbour
from overhear.training import Agents, Round, build_graph
from overhear.training.graphs.graph import Graph
from overhear.training.second_tracer.dense_round import NotAnswered
from overhear.training.second_tracer.second_trace import SecondTrace, Whitened, largest_move
from tests.training.states import State, start

ROOM = Path(overhear.training.__file__).parent / "second_tracer"
CHECKED = ("tracing", "exposure", "view", "recipients", "persons")


def traced(step, graph="ring:5", *, rounds=1, begin=start, **more) -> SecondTrace:
    graph = build_graph(*(graph.partition(":")[0], int(graph.partition(":")[2])))
    return SecondTrace(begin, step, graph=graph, rounds=rounds, sampling_rate=0.1, **more)


def squares(trace: SecondTrace, who=EAVESDROPPER, victim=0) -> list[float]:
    moves = trace.moves(who, victim)
    return [one.squared.low for n, told in moves.by_round for one in told for _ in range(n)]


def test_it_imports_nothing_of_what_it_checks():
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert not {*(node.module or "").split(".")} & {*CHECKED}, (path, node.module)


def pairs(state: State, round: Round) -> State:
    """A triangle whose noise is I + 2 L: own noise, and noise that two agents share."""
    mean = round.clipped_mean(state.x, batch=round.draw(), batch_size=1.0, clip_norm=1.0)
    links = [[1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0]]
    shared = torch.tensor(links, dtype=torch.float64).T * math.sqrt(2.0)
    own = round.noise(mean, std=1.0)
    noisy = mean + own + round.noise(mean, std=1.0, factor=shared)
    return State(round.mix(state.x - noisy, kind="model"))


def test_numbers_that_are_known_by_hand():
    triangle = traced(pairs, "full:3")  # a clipped mean that is replaced moves by twice the norm
    assert math.sqrt(squares(triangle)[0]) == pytest.approx(1.309307, abs=1e-6)
    assert math.sqrt(squares(triangle, neighbour(2))[0]) == pytest.approx(1.549193, abs=1e-6)
    [agent] = squares(traced(pairs, "full:3", unit=Unit.AGENT))
    assert math.sqrt(agent) == pytest.approx(1.309307 / 2, abs=1e-6)


def test_a_batch_released_twice_is_one_release_and_two_batches_are_two():
    def step(state: State, round: Round, *, same: bool) -> State:
        x, batch = state.x, round.draw()
        for number in range(2):
            batch = batch if same or not number else round.draw()
            sums = round.clipped_sums(x, batch=batch, clip_norm=1.0)
            x = round.mix(x - sums - round.noise(sums, std=2.0), kind="model")
        return State(x)

    once = squares(traced(lambda s, round: step(s, round, same=True)))
    twice = squares(traced(lambda s, round: step(s, round, same=False)))
    assert once == pytest.approx([0.5])
    assert twice == pytest.approx([0.25, 0.25])


def test_what_no_noise_hides_is_infinite_and_what_is_carried_counts_over_all_rounds():
    class Momentum(NamedTuple):
        x: Agents
        v: Agents

    def begin(round: Round) -> Momentum:
        x = round.initial()
        return Momentum(x, 0.0 * x)

    def step(state: Momentum, round: Round) -> Momentum:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        v = 0.9 * state.v + sums
        sent = round.broadcast(v + round.noise(v, std=1.0), kind="momentum")
        return Momentum(state.x - round.sum_in(sent, weights=round.weights), v)

    trace = traced(step, "full:4", rounds=3, begin=begin, released=("x",))
    assert squares(trace) == [math.inf] * 3
    one = trace.move_of_run(EAVESDROPPER, 0, turns=[[1]])
    assert one.low == pytest.approx(2.4661, abs=1e-4)  # used in the first round alone
    assert one.high == pytest.approx(one.low, rel=1e-9)


def test_cancelling_messages_and_small_noise():
    tiny = Whitened(np.array([[1.0], [1e-6]]), np.diag([1.0, 1e-7]))
    assert tiny.information(np.array([0]))[0, 0] == pytest.approx(101.0, rel=1e-9)
    cancels = Whitened(np.array([[2.0], [1.0]]), np.array([[1.0], [1.0]]))
    assert cancels.information(np.array([0])) is None


def test_the_largest_move_is_bracketed_and_blocks_stand_at_right_angles():
    for rho, total in ((0.5, 6.0), (0.9, 30.0)):
        M = np.linalg.inv(np.full((3, 3), rho) + (1 - rho) * np.eye(3))
        low, high = largest_move({0: M}, np.ones(3))
        assert low == pytest.approx(total, rel=1e-9)
        assert high == pytest.approx(total, rel=1e-9)
    low, high = largest_move({0: np.diag([1.0, 4.0]), 1: np.diag([9.0, 1.0])}, np.array([1.0, 2.0]))
    assert (low, high) == pytest.approx((9.0 + 16.0, 25.0))


def test_it_says_where_it_has_no_answer():
    def step(state: State, round: Round) -> State:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        noisy = sums + round.noise(sums, std=1.0)
        return State(round.mix(state.x - noisy / round.index, kind="model"))

    with pytest.raises(NotAnswered, match="more than 0 seconds"):
        squares(traced(step, seconds=0.0))
    slow = traced(step, "full:40", rounds=3)
    assert len(squares(slow, coalition({1, 2}))) == 3


def test_equal_rounds_are_done_once():
    done = []

    def step(state: State, round: Round) -> State:
        done.append(1)
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(state.x - sums - round.noise(sums, std=1.0), kind="model"))

    assert len(squares(traced(step, rounds=1000))) == 1000
    assert len(done) == 1
    assert isinstance(build_graph("ring", 5), Graph)
