"""A measured lower bound is never shown larger than it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overhear.runs.lower_bound import lower_bound


@given(st.floats(1e-3, 9e5))
def test_a_lower_bound_is_rounded_down_by_less_than_a_digit(value: float) -> None:
    shown = float(lower_bound(value))
    assert shown <= value
    assert shown > value * (1 - 0.011)


def test_a_figure_of_few_digits_is_kept() -> None:
    assert [lower_bound(v) for v in (7.6, 0.1, 2.675)] == ["7.60", "0.100", "2.67"]
