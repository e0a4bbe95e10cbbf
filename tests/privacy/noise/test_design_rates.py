"""Designs for learning rates that differ, held against a second method and their own bounds."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.privacy.noise import over_time
from overhear.privacy.noise.design import Kind, design
from overhear.privacy.noise.dual import optimum
from overhear.privacy.view.view import View
from overhear.training import build_graph
from overhear.training.algorithms.strategy import joint_tables, matrix_of, strategy_table

W3 = np.full((3, 3), 0.2) + 0.4 * np.eye(3)
PATH = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]) / 3
RING10 = np.eye(10) / 3 + (np.roll(np.eye(10), 1, 0) + np.roll(np.eye(10), -1, 0)) / 3
RATES = (1.0, 0.9, 0.5, 0.5, 0.25, 0.1)


def workload(W, rates) -> np.ndarray:
    """K, (T A, T A): all models of a run as one matrix of all noise, multiplied out."""
    agents, rounds = len(W), len(rates)
    B = np.zeros((rounds * agents, rounds * agents))
    for t, s in itertools.product(range(rounds), repeat=2):
        if t >= s:
            block = np.linalg.matrix_power(W, t - s + 1) * rates[s]
            B[t * agents : (t + 1) * agents, s * agents : (s + 1) * agents] = block
    return B.T @ B / (agents * rounds)


def least_energy(K, agents: int, rounds: int, period: int) -> float:
    """Of all dense noise, by a generic optimiser, at mu 1 of the worst record."""
    size = len(K)
    lower = torch.tril_indices(size, size)
    Kt = torch.from_numpy(K)
    turns = [torch.arange(j, rounds, period) for j in range(period)]

    def size_of(block, sharp):
        return (block**2 + sharp**-2.0).sqrt().sum()  # above the sum of what is there

    def energy(flat, sharp):
        L = torch.zeros(size, size, dtype=torch.float64).index_put(tuple(lower), flat)
        P = L @ L.T + 1e-9 * torch.eye(size, dtype=torch.float64)
        M = P.reshape(rounds, agents, rounds, agents)
        costs = [size_of(M[p, i][:, p, i], sharp) for i in range(agents) for p in turns]
        worst = (sharp * torch.stack(costs).log()).logsumexp(0) / sharp  # above the largest
        return torch.trace(torch.linalg.solve(P, Kt)).log() + worst

    flat = torch.eye(size, dtype=torch.float64)[tuple(lower)].clone().requires_grad_()
    for sharp in (4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0):
        optimiser = torch.optim.LBFGS(
            [flat], max_iter=150, history_size=30, tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure(sharp=sharp, optimiser=optimiser):
            optimiser.zero_grad()
            found = energy(flat, sharp)
            found.backward()
            return found

        optimiser.step(closure)
    with torch.no_grad():
        return float(energy(flat, 1e7).exp())


@pytest.mark.parametrize("period", [pytest.param(6, marks=pytest.mark.slow), 3])
def test_the_joint_optimum_is_that_of_dense_matrices_of_three_agents_and_six_rounds(period):
    found = design(Kind.JOINT, W3, rounds=6, period=period, step_sizes=RATES)
    assert found.of_all
    assert found.gap < 1e-6
    brute = least_energy(workload(W3, RATES), 3, 6, period)
    assert found.lower_bound <= brute * (1 + 1e-9)
    assert found.energy == pytest.approx(brute, rel=5e-3)


@pytest.mark.parametrize("period", [6, 3])
def test_the_optimum_over_time_is_that_of_dense_matrices(period):
    K = workload(W3, RATES)
    mean = sum(K[i::3, i::3] for i in range(3))
    found = design(Kind.TIME, W3, rounds=6, period=period, step_sizes=RATES)
    brute = least_energy(mean, 1, 6, period)
    assert found.gap < 1e-6
    assert found.energy == pytest.approx(brute, rel=5e-3)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("bands", [None, 3])
def test_a_scaled_constant_is_the_design_of_equal_rates(kind, bands):
    of = {"rounds": 12, "period": 4, "bands": bands if kind.has_memory else None}
    plain = design(kind, PATH, **of)
    equal = design(kind, PATH, **of, step_sizes=(0.03,) * 12)
    ridge = bands is not None and kind is Kind.JOINT  # of `grams`: the path's weights are singular
    assert equal.energy == pytest.approx(plain.energy, rel=2e-4 if ridge else 1e-5)


def test_the_printed_optima_stay_at_equal_rates():
    equal = (0.1,) * 50
    one = design(Kind.JOINT, RING10, rounds=50, step_sizes=equal)
    five = design(Kind.JOINT, RING10, rounds=50, period=10, step_sizes=equal)
    assert one.energy == pytest.approx(0.43117, abs=5e-6)
    assert five.energy == pytest.approx(2.20423, abs=5e-6)


@pytest.mark.parametrize("kind", [Kind.TIME, Kind.JOINT, Kind.PAIRS])
@pytest.mark.parametrize("weights", [W3, PATH], ids=["full", "path"])
def test_a_filter_lies_above_its_bound_and_the_dense_optimum(kind, weights):
    of = {"rounds": 6, "period": 3, "step_sizes": RATES}
    banded, dense = design(kind, weights, **of, bands=3), design(kind, weights, **of)
    assert banded.lower_bound <= banded.energy * (1 + 1e-9)
    assert dense.lower_bound <= dense.energy * (1 + 1e-9)
    assert dense.energy <= banded.energy * (1 + 1e-4)
    assert banded.energy < 2 * dense.energy


@pytest.mark.parametrize("kind", [Kind.TIME, Kind.JOINT])
def test_what_is_designed_for_the_rates_beats_what_is_designed_for_equal_ones(kind):
    K = over_time.grams(over_time.modes_of(W3).eigenvalues, rounds=6, step_sizes=RATES)
    energy = {}
    for rates in (RATES, ()):
        strategies = design(kind, W3, rounds=6, step_sizes=rates).strategies()
        strategies *= 2 // len(strategies)  # of two eigenspaces
        squares = np.stack([C.T @ C for C in strategies])
        each = np.trace(np.linalg.solve(squares, K), axis1=1, axis2=2)
        energy[rates] = float(over_time.modes_of(W3).weights @ each) / 6
    assert energy[RATES] == pytest.approx(
        design(kind, W3, rounds=6, step_sizes=RATES).energy, rel=1e-5
    )
    assert energy[()] > 1.03 * energy[RATES]


def test_the_best_filter_of_a_gram_matrix_is_that_of_equal_rates_there():
    values, shares = over_time.modes_of(PATH).eigenvalues, over_time.modes_of(PATH).weights
    gram = np.einsum("k,kst->st", shares, over_time.grams(values, rounds=20))
    one = over_time.best_filter(values, weights=shares, rounds=20, bands=4)
    two = over_time.best_filter_of(gram, bands=4)
    assert two.cost == pytest.approx(one.cost, rel=1e-5)
    assert two.coefficients == pytest.approx(one.coefficients, abs=1e-3)


@pytest.mark.parametrize("bands", [0, 3])
def test_the_tables_of_training_are_made_for_the_rates(bands):
    run = {"rounds": 6, "period": 3, "bands": bands, "algorithm": "a"}
    K = over_time.grams(over_time.modes_of(PATH).eigenvalues, rounds=6, step_sizes=RATES)
    shares = over_time.modes_of(PATH).weights

    def energy(tables) -> float:
        squares = []
        for table in tables:
            C = matrix_of(table, rounds=6)
            squares.append(C.T @ C)
        every = np.stack(squares) if len(squares) > 1 else np.stack(squares * 3)
        return float(shares @ np.trace(np.linalg.solve(every, K), axis1=1, axis2=2))

    made = strategy_table(PATH, **run, step_sizes=RATES).numpy()
    plain = strategy_table(PATH, **run).numpy()
    gain = 0.999 if bands else 0.96
    assert energy([made]) < gain * energy([plain])
    joint = joint_tables(PATH, **run, step_sizes=RATES).numpy()
    assert energy(joint) < gain * energy(joint_tables(PATH, **run).numpy())
    assert energy(joint) < energy([made])


# Noise over time: the published optimum, its certificate, and what a record costs behind it.


def ring(agents):
    return build_graph("ring", agents).weights


def time_strategy(weights, *, rounds, period=None, step_sizes=()):
    modes, period = over_time.modes_of(weights), period or rounds
    each = over_time.grams(modes.eigenvalues, rounds=rounds, step_sizes=step_sizes)
    gram = np.einsum("k,kst->st", modes.weights, each)
    found = optimum(gram[None], np.ones((1, 1)), over_time.patterns(rounds, period))
    C = over_time.strategy_of(gram, period=period)
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
