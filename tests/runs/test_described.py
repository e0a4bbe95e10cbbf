"""Objects of a run folder as types: what is written reads back, and nothing else is read."""

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

import overhear.runs
from overhear.privacy.formats.codec import Count, Fraction, NotNegative, Score, as_text
from overhear.reports.schema import Report
from overhear.runs.described import Described
from tests.conftest import sample_report


class Held(Described):
    """An object with every kind of figure."""

    version: Annotated[Literal[1], Field(alias="schema")]
    epsilon: NotNegative
    score: Score | None = None
    pairs: list[tuple[Count, NotNegative]] = []


def read(text: str) -> Held:
    return Held.parse(text, refusal="{}: {}".format)


@given(st.floats(0, math.inf), st.floats(), st.lists(st.tuples(st.integers(0, 9), st.floats(0))))
def test_what_is_dumped_reads_back_equal(epsilon, score, pairs):
    held = Held(version=1, epsilon=epsilon, score=score, pairs=pairs)
    again = read(as_text(held.dump()))
    assert (again.epsilon, again.pairs) == (held.epsilon, held.pairs)
    assert again.score == held.score or math.isnan(score)
    assert again.dump() == held.dump()


def test_infinities_are_floats_inside_and_strings_in_json():
    held = Held(version=1, epsilon=math.inf, score=-math.inf)
    assert held.dump() == {"schema": 1, "epsilon": "inf", "score": "-inf"}
    assert read('{"schema": 1, "epsilon": "inf", "score": "nan"}').epsilon == math.inf


def test_an_object_of_another_version_is_written_as_it_was_read():
    text = {"schema": 1, "epsilon": 1.5, "later": {"key": "inf"}}
    assert read(json.dumps(text)).dump() == text


def test_a_share_that_is_undefined_is_called_so():
    class Share(Described):
        share: Fraction

    with pytest.raises(ValueError, match="share: nan is given where a finite number must stand"):
        Share.parse('{"share": NaN}', refusal="{}: {}".format)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": 1, "epsilon": 1}', "schema: "),  # the name inside is not that of the file
        ('{"schema": 1, "epsilon": -1}', "epsilon: "),
        ('{"schema": 1, "epsilon": NaN}', "epsilon: .* finite"),
        ('{"schema": 1, "epsilon": Infinity}', "epsilon: .* finite"),
        ('{"schema": 1, "epsilon": "-inf"}', "epsilon: "),
        ('{"schema": 1, "epsilon": "1"}', "epsilon: "),
        ('{"schema": 1, "epsilon": true}', "epsilon: "),
        ('{"schema": 1, "epsilon": 1, "pairs": [[1]]}', "pairs/0"),
        ("[]", ": "),
    ],
)
def test_what_is_no_such_object_is_refused_in_a_sentence(text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


@pytest.mark.parametrize("value", [math.nan, -math.inf, -1.0])
def test_a_bound_that_is_none_cannot_be_built(value):
    with pytest.raises(ValidationError):
        Held(version=1, epsilon=value)


def test_the_sample_report_of_the_tests_is_a_report():
    sample: dict[str, Any] = sample_report()
    found = Report.parse(as_text(sample), refusal="{}: {}".format)
    assert found.dump() == sample


def test_nothing_in_runs_is_passed_on_as_a_mapping_of_anything_without_a_reason():
    """Objects are types; what is left says in a comment why it is none."""
    where = Path(next(iter(overhear.runs.__path__)))
    # Lines of logs of releases are objects of JSON, whose reader closes their keys.
    paths = [path for path in where.rglob("*.py") if "recorder" not in path.parts]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    left = [line for line in lines if re.search(r"(dict|Mapping)\[str, Any\]", line)]
    assert len(left) <= 4
    assert all("#" in line for line in left)
