"""DP-NETFLEET: local steps with tracked gradients, and what each batch of a round costs."""

import math

import numpy as np
import pytest
import torch

from overhear.privacy.guarantee import Statement, parse_adversary
from overhear.training.algorithms import ALGORITHMS, bind, dp_netfleet
from overhear.training.algorithms.dp_netfleet import Batches
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.models.parameters import flatten
from overhear.training.tracing.trace import AlgorithmTrace, trace
from tests.training.contract import setting, summed_gradient

ETA, B = 0.3, 4.5


def engine(
    graph: Graph,
    *,
    steps: int,
    batches: Batches = Batches.PER_STEP,
    clip_norm: float | None = 0.2,
    noise_std: float = 0.4,
    rate: float = 0.5,
    name: str = "dp-netfleet",
) -> Engine:
    algorithm = ALGORITHMS[name]
    settings = (
        dp_netfleet.Settings(local_steps=steps, batches=batches)
        if name == "dp-netfleet"
        else algorithm.settings()
    )
    numbers = {"learning_rate": ETA, "batch_size": B, "clip_norm": clip_norm}
    bound = bind(algorithm, settings, noise_std=noise_std, **numbers)
    started = Engine(setting(graph, rate=rate, apart=True), bound, randomness=SecretRandomness(5))
    started.start()
    return started


@pytest.mark.parametrize("batches", list(Batches))
@pytest.mark.parametrize("steps", [1, 3])
def test_without_noise_and_clipping_it_is_gradient_tracking_with_local_steps(steps, batches):
    graph = star(5)
    started = engine(graph, steps=steps, batches=batches, clip_norm=None, noise_std=0.0, rate=1.0)
    net, W = started.setting.model.double(), graph.weights
    x = np.tile(flatten(net).detach().numpy(), (5, 1))
    y, stored = np.zeros_like(x), np.zeros_like(x)
    for _ in range(4):
        started.advance()
        for _ in range(steps):
            fresh = np.stack(
                [summed_gradient(net, x[i], started.setting.shards[i]) / B for i in range(5)]
            )
            y, stored = y + fresh - stored, fresh
            x = x - ETA * y
        x, y = W @ x, W @ y
        end = started.snapshot()
        np.testing.assert_allclose(end["x"].numpy(), x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(end["y"].numpy(), y, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(end["g"].numpy(), stored, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_one_agent_is_dp_sgd(steps):
    alone = engine(ring(1), steps=steps)
    x = alone.models()[0].clone()
    for _ in range(3):
        recorded = Recorded()
        alone.advance(recorded=recorded)
        for sums, z in zip(recorded.contributions, recorded.noise, strict=True):
            x = x - ETA * (sums[0] + 0.4 * z[0]) / B
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_the_mean_tracker_is_the_mean_of_the_stored_noisy_gradients(graph, steps):
    started = engine(graph, steps=steps)
    for _ in range(4):
        started.advance()
        end = started.snapshot()
        torch.testing.assert_close(end["y"].mean(0), end["g"].mean(0), rtol=1e-12, atol=1e-13)
        assert float(end["g"].abs().max()) > 1e-3


def test_mixing_keeps_the_mean_of_the_models():
    started = engine(star(5), steps=2, noise_std=0.0, rate=0.0)
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(started.models().shape, generator=rng, dtype=torch.float64)
    nothing = torch.zeros_like(spread)
    started.restore({"x": spread, "y": nothing, "g": nothing}, round=0)
    started.advance()
    torch.testing.assert_close(started.models().mean(0), spread.mean(0), rtol=1e-12, atol=1e-13)


def test_agents_agree_where_plain_steps_keep_them_apart():
    """Each agent holds one class; a constant step leaves DSGD's models apart."""

    def distance(name: str) -> float:
        started = engine(ring(5), steps=1, clip_norm=None, noise_std=0.0, rate=1.0, name=name)
        for _ in range(150):
            started.advance()
        models = started.models()
        return float((models - models.mean(0)).norm())

    assert distance("dp-netfleet") < 0.1 * distance("dsgd")


def traced(
    graph: Graph, *, steps: int, batches: Batches = Batches.PER_STEP, **numbers: float
) -> AlgorithmTrace:
    unit = {"learning_rate": ETA, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    settings = dp_netfleet.Settings(local_steps=steps, batches=batches)
    bound = bind(ALGORITHMS["dp-netfleet"], settings, **unit | numbers)
    return trace(
        bound.init, bound.step, graph=graph, rounds=500, noise_multiplier=bound.noise_multiplier
    )


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_every_batch_of_local_steps_costs_one_release(graph, adversary, steps):
    ((one, _),) = traced(graph, steps=steps).rounds
    found = one.sensitivities(parse_adversary(adversary, graph.agents), 0)
    assert [s.mu for s in found] == pytest.approx([1.0] * steps, abs=1e-9)


@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_one_batch_for_three_steps_costs_the_root_of_three(graph):
    ((one, _),) = traced(graph, steps=3, batches=Batches.PER_ROUND).rounds
    (found,) = one.sensitivities(parse_adversary("eavesdropper", graph.agents), 0)
    assert found.mu == pytest.approx(math.sqrt(3), abs=1e-9)


def test_the_cost_depends_on_neither_batch_size_nor_clip_norm():
    ((one, _),) = traced(ring(5), steps=2, batch_size=37.5, clip_norm=0.2, noise_std=0.4).rounds
    found = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert [s.mu for s in found] == pytest.approx([0.5, 0.5], abs=1e-9)


def test_two_local_steps_at_multiplier_two_spend_one_point_three_three():
    """The messages alone would say .867, half of the batches .921."""
    ((_, sensitivity),) = joint_sensitivities(
        traced(ring(5), steps=2), ["eavesdropper"], sampling_rate=0.02
    )
    sensitivity = sensitivity._replace(noise_multiplier=None)  # the noise scales with noise_std
    spent = run_epsilon(sensitivity, noise_multiplier=2.0, statement=Statement(delta=1e-5))
    assert spent == pytest.approx(1.3297, abs=2e-3)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="local_steps=0"):
        dp_netfleet.Settings(local_steps=0)
