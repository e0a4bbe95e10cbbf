"""What the four rows of an attack say."""

from dataclasses import replace

import pytest
import torch

from overhear.attacks.interception.replay import Protection
from overhear.attacks.scoring.columns import column_gains
from overhear.attacks.scoring.conclusion import conclusion
from overhear.attacks.scoring.evaluation import BLIND, Row
from overhear.attacks.scoring.metrics import Scores
from overhear.training.data.load import TableColumn


def _rows(blind, undefended, defended):
    def row(name, mse):
        n = len(mse)
        scores = Scores(mse=mse, psnr=(1.0,) * n, ssim=(0.0,) * n, order=tuple(range(n)))
        return Row(name=name, scores=scores, images=torch.zeros(n, 1, 2, 2), stages=("",) * n)

    return [
        row(BLIND, blind),
        row(Protection.NONE, undefended),
        row(Protection.CLIPPING, undefended),
        row(Protection.DEFENDED, defended),
    ]


@pytest.mark.parametrize("rebuilt", [1, 2])
def test_one_image_that_is_rebuilt_is_a_leak_whatever_the_others_say(rebuilt):
    blind = (0.06,) * 4
    mixed = (1e-10,) * rebuilt + (0.07,) * (4 - rebuilt)
    said = conclusion(_rows(blind, mixed, mixed), threshold=0.015, guessed=0.05)
    assert said.startswith(f"A leak is shown: with the defence on, {rebuilt} of 4 images")


def test_hits_that_guessing_explains_are_no_leak():
    blind = (0.06,) * 4
    near = (0.014, 0.06, 0.06, 0.06)
    assert conclusion(_rows(blind, near, near), threshold=0.015, guessed=0.3).startswith("No leak")
    assert conclusion(_rows(blind, near, near), threshold=0.015, guessed=0.01).startswith("A leak")


def test_an_image_that_the_blind_guess_gets_as_well_is_no_hit():
    blind = (0.01, 0.06, 0.06, 0.06)
    assert conclusion(_rows(blind, (0.001,) * 4, blind), threshold=0.015).startswith("No leak")


def test_an_attack_that_fails_undefended_says_nothing_about_the_defence():
    assert "says nothing about the defence" in conclusion(_rows((0.1,), (0.2,), (0.2,)))
    assert conclusion(_rows((0.1,), (0.001,), (0.1,))).startswith("No leak shown")
    assert "one image" in conclusion(_rows((0.1,), (0.001,), (0.05,)))


def test_a_gain_within_the_spread_of_the_images_is_no_leak_shown():
    def say(defended):
        return conclusion(_rows((0.1,) * 4, (0.001,) * 4, defended))

    assert "beyond chance" in say((0.05, 0.13, 0.12, 0.09))
    assert say((0.05, 0.06, 0.05, 0.04)).startswith("A leak is shown")


def test_one_image_nearer_than_public_records_are_is_a_leak():
    rows = _rows((0.06,), (1e-9,), (0.000645,))
    said = conclusion(rows, threshold=0.0005, guessed=1.0, near=0.01)
    assert said.startswith("A leak is shown: with the defence on, 1 of 1 images are nearer")
    two = _rows((0.06, 0.06), (1e-9, 1e-9), (0.000645, 0.06))
    assert "beyond chance" in conclusion(two)
    assert conclusion(two, near=0.01).startswith("A leak is shown")


def test_chance_gains_over_two_images_are_called_a_leak_in_one_of_twenty():
    # 4,000 pairs of normal gains without a mean: 5 % are expected; the limits fail with 1e-6.
    gains = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)).double() * 0.01
    called = sum(
        conclusion(_rows((0.1, 0.1), (0.001, 0.001), tuple((0.1 - pair).tolist()))).startswith(
            "A leak"
        )
        for pair in gains
    )
    assert 133 < called < 272


def test_labels_and_first_places_beyond_guessing_are_leaks():
    rows = _rows((0.1,) * 8, (0.001,) * 8, (0.1,) * 8)
    last = replace(rows[-1], right_labels=6)
    said = conclusion([*rows[:-1], last], guessed_label=0.1)
    assert said.startswith("A leak is shown: with the defence on, the labels of 6 of 8 records")
    last = replace(rows[-1], right_labels=1, lineups={100: (1, 1, 2, 50, 3, 9, 20, 4)})
    assert "2 of 8 records rank first among 100" in conclusion(
        [*rows[:-1], last], guessed_label=0.1
    )
    last = replace(rows[-1], right_labels=2, lineups={100: (7,) * 8})
    assert conclusion([*rows[:-1], last], guessed_label=0.1).startswith("No leak")


def test_the_power_of_the_fallback_stands_beside_the_verdict():
    rows = _rows((0.1,) * 2, (0.001,) * 2, (0.1,) * 2)
    said = conclusion([*rows[:-1], replace(rows[-1], power=(0.04, 0.08))])
    assert said.endswith("would keep the true one with probability 0.06.")


def test_why_algebra_gave_up_is_told_once_where_a_picture_fell_back_for_it():
    rows = _rows((0.1,), (0.1,), (0.1,))
    assert "algebra" not in conclusion(rows)
    told = [replace(row, unsolved="units are saturated" * (row is not rows[0])) for row in rows]
    said = conclusion(told)
    assert said.count("algebra gave up: units are saturated.") == 1
    assert "In the row of no defence algebra" in said


def _table_of(age, *, kind="number"):
    """Twelve records of three columns, of which the defended row reads the first one so well."""
    made = torch.Generator().manual_seed(0)
    columns = [
        TableColumn(name="age", kind=kind, start=0, levels=("0", "1")),
        TableColumn(name="paid", kind="number", start=1),
        TableColumn(name="alike", kind="number", start=2),
    ]
    truth = torch.rand(12, 3, generator=made).round(decimals=2 if kind == "number" else 0)
    truth[:, 2] = 0.3
    usual = torch.tensor([1.0 if kind == "binary" else 0.5, 0.5, 0.3]).expand(12, 3)
    found = torch.rand(12, 3, generator=made)
    found[:, 0] = truth[:, 0] + age * (usual[:, 0] - truth[:, 0])
    found[:, 2] = 0.3 + 1e-6  # rounding is no gain
    return column_gains(columns, truth, found, usual=usual)


def test_a_column_that_is_read_is_a_leak_though_the_whole_record_is_farther_than_the_guess():
    gains = _table_of(0.5)
    assert [(one.nearer, one.farther) for one in gains[::2]] == [(11, 0), (0, 0)]  # .5 is usual
    rows = _rows((0.1,) * 12, (0.001,) * 12, (0.2,) * 12)
    said = conclusion(rows, table=True, gains=gains)
    assert said.startswith("A leak is shown: with the defence on, column 'age' is nearer")
    said = conclusion(rows, table=True, gains=_table_of(1.0))
    assert said.endswith("no better than the blind guess, in the mean over columns.")


def test_a_binary_column_counts_where_it_differs_from_the_usual_value():
    first = _table_of(0.0, kind="binary")[0]
    assert 0 < first.nearer < 12
    assert first.farther == 0


def test_guesses_that_know_nothing_of_the_record_are_no_leak():
    # n = 500 tests of a median against guesses around it; at 1 % at most 13 with probability .999.
    made = torch.Generator().manual_seed(1)
    column = [TableColumn(name="age", kind="number", start=0)]
    usual, false = torch.full((20, 1), 0.5), 0
    for _ in range(500):
        truth = torch.rand(20, 1, generator=made)
        found = 0.5 + 0.1 * torch.randn(1, generator=made) * torch.rand(20, 1, generator=made)
        false += column_gains(column, truth, found, usual=usual)[0].p < 0.01
    assert false <= 13


def test_an_attack_that_reads_labels_without_a_defence_does_not_fail_there():
    # The nearest of public records is no near picture, but its label is right.
    blind, none, *others = _rows((0.1,) * 8, (0.11,) * 8, (0.1,) * 8)
    for right, says in ((8, False), (1, True)):
        rows = [blind, replace(none, right_labels=right), *others]
        said = conclusion(rows, guessed_label=0.1)
        assert said.startswith("The attack fails even without a defence") is says
        assert "no leak shown" in said.lower()
