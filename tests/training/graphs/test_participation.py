"""Lists of who takes part, and the graphs that follow from them."""

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.training.graphs.graph import Graph, ScheduledGraph
from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.participation import (
    check_active,
    drawn_list,
    participation_words,
    read_active_file,
    scheduled,
)
from overhear.training.graphs.topologies import build_graph


def test_a_list_is_the_same_for_whoever_draws_it_again_and_for_fewer_rounds():
    long = drawn_list(7, 50, probability=0.3, seed=9)
    assert np.array_equal(long[:20], drawn_list(7, 20, probability=0.3, seed=9))
    assert not np.array_equal(long, drawn_list(7, 50, probability=0.3, seed=10))
    some = drawn_list(7, 50, agents_per_round=3, seed=9)
    assert np.array_equal(some[:20], drawn_list(7, 20, agents_per_round=3, seed=9))
    assert set(some.sum(axis=1)) == {3}


@pytest.mark.parametrize("how", [{"probability": 0.3}, {"agents_per_round": 3}])
def test_every_agent_takes_part_as_often_as_the_probability_says(how):
    # n = 10 agents of 4000 rounds each; false alarms below 1e-8 by the union of normal tails.
    found = drawn_list(10, 4000, seed=1, **how).mean(axis=0)
    assert np.abs(found - 0.3).max() < 6.5 * np.sqrt(0.3 * 0.7 / 4000)


@pytest.mark.parametrize("name", ["ring", "star", "full", "erdos-renyi", "grid"])
def test_weights_of_those_that_take_part_keep_both_sums(name):
    options = {"edge_probability": 0.6} if name == "erdos-renyi" else {}
    base = build_graph(name, 9, **options)
    active = drawn_list(9, 30, probability=0.5, seed=3)
    found = scheduled(base, active, told="public list")
    assert found.sums is Sums.BOTH
    for graph, row in zip(found.graphs, active, strict=True):
        W = graph.weights
        assert np.allclose(W.sum(0), 1)
        assert np.allclose(W.sum(1), 1)
        assert np.array_equal(W[~row], np.eye(9)[~row])
        off = ~np.eye(9, dtype=bool)
        kept = np.outer(row, row) & off
        assert np.array_equal(W[kept], base.weights[kept])
        assert not W[off & ~kept].any()


def test_on_arcs_columns_keep_their_sum_as_push_sum_needs_it():
    found = scheduled(
        build_graph("directed-exponential", 8),
        drawn_list(8, 12, probability=0.6, seed=2),
        told="public list",
    )
    assert found.sums.serve(Sums.COLUMNS)
    assert all(np.allclose(graph.weights.sum(0), 1) for graph in found.graphs)
    assert not found.sums.serve(Sums.BOTH)


def test_equal_patterns_are_one_graph_and_everybody_is_the_graph_itself():
    base = build_graph("ring", 4)
    active = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 0, 1, 1]], dtype=bool)
    found = scheduled(base, active, told="public list, seed 4")
    assert found.at(0) is found.at(1) is base
    assert found.at(2) is found.at(3)
    assert np.array_equal(found.active, active)
    assert participation_words(found) == "1 to 3 of 3 rounds (public list, seed 4)"
    assert participation_words(scheduled(base, active[:1], told="a list")) == "every round (a list)"
    assert participation_words(base) is None
    with pytest.raises(InputError, match="beyond the list"):
        found.at(4)


def test_files_hold_the_list(tmp_path):
    csv, json = tmp_path / "who.csv", tmp_path / "who.json"
    csv.write_text("# agents 0 to 2\n1,0,1\n\n0,0,0\n")
    json.write_text('{"active": [[0, 2], []]}')
    wanted = [[True, False, True], [False, False, False]]
    assert read_active_file(csv, agents=3).tolist() == wanted
    assert read_active_file(json, agents=3).tolist() == wanted


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("who.csv", "1,0\n", "round 1 reads '1,0'"),
        ("who.csv", "1,0,2\n", "1 for an agent that takes part"),
        ("who.csv", "1,0,0.5\n", "1 for an agent that takes part"),
        ("who.txt", "1,0,1\n", "suffix"),
        ("who.json", "[[1]]", '"active" alone'),
        ("who.json", '{"active": [[3]]}', "between 0 and 2"),
        ("who.json", '{"active": [[0, 0]]}', "each once"),
        ("who.json", '{"active": [[true]]}', "between 0 and 2"),
        ("who.json", '{"active": 4}', "a list of rounds"),
        ("who.json", "{", "cannot read who takes part"),
        ("who.json", "[" * 100_000, "cannot read who takes part"),
    ],
)
def test_files_that_are_no_list_are_refused(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_active_file(path, agents=3)


@pytest.mark.parametrize(
    "active",
    [[[1, 0]], [[1, 0, 2]], [[1, 0, np.nan]], "110", None, [[1], [0, 1]], [["1", "0", "1"]]],
)
def test_tables_that_are_no_list_are_refused(active):
    with pytest.raises(InputError, match="list of who takes part"):
        check_active(active, agents=3, rounds=1)


@pytest.mark.parametrize(
    "how",
    [{}, {"probability": 0.0}, {"probability": 1.5}, {"agents_per_round": 0},
     {"agents_per_round": 4}, {"probability": 0.5, "agents_per_round": 1}],
)  # fmt: skip
def test_numbers_that_draw_no_list_are_refused(how):
    with pytest.raises(InputError):
        drawn_list(3, 5, **how)


def test_lists_that_are_too_large_are_refused_at_once():
    with pytest.raises(InputError, match="lower rounds or agents"):
        drawn_list(10_000, 10_000_000, probability=0.5)
    with pytest.raises(InputError, match="different sets of agents"):
        scheduled(
            build_graph("ring", 2000), drawn_list(2000, 60, probability=0.5), told="public list"
        )


def test_an_absent_agent_has_no_link():
    with pytest.raises(InputError, match="absent and has links"):
        Graph(name="pair", weights=np.full((2, 2), 0.5), absent=frozenset({0}))
    with pytest.raises(InputError, match="must lie in"):
        Graph(name="pair", weights=np.full((2, 2), 0.5), absent=frozenset({2}))
    base = scheduled(build_graph("ring", 3), np.ones((1, 3), dtype=bool), told="a list")
    with pytest.raises(InputError, match="already"):
        scheduled(base, np.ones((1, 3), dtype=bool), told="another")
    assert isinstance(base, ScheduledGraph)
