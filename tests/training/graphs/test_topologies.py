"""Facts about the topologies that have names."""

import itertools
import json

import networkx as nx
import numpy as np
import pytest

from overhear.training.graphs import topologies
from overhear.training.graphs.graph import (
    Graph,
    GraphSequence,
    joined_within,
    random_digraph,
    strong_window,
)
from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.topologies import bipartite, full, grid, ring, star

OPTIONS = {
    "erdos-renyi": {"edge_probability": 0.5, "seed": 3},
    "random-digraph": {"edge_probability": 0.5, "seed": 3},
}
BUILT = [name for name in topologies.GRAPH_NAMES if name != "file"]
TWO_WAY = [n for n in BUILT if not n.startswith(("directed-", "random-")) and n != "server"]


def _build(name: str, agents: int) -> Graph:
    return topologies.build_graph(name, agents, **OPTIONS.get(name, {})).at(2)


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
    one = topologies.erdos_renyi(20, 0.4, seed=5)
    assert np.array_equal(one.weights, topologies.erdos_renyi(20, 0.4, seed=5).weights)
    assert not np.array_equal(one.weights, topologies.erdos_renyi(20, 0.4, seed=6).weights)
    assert np.array_equal(topologies.erdos_renyi(6, 1.0).weights, full(6).weights)


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
        topologies.erdos_renyi(20, 0.01)


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
        topologies.build_graph(name, agents, **options)


def test_a_thousand_agents_are_built_at_once():
    assert full(1000).receivers.size == 1_000_000


def test_a_directed_ring_passes_half_of_everything_one_place_on():
    graph = topologies.directed_ring(6)
    assert graph.links == ((5, 0), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5))
    assert (graph.edge_weights == 0.5).all()
    assert graph.sums is Sums.BOTH
    assert not graph.symmetric


@pytest.mark.parametrize(("agents", "period"), [(2, 1), (3, 2), (4, 2), (5, 3), (9, 4), (20, 5)])
def test_the_directed_exponential_graph_follows_its_formula(agents, period):
    graph = topologies.directed_exponential(agents)
    assert len(graph.graphs) == period
    for k in range(3 * period):
        hop = 2 ** (k % (int(np.floor(np.log2(agents - 1))) + 1))
        now = graph.at(k + 1)
        assert set(now.links) == {(i, (i + hop) % agents) for i in range(agents)}
        assert (now.edge_weights == 0.5).all()


@pytest.mark.parametrize("agents", [2, 4, 8, 32])
def test_one_period_of_the_directed_exponential_graph_is_the_mean_of_a_power_of_two(agents):
    product = np.eye(agents)
    for graph in topologies.directed_exponential(agents).graphs:
        product = graph.weights @ product
    assert np.allclose(product, 1 / agents, rtol=0, atol=1e-15)


@pytest.mark.parametrize("agents", [3, 6, 20, 33])
def test_after_one_period_everybody_has_heard_of_everybody(agents):
    product = np.eye(agents)
    for graph in topologies.directed_exponential(agents).graphs:
        product = graph.weights @ product
    assert product.min() > 0
    assert np.allclose(product.sum(axis=0), 1, rtol=0, atol=1e-14)
    assert np.allclose(product.sum(axis=1), 1, rtol=0, atol=1e-14)


def test_a_period_of_twenty_agents_is_one_to_sixteen_places():
    hops = [graph.links[0] for graph in topologies.directed_exponential(20).graphs]
    assert [(0 - sender) % 20 for sender, _ in hops] == list(itertools.accumulate([1, 1, 2, 4, 8]))


@pytest.mark.parametrize("name", ["ring", "full", "star", "grid", "bipartite", "directed-ring"])
def test_more_agents_than_weights_are_made_for_are_refused_before_any_is_made(name):
    with pytest.raises(ValueError, match=r"agents=10001 is too many for .*; at most 10000 can be"):
        topologies.build_graph(name, 10_001)


def test_a_graph_that_changes_has_room_for_all_of_its_matrices():
    with pytest.raises(ValueError, match=r"agents=3000 is too many for .*; at most 2886 can be"):
        topologies.build_graph("directed-exponential", 3000)


def test_more_links_than_can_be_followed_are_refused(monkeypatch):
    monkeypatch.setattr("overhear.training.graphs.mixing._MOST_LINKS", 11)
    with pytest.raises(ValueError, match="agents=4 has 12 links, and at most 11 can be"):
        topologies.build_graph("full", 4)
    topologies.build_graph("ring", 3)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_a_drawn_graph_is_that_of_networkx(probability):
    drawn = nx.gnp_random_graph(20, probability, seed=1)
    weights = (
        topologies.build_graph("erdos-renyi", 20, edge_probability=probability, seed=1)
        .at(1)
        .weights
    )
    links = weights != 0
    np.fill_diagonal(links, val=False)
    assert np.array_equal(links, nx.to_numpy_array(drawn, dtype=bool))


# Random directed graphs that change: their weights, and how many rounds join everybody.


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
    sequence = topologies.directed_exponential(agents)
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
        topologies.build_graph("random-digraph", 5, **options)


# Facts about graphs that come from files.


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".npy", ".json"])
def test_a_written_matrix_is_read_back(tmp_path, suffix):
    weights = ring(5).weights
    path = tmp_path / f"w{suffix}"
    if suffix == ".npy":
        np.save(path, weights)
    elif suffix == ".json":
        path.write_text(json.dumps({"weights": weights.tolist()}))
    else:
        np.savetxt(path, weights, fmt="%.17g", delimiter="," if suffix == ".csv" else " ")
    assert np.array_equal(topologies.build_graph("file", 5, path=path).weights, weights)


def test_a_list_of_links_gets_metropolis_weights(tmp_path):
    path = tmp_path / "ring.json"
    path.write_text('{"agents": 4, "edges": [[0, 1], [1, 2], [2, 3], [3, 0]]}')
    assert np.array_equal(topologies.build_graph("file", 4, path=path).weights, ring(4).weights)
    uniform = topologies.build_graph("file", 4, path=path, weights="uniform")
    assert np.array_equal(uniform.weights, ring(4).weights)


def test_arcs_go_one_way_and_split_what_their_sender_has_evenly(tmp_path):
    path = tmp_path / "arcs.json"
    path.write_text('{"agents": 3, "arcs": [[0, 1], [0, 2], [1, 2], [2, 0], [0, 0], [0, 1]]}')
    graph = topologies.build_graph("file", 3, path=path)
    thirds, halves = [1 / 3] * 3, [0.0, 0.5, 0.5]
    assert graph.weights.T.tolist() == [thirds, halves, [0.5, 0.0, 0.5]]  # a row is a sender
    assert graph.sums is Sums.COLUMNS
    assert graph.links == ((2, 0), (0, 1), (0, 2), (1, 2))
    with pytest.raises(ValueError, match="weights='uniform' cannot apply"):
        topologies.build_graph("file", 3, path=path, weights="uniform")


def test_self_loops_and_repeated_links_change_nothing(tmp_path):
    path = tmp_path / "pair.json"
    path.write_text('{"agents": 2, "edges": [[0, 1], [1, 0], [1, 1]]}')
    assert np.array_equal(topologies.build_graph("file", 2, path=path).weights, ring(2).weights)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("w.csv", "0.5,0.5\n", r"shape \(1, 2\), must be square"),
        ("w.csv", "0.5,0.5\n0.5,half\n", "cannot read a graph from .*w.csv"),
        ("w.csv", "# nothing\n", "it holds no numbers"),
        ("w.csv", "0.5,0.3\n0.5,0.6\n", "row 0 of the weights of 'file' sums to 0.8"),
        ("w.xls", "", "suffix '.xls' must be .csv, .txt, .npy or .json"),
        ("w.npy", "", "cannot read a graph"),
        ("w.json", "{", "cannot read a graph"),
        ("w.json", "[1]", '"agents" and "edges", or "agents" and "arcs", or "weights" alone'),
        ("w.json", '{"agents": 2, "edges": [], "weights": []}', "alone"),
        ("w.json", '{"agents": 0, "edges": []}', '"agents"=0 must be a whole number'),
        ("w.json", '{"agents": 2, "edges": [[0, 2]]}', "between 0 and 1; agents count from 0"),
        ("w.json", '{"agents": 2, "edges": [[0, -1]]}', "between 0 and 1"),
        ("w.json", '{"agents": 2, "edges": [7]}', "edge 7 must name two agents"),
        ("w.json", '{"agents": 2, "arcs": [[0, 2]]}', r"arc \[0, 2\] must name two agents"),
        ("w.json", '{"agents": 2, "arcs": [[0, 1]]}', "do not hear each other both ways"),
        ("w.json", '{"agents": 2, "edges": [], "arcs": []}', "the keys must be"),
        ("w.json", '{"agents": 2, "edges": []}', r"falls into 2 pieces \(\{0\}, \{1\}\)"),
    ],
)
def test_a_file_that_is_no_graph_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        topologies.build_graph("file", 2, path=tmp_path / name)


def test_pickled_arrays_are_not_loaded(tmp_path):
    np.save(tmp_path / "w.npy", np.array([[1, "x"]], dtype=object))
    with pytest.raises(ValueError, match="of type 'object', must be of real numbers"):
        topologies.build_graph("file", 2, path=tmp_path / "w.npy")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no graph file at .*w\.csv"):
        topologies.build_graph("file", 2, path=tmp_path / "w.csv")


def test_another_number_of_agents_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", ring(3).weights)
    with pytest.raises(ValueError, match=r"agents=4 but .* describes 3; set agents=3"):
        topologies.build_graph("file", 4, path=tmp_path / "w.npy")


def test_uniform_weights_do_not_override_a_matrix(tmp_path):
    np.save(tmp_path / "w.npy", ring(3).weights)
    with pytest.raises(ValueError, match="brings its own weights"):
        topologies.build_graph("file", 3, path=tmp_path / "w.npy", weights="uniform")
