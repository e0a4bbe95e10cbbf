"""Facts about mixing matrices as arrays."""

import networkx as nx
import numpy as np
import pytest

from overhear.training.graphs import mixing


@pytest.mark.parametrize("seed", range(20))
def test_metropolis_weights_equal_the_formula_entry_by_entry(seed):
    graph = nx.gnp_random_graph(12, 0.4, seed=seed)
    weights = mixing.mixing_weights("g", nx.to_numpy_array(graph).astype(bool), scheme="metropolis")
    for i in graph:
        for j in graph:
            if i != j:
                linked = graph.has_edge(i, j)
                formula = 1 / (1 + max(graph.degree[i], graph.degree[j])) if linked else 0.0
                assert weights[i, j] == pytest.approx(formula, abs=1e-15)
        assert weights[i].sum() == pytest.approx(1, abs=1e-12)
        assert weights[i, i] > 0


def test_either_triangle_gives_the_same_links():
    upper = np.triu(np.ones((4, 4), dtype=bool))
    one, two = (mixing.mixing_weights("g", half, scheme="metropolis") for half in (upper, upper.T))
    assert np.array_equal(one, two)


def test_adjacency_is_not_changed():
    adjacency = np.ones((3, 3), dtype=bool)
    mixing.mixing_weights("g", adjacency, scheme="uniform")
    assert adjacency.all()


@pytest.mark.parametrize("seed", range(10))
def test_pieces_are_the_connected_components(seed):
    graph = nx.gnp_random_graph(20, 0.06, seed=seed)
    expected = sorted(sorted(piece) for piece in nx.connected_components(graph))
    upper = np.triu(nx.to_numpy_array(graph)).astype(bool)
    assert sorted(mixing.pieces(upper)) == expected


def test_many_pieces_are_named_in_short():
    assert mixing.name_pieces([[0, 1], [2]]) == "{0, 1}, {2}"
    assert mixing.name_pieces([list(range(9))]) == "{0, 1, 2, 3, 4, 5, ... 3 more}"
    assert mixing.name_pieces([[i] for i in range(5)]) == "{0}, {1}, {2}, {3}, ..."


@pytest.mark.parametrize(
    ("weights", "sums"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], mixing.Sums.BOTH),
        ([[0.5, 0.5], [0.3, 0.7]], mixing.Sums.ROWS),
        ([[0.5, 0.3], [0.5, 0.7]], mixing.Sums.COLUMNS),
    ],
    ids=str,
)
def test_a_matrix_is_told_by_which_of_its_sums_are_one(weights, sums):
    assert mixing.check_mixing("g", np.array(weights)) is sums


@pytest.mark.parametrize("seed", range(5))
def test_push_weights_are_one_over_the_receivers_of_each_sender(seed):
    digraph = nx.gnp_random_graph(9, 0.3, seed=seed, directed=True)
    digraph.remove_edges_from(nx.selfloop_edges(digraph))
    weights = mixing.push_weights(
        nx.to_numpy_array(digraph).astype(bool).T
    )  # networkx: [sender, receiver]
    for sender, receiver in digraph.edges:
        assert weights[receiver, sender] == 1 / (1 + digraph.out_degree[sender])
    assert np.allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-15)
    assert np.count_nonzero(weights) == digraph.number_of_edges() + 9


def test_links_that_lead_one_way_only_are_no_connected_graph():
    one_way = mixing.push_weights(np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], dtype=bool))
    with pytest.raises(ValueError, match="falls into 3 pieces"):
        mixing.check_mixing("chain", one_way)
    assert mixing.check_mixing("chain", one_way, connected=False) is mixing.Sums.COLUMNS
