"""Noise that agents share: what each adversary sees of it, and the factors of a run."""

import json
import math

import numpy as np
import pytest
import torch

from overhear.privacy import noise_floor, victim_information
from overhear.privacy.guarantee import parse_adversary
from overhear.privacy.noise.correlated import decor_factor
from overhear.training.algorithms import ALGORITHMS, bind, decor, dsgd, whisper
from overhear.training.algorithms import correlated_step as correlated_noise
from overhear.training.algorithms.algorithm import prepared
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.topologies import (
    directed_exponential,
    directed_ring,
    erdos_renyi,
    full,
    grid,
    ring,
    star,
)
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import AlgorithmTrace, trace
from tests.real_data import reference_values

NAMES = ("whisper", "decor", "ldp-dsgd", "cdp-dsgd")
ETA, B, ROUNDS = 0.3, 4.5, 30
GRAPHS = [ring(10), ring(9), star(6), grid(6), full(5), ring(1), erdos_renyi(12, 0.4, seed=1)]
GRAPH_IDS = [f"{graph.name}-{graph.agents}" for graph in GRAPHS]


def factor_of(name: str, graph: Graph, *, rounds: int = ROUNDS, **given) -> np.ndarray:
    algorithm = ALGORITHMS[name]
    settings = algorithm.settings(**given)
    return prepared(algorithm, settings, graph=graph, rounds=rounds)["shared"].factor.numpy()


def covariance_of(name: str, graph: Graph, **given) -> np.ndarray:
    factor = factor_of(name, graph, **given)
    return factor @ factor.T


def run_trace(name: str, graph: Graph, **given) -> AlgorithmTrace:
    """The trace at noise multiplier 1."""
    algorithm = ALGORITHMS[name]
    numbers = {"learning_rate": ETA, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": B}
    bound = bind(algorithm, algorithm.settings(**given), graph=graph, rounds=ROUNDS, **numbers)
    return trace(
        bound.init, bound.step, graph=graph, rounds=ROUNDS, noise_multiplier=bound.noise_multiplier
    )


def traced(name: str, graph: Graph, **given) -> RoundTrace:
    return run_trace(name, graph, **given).rounds[0][0]


def joint(one: RoundTrace, adversary: str, victim: int = 0) -> float:
    (only,) = one.sensitivities(parse_adversary(adversary, one.record.agents), victim)
    return only.mu


# Who learns what


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("graph", GRAPHS, ids=GRAPH_IDS)
def test_an_eavesdropper_sees_one_release_of_the_runs_multiplier(name, graph):
    one = traced(name, graph)
    worst = max(joint(one, "eavesdropper", victim) for victim in range(graph.agents))
    assert worst == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_of_a_plan_are_those_of_the_whole_view(name):
    """A plan looks at what surrounds a victim; shared noise makes that the whole graph."""
    traces = run_trace(name, ring(10))
    asked = ["eavesdropper", "neighbour", "final-models"]
    found = {who: e.largest for who, e in joint_sensitivities(traces, asked, sampling_rate=0.1)}
    (one, _), victims = traces.rounds[0], range(10)
    for who in ("eavesdropper", "final-models"):
        worst = max(joint(one, who, victim) for victim in victims)
        assert found[who] == pytest.approx(worst, rel=1e-9)
    worst = max(joint(one, f"neighbour:{k}", v) for k in (0, 1) for v in victims if v != k)
    assert found["neighbour"] == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("whisper", {"horizon": 0}),
        ("whisper", {"correlation": 0.4, "horizon": 7}),
        ("decor", {"horizon": 0}),
        ("decor", {"correlation": 2.0}),
    ],
)
def test_no_setting_changes_what_the_multiplier_means(name, given):
    one = traced(name, ring(10), **given)
    assert joint(one, "eavesdropper") == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("victim", [0, 1, 5])  # neighbours of agent 1 or not
def test_whoever_knows_whispers_seed_sees_every_gradient(victim):
    who = parse_adversary("neighbour:1" if victim != 1 else "neighbour:7", 10)
    (found,) = traced("whisper", ring(10)).sensitivities(who, victim)
    assert found.mu == math.inf
    assert "without noise" in found.because  # not a combination: one row by itself


@pytest.mark.parametrize("share", [0.25, 0.9])
def test_own_noise_beside_the_seed_is_all_that_hides_a_record_from_an_agent(share):
    own = factor_of("whisper", ring(10), correlation=share)[0, 10]
    for adversary in ("neighbour:1", "coalition:1,9", "coalition:1,2,3,4,5,6,7,8,9"):
        found = joint(traced("whisper", ring(10), correlation=share), adversary)
        assert found == pytest.approx(1 / own, rel=1e-9)


def test_whisper_without_correlation_is_ldp():
    assert np.array_equal(factor_of("whisper", ring(10), correlation=0.0), np.eye(10))
    assert joint(traced("whisper", ring(10), correlation=0.0), "neighbour:1") == pytest.approx(1.0)


def test_decor_on_a_ring_of_ten_with_twice_the_variance_in_pairs():
    """R = I + 2L gives mu .577914 where own noise has variance 1, so that is own noise at mu 1."""
    raw = decor_factor(ring(10).weights, local_variance=1.0, pair_variance=2.0)
    mu = math.sqrt(victim_information(raw @ raw.T).max())
    assert mu == pytest.approx(0.577914, abs=5e-7)
    eigenvalues = 1 + 4 * (1 - np.cos(2 * np.pi * np.arange(10) / 10))
    assert mu == pytest.approx(math.sqrt((1 / eigenvalues).mean()), rel=1e-12)
    scaled = factor_of("decor", ring(10), correlation=2.0)
    np.testing.assert_allclose(scaled, 0.577914 * raw, atol=3e-6)

    def unscaled(state, round):
        known = [frozenset(np.flatnonzero(column).tolist()) for column in raw.T]
        return correlated_noise.step(
            state,
            round,
            shared=correlated_noise.SharedNoise(
                factor=torch.from_numpy(raw), known_to=tuple(known)
            ),
            learning_rate=ETA,
            clip_norm=1.0,
            noise_std=1.0,
            batch_size=B,
        )

    one = trace(dsgd.init, unscaled, graph=ring(10), rounds=2, noise_multiplier=1.0).rounds[0][0]
    assert joint(one, "eavesdropper") == pytest.approx(mu, rel=1e-9)


def test_a_decor_agent_knows_its_own_noise_and_the_seeds_of_its_links_alone():
    one, own = traced("decor", ring(10), correlation=2.0), 0.577914
    near, far = joint(one, "neighbour:1"), joint(one, "neighbour:5")
    assert 1.0 < far < near < 1 / own
    # Both neighbours together know every pair's noise in the victim's message.
    assert joint(one, "coalition:1,9") == pytest.approx(1 / own, abs=5e-6)
    # One neighbour knows one of the two: the path 0, 9, ..., 2 whose far end shares nothing more.
    path = np.eye(9) + 2.0 * (np.diag([1.0, *[2.0] * 7, 1.0]) - np.eye(9, k=1) - np.eye(9, k=-1))
    expected = math.sqrt(np.linalg.inv(path)[0, 0]) / own
    assert near == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(
    "adversary", ["eavesdropper", "neighbour:1", "coalition:1,2,3,4", "final-models"]
)
@pytest.mark.parametrize("name", ["ldp-dsgd", "cdp-dsgd"])
def test_a_server_and_independent_noise_cost_one_release_against_everybody(name, adversary):
    assert joint(traced(name, ring(5)), adversary) == pytest.approx(1.0, abs=1e-12)


# Which factor


def test_horizon_zero_counts_all_rounds_of_the_run():
    for name in ("whisper", "decor"):
        whole, given = (factor_of(name, ring(6), horizon=h, rounds=12) for h in (0, 12))
        assert np.array_equal(whole, given)


def test_the_chosen_correlation_leaves_least_noise():
    for graph in (ring(10), star(6), grid(6)):
        for horizon in (1, 40):
            best = noise_floor(
                graph.weights, covariance_of("decor", graph, horizon=horizon), rounds=horizon
            )
            for ratio in np.geomspace(1e-3, 1e3, 200):
                raw = decor_factor(graph.weights, local_variance=1.0, pair_variance=ratio)
                R = raw @ raw.T * victim_information(raw @ raw.T).max()
                assert best <= noise_floor(graph.weights, R, rounds=horizon) * (1 + 1e-9)


def test_on_a_full_graph_pairs_reach_the_server():
    assert decor.best_correlation(full(8), horizon=1) == 1e4
    left = noise_floor(full(8).weights, covariance_of("decor", full(8)))
    assert left == pytest.approx(1 / 8, rel=1e-3)


@pytest.mark.data
def test_prepared_factors_reproduce_the_reference_file():
    path = reference_values("whisper.json")
    for case in json.loads(path.read_text())["cases"]:
        graph, bound = Graph(name="paper", weights=np.array(case["W"])), case["privacy_bound_b"]
        for name in NAMES[:3]:
            R = covariance_of(name, graph) / bound
            found, stated = noise_floor(graph.weights, R), case[name.removesuffix("-dsgd")]
            assert found == pytest.approx(stated["tr_WRWt"], rel=1e-6)
        reference = np.array(case["whisper"]["R_times_b"])  # of a semidefinite programme
        R = covariance_of("whisper", graph)
        assert np.abs(R - reference).max() < 2e-2 * np.abs(reference).max()
        ratio = case["decor"]["sigma_cor2"] / case["decor"]["sigma_pair2"]
        assert decor.best_correlation(graph, horizon=1) == pytest.approx(ratio, rel=1e-3)
        server = factor_of("cdp-dsgd", graph)[0, 0] ** 2 / bound
        assert server * 20**2 == pytest.approx(case["ldp"]["sigma2"], rel=1e-9)
        assert server * 20 == pytest.approx(case["cdp"]["sigma2"], rel=1e-9)


# What is refused


def test_settings_out_of_range_are_refused():
    for given, said in [
        ({"correlation": 1.5}, r"correlation=1.5 must lie in \[0, 1\]"),
        ({"correlation": math.nan}, "correlation=nan"),
        ({"horizon": -1}, "horizon=-1 must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=said):
            whisper.Settings(**given)
    for given, said in [
        ({"correlation": -0.1}, "correlation=-0.1 must lie in"),
        ({"correlation": math.inf}, "correlation=inf"),
        ({"horizon": -1}, "horizon=-1 must be at least 1"),
        ({"correlation": 2.0, "horizon": 1}, "horizon=1 has no effect"),
    ]:
        with pytest.raises(ValueError, match=said):
            decor.Settings(**given)


def test_a_graph_that_the_covariance_is_not_made_for_is_refused():
    for name in ("whisper", "decor"):
        with pytest.raises(ValueError, match=f"changes from round to round.*'{name}'"):
            factor_of(name, directed_exponential(6))
    with pytest.raises(ValueError, match="give each link both directions"):
        factor_of("decor", directed_ring(5))
    for name in ("whisper", "decor"):
        with pytest.raises(ValueError, match="horizon=0 counts 30 rounds, which needs symmetric"):
            factor_of(name, directed_ring(5), horizon=0)
    one = traced("whisper", directed_ring(5))
    assert joint(one, "eavesdropper") == pytest.approx(1.0, abs=1e-9)
    assert factor_of("ldp-dsgd", directed_exponential(6)).shape == (6, 6)


def test_noise_that_cancels_altogether_is_refused():
    with pytest.raises(ValueError, match=r"absorb an agent.s own noise"):
        factor_of("decor", ring(5), correlation=1e20)
    with pytest.raises(ValueError, match="knowers of 1 sources, but factor has 2"):
        correlated_noise.SharedNoise(
            factor=torch.eye(2, dtype=torch.float64), known_to=(frozenset(),)
        )
    with pytest.raises(TypeError, match="float64"):
        correlated_noise.SharedNoise(factor=torch.eye(1), known_to=(frozenset(),))
