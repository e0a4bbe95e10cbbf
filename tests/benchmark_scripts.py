"""The scripts of benchmarks/ and examples/."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"


def benchmark(name: str, folder: str = "benchmarks") -> ModuleType:
    """A script as a module; it finds its neighbours while it is imported."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))
