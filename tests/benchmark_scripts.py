"""The scripts of benchmarks/, which stand beside the tests in a checkout alone."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NEEDED = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks/ is not beside the tests")


def benchmark(name: str) -> ModuleType:
    """A script as a module; it finds its neighbours while it is imported."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))
