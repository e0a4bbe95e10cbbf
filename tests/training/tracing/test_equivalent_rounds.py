"""Rounds that repeat an earlier one, and the traces of graphs that take turns."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.errors import UnsupportedView
from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph, GraphSequence
from overhear.training.graphs.mixing import push_weights
from overhear.training.graphs.topologies import directed_exponential, full, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.states import State, start

ADVERSARIES = ("eavesdropper", "neighbour:1", "coalition:1,3", "final-models")
SHRINK = (1.0, 0.5, 0.7, 0.1, 1.0)


def _step(*, noise=lambda k: 1.0, clip=lambda k: 1.0, rate=lambda k: 0.1, end=lambda k: 1.0):
    """Noisy gradients, mixed; the numbers of each round as given."""

    def step(state: State, round: Round) -> State:
        k = round.index - 1
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip(k))
        noisy = sums + round.noise(sums, std=noise(k))
        return State(end(k) * round.mix(state.x - rate(k) * noisy, kind="model"))

    return step


def rounds_of(step, graph=None, rounds: int = 5) -> list[RoundTrace]:
    traces = trace(start, step, graph=graph or ring(5), rounds=rounds, noise_multiplier=1.0)
    return [one for one, count in traces.rounds for _ in range(count)]


def own_sensitivities(one: RoundTrace, victim: int = 0) -> list[float]:
    """From the round's own record, whatever it is a scale of."""
    found = []
    for name in ADVERSARIES:
        (only,) = one.sensitivities(parse_adversary(name, one.record.agents), victim)
        found.append(only.mu)
    return [*found, one.single_message(victim)[0]]


def scaled_sensitivities(one: RoundTrace) -> list[float]:
    base, factor = one.scale_of or (one, 1.0)
    return [factor * mu for mu in own_sensitivities(base)]


@pytest.mark.some_quick(4)
@pytest.mark.parametrize(
    "schedules",
    [
        {"noise": lambda k: SHRINK[k]},
        {"clip": lambda k: SHRINK[k]},
        {"noise": lambda k: SHRINK[k] / 3, "clip": lambda k: SHRINK[-k]},
        {"end": lambda k: 1 + k},
        {"noise": lambda k: SHRINK[k], "end": lambda k: -1.0 / 3 ** (k + 1)},
    ],
    ids=["noise", "clip", "noise and clip", "public factor", "noise and public factor"],
)
@pytest.mark.parametrize("graph", [ring(5), star(5)], ids=lambda g: g.name)
def test_rounds_in_one_proportion_are_a_scale_of_the_first(schedules, graph):
    every = rounds_of(_step(**schedules), graph)
    assert all(one is every[0] or one.scale_of is not None for one in every)
    for one in every:
        assert scaled_sensitivities(one) == pytest.approx(own_sensitivities(one), rel=1e-9)


def test_the_scale_is_the_clip_bound_over_the_noise():
    every = rounds_of(_step(noise=lambda k: 2.0 + k, clip=lambda k: 1.0 + k))
    factors = [one.scale_of[1] for one in every[1:]]
    assert factors == pytest.approx([2 * (1 + k) / (2 + k) for k in range(1, 5)], rel=1e-12)


def test_a_round_that_is_the_same_again_is_the_same_object():
    every = rounds_of(_step(noise=lambda k: SHRINK[k]))
    assert every[4] is every[0]
    assert every[1] is not every[0]


def _two_noises(state: State, round: Round) -> State:
    """Two releases of one batch; only the first one's noise shrinks."""
    k = round.index
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    first = sums + round.noise(sums, std=1.0 / k)
    round.broadcast(first, kind="first")
    return State(round.mix(sums + round.noise(sums, std=1.0), kind="second"))


def _two_bounds(state: State, round: Round) -> State:
    """Two clipped sums of one batch; only the first one's bound shrinks."""
    k, batch = round.index, round.draw()
    sums = [round.clipped_sums(state.x, batch=batch, clip_norm=bound) for bound in (1.0 / k, 1.0)]
    noisy = [s + round.noise(s, std=1.0) for s in sums]
    return State(round.mix(noisy[0] + noisy[1], kind="sum"))


def _two_coefficients(state: State, round: Round) -> State:
    """The end state mixes message and noise in another proportion every round."""
    k = round.index
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    mixed = round.mix(sums + round.noise(sums, std=1.0), kind="sum")
    return State(mixed - float(k) * sums - round.noise(sums, std=1.0))


def _other_kind(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(round.mix(sums + round.noise(sums, std=1.0), kind=f"model {round.index}"))


def _other_knowers(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    knowers = [frozenset({round.index % 5})] * 5
    return State(round.mix(sums + round.noise(sums, std=1.0, known_to=knowers), kind="model"))


def _other_rate(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(1.0 / round.index), clip_norm=1.0)
    return State(round.mix(sums + round.noise(sums, std=1.0), kind="model"))


@pytest.mark.parametrize(
    "step", [_two_noises, _two_bounds, _two_coefficients, _other_kind, _other_knowers, _other_rate]
)
def test_rounds_that_differ_by_more_than_a_scale_stand_for_themselves(step):
    every = rounds_of(step)
    assert len({id(one) for one in every}) == 5
    assert all(one.scale_of is None for one in every)


def _known_message(state: State, round: Round) -> State:
    """What is sent is known, and the end state adds to it gradients in another proportion."""
    k = round.index
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    mixed = round.mix(state.x, kind="model")
    return State(mixed - sums * float(k) - round.noise(sums, std=1.0))


def _at_a_rate(state: State, round: Round) -> State:
    """A step whose message, and what follows from it, has another learning rate every round."""
    rate = 0.1 * SHRINK[round.index - 1]
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    direction = round.mix(sums + round.noise(sums, std=1.0), kind="direction")
    sent = round.mix(state.x - rate * direction, kind="model")
    return State(sent - rate**2 * direction)


def _sent_and_kept(state: State, round: Round) -> State:
    """What is sent has another learning rate every round, and so has what is added to it."""
    rate = 0.1 * SHRINK[round.index - 1]
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    noisy = sums + round.noise(sums, std=1.0)
    return State(round.mix(state.x - rate * noisy, kind="model") - rate * noisy)


@pytest.mark.parametrize(
    ("step", "factors"),
    [(_known_message, (2, 3, 4, 5)), (_sent_and_kept, (1, 1, 1, 1)), (_at_a_rate, None)],
)
def test_rounds_may_have_what_they_send_scaled(step, factors):
    """Of the second the last row mixes two messages, each with a number of its own."""
    first, *others = every = rounds_of(step)
    if factors is not None:
        same = [(first, 1.0) if one is first else one.scale_of for one in others]
        assert same == [(first, pytest.approx(factor, rel=1e-12)) for factor in factors]
    for one in every:
        assert scaled_sensitivities(one) == pytest.approx(own_sensitivities(one), rel=1e-9)


def test_what_is_sent_twice_in_two_proportions_is_no_scale():
    """The sum of two messages with one number each is not one row with one number."""

    def step(state, round):
        rate = 0.1 * SHRINK[round.index - 1]
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        one = round.mix(rate * (sums + round.noise(sums, std=1.0)), kind="one")
        two = round.mix(sums + round.noise(sums, std=1.0), kind="two")
        return State(round.mix(one + two, kind="both"))

    first, second, *_ = rounds_of(step)
    assert second.scale_of is None
    assert second is not first


@pytest.mark.parametrize("step", [_two_noises, _two_bounds, _two_coefficients])
def test_what_stands_for_itself_has_its_own_figures(step):
    first, *_, last = rounds_of(step)
    assert scaled_sensitivities(last) == pytest.approx(own_sensitivities(last), rel=1e-9)
    assert own_sensitivities(last)[0] != pytest.approx(own_sensitivities(first)[0], rel=0.1)


def test_noise_that_is_in_no_message_has_its_scale_from_the_end_state():
    def step(state, round):
        k = round.index
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(state.x, kind="model") - sums - round.noise(sums, std=1.0 / k))

    every = rounds_of(step)
    assert [one.scale_of[1] for one in every[1:]] == pytest.approx([2.0, 3.0, 4.0, 5.0], rel=1e-12)
    for one in every:
        assert scaled_sensitivities(one) == pytest.approx(own_sensitivities(one), rel=1e-9)


def test_without_noise_or_clipping_every_round_is_infinite():
    for schedules in ({"noise": lambda k: 0.0 if k else 1.0}, {"clip": lambda k: None}):
        every = rounds_of(_step(**schedules))
        assert scaled_sensitivities(every[3])[:4] == [np.inf] * 4
        assert own_sensitivities(every[3])[:4] == [np.inf] * 4


IRREGULAR = Graph(
    name="irregular",
    weights=push_weights(np.roll(np.eye(5, dtype=bool), 1, axis=0) | (np.arange(5) == 2)[:, None]),
)


@pytest.mark.parametrize("graph", [IRREGULAR, directed_exponential(5)], ids=lambda g: g.name)
def test_exposures_of_a_schedule_are_those_of_every_round_by_itself(graph):
    known = ALGORITHMS["dyn-d2p"]
    run = bind(
        known, known.settings(), learning_rate=0.1, clip_norm=0.3, noise_std=0.3, batch_size=7.0,
        graph=graph, rounds=9,
    )  # fmt: skip
    traces = trace(run.init, run.step, graph=graph, rounds=9, noise_multiplier=run.noise_multiplier)
    names = ["eavesdropper", "neighbour:1", "final-models"]
    found = dict(joint_sensitivities(traces, names, sampling_rate=0.1, victim=0))
    assert sum(one.scale_of is not None for one, _ in traces.rounds) >= 9 - 3
    for name in names:
        who = parse_adversary(name, 5)
        expected = [one.sensitivities(who, 0)[0].mu for one, _ in traces.rounds]
        mus = [r.joint_sensitivity for r in found[name].releases]
        assert mus == pytest.approx(expected, rel=1e-9)
        assert [(r.first, r.rounds) for r in found[name].releases] == [(k, 1) for k in range(1, 10)]


def _plain(state: State, round: Round) -> State:
    """Another release on every graph: the sum over in-edges, times the agents heard."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    return State(round.mix(sums + round.noise(sums, std=1.0), kind="model"))


def test_each_graph_of_a_sequence_has_one_trace_that_comes_in_its_turn():
    graphs = (ring(5), full(5), ring(5))
    traces = trace(
        start, _plain, graph=GraphSequence(name="turns", graphs=graphs), rounds=8,
        noise_multiplier=1.0,
    )  # fmt: skip
    by_graph = [one for one, count in traces.rounds for _ in range(count)]
    assert [by_graph.index(one) for one in by_graph] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert all(count == 1 for _, count in traces.rounds)
    alone = [
        trace(start, _plain, graph=g, rounds=3, noise_multiplier=1.0).rounds[0][0] for g in graphs
    ]
    who = parse_adversary("final-models", 5)
    mus = [one.sensitivities(who, 0)[0].mu for one in by_graph[:3]]
    assert mus == pytest.approx([one.sensitivities(who, 0)[0].mu for one in alone], rel=1e-12)
    assert mus[1] < 0.6 * mus[0]  # so that a mistaken graph shows


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_fewer_rounds_than_graphs_are_traced_as_many_times(rounds):
    traces = trace(
        start, _plain, graph=directed_exponential(9), rounds=rounds, noise_multiplier=1.0
    )
    assert [count for _, count in traces.rounds] == [1] * rounds


def test_a_schedule_may_be_shorter_than_a_period():
    known, graph = ALGORITHMS["dyn-d2p"], directed_exponential(9)
    run = bind(
        known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0, batch_size=1.0,
        graph=graph, rounds=2,
    )  # fmt: skip
    assert (
        len(
            trace(
                run.init, run.step, graph=graph, rounds=2, noise_multiplier=run.noise_multiplier
            ).rounds
        )
        == 2
    )


@pytest.mark.parametrize(
    ("rounds", "why"),
    [  # no graph comes twice in so few rounds, so none differs from an earlier one
        (1, "does something else when it is traced again"),
        (2, "does something else when it is traced again"),
        (20, "differs between rounds without reading"),
    ],
)
def test_a_step_that_changes_in_secret_is_refused_on_a_sequence_too(rounds, why):
    calls = []

    def step(state, round):
        calls.append(1)
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        return State(round.mix(sums + round.noise(sums, std=1.0 / len(calls)), kind="model"))

    with pytest.raises(UnsupportedView, match=why):
        trace(start, step, graph=directed_exponential(5), rounds=rounds, noise_multiplier=1.0)


def test_a_number_read_on_one_graph_alone_has_every_round_traced():
    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        crowded = len(round.weights.public()) == 25
        std = float(round.index) if crowded else 1.0
        return State(round.mix(sums + round.noise(sums, std=std), kind="model"))

    graph = GraphSequence(name="turns", graphs=(ring(5), full(5)))
    every = [
        one for one, _ in trace(start, step, graph=graph, rounds=6, noise_multiplier=1.0).rounds
    ]
    who = parse_adversary("eavesdropper", 5)
    mus = [one.sensitivities(who, 0)[0].mu for one in every]
    assert mus == pytest.approx([1, 1 / 2, 1, 1 / 4, 1, 1 / 6], rel=1e-9)


def test_a_public_tensor_that_changes_has_every_round_traced():
    class Counted(NamedTuple):
        x: Agents
        turn: torch.Tensor

    def init(round):
        return Counted(round.initial(), torch.zeros(()))

    def step(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        std = 1.0 + float(state.turn)
        x = round.mix(sums + round.noise(sums, std=std), kind="model")
        return Counted(x, state.turn + 1)

    every = [
        one
        for one, _ in trace(
            init, step, graph=directed_exponential(5), rounds=7, noise_multiplier=1.0
        ).rounds
    ]
    who = parse_adversary("eavesdropper", 5)
    mus = [one.sensitivities(who, 0)[0].mu for one in every]
    assert mus == pytest.approx([1 / (1 + k) for k in range(7)], rel=1e-9)
