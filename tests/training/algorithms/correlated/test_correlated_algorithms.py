"""Whisper, DECOR, LDP and CDP run: what a step does, and what noise it leaves."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from overhear.privacy import noise_floor
from overhear.training.algorithms import ALGORITHMS, bind, cdp_dsgd, dp_dpsgd, whisper
from overhear.training.algorithms.algorithm import Clip
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.setting import Setting
from overhear.training.engine.transcript import Transcript
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import erdos_renyi, full, grid, ring, star
from overhear.training.models.parameters import flatten
from tests.training.algorithms.correlated.test_shared_step import covariance_of, factor_of

NAMES = ("whisper", "decor", "ldp-dsgd", "cdp-dsgd")
GOSSIP = NAMES[:3]
ETA, B, STD, ROUNDS = 0.3, 4.5, 0.4, 30


def engine(
    name: str,
    graph: Graph,
    *,
    clip_norm: float | None = 0.2,
    noise_std: float = STD,
    rate: float = 0.5,
    root: int = 5,
    width: int = 4,
    dtype: torch.dtype = torch.float64,
    settings=None,
    taps=(),
) -> Engine:
    rng = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, 2))
    for p in net.parameters():
        p.data.normal_(generator=rng)
    shards = [
        Examples(torch.randn(9, width, generator=rng), torch.randint(2, (9,), generator=rng))
        for _ in range(graph.agents)
    ]
    setting = Setting(
        graph=graph, model=net, shards=shards, sampling_rate=rate, device=torch.device("cpu"),
        dtype=dtype,
    )  # fmt: skip
    algorithm = ALGORITHMS[name]
    bound = bind(
        algorithm, algorithm.settings() if settings is None else settings, learning_rate=ETA,
        batch_size=B, clip_norm=clip_norm, noise_std=noise_std, graph=graph, rounds=ROUNDS,
    )  # fmt: skip
    started = Engine(setting, bound, randomness=SecretRandomness(root), taps=list(taps))
    started.start()
    return started


# What the step does


PLAIN = [(name, graph) for name in GOSSIP for graph in (ring(5), star(5), full(5))]


def _stepping_first(graph: Graph, **numbers) -> Engine:
    order = dp_dpsgd.Settings(order=dp_dpsgd.Order.STEP_THEN_MIX)
    return engine("dp-dpsgd", graph, settings=order, **numbers)


@pytest.mark.parametrize(
    ("name", "graph"),
    [*PLAIN, ("cdp-dsgd", full(5))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_without_noise_and_clipping_it_is_dsgd_that_steps_first(name, graph):
    numbers = {"clip_norm": None, "noise_std": 0.0}
    runs = [engine(name, graph, **numbers), _stepping_first(graph, **numbers)]
    for started in runs:
        for _ in range(3):
            started.advance()
    torch.testing.assert_close(runs[0].models(), runs[1].models(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("graph", [ring(5), star(5)], ids=lambda g: g.name)
def test_a_server_averages_whatever_the_links(graph):
    started = engine("cdp-dsgd", graph)
    for _ in range(3):
        x, recorded = started.models().clone(), Recorded()
        started.advance(recorded=recorded)
        total = recorded.contributions[0].sum(0) + STD * recorded.noise[0][0]
        torch.testing.assert_close(started.models(), x - ETA * total / (5 * B))


def test_a_server_averages_clipped_means_where_a_batch_is_clipped():
    settings = cdp_dsgd.Settings(clip=Clip.BATCH)
    started = engine("cdp-dsgd", ring(5), settings=settings, clip_norm=0.01)
    x, recorded = started.models().clone(), Recorded()
    started.advance(recorded=recorded)
    norms = recorded.contributions[0].norm(dim=-1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.01))  # and of no sum of B examples
    total = recorded.contributions[0].sum(0) + STD * recorded.noise[0][0]
    torch.testing.assert_close(started.models(), x - ETA * total / 5)


@pytest.mark.parametrize("name", NAMES)
def test_one_agent_is_dp_sgd(name):
    alone = engine(name, ring(1))
    x = flatten(alone.setting.model).detach().double()
    for _ in range(3):
        recorded = Recorded()
        alone.advance(recorded=recorded)
        x = x - ETA * (recorded.contributions[0][0] + STD * recorded.noise[0][0]) / B
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-12, atol=1e-13)


def test_ldp_is_dp_dpsgd_that_steps_first():
    runs = [engine("ldp-dsgd", ring(5)), _stepping_first(ring(5))]
    for started in runs:
        for _ in range(3):
            started.advance()
    torch.testing.assert_close(runs[0].models(), runs[1].models(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", GOSSIP)
@pytest.mark.parametrize("graph", [ring(5), star(5)], ids=lambda g: g.name)
def test_messages_carry_noise_of_the_planned_covariance(name, graph):
    transcript = Transcript()
    silent = engine(name, graph, rate=0.0, width=2_000, taps=[transcript])
    before = silent.models().clone()
    silent.advance()
    (message,) = transcript.of(round=1, kind="model")
    noise = ((before - message.rows) * B / ETA / STD).numpy()  # (5, D)
    n = noise.shape[1]
    assert n > 6_000
    R = covariance_of(name, graph)
    # Each of the 15 entries within 5 standard errors of n = 6,011 draws: false alarm 9e-6.
    error = np.sqrt((np.outer(R.diagonal(), R.diagonal()) + R**2) / n)
    assert (np.abs(noise @ noise.T / n - R) < 5 * error).all()


def test_single_precision_keeps_what_cancels_where_w_is_singular():
    graph = ring(9)  # deviation 57 in each message, of which mixing leaves 0.46 in each model
    W = torch.from_numpy(graph.weights.copy())
    runs = [engine("whisper", graph, rate=0.0, dtype=d) for d in (torch.float32, torch.float64)]
    for started in runs:
        start, recorded = started.models().double(), Recorded()
        started.advance(recorded=recorded)
        z = recorded.noise[0].double()
        moved = started.models().double() - W @ start
        exact = -ETA * STD / B * W @ torch.from_numpy(factor_of("whisper", graph)) @ z
        floor = ETA * STD / B / 3  # of one model, deviation of what a server would leave
        assert float((moved - exact).abs().max()) < 1e-3 * floor


# What noise is left


def test_the_noise_of_a_trusted_server_is_the_floor_of_all():
    started = engine("cdp-dsgd", ring(5), rate=0.0, width=2_000)
    before = started.models().clone()
    started.advance()
    left = ((started.models() - before) * B / ETA / STD).numpy()  # (5, D)
    assert (left == left[0]).all()
    n = left.shape[1]
    # Variance of n = 6,011 normals within 5 standard errors of 1/25: false alarm 6e-7.
    assert abs(float((left[0] ** 2).mean()) * 25 - 1) < 5 * math.sqrt(2 / n)
    for name in GOSSIP:
        for graph in (ring(5), full(5)):
            assert noise_floor(graph.weights, covariance_of(name, graph)) > 1 / 5


@pytest.mark.parametrize("horizon", [1, ROUNDS])
def test_noise_of_all_rounds_in_the_final_models_is_that_of_the_closed_form(horizon):
    graph = grid(6)
    settings = whisper.Settings(horizon=horizon)
    started = engine("whisper", graph, rate=0.0, width=500, settings=settings)
    before = started.models().clone()
    for _ in range(ROUNDS):
        started.advance()
    left = ((started.models() - before) * B / ETA / STD).numpy()  # (6, D)
    R, W, n = covariance_of("whisper", graph, horizon=horizon), graph.weights, left.shape[1]
    powers = [np.linalg.matrix_power(W, k) for k in range(1, ROUNDS + 1)]
    final = sum(power @ R @ power.T for power in powers)
    assert np.trace(final) == pytest.approx(ROUNDS * noise_floor(W, R, rounds=ROUNDS), rel=1e-9)
    # Energy of n = 1,511 coordinates: variance 2 tr(final^2) each, 5 standard errors, 6e-7.
    error = math.sqrt(2 * np.vdot(final, final) / n)
    assert abs((left**2).sum() / n - np.trace(final)) < 5 * error


def test_the_horizon_lowers_noise_in_the_final_models_and_raises_it_in_the_messages():
    graph = erdos_renyi(20, 0.3, seed=1)
    left = {
        (name, h): noise_floor(graph.weights, covariance_of(name, graph, horizon=h), rounds=ROUNDS)
        for name in ("whisper", "decor")
        for h in (1, 0)
    }
    ldp = noise_floor(graph.weights, np.eye(20), rounds=ROUNDS)
    assert (
        ldp > left["decor", 1] > left["whisper", 1] > left["decor", 0] > left["whisper", 0] > 0.05
    )
    greedy, far = (covariance_of("whisper", graph, horizon=h).trace() for h in (1, 0))
    assert far > greedy
