"""Facts about graphs and their mixing matrices."""

import networkx as nx
import numpy as np
import pytest

from overhear.training.graph import (
    GRAPH_NAMES,
    Graph,
    bipartite,
    build_graph,
    erdos_renyi,
    full,
    grid,
    ring,
    star,
)

OPTIONS = {"erdos-renyi": {"edge_probability": 0.5, "seed": 3}}
BUILT = [name for name in GRAPH_NAMES if name != "file"]


def _build(name: str, agents: int) -> Graph:
    return build_graph(name, agents, **OPTIONS.get(name, {}))


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
@pytest.mark.parametrize("name", BUILT)
def test_every_topology_is_symmetric_and_keeps_the_mean(name, agents):
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


def test_a_directed_cycle_is_accepted_and_not_symmetric():
    weights = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)
    graph = Graph(name="cycle", weights=weights)
    assert not graph.symmetric
    assert graph.neighbours(0) == (0, 1)
    assert graph.receivers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert graph.senders.tolist() == [0, 1, 1, 2, 2, 3, 0, 3]


def test_weights_are_copied_and_cannot_be_changed():
    weights = np.full((2, 2), 0.5)
    graph = Graph(name="pair", weights=weights)
    weights[0, 0] = 7.0
    assert graph.weights[0, 0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        graph.weights[0, 0] = 7.0


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3)) / 3, r"shape \(2, 3\), must be square"),
        (np.ones(4) / 4, "must be square"),
        (np.zeros((0, 0)), "must be square"),
        ([[np.nan, 1.0], [1.0, 0.0]], r"weights\[0, 0\]=nan of 'g' is not finite"),
        ([[1.5, -0.5], [-0.5, 1.5]], r"weights\[0, 1\]=-0.5 of 'g' is negative"),
        ([[0.5, 0.5], [0.5, 0.4]], r"row 1 of the weights of 'g' sums to 0.9, must be 1"),
        ([[0.5, 0.5], [0.4, 0.6]], r"column 0 of the weights of 'g' sums to 0.9|column 1"),
        ([[0.0, 1.0], [1.0, 0.0]], r"weights\[0, 0\]=0 of 'g' must be positive"),
        (np.eye(3), r"falls into 3 pieces \(\{0\}, \{1\}, \{2\}\)"),
    ],
)
def test_what_is_no_mixing_matrix_is_refused_by_name(weights, message):
    with pytest.raises(ValueError, match=message):
        Graph(name="g", weights=np.asarray(weights))


def test_rows_may_miss_one_by_rounding_only():
    graph = full(3)
    Graph(name="near", weights=graph.weights + 1e-11)
    with pytest.raises(ValueError, match="must be 1"):
        Graph(name="far", weights=graph.weights + 1e-8)


def test_an_unconnected_draw_names_pieces_and_remedy():
    with pytest.raises(
        ValueError, match=r"pieces .*raise edge_probability above ln\(A\)/A = 0.150"
    ):
        erdos_renyi(20, 0.01)


@pytest.mark.parametrize(
    ("name", "agents", "options", "message"),
    [
        ("torus", 4, {}, "unknown; choose one of ring, full"),
        ("ring", 0, {}, "agents=0 is too few for 'ring'"),
        ("bipartite", 2, {}, "at least 3"),
        ("star", 1, {}, "at least 2"),
        ("ring", 4, {"columns": 2}, "columns=2 belongs to 'grid' and not to 'ring'"),
        ("ring", 4, {"edge_probability": 0.5}, "belongs to 'erdos-renyi'"),
        ("erdos-renyi", 4, {}, "needs edge_probability"),
        ("erdos-renyi", 4, {"edge_probability": 1.3}, r"edge_probability=1.3 must lie in \[0, 1\]"),
        ("file", 4, {}, "needs path"),
        ("grid", 7, {}, "makes no grid, only a line; pass columns=7"),
        ("grid", 8, {"columns": 3}, "columns=3 must divide agents=8"),
        ("ring", 4, {"weights": "lazy"}, "weights='lazy' must be one of metropolis, uniform"),
    ],
)
def test_a_wrong_request_is_refused_with_the_remedy(name, agents, options, message):
    with pytest.raises(ValueError, match=message):
        build_graph(name, agents, **options)


@pytest.mark.parametrize("agent", [-1, 4])
def test_there_is_no_agent_outside_the_graph(agent):
    with pytest.raises(ValueError, match=r"must lie in \[0, 3\]"):
        ring(4).neighbours(agent)
    with pytest.raises(ValueError, match="agents count from 0"):
        ring(4).degree(agent)


def test_a_thousand_agents_are_built_at_once():
    assert full(1000).receivers.size == 1_000_000
