"""Facts about mixing matrices as arrays."""

import networkx as nx
import numpy as np
import pytest

from overhear.training.mixing import check_mixing, mixing_weights, name_pieces, pieces


@pytest.mark.parametrize("seed", range(20))
def test_metropolis_weights_equal_the_formula_entry_by_entry(seed):
    graph = nx.gnp_random_graph(12, 0.4, seed=seed)
    weights = mixing_weights("g", nx.to_numpy_array(graph).astype(bool), scheme="metropolis")
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
    one, two = (mixing_weights("g", half, scheme="metropolis") for half in (upper, upper.T))
    assert np.array_equal(one, two)


def test_adjacency_is_not_changed():
    adjacency = np.ones((3, 3), dtype=bool)
    mixing_weights("g", adjacency, scheme="uniform")
    assert adjacency.all()


@pytest.mark.parametrize("seed", range(10))
def test_pieces_are_the_connected_components(seed):
    graph = nx.gnp_random_graph(20, 0.06, seed=seed)
    expected = sorted(sorted(piece) for piece in nx.connected_components(graph))
    upper = np.triu(nx.to_numpy_array(graph)).astype(bool)
    assert sorted(pieces(upper)) == expected


def test_many_pieces_are_named_in_short():
    assert name_pieces([[0, 1], [2]]) == "{0, 1}, {2}"
    assert name_pieces([list(range(9))]) == "{0, 1, 2, 3, 4, 5, ... 3 more}"
    assert name_pieces([[i] for i in range(5)]) == "{0}, {1}, {2}, {3}, ..."


def test_a_row_stochastic_matrix_that_loses_the_mean_is_refused():
    with pytest.raises(ValueError, match=r"column \d of the weights of 'g' sums to"):
        check_mixing("g", np.array([[0.5, 0.5], [0.3, 0.7]]))
