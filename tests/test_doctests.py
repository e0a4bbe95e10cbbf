"""The examples in the docstrings print what they say."""

import doctest
import importlib
import pkgutil
import sys

import pytest

PARTS = (
    "privacy", "training", "attacks", "runs", "reports", "interface", "commands", "testing",
    "adapters",
)  # fmt: skip


def names() -> list[str]:
    found = ["overhear"]
    for part in PARTS:
        package = importlib.import_module(f"overhear.{part}")
        found.append(package.__name__)
        found += [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return found


@pytest.mark.parametrize("name", names())
def test_examples_of(name):
    importlib.import_module(name)
    module = sys.modules[name]  # a function may shadow its module's name in the package
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
