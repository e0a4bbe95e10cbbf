"""Figures that are stated of algorithms, each found by tracing a step that is written here.

Noise multiplier 1, clip norm 1, add-or-remove, delta 1e-5 and the closed view unless a test says
otherwise. Figures that hold without a step are in tests/privacy/test_view.py and
tests/privacy/test_accountant.py; those of the registered algorithms in tests/training.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from overhear.privacy import (
    Statement,
    View,
    decor_factor,
    epsilon,
    epsilon_from_mu,
    factor,
    parse_adversary,
    whisper_covariance,
)
from overhear.training import (
    Agents,
    AlgorithmTrace,
    Form,
    Graph,
    JointSensitivity,
    Round,
    RoundTrace,
    build_graph,
)
from overhear.training.algorithms import dp_dpsgd, dpdl
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.tracing.trace import trace

DELTA = 1e-5
LEARNING_RATE, BATCH_SIZE = 0.1, 7.0
STATEMENT = Statement(delta=DELTA)
ADVERSARIES = ("eavesdropper", "neighbour:1", "coalition:1,9", "final-models")
NUMBERS = {"learning_rate": LEARNING_RATE, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 7.0}


class Model(NamedTuple):
    x: Agents


def start(round: Round) -> Model:
    return Model(round.initial())


def released(round: Round, *points, batch=None, coefs=(1.0,), std=1.0, clip_norm=1.0):
    """A clipped sum with noise of its own: what one use of a batch releases."""
    batch = round.draw() if batch is None else batch
    sums = round.clipped_sums(*points, batch=batch, coefs=coefs, clip_norm=clip_norm)
    return sums + round.noise(sums, std=std)


def one_round(init, step, graph: Graph, *, rounds: int = 5) -> RoundTrace:
    return trace(init, step, graph=graph, rounds=rounds, noise_multiplier=1.0).rounds[0][0]


def joints(one: RoundTrace, adversary: str = "eavesdropper", victim: int = 0) -> list[float]:
    who = parse_adversary(adversary, one.record.agents)
    return [found.mu for found in one.sensitivities(who, victim)]


def unclosed(one: RoundTrace) -> View:
    """What an eavesdropper intercepts, and nothing else: not a proof."""
    messages = dataclasses.replace(one.record, closure=[], end_state={})
    return RoundTrace(messages).view(parse_adversary("eavesdropper", one.record.agents))


def exposed(
    of: AlgorithmTrace, *, rate: float, adversary: str = "eavesdropper"
) -> JointSensitivity:
    """Of a step whose noise scales with noise_std, so at any noise."""
    ((_, found),) = joint_sensitivities(of, [adversary], sampling_rate=rate)
    return found._replace(noise_multiplier=None)


# Noise that is correlated across agents


def noisy_exchange(noise_factor: np.ndarray, clip_norm: float):
    """x <- W (x - eta (g + v)), v correlated across agents."""
    mixing = torch.from_numpy(noise_factor)

    def step(state: Model, round: Round) -> Model:
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noisy = sums + round.noise(sums, std=1.0, factor=mixing)
        return Model(round.mix(state.x - LEARNING_RATE / BATCH_SIZE * noisy, kind="model"))

    return step


def decor(graph: Graph, clip_norm: float = 1.0) -> RoundTrace:
    sources = decor_factor(graph.weights, local_variance=1.0, pair_variance=2.0)
    return one_round(start, noisy_exchange(sources, clip_norm), graph)


@pytest.mark.parametrize(
    ("graph", "mu"), [(ring(10), 0.577914), (full(10), 0.377964)], ids=["ring", "full"]
)
def test_decor_hides_each_agent_better_than_noise_of_its_own(graph, mu):
    assert joints(decor(graph)) == pytest.approx([mu], abs=1e-6)


def test_decor_on_a_triangle_with_a_replaced_contribution():
    (mu,) = joints(decor(full(3), clip_norm=2.0))
    assert mu == pytest.approx(1.309307, abs=1e-6)
    assert math.sqrt(10) * mu == pytest.approx(4.140393, abs=1e-6)
    assert epsilon_from_mu(mu, DELTA) == pytest.approx(5.99882, abs=1e-5)
    assert epsilon_from_mu(math.sqrt(10) * mu, DELTA) == pytest.approx(25.5450, abs=1e-4)
    # As if the noise of a message were its own: variance 1 + 2 * 2.
    assert epsilon_from_mu(2.0 / math.sqrt(5.0), DELTA) == pytest.approx(3.85, abs=5e-3)


def test_a_decor_agent_sees_through_the_noise_of_its_links():
    (mu,) = joints(decor(full(3), clip_norm=2.0), "neighbour:2")
    assert mu == pytest.approx(1.549193, abs=1e-6)
    assert epsilon_from_mu(mu, DELTA) == pytest.approx(7.32937, abs=1e-5)


@pytest.mark.parametrize("scheme", ["own noise", "whisper"])
def test_own_and_optimal_noise_of_equal_bound_cost_the_same_from_outside(scheme):
    graph = build_graph("erdos-renyi", 10, edge_probability=0.5, seed=1)
    covariance = (
        np.eye(10) if scheme == "own noise" else whisper_covariance(graph.weights, bound=1.0)
    )
    one = one_round(start, noisy_exchange(factor(covariance), 1.0), graph)
    worst = max(joints(one, victim=agent)[0] for agent in range(10))
    assert worst == pytest.approx(1.0, abs=1e-9)
    inside = [joints(one, f"neighbour:{k}", victim=v)[0] for k in range(10) for v in {0, 5} - {k}]
    if scheme == "own noise":
        assert max(inside) == pytest.approx(1.0, abs=1e-9)
    else:  # whoever can compute its own row can compute everybody's
        assert min(inside) == math.inf


# One release a round


def muffliato(state: Model, round: Round, *, gossip_steps: int, gamma: float) -> Model:
    """A noisy local step, then accelerated gossip: y <- gamma W y + (1 - gamma) y_before."""
    before = state.x - LEARNING_RATE / BATCH_SIZE * released(round, state.x)
    y = round.mix(before, kind="gossip")
    for _ in range(gossip_steps - 1):
        before, y = y, gamma * round.mix(y, kind="gossip") + (1.0 - gamma) * before
    return Model(y)


@pytest.mark.parametrize("gossip_steps", [1, 4])
@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1"])
def test_muffliato_costs_one_release_however_long_it_gossips(gossip_steps, adversary):
    step = functools.partial(muffliato, gossip_steps=gossip_steps, gamma=1.3)
    assert joints(one_round(start, step, ring(10)), adversary) == pytest.approx([1.0], abs=1e-9)


class PushSum(NamedTuple):
    x: Agents
    w: Tensor  # (A, 1), public


def test_dyn_d2p_costs_one_over_its_multiplier_in_every_round():
    graph = star(6)
    share = torch.from_numpy(1.0 / graph.degrees[graph.senders])[:, None]
    columns = np.zeros((6, 6))
    columns[graph.receivers, graph.senders] = share[:, 0].numpy()
    assert columns.sum(axis=0) == pytest.approx(1.0)  # column-stochastic and not doubly so
    assert columns.sum(axis=1).max() > 1.5

    def init(round):
        return PushSum(round.initial(), torch.ones(6, 1, dtype=torch.float64))

    def step(state, round):
        """Push-sum: gradients at z = x / w; clip norm and noise multiplier of each round."""
        clip_norm, multiplier = 4.0 ** (-round.index / 5), 2.0 ** (round.index - 1)
        std = clip_norm * multiplier
        noisy = released(round, state.x / state.w, std=std, clip_norm=clip_norm)
        half = state.x - LEARNING_RATE / BATCH_SIZE * noisy
        sent = round.broadcast(half, kind="push")
        x = round.sum_in(sent, weights=round.of_edges(share))
        return PushSum(x, torch.from_numpy(columns) @ state.w)

    rounds = trace(init, step, graph=graph, rounds=5, noise_multiplier=1.0).rounds
    for adversary in ("eavesdropper", "neighbour:0"):
        found = [joints(one, adversary, victim=3)[0] for one, _ in rounds]
        assert found == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625], rel=1e-9)


# Several releases of one batch


def dp_cga(state: dpdl.State, round: Round) -> dpdl.State:
    """Cross-gradients, projected onto the cone of what came back; momentum, then mixing."""
    models = round.broadcast(state.x, kind="model")
    got = round.reply(released(round, models) / BATCH_SIZE, kind="cross-gradient")
    v = 0.9 * state.v + round.postprocess(lambda rows: rows.mean(dim=0), got)
    return dpdl.State(round.mix(state.x - LEARNING_RATE * v, kind="half"), round.mix(v, kind="v"))


@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize(
    ("graph", "mu"), [(ring(10), 1.7321), (full(10), 3.1623)], ids=["ring", "full"]
)
def test_dp_cga_costs_sqrt_of_the_neighbourhood(graph, mu, adversary):
    assert joints(one_round(dpdl.init, dp_cga, graph), adversary) == pytest.approx([mu], abs=5e-5)


@pytest.mark.parametrize(("uses", "eps"), [(1, 0.6220), (2, 1.0004), (4, 1.8282)])
def test_cross_gradients_of_one_batch_are_one_louder_release(uses, eps):
    settings = dpdl.Settings(alpha=1.0, momentum=0.9)
    step = functools.partial(dpdl.step, form=Form.REPAIRED, settings=settings, **NUMBERS)
    of = trace(dpdl.init, step, graph=full(uses), rounds=1000, noise_multiplier=1.0)
    found = exposed(of, rate=0.01, adversary="final-models")
    assert run_epsilon(found, noise_multiplier=2.0, statement=STATEMENT) == pytest.approx(
        eps, abs=1e-3
    )


def test_a_clipped_batch_mean_moves_by_twice_its_clip_norm():
    def step(state, round):
        return Model(round.mix(state.x - released(round, state.x, clip_norm=2.0), kind="model"))

    found = exposed(trace(start, step, graph=ring(5), rounds=1000, noise_multiplier=1.0), rate=0.01)
    assert run_epsilon(found, noise_multiplier=2.0, statement=STATEMENT) == pytest.approx(
        1.828, abs=1e-3
    )


# Local steps that nobody sees


class Tracker(NamedTuple):
    x: Agents
    y: Agents  # tracked gradient
    g: Agents  # the last released gradient, stored with its noise


def tracker(round: Round) -> Tracker:
    x = round.initial()
    return Tracker(x, 0.0 * x, 0.0 * x)


def net_fleet(state: Tracker, round: Round, *, local_steps: int, one_batch: bool) -> Tracker:
    """Gradient tracking with local steps; each gradient is clipped and noised once and kept."""
    x, y, g = state
    batch = round.draw() if one_batch else None
    for _ in range(local_steps):
        new = released(round, x, batch=batch) / BATCH_SIZE
        y, g = y + new - g, new
        x = x - LEARNING_RATE * y
    return Tracker(round.mix(x, kind="model"), round.mix(y, kind="tracker"), g)


@pytest.mark.parametrize(
    ("local_steps", "one_batch", "expected"),
    [
        pytest.param(1, False, [1.0], id="1"),
        pytest.param(3, False, [1.0, 1.0, 1.0], id="3, separate batches"),
        pytest.param(3, True, [math.sqrt(3)], id="3, one batch"),
    ],
)
@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
def test_net_fleet_costs_one_release_a_local_step(local_steps, one_batch, expected, adversary):
    step = functools.partial(net_fleet, local_steps=local_steps, one_batch=one_batch)
    found = joints(one_round(tracker, step, ring(10)), adversary)
    assert found == pytest.approx(expected, abs=1e-9)


def two_local_steps(state: Model, round: Round) -> Model:
    """Each on a batch of its own; only their end is sent."""
    x = state.x
    for _ in range(2):
        x = x - LEARNING_RATE / BATCH_SIZE * released(round, x)
    return Model(round.mix(x, kind="model"))


def test_hidden_local_steps_seem_cheaper_without_closure():
    one = one_round(start, two_local_steps, ring(10))
    open_view, closed = unclosed(one).mu([0]), joints(one)
    assert open_view == pytest.approx(0.7071, abs=5e-5)
    assert epsilon_from_mu(open_view, DELTA) == pytest.approx(2.94, abs=5e-3)
    assert closed == pytest.approx([1.0, 1.0], abs=1e-9)
    assert epsilon_from_mu(closed[0], DELTA) == pytest.approx(4.38, abs=5e-3)


@pytest.mark.parametrize("tracks", [True, False], ids=["gradient tracking", "models alone"])
def test_two_local_steps_a_round_cost_two_batches_a_round(tracks):
    step = functools.partial(net_fleet, local_steps=2, one_batch=False)
    init, step = (tracker, step) if tracks else (start, two_local_steps)
    found = exposed(trace(init, step, graph=ring(10), rounds=500, noise_multiplier=1.0), rate=0.02)
    assert run_epsilon(found, noise_multiplier=2.0, statement=STATEMENT) == pytest.approx(
        1.3297, abs=2e-4
    )


def test_two_local_steps_without_closure_or_as_one_event_seem_to_cost_less():
    # Without closure each batch seems to cost 1/sqrt(2) ...
    messages = unclosed(one_round(start, two_local_steps, ring(10))).mu([0])
    cheap = {"delta": DELTA, "sampling_rate": 0.02}
    skipped = epsilon(noise_multiplier=2.0 / messages, rounds=1000, **cheap)
    assert skipped == pytest.approx(0.867, abs=5e-4)
    # ... and one event a round forgets half of the batches.
    assert epsilon(noise_multiplier=2.0, rounds=500, **cheap) == pytest.approx(0.921, abs=5e-4)


# What else closure decides


def noise_for_each_link(state: Model, round: Round) -> Model:
    """The local model keeps its gradients clean; every neighbour gets it with noise."""
    local = state.x - round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    copies = round.spread(local)
    round.reply(copies + round.noise(copies, std=1.0), kind="noisy model")
    return Model(local)


def test_noise_on_messages_over_a_clean_local_model_is_only_seemingly_finite():
    one = one_round(start, noise_for_each_link, ring(10))
    assert unclosed(one).mu([0]) == pytest.approx(1.414, abs=5e-4)
    assert joints(one) == [math.inf]


def test_messages_of_mix_then_step_alone_say_nothing_about_the_round():
    step = functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.MIX_THEN_STEP, **NUMBERS)
    one = one_round(dp_dpsgd.init, step, ring(10))
    assert unclosed(one).mu([0]) == 0.0
    assert joints(one) == pytest.approx([1.0])


# Recursions that carry a gradient on


class MinMax(NamedTuple):
    z: Agents
    before: Agents  # the models of the round before
    d: Agents  # estimate of the gradient
    sent: Agents  # d as it entered the tracker
    u: Agents  # tracked estimate


BETA = 0.01


def mixed_start(round: Round, *, sampling_rate: float | None = None, std: float = 1.0) -> MinMax:
    """The large first batch is a release like any other."""
    z = round.initial()
    d = released(round, z, batch=round.draw(sampling_rate), std=std) / BATCH_SIZE
    return MinMax(z, z, d, d, round.mix(d, kind="tracker"))


def dpmixsgd(state: MinMax, round: Round, *, published: bool) -> MinMax:
    """d <- g(z) + (1 - beta) (d - g(z before)), both gradients of one batch.

    Published: noise is added to what is sent, and d stays clean. Repaired: the difference of the
    two gradients is clipped as one vector, and its noise stays in the recursion.
    """
    keep, batch = 1.0 - BETA, round.draw()
    if published:
        new = round.clipped_sums(state.z, batch=batch, clip_norm=1.0)
        old = round.clipped_sums(state.before, batch=batch, clip_norm=1.0)
        d = (new - keep * old) / BATCH_SIZE + keep * state.d
        sent = d + round.noise(d, std=1.0 / BATCH_SIZE)
    else:
        new = released(round, state.z, state.before, batch=batch, coefs=(1.0, -keep))
        d = new / BATCH_SIZE + keep * state.d
        sent = d
    u = round.mix(state.u + sent - state.sent, kind="tracker")
    z = round.mix(state.z - LEARNING_RATE * u, kind="model")
    return MinMax(z, state.z, d, sent, u)


@pytest.mark.parametrize(("published", "mu"), [(False, 1.0), (True, math.inf)])
def test_a_round_of_dpmixsgd_costs_one_release_only_if_its_recursion_is_noisy(published, mu):
    step = functools.partial(dpmixsgd, published=published)
    assert joints(one_round(mixed_start, step, ring(10))) == pytest.approx([mu], abs=1e-9)


@pytest.mark.parametrize(("std", "eps"), [(None, 0.0975), (1.0, 1.687), (5.0, 0.1233)])
def test_the_large_first_batch_of_dpmixsgd_costs_more_than_all_rounds(std, eps):
    # n = 20,000, batches of 10 and a first one of 2,000; std None leaves the first batch out.
    init = functools.partial(mixed_start, sampling_rate=0.1, std=std or 1.0)
    step = functools.partial(dpmixsgd, published=False)
    found = exposed(
        trace(init, step, graph=ring(5), rounds=2000, noise_multiplier=1.0), rate=10 / 20_000
    )
    if std is None:
        found = found._replace(releases=tuple(r for r in found.releases if r.first))
    assert run_epsilon(found, noise_multiplier=1.0, statement=STATEMENT) == pytest.approx(
        eps, rel=2e-3
    )
