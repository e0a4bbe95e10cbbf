import numpy as np
import pytest

from overhear.attacks.checks.noise_rows import note_coordinates
from overhear.attacks.checks.result import Finding


def _noted(values: np.ndarray) -> Finding:
    found = Finding()
    note_coordinates(found, values, [f"row {i}" for i in range(len(values))])
    return found


@pytest.mark.parametrize("width", [8, 9, 100, 1001])
def test_independent_normals_pass(width):
    """A sound set of rows fails with probability 1e-6."""
    assert _noted(np.random.default_rng(width).normal(size=(200, width))).passed


@pytest.mark.parametrize("lag", [1, 2, 64, 500, 333, 250])
def test_a_repetition_shows_at_its_lag(lag):
    rows = np.random.default_rng(1).normal(size=(3, 1000))
    rows[1, lag:] = np.resize(rows[1, :lag], 1000 - lag)
    found = _noted(rows)
    assert not found.passed
    assert "row 1" in found.what


def test_noise_of_two_values_shows_in_the_counts():
    assert not _noted(np.sign(np.random.default_rng(2).normal(size=(3, 1000)))).passed


def test_a_truncated_tail_shows_in_the_counts():
    rows = np.random.default_rng(3).normal(size=(3, 20_000))
    assert not _noted(np.clip(rows, -2.5, 2.5)).passed


def test_a_few_coordinates_say_nothing():
    assert _noted(np.zeros((3, 7))).tests == 0
