"""Figures of runs in which agents may be missing that nobody knew of when noise was made."""

import dataclasses
from itertools import combinations
from math import inf, sqrt
from typing import NamedTuple

import numpy as np
import pytest
import torch

from overhear.privacy.batches.sampling import drawings
from overhear.privacy.errors import InputError, UndeclaredOperation, UnsupportedView
from overhear.privacy.guarantee import Status
from overhear.training import Agents, Algorithm, Round
from overhear.training.accounts.account import account
from overhear.training.algorithms.decor import prepare
from overhear.training.graphs.participation import number_of_sets, reduced, sets_missing
from overhear.training.graphs.topologies import build_graph
from tests.training.states import State, start

RUN = {"rounds": 4, "sampling_rate": 0.1, "delta": 1e-5, "noise_multiplier": 2.0}


def shares(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Each agent adds a share of the noise of a sum, for as many as it believes to be there."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    there = float(round.active.public().sum())
    noisy = sums + round.noise(sums, std=noise_std / sqrt(there))
    mean = round.download(round.average(noisy) / batch_size, kind="gradient")
    return State(state.x - learning_rate * mean)


def uploads(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """A server that takes the mean of what it gets and adds all of the noise by itself."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    mean = round.average(sums)
    noisy = mean + round.noise(mean, std=noise_std / round.agents)
    return State(state.x - learning_rate * round.download(noisy / batch_size, kind="gradient"))


def mixed_first(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Neighbours mix what is noisy, and the mean of that is all that a model shows."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noisy = sums + round.noise(sums, std=noise_std)
    mean = round.average(round.mix(noisy, kind="gradient")) / batch_size
    return State(state.x - learning_rate * round.download(mean, kind="mean"))


def factors(factor):
    known = tuple(frozenset[int]() for _ in range(factor.shape[1]))
    table = torch.from_numpy(factor)

    def step(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
        sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
        noisy = sums + round.noise(sums, std=noise_std, factor=table, known_to=known)
        mean = round.download(round.average(noisy) / batch_size, kind="gradient")
        return State(state.x - learning_rate * mean)

    return step


def _joint(step, missing, *, graph="ring:5", who="eavesdropper", init=start, **more):
    """The joint sensitivity against one adversary, of an algorithm by name or of a step."""
    name = step if isinstance(step, str) else Algorithm(name="mine", init=init, step=step)
    found = account(name, graph=graph, missing=missing, adversaries=[who], **RUN | more)
    stated = found[who]
    assert stated.status is Status.PROVEN, stated
    return found.joint_sensitivities[who].largest


def _sets(agents, missing, victim):
    others = [a for a in range(agents) if a != victim]
    return [set(s) for k in range(missing + 1) for s in combinations(others, k)]


def _by_hand(A, B, *, of):
    """Square root of entry `of` of A'(BB')^+ A, rows: what is seen, B: noise, A: clipped sums."""
    M = A.T @ np.linalg.pinv(B @ B.T) @ A
    return sqrt(M[of, of])


@pytest.mark.parametrize(
    ("agents", "missing", "joint"), [(10, 1, 1.0541), (10, 3, 1.1952), (100, 10, 1.0541)]
)
def test_a_sum_of_shares_lacks_those_of_the_missing(agents, missing, joint):
    found = _joint(shares, missing, graph=f"full:{agents}" if agents < 99 else "server:100")
    assert found == pytest.approx(joint, abs=5e-5)
    assert found == pytest.approx(sqrt(agents / (agents - missing)), rel=1e-9)


def test_a_neighbour_knows_its_own_share_besides():
    found = _joint(shares, 2, graph="full:10", who="neighbour")
    assert found == pytest.approx(sqrt(10 / 7), rel=1e-9)
    # All others know every share but the victim's, whoever is missing.
    assert _joint(shares, 2, graph="full:5", who="all-others") == pytest.approx(sqrt(5), rel=1e-9)


def test_named_agents_are_told_apart_from_those_that_are_alike():
    # Agent 3 of the coalition need not be missing, agents 1 and 2 may: 10 - 3 shares are left.
    found = _joint(shares, 2, graph="full:10", who="agent:3", victim=0)
    assert found == pytest.approx(sqrt(10 / 7), rel=1e-9)
    assert _joint(shares, 1, graph="full:5", who="coalition:3,4") == pytest.approx(sqrt(5 / 2))


def test_noise_of_a_server_is_there_whoever_is_missing():
    assert _joint(uploads, 3) == pytest.approx(1.0, rel=1e-9)
    assert _joint("cdp-dsgd", 2, graph="ring:4") == pytest.approx(1.0, rel=1e-9)


def test_an_epsilon_as_target_takes_more_noise_by_the_shares_that_may_be_missing():
    of = RUN | {"noise_multiplier": None, "epsilon": 0.5, "adversary": "eavesdropper"}
    mine = Algorithm(name="mine", init=start, step=shares)
    calm = account(mine, graph="full:5", **of).noise_multiplier
    found = account(mine, graph="full:5", missing=2, **of)
    assert found.noise_multiplier / calm == pytest.approx(sqrt(5 / 3), rel=1e-4)
    assert found["eavesdropper"].epsilon <= 0.5


@pytest.mark.parametrize("seed", range(3))
def test_every_set_of_at_most_so_many_is_looked_at(seed):
    # Noise of three sources in the mean: a smaller set may leave less of it than a larger one.
    F = np.random.default_rng(seed).normal(size=(4, 3))
    hand = max(
        _by_hand(there[None, :], there[None, :] @ F, of=seed)
        for away in _sets(4, 2, seed)
        for there in [np.array([a not in away for a in range(4)], dtype=float)]
    )
    found = _joint(factors(F), 2, graph="ring:4", victim=seed)
    assert found == pytest.approx(hand, rel=1e-6)


def test_the_worst_set_may_be_smaller_than_the_largest_one():
    # Without agent 1 the noise of agents 0 and 2 nearly cancels; without both it does not.
    F = np.array([[1.0, 0.0], [2.0, 1.0], [-0.9, 0.0]])
    one, two = (_joint(factors(F), m, graph="full:3", victim=0) for m in (1, 2))
    assert one == two == pytest.approx(10.0, rel=1e-6)


def test_pairwise_noise_of_a_missing_partner_does_not_cancel():
    F = prepare(graph=build_graph("ring", 5), rounds=4, correlation=2.0, horizon=None)[
        "shared"
    ].factor
    R = F.numpy() @ F.numpy().T
    wanted = 0.0
    for away in _sets(5, 1, 2):
        there = [a for a in range(5) if a not in away]
        inverse = np.linalg.inv(R[np.ix_(there, there)])
        wanted = max(wanted, sqrt(inverse[there.index(2), there.index(2)]))
    assert _joint("decor", 1, victim=2, correlation=2.0) == pytest.approx(wanted, rel=1e-6)


def test_what_the_missing_would_have_given_is_lost_or_kept():
    # Only the mean of mixed values is seen; by hand over every set, and both kinds of weights.
    W = build_graph("star", 4).weights
    for victim in (0, 2):
        hand = 0.0
        for away in _sets(4, 2, victim):
            there = np.array([a not in away for a in range(4)], dtype=float)
            lost = W * np.outer(there, there)
            kept = lost + np.diag((W.sum(axis=1) - lost.sum(axis=1)) * there)
            for V in (lost, kept):
                row = (there @ V)[None, :]
                hand = max(hand, _by_hand(row, row, of=victim))
        found = _joint(mixed_first, 2, graph="star:4", who="final-models", victim=victim)
        assert found == pytest.approx(hand, rel=1e-6)
    calm = _joint(mixed_first, 0, graph="star:4", who="final-models")
    assert found > 1.02 * calm


@pytest.mark.parametrize(
    "name", ["dp-dpsgd", *(pytest.param(n, marks=pytest.mark.slow) for n in ("dpdl", "decor"))]
)
def test_none_missing_is_the_run_itself_and_more_never_costs_less(name):
    plain = account(name, graph="ring:4", adversaries=["neighbour"], **RUN)["neighbour"].epsilon
    figures = [
        account(name, graph="ring:4", missing=m, adversaries=["neighbour"], **RUN)["neighbour"]
        for m in (0, 1, 2)
    ]
    epsilons = [one.epsilon for one in figures]
    assert epsilons[0] == plain
    assert epsilons == sorted(epsilons)


def test_graphs_in_turn_have_a_worst_set_each():
    # By hand: of every graph the worst set of its own, and not the same set in both.
    found = account(
        Algorithm(name="mine", init=start, step=mixed_first),
        **RUN, graph="directed-exponential:4", missing=1, victim=0, adversaries=["final-models"],
    )  # fmt: skip
    releases = found.joint_sensitivities["final-models"].releases
    graph = build_graph("directed-exponential", 4)
    for number, release in enumerate(releases, start=1):
        W, wanted = graph.at(number).weights, 0.0
        for away in _sets(4, 1, 0):
            there = np.array([a not in away for a in range(4)], dtype=float)
            lost = W * np.outer(there, there)
            for V in (lost, lost + np.diag((W.sum(axis=0) - lost.sum(axis=0)) * there)):
                row = there @ V
                wanted = max(wanted, abs(row[0]) / np.linalg.norm(row))
        assert release.joint_sensitivity >= wanted * (1 - 1e-9), number


def test_figures_of_every_agent_hold_for_those_in_no_set_that_was_traced():
    found = account(
        Algorithm(name="mine", init=start, step=shares),
        **RUN, graph="full:5", missing=2, adversaries=["eavesdropper"],
    )  # fmt: skip
    each = found.epsilon_by_agent()["eavesdropper"]
    assert each == pytest.approx([found["eavesdropper"].epsilon] * 5, rel=1e-9)


def test_agents_that_draw_otherwise_are_not_alike():
    mine = Algorithm(name="mine", init=start, step=shares)
    subject = account(mine, graph="full:4", missing=1, **RUN).subject
    assert subject.same == frozenset(range(4))
    of = drawings("fixed", [100, 50, 50, 50], batch_size=5, sampling_rate=0.1, largest_batch=None)
    assert dataclasses.replace(subject, drawn=of).same == frozenset()


def test_a_start_that_tells_agents_apart_makes_every_set_traced():
    def uneven(round: Round) -> State:
        x = round.initial()
        return State(x * round.of_agents(torch.arange(1.0, 6.0)[:, None]))

    mine = Algorithm(name="mine", init=uneven, step=shares)
    found = account(mine, graph="full:5", missing=1, adversaries=["eavesdropper"], **RUN)
    assert found["eavesdropper"].joint_sensitivity == pytest.approx(sqrt(5 / 4), rel=1e-9)
    traced = found.subject.trace(2.0)
    assert traced.alike == frozenset()
    assert [away for away, _ in traced.without] == [frozenset({a}) for a in range(5)]


def scaled_by_weights(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    noise = round.noise(sums, std=noise_std) * round.own(round.weights)
    return State(state.x - learning_rate * round.mix(sums + noise, kind="gradient"))


def noise_by_degree(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    edges = len(round.weights.public())
    noise = round.noise(sums, std=noise_std * 15 / edges)
    return State(state.x - learning_rate * round.mix(sums + noise, kind="gradient"))


def unsent(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    models = round.broadcast(state.x, kind="model")
    sums = round.clipped_sums(models, batch=round.draw(), clip_norm=clip_norm)
    noisy = sums + round.noise(sums, std=noise_std)
    own = round.sum_in(noisy, weights=round.weights)
    return State(state.x - learning_rate * round.mix(own, kind="gradient"))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (scaled_by_weights, "uses weights in '\\*'"),
        (noise_by_degree, "does something else where agents"),
        (unsent, "of values that were not sent"),
    ],
)
def test_a_step_that_knows_who_is_missing_when_it_makes_noise_is_refused(step, said):
    with pytest.raises((UnsupportedView, UndeclaredOperation), match=said):
        _joint(step, 1)
    assert _joint(step, 0) > 0


def test_what_is_not_proven_is_refused():
    with pytest.raises(UndeclaredOperation, match="secret cohort"):
        account("dp-fedavg", graph="server:5", unit="agent", missing=1, **RUN)
    with pytest.raises(InputError, match="holders"):
        account("dp-dpsgd", graph="ring:5", holders=[0, 1], missing=1, **RUN)
    with pytest.raises(InputError, match="give one of them"):
        account("dp-dpsgd", graph="ring:5", active=np.ones((4, 5)), missing=1, **RUN)
    with pytest.raises(InputError, match="no bound with batches drawn 'cyclic'"):
        account(
            "dp-dpsgd", graph="ring:5", missing=1, sampling="cyclic", records=50, batch_size=5,
            adjacency="zero-out", **RUN,
        )  # fmt: skip
    for wrong in (5, -1, 10**400):
        with pytest.raises(InputError, match="missing="):
            account("dp-dpsgd", graph="ring:5", missing=wrong, **RUN)
    for wrong in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="missing="):
            account("dp-dpsgd", graph="ring:5", missing=wrong, **RUN)


def test_more_sets_than_can_be_traced_are_refused_at_once():
    with pytest.raises(InputError, match="more than 2000 sets of missing agents"):
        account("dp-dpsgd", graph="ring:30", missing=10, **RUN)
    with pytest.raises(InputError, match="sets of missing agents are looked at"):
        account("dp-dpsgd", graph="full:60", missing=2, **RUN)


class Kept(NamedTuple):
    x: Agents
    n: Agents


def kept_noise(state, round, *, learning_rate, clip_norm, noise_std, batch_size):
    """Noise that is taken out again in the next round."""
    sums = round.clipped_sums(state.x, batch=round.draw(), clip_norm=clip_norm)
    n = round.noise(sums, std=noise_std)
    return Kept(state.x - learning_rate * round.mix(sums + n - state.n, kind="gradient"), n)


def test_noise_over_rounds_is_accounted_for_with_everybody_there_alone():
    def begin(round: Round) -> Kept:
        x = round.initial()
        return Kept(x, 0.0 * x)

    mine = Algorithm(name="mine", init=begin, step=kept_noise, released=("x",))
    of = {"graph": "ring:4", "adversaries": ["eavesdropper"], **RUN}
    assert account(mine, **of)["eavesdropper"].epsilon < inf
    found = account(mine, missing=1, **of)["eavesdropper"]
    assert (found.epsilon, found.status) == (inf, Status.CANNOT_BE_EXPRESSED)
    assert "rounds are accounted for one by one alone" in found.because


def test_without_noise_nothing_protects_and_views_of_all_rounds_are_not_taken():
    found = account("dsgd", graph="ring:4", missing=1, **RUN | {"noise_multiplier": 0})
    assert {g.epsilon for g in found.guarantees.values()} == {inf}
    assert found["eavesdropper"].status is Status.NO_PROTECTION


def test_whole_agents_at_risk_lose_nothing_in_rounds_from_which_they_are_missing():
    of = {"unit": "agent", "clip": "batch", "adversaries": ["eavesdropper"]}
    calm = account("whisper", graph="ring:4", **of, **RUN)["eavesdropper"]
    found = account("whisper", graph="ring:4", missing=1, **of, **RUN)["eavesdropper"]
    assert found.epsilon == pytest.approx(calm.epsilon, rel=1e-6)  # fewer messages tell no more


def test_sets_are_all_of_at_most_so_many_without_the_victim():
    found = list(sets_missing(6, 3, victim=2))
    assert sorted(map(sorted, found)) == sorted(sorted(s) for s in _sets(6, 3, 2) if s)
    graph = build_graph("ring", 6)
    assert number_of_sets(graph, 3, victim=2) == len(found)
    alike = frozenset({1, 3, 4})
    some = list(sets_missing(6, 3, alike=alike, victim=2))
    assert number_of_sets(graph, 3, alike=alike, victim=2) == len(some)
    shapes = {(frozenset(s - alike), len(s & alike)) for s in map(frozenset, found)}
    assert {(frozenset(s - alike), len(s & alike)) for s in some} == shapes


def test_weights_without_the_missing_keep_links_of_the_others_as_they_are():
    graph = build_graph("star", 5)
    lost, kept = (one.at(1) for one in reduced(graph, frozenset({1, 2})))
    there = np.array([1, 0, 0, 1, 1], dtype=bool)
    off = np.outer(there, there) & ~np.eye(5, dtype=bool)
    for one in (lost, kept):
        assert np.array_equal(one.weights[off], graph.weights[off])
        assert one.announced.all()
        assert np.array_equal(one.active, there)
    assert kept.weights.sum(axis=1) == pytest.approx(np.ones(5))
    assert lost.weights[0].sum() == pytest.approx(1 - graph.weights[0, 1:3].sum())
    assert reduced(graph, frozenset({1, 2}))[0].at(0) is graph
