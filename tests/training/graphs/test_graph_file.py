"""Facts about graphs that come from files."""

import json

import numpy as np
import pytest

from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.topologies import build_graph, ring


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
    assert np.array_equal(build_graph("file", 5, path=path).weights, weights)


def test_a_list_of_links_gets_metropolis_weights(tmp_path):
    path = tmp_path / "ring.json"
    path.write_text('{"agents": 4, "edges": [[0, 1], [1, 2], [2, 3], [3, 0]]}')
    assert np.array_equal(build_graph("file", 4, path=path).weights, ring(4).weights)
    uniform = build_graph("file", 4, path=path, weights="uniform")
    assert np.array_equal(uniform.weights, ring(4).weights)


def test_arcs_go_one_way_and_split_what_their_sender_has_evenly(tmp_path):
    path = tmp_path / "arcs.json"
    path.write_text('{"agents": 3, "arcs": [[0, 1], [0, 2], [1, 2], [2, 0], [0, 0], [0, 1]]}')
    graph = build_graph("file", 3, path=path)
    thirds, halves = [1 / 3] * 3, [0.0, 0.5, 0.5]
    assert graph.weights.T.tolist() == [thirds, halves, [0.5, 0.0, 0.5]]  # a row is a sender
    assert graph.sums is Sums.COLUMNS
    assert graph.links == ((2, 0), (0, 1), (0, 2), (1, 2))
    with pytest.raises(ValueError, match="weights='uniform' cannot apply"):
        build_graph("file", 3, path=path, weights="uniform")


def test_self_loops_and_repeated_links_change_nothing(tmp_path):
    path = tmp_path / "pair.json"
    path.write_text('{"agents": 2, "edges": [[0, 1], [1, 0], [1, 1]]}')
    assert np.array_equal(build_graph("file", 2, path=path).weights, ring(2).weights)


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
        build_graph("file", 2, path=tmp_path / name)


def test_pickled_arrays_are_not_loaded(tmp_path):
    np.save(tmp_path / "w.npy", np.array([[1, "x"]], dtype=object))
    with pytest.raises(ValueError, match="of type 'object', must be of real numbers"):
        build_graph("file", 2, path=tmp_path / "w.npy")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no graph file at .*w\.csv"):
        build_graph("file", 2, path=tmp_path / "w.csv")


def test_another_number_of_agents_is_refused(tmp_path):
    np.save(tmp_path / "w.npy", ring(3).weights)
    with pytest.raises(ValueError, match=r"agents=4 but .* describes 3; set agents=3"):
        build_graph("file", 4, path=tmp_path / "w.npy")


def test_uniform_weights_do_not_override_a_matrix(tmp_path):
    np.save(tmp_path / "w.npy", ring(3).weights)
    with pytest.raises(ValueError, match="brings its own weights"):
        build_graph("file", 3, path=tmp_path / "w.npy", weights="uniform")
