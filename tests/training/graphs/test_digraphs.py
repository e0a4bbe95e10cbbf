"""Random directed graphs that change: their weights, and how many rounds join everybody."""

import networkx as nx
import numpy as np
import pytest

from overhear.training.graphs.graph import (
    Graph,
    GraphSequence,
    joined_within,
    random_digraph,
    strong_window,
)
from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.topologies import build_graph, directed_exponential, ring


def by_networkx(sequence, window):
    """Whether any so many rounds in a row, cyclically, are strongly connected together."""
    period = len(sequence.graphs)
    for start in range(period):
        joined = nx.DiGraph()
        joined.add_nodes_from(range(sequence.agents))
        for k in range(window):
            joined.add_edges_from(sequence.graphs[(start + k) % period].links)
        if not nx.is_strongly_connected(joined):
            return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_the_window_is_the_least_that_joins_everybody(seed):
    sequence = random_digraph(7, 0.12, graphs=9, seed=seed)
    window = strong_window(sequence)
    assert by_networkx(sequence, window)
    assert window == 1 or not by_networkx(sequence, window - 1)
    assert random_digraph(7, 0.12, graphs=9, seed=seed, window=window).agents == 7
    if window > 1:
        with pytest.raises(ValueError, match=f"it takes {window} rounds in a row"):
            random_digraph(7, 0.12, graphs=9, seed=seed, window=window - 1)


@pytest.mark.parametrize("agents", [2, 3, 6, 8, 20])
def test_the_window_of_the_exponential_graph_is_that_of_networkx(agents):
    sequence = directed_exponential(agents)
    window = strong_window(sequence)
    assert by_networkx(sequence, window)
    assert window == 1 or not by_networkx(sequence, window - 1)


def test_columns_sum_to_one_and_every_sender_splits_evenly():
    sequence = random_digraph(9, 0.3, graphs=5, seed=2)
    assert sequence.sums is Sums.COLUMNS
    for graph in sequence.graphs:
        assert np.allclose(graph.weights.sum(axis=0), 1, rtol=0, atol=1e-15)
        for sender in range(9):
            column = graph.weights[:, sender]
            assert len(set(column[column > 0].tolist())) == 1
            assert column[sender] > 0


def test_push_sum_finds_the_mean_along_a_drawn_sequence():
    sequence = random_digraph(8, 0.2, graphs=7, seed=4)
    start = np.arange(8.0)
    x, w = start.copy(), np.ones(8)
    for k in range(1, 400):
        weights = sequence.at(k).weights
        x, w = weights @ x, weights @ w
    assert np.allclose(x / w, start.mean(), rtol=1e-9)
    assert not np.allclose(x, start.mean(), rtol=1e-2)  # without w the mean is lost


def test_the_seed_decides_the_sequence_and_rounds_differ():
    one, same, other = (random_digraph(6, 0.4, seed=s).graphs for s in (1, 1, 2))
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(one, same, strict=True))
    assert any(not np.array_equal(a.weights, b.weights) for a, b in zip(one, other, strict=True))
    assert len({graph.weights.tobytes() for graph in one}) == 16


def test_arcs_are_as_frequent_as_asked():
    # 16 * 1560 = 24,960 coins of .3: a share beyond .3 +- .015 has probability below 3e-7.
    sequence = random_digraph(40, 0.3, seed=5)
    share = sum(len(graph.links) for graph in sequence.graphs) / (16 * 40 * 39)
    assert abs(share - 0.3) < 0.015


def test_only_graphs_that_take_turns_have_a_window():
    assert joined_within(ring(5)) is None
    alone = GraphSequence(name="alone", graphs=(ring(5),))
    assert joined_within(alone) is None
    there = Graph(name="there", weights=np.array([[0.5, 0.0], [0.5, 1.0]]), connected=False)
    back = Graph(name="back", weights=np.array([[1.0, 0.5], [0.0, 0.5]]), connected=False)
    assert joined_within(GraphSequence(name="to and fro", graphs=(there, back))) == 2
    assert joined_within(GraphSequence(name="waits", graphs=(there, there, back))) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"edge_probability": 0.0}, "fall into 5 pieces .* raise edge_probability"),
        ({"edge_probability": 1.5}, r"edge_probability=1.5 must lie in \[0, 1\]"),
        ({"edge_probability": 0.5, "graphs": 0}, "graphs=0 must be at least 1"),
        ({"edge_probability": 0.5, "weights": "uniform"}, "weights='uniform' cannot apply"),
        ({"edge_probability": 0.5, "graphs": 10**8}, "agents=5 is too many"),
    ],
)
def test_a_wrong_request_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build_graph("random-digraph", 5, **options)
