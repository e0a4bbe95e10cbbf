"""MUFFLIATO's pairwise losses."""

import math

import numpy as np
import pytest

from overhear.privacy import View, delta_from_mu, epsilon_from_mu
from overhear.privacy.published.whisper import muffliato_bound, muffliato_losses, worst_pair

SETTING = {"noise_multiplier": 2.0, "delta": 1e-5}


def ring(agents: int) -> np.ndarray:
    one = np.eye(agents)
    return (one + np.roll(one, 1, axis=1) + np.roll(one, -1, axis=1)) / 3


def metropolis(agents: int, probability: float, seed: int) -> np.ndarray:
    """Of a path with random chords."""
    draws = np.random.default_rng(seed).random((agents, agents)) < probability
    links = np.triu(draws, 1) | np.eye(agents, k=1, dtype=bool)
    links |= links.T
    degrees = links.sum(axis=1)
    W = np.where(links, 1 / (1 + np.maximum.outer(degrees, degrees)), 0.0)
    return W + np.diag(1 - W.sum(axis=1))


def directed(agents: int) -> np.ndarray:
    """Each agent hears the one before it, with weights that sum to 1 over its rows only."""
    own = np.linspace(0.3, 0.7, agents)
    return np.diag(own) + np.roll(np.diag(1 - own), 1, axis=1)


def messages(W: np.ndarray, observer: int, steps: int) -> np.ndarray:
    """Every message that the observer receives as a row over the agents' noisy values."""
    heard = [w for w in range(len(W)) if w != observer and W[observer, w] != 0]
    return np.vstack([np.linalg.matrix_power(W, t)[heard] for t in range(steps)])


def exact_squares(W: np.ndarray, observer: int, steps: int) -> np.ndarray:
    """mu^2 of each victim in the view of what the observer receives, its own noise known."""
    rows = messages(W, observer, steps)
    others = [u for u in range(len(W)) if u != observer]
    view = View(contributions=rows, noise=rows[:, others])
    return np.array([view.mu([u]) ** 2 if u != observer else 0.0 for u in range(len(W))])


GRAPHS = [ring(6), ring(9), metropolis(9, 0.2, 0), metropolis(7, 0.5, 1), directed(5)]
NAMES = ["ring 6", "ring 9", "sparse", "dense", "directed"]


@pytest.mark.parametrize("W", GRAPHS, ids=NAMES)
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_the_loss_is_the_sum_over_messages_of_what_each_says_alone(W, steps):
    rows = messages(W, 0, steps)
    alone = [
        [View(contributions=row[None], noise=row[None]).mu([u]) ** 2 for row in rows]
        if u
        else [0.0]
        for u in range(len(W))
    ]
    # A single row over noise of its own: contribution u over the length of the whole row.
    by_hand = [
        sum(row[u] ** 2 / float(row @ row) for row in rows) if u else 0.0 for u in range(len(W))
    ]
    assert muffliato_losses(W, observer=0, gossip_steps=steps) == pytest.approx(by_hand)
    assert np.array([sum(a) for a in alone]) == pytest.approx(by_hand)


@pytest.mark.parametrize("W", GRAPHS, ids=NAMES)
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_the_proven_figure_is_that_of_the_exact_view(W, steps):
    exact = exact_squares(W, 0, steps)
    for victim in range(1, len(W)):
        claim = muffliato_bound(W, victim=victim, observer=0, gossip_steps=steps, **SETTING)
        by_view = epsilon_from_mu(math.sqrt(exact[victim]) / 2.0, 1e-5)
        assert claim.proven_epsilon == pytest.approx(by_view, rel=1e-9, abs=1e-12)


def test_on_a_ring_of_six_the_claim_is_below_the_truth():
    assert exact_squares(ring(6), 0, 3)[3] == pytest.approx(1.0)
    assert muffliato_losses(ring(6), observer=0, gossip_steps=3)[3] == pytest.approx(2 / 19)
    claim = muffliato_bound(ring(6), victim=3, observer=0, gossip_steps=3, **SETTING)
    assert claim.proven_epsilon is not None
    assert claim.epsilon < 0.5 * claim.proven_epsilon


def test_on_a_ring_of_six_two_messages_and_its_own_value_reveal_the_agent_opposite():
    """The same, by a run: what the observer computes from its messages is the opposite value."""
    W = ring(6)
    sent = [np.random.default_rng(0).normal(size=6)]
    for _ in range(2):
        sent.append(W @ sent[-1])
    first = 3 * sent[1][1] - sent[0][0] - sent[0][1]  # agent 2, from agent 1's second message
    third = 9 * sent[2][1]  # agent 5 + 2 agent 0 + 3 agent 1 + 2 agent 2 + agent 3
    opposite = third - sent[0][5] - 2 * sent[0][0] - 3 * sent[0][1] - 2 * first
    assert opposite == pytest.approx(sent[0][3])


def test_even_the_mean_over_victims_can_be_below_the_truth():
    losses = muffliato_losses(ring(20), observer=0, gossip_steps=3)
    exact = exact_squares(ring(20), 0, 3)
    assert losses.mean() < 0.9 * exact.mean()


def test_neighbours_are_counted_again_with_every_step():
    losses = muffliato_losses(ring(6), observer=0, gossip_steps=20)
    assert losses[1] > 5.0  # their exact figure never exceeds 1
    claim = muffliato_bound(ring(6), victim=1, observer=0, gossip_steps=20, **SETTING)
    assert claim.proven_epsilon == pytest.approx(epsilon_from_mu(0.5, 1e-5))
    assert claim.epsilon > 2 * claim.proven_epsilon


def test_one_step_shows_the_neighbours_and_nobody_else():
    assert muffliato_losses(ring(6), observer=2, gossip_steps=1).tolist() == [0, 1, 0, 1, 0, 0]
    far = muffliato_bound(ring(6), victim=5, observer=2, gossip_steps=1, **SETTING)
    assert far.epsilon == far.proven_epsilon == 0.0


def test_no_victim_is_known_better_than_by_its_own_value():
    W = metropolis(30, 0.05, 3)
    for steps in (1, 10, 200):
        claim = muffliato_bound(W, victim=29, observer=0, gossip_steps=steps, **SETTING)
        assert claim.proven_epsilon is not None
        assert 0.0 <= claim.proven_epsilon <= epsilon_from_mu(0.5, 1e-5)


def test_the_claimed_epsilon_is_the_best_order_of_the_renyi_loss():
    claim = muffliato_bound(ring(6), victim=3, observer=0, gossip_steps=3, **SETTING)
    rho = (2 / 19) / (2 * 2.0**2)
    orders = np.linspace(1.01, 2000, 400_000)
    best = np.min(orders * rho + math.log(1e5) / (orders - 1))
    assert claim.epsilon == pytest.approx(best, rel=1e-6)
    assert delta_from_mu(math.sqrt(2 * rho), claim.epsilon) < 1e-5  # the conversion is safe


def test_the_caveats_name_the_closed_figure_and_the_mean():
    claim = muffliato_bound(ring(6), victim=3, observer=0, gossip_steps=3, **SETTING)
    said = " ".join(claim.caveats)
    assert f"{epsilon_from_mu(0.5, 1e-5):.4g}" in said
    assert f"{muffliato_losses(ring(6), observer=0, gossip_steps=3).mean():.4g}" in said
    assert "without closure" in said


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"victim": 0}, "victim=0"),
        ({"victim": 6}, "victim=6"),
        ({"observer": -1}, "observer=-1"),
        ({"gossip_steps": 0}, "gossip_steps=0"),
        ({"gossip_steps": 1.5}, r"gossip_steps=1\.5"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0"),
        ({"delta": 0.0}, r"delta=0\.0"),
        ({"rounds": 0}, "rounds=0"),
    ],
    ids=["self", "victim", "observer", "steps", "half a step", "noise", "delta", "rounds"],
)
def test_a_wrong_argument_is_named(given, named):
    setting = {"victim": 3, "observer": 0, "gossip_steps": 2, **SETTING, **given}
    with pytest.raises(ValueError, match=named):
        muffliato_bound(ring(6), **setting)  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("W", GRAPHS, ids=NAMES)
def test_the_worst_pair_has_the_largest_loss(W):
    losses = np.array([muffliato_losses(W, observer=v, gossip_steps=3) for v in range(len(W))])
    victim, observer = worst_pair(W, gossip_steps=3)
    assert victim != observer
    assert losses[observer, victim] == pytest.approx(losses.max())


def test_several_runs_add_up_and_are_proven_by_what_is_released():
    pair = {"victim": 1, "observer": 0, "gossip_steps": 3, **SETTING}
    one, four = (muffliato_bound(ring(6), rounds=n, **pair) for n in (1, 4))
    rho = 4 * muffliato_losses(ring(6), observer=0, gossip_steps=3)[1] / (2 * 2.0**2)
    assert four.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    assert four.proven_epsilon == pytest.approx(epsilon_from_mu(2.0 * 0.5, 1e-5))
    assert "adds up 4 runs" in " ".join(four.caveats)
    assert "one run" in " ".join(one.caveats)


def test_weights_that_are_no_square_are_refused():
    with pytest.raises(ValueError, match="weights"):
        muffliato_losses(np.ones((2, 3)), observer=0, gossip_steps=1)
