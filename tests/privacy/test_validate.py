"""Numbers that lie outside of an interval are refused, with the value and what it must be."""

import math

import numpy as np
import pytest

from overhear.privacy.errors import InputError, InputTypeError, whole, within


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (0, "[0, 1)"),
        (1.0, "(0, 1]"),
        (math.inf, "[0, inf]"),
        (10**300, "[1, inf)"),
        (np.float32(0.5), "(0, 1)"),
    ],
)
def test_a_number_within_an_interval_is_taken(value, bound):
    assert type(within("x", value, bound)) is float


@pytest.mark.parametrize(
    ("value", "bound", "words"),
    [
        (1, "[0, 1)", "x=1 must lie in [0, 1)"),
        (0, "(0, 1)", "x=0 must lie strictly between 0 and 1"),
        (-1, "[0, inf)", "x=-1 must be at least 0"),
        (0, "(0, inf]", "x=0 must be above 0"),
        (math.inf, "[0, inf)", "x=inf must be at least 0 and finite"),
        (-math.inf, "(-inf, 3]", "x=-inf must be at most 3 and finite"),
        (math.inf, "(-inf, inf)", "x=inf must be finite"),
        (math.nan, "[0, 1]", "x=nan must lie in [0, 1]"),
        (2**64, f"[0, {2**64 - 1}]", f"x={2**64} must lie in [0, {2**64 - 1}]"),
        (10**400, "[1, inf)", f"x={10**400} must be at most 1e308, the largest number"),
        (0.0, f"[{1e-12}, {1e300}]", "x=0.0 must lie in [1e-12, 1e+300]"),
    ],
)
def test_a_number_outside_is_refused_with_what_it_must_be(value, bound, words):
    with pytest.raises(InputError) as refusal:
        within("x", value, bound, "choose another")
    assert str(refusal.value) in (words, f"{words}; choose another")


@pytest.mark.parametrize("value", [True, "1", None, 1j, np.ones(1)])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(InputTypeError, match="must be a number"):
        within("x", value, "[0, 1]")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, np.True_, np.ones(2)])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(InputTypeError, match="must be an integer"):
        whole("x", value, "[0, 5]")


def test_an_integer_that_python_does_not_print_is_refused():
    with pytest.raises(InputError, match=r"x=an integer too long to print must lie in \[0, 9\]"):
        whole("x", 10**5000, "[0, 9]")
    assert type(whole("x", np.int64(3), "[0, 5]")) is int
