"""The best noise of every kind: figures computed elsewhere, certificates, and what records cost."""

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.noise.correlated import decor_factor
from overhear.privacy.noise.design import Kind, design, pair_exposure
from overhear.privacy.noise.over_time import (
    grams,
    lower_bound,
    modes_of,
    one_precision_bound,
    stretched,
)
from overhear.privacy.view.view import View
from overhear.training import build_graph

RING = build_graph("ring", 10).weights
PATH = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]) / 3


@pytest.mark.parametrize(
    ("kind", "once", "five_times"),
    [
        (Kind.INDEPENDENT, 3.2540, 16.270),
        (Kind.ACROSS, 1.1695, 5.8476),
        (Kind.TIME, 0.89326, 4.7965),
        (Kind.JOINT, 0.43117, 2.20423),
        (Kind.PAIRS, 0.55888, 2.89624),
    ],
)
def test_each_kind_leaves_the_noise_that_was_computed_elsewhere(kind, once, five_times):
    for period, energy in ((50, once), (10, five_times)):
        found = design(kind, RING, rounds=50, period=period)
        assert found.energy == pytest.approx(energy, rel=3e-5)
        assert found.gap < 1e-6


@pytest.mark.parametrize(("period", "energy"), [(6, 0.365907), (3, 0.740224), (1, 2.751116)])
def test_the_joint_optimum_of_a_small_ring(period, energy):
    found = design(Kind.JOINT, build_graph("ring", 4).weights, rounds=6, period=period)
    assert found.energy == pytest.approx(energy, abs=1e-6)
    assert found.of_all
    assert -1e-9 < found.gap < 1e-6


def test_against_a_curious_neighbour_pair_secrets_still_gain_on_noise_over_time_alone():
    neighbours = [frozenset({k}) for k in range(10)]
    found = design(Kind.PAIRS, RING, rounds=50, knowing=neighbours)
    assert found.energy == pytest.approx(0.7990, abs=2e-4)


def whole_noise(found, weights):
    """All noise of a joint design as rows over agents x rounds of one unit source each."""
    modes = modes_of(weights)
    parts = zip(modes.projectors, found.strategies(), strict=True)
    return sum(np.kron(projector, np.linalg.inv(C)) for projector, C in parts)


@pytest.mark.parametrize("period", [6, 3, 1])
@pytest.mark.parametrize("weights", [build_graph("ring", 5).weights, PATH], ids=["ring", "path"])
def test_no_record_costs_more_than_one_by_the_view_of_all_messages(weights, period):
    rounds, agents = 6, len(weights)
    found = design(Kind.JOINT, weights, rounds=rounds, period=period)
    view = View(contributions=np.eye(agents * rounds), noise=whole_noise(found, weights))
    costs = np.array(
        [
            [view.mu([i * rounds + t for t in range(j, rounds, period)]) for j in range(period)]
            for i in range(agents)
        ]
    )
    assert costs.max() <= 1 + 1e-9
    assert costs.max() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("weights", [build_graph("ring", 5).weights, PATH], ids=["ring", "path"])
def test_the_energy_is_that_of_the_noise_in_the_models(weights):
    rounds, agents = 5, len(weights)
    found = design(Kind.JOINT, weights, rounds=rounds, period=2)
    powers = [np.linalg.matrix_power(weights, k) for k in range(rounds + 1)]
    into = np.zeros((rounds, agents, agents, rounds))  # models of round t by noise (agent, round)
    for t in range(rounds):
        for s in range(t + 1):
            into[t, :, :, s] = powers[t - s + 1]
    models = into.reshape(rounds * agents, agents * rounds) @ whole_noise(found, weights)
    energy = np.square(models).sum() / (agents * rounds)
    assert energy == pytest.approx(found.energy, rel=2e-4)  # the path's W is singular: a ridge
    assert energy <= found.energy * (1 + 1e-9)


def test_used_in_every_round_noise_within_an_agent_forgets():
    found = design(Kind.JOINT, RING, rounds=12, period=1)
    modes = modes_of(RING)
    mean = np.einsum("k,kst->st", modes.weights, found.precisions)
    assert np.abs(mean - np.diag(mean.diagonal())).max() < 1e-6


@pytest.mark.parametrize(
    ("name", "options"),
    [("star", {}), ("grid", {}), ("erdos-renyi", {"edge_probability": 0.5, "seed": 1})],
)
def test_where_agents_differ_the_certificate_is_below_and_near(name, options):
    weights = build_graph(name, 9, **options).weights
    found = design(Kind.JOINT, weights, rounds=8, period=4)
    across = design(Kind.ACROSS, weights, rounds=8, period=4)
    assert found.of_all
    assert -1e-7 < found.gap < 0.6
    assert found.energy < across.energy


def test_four_coefficients_a_mode_are_nearly_enough():
    energies = [
        design(Kind.JOINT, RING, rounds=50, period=10, bands=p).energy for p in (1, 2, 4, 8, 10)
    ]
    assert energies == sorted(energies, reverse=True)
    assert energies[0] == pytest.approx(design(Kind.ACROSS, RING, rounds=50, period=10).energy)
    assert design(Kind.JOINT, RING, rounds=50, bands=8).energy == pytest.approx(0.4988, abs=1e-4)
    assert energies[2] < 0.62 * design(Kind.TIME, RING, rounds=50, period=10).energy


@pytest.mark.parametrize("kind", [Kind.TIME, Kind.JOINT])
def test_a_filter_costs_what_its_matrix_does(kind):
    rounds, period = 30, 6
    found = design(kind, RING, rounds=rounds, period=period, bands=4)
    modes, K = modes_of(RING), grams(modes_of(RING).eigenvalues, rounds=rounds)
    strategies = found.strategies() * (len(K) if kind is Kind.TIME else 1)
    energy = sum(
        share * np.trace(gram @ np.linalg.inv(C.T @ C))
        for share, gram, C in zip(modes.weights, K, strategies, strict=True)
    )
    assert energy / rounds == pytest.approx(found.energy, rel=1e-9)
    mean = sum(share * C.T @ C for share, C in zip(modes.weights, strategies, strict=True))
    for j in range(period):
        taken = np.arange(j, rounds, period)
        assert np.abs(mean[np.ix_(taken, taken)]).sum() <= 1 + 1e-12


def test_long_runs_are_designed_by_filters_in_seconds():
    found = design(Kind.JOINT, RING, rounds=1000, period=1000, bands=4)
    alone = design(Kind.INDEPENDENT, RING, rounds=1000)
    assert np.sqrt(alone.energy / found.energy) == pytest.approx(4.40, abs=0.01)
    over_time = design(Kind.TIME, RING, rounds=1000, bands=4)
    assert np.sqrt(alone.energy / over_time.energy) == pytest.approx(1.90, abs=0.03)
    assert found.energy > found.lower_bound > 0


def test_the_bound_of_a_long_run_is_that_of_the_dense_one():
    modes = modes_of(RING)
    best = design(Kind.JOINT, RING, rounds=60)
    multipliers = stretched(modes, modes.shares[:1], rounds=60, period=60)
    bound = lower_bound(modes, modes.shares[:1], multipliers, rounds=60, period=60)
    assert bound <= best.energy * (1 + 1e-9)
    assert bound == pytest.approx(best.energy, rel=1e-6)
    alike = design(Kind.TIME, RING, rounds=60)
    bound = one_precision_bound(modes, rounds=60, period=60)
    assert bound == pytest.approx(alike.energy, rel=1e-6)


@pytest.mark.parametrize("known", [{0}, {3, 4}, {1, 5, 6}])
def test_who_knows_pair_secrets_sees_what_the_view_says(known):
    sources = decor_factor(RING, local_variance=1.0, pair_variance=2.0)
    unknown = ~sources[sorted(known)].any(axis=0)
    hidden = [i for i in range(10) if i not in known]
    view = View(contributions=np.eye(len(hidden)), noise=sources[hidden][:, unknown])
    worst = max(view.mu([i]) ** 2 for i in range(len(hidden)))
    exposed = pair_exposure(RING, ratio=2.0, knowing=[frozenset(known)])
    assert exposed == pytest.approx(worst, rel=1e-9)


def test_pair_secrets_hide_nothing_from_all_others():
    others = [frozenset(range(10)) - {i} for i in range(10)]
    assert pair_exposure(RING, ratio=5.0, knowing=others) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rounds": 20_000}, "rounds=20000"),
        ({"rounds": 20, "period": 4, "bands": 5}, "bands=5"),
        ({"rounds": 300, "step_sizes": [1.0] * 300}, "step_sizes"),
    ],
)
def test_numbers_that_make_no_design_are_refused(settings, named):
    with pytest.raises(InputError, match=named):
        design(Kind.JOINT, RING, **settings)
