"""What some rounds of a run in turns cost, and what a message of them says of a replaced record."""

import functools
import itertools

import numpy as np
import pytest

from overhear.privacy import Event, epsilon, epsilon_from_mu, poisson
from overhear.privacy.accounting.accountant import composed_delta
from overhear.privacy.errors import UnsupportedView
from overhear.privacy.guarantee import neighbour
from overhear.privacy.view.whole_run import StreamedView
from overhear.training import Round, account, build_graph
from overhear.training.exposure.dense_rounds import dense_rounds
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import run_epsilon
from overhear.training.tracing.trace import trace
from tests.training.exposure.test_memory import NUMBERS, by_strategy, init
from tests.training.states import State, start

RUN = {
    "graph": "ring:3", "rounds": 12, "sampling_rate": 0.05, "delta": 1e-5, "noise_multiplier": 2.0,
    "participation": {"cycle": 4}, "adversaries": ["eavesdropper", "single-message"],
}  # fmt: skip


def mean_of_a_ball(state: State, round: Round, *, clip_norm: float, noise_std: float) -> State:
    batch = round.draw()
    mean = round.clipped_mean(state.x, batch=batch, batch_size=8.0, clip_norm=clip_norm)
    noise = round.noise(mean, std=noise_std)
    return State(round.mix(state.x - mean - noise, kind="model"))


@pytest.fixture(scope="module")
def known():
    return account("dp-dpsgd", **RUN)


@pytest.mark.parametrize("name", RUN["adversaries"])
@pytest.mark.parametrize("rounds", [[2, 6, 10], [10, 6, 2], list(range(1, 13)), [0, 4, 8, 12]])
def test_listed_rounds_may_be_all_turns_of_one_record(known, name, rounds):
    of = known.joint_sensitivities[name]
    three = epsilon(noise_multiplier=2.0, delta=1e-5, sampling_rate=0.2, rounds=3)
    spent = run_epsilon(of, statement=known.said_of, noise_multiplier=2.0, rounds=rounds)
    assert spent == pytest.approx(three, rel=1e-6)


@pytest.mark.parametrize("name", RUN["adversaries"])
@pytest.mark.parametrize("rounds", [13, [13], [1, 5, 9, 13]])
def test_rounds_beyond_a_run_in_turns_have_no_figure(known, name, rounds):
    of = known.joint_sensitivities[name]
    with pytest.raises(UnsupportedView, match="round 13 is beyond the 12"):
        run_epsilon(of, statement=known.said_of, noise_multiplier=2.0, rounds=rounds)


def test_a_round_beyond_the_plan_is_not_accounted_as_the_plan(known):
    with pytest.raises(UnsupportedView, match="round 13 is beyond"):
        accounted(known.joint_sensitivities["eavesdropper"], [*range(1, 14)])


def test_a_replaced_record_and_the_other_one_are_in_messages_of_turns_of_their_own():
    numbers = {**RUN, "rounds": 2, "participation": {"cycle": 2}, "sampling_rate": 0.5}
    found = account(start, mean_of_a_ball, adjacency="replace-one", **numbers)
    # Each is in one of two messages, for sure, and moves it from one end of the ball to the other.
    truth = epsilon_from_mu(2.0 * 2.0**0.5 / 2.0, 1e-5)
    assert found["single-message"].epsilon >= truth


def test_an_explanation_says_that_mu_is_that_of_one_turn_of_several(known):
    words = str(known.explain("eavesdropper"))
    assert "mu 0.5 in each of 3 turns of the record" in words
    assert "all rounds together" not in words


# Turns that an adversary hears of a round later: what amplifies, against the exact likelihoods.

ROUNDS, RATE, RUNS = 12, 0.3, 60_000


def heard(bands):
    """What agent 2 of a ring of five is told of agent 0, by whitened rows: H, their rounds, view.

    The strategy is z_t + .7 z_(t-1) + .49 z_(t-2) + ..., of so many terms, with M_ss about 1.
    """
    row = 0.7 ** np.arange(bands)
    table = np.tile(row / np.linalg.norm(row), (ROUNDS, 1))
    traces = trace(
        functools.partial(init, length=bands - 1),
        functools.partial(by_strategy, strategy=table, **NUMBERS), graph=build_graph("ring", 5),
        rounds=ROUNDS, noise_multiplier=1.0,
    )  # fmt: skip
    view, told = StreamedView(), []
    for one in dense_rounds(traces, neighbour(2), victims=[0], ended=True, closed=True):
        told.append(view.advance(one.seen, one.carried, owners=one.owners).response)
    H = np.vstack([np.pad(rows, ((0, 0), (0, ROUNDS - rows.shape[1]))) for rows in told])
    return H, np.repeat(np.arange(len(told)), [len(rows) for rows in told]), view


def measured(H, rounds, turns, *, epsilon, adaptive):
    """Delta at an epsilon, and its error: of runs with the record, by all patterns of its coins.

    Where it is adaptive the sign of a turn's contribution follows from all that was seen before
    its round, which shows earlier turns.
    """
    rng = np.random.default_rng(3)
    S = H[:, [turn - 1 for turn in turns]]
    coins = rng.random((RUNS, len(turns))) < RATE
    seen, signs = rng.standard_normal((RUNS, len(H))), np.ones((RUNS, len(turns)))
    for t in range(rounds[-1] + 1):
        at = np.flatnonzero(rounds == t)
        seen[:, at] += (coins * signs) @ S[at].T
        for k in np.flatnonzero(np.equal(turns, t + 1)) if adaptive else ():
            before = np.flatnonzero(rounds <= t)
            signs[:, k] = np.sign(seen[:, before] @ rng.standard_normal(len(before)) + 1e-9)
    along, gram = (seen @ S) * signs, S.T @ S
    logs = []
    for pattern in itertools.product((0, 1), repeat=len(turns)):
        chance = np.prod([RATE if one else 1 - RATE for one in pattern])
        moved = np.array(pattern) * signs
        energy = np.einsum("nk,kl,nl->n", moved, gram, moved)
        logs.append(np.log(chance) + along @ np.array(pattern) - energy / 2)
    lost = np.maximum(0.0, 1.0 - np.exp(epsilon - np.logaddexp.reduce(logs)))
    return lost.mean(), lost.std() / np.sqrt(RUNS)


def claimed(H, turns, *, epsilon):
    each = np.linalg.norm(H[:, [turn - 1 for turn in turns]], axis=0)
    rounds = {}
    for mu in each.tolist():
        event = Event(1 / mu, poisson(RATE))
        rounds[event] = rounds.get(event, 0) + 1
    return composed_delta(rounds, epsilon=epsilon)


def test_an_agent_that_hears_a_round_later_hears_for_as_many_rounds():
    """Three terms: agent 2 is told of round s in rounds s + 1, s + 2, s + 3, and nothing before."""
    H, rounds, view = heard(3)
    for s in range(1, 9):
        shown = np.unique(rounds[H[:, s - 1] != 0])
        assert shown.tolist() == [s + 1, s + 2, s + 3]
    assert view.bands(0) == 3
    assert heard(6)[2].bands(0) == 6


@pytest.mark.parametrize("adaptive", [False, True])
def test_turns_that_are_heard_later_cost_what_is_claimed_of_fresh_ones(adaptive):
    """Three terms, every third round: the exact delta of 60,000 runs is the accountant's.

    Within four errors, which chance exceeds once in 16,000 tests; the seed is fixed.
    """
    H, rounds, _ = heard(3)
    turns = (1, 4, 7, 10)
    for spent in (1.0, 2.0):
        found, error = measured(H, rounds, turns, epsilon=spent, adaptive=adaptive)
        assert found == pytest.approx(claimed(H, turns, epsilon=spent), abs=4 * error)


def test_turns_that_meet_cost_more_than_is_claimed_of_fresh_ones_and_do_not_amplify():
    """Six terms, every third round: delta is over twice that of fresh turns, so none is claimed."""
    H, rounds, view = heard(6)
    turns = (1, 4, 7, 10)
    found, error = measured(H, rounds, turns, epsilon=2.0, adaptive=False)
    assert found - 4 * error > 2 * claimed(H, turns, epsilon=2.0)
    assert view.bands(0) > 3


@pytest.mark.parametrize(
    "graph",
    ["ring:5", "grid:6", *(pytest.param(g, marks=pytest.mark.slow) for g in ("star:5", "full:4"))],
)
def test_every_adversary_pays_for_turns_that_are_over_before_the_next_one(graph):
    """Four bands, a cycle of four, so that neighbours and final models pay no more than outsiders.

    Of a grid of 2 x 3 the figure of a neighbour was infinite: rounding stood for a contribution.
    """
    names = ["eavesdropper", "neighbour", "all-others", "final-models"]
    found = account("mafalda", graph=graph, rounds=8, period=4, bands=4, sampling_rate=0.1,
        participation={"cycle": 4}, delta=1e-5, noise_multiplier=2, adversaries=names)  # fmt: skip
    outside = found["eavesdropper"]
    assert str(outside.sampling) == "poisson, in turns"
    for name in names:
        assert str(found[name].sampling) == "poisson, in turns"
        assert found[name].joint_sensitivity <= outside.joint_sensitivity * (1 + 1e-9)
    assert found["neighbour"].epsilon == pytest.approx(outside.epsilon, rel=1e-9)
