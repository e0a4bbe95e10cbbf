"""SECURITY.md promises nothing that no test holds."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "SECURITY.md"

_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> dict[str, list[tuple[str, str]]]:
    """File and name of the tests of each sentence of the table."""
    table = (
        PAGE.read_text(encoding="utf-8").partition("## What is promised")[2].partition("\n## ")[0]
    )
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")][2:]
    return {said.strip(): _NAMED.findall(by) for said, by in rows}


def test_every_promise_names_tests_that_exist():
    found = promises()
    assert len(found) >= 15
    assert not [said for said, tests in found.items() if not tests]
    for file, name in _NAMED.findall(PAGE.read_text(encoding="utf-8")):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in names, f"{file}::{name}"
