"""Planted faults: a check of the contract passes the sound algorithm and finds the faulty copy."""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch

from overhear.training.algorithms import ALGORITHMS, Form, dp_cga, dp_dpsgd, dp_netfleet
from overhear.training.engine import links as messages
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.tensor_round import TensorRound
from overhear.training.engine.transcript import Message
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents, Edges
from tests.training.contract import (
    CLIP,
    bare_round,
    bound_to,
    check_added_noise,
    check_clipping,
    check_cost,
    check_mean_is_kept,
    check_noise,
    check_rows,
    check_tracker_keeps_the_sum,
    started,
    traced,
)
from tests.training.states import State

GRAPHS = [ring(5), star(5), full(4)]
PRIVATE = [name for name, algorithm in ALGORITHMS.items() if algorithm.private]
# Those whose models are mixed; in the others a server or the trackers move them.
MIXING = ["dsgd", "dp-dpsgd", "dpdl", "dp-cga", "muffliato", "dp-netfleet", "ldp-dsgd", "decor"]
MIXING += ["choco-sgd", "porter"]
TRACKERS = {
    "dp-netfleet": [("y", "g")],
    "dpmixsgd": [("ux", "sx"), ("uy", "sy")],
    "dm-hsgd": [("ux", "dx"), ("uy", "dy")],
}
STEP_THEN_MIX = dp_dpsgd.Settings(order=dp_dpsgd.Order.STEP_THEN_MIX)


def copy_of(name: str, step):
    """The algorithm with another step in its place."""
    return dataclasses.replace(ALGORITHMS[name], step=step)


@pytest.fixture
def rounds_of(monkeypatch):
    """Lets engines run on a faulty kind of round."""
    return functools.partial(monkeypatch.setattr, "overhear.training.engine.engine.TensorRound")


# Gossip that moves the mean of the models.


class LoopForgotten(TensorRound):
    """What the last agent keeps for itself is not in its sum."""

    def sum_in(self, value, *, weights=None):
        by = Edges(torch.ones_like(self.weights.rows)) if weights is None else weights
        kept = torch.ones_like(by.rows)
        kept[-1] = 0.0
        return super().sum_in(value, weights=by * kept)


def averaging_alike(graph: Graph):
    """D-PSGD whose agents take the plain mean of what arrives: rows sum to 1, columns do not."""
    counts = np.bincount(graph.receivers)[graph.receivers]
    alike = torch.from_numpy(1.0 / counts)[:, None]

    @functools.wraps(ALGORITHMS["dsgd"].step)
    def step(state, round, *, learning_rate, batch_size):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=None)
        sent = round.broadcast(state.x, kind="model")
        mixed = round.sum_in(sent, weights=round.of_edges(alike))
        return state._replace(x=mixed - learning_rate * sums / batch_size)

    return copy_of("dsgd", step)


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize("name", MIXING)
def test_sound_gossip_keeps_the_mean(name, graph):
    check_mean_is_kept(bound_to(name, graph, noise_std=0.0), graph)


def test_gossip_that_averages_alike_is_found_where_degrees_differ():
    check_mean_is_kept(bound_to(averaging_alike(ring(5)), ring(5)), ring(5))
    faulty = bound_to(averaging_alike(star(5)), star(5))
    check_rows(faulty, star(5))  # its trace has the fault too, so only the mean tells
    with pytest.raises(AssertionError, match="mean of the models"):
        check_mean_is_kept(faulty, star(5))


def test_gossip_that_forgets_a_self_loop_is_found(rounds_of):
    bound = bound_to("dp-dpsgd", star(5), noise_std=0.0)
    rounds_of(LoopForgotten)
    with pytest.raises(AssertionError, match="mean of the models"):
        check_mean_is_kept(bound, star(5))
    with pytest.raises(AssertionError, match="row of state x"):
        check_rows(bound, star(5))


# A tracker that loses the sum of what entered it.


class TrackerLost(TensorRound):
    """One link loses what is sent of the trackers."""

    def mix(self, value, *, kind):
        kept = torch.ones_like(self.weights.rows)
        kept[1] = 0.0 if "tracker" in kind else 1.0
        return self.sum_in(self.broadcast(value, kind=kind), weights=self.weights * kept)


@functools.wraps(dp_netfleet.step)
def another_stored(state, round, **numbers):
    """What the next round subtracts is not what this one added."""
    end = dp_netfleet.step(state, round, **numbers)
    return end._replace(g=0.5 * (end.g + state.g))


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda g: g.name)
@pytest.mark.parametrize("name", TRACKERS)
def test_a_sound_tracker_keeps_the_sum(name, graph):
    check_tracker_keeps_the_sum(bound_to(name, graph), graph, pairs=TRACKERS[name])


def test_a_tracker_that_subtracts_another_gradient_is_found():
    faulty = bound_to(copy_of("dp-netfleet", another_stored), ring(5))
    check_rows(faulty, ring(5))
    with pytest.raises(AssertionError, match="mean of y"):
        check_tracker_keeps_the_sum(faulty, ring(5), pairs=TRACKERS["dp-netfleet"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_that_is_lost_on_a_link_is_found(name, rounds_of):
    bound = bound_to(name, ring(5))
    rounds_of(TrackerLost)
    with pytest.raises(AssertionError, match=r"mean of [uy]"):
        check_tracker_keeps_the_sum(bound, ring(5), pairs=TRACKERS[name])
    with pytest.raises(AssertionError, match=r"row of state [uy]"):
        check_rows(bound, ring(5))


# Noise of half the variance, where it is drawn, where it is added and where it is asked for.


class HalfDrawn(SecretRandomness):
    def normal(self, **of):
        return math.sqrt(0.5) * super().normal(**of)


class HalfAdded(TensorRound):
    def noise(self, like, *, std, factor=None, known_to=None):
        return super().noise(like, std=math.sqrt(0.5) * std, factor=factor, known_to=known_to)


@functools.wraps(dp_dpsgd.step)
def half_asked_for(state, round, *, noise_std, **numbers):
    return dp_dpsgd.step(state, round, noise_std=math.sqrt(0.5) * noise_std, **numbers)


@pytest.mark.slow
def test_noise_that_is_drawn_with_half_the_variance_is_found():
    bound = bound_to("dp-dpsgd", ring(5))  # whose own noise passes: test_algorithms
    with pytest.raises(AssertionError, match="variance of source"):
        check_noise(started(bound, ring(5), randomness=HalfDrawn(5)))


def test_noise_that_is_added_with_half_the_variance_is_found(rounds_of):
    bound = bound_to("dp-dpsgd", ring(5))
    check_added_noise(bare_round(), dtype=torch.float64)
    with pytest.raises(AssertionError, match="variance of what is added"):
        check_added_noise(bare_round(HalfAdded), dtype=torch.float64)
    rounds_of(HalfAdded)
    check_noise(started(bound, ring(5)))  # what is drawn is in order, so only the rows tell
    with pytest.raises(AssertionError, match="row of"):
        check_rows(bound, ring(5))


def test_a_step_that_asks_for_half_the_variance_costs_twice_the_square():
    unit = {"settings": STEP_THEN_MIX, "clip_norm": 1.0, "noise_std": 1.0}
    sound = bound_to("dp-dpsgd", ring(5), **unit)
    check_cost(traced(sound.init, sound.step, ring(5)), 1.0)
    faulty = bound_to(copy_of("dp-dpsgd", half_asked_for), ring(5), **unit)
    check_rows(faulty, ring(5))
    one = traced(faulty.init, faulty.step, ring(5))
    check_cost(one, math.sqrt(2.0))
    with pytest.raises(AssertionError, match=r"mu 1\.41"):
        check_cost(one, 1.0)


# A message that the transcript lacks.


def unseen(tap, *, kind: str, whole: bool = False):
    """A tap that does not hear one link, or nothing at all, of a kind of message."""

    def heard(message):
        if message.kind != kind:
            tap(message)
        elif not whole:
            tap(dataclasses.replace(message, links=message.links[1:]))

    return heard


def whispered(**of):
    """A message as taps are told of it, without the last link that carries it."""
    return Message(**of | {"links": of["links"][:-1]})


@pytest.mark.parametrize("kind", ["model", "cross-gradient", "half", "momentum"])
def test_a_tap_that_misses_a_link_or_a_message_is_found(kind):
    bound = bound_to("dpdl", ring(5))
    with pytest.raises(AssertionError, match=f"links of {kind}"):
        check_rows(bound, ring(5), watched=functools.partial(unseen, kind=kind))
    with pytest.raises(AssertionError, match="3 Messages in the run, 4 traced"):
        check_rows(bound, ring(5), watched=functools.partial(unseen, kind=kind, whole=True))


@pytest.mark.parametrize("name", ["dp-dpsgd", "muffliato", "dp-sgda", "cdp-dsgd"])
def test_a_round_that_tells_no_tap_of_a_link_is_found(name, monkeypatch):
    bound = bound_to(name, ring(5))
    check_rows(bound, ring(5))
    monkeypatch.setattr(messages, "Message", whispered)
    with pytest.raises(AssertionError, match="links of"):
        check_rows(bound, ring(5))


# A clip that is forgotten for one kind of message.


class CrossUnclipped(TensorRound):
    """Gradients on the models of neighbours are not clipped; those on the own model are."""

    def clipped_sums(self, *points, clip_norm, **how):
        own = isinstance(points[0][0], Agents)
        most = clip_norm if own else None
        return super().clipped_sums(*points, clip_norm=most, **how)


class ClippedAtTwice(TensorRound):
    """The gradients hear of another bound than the trace."""

    def clipped_sums(self, *points, clip_norm, **how):
        return super().clipped_sums(*points, clip_norm=2 * clip_norm, **how)


def two_kinds(state: State, round: Round, *, clip_of_second: float | None) -> State:
    """One batch, of which two kinds of message are sent with the same noise."""
    batch = round.draw()
    for kind, most in (("first", CLIP), ("second", clip_of_second)):
        sums = round.clipped_sums(state.x, batch=batch, clip_norm=most)
        state = State(round.mix(state.x - 0.1 * (sums + round.noise(sums, std=CLIP)), kind=kind))
    return state


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("name", PRIVATE)
def test_sound_contributions_stay_within_their_bounds(name, form):
    check_clipping(bound_to(name, ring(5), form=form), ring(5))


@pytest.mark.parametrize("settings", [None, dp_cga.Settings(clip=dp_cga.Clip.BATCH)], ids=str)
def test_a_clip_that_is_forgotten_for_cross_gradients_is_found(settings, rounds_of):
    of_own = bound_to("dp-dpsgd", ring(5))
    of_neighbours = bound_to("dp-cga", ring(5), settings=settings)
    check_clipping(of_neighbours, ring(5))
    rounds_of(CrossUnclipped)
    check_clipping(of_own, ring(5))  # this kind of gradient is clipped still
    if settings is not None:
        check_clipping(of_neighbours, ring(5))  # the mean of a batch is clipped elsewhere
        return
    with pytest.raises(AssertionError, match="its bound"):
        check_clipping(of_neighbours, ring(5))
    check_rows(of_neighbours, ring(5))  # rows hold for any contribution, so only the bound tells


@pytest.mark.parametrize("name", ["dpdl", "dpmixsgd"])
def test_a_contribution_of_twice_the_clip_norm_is_found(name, rounds_of):
    bound = bound_to(name, ring(5))
    rounds_of(ClippedAtTwice)
    with pytest.raises(AssertionError, match="is 2 its bound"):
        check_clipping(bound, ring(5))


def test_a_clip_that_a_step_forgets_for_one_kind_is_infinite():
    def start(round):
        return State(round.initial())

    sound = functools.partial(two_kinds, clip_of_second=CLIP)
    check_cost(traced(start, sound, ring(5)), math.sqrt(2.0))
    faulty = traced(start, functools.partial(two_kinds, clip_of_second=None), ring(5))
    check_cost(faulty, math.inf)
    with pytest.raises(AssertionError, match="mu inf: gradients are not clipped"):
        check_cost(faulty, math.sqrt(2.0))


# The noise of one link, missing or made twice.


class SilentSource(SecretRandomness):
    def normal(self, **of):
        z = super().normal(**of)
        z[7] = 0.0
        return z


class SameSource(SecretRandomness):
    """The noise of one link is that of another one, as where a seed is used again."""

    def normal(self, **of):
        z = super().normal(**of)
        z[7] = z[2]
        return z


class SilentLink(TensorRound):
    def noise(self, like, *, std, factor=None, known_to=None):
        found = super().noise(like, std=std, factor=factor, known_to=known_to)
        rows = found.rows.clone()
        rows[7] = 0.0
        return type(like)(rows)


def noisy_replies(state: State, round: Round, *, silent: int | None) -> State:
    """Cross-gradients with noise on every edge but one."""
    sums = round.clipped_sums(
        round.broadcast(state.x, kind="model"), batch=round.draw(), clip_norm=CLIP
    )
    heard = torch.ones_like(round.weights.public())
    if silent is not None:
        heard[silent] = 0.0
    got = round.reply(sums + round.noise(sums, std=CLIP) * heard, kind="cross-gradient")
    return State(state.x - 0.1 * round.sum_in(got))


@pytest.mark.parametrize(
    ("source", "named"),
    [(SilentSource, "variance of source 7"), (SameSource, "two sources go together")],
)
def test_one_link_without_noise_of_its_own_is_found_by_its_statistics(source, named):
    bound = bound_to("dpdl", ring(5))  # whose own noise passes: test_algorithms
    with pytest.raises(AssertionError, match=named):
        check_noise(started(bound, ring(5), randomness=source(5)))


@pytest.mark.parametrize("name", ["dpdl", "dp-cga"])
def test_one_link_to_which_no_noise_is_added_is_found(name, rounds_of):
    bound = bound_to(name, ring(5))
    rounds_of(SilentLink)
    with pytest.raises(AssertionError, match="row of message cross-gradient"):
        check_rows(bound, ring(5))


def test_a_step_that_leaves_one_link_without_noise_is_infinite_and_the_link_is_named():
    def start(round):
        return State(round.initial())

    graph = ring(5)
    edges = list(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    to_neighbour = edges.index((1, 0))  # the gradient of agent 0 on the model of agent 1
    sound = functools.partial(noisy_replies, silent=None)
    check_cost(traced(start, sound, graph), math.sqrt(3.0))
    faulty = traced(start, functools.partial(noisy_replies, silent=to_neighbour), graph)
    check_cost(faulty, math.inf)
    check_cost(faulty, math.inf, adversary="neighbour:1")
    with pytest.raises(AssertionError, match="cross-gradient of agent 0 to 1"):
        check_cost(faulty, math.sqrt(3.0))
