"""DP-CGA: the projection against its optimality conditions, and what a round costs."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, bind, dp_cga
from overhear.training.algorithms.algorithm import Clip
from overhear.training.algorithms.dp_cga import non_negative, project
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.models.parameters import flatten
from overhear.training.tracing.trace import trace
from tests.devices.stand_in import StandIn
from tests.training.contract import setting, summed_gradient

ETA, B, BETA = 0.3, 4.5, 0.6


def engine(
    graph: Graph,
    *,
    clip: Clip = Clip.PER_EXAMPLE,
    momentum: float = BETA,
    clip_norm: float | None = 0.2,
    noise_std: float = 0.4,
    rate: float = 0.5,
) -> Engine:
    settings = dp_cga.Settings(clip=clip, momentum=momentum)
    numbers = {"learning_rate": ETA, "batch_size": B, "clip_norm": clip_norm}
    bound = bind(ALGORITHMS["dp-cga"], settings, noise_std=noise_std, **numbers)
    started = Engine(setting(graph, rate=rate, apart=True), bound, randomness=SecretRandomness(5))
    started.start()
    return started


def projected_by_enumeration(g: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The nearest feasible vector among those with each subset of products held at zero."""
    best, nearest = math.inf, g
    for size in range(len(rows) + 1):
        for held in itertools.combinations(range(len(rows)), size):
            face = rows[list(held)]
            p = g - face.T @ np.linalg.pinv(face.T) @ g if size else g
            distance = float(np.linalg.norm(p - g))
            if (rows @ p >= -1e-9).all() and distance < best:
                best, nearest = distance, p
    return nearest


@pytest.mark.parametrize("clip", list(Clip))
def test_without_noise_and_clipping_it_is_cross_gradient_aggregation(clip):
    graph = star(5)
    started = engine(graph, clip=clip, clip_norm=None, noise_std=0.0, rate=1.0)
    net, shards, W = started.setting.model.double(), started.setting.shards, graph.weights
    x = np.tile(flatten(net).detach().numpy(), (5, 1))
    u = np.zeros_like(x)
    bent = 0
    for _ in range(4):
        started.advance()
        for i in range(5):
            heard = graph.neighbours(i)
            rows = np.stack([summed_gradient(net, x[i], shards[d]) / B for d in heard])
            own = rows[heard.index(i)]
            projected = projected_by_enumeration(own, rows)
            bent += bool(np.linalg.norm(projected - own) > 1e-3)
            u[i] = BETA * u[i] + projected
        x = W @ x - ETA * u
        np.testing.assert_allclose(started.models().numpy(), x, rtol=1e-8, atol=1e-10)
    assert bent > 5  # the projection does something here


def _cases():
    rng = np.random.default_rng(0)
    return [
        (rng.normal(size=width), rng.normal(size=(count, width)) + shift)
        for count, width, shift in [(2, 3, 0.0), (4, 8, 0.5), (5, 3, 0.0), (6, 40, -0.7)]
        for _ in range(5)
    ]


@pytest.mark.parametrize("case", range(20))
def test_the_projection_meets_its_optimality_conditions(case):
    g, rows = _cases()[case]
    p = project(torch.tensor(g), torch.tensor(rows)).numpy()
    assert (rows @ p >= -1e-9).all()  # feasible
    assert abs(p @ (p - g)) < 1e-9  # complementary
    np.testing.assert_allclose(p, projected_by_enumeration(g, rows), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", [0, 5, 10, 15])
def test_the_projection_is_what_a_generic_solver_finds(case):
    g, rows = _cases()[case]
    found = minimize(
        lambda p: 0.5 * (p - g) @ (p - g), np.zeros_like(g), jac=lambda p: p - g,
        constraints={"type": "ineq", "fun": lambda p: rows @ p, "jac": lambda _: rows},
        method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
    )  # fmt: skip
    p = project(torch.tensor(g), torch.tensor(rows)).numpy()
    np.testing.assert_allclose(p, found.x, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("case", [5, 10])
def test_the_projection_scales_with_its_input_and_needs_no_own_row(case, scale):
    g, rows = (torch.tensor(a) for a in _cases()[case])
    p = project(g, rows)
    torch.testing.assert_close(project(scale * g, scale * rows) / scale, p, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(project(g, torch.cat([rows, g[None]])), p, rtol=1e-9, atol=1e-10)


def stacked_cases() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Gradients (A, D) and rows (A, n, D): plain, more rows than D, equal and zero rows, uneven."""
    rng = np.random.default_rng(1)
    found = []
    for count, width in [(1, 4), (3, 20), (8, 5), (12, 40)]:
        rows = rng.normal(size=(30, count, width)) + rng.normal(size=(30, 1, width))
        rows[::3, -1] = rows[::3, 0]
        rows[::4, count // 2] = 0.0
        rows[::5] *= 10.0 ** rng.uniform(-6, 6, size=(6, count, 1))
        gradients = rows[:, 0].copy()
        gradients[1::2] = rng.normal(size=(15, width))
        found.append((torch.tensor(gradients), torch.tensor(rows)))
    return found


@pytest.mark.parametrize("case", range(4))
def test_all_agents_at_once_are_projected_as_scipy_projects_each(case):
    gradients, rows = stacked_cases()[case]
    stacked = torch.cat([rows, gradients[:, None]], dim=1)
    triangles = torch.linalg.qr(stacked.mT, mode="r").R
    v = torch.vmap(non_negative)(triangles)
    assert float(v.min()) >= 0
    assert bool((v > 0).any())
    found = gradients + (v[:, None] @ rows)[:, 0]
    expected = torch.stack([project(g, M) for g, M in zip(gradients, rows, strict=True)])
    off = (found - expected).norm(dim=1) / gradients.norm(dim=1).clamp(min=1e-300)
    assert float(off.max()) < 1e-10


def test_a_device_projects_without_the_host_waiting():
    gradients, rows = stacked_cases()[1]
    expected = project(gradients[1], rows[1])
    with StandIn() as device:
        g, M = gradients[1].to("cuda"), rows[1].to("cuda")
        with device.rounds():
            found = project(g, M)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-12)


def test_what_does_not_settle_is_not_a_number():
    broken = torch.tensor([[1.0, math.nan, -1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    assert bool(non_negative(broken).isnan().all())


def test_gradients_that_agree_are_left_alone_and_opposite_ones_cancel():
    g = torch.tensor([1.0, 2.0, 0.0])
    torch.testing.assert_close(project(g, torch.stack([g, 3 * g])), g)
    assert float(project(g, torch.stack([g, -g])).norm()) < 1e-6
    assert float(project(0 * g, torch.stack([0 * g, 0 * g])).norm()) == 0.0


def test_one_agent_is_dp_sgd():
    alone = engine(ring(1), momentum=0.0)
    x = alone.models()[0].clone()
    for _ in range(3):
        recorded = Recorded()
        alone.advance(recorded=recorded)
        x = x - ETA * (recorded.contributions[0][0] + 0.4 * recorded.noise[0][0]) / B
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-10, atol=1e-12)


def test_mixing_keeps_the_mean_of_the_models():
    started = engine(star(5), noise_std=0.0, rate=0.0)
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(started.models().shape, generator=rng, dtype=torch.float64)
    started.restore({"x": spread, "u": torch.zeros_like(spread)}, round=0)
    started.advance()
    torch.testing.assert_close(started.models().mean(0), spread.mean(0), rtol=1e-12, atol=1e-13)


def test_the_mean_of_a_batch_is_clipped_as_one_vector():
    clip, graph = 0.2, ring(5)
    recorded = Recorded()
    started = engine(graph, clip=Clip.BATCH, clip_norm=clip, rate=1.0)
    started.advance(recorded=recorded)
    net = started.setting.model.double()
    x = flatten(net).detach().numpy()
    (means,) = recorded.contributions
    for e, owner in enumerate(graph.receivers):
        mean = summed_gradient(net, x, started.setting.shards[owner]) / B
        expected = mean * min(1.0, clip / np.linalg.norm(mean))
        np.testing.assert_allclose(means[e].numpy(), expected, rtol=1e-9, atol=1e-12)
    assert float(means.norm(dim=1).max()) <= clip


def test_one_record_turns_a_clipped_mean_by_nearly_twice_its_bound():
    """A record of class 0 at logits that favour it, then one of class 1 beside it."""
    bound, found = 1e-3, []
    inputs, targets = torch.ones(2, 4), torch.tensor([0, 1])
    for count in (1, 2):
        started = engine(ring(3), clip=Clip.BATCH, clip_norm=bound)
        models = torch.zeros_like(started.models())
        models[:, -2] = 3.0  # the bias of class 0
        started.restore({"x": models, "u": torch.zeros_like(models)}, round=0)
        recorded = Recorded()
        planted = {0: Examples(inputs[:count], targets[:count])}
        started.advance(planted=planted, recorded=recorded)
        edge = int(np.flatnonzero(started.setting.graph.receivers == 0)[0])
        found.append(recorded.contributions[0][edge])
    assert float((found[0] - found[1]).norm()) > 1.99 * bound


def joint(graph: Graph, adversary: str, *, clip: Clip, victim: int = 0, **numbers) -> float:
    unit = {"learning_rate": ETA, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    bound = bind(ALGORITHMS["dp-cga"], dp_cga.Settings(clip=clip), **unit | numbers)
    ((one, _),) = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    ).rounds
    (found,) = one.sensitivities(parse_adversary(adversary, graph.agents), victim)
    return found.mu


@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
@pytest.mark.parametrize(
    ("graph", "victim"),
    [(ring(5), 0), (full(4), 0), (star(5), 0), (star(5), 4)],
    ids=["ring", "full", "star-hub", "star-leaf"],
)
def test_a_round_costs_the_root_of_the_models_that_a_batch_meets(graph, victim, adversary):
    root = math.sqrt(len(graph.neighbours(victim)))
    found = joint(graph, adversary, clip=Clip.PER_EXAMPLE, victim=victim)
    assert found == pytest.approx(root, abs=1e-9)
    twice = joint(graph, adversary, clip=Clip.BATCH, victim=victim)
    assert twice == pytest.approx(2 * root, abs=1e-9)


@pytest.mark.parametrize("clip", list(Clip))
def test_the_cost_depends_on_neither_batch_size_nor_clip_norm(clip):
    unit = joint(ring(5), "eavesdropper", clip=clip)
    scaled = {"batch_size": 37.5, "clip_norm": 0.2, "noise_std": 0.4}
    found = joint(ring(5), "eavesdropper", clip=clip, **scaled)
    assert found == pytest.approx(unit / 2, abs=1e-9)


@pytest.mark.parametrize("clip", list(Clip))
def test_without_clipping_the_cost_is_infinite(clip):
    assert joint(ring(5), "eavesdropper", clip=clip, clip_norm=None) == math.inf


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"momentum=1\.0"):
        dp_cga.Settings(momentum=1.0)
