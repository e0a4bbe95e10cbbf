"""Checks for one's own tests, of an algorithm of the registry and of any training: a pytest plugin.

Where overhear is installed, pytest loads this package at each start, so names are imported when
they are asked for, and torch with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import lazy_names

if TYPE_CHECKING:
    from .algorithm import assert_noise as assert_noise
    from .algorithm import assert_private as assert_private
    from .algorithm import check_algorithm as check_algorithm
    from .algorithm import replay as replay
    from .tape import released as released
else:
    # Without `__dir__`: of what that lists pytest would get each, in search of fixtures.
    __all__, __getattr__, _ = lazy_names(__name__)

BUDGET = {"seconds": 60.0}
"""Of each `assert_private` that is given no time."""


def pytest_addoption(parser: Any) -> None:
    """Let a run of tests say how long its audits may take."""
    words = f"time of each assert_private that is given none [{BUDGET['seconds']:g}]"
    option = {"type": float, "default": BUDGET["seconds"], "metavar": "S", "help": words}
    parser.getgroup("overhear").addoption("--overhear-seconds", **option)


def pytest_configure(config: Any) -> None:
    """Keep the time."""
    BUDGET["seconds"] = config.getoption("--overhear-seconds")
