"""TOML out, and overrides in."""

from __future__ import annotations

import enum
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.runs.run_file.toml import merge_overrides, write_toml

KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False))
VALUES = st.one_of(SCALARS, st.lists(TEXT), st.lists(st.integers(-(2**60), 2**60)))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
@pytest.mark.slow
def test_what_is_written_reads_back_equal(tables: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(write_toml(tables)) == tables


def test_an_enum_is_written_as_its_value() -> None:
    order = enum.StrEnum("Order", {"A": "mix-then-step"})
    assert write_toml({"t": {"order": order.A}}) == '[t]\norder = "mix-then-step"\n'


def test_a_nested_table_is_refused() -> None:
    with pytest.raises(TypeError, match="no place in a run file"):
        write_toml({"t": {"a": {"b": 1}}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("t.a=1", 1),
        ("t.a = 1.5", 1.5),
        ("t.a=inf", math.inf),
        ("t.a=true", True),
        ("t.a=[1, 2]", [1, 2]),
        ("t.a='x y'", "x y"),
        ("t.a=erdos-renyi", "erdos-renyi"),
        ("t.a=my_models:build", "my_models:build"),
        ("t.a=neighbour:1", "neighbour:1"),
    ],
)
def test_an_override_is_read_as_toml_and_a_bare_word_as_a_string(text: str, value: object) -> None:
    values: dict[str, Any] = {}
    merge_overrides(values, [text])
    assert values == {"t": {"a": value}}


@pytest.mark.parametrize("text", ["a=1", "t.a", "t.=1", ".a=1", "t.a.b=1"])
def test_an_override_without_table_key_and_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must read table\.key=value"):
        merge_overrides({}, [text])


@pytest.mark.parametrize("text", ["t.a=", "t.a=.1", "t.a=x y", "t.a=1\nb=2", "t.a=[1"])
def test_an_override_that_is_no_single_toml_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no TOML value"):
        merge_overrides({}, [text])


def test_an_override_replaces_its_alternative() -> None:
    values = {"training": {"batch_size": 8}}
    merge_overrides(values, ["training.sampling_rate=0.1"])
    assert values == {"training": {"sampling_rate": 0.1}}


def test_two_overrides_that_are_alternatives_are_both_kept_for_the_check() -> None:
    values: dict[str, Any] = {"training": {}}
    merge_overrides(values, ["training.sampling_rate=0.1", "training.batch_size=8"])
    assert values["training"].keys() == {"sampling_rate", "batch_size"}
