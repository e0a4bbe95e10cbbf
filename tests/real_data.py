"""Where tests marked `data` find real files, and how they skip without them."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def data_root() -> Path:
    """OVERHEAR_DATA, or the folder of data beside the checkout."""
    return Path(os.environ.get("OVERHEAR_DATA") or BESIDE)


def root_with(wanted: str) -> Path:
    """The folder of data, where it holds such a file or folder; the test skips elsewhere."""
    root = data_root()
    if not (root / wanted).exists():
        pytest.skip(f"no {wanted} under {root}; set OVERHEAR_DATA to a folder that holds it")
    return root


def reference_values(name: str) -> Path:
    """A file of reference values, which lie beside the folder of data."""
    path = data_root().parent / "golden" / name
    if not path.is_file():
        pytest.skip(f"no reference values at {path}")
    return path
