"""MUFFLIATO: accelerated gossip against its matrix polynomial, and what a round costs."""

import math

import numpy as np
import pytest
import torch

from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import ALGORITHMS, bind, dp_dpsgd, muffliato
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.engine.recording import Recorded
from overhear.training.engine.transcript import Transcript
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph, spectral_gap
from overhear.training.graphs.topologies import directed_exponential, full, ring, star
from overhear.training.models.parameters import flatten
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.contract import setting, summed_gradient

ETA, B = 0.3, 4.5


def engine(
    name: str,
    settings,
    graph: Graph,
    *,
    clip_norm: float | None = 0.2,
    noise_std: float = 0.4,
    rate: float = 0.5,
    taps=(),
) -> Engine:
    numbers = {"learning_rate": ETA, "batch_size": B, "clip_norm": clip_norm}
    bound = bind(ALGORITHMS[name], settings, noise_std=noise_std, graph=graph, rounds=9, **numbers)
    started = Engine(
        setting(graph, rate=rate), bound, randomness=SecretRandomness(5), taps=list(taps)
    )
    started.start()
    return started


def polynomial(W: np.ndarray, steps: int, gamma: float) -> np.ndarray:
    """p_K(W) through the eigenvalues of W."""
    values, vectors = np.linalg.eigh(W)
    before, now = np.ones_like(values), values.copy()
    for _ in range(steps - 1):
        before, now = now, gamma * values * now + (1 - gamma) * before
    return vectors @ np.diag(now) @ vectors.T


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("graph", [ring(5), star(5)], ids=lambda g: g.name)
def test_without_noise_and_clipping_a_round_is_a_gradient_step_and_a_polynomial_of_w(graph, steps):
    started = engine(
        "muffliato", muffliato.Settings(gossip_steps=steps), graph, clip_norm=None, noise_std=0.0,
        rate=1.0,
    )  # fmt: skip
    net = started.setting.model.double()
    gap = 1 - np.sort(np.linalg.eigvalsh(graph.weights))[-2]
    gamma = 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2  # as the paper prints it
    mixing = polynomial(graph.weights, steps, gamma)
    x = np.tile(flatten(net).detach().numpy(), (graph.agents, 1))
    for _ in range(3):
        started.advance()
        gradients = [
            summed_gradient(net, x[i], shard) for i, shard in enumerate(started.setting.shards)
        ]
        x = mixing @ (x - ETA * np.stack(gradients) / B)
        np.testing.assert_allclose(started.models().numpy(), x, rtol=1e-9, atol=1e-12)


def test_one_gossip_step_is_dp_dpsgd_that_steps_first():
    gossip = engine("muffliato", muffliato.Settings(gossip_steps=1), ring(5))
    plain = engine("dp-dpsgd", dp_dpsgd.Settings(order=dp_dpsgd.Order.STEP_THEN_MIX), ring(5))
    for _ in range(4):
        gossip.advance()
        plain.advance()
    torch.testing.assert_close(gossip.models(), plain.models(), rtol=1e-12, atol=1e-13)


def test_one_agent_is_dp_sgd():
    alone = engine("muffliato", muffliato.Settings(gossip_steps=4), ring(1))
    x = alone.models()[0].clone()
    for _ in range(3):
        recorded = Recorded()
        alone.advance(recorded=recorded)
        x = x - ETA * (recorded.contributions[0][0] + 0.4 * recorded.noise[0][0]) / B
        torch.testing.assert_close(alone.models()[0], x, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("graph", [ring(6), star(5), full(4)], ids=lambda g: g.name)
def test_gossip_keeps_the_mean(graph, steps):
    settings = muffliato.Settings(gossip_steps=steps)
    started = engine("muffliato", settings, graph, noise_std=0.0, rate=0.0)
    rng = torch.Generator().manual_seed(1)
    spread = torch.randn(started.models().shape, generator=rng, dtype=torch.float64)
    started.restore({"x": spread}, round=0)
    started.advance()
    torch.testing.assert_close(started.models().mean(0), spread.mean(0), rtol=1e-12, atol=1e-13)
    ones = torch.ones_like(spread)
    started.restore({"x": ones}, round=0)
    started.advance()
    torch.testing.assert_close(started.models(), ones, rtol=1e-12, atol=1e-13)


def test_acceleration_brings_agents_closer_than_as_many_plain_steps():
    graph, steps = ring(20), 30
    gamma = muffliato.acceleration(spectral_gap(graph))
    apart = np.eye(20) - 1 / 20
    accelerated = np.linalg.norm(polynomial(graph.weights, steps, gamma) @ apart, 2)
    plain = np.linalg.norm(np.linalg.matrix_power(graph.weights, steps) @ apart, 2)
    assert accelerated < 0.1 * plain


def test_the_default_number_of_steps_is_that_of_the_graph():
    transcript = Transcript()
    engine("muffliato", muffliato.Settings(), ring(10), taps=[transcript]).advance()
    sent = transcript.of(round=1, kind="gossip")
    assert len(sent) == math.ceil(math.log(10) / math.sqrt(spectral_gap(ring(10)))) == 7


@pytest.mark.parametrize(("agents", "gap"), [(4, 2 / 3), (10, (2 - 2 * math.cos(math.pi / 5)) / 3)])
def test_the_gap_of_a_ring_is_its_closed_form(agents, gap):
    assert spectral_gap(ring(agents)) == pytest.approx(gap, rel=1e-12)


@pytest.mark.parametrize("gap", [1e-6, 0.1, 1.0, 1.5])
def test_the_momentum_equals_the_printed_expression(gap):
    printed = 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2
    assert muffliato.acceleration(gap) == pytest.approx(printed, rel=1e-9)


def test_momentum_of_gossip_that_needs_none_is_one():
    assert muffliato.acceleration(2.0) == 1.0


def round_of(graph: Graph, *, steps: int, **numbers) -> RoundTrace:
    unit = {"learning_rate": ETA, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 1.0}
    settings = muffliato.Settings(gossip_steps=steps)
    bound = bind(ALGORITHMS["muffliato"], settings, graph=graph, rounds=5, **unit | numbers)
    (one, _), *_ = trace(
        bound.init, bound.step, graph=graph, rounds=5, noise_multiplier=bound.noise_multiplier
    ).rounds
    return one


def joint(graph: Graph, adversary: str, *, victim: int = 0, **how) -> float:
    who = parse_adversary(adversary, graph.agents)
    (found,) = round_of(graph, **how).sensitivities(who, victim)
    return found.mu


@pytest.mark.parametrize("steps", [0, 1, 4, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_a_round_is_one_release_for_whoever_reads_links(graph, steps):
    one = round_of(graph, steps=steps)
    for adversary in ("eavesdropper", "neighbour:1", "coalition:1,2"):
        (found,) = one.sensitivities(parse_adversary(adversary, graph.agents), 0)
        assert found.mu == pytest.approx(1.0, abs=1e-9)


def test_the_cost_depends_on_neither_batch_size_nor_clip_norm():
    found = joint(ring(5), "eavesdropper", steps=3, batch_size=37.5, clip_norm=0.2, noise_std=0.4)
    assert found == pytest.approx(0.5, abs=1e-9)


def test_final_models_show_less_only_where_one_step_averages_exactly():
    assert joint(full(4), "final-models", steps=1) == pytest.approx(0.5, abs=1e-9)
    assert joint(full(4), "final-models", steps=2) == pytest.approx(1.0, abs=1e-9)


def test_long_gossip_counts_as_if_it_averaged_nothing_away():
    root = math.sqrt(28 / 30)  # two of the thirty eigenvalues of this ring are 0
    assert joint(ring(30), "final-models", steps=39) == pytest.approx(root, abs=1e-6)
    assert joint(ring(30), "final-models", steps=41) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("graph", "steps"),
    [
        (ring(5), 22),
        (ring(5), 37),
        (ring(5), 50),
        pytest.param(ring(5), 150, marks=pytest.mark.slow),
        (full(4), 22),
        (full(4), 50),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_gossip_that_floats_cannot_undo_is_not_taken_for_averaging(graph, steps):
    """p_K(W) has no zero eigenvalue here, so in real numbers the models show all of y^0."""
    assert joint(graph, "final-models", steps=steps) == pytest.approx(1.0, abs=1e-6)


def test_an_eigenvalue_that_gossip_shrinks_below_floats_is_not_taken_for_zero():
    """The slowest direction is remembered; the one of eigenvalue 1e-10 would be lost."""
    modes = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])
    weights = modes.T @ np.diag([1.0, 0.5, 1e-10]) @ modes
    graph = Graph(name="nearly singular", weights=weights)
    assert joint(graph, "final-models", steps=13) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.slow
def test_a_single_message_of_long_gossip_is_not_free():
    algorithm = ALGORITHMS["muffliato"]
    run = bind(
        algorithm, algorithm.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0,
        batch_size=1.0, graph=ring(50), rounds=3,
    )  # fmt: skip
    traces = trace(
        run.init, run.step, graph=ring(50), rounds=3, noise_multiplier=run.noise_multiplier
    )
    ((_, found),) = joint_sensitivities(traces, ["single-message"], sampling_rate=0.1)
    assert found.largest == pytest.approx(1.0)


def test_weights_that_differ_by_direction_are_refused():
    shift = np.roll(np.eye(4), 1, axis=1)
    one_way = Graph(name="one-way", weights=(np.eye(4) + shift) / 2)
    with pytest.raises(ValueError, match="symmetric weights"):
        joint(one_way, "eavesdropper", steps=2)


def test_graphs_that_change_are_refused():
    with pytest.raises(ValueError, match="changes from round to round"):
        joint(directed_exponential(4), "eavesdropper", steps=2)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="gossip_steps=-1"):
        muffliato.Settings(gossip_steps=-1)
    with pytest.raises(ValueError, match="spectral_gap=0"):
        muffliato.acceleration(0.0)
