"""Local views: the same figures as whole views give, from the rows that matter alone."""

import functools
import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

from overhear.privacy.errors import UnsupportedView
from overhear.privacy.guarantee import (
    EAVESDROPPER,
    FINAL_MODELS,
    SINGLE_MESSAGE,
    Adversary,
    coalition,
    neighbour,
)
from overhear.privacy.noise.correlated import decor_factor
from overhear.training.algorithms import Form, dp_dpsgd, dpdl, dsgd
from overhear.training.exposure.local_views import LocalViews
from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import mixing_weights
from overhear.training.graphs.topologies import bipartite, erdos_renyi, full, ring, star
from overhear.training.step.round import Round
from overhear.training.step.values import Agents
from overhear.training.tracing.round_trace import RoundTrace
from overhear.training.tracing.trace import trace
from tests.training.states import State, start

NUMBERS = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_std": 1.0, "batch_size": 7.0}
STEPS = {
    "repaired": (dpdl.init, functools.partial(dpdl.step, form=Form.REPAIRED)),
    "published": (dpdl.init, functools.partial(dpdl.step, form=Form.PUBLISHED)),
    "mix-then-step": (
        dp_dpsgd.init,
        functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.MIX_THEN_STEP, **NUMBERS),
    ),
    "step-then-mix": (
        dp_dpsgd.init,
        functools.partial(dp_dpsgd.step, order=dp_dpsgd.Order.STEP_THEN_MIX, **NUMBERS),
    ),
    "dsgd": (dsgd.init, functools.partial(dsgd.step, learning_rate=0.01, batch_size=7.0)),
}
for _name in ("repaired", "published"):
    _init, _step = STEPS[_name]
    STEPS[_name] = (_init, functools.partial(_step, settings=dpdl.Settings(alpha=0.7), **NUMBERS))


def linked(name: str, links: nx.Graph) -> Graph:
    adjacency = nx.to_numpy_array(links, nodelist=sorted(links)) != 0
    return Graph(name=name, weights=mixing_weights(name, adjacency, scheme="metropolis"))


def uneven() -> Graph:
    """Eight agents in a circle who hear the one before more than the one after, and one chord."""
    weights = 0.5 * np.eye(8) + 0.3 * np.roll(np.eye(8), 1, axis=1)
    weights += 0.2 * np.roll(np.eye(8), -1, axis=1)
    weights[np.ix_([0, 4], [0, 4])] += 0.1 * np.array([[-1, 1], [1, -1]])
    return Graph(name="uneven", weights=weights)


GRAPHS = {
    "ring9": ring(9), "ring10": ring(10), "star": star(8), "bipartite": bipartite(8),
    "full": full(7), "erdos-renyi": erdos_renyi(12, 0.35, seed=3),
    "6-regular": linked("6-regular", nx.random_regular_graph(6, 20, seed=5)),
    "torus": linked("torus", nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 4, True))),
    "uneven": uneven(),
}  # fmt: skip


def everybody(agents: int) -> list[Adversary]:
    return [
        EAVESDROPPER,
        FINAL_MODELS,
        *(neighbour(k) for k in range(0, agents, 1 + agents // 10)),
        *(coalition(set(range(agents)) - {v}) for v in range(0, agents, 4)),
        coalition({0, 2}),
        coalition({1, 2, agents - 1}),
    ]


def agree(one: RoundTrace, *, who: list[Adversary] | None = None) -> None:
    """Every adversary and victim, against the adversary's whole view."""
    agents = one.record.agents
    views = LocalViews(one)
    plain: dict[int, dict[int, float]] = {}
    for adversary in who or everybody(agents):
        view, seen = one.view(adversary), views.of_adversary(adversary)
        touched = seen.touched()
        for victim in set(range(agents)) - adversary.agents:
            found = seen.sensitivities(victim)
            for mine, whole in zip(
                found, one.sensitivities_in(view, adversary, victim), strict=True
            ):
                assert mine.mu == pytest.approx(whole.mu, abs=1e-9), (adversary.name, victim)
                assert mine[1:3] == whole[1:3]
                if math.isinf(mine.mu):  # the whole view names messages besides
                    assert whole.because.startswith(mine.because)
                else:
                    assert mine.because == whole.because
            if victim not in touched:  # whoever has the same shared view finds the same
                same = plain.setdefault(id(seen.shared), {}).setdefault(victim, found[0].mu)
                assert found[0].mu == pytest.approx(same, rel=1e-12)


def traced(init, step, graph: Graph) -> RoundTrace:
    return trace(init, step, graph=graph, rounds=5, noise_multiplier=1.0).rounds[0][0]


QUICK_GRAPHS = ("ring9", "star", "uneven")  # and of the others every second step
ON_GRAPHS = [
    pytest.param(
        step, graph, marks=[] if graph in QUICK_GRAPHS or (i + k) % 2 == 0 else [pytest.mark.slow]
    )
    for i, step in enumerate(STEPS)
    for k, graph in enumerate(GRAPHS)
]


@pytest.mark.some_quick(8)
@pytest.mark.some_cases(23)
@pytest.mark.parametrize(("step", "graph"), ON_GRAPHS)
def test_surroundings_give_the_figures_of_whole_views(step, graph):
    agree(traced(*STEPS[step], GRAPHS[graph]))


@pytest.mark.parametrize("step", ["published", "step-then-mix"])
def test_a_ring_whose_mixing_is_singular_gives_the_figures_of_whole_views(step):
    one = traced(*STEPS[step], ring(30))
    agree(one, who=[EAVESDROPPER, FINAL_MODELS, neighbour(0), neighbour(7), coalition({3, 20})])


@pytest.mark.parametrize(("agents", "mu_squared"), [(30, 14 / 15), (10, 1.0)])
def test_final_models_of_step_then_mix_see_what_mixing_leaves(agents, mu_squared):
    one = traced(*STEPS["step-then-mix"], ring(agents))
    (found,) = LocalViews(one).of_adversary(FINAL_MODELS).sensitivities(3)
    assert found.mu**2 == pytest.approx(mu_squared, abs=1e-9)


def _sums(state: State, round: Round) -> Agents:
    return round.clipped_sums(state.x, batch=round.draw(), clip_norm=1.0)


def _clean_local_model(state: State, round: Round) -> State:
    local = state.x - 0.1 * _sums(state, round)
    round.broadcast(local + round.noise(local, std=1.0), kind="noisy model")
    return State(local)


def _seed_reused(state: State, round: Round) -> State:
    sums = _sums(state, round)
    z = round.noise(sums, std=1.0)
    round.broadcast(2.0 * sums + z, kind="first")
    return State(round.mix(sums + z, kind="second"))


def _known_to_one(state: State, round: Round) -> State:
    sums = _sums(state, round)
    shared = round.noise(sums, std=1.0, known_to=[frozenset({1})] * round.agents)
    own = round.noise(sums, std=0.7)
    return State(round.mix(sums + shared + own, kind="masked"))


def _sent_but_not_kept(state: State, round: Round) -> State:
    """Messages that no end state shows, each of its own noise: only receivers know them."""
    sums = _sums(state, round)
    z = round.noise(sums, std=1.0)
    round.broadcast(sums + round.noise(sums, std=0.8), kind="aside")
    round.broadcast(z + 0.5 * round.noise(sums, std=1.0), kind="about the noise")
    return State(round.mix(sums + z, kind="model"))


def _pairwise(round: Round, sums: Agents) -> Agents:
    weights = np.zeros((round.agents, round.agents))
    for i in range(round.agents):
        weights[i, [i, i - 1, (i + 1) % round.agents]] = 1.0
    mixing = decor_factor(weights, local_variance=1.0, pair_variance=2.0)
    return round.noise(sums, std=1.0, factor=torch.from_numpy(np.array(mixing)))


def _decor(state: State, round: Round) -> State:
    sums = _sums(state, round)
    return State(round.mix(sums + _pairwise(round, sums), kind="decor"))


def _mixed_twice(state: State, round: Round) -> State:
    sums = _sums(state, round)
    once = round.mix(state.x + sums + round.noise(sums, std=1.0), kind="first")
    return State(round.mix(once, kind="second"))


def _two_steps(state: State, round: Round) -> State:
    x = state.x
    for _ in range(2):
        sums = round.clipped_sums(x, batch=round.draw(), clip_norm=1.0)
        x = x - 0.1 * (sums + round.noise(sums, std=1.0))
    return State(round.mix(x, kind="model"))


@pytest.mark.some_quick(5)
@pytest.mark.parametrize(
    "step",
    [
        _clean_local_model,
        _seed_reused,
        _known_to_one,
        _sent_but_not_kept,
        _decor,
        _mixed_twice,
        _two_steps,
    ],
    ids=lambda step: step.__name__.strip("_"),
)
@pytest.mark.parametrize("agents", [7, 9])
def test_other_steps_give_the_figures_of_whole_views(step, agents):
    agree(traced(start, step, ring(agents)))


def test_noise_that_one_agent_knows_protects_from_all_others():
    views = LocalViews(traced(start, _known_to_one, ring(8)))
    of = {k: views.of_adversary(neighbour(k)).sensitivities(4)[0].mu for k in (1, 3)}
    assert of == {1: pytest.approx(1 / 0.7), 3: pytest.approx(1 / math.hypot(1.0, 0.7))}
    assert views.of_adversary(neighbour(1)).touched() == [0, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.0, [(1.0, 2), (0.0, 1)]),  # one sum of both
        (-1.0, [(1.0, 2), (0.0, 1)]),  # the direction of a move is free
        (2.0, [(3.0**0.5, 1), (6.0**0.5, 1)]),  # lam = |b| (|b_1| + |b_2|), as of two holders
    ],
)
def test_two_batches_that_share_noise_are_counted_jointly(factor, expected):
    def step(state, round):
        first, second = _sums(state, round), _sums(state, round)
        noisy = first + factor * second + round.noise(first, std=1.0)
        return State(round.mix(noisy, kind="sum"))

    one = traced(start, step, ring(5))
    for found in (
        LocalViews(one).of_adversary(EAVESDROPPER).sensitivities(0),
        one.sensitivities(EAVESDROPPER, 0),
    ):
        assert [s.summed for s in found] == [n for _, n in expected]
        assert [s.mu for s in found] == pytest.approx([mu for mu, _ in expected])
        assert all(s.shares for s in found if s.mu)


def test_a_victim_among_the_adversary_and_an_adversary_without_a_view_are_refused():
    views = LocalViews(traced(*STEPS["repaired"], ring(5)))
    with pytest.raises(UnsupportedView, match="contains the victim 0"):
        views.of_adversary(coalition({0, 1})).sensitivities(0)
    with pytest.raises(UnsupportedView, match="no closed view"):
        views.of_adversary(SINGLE_MESSAGE)


@pytest.mark.parametrize("step", ["repaired", "published", "mix-then-step"])
def test_no_agent_touches_another_where_everything_private_is_released(step):
    views = LocalViews(traced(*STEPS[step], ring(10)))
    assert not any(views.of_adversary(neighbour(k)).touched() for k in range(10))


def test_equal_surroundings_are_factorised_once():
    views = LocalViews(traced(*STEPS["published"], ring(40)))
    seen = views.of_adversary(EAVESDROPPER)
    figures = [seen.sensitivities(v)[0].mu for v in range(40)]
    assert figures == pytest.approx([figures[0]] * 40, rel=1e-12)
    assert len(views.problems) == 1


@pytest.mark.parametrize(("odd", "problems"), [(1.0, 1), (1.0 + 1e-3, 12)])
def test_agents_of_a_ring_whose_noise_links_all_have_one_problem_unless_one_differs(odd, problems):
    def step(state, round):
        scale = torch.ones(round.agents, 1, dtype=torch.float64)
        scale[4] = odd
        sums = _sums(state, round) * scale
        return State(round.mix(sums + _pairwise(round, sums), kind="decor"))

    one = traced(start, step, ring(12))
    agree(one)
    views = LocalViews(one)
    for k, v in itertools.permutations(range(12), 2):
        views.of_adversary(neighbour(k)).sensitivities(v)
    assert len(views.problems) == problems


def test_surroundings_that_differ_in_one_coefficient_are_not_taken_to_be_equal():
    def step(state, round):
        sums = _sums(state, round)
        scale = torch.ones(round.agents, 1, dtype=torch.float64)
        scale[4] = 1.0 + 1e-7
        return State(round.mix(sums + round.noise(sums, std=1.0) * scale, kind="noisy"))

    seen = LocalViews(traced(start, step, ring(10))).of_adversary(EAVESDROPPER)
    of = {v: seen.sensitivities(v)[0].mu for v in (3, 4)}
    assert (of[3], of[4]) == (pytest.approx(1, abs=1e-12), pytest.approx(1 - 1e-7, abs=1e-12))


def test_rounds_of_any_number_of_agents_find_the_same_as_each_other():
    """Large graphs are beyond whole views; on a ring the figure does not depend on the size."""
    for agents, name in itertools.product((50, 400), ("repaired", "published", "mix-then-step")):
        one = traced(*STEPS[name], ring(agents))
        (found,) = LocalViews(one).of_adversary(neighbour(0)).sensitivities(agents // 2)
        kappa = 1 + 0.7 * dpdl.calibration_gain() * math.sqrt(1 / 3) * agents
        expected = {"repaired": 3.0, "published": 2 + kappa**2, "mix-then-step": 1.0}[name]
        assert found.mu**2 == pytest.approx(expected, rel=1e-9)
