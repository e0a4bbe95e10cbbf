"""Facts about graphs, for all rounds or changing from round to round."""

import numpy as np
import pytest

from overhear.training.graphs.graph import Graph, GraphSequence
from overhear.training.graphs.mixing import Sums
from overhear.training.graphs.topologies import directed_exponential, directed_ring, full, ring


def cycle(agents: int, *, step: int = 1, connected: bool = True) -> Graph:
    keep = 0.5 * np.eye(agents)
    return Graph(
        name=f"cycle {step}", weights=keep + np.roll(keep, step, axis=0), connected=connected
    )


def test_a_directed_cycle_is_accepted_and_not_symmetric():
    weights = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)
    graph = Graph(name="cycle", weights=weights)
    assert not graph.symmetric
    assert graph.neighbours(0) == (0, 1)
    assert graph.receivers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert graph.senders.tolist() == [0, 1, 1, 2, 2, 3, 0, 3]


def test_a_read_only_view_of_weights_that_may_change_is_copied():
    seen = (given := np.full((2, 2), 0.5))[:]
    seen.setflags(write=False)
    graph = Graph(name="pair", weights=seen)
    given[0] = (0.9, 0.1)
    assert graph.weights[0].tolist() == [0.5, 0.5]


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
        (
            [[0.4, 0.5], [0.4, 0.5]],
            r"row 0 of the weights of 'g' sums to 0.9, must be 1 .* push-sum",
        ),
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


@pytest.mark.parametrize("agent", [-1, 4])
def test_there_is_no_agent_outside_the_graph(agent):
    with pytest.raises(ValueError, match=r"must lie in \[0, 3\]"):
        ring(4).neighbours(agent)
    with pytest.raises(ValueError, match="agents count from 0"):
        ring(4).degree(agent)


def test_a_graph_answers_for_every_round_with_itself():
    graph = ring(5)
    assert graph.at(0) is graph.at(7) is graph
    assert graph.graphs == (graph,)


def test_links_leave_the_self_loops_out_and_name_the_sender_first():
    assert directed_ring(3).links == ((2, 0), (0, 1), (1, 2))


def test_a_sequence_takes_its_graphs_in_turn_and_starts_with_the_first():
    graphs = [cycle(4), cycle(4, step=3)]
    sequence = GraphSequence(name="to and fro", graphs=graphs)
    assert [sequence.at(number) for number in range(6)] == [graphs[0], *graphs, *graphs, graphs[0]]
    assert sequence.agents == 4
    assert sequence.neighbours(0) == (0, 1, 3)
    assert sequence.sums is Sums.BOTH
    assert not sequence.symmetric
    with pytest.raises(ValueError, match="round=-1 must be at least 0"):
        sequence.at(-1)


def test_the_links_of_a_sequence_are_those_of_all_its_graphs():
    sequence = directed_exponential(5)  # 1, 2, 4 places on: everybody but oneself within 5
    reached = {(j, (j + s) % 5) for j in range(5) for s in (1, 2, 4)}
    assert set(sequence.links) == reached
    assert set(full(5).links) > reached


COLUMNS = Graph(name="columns", weights=np.array([[0.5, 0.3], [0.5, 0.7]]))
ROWS = Graph(name="rows", weights=np.array([[0.5, 0.5], [0.3, 0.7]]))


def test_a_sequence_has_the_sums_that_all_its_graphs_have():
    mixed = GraphSequence(name="mixed", graphs=(COLUMNS, full(2)))
    assert mixed.sums is Sums.COLUMNS
    with pytest.raises(ValueError, match="in some only rows sum to 1, in others only columns"):
        GraphSequence(name="both kinds", graphs=(COLUMNS, ROWS))


def test_what_is_no_sequence_is_refused_by_name():
    with pytest.raises(ValueError, match="graphs of 'none' is empty"):
        GraphSequence(name="none", graphs=())
    with pytest.raises(ValueError, match=r"have \[3, 4\] agents, must be equally many"):
        GraphSequence(name="uneven", graphs=(ring(3), ring(4)))
    two_steps = cycle(4, step=2, connected=False)
    with pytest.raises(ValueError, match=r"together fall into 2 pieces \(\{0, 2\}, \{1, 3\}\)"):
        GraphSequence(name="even", graphs=(two_steps, two_steps))
    with pytest.raises(ValueError, match="falls into 2 pieces"):
        cycle(4, step=2)
