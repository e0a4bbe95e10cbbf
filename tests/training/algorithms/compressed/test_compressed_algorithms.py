"""CHOCO-SGD and PORTER: their papers' steps by hand, what they cost, and what they learn."""

import functools
import math

import numpy as np
import pytest
import torch

from overhear.privacy.guarantee import parse_adversary
from overhear.training.algorithms import dp_dpsgd
from overhear.training.algorithms.compression import (
    Compressor,
    Settings,
    quantised,
    random_k,
    top_k,
)
from overhear.training.engine.recording import Recorded
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import full, ring, star
from overhear.training.step.round import Round
from overhear.training.tracing.trace import trace
from tests.training.contract import (
    NOISE,
    bound_to,
    check_cost,
    check_mean_is_kept,
    check_rows,
    started,
    traced,
)
from tests.training.states import State, start

ETA, B = 0.3, 4.5
GAMMA = 0.3
NAMES = ("choco-sgd", "porter")
EXACT = {"rtol": 1e-10, "atol": 1e-12}
BOTH = [(name, compressor) for name in NAMES for compressor in Compressor]


def settings(compressor: Compressor, *, gamma: float = GAMMA) -> Settings:
    sparse = compressor in (Compressor.TOP_K, Compressor.RANDOM_K)
    return Settings(
        compressor=compressor, kept=0.3 if sparse else None,
        bits=3 if compressor is Compressor.QUANTISED else None,
        mask_seed=11 if compressor is Compressor.RANDOM_K else None, consensus_step=gamma,
    )  # fmt: skip


def bound(name: str, graph: Graph, compressor: Compressor, *, gamma: float = GAMMA, **numbers):
    return bound_to(name, graph, settings=settings(compressor, gamma=gamma), **numbers)


def compressed(rows: np.ndarray, compressor: Compressor, *, turn: int, stream: int) -> np.ndarray:
    """Q of every agent's row."""
    found = []
    for agent, row in enumerate(torch.from_numpy(rows)):
        if compressor is Compressor.TOP_K:
            row = top_k(row, kept=0.3)
        elif compressor is Compressor.QUANTISED:
            row = quantised(row, bits=3)
        elif compressor is Compressor.RANDOM_K:
            number = torch.tensor([float(agent)])
            row = random_k(row, 0 * row + turn, number, kept=0.3, seed=(11, stream))
        found.append(row.numpy())
    return np.stack(found)


class ChocoByHand:
    """The paper's update of all agents, with every copy of every neighbour kept."""

    def __init__(self, x: np.ndarray, W: np.ndarray) -> None:
        self.x, self.W = x.copy(), W
        self.heard = np.stack([x] * len(x))  # [i, j]: the copy of j that i holds

    def round(self, noisy: np.ndarray, compressor: Compressor, *, turn: int) -> None:
        A = len(self.x)
        half = self.x - ETA * noisy
        own = np.stack([self.heard[i, i] for i in range(A)])
        sent = compressed(half - own, compressor, turn=turn, stream=0)
        for i in range(A):
            for j in range(A):
                self.heard[i, j] = self.heard[i, j] + sent[j]
        for i in range(A):
            pull = sum(self.W[i, j] * (self.heard[i, j] - self.heard[i, i]) for j in range(A))
            self.x[i] = half[i] + GAMMA * pull


class PorterByHand:
    """The paper's update in its matrices, transposed so that a row is an agent."""

    def __init__(self, x: np.ndarray, W: np.ndarray) -> None:
        self.x, self.L = x.copy(), W - np.eye(len(W))
        self.v, self.g = np.zeros_like(x), np.zeros_like(x)
        self.qx, self.qv = x.copy(), np.zeros_like(x)

    def round(self, noisy: np.ndarray, compressor: Compressor, *, turn: int) -> None:
        self.v = self.v + GAMMA * self.L @ self.qv + noisy - self.g
        self.g = noisy
        self.qv = self.qv + compressed(self.v - self.qv, compressor, turn=turn, stream=1)
        self.x = self.x + GAMMA * self.L @ self.qx - ETA * self.v
        self.qx = self.qx + compressed(self.x - self.qx, compressor, turn=turn, stream=0)


@pytest.mark.parametrize("graph", [ring(5), star(5)], ids=lambda g: g.name)
@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_a_run_follows_the_pseudo_code_of_its_paper(name, compressor, graph):
    engine = started(bound(name, graph, compressor), graph)
    kind = ChocoByHand if name == "choco-sgd" else PorterByHand
    by_hand = kind(engine.models().numpy(), graph.weights)
    for turn in range(1, 7):
        recorded = Recorded()
        engine.advance(recorded=recorded)
        noisy = (recorded.contributions[0] + NOISE * recorded.noise[0]).numpy() / B
        by_hand.round(noisy, compressor, turn=turn)
        np.testing.assert_allclose(engine.models().numpy(), by_hand.x, **EXACT)


@pytest.mark.parametrize("graph", [ring(5), star(5), full(4)], ids=lambda g: g.name)
def test_choco_without_compression_and_with_a_whole_step_is_dp_dpsgd(graph):
    order = dp_dpsgd.Settings(order=dp_dpsgd.Order.STEP_THEN_MIX)
    plain = started(bound_to("dp-dpsgd", graph, settings=order), graph)
    choco = started(bound("choco-sgd", graph, Compressor.NONE, gamma=1.0), graph)
    for _ in range(6):
        plain.advance()
        choco.advance()
        torch.testing.assert_close(choco.models(), plain.models(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_the_mean_of_the_models_moves_as_that_of_plain_steps(name, compressor):
    graph = star(5)
    engine = started(bound(name, graph, compressor), graph)
    mean = engine.models().mean(0)
    for _ in range(5):
        recorded = Recorded()
        engine.advance(recorded=recorded)
        noisy = (recorded.contributions[0] + NOISE * recorded.noise[0]) / B
        mean = mean - ETA * noisy.mean(0)
        torch.testing.assert_close(engine.models().mean(0), mean, **EXACT)


@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_what_is_held_of_the_neighbours_copies_is_their_mixture(name, compressor):
    graph = star(5)
    engine = started(bound(name, graph, compressor), graph)
    for _ in range(4):
        engine.advance()
    end, W = engine.snapshot(), torch.tensor(graph.weights)
    torch.testing.assert_close(end["mixed_copies"], W @ end["copy"], **EXACT)
    if name == "porter":
        torch.testing.assert_close(end["mixed_tracker"], W @ end["tracker_copy"], **EXACT)
        torch.testing.assert_close(end["y"].mean(0), end["g"].mean(0), **EXACT)


@pytest.mark.parametrize("name", NAMES)
def test_gossip_of_compressed_differences_brings_models_together(name):
    check_mean_is_kept(bound(name, ring(5), Compressor.TOP_K, noise_std=0.0), ring(5))
    engine = started(bound(name, ring(5), Compressor.TOP_K, noise_std=0.0), ring(5), rate=0.0)
    rng = torch.Generator().manual_seed(1)
    apart = torch.randn(engine.models().shape, generator=rng, dtype=torch.float64)
    engine.restore(engine.snapshot() | {"x": apart}, round=0)
    for _ in range(300):
        engine.advance()
    left = engine.models() - apart.mean(0)
    assert float(left.norm()) < 1e-3 * float((apart - apart.mean(0)).norm())


@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_every_message_and_end_state_is_its_row(name, compressor):
    check_rows(bound(name, ring(5), compressor), ring(5))


@pytest.mark.parametrize("adversary", ["eavesdropper", "neighbour:1", "final-models"])
@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_a_round_costs_one_release_and_is_traced_once(name, compressor, adversary):
    for graph in (ring(5), star(5)):
        unit = bound(name, graph, compressor, clip_norm=1.0, noise_std=1.0)
        found = trace(unit.init, unit.step, graph=graph, rounds=1000, noise_multiplier=1.0)
        ((one, count),) = found.rounds
        assert count == 1000
        assert not one.blames
        check_cost(one, 1.0, adversary=adversary)


def between_clip_and_noise(state: State, round: Round) -> State:
    """What is refused: the sum of clipped gradients is compressed, then noised."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    sparse = round.postprocess(functools.partial(top_k, kept=0.3), sums)
    return State(round.mix(state.x - sparse - round.noise(sparse, std=1.0), kind="model"))


def after_the_noise(state: State, round: Round) -> State:
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
    noisy = sums + round.noise(sums, std=1.0)
    sparse = round.postprocess(functools.partial(top_k, kept=0.3), noisy)
    return State(round.mix(state.x - sparse, kind="model"))


def test_compression_between_clip_and_noise_has_no_protection():
    check_cost(traced(start, after_the_noise, ring(5)), 1.0)
    one = traced(start, between_clip_and_noise, ring(5))
    (found,) = one.sensitivities(parse_adversary("eavesdropper", 5), 0)
    assert found.mu == math.inf
    assert "input of postprocess" in found.because


@pytest.mark.parametrize(("name", "compressor"), BOTH)
def test_a_restored_run_continues_as_if_it_had_not_stopped(name, compressor):
    whole = started(bound(name, ring(5), compressor), ring(5))
    for _ in range(2):
        whole.advance()
    kept = whole.snapshot()
    resumed = started(bound(name, ring(5), compressor), ring(5))
    resumed.restore(kept, round=2)
    for engine in (whole, resumed):
        for _ in range(2):
            engine.advance()
    assert torch.equal(whole.models(), resumed.models())


def quadratic_end(kind: type, compressor: Compressor, *, eta: float, rounds: int) -> np.ndarray:
    """How far each agent ends from the minimum of sum_i (x - b_i)^T H_i (x - b_i) / 2, over |b|.

    With the steps written by hand, which the runs above follow.
    """
    rng = np.random.default_rng(2)
    H, b = rng.uniform(0.3, 1.0, size=(5, 8)), rng.normal(size=(5, 8))
    best = (H * b).sum(0) / H.sum(0)
    by_hand = kind(np.zeros((5, 8)), ring(5).weights)
    for turn in range(1, rounds + 1):
        by_hand.round(eta / ETA * H * (by_hand.x - b), compressor, turn=turn)
    return np.linalg.norm(by_hand.x - best, axis=1) / np.linalg.norm(b)


COARSE = [
    Compressor.TOP_K,
    Compressor.QUANTISED,
    pytest.param(Compressor.RANDOM_K, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("compressor", COARSE)
def test_choco_ends_near_the_minimum_and_nearer_with_a_smaller_step(compressor):
    far, near = (
        quadratic_end(ChocoByHand, compressor, eta=eta, rounds=600).max() for eta in (0.04, 0.01)
    )
    assert near < 0.5 * far < 0.2


@pytest.mark.parametrize("compressor", COARSE)
def test_porter_ends_in_the_minimum_although_agents_differ(compressor):
    assert quadratic_end(PorterByHand, compressor, eta=0.04, rounds=1500).max() < 1e-6
