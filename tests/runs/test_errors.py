"""Which errors are the caller's mistake."""

from __future__ import annotations

import pytest

from overhear.runs.errors import is_stated, sentence


def caught(source: str, *, module: str) -> Exception:
    """The error of a line of code in a module of that name."""
    try:
        exec(compile(source, "line", "exec"), {"__name__": module})  # noqa: S102
    except Exception as error:  # noqa: BLE001 - any error is what is asked for
        return error
    raise AssertionError(source)


@pytest.mark.parametrize("kind", ["ValueError", "TypeError", "KeyError", "FloatingPointError"])
def test_what_our_modules_raise_is_the_callers_mistake(kind: str) -> None:
    assert is_stated(caught(f"raise {kind}('x')", module="overhear.privacy.accounting.accountant"))


def test_what_a_library_raises_is_not() -> None:
    assert not is_stated(caught("raise ValueError('x')", module="numpy"))


@pytest.mark.parametrize("slip", ["{}['x']", "len(1)", "int('x')", "1 / 0", "assert False"])
def test_a_slip_in_our_modules_is_not(slip: str) -> None:
    assert not is_stated(caught(slip, module="overhear.privacy.accounting.accountant"))


def test_a_file_that_the_system_refuses_is_named() -> None:
    error = caught("open('/nowhere/at/all')", module="anything")
    assert is_stated(error)
    assert sentence(error) == "/nowhere/at/all: No such file or directory"
