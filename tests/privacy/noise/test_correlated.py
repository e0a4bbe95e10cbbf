"""Noise that is correlated across agents."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy import View, epsilon_from_mu
from overhear.privacy.noise.correlated import (
    WhisperNoise,
    decor_covariance,
    decor_factor,
    factor,
    noise_floor,
    optimise_covariance,
    victim_information,
    whisper_covariance,
)
from tests.real_data import reference_values

PAPER_LINKS = 0x3DFE301CABD2FF6527FAB276BBF47CF95F7A24FEBAE35287  # rows i, columns j < i
PAPER_BOUND = {3: 0.0017348321192510023, 10: 0.015503552285754198, 40: 0.1432002083288661}


def metropolis(adjacency) -> np.ndarray:
    links = np.asarray(adjacency, dtype=bool) & ~np.eye(len(adjacency), dtype=bool)
    degrees = links.sum(axis=1)
    weights = np.where(links, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return weights + np.diag(1 - weights.sum(axis=1))


def random_graph(agents: int, probability: float, seed: int) -> np.ndarray:
    """Metropolis weights of a ring with random chords, so that it hangs together."""
    draws = np.random.default_rng(seed).random((agents, agents)) < probability
    chords = np.triu(draws, 1) | np.eye(agents, k=1, dtype=bool)
    chords[0, -1] = True
    return metropolis(chords | chords.T)


def ring(agents: int) -> np.ndarray:
    shift = np.roll(np.eye(agents), 1, axis=1)
    return metropolis(shift + shift.T)


def star(agents: int) -> np.ndarray:
    links = np.zeros((agents, agents))
    links[0, :] = links[:, 0] = 1
    return metropolis(links)


@pytest.fixture(scope="module")
def paper():
    """The Erdos-Renyi graph of 20 agents, p = .6, of the reference values."""
    lower = np.zeros((20, 20))
    lower[np.tril_indices(20, -1)] = [int(bit) for bit in f"{PAPER_LINKS:0190b}"]
    return metropolis(lower + lower.T)


@pytest.fixture(scope="module")
def last_round_shares():
    return 1 / np.sqrt(np.arange(1, 5001))  # learning rates that decay as 1/sqrt(t)


# Whisper


@pytest.mark.parametrize(
    ("epsilon", "energy"), [(3, 607.695416821699), (10, 68.0005142300601), (40, 7.362066997855024)]
)
def test_whisper_reaches_the_reference_energy(paper, epsilon, energy):
    found = whisper_covariance(paper, bound=PAPER_BOUND[epsilon])
    assert np.trace(paper @ found @ paper.T) == pytest.approx(energy, rel=1e-9)
    assert np.linalg.inv(found).diagonal().max() / PAPER_BOUND[epsilon] == pytest.approx(
        1, abs=1e-12
    )


def test_horizon_costs_of_the_paper_graph(paper, last_round_shares):
    bound, later = PAPER_BOUND[10], {"rounds": 5000, "step_sizes": last_round_shares}
    one_round = whisper_covariance(paper, bound=bound)
    horizon = optimise_covariance(paper, bound=bound, **later)
    assert noise_floor(paper, np.eye(20) / bound, **later) == pytest.approx(64.5029130346, rel=1e-9)
    assert noise_floor(paper, one_round, **later) == pytest.approx(14.6916320731, rel=1e-6)
    # The reference value, 3.3418529, stops 3.4e-5 above the optimum.
    assert horizon.objective == pytest.approx(3.3417398, rel=1e-7)
    assert horizon.gap == pytest.approx(0, abs=1e-11)
    assert horizon.objective > 1 / (20 * bound)


@pytest.mark.data
def test_whisper_reproduces_the_reference_file(last_round_shares):
    path = reference_values("whisper.json")
    golden = json.loads(path.read_text())
    for case in golden["cases"]:
        weights, bound = np.array(case["W"]), case["privacy_bound_b"]
        found = optimise_covariance(weights, bound=bound)
        assert found.objective == pytest.approx(case["whisper_dual_ours"]["tr_WRWt"], rel=1e-6)
        assert found.objective == pytest.approx(case["whisper"]["tr_WRWt"], rel=1e-6)
        reference = np.array(case["whisper"]["R_times_b"])  # of a semidefinite programme
        assert np.abs(found.covariance * bound - reference).max() < 2e-2 * np.abs(reference).max()
        decor = case["decor"]
        variances = {"local_variance": decor["sigma_pair2"], "pair_variance": decor["sigma_cor2"]}
        reference = decor_covariance(weights, **variances)
        assert noise_floor(weights, reference) == pytest.approx(decor["tr_WRWt"], rel=1e-9)
        assert victim_information(reference).max() / bound == pytest.approx(1, abs=1e-10)


GRAPHS = {
    "one agent": np.ones((1, 1)), "ring of 7": ring(7), "ring of 9, singular": ring(9),
    "full, singular": np.full((20, 20), 0.05), "star": star(12),
    "random 20": random_graph(20, 0.2, 1), "random 60": random_graph(60, 0.1, 2),
    "no mixing": np.eye(4),
    "asymmetric": np.array([[0.6, 0.4, 0.0], [0.1, 0.5, 0.4], [0.3, 0.1, 0.6]]),
}  # fmt: skip


@pytest.mark.parametrize("weights", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("bound", [1e-6, 0.37, 1e5])
def test_the_constraint_holds_exactly(weights, bound):
    R = whisper_covariance(weights, bound=bound)
    condition = np.linalg.cond(R)
    for inverse in (np.linalg.inv(R).diagonal(), victim_information(R)):
        assert inverse.max() <= bound
        assert inverse.max() >= bound * (1 - max(1e-12, 1e-15 * condition))


@pytest.mark.parametrize("rounds", [1, 300])
@pytest.mark.parametrize("name", [name for name in GRAPHS if name != "asymmetric"])
def test_the_gap_is_certified_against_an_independent_bound(name, rounds):
    weights = GRAPHS[name]
    found = optimise_covariance(weights, bound=2.0, rounds=rounds)
    assert abs(found.gap) <= 2e-11
    # tr(M R) + sum lam ([R^-1]_ii - b) >= 2 tr (l M l)^.5 - b sum lam for any lam > 0 and any R;
    # lam = diag(R M R) is the best if R is.
    powers = [np.linalg.matrix_power(weights, k) for k in range(1, rounds + 1)]
    M = sum(p.T @ p for p in powers) / rounds + found.ridge * np.eye(len(weights))
    lam = (found.covariance @ M @ found.covariance).diagonal()
    root = np.sqrt(lam)
    singular = np.sqrt(np.linalg.eigvalsh(root[:, None] * M * root).clip(0))
    lower = 2 * singular.sum() - 2.0 * lam.sum()
    assert np.trace(M @ found.covariance) == pytest.approx(lower, rel=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_general_optimiser_finds_nothing_better(seed):
    from scipy.optimize import minimize

    weights = random_graph(5, 0.4, seed)
    lower = np.tril_indices(5)

    def covariance(entries):
        root = np.zeros((5, 5))
        root[lower] = entries
        return root @ root.T

    def energy(entries):
        return np.trace(weights @ covariance(entries) @ weights.T)

    def slack(entries):
        return 1 - np.linalg.inv(covariance(entries)).diagonal()

    best = math.inf
    for start in range(3):
        noise = 0.1 * np.random.default_rng(start).normal(size=(5, 5))
        solution = minimize(
            energy,
            (1.2 * np.eye(5) + noise)[lower],
            method="SLSQP",
            constraints={"type": "ineq", "fun": slack},
            options={"maxiter": 500, "ftol": 1e-14},
        ).x
        best = min(best, energy(solution) * (1 - slack(solution).min()))  # scaled to meet the bound
    found = noise_floor(weights, whisper_covariance(weights, bound=1.0))
    assert found <= best * (1 + 1e-9)
    assert found == pytest.approx(best, rel=1e-5)


def test_without_mixing_independent_noise_is_optimal():
    assert np.allclose(whisper_covariance(np.eye(6), bound=4.0), np.eye(6) / 4.0, rtol=1e-11)


def test_two_agents_have_a_closed_form():
    # W has eigenvalues 1 and 1/2 with eigenvectors (1, 1) and (1, -1), R = r1, r2 on them:
    # minimise r1 + r2/4 subject to (1/r1 + 1/r2)/2 = 1, so r1 = 3/4, r2 = 3/2.
    R = whisper_covariance([[0.75, 0.25], [0.25, 0.75]], bound=1.0)
    assert np.allclose(np.linalg.eigvalsh(R), [0.75, 1.5], rtol=1e-10)


@settings(max_examples=30, deadline=None)
@given(
    agents=st.integers(2, 15),
    seed=st.integers(0, 10**6),
    rounds=st.sampled_from([1, 2, 50]),
    bound=st.floats(1e-4, 1e4),
)
def test_feasible_covariances_are_never_better(agents, seed, rounds, bound):
    weights = random_graph(agents, 0.3, seed) if agents > 2 else np.full((2, 2), 0.5)
    found = optimise_covariance(weights, bound=bound, rounds=rounds)
    ldp = np.eye(agents) / bound
    assert victim_information(ldp).max() == pytest.approx(bound, rel=1e-12)
    pairs = decor_covariance(weights, local_variance=1.0, pair_variance=3.0)
    pairs *= victim_information(pairs).max() / bound
    mine = found.objective + found.ridge * np.trace(found.covariance)
    for other in (ldp, pairs):
        theirs = noise_floor(weights, other, rounds=rounds) + found.ridge * np.trace(other)
        assert mine <= theirs * (1 + 1e-9)
    assert found.objective >= (1 - 1e-9) / (agents * bound)  # what one server would add


def test_relabelling_the_agents_relabels_the_noise(paper):
    order = np.random.default_rng(5).permutation(20)
    R = whisper_covariance(paper, bound=1.0)
    again = whisper_covariance(paper[np.ix_(order, order)], bound=1.0)
    assert np.allclose(again, R[np.ix_(order, order)], rtol=0, atol=1e-6)


def test_the_bound_only_scales_the_noise(paper):
    once = whisper_covariance(paper, bound=1.0)
    assert np.allclose(whisper_covariance(paper, bound=0.01), 100 * once, rtol=1e-9)


def test_two_hundred_agents_take_few_steps():
    found = optimise_covariance(random_graph(200, 0.1, 3), bound=1.0)
    assert found.gap <= 1e-11
    assert found.iterations <= 15


@pytest.mark.parametrize("agents", [2, 10, 50])
def test_full_averaging_reaches_the_servers_floor(agents):
    found = optimise_covariance(np.full((agents, agents), 1 / agents), bound=1.0)
    assert found.ridge > 0
    assert found.objective == pytest.approx(1 / agents, rel=2e-3)


def test_a_larger_ridge_needs_less_noise_and_costs_more():
    weights = ring(30)  # singular
    found = [optimise_covariance(weights, bound=1.0, ridge=ridge) for ridge in (1e-9, 1e-5, 1e-2)]
    total = [np.trace(each.covariance) for each in found]
    assert total == sorted(total, reverse=True)
    assert [each.objective for each in found] == sorted(each.objective for each in found)
    assert found[0].objective == pytest.approx(optimise_covariance(weights, bound=1.0).objective)


def test_horizon_energy_is_the_variance_of_the_final_models():
    weights, eta = random_graph(6, 0.3, 4), np.array([0.5, 0.1, 0.3])
    R = decor_covariance(weights, local_variance=1.0, pair_variance=2.0)
    B, blocks, model = factor(R), [], np.zeros((6, 18))
    for t in range(3):  # x <- W (x - eta v), v = B z_t
        unit = np.zeros((6, 18))
        unit[:, 6 * t : 6 * t + 6] = B
        model = weights @ (model - eta[t] * unit)
        blocks.append(model)
    expected = np.square(blocks[-1]).sum() / np.square(eta).sum()
    assert noise_floor(weights, R, rounds=3, step_sizes=eta) == pytest.approx(expected, rel=1e-12)


def test_one_round_of_a_horizon_is_one_round(paper):
    R = whisper_covariance(paper, bound=1.0)
    one = noise_floor(paper, R, rounds=1, step_sizes=[0.3])
    assert one == pytest.approx(np.trace(paper @ R @ paper.T), rel=1e-12)


def test_whisper_agents_are_hidden_from_outside_and_exposed_to_whoever_has_the_seed():
    weights = random_graph(8, 0.3, 5)
    B = factor(whisper_covariance(weights, bound=0.25))
    outside = View(contributions=np.eye(8), noise=B)
    assert [outside.mu([i]) for i in range(8)] == pytest.approx([0.5] * 8, rel=1e-5)
    assert (B != 0).all()  # a trace sees that every agent's row has every source
    assert View(contributions=np.eye(8), noise=np.zeros((8, 0))).mu([3]) == math.inf


# DECOR


@pytest.mark.parametrize(
    ("adjacency", "clip_norm", "mu"),
    [
        (ring(10), 1.0, 0.577914),
        (np.ones((10, 10)), 1.0, 0.377964),
        (np.ones((3, 3)), 2.0, 1.309307),
    ],
    ids=["ring of 10", "full 10", "triangle, record replaced"],
)
def test_decor_exposures(adjacency, clip_norm, mu):
    R = decor_covariance(adjacency, local_variance=1.0, pair_variance=2.0)
    sources = decor_factor(adjacency, local_variance=1.0, pair_variance=2.0)
    for B in (sources, factor(R)):
        view = View(contributions=np.eye(len(R)), noise=B)
        assert view.mu([0], clip_norm) == pytest.approx(mu, abs=1e-6)
    assert clip_norm * math.sqrt(victim_information(R)[0]) == pytest.approx(mu, abs=1e-6)


def test_a_decor_agent_that_knows_its_seeds_sees_more():
    B = decor_factor(np.ones((3, 3)), local_variance=1.0, pair_variance=2.0)
    unknown = B[2] == 0  # agent 2 knows what enters its own row
    mu = View(contributions=np.eye(3)[:2], noise=B[:2][:, unknown]).mu([0], 2.0)
    assert mu == pytest.approx(1.549193, abs=1e-6)
    assert epsilon_from_mu(mu, 1e-5) == pytest.approx(7.32937, abs=1e-4)


@given(st.integers(3, 12), st.integers(0, 1000), st.floats(0, 10), st.floats(0, 10))
def test_decor_sources_have_the_decor_covariance(agents, seed, local, pair):
    weights = random_graph(agents, 0.4, seed)
    variances = {"local_variance": local, "pair_variance": pair}
    R, B = decor_covariance(weights, **variances), decor_factor(weights, **variances)
    assert np.allclose(B @ B.T, R, rtol=1e-12, atol=1e-12)
    assert np.ones(agents) @ R @ np.ones(agents) == pytest.approx(local * agents, abs=1e-9)
    assert np.count_nonzero(B[:, agents:], axis=0).tolist() == [2 * (pair > 0)] * (
        (np.count_nonzero(weights) - np.count_nonzero(weights.diagonal())) // 2
    )


def test_self_loops_and_the_size_of_weights_do_not_matter_to_decor():
    bare = ring(8) - np.diag(ring(8).diagonal())
    variances = {"local_variance": 1.0, "pair_variance": 2.0}
    assert np.array_equal(
        decor_covariance(ring(8), **variances), decor_covariance(bare != 0, **variances)
    )


def test_pairwise_noise_alone_hides_nobody():
    R = decor_covariance(ring(6), local_variance=0.0, pair_variance=1.0)
    assert np.isinf(victim_information(R)).all()
    assert View(contributions=np.eye(6), noise=factor(R)).mu([0]) == math.inf


def test_pairwise_noise_alone_exposes_its_own_component_only():
    R = np.zeros((4, 4))
    R[:2, :2] = decor_covariance(np.ones((2, 2)), local_variance=0.0, pair_variance=1.0)
    R[2:, 2:] = np.diag([4.0, 25.0])
    assert victim_information(R).tolist() == [math.inf, math.inf, 0.25, 0.04]


# Factor, information, errors


@given(st.integers(1, 8), st.integers(0, 1000))
def test_the_factor_squares_to_the_covariance(agents, seed):
    root = np.random.default_rng(seed).normal(size=(agents, agents + 2))
    B = factor(root @ root.T)
    assert np.allclose(B @ B.T, root @ root.T, rtol=1e-12, atol=1e-12)


def test_independent_noise_factors_to_each_agents_own_source():
    assert factor(np.diag([4.0, 9.0])).tolist() == [[2.0, 0.0], [0.0, 3.0]]


def test_information_does_not_depend_on_units():
    R = whisper_covariance(ring(7), bound=1.0)
    units = np.logspace(-9, 9, 7)
    scaled = victim_information(R * np.outer(units, units)) * units**2
    assert np.allclose(scaled, victim_information(R), rtol=1e-9)


RING = ring(5)
ONE_WAY = np.eye(3, k=1) + np.eye(3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: whisper_covariance(RING, bound=0.0), "bound=0.0"),
        (lambda: whisper_covariance(RING, bound=math.nan), "bound=nan"),
        (lambda: whisper_covariance(RING[:3], bound=1.0), "weights of shape"),
        (lambda: whisper_covariance(RING * math.nan, bound=1.0), "not finite"),
        (lambda: whisper_covariance(0 * RING, bound=1.0), "weights is zero"),
        (lambda: whisper_covariance(RING, bound=1.0, ridge=-1.0), "ridge=-1.0"),
        (lambda: whisper_covariance(ring(6), bound=1.0, ridge=0.0), "leaves a singular mixing"),
        (lambda: whisper_covariance(RING, bound=1.0, rounds=0), "rounds=0"),
        (lambda: whisper_covariance(RING, bound=1.0, step_sizes=[1, 1]), "length 2"),
        (lambda: whisper_covariance(RING, bound=1.0, rounds=2, step_sizes=[0, 0]), "not all 0"),
        (lambda: whisper_covariance(ONE_WAY, bound=1.0, rounds=2), "symmetric for rounds=2"),
        (lambda: whisper_covariance(3 * RING, bound=1.0, rounds=2), "eigenvalue 3"),
        (lambda: decor_covariance(ONE_WAY, local_variance=1, pair_variance=1), "link 1 -> 0"),
        (lambda: decor_covariance(RING, local_variance=-1, pair_variance=1), "local_variance=-1"),
        (lambda: decor_factor(RING, local_variance=1, pair_variance=math.inf), "pair_variance=inf"),
        (lambda: noise_floor(RING, np.eye(4)), "same shape"),
        (lambda: factor([[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
        (lambda: factor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
        (lambda: victim_information([[1.0, 2.0], [2.0, 1.0]]), "eigenvalue -1"),
    ],
)
def test_mistakes_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_a_certificate_that_breaks_its_bound_is_refused():
    with pytest.raises(ValueError, match="exceeds bound"):
        WhisperNoise(
            covariance=np.eye(2), bound=0.5, objective=1.0, gap=0.0, iterations=1, ridge=0.0
        )
