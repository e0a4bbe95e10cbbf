"""How figures are written."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhear.runs.numbers import bound, figure, lower_bound, small


@pytest.mark.parametrize("value", [2.0701, 0.030001, 7.999, 1234.5, 3.14159e-7, 99.91, 0.9995, 5e8])
def test_a_bound_is_never_written_smaller_than_it_is(value):
    written = float(bound(value).replace("−", "-"))
    assert value * (1 - 1e-9) <= written <= value * 1.011


@pytest.mark.parametrize(
    ("value", "written"), [(4.0, "4.00"), (4 - 1e-12, "4.00"), (4 + 1e-10, "4.00"), (0.0, "0")]
)
def test_rounding_noise_does_not_raise_a_bound(value, written):
    assert bound(value) == written


@pytest.mark.parametrize("write", [bound, figure])
def test_infinity_is_written_alike_from_a_float_and_from_json(write):
    assert write("inf") == write(math.inf) == "∞"


def test_a_figure_that_rounds_up_to_the_next_power_keeps_its_digits():
    assert (figure(9.999), figure(0.9999), figure(-9.999)) == ("10.0", "1.00", "−10.0")


def test_delta_keeps_the_digits_it_was_given():
    assert [small(v) for v in (1e-5, 2.5e-7, 0.05, 0.001)] == ["1e-5", "2.5e-7", "0.05", "0.001"]


@given(st.floats(1e-3, 9e5))
def test_a_lower_bound_is_rounded_down_by_less_than_a_digit(value):
    shown = float(lower_bound(value))
    assert shown <= value
    assert shown > value * (1 - 0.011)


def test_a_lower_bound_of_few_digits_is_kept():
    assert [lower_bound(v) for v in (7.6, 0.1, 2.675)] == ["7.60", "0.100", "2.67"]
