"""Values of several blocks: a min-max step's rows, clipping as one vector, and what it costs."""

import dataclasses
import math
from typing import NamedTuple

import pytest
import torch

from overhear.privacy.errors import UndeclaredOperation
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms.algorithm import Bound
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.setting import Setting
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import ring, star
from overhear.training.models.tasks import ClassWeights, project_to_simplex
from overhear.training.step.handles import value_of
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.linear_forms import Messages
from overhear.training.tracing.trace import trace
from tests.training.contract import check_rows, joint, setting, traced

BETA, CLIP = 0.3, 0.2


class Blocks(NamedTuple):
    x: Agents
    y: Agents


def start_blocks(round: Round) -> Blocks:
    return Blocks(round.initial(), round.initial(block=1))


def min_max(state: Blocks, round: Round) -> Blocks:
    """Descent in x, projected ascent in y; both are released alike."""
    gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=CLIP)
    x = round.mix(state.x - 0.1 * (gx + round.noise(gx, std=CLIP)), kind="x")
    y = round.mix(state.y + 0.1 * (gy + round.noise(gy, std=CLIP)), kind="y")
    return Blocks(x, round.postprocess(project_to_simplex, y, block=1))


def min_max_at_neighbours(state: Blocks, round: Round) -> Blocks:
    """The same on all neighbours' points, with y noised once at a server."""
    sent = round.broadcast(state.x, kind="x"), round.broadcast(state.y, kind="y")
    gx, gy = round.clipped_sums(sent, batch=round.draw(), clip_norm=CLIP)
    got = round.reply(gx + round.noise(gx, std=CLIP), kind="gx")
    mean = round.average(round.own(gy))
    noisy = round.agents * mean + round.noise(mean, std=CLIP)
    return Blocks(
        state.x - 0.1 * round.sum_in(got), state.y + 0.1 * round.download(noisy, kind="gy")
    )


def min_max_differences(state: Blocks, round: Round) -> Blocks:
    """Differences of joint points, and y released a second time."""
    points = (state.x, state.y), (0.5 * state.x, state.y)
    gx, gy = round.clipped_sums(
        *points, batch=round.draw(), coefs=(1.0, BETA - 1.0), clip_norm=CLIP
    )
    x = round.mix(state.x - 0.1 * (gx + round.noise(gx, std=CLIP)), kind="x")
    for _ in range(2):
        y = round.mix(state.y + 0.1 * (gy + round.noise(gy, std=CLIP)), kind="y")
    return Blocks(x, y)


def _first(value, *_):
    return value


def min_max_setting(graph: Graph) -> Setting:
    plain = setting(graph)
    task = ClassWeights(plain.model, classes=2, strength=0.5)
    return dataclasses.replace(plain, task=task)


MIN_MAX = [min_max, min_max_at_neighbours, min_max_differences]


@pytest.mark.parametrize("step", MIN_MAX)
@pytest.mark.parametrize("graph", [ring(4), star(4)], ids=lambda g: g.name)
def test_rows_hold_for_blocks(step, graph):
    check_rows(Bound(start_blocks, step), graph, of=min_max_setting(graph))


@pytest.mark.parametrize("step", MIN_MAX)
def test_blocks_are_clipped_as_one_vector(step):
    graph = ring(4)
    s = min_max_setting(graph)
    engine = Engine(s, Bound(start_blocks, step), randomness=SecretRandomness(5))
    engine.start()
    engine.advance()
    state, recorded = engine.snapshot(), Recorded()
    planted = dict(enumerate(s.shards))
    engine.advance(planted=planted, recorded=recorded)
    x, y = state["x"], state["y"]
    assert not torch.allclose(x[0], x[1])
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    pairs = edges if step is min_max_at_neighbours else [(d, d) for d in range(4)]
    clipped = []
    for m, d in pairs:
        points, coefs = [torch.cat([x[m], y[m]])], [1.0]
        if step is min_max_differences:
            points, coefs = [*points, torch.cat([0.5 * x[m], y[m]])], [1.0, BETA - 1.0]
        total = torch.zeros(25, dtype=torch.float64)
        for a, c in zip(planted[d].inputs.double(), planted[d].targets, strict=True):
            vector = torch.zeros_like(total)
            for coef, point in zip(coefs, points, strict=True):
                at = point.clone().requires_grad_()
                vector += coef * torch.autograd.grad(s.task.loss(at, a, c), at)[0]
            total += vector * min(1.0, CLIP / float(vector.norm()))
        clipped.append(total)
    gx, gy = recorded.contributions
    assert (gx.shape[1], gy.shape[1]) == s.task.dimensions
    torch.testing.assert_close(
        torch.cat([gx, gy], dim=1), torch.stack(clipped), rtol=1e-10, atol=1e-12
    )


def released(x_std: float, y_std: float, *, times: int = 1):
    """Noise of these deviations on x once and on y so many times, for clip norm 1."""

    def step(state: Blocks, round: Round) -> Blocks:
        gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=1.0)
        x = round.mix(gx + round.noise(gx, std=x_std), kind="x")
        for _ in range(times):
            y = round.mix(gy + round.noise(gy, std=y_std), kind="y")
        return Blocks(x, y)

    return step


@pytest.mark.parametrize(
    ("step", "squared"),
    [
        (released(1.0, 1.0), 1.0),  # two vectors would cost 2
        (released(2.0, 0.5), 4.0),
        (released(0.5, 2.0), 4.0),
        (released(1.0, 1.0, times=2), 2.0),  # all of the vector may lie in y
    ],
    ids=["alike", "y dearer", "x dearer", "y twice"],
)
def test_blocks_of_one_vector_cost_the_dearest_of_them(step, squared):
    one = traced(start_blocks, step, ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu**2 == pytest.approx(squared, abs=1e-9)
    assert found.contributions == 1
    traces = trace(start_blocks, step, graph=ring(5), rounds=5, noise_multiplier=1.0)
    ((_, sensitivity),) = joint_sensitivities(traces, ["neighbour"], sampling_rate=0.1)
    assert sensitivity.largest**2 == pytest.approx(squared, abs=1e-9)


def test_blocks_of_several_vectors_are_counted_jointly():
    """Two vectors of one batch: their x parts share a release, their y parts do not."""

    def step(state: Blocks, round: Round) -> Blocks:
        batch, point = round.draw(), (state.x, state.y)
        (ax, ay), (bx, by) = (
            round.clipped_sums(point, batch=batch, clip_norm=1.0) for _ in range(2)
        )
        round.mix(ax + bx + round.noise(ax, std=1.0), kind="x")
        y = round.mix(ay + round.noise(ay, std=3**-0.5), kind="y")
        return Blocks(state.x, y + round.mix(by + round.noise(by, std=10.0), kind="far"))

    # M is [[1, 1], [1, 1]] over the x parts and diag(3, .01) over the y parts; the best weights
    # (3, 3/2) of the two vectors meet (3 - 1)(3/2 - 1) = 1.
    found = joint(traced(start_blocks, step, ring(5)), "eavesdropper")
    assert found**2 == pytest.approx(4.5, abs=1e-6)


def test_one_clean_block_is_infinite_and_named():
    one = traced(start_blocks, released(1.0, 0.0), ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu == math.inf
    assert "y of agent 0" in found.because


@pytest.mark.parametrize("hidden", [0, 1])
def test_every_block_of_a_point_counts_as_seen(hidden):
    def step(state: Blocks, round: Round) -> Blocks:
        batch = round.draw()
        first = round.clipped_sums((state.x, state.y), batch=batch, clip_norm=1.0)
        point = [state.x, state.y]
        point[hidden] = point[hidden] - first[hidden]  # never sent, never released
        gx, gy = round.clipped_sums(tuple(point), batch=batch, clip_norm=1.0)
        return Blocks(gx + round.noise(gx, std=1.0), gy + round.noise(gy, std=1.0))

    assert joint(traced(start_blocks, step, ring(5)), "eavesdropper") == math.inf


@pytest.mark.parametrize(
    ("misuse", "named"),
    [
        (lambda r, s: s.x + s.y, "different coordinates"),
        (lambda r, s: _sums(r, (s.x, s.x)), "each of them once"),
        (lambda r, s: _sums(r, (s.x, s.y), (s.y, s.x)), "the same blocks"),
        (lambda r, s: _sums(r, s.x, s.y), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, s.y), (s.x,)), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, s.y), s.x), "the same blocks"),
        (lambda r, s: _sums(r, (s.x, r.spread(s.y))), "of Agents, Edges"),
    ],
    ids=["+", "twice", "swapped", "two", "fewer", "mixed", "holders"],
)
def test_blocks_do_not_mix(misuse, named):
    def step(state: Blocks, round: Round) -> Blocks:
        misuse(round, state)
        return state

    with pytest.raises(UndeclaredOperation, match=named):
        traced(start_blocks, step, ring(4))


def _sums(round: Round, *points):
    coefs = (1.0, -0.5)[: len(points)]
    return round.clipped_sums(*points, batch=round.draw(), coefs=coefs, clip_norm=1.0)


def test_every_operation_keeps_the_block_of_its_value():
    def step(state: Blocks, round: Round) -> Blocks:
        _, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=1.0)
        pull = round.bounded(_first, gy, lipschitz=0.5, blame="a test")
        kept = [
            0.5 * gy, gy * torch.ones(round.agents, 1), round.noise(gy, std=1.0),
            round.noise(gy, std=1.0, factor=torch.eye(round.agents)), round.mix(gy, kind="a"),
            round.own(round.reply(round.spread(gy), kind="a")),
            round.download(round.upload(gy, kind="a"), kind="a"),
            round.download(round.average(gy), kind="a"), pull,
            round.postprocess(_first, state.y, block=1),
        ]  # fmt: skip
        assert [value_of(value).rows.block for value in kept] == [1] * len(kept)
        return state

    found = trace(start_blocks, step, graph=ring(4), rounds=1, noise_multiplier=1.0, again=False)
    groups = found.rounds[0][0].groups
    assert {g.block for g in groups[2:]} == {0, 1}
    assert all(g.block == 1 for g in groups if isinstance(g, Messages))


def test_a_run_checks_blocks_against_the_task():
    def refused(step, error, named):
        engine = Engine(
            min_max_setting(ring(4)),
            Bound(start_blocks, lambda state, round: (step(state, round), state)[1]),
            randomness=SecretRandomness(5),
        )
        engine.start()
        with pytest.raises(error, match=named):
            engine.advance()

    refused(lambda s, r: _sums(r, s.x), UndeclaredOperation, r"of blocks of widths \(23,\)")
    refused(lambda s, r: _sums(r, (s.y, s.x)), UndeclaredOperation, r"widths \(2, 23\)")
    refused(lambda s, r: r.initial(block=2), ValueError, r"block=2 must lie in 0\.\.1")
    refused(lambda s, r: r.postprocess(_first, s.y), UndeclaredOperation, r"must return \(23,\)")
