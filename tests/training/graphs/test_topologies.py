"""Facts about the topologies that have names."""

import itertools

import networkx as nx
import numpy as np
import pytest

from overhear.training.graphs.graph import Graph
from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.topologies import (
    GRAPH_NAMES,
    bipartite,
    build_graph,
    directed_exponential,
    directed_ring,
    erdos_renyi,
    full,
    grid,
    ring,
    star,
)

OPTIONS = {
    "erdos-renyi": {"edge_probability": 0.5, "seed": 3},
    "random-digraph": {"edge_probability": 0.5, "seed": 3},
}
BUILT = [name for name in GRAPH_NAMES if name != "file"]
TWO_WAY = [n for n in BUILT if not n.startswith(("directed-", "random-")) and n != "server"]


def _build(name: str, agents: int) -> Graph:
    return build_graph(name, agents, **OPTIONS.get(name, {})).at(2)


def test_ring_of_ten_weighs_every_neighbour_a_third():
    graph = ring(10)
    assert np.allclose(graph.edge_weights, 1 / 3, rtol=0, atol=1e-15)
    assert graph.receivers.size == 30
    assert graph.neighbours(0) == (0, 1, 9)
    assert graph.degree(4) == 3


def test_ring_eigenvalues_equal_the_closed_form():
    closed_form = (1 + 2 * np.cos(2 * np.pi * np.arange(9) / 9)) / 3
    assert np.allclose(
        np.linalg.eigvalsh(ring(9).weights), np.sort(closed_form), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(("agents", "weights"), [(1, [[1.0]]), (2, [[0.5, 0.5], [0.5, 0.5]])])
def test_small_rings_are_alone_or_a_pair(agents, weights):
    assert ring(agents).weights.tolist() == weights


def test_full_graph_mixes_to_the_mean_in_one_step():
    assert np.allclose(full(7).weights, 1 / 7, rtol=0, atol=1e-15)


def test_bipartite_joins_each_of_the_first_to_the_last_two_only():
    graph = bipartite(10)
    assert all(graph.neighbours(i) == (i, 8, 9) for i in range(8))
    assert graph.neighbours(8) == (*range(9),)
    assert graph.neighbours(9) == (*range(8), 9)
    assert graph.weights[0, 8] == pytest.approx(1 / 9)
    assert graph.weights[8, 8] == pytest.approx(1 / 9)
    assert graph.weights[0, 0] == pytest.approx(7 / 9)


@pytest.mark.parametrize(("agents", "columns"), [(12, 4), (12, 6), (9, 3), (5, 5), (1, 1)])
def test_grid_has_the_links_of_the_independent_lattice(agents, columns):
    lattice = nx.convert_node_labels_to_integers(
        nx.grid_2d_graph(agents // columns, columns), ordering="sorted"
    )
    links = grid(agents, columns).weights != 0
    np.fill_diagonal(links, val=False)
    assert np.array_equal(links, nx.to_numpy_array(lattice, nodelist=range(agents)).astype(bool))


def test_default_grid_is_the_most_nearly_square():
    assert np.array_equal(grid(12).weights, grid(12, 4).weights)
    assert np.array_equal(grid(16).weights, grid(16, 4).weights)
    assert np.array_equal(grid(2).weights, ring(2).weights)


def test_star_joins_everybody_to_agent_zero():
    graph = star(5)
    assert graph.neighbours(0) == (0, 1, 2, 3, 4)
    assert graph.neighbours(3) == (0, 3)


def test_erdos_renyi_is_the_seed_s_graph_and_no_other():
    one = erdos_renyi(20, 0.4, seed=5)
    assert np.array_equal(one.weights, erdos_renyi(20, 0.4, seed=5).weights)
    assert not np.array_equal(one.weights, erdos_renyi(20, 0.4, seed=6).weights)
    assert np.array_equal(erdos_renyi(6, 1.0).weights, full(6).weights)


@pytest.mark.parametrize("agents", [4, 12, 30])
@pytest.mark.parametrize("name", TWO_WAY)
def test_every_two_way_topology_is_symmetric_and_keeps_the_mean(name, agents):
    graph = _build(name, agents)
    assert graph.agents == agents
    assert graph.symmetric
    assert np.allclose(graph.weights.sum(axis=0), 1, rtol=0, atol=1e-12)
    assert np.array_equal(graph.weights, graph.weights.T)
    second = np.linalg.eigvalsh(graph.weights)[-2]
    assert second < 1 - 1e-6  # repeated mixing reaches the mean


@pytest.mark.parametrize("name", BUILT)
def test_edges_are_sorted_and_rebuild_the_matrix(name):
    graph = _build(name, 12)
    order = np.lexsort((graph.senders, graph.receivers))
    assert np.array_equal(order, np.arange(order.size))
    assert graph.receivers.dtype == graph.senders.dtype == np.int64
    rebuilt = np.zeros((12, 12))
    rebuilt[graph.receivers, graph.senders] = graph.edge_weights
    assert np.array_equal(rebuilt, graph.weights)
    assert graph.degrees.tolist() == [graph.degree(i) for i in range(12)]
    assert graph.degrees.tolist() == [len(graph.neighbours(i)) for i in range(12)]


def test_uniform_weights_equal_metropolis_on_a_regular_graph():
    assert np.array_equal(ring(8, weights="uniform").weights, ring(8).weights)


def test_uniform_weights_are_refused_where_columns_would_not_sum_to_one():
    with pytest.raises(ValueError, match=r"needs equal degrees.*use weights='metropolis'"):
        star(4, weights="uniform")


def test_an_unconnected_draw_names_pieces_and_remedy():
    with pytest.raises(
        ValueError, match=r"pieces .*raise edge_probability above ln\(A\)/A = 0.150"
    ):
        erdos_renyi(20, 0.01)


@pytest.mark.parametrize(
    ("name", "agents", "options", "message"),
    [
        ("torus", 4, {}, "unknown; choose one of ring, full"),
        ("directed-ring", 1, {}, "at least 2"),
        ("directed-exponential", 1, {}, "at least 2"),
        ("directed-ring", 4, {"weights": "lazy"}, "must be one of metropolis, uniform"),
        ("ring", 0, {}, "agents=0 is too few for 'ring'"),
        ("bipartite", 2, {}, "at least 3"),
        ("star", 1, {}, "at least 2"),
        ("ring", 4, {"columns": 2}, "columns=2 belongs to 'grid' and not to 'ring'"),
        ("ring", 4, {"edge_probability": 0.5}, "belongs to 'erdos-renyi'"),
        ("erdos-renyi", 4, {}, "needs edge_probability"),
        ("erdos-renyi", 4, {"edge_probability": 1.3}, r"edge_probability=1.3 must lie in \[0, 1\]"),
        ("random-digraph", 4, {}, "needs edge_probability"),
        ("ring", 4, {"window": 2}, "window=2 belongs to 'random-digraph' and not to 'ring'"),
        ("file", 4, {}, "needs path"),
        ("grid", 7, {}, "makes no grid, only a line; pass columns=7"),
        ("grid", 8, {"columns": 3}, "columns=3 must divide agents=8"),
        ("ring", 4, {"weights": "lazy"}, "weights='lazy' must be one of metropolis, uniform"),
    ],
)
def test_a_wrong_request_is_refused_with_the_remedy(name, agents, options, message):
    with pytest.raises(ValueError, match=message):
        build_graph(name, agents, **options)


def test_a_thousand_agents_are_built_at_once():
    assert full(1000).receivers.size == 1_000_000


def test_a_directed_ring_passes_half_of_everything_one_place_on():
    graph = directed_ring(6)
    assert graph.links == ((5, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert (graph.edge_weights == 0.5).all()
    assert graph.sums is Sums.BOTH
    assert not graph.symmetric


@pytest.mark.parametrize(("agents", "period"), [(2, 1), (3, 2), (4, 2), (5, 3), (9, 4), (20, 5)])
def test_the_directed_exponential_graph_follows_its_formula(agents, period):
    graph = directed_exponential(agents)
    assert len(graph.graphs) == period
    for k in range(3 * period):
        hop = 2 ** (k % (int(np.floor(np.log2(agents - 1))) + 1))
        now = graph.at(k + 1)
        assert set(now.links) == {(i, (i + hop) % agents) for i in range(agents)}
        assert (now.edge_weights == 0.5).all()


@pytest.mark.parametrize("agents", [2, 4, 8, 32])
def test_one_period_of_the_directed_exponential_graph_is_the_mean_of_a_power_of_two(agents):
    product = np.eye(agents)
    for graph in directed_exponential(agents).graphs:
        product = graph.weights @ product
    assert np.allclose(product, 1 / agents, rtol=0, atol=1e-15)


@pytest.mark.parametrize("agents", [3, 6, 20, 33])
def test_after_one_period_everybody_has_heard_of_everybody(agents):
    product = np.eye(agents)
    for graph in directed_exponential(agents).graphs:
        product = graph.weights @ product
    assert product.min() > 0
    assert np.allclose(product.sum(axis=0), 1, rtol=0, atol=1e-14)
    assert np.allclose(product.sum(axis=1), 1, rtol=0, atol=1e-14)


def test_a_period_of_twenty_agents_is_one_to_sixteen_places():
    hops = [graph.links[0] for graph in directed_exponential(20).graphs]
    assert [(0 - sender) % 20 for sender, _ in hops] == list(itertools.accumulate([1, 1, 2, 4, 8]))


@pytest.mark.parametrize("name", ["ring", "full", "star", "grid", "bipartite", "directed-ring"])
def test_more_agents_than_weights_are_made_for_are_refused_before_any_is_made(name):
    with pytest.raises(ValueError, match=r"agents=10001 is too many for .*; at most 10000 can be"):
        build_graph(name, 10_001)


def test_a_graph_that_changes_has_room_for_all_of_its_matrices():
    with pytest.raises(ValueError, match=r"agents=3000 is too many for .*; at most 2886 can be"):
        build_graph("directed-exponential", 3000)


def test_more_links_than_can_be_followed_are_refused(monkeypatch):
    monkeypatch.setattr("overhear.training.graphs.mixing._MOST_LINKS", 11)
    with pytest.raises(ValueError, match="agents=4 has 12 links, and at most 11 can be"):
        build_graph("full", 4)
    build_graph("ring", 3)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_a_drawn_graph_is_that_of_networkx(probability):
    drawn = nx.gnp_random_graph(20, probability, seed=1)
    weights = build_graph("erdos-renyi", 20, edge_probability=probability, seed=1).at(1).weights
    links = weights != 0
    np.fill_diagonal(links, val=False)
    assert np.array_equal(links, nx.to_numpy_array(drawn, dtype=bool))
