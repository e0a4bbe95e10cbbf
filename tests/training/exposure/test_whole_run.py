"""Runs whose state is carried without noise: all rounds are one release."""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy import (
    EAVESDROPPER,
    FINAL_MODELS,
    Sampling,
    Statement,
    UnsupportedView,
    View,
    epsilon_from_mu,
    neighbour,
    parse_adversary,
)
from overhear.training import ALGORITHMS, bind, build_graph
from overhear.training.exposure.dense_rounds import streamed_view
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import guarantee, run_epsilon
from overhear.training.exposure.joint_sensitivities import joint_sensitivities
from overhear.training.exposure.whole_run import (
    InAllRounds,
    replace_infinite_by_whole_run,
    whole_run_joint_sensitivities,
)
from overhear.training.step.final_release import FinalRelease
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.trace import trace

BETA = 0.01
MODELS = FinalRelease(fields=("x",))  # all else stays with its agent


class Recursion(NamedTuple):
    x: Agents
    before: Agents
    d: Agents
    sent: Agents
    u: Agents


def start(round: Round) -> Recursion:
    x = round.initial()
    nothing = x * 0.0
    return Recursion(x, x, nothing, nothing, nothing)


def recursion(state: Recursion, round: Round) -> Recursion:
    """A clean STORM recursion, released under fresh noise, then tracked and mixed."""
    batch = round.draw()
    now = round.clipped_sums(state.x, batch=batch, clip_norm=1.0)
    past = round.clipped_sums(state.before, batch=batch, clip_norm=1.0)
    d = now - (1 - BETA) * past + (1 - BETA) * state.d
    sent = d + round.noise(d, std=1.0)
    u = round.mix(state.u + sent - state.sent, kind="tracker")
    x = round.mix(state.x - 0.1 * u, kind="model")
    return Recursion(x, state.x, d, sent, u)


def exposed(rounds, *, names=("eavesdropper",), agents=4, **options):
    traces = trace(
        start, recursion, graph=build_graph("ring", agents), rounds=rounds, noise_multiplier=1.0,
        release=MODELS,
    )  # fmt: skip
    found = whole_run_joint_sensitivities(traces, names, sampling_rate=0.1, **options)
    return dict(found)


def test_round_by_round_a_clean_recursion_is_infinite():
    traces = trace(
        start, recursion, graph=build_graph("ring", 4), rounds=5, noise_multiplier=1.0,
        release=MODELS,
    )  # fmt: skip
    ((_, found),) = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    assert math.isinf(found.largest)


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 1.99), (2, 2.80025), (5, 4.36211), (20, 8.11632)]
)
def test_one_use_in_the_first_round_costs_what_the_recursion_repeats(rounds, expected):
    found = exposed(rounds, participation=[1])["eavesdropper"]
    assert found.largest == pytest.approx(expected, abs=1e-5)
    assert found.releases[0].rounds == 1
    assert found.releases[0].sampling_rate == 1.0


@pytest.mark.parametrize("name", ["eavesdropper", "neighbour", "final-models", "all-others"])
def test_the_first_round_is_the_worst_to_take_part_in(name):
    once = exposed(5, participation=1, names=[name])[name]
    assert once.largest == pytest.approx(4.36211, abs=1e-5)
    assert "at most one round" in once.because


def test_some_rounds_cost_between_one_and_all():
    costs = [exposed(5, participation=p)["eavesdropper"].largest for p in (1, 2, 3, 5, "every")]
    assert costs == sorted(costs)
    assert costs[0] < costs[1] < costs[-1]
    assert costs[-2] == costs[-1] == pytest.approx(14.53219, abs=1e-5)


def test_at_most_two_rounds_covers_every_choice_of_two():
    bound = exposed(5, participation=2)["eavesdropper"].largest
    pairs = [
        exposed(5, participation=[s, t])["eavesdropper"].largest
        for s in range(1, 6)
        for t in range(s + 1, 6)
    ]
    assert max(pairs) <= bound <= 1.2 * max(pairs)


@pytest.mark.parametrize("name", ["eavesdropper", "neighbour:1", "final-models", "coalition:1,2"])
@pytest.mark.parametrize("algorithm", ["dpdl", "dp-dpsgd"])
def test_without_a_secret_state_all_rounds_are_the_sum_of_the_rounds(name, algorithm):
    known, graph = (
        ALGORITHMS[algorithm],
        build_graph("erdos-renyi", 6, edge_probability=0.6, seed=1),
    )
    run = bind(
        known, known.settings(), learning_rate=0.1, clip_norm=1.0, noise_std=1.0, batch_size=1.0
    )
    traces = trace(run.init, run.step, graph=graph, rounds=4, noise_multiplier=run.noise_multiplier)
    who = parse_adversary(name, 6)
    view = streamed_view(traces, who, victims=[0])
    ((one, _),) = traces.rounds
    (by_round,) = one.sensitivities(who, 0)
    assert view.mu(0) == pytest.approx(2.0 * by_round.mu, rel=1e-9)


def test_a_run_in_one_piece_agrees_with_one_matrix_of_all_its_rounds():
    """Rows of five rounds of a ring written out by hand, with the models known."""
    rounds, keep = 5, 1 - BETA
    contributions = np.zeros((rounds, 2 * rounds))
    for t in range(rounds):
        for s in range(t + 1):
            contributions[t, [2 * s, 2 * s + 1]] = keep ** (t - s), -keep * keep ** (t - s)
    whole = View(contributions=contributions, noise=np.eye(rounds))
    found = exposed(rounds, participation="every")["eavesdropper"]
    assert found.largest == pytest.approx(whole.mu(range(2 * rounds)), rel=1e-9)


class State(NamedTuple):
    x: Agents
    m: Agents


def init(round):
    x = round.initial()
    return State(x, x * 0.0)


def test_what_a_neighbour_knows_of_the_noise_leaves_it_nothing_secret():
    def step(state, round):
        """Momentum kept clean; its release carries noise that agent 1 knows."""
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        m = 0.9 * state.m + sums
        owners = [frozenset({i, 1}) for i in range(4)]
        shown = round.mix(m + round.noise(m, std=1.0, known_to=owners), kind="momentum")
        return State(state.x - 0.1 * shown, m)

    traces = trace(
        init, step, graph=build_graph("ring", 4), rounds=3, noise_multiplier=1.0, release=MODELS
    )
    seen = streamed_view(traces, EAVESDROPPER, victims=[0])
    assert seen.mu(0, [0]) ** 2 == pytest.approx(2.4661, abs=1e-4)
    assert math.isinf(streamed_view(traces, neighbour(1), victims=[0]).mu(0))


def test_the_final_models_are_released_after_the_last_round():
    def step(state, round):
        """The models stay public until the last noisy momentum enters them."""
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        m = 0.9 * state.m + sums
        return State(state.x - 0.1 * (m + round.noise(m, std=1.0)), m)

    traces = trace(
        init, step, graph=build_graph("ring", 4), rounds=3, noise_multiplier=1.0, release=MODELS
    )
    view = streamed_view(traces, FINAL_MODELS, victims=[0])
    assert view.mu(0, [0]) ** 2 == pytest.approx(2.4661, abs=1e-4)


def test_twenty_agents_and_two_hundred_rounds_stay_small():
    """A dense matrix of all rows and columns would hold 4,000 x 8,000 entries for each agent."""
    traces = trace(
        start, recursion, graph=build_graph("ring", 20), rounds=200, noise_multiplier=1.0,
        release=MODELS,
    )  # fmt: skip
    view = streamed_view(traces, EAVESDROPPER, victims=[0])
    expected = 1.99 * math.sqrt(sum(0.9801**t for t in range(200)))
    assert view.mu(0, [0, 1]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("participation", ["often", 0, -1, True, [], [6], [0.5]], ids=repr)
def test_participation_that_is_no_number_of_rounds_is_refused(participation):
    with pytest.raises(ValueError, match="participation"):
        exposed(5, participation=participation)


def test_a_run_of_one_release_is_accounted_as_one_and_may_not_repeat_a_round():
    found = exposed(5, participation="every")["eavesdropper"]
    found = found._replace(noise_multiplier=None)  # whatever the noise
    spent = {"noise_multiplier": 10.0, "statement": Statement(delta=1e-5)}
    whole = run_epsilon(found, **spent)
    assert whole == pytest.approx(epsilon_from_mu(found.largest / 10.0, 1e-5))
    assert run_epsilon(found, **spent, rounds=2) == whole  # of a part nothing less is known
    assert run_epsilon(accounted(found, [1, 2, 3]), **spent) == whole
    assert guarantee("eavesdropper", found, **spent).sampling is Sampling.ANY
    with pytest.raises(UnsupportedView, match="round 2 may have been released twice"):
        accounted(found, [1, 2, 2])
    with pytest.raises(UnsupportedView, match="torn line"):
        accounted(found, [1, 2], torn=True)
    with pytest.raises(UnsupportedView, match="round 1"):
        run_epsilon(found, **spent, rounds=[1, 1])


def test_only_what_is_infinite_by_rounds_and_bounded_falls_back():
    traces = trace(
        start, recursion, graph=build_graph("ring", 4), rounds=5, noise_multiplier=1.0,
        release=MODELS,
    )  # fmt: skip
    by_round = joint_sensitivities(traces, ["eavesdropper", "single-message"], sampling_rate=0.1)
    settled = dict(replace_infinite_by_whole_run(traces, by_round, how=InAllRounds(0.1)))
    assert settled["eavesdropper"].largest == pytest.approx(14.53219, abs=1e-5)
    assert settled["eavesdropper"].whole_run
    assert settled["single-message"] == dict(by_round)["single-message"]


def test_an_unbounded_contribution_does_not_fall_back():
    def unclipped(state, round):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=None)
        return state._replace(x=state.x - round.noise(sums, std=1.0) - sums)

    traces = trace(start, unclipped, graph=build_graph("ring", 4), rounds=5, noise_multiplier=1.0)
    by_round = joint_sensitivities(traces, ["eavesdropper"], sampling_rate=0.1)
    assert replace_infinite_by_whole_run(traces, by_round, how=InAllRounds(0.1)) == by_round
    assert math.isinf(by_round[0][1].largest)


def test_a_view_ends_early_only_when_every_victim_has_leaked():
    class State(NamedTuple):
        x: Agents

    def step(state, round):
        """Agent 0's noise is missing."""
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)
        some = torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0]))
        return State(round.mix(sums + round.noise(sums, std=1.0, factor=some), kind="model"))

    traces = trace(
        lambda round: State(round.initial()), step, graph=build_graph("ring", 4), rounds=9,
        noise_multiplier=1.0,
    )  # fmt: skip
    view = streamed_view(traces, EAVESDROPPER, victims=[0, 2], until_leak=True)
    assert math.isinf(view.mu(0))
    assert view.mu(2) == pytest.approx(3.0)


def mean_of_a_ball(state: Recursion, round: Round) -> Recursion:
    mean = round.clipped_mean(state.x, batch=round.draw(), batch_size=1.0, clip_norm=1.0)
    x = round.mix(state.x - 0.1 * (mean + round.noise(mean, std=1.0)), kind="model")
    return state._replace(x=x)


def test_several_records_that_take_part_in_rounds_of_their_own_move_a_ball_in_all_of_them():
    graph = build_graph("ring", agents=3, weights="metropolis")
    traces = trace(
        start, mean_of_a_ball, graph=graph, rounds=3, noise_multiplier=1.0, release=MODELS
    )

    def spent(participation: object, records: int) -> float:
        setting = {"participation": participation, "sampling_rate": 1.0, "victim": 0}
        ((_, one),) = whole_run_joint_sensitivities(traces, ["eavesdropper"], **setting)
        said = Statement(delta=1e-5, adjacency="replace-one")
        return run_epsilon(one, statement=said, noise_multiplier=1.0, records=records)

    # Three of them may each take part in one of the three rounds.
    assert spent(1, 3) >= spent("every", 1)
    # One and its replacement are in a round each, and move it across the ball there.
    assert spent(1, 1) >= epsilon_from_mu(2.0 * math.sqrt(2.0), 1e-5)
    assert spent("every", 3) == spent("every", 1)
