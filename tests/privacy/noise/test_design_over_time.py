"""Noise over time: the published optimum, its certificate, and what a record costs behind it."""

from types import SimpleNamespace

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.noise.dual import optimum
from overhear.privacy.noise.over_time import grams, modes_of, patterns, strategy_of
from overhear.privacy.view.view import View
from overhear.training import build_graph


def ring(agents):
    return build_graph("ring", agents).weights


def time_strategy(weights, *, rounds, period=None, step_sizes=()):
    modes, period = modes_of(weights), period or rounds
    each = grams(modes.eigenvalues, rounds=rounds, step_sizes=step_sizes)
    gram = np.einsum("k,kst->st", modes.weights, each)
    found = optimum(gram[None], np.ones((1, 1)), patterns(rounds, period))
    C = strategy_of(gram, period=period)
    energy = np.trace(gram @ np.linalg.inv(C.T @ C)) / rounds
    gap = energy * rounds / found.lower_bound - 1
    return SimpleNamespace(matrix=C, energy=energy, gap=gap)


@pytest.mark.parametrize(
    ("agents", "rounds", "period", "energy"),
    [
        (10, 50, 50, 0.89326),
        (10, 50, 10, 4.79651),
        (4, 6, 6, 0.626012),
        (4, 6, 3, 1.287631),
        (4, 6, 1, 5.478067),
    ],
)
def test_the_best_noise_over_time_costs_what_was_computed_elsewhere(agents, rounds, period, energy):
    found = time_strategy(ring(agents), rounds=rounds, period=period)
    assert found.energy == pytest.approx(energy, abs=6e-6)
    assert found.gap < 1e-6


def test_the_strategy_of_one_use_is_that_of_the_paper():
    once = time_strategy(ring(10), rounds=50)
    assert once.matrix[:2, 0] == pytest.approx([0.69695, 0.33346], abs=1e-5)
    assert (once.matrix.T @ once.matrix).sum() == pytest.approx(474.384, abs=1e-3)
    cyclic = time_strategy(ring(10), rounds=50, period=10)
    assert cyclic.matrix[1, 0] == pytest.approx(0.17398, abs=1e-5)
    view = View(contributions=np.eye(50), noise=np.linalg.inv(cyclic.matrix))
    assert view.mu(range(50)) == pytest.approx(7.9625, abs=1e-4)  # used in every round


@pytest.mark.parametrize(("rounds", "period"), [(12, 12), (12, 4), (13, 5), (7, 1), (1, 1)])
def test_a_record_that_is_used_once_a_period_costs_one(rounds, period):
    C = time_strategy(ring(4), rounds=rounds, period=period).matrix
    view = View(contributions=np.eye(rounds), noise=np.linalg.inv(C))
    costs = [view.mu(range(j, rounds, period)) for j in range(period)]
    assert max(costs) <= 1 + 1e-8
    assert costs == pytest.approx([1.0] * period, abs=1e-6)


def test_where_a_record_may_be_in_every_round_memory_is_useless():
    C = time_strategy(ring(10), rounds=20, period=1).matrix
    assert np.abs(C - np.diag(C.diagonal())).max() < 1e-6 * C.max()


def test_no_other_strategy_of_the_same_sensitivity_costs_less():
    W, rounds, rng = ring(5), 6, np.random.default_rng(1)
    best = time_strategy(W, rounds=rounds, step_sizes=[1.0, 0.5, 0.5, 0.25, 0.25, 0.1])
    eta = np.diag([1.0, 0.5, 0.5, 0.25, 0.25, 0.1])
    powers = [np.linalg.matrix_power(W, k) for k in range(rounds + 1)]
    blocks = [
        [powers[t - s + 1] if t >= s else 0 * W for s in range(rounds)] for t in range(rounds)
    ]

    def energy(C):
        C = C / np.sqrt(np.square(C).sum(axis=0))  # one use: each column has norm 1
        noise = np.kron(eta @ np.linalg.inv(C), np.eye(5))
        return np.square(np.block(blocks) @ noise).sum() / (5 * rounds)

    assert energy(best.matrix) == pytest.approx(best.energy, rel=1e-7)
    for _ in range(40):
        change = np.tril(rng.normal(size=(rounds, rounds)))
        assert energy(best.matrix + 0.05 * change) > best.energy


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rounds": 5, "step_sizes": [1.0]}, "step_sizes of length 1"),
        ({"rounds": 2, "step_sizes": [1.0, float("nan")]}, "step_sizes"),
    ],
)
def test_numbers_that_make_no_strategy_are_refused(settings, named):
    with pytest.raises(InputError, match=named):
        time_strategy(ring(4), **settings)


def test_weights_of_one_direction_are_refused():
    with pytest.raises(InputError, match="symmetric"):
        time_strategy(np.roll(np.eye(4), 1, axis=0) / 2 + np.eye(4) / 2, rounds=3)
