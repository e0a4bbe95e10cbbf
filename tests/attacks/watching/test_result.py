"""The result of a check, and the worst of many tests."""

import pytest

from overhear.attacks.checks.result import Check, Finding


def test_p_outside_of_0_to_1_is_refused():
    with pytest.raises(ValueError, match=r"p=1\.5 must lie in \[0, 1\]"):
        Check(name="messages", passed=True, p=1.5, tests=1, words="Nothing.")


def test_tests_below_zero_and_no_words_are_refused():
    with pytest.raises(ValueError, match="tests=-1 must be at least 0"):
        Check(name="messages", passed=True, p=None, tests=-1, words="Nothing.")
    with pytest.raises(ValueError, match="words must say"):
        Check(name="messages", passed=True, p=None, tests=1, words="")


def test_p_is_multiplied_by_the_number_of_tests_and_capped():
    found = Finding()
    found.note(0.01, tests=30, what="one")
    found.note(0.5, tests=20, what="other")
    assert (found.p, found.what, found.passed) == (0.5, "one", True)
    found.note(0.4, tests=100, what="more")
    assert found.p == 1.0


def test_what_is_not_a_number_fails():
    found = Finding()
    found.note(float("nan"), tests=1, what="an overflow")
    assert (found.p, found.what, found.passed) == (0.0, "an overflow", False)


def test_of_several_findings_the_first_that_fails_has_the_words():
    first, second, third = Finding(), Finding(), Finding()
    first.note(0.3, tests=10, what="plain")
    second.note(1e-20, tests=10, what="a row")
    third.note(0.0, tests=10, what="a pair")
    whole = Finding.of([first, second, third])
    assert (whole.tests, whole.p, whole.what) == (30, 0.0, "a row")
    assert Finding.of([first]).what == ""
