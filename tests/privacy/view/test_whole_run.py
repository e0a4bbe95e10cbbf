"""A whole run, round after round, against the matrix of all rounds at once."""

import math

import numpy as np
import pytest

from overhear.privacy import UnsupportedView, View
from overhear.privacy.view.whole_run import Rows, StreamedView

NONE = np.zeros((1, 0))


def recursion(rounds: int, *, keep: float) -> StreamedView:
    """A record's two gradients a round enter a recursion that is released under fresh noise."""
    view = StreamedView()
    for t in range(rounds):
        kept = NONE if t == 0 else np.array([[keep]])
        used = np.array([[1.0, -keep]])
        view.advance(Rows(kept, used, np.eye(1)), Rows(kept, used, np.zeros((1, 1))), owners=[0, 0])
    return view


@pytest.mark.parametrize(
    ("rounds", "expected"), [(1, 1.99), (2, 2.80025), (5, 4.36211), (20, 8.11632)]
)
def test_a_noise_free_recursion_shows_its_first_batch_in_every_later_round(rounds, expected):
    assert recursion(rounds, keep=0.99).mu(0, [0, 1]) == pytest.approx(expected, abs=1e-5)


def test_noise_inside_the_recursion_costs_one_release():
    view = StreamedView()
    for t in range(5):
        kept = NONE if t == 0 else np.array([[0.99]])
        row = Rows(kept, np.eye(1), np.eye(1))
        view.advance(row, row, owners=[0])
    assert view.mu(0, [0]) == pytest.approx(1.0, abs=1e-12)
    assert view.mu(0) == pytest.approx(math.sqrt(5), abs=1e-12)


def test_noise_that_is_taken_out_again_in_the_next_round_hides_nothing_then():
    view = StreamedView()
    view.advance(
        Rows(NONE, np.eye(1), np.eye(1)), Rows(NONE, np.zeros((1, 1)), np.eye(1)), owners=[0]
    )
    assert view.mu(0) == pytest.approx(1.0)
    view.advance(
        Rows(np.eye(1), NONE, NONE), Rows(np.eye(1), NONE, NONE), owners=[],
        messages=["noise of the round before"],
    )  # fmt: skip
    assert math.isinf(view.mu(0))
    assert view.leaks(0) == ("noise of the round before in round 1",)


def _random_rows(rng, *, rows, widths):
    def matrix(width):
        values = np.round(rng.normal(size=(rows, width)), 1)
        return values * (rng.random((rows, width)) < 0.7)

    return Rows(*(matrix(width) for width in widths))


@pytest.mark.parametrize("seed", range(25))
def test_streaming_agrees_with_the_matrix_of_all_rounds(seed):
    rng = np.random.default_rng(seed)
    states, rounds = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    view, width = StreamedView(), {"g": 0, "z": 0}
    carried_a, carried_b = np.zeros((0, 0)), np.zeros((0, 0))
    shown_a, shown_b = [], []

    def expanded(rows):
        a = np.hstack([rows.carried @ carried_a, rows.contributions])
        b = np.hstack([rows.carried @ carried_b, rows.noise])
        return a, b

    for _ in range(rounds):
        widths = (len(carried_a), int(rng.integers(0, 3)), int(rng.integers(0, 4)))
        seen = _random_rows(rng, rows=int(rng.integers(1, 4)), widths=widths)
        carried = _random_rows(rng, rows=states, widths=widths)
        view.advance(seen, carried, owners=[0] * widths[1])
        a, b = expanded(seen)
        shown_a.append(a)
        shown_b.append(b)
        carried_a, carried_b = expanded(carried)
        width = {"g": carried_a.shape[1], "z": carried_b.shape[1]}

    def stacked(parts, columns):
        return np.vstack([np.pad(p, ((0, 0), (0, columns - p.shape[1]))) for p in parts])

    whole = View(contributions=stacked(shown_a, width["g"]), noise=stacked(shown_b, width["z"]))
    every = [[c] for c in range(width["g"])] + [list(range(width["g"]))]
    for columns in every:
        assert view.mu(0, columns) == pytest.approx(whole.mu(columns), rel=1e-9)


def test_another_owners_records_do_not_matter():
    view = StreamedView()
    both = Rows(NONE, np.array([[1.0, 5.0]]), np.eye(1))
    view.advance(both, both, owners=[0, 1])
    assert view.mu(0) == pytest.approx(1.0)
    assert view.mu(1) == pytest.approx(5.0)
    assert view.mu(2) == 0.0
    assert view.rounds(1).tolist() == [0.0]


def test_an_old_record_fades_by_the_power_law_and_is_never_rounded_away():
    view = StreamedView()
    for t in range(60):
        kept = NONE if t == 0 else np.array([[0.5]])
        used = np.eye(1) if t == 0 else NONE
        noise = np.array([[2.0**-t]])  # as loud as what is left of the record
        view.advance(
            Rows(kept, used, noise), Rows(kept, used, np.zeros((1, 1))), owners=[0] * (t == 0)
        )
    assert view.mu(0) ** 2 == pytest.approx(60.0, rel=1e-9)


def test_rounds_that_hide_whether_noise_cancels_are_refused():
    view = StreamedView()
    rows = np.array([[1.0], [1.0 + 2e-13]])
    view.advance(
        Rows(np.zeros((2, 0)), rows, np.ones((2, 1))),
        Rows(NONE, np.zeros((1, 1)), np.zeros((1, 1))),
        owners=[0],
    )
    with pytest.raises(UnsupportedView, match="rounding"):
        view.mu(0)


def test_an_unbounded_contribution_is_infinite_only_where_it_is_seen():
    view = StreamedView()
    rows = Rows(NONE, np.array([[1.0, 0.0]]), np.eye(1))
    view.advance(rows, rows, owners=[0, 0])
    assert math.isinf(view.mu(0, bounds=[math.inf, 1.0]))
    assert view.mu(0, bounds=[1.0, math.inf]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("seen", "carried", "named"),
    [
        (Rows(np.ones((1, 2)), NONE, NONE), Rows(NONE, NONE, NONE), "carried on"),
        (Rows(NONE, np.eye(1), NONE), Rows(NONE, NONE, NONE), "one owner"),
        (Rows(NONE, NONE, np.eye(1)), Rows(NONE, NONE, NONE), "same noise sources"),
        (Rows(NONE, NONE, np.array([[np.nan]])), Rows(NONE, NONE, np.eye(1)), "not finite"),
    ],
    ids=["carried", "owners", "sources", "values"],
)
def test_shapes_and_values_are_checked(seen, carried, named):
    with pytest.raises(ValueError, match=named):
        StreamedView().advance(seen, carried, owners=[])


def test_parts_of_one_vector_cost_the_dearest_of_them():
    rows = np.array([[1.0, 0.0], [0.0, 2.0]])
    none = np.zeros((1, 0))
    carried = Rows(none, np.zeros((1, 2)), np.zeros((1, 2)))
    apart, together = StreamedView(), StreamedView()
    seen = Rows(np.zeros((2, 0)), rows, np.eye(2))
    apart.advance(seen, carried, owners=[0, 0])
    together.advance(seen, carried, owners=[0, 0], vectors=[3, 3])
    assert apart.mu(0) == pytest.approx(math.sqrt(5.0))
    assert together.mu(0) == pytest.approx(2.0)


def two_messages_that_differ_by(weak):
    view = StreamedView()
    view.advance(
        Rows(np.zeros((2, 0)), np.zeros((2, 0)), np.array([[1.0, weak], [1.0, 0.0]])),
        Rows(NONE, NONE, np.array([[0.0, 1.0]])),
        owners=[],
    )
    nothing = np.zeros((1, 1))
    view.advance(Rows(np.eye(1), np.eye(1), NONE), Rows(np.eye(1), nothing, NONE), owners=[0])
    return view


def test_a_weak_source_of_an_earlier_round_still_uncovers_a_later_message():
    assert math.isinf(two_messages_that_differ_by(1e-11).mu(0))


def test_a_source_shown_too_weakly_to_be_followed_is_refused():
    with pytest.raises(UnsupportedView, match="a few digits"):
        two_messages_that_differ_by(1e-13)
