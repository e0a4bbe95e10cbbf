"""Steered figures: known values, the ways to print too little, and the proofs run as programs."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from overhear.privacy.accounting.gaussian import delta_from_mu
from overhear.privacy.errors import InputError
from overhear.privacy.view.steered import heard_by, late_age, late_mu, steered_plan
from overhear.privacy.view.view import View
from overhear.training import build_graph

PATH = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]) / 3
RING = build_graph("ring", 10).weights
DIRECTED = (np.eye(5) + np.roll(np.eye(5), 1, axis=0)) / 2  # agent i + 1 hears agent i
CLOSED, ALONE = 1.0, 1 / math.sqrt(10.0)


def test_on_a_path_the_steered_figure_is_the_one_as_if_alone_and_the_closed_one_is_not():
    view = View(contributions=np.array([[1 / 3]]), noise=np.array([[1 / 3, 1.0]]))
    assert view.mu([0]) == pytest.approx(ALONE)
    found = steered_plan(PATH, victim=0, heard=[1], rounds=2, using=[1]).mu
    assert found == pytest.approx(ALONE, abs=1e-9)
    assert steered_plan(PATH, victim=0, heard=[0, 1], rounds=2, using=[1]).mu == pytest.approx(
        CLOSED
    )


@pytest.mark.parametrize(
    ("records", "least"), [(4, 0.12665), (16, 0.126936)], ids=["4 records", "16 records"]
)
def test_gradients_that_turn_at_a_hidden_agent_reach_the_closed_figure(records, least):
    # y = m / 3 - 2 records [m > 1.5] + noise at agent 2, m = record + noise: delta at epsilon 1
    y = np.linspace(-50, 12, 20_001)
    below, above = norm.cdf, norm.sf

    def density(record):
        # m and y are jointly normal on each side of the flip
        sd, at = math.sqrt(1 / 9 + 1), record / 3
        found = 0.0
        for shift, side in ((0.0, below), (-2.0 * records, above)):
            weight = norm.pdf(y - shift, at, sd)
            mean = record + (y - shift - at) * (1 / 3) / sd**2
            found = found + weight * side(1.5, mean, math.sqrt(1 - (1 / 9) / sd**2))
        return found

    gap = np.maximum(density(1.0) - math.e * density(0.0), 0.0)
    delta = float(np.trapezoid(gap, y))
    assert least < delta <= delta_from_mu(CLOSED, epsilon=1.0) + 1e-6  # .126937
    assert delta > 1000 * delta_from_mu(ALONE, epsilon=1.0)  # .000110: no guarantee


@pytest.mark.parametrize(
    ("hops", "once", "late"),
    [
        (1, 1.0, 1.0),
        (2, 0.339601, math.sqrt(1 / 3)),
        (3, 0.1507, math.sqrt(19) / 9),
        (4, 0.0879, 0.439790),
        (5, 0.0712, 0.410761),
    ],
)
def test_figures_by_distance_on_a_ring(hops, once, late):
    heard = heard_by(RING, [hops])
    found = steered_plan(RING, victim=0, heard=heard, rounds=20, using=[1]).mu
    assert found == pytest.approx(once, abs=6e-5)
    assert late_mu(RING, victim=0, heard=heard) == pytest.approx(late, abs=1e-6)
    assert late_age(RING, victim=0, heard=heard) == hops - 1


def test_final_models_tell_of_late_rounds_alone():
    every = steered_plan(RING, victim=0, heard=[], rounds=20, final_models=True).mu
    assert every == pytest.approx(2.49174, abs=1e-5)
    by_round = [
        steered_plan(RING, victim=0, heard=[], rounds=20, final_models=True, using=[t]).mu
        for t in (1, 11, 16, 20)
    ]
    assert by_round == pytest.approx([0.0771, 0.12889, 0.2257, 1.0], abs=6e-5)


def test_a_growing_step_takes_the_best_age_up_to_the_first():
    far = heard_by(RING, [5])
    assert late_mu(RING, victim=0, heard=far, gamma=1.1) == pytest.approx(0.5854, abs=1e-4)
    found = steered_plan(
        RING, victim=0, heard=heard_by(RING, [2]), rounds=20, using=[1], gamma=1.1
    ).mu
    assert found == pytest.approx(0.3790, abs=1e-4)


def test_a_directed_graph_is_walked_from_the_record_on():
    following = heard_by(DIRECTED, [1])  # agent 1 hears agent 0 itself
    assert steered_plan(
        DIRECTED, victim=0, heard=following, rounds=9, using=[1]
    ).mu == pytest.approx(1)
    assert late_mu(DIRECTED, victim=0, heard=following) == 1.0
    before = heard_by(DIRECTED, [4])  # three hops on
    assert late_mu(DIRECTED, victim=0, heard=before) == pytest.approx(0.5590, abs=1e-4)


def test_what_is_left_has_no_sign_and_weights_count_by_their_size():
    signed = PATH.copy()
    signed[1, 0] *= -1
    at = {"victim": 0, "heard": [1], "rounds": 4, "using": [1]}
    assert steered_plan(signed, **at).mu == pytest.approx(steered_plan(PATH, **at).mu, abs=1e-9)
    plan = steered_plan(RING, victim=0, heard=[], rounds=20, final_models=True, using=[11])
    assert plan.left.min() >= 0
    assert plan.moved.min() >= 0
    assert plan.mu == pytest.approx(0.12889, abs=6e-5)  # .0955 where rho may be of any sign


@pytest.mark.parametrize("slope", [-3.0, 2.0])
def test_a_step_that_is_steeper_than_claimed_exceeds_the_figure(slope):
    # agent 2 steps to slope * x: y = slope m / 3 + noise
    truth = abs(slope / 3) / math.sqrt(slope**2 / 9 + 1)
    at = {"victim": 0, "heard": [1], "rounds": 2, "using": [1]}
    assert truth > 1.7 * steered_plan(PATH, **at).mu
    assert truth == pytest.approx(steered_plan(PATH, **at, gamma=abs(slope)).mu, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_no_figure_is_below_that_of_the_linear_step(seed):
    rng = np.random.default_rng(seed)
    W = rng.random((4, 4)) * (rng.random((4, 4)) < 0.7) + np.eye(4)
    W /= W.sum(axis=1, keepdims=True)
    rounds, heard = 4, [2]
    # the view of what agent 2 sends where every step is the identity and weights are positive
    power = [np.linalg.matrix_power(W, k) for k in range(rounds)]
    A = np.array([[power[t - s][2, 0] if t >= s else 0.0 for s in [0]] for t in range(rounds)])
    B = np.array(
        [
            [power[t - s][2, j] if t >= s else 0.0 for s in range(rounds) for j in range(4)]
            for t in range(rounds)
        ]
    )
    linear = View(contributions=A, noise=B).mu([0])
    found = steered_plan(W, victim=0, heard=heard, rounds=rounds, using=[1]).mu
    assert linear <= found * (1 + 1e-9) <= 1 + 1e-9


class Clipped:
    """Agents with logistic losses in three dimensions, clipped to 1, and a record that is not."""

    def __init__(self, weights, seed, times=1.0):
        self.rng = np.random.default_rng(seed)
        self.W, self.agents = weights, len(weights)
        self.data = self.rng.normal(size=(self.agents, 6, 3))
        norms = np.linalg.norm(self.data, axis=2, keepdims=True)
        self.data /= np.maximum(norms, 1.0)
        self.signs = self.rng.choice([-1.0, 1.0], size=(self.agents, 6))
        self.eta = times * 2.0 / (6 * 0.25)  # B = 1: eta n beta <= 2, beta = |a|^2 / 4

    def step(self, x, batch):
        """Every agent's model less its own clipped sum; (A, 3)."""
        scores = np.einsum("anp,ap->an", self.data, x) * self.signs
        slope = -self.signs / (1 + np.exp(scores)) * batch
        return x - self.eta * np.einsum("an,anp->ap", slope, self.data)

    def record(self, x):
        """What the victim's record adds: of length eta, and no gradient of a convex function."""
        turned = np.array([math.sin(3 * x[1]), math.cos(2 * x[0]), x[2]])
        return self.eta * turned / max(1.0, float(np.linalg.norm(turned)))


def steered_runs(case, plan, heard, rounds):
    """Largest difference of what is heard, and by how much what is left exceeds the plan."""
    x, other = np.zeros((case.agents, 3)), np.zeros((case.agents, 3))
    apart, over = 0.0, -math.inf
    for t in range(rounds):
        batch = case.rng.random((case.agents, 6)) < 0.6
        noise = case.rng.normal(size=(case.agents, 3)) * case.eta
        difference = case.step(other, batch) - case.step(x, batch)
        difference[0] += case.record(other[0])
        length = np.linalg.norm(difference, axis=1, keepdims=True)
        allowed = case.eta * plan.moved[t][:, None]
        moved = np.minimum(allowed, length) * difference / np.maximum(length, 1e-300)
        left = difference - moved
        over = max(over, float((np.linalg.norm(left, axis=1) - case.eta * plan.left[t]).max()))
        messages = case.step(x, batch) + noise
        apart = max(apart, float(np.abs(left[heard]).max()))
        x, other = case.W @ messages, case.W @ (messages + left)
    return apart, over


@pytest.mark.parametrize("weights", [DIRECTED, build_graph("ring", 5).weights], ids=["to", "ring"])
def test_steered_runs_look_alike_and_keep_within_the_plan(weights):
    heard = sorted(heard_by(weights, [3 if weights is DIRECTED else 2]))
    plan = steered_plan(weights, victim=0, heard=heard, rounds=9)
    for seed in range(10):
        apart, over = steered_runs(Clipped(weights, seed), plan, heard, 9)
        assert apart < 1e-12
        assert over < 1e-12
    broken = [steered_runs(Clipped(weights, s, times=3.0), plan, heard, 9) for s in range(10)]
    assert max(over for _, over in broken) > 1e-3  # steps above the limit do not keep to it


def test_the_late_run_shows_what_the_run_without_the_record_shows():
    weights, rounds = build_graph("ring", 7).weights, 12
    heard = sorted(heard_by(weights, [3]))
    age, mu = late_age(weights, victim=0, heard=heard), late_mu(weights, victim=0, heard=heard)
    assert age == 2
    for seed in range(6):
        case = Clipped(weights, seed)
        # models of hybrid k, from which contributions of rounds <= k were removed; k = -1: none
        models = {-1: np.zeros((7, 3))}
        for t in range(rounds):
            batch = case.rng.random((7, 6)) < 0.6
            coin = float(case.rng.random() < 0.5)
            models[t] = models[max(models)]  # until now all removed, this round's too
            last = max(t - age - 1, -1)  # the run with the record is this hybrid
            frozen = coin * case.record(models[last][0])
            before = {
                k: case.step(x, batch) + (frozen[None] * (np.arange(7) == 0)[:, None] * (k < t))
                for k, x in models.items()
            }
            after = max(t - age, -1)
            shift = before[last] - before[after]
            bound = case.eta * mu if t >= age else 0.0
            assert np.linalg.norm(shift) <= bound + 1e-12
            noise = case.rng.normal(size=(7, 3)) * case.eta + shift
            # heard is the same in the run with the record and with all of it removed
            assert np.abs(before[after][heard] - before[t][heard]).max() < 1e-12
            models = {k: case.W @ (x + noise) for k, x in before.items() if k >= after}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"victim": 3}, "victim=3"),
        ({"rounds": 10**6}, "rounds"),
        ({"gamma": -1.0}, "gamma=-1.0"),
        ({"gamma": math.nan}, "gamma=nan"),
        ({"using": [0]}, "round 0"),
    ],
)
def test_what_is_no_run_is_refused(settings, named):
    with pytest.raises(InputError, match=named):
        steered_plan(PATH, **({"victim": 0, "heard": [1], "rounds": 2} | settings))
