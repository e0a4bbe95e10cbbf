"""Designs for learning rates that differ, held against a second method and their own bounds."""

import itertools

import numpy as np
import pytest
import torch

from overhear.privacy.noise.design import Kind, design
from overhear.privacy.noise.over_time import best_filter, best_filter_of, grams, modes_of
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
    K = grams(modes_of(W3).eigenvalues, rounds=6, step_sizes=RATES)
    energy = {}
    for rates in (RATES, ()):
        strategies = design(kind, W3, rounds=6, step_sizes=rates).strategies()
        strategies *= 2 // len(strategies)  # of two eigenspaces
        squares = np.stack([C.T @ C for C in strategies])
        each = np.trace(np.linalg.solve(squares, K), axis1=1, axis2=2)
        energy[rates] = float(modes_of(W3).weights @ each) / 6
    assert energy[RATES] == pytest.approx(
        design(kind, W3, rounds=6, step_sizes=RATES).energy, rel=1e-5
    )
    assert energy[()] > 1.03 * energy[RATES]


def test_the_best_filter_of_a_gram_matrix_is_that_of_equal_rates_there():
    values, shares = modes_of(PATH).eigenvalues, modes_of(PATH).weights
    gram = np.einsum("k,kst->st", shares, grams(values, rounds=20))
    one = best_filter(values, weights=shares, rounds=20, bands=4)
    two = best_filter_of(gram, bands=4)
    assert two.cost == pytest.approx(one.cost, rel=1e-5)
    assert two.coefficients == pytest.approx(one.coefficients, abs=1e-3)


@pytest.mark.parametrize("bands", [0, 3])
def test_the_tables_of_training_are_made_for_the_rates(bands):
    run = {"rounds": 6, "period": 3, "bands": bands, "algorithm": "a"}
    K = grams(modes_of(PATH).eigenvalues, rounds=6, step_sizes=RATES)
    shares = modes_of(PATH).weights

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
