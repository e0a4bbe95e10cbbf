"""How large the code is, by package, beside the limits that it may not pass and the goals.

    python benchmarks/size.py            print the table
    python benchmarks/size.py --check    fail where a count is over its limit
    python benchmarks/size.py --lower    write today's counts as limits, where they are lower

Limits and goals stand in pyproject.toml, `[tool.overhear-size]`. Lines are those of the files as
ruff formats them, docstrings and blank lines included; a room is a folder with an `__init__.py`; a
wide function takes more than `WIDE` parameters besides self and cls. Comments are those on a line
of their own, of 100 lines of functions over `LONG` lines.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("privacy", "training", "attacks", "runs", "reports", "interface", "commands")
PACKAGES += ("testing", "adapters")
WIDE, LONG = 8, 25
COUNTS = ("product-lines", "product-files", "rooms", "wide-functions", "test-lines")


def lines_of(paths: list[Path]) -> int:
    """Lines of some files."""
    return sum(path.read_bytes().count(b"\n") for path in paths)


def files_of(folder: str) -> list[Path]:
    """The Python files of a package, or of tests/; "" is the root alone."""
    return sorted((ROOT / folder).rglob("*.py") if folder else ROOT.glob("*.py"))


def sizes(package: str) -> dict[str, int]:
    """Lines, files and rooms of a package, and lines of its tests."""
    files = files_of(package)
    rooms = sum(path.name == "__init__.py" for path in files)
    tests = files_of(f"tests/{package}") if package else sorted((ROOT / "tests").glob("*.py"))
    counts = (lines_of(files), len(files), rooms, lines_of(tests))
    return dict(zip(("product-lines", "product-files", "rooms", "test-lines"), counts, strict=True))


def wide_and_comments(package: str) -> dict[str, int]:
    """Wide functions of a package; lines of its long functions, and comments in them."""
    found = {"wide-functions": 0, "long": 0, "comments": 0}
    for path in files_of(package):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in _functions(ast.parse(text)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found["wide-functions"] += sum(one.arg not in ("self", "cls") for one in given) > WIDE
            inside = lines[node.lineno - 1 : node.end_lineno]
            if len(inside) > LONG:
                found["long"] += len(inside)
                found["comments"] += sum(line.lstrip().startswith("#") for line in inside)
    return found


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, those in functions once only, as part of these."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.stmt):
            yield from _functions(node)


def other_tests() -> int:
    """Lines of tests/ in folders of no package."""
    return lines_of([p for p in files_of("tests") if p.relative_to(ROOT).parts[1] not in PACKAGES])


def totals() -> dict[str, int]:
    """The counts that are quickly made: all but wide functions."""
    counts = [sizes(package) for package in ("", *PACKAGES)]
    found = {name: sum(one[name] for one in counts) for name in counts[0]}
    return found | {"test-lines": lines_of(files_of("tests"))}


def limits() -> dict[str, dict[str, int]]:
    """`limit` and `goal` of each count."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["overhear-size"]


def main() -> int:
    """Print the table; the exit code is 1 where --check finds a count over its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail over a limit")
    parser.add_argument("--lower", action="store_true", help="write limits that are lower")
    given = parser.parse_args()
    rows = {package: sizes(package) | wide_and_comments(package) for package in ("", *PACKAGES)}
    rows[""]["test-lines"] = other_tests()
    total = {key: sum(row[key] for row in rows.values()) for key in rows[""]}
    print(
        f"{'package':12}{'lines':>9}{'files':>7}{'rooms':>7}{'wide':>6}{'comments':>10}{'tests':>9}"
    )
    for name, row in (rows | {"all": total}).items():
        share = 100 * row["comments"] / max(row["long"], 1)
        print(
            f"{name or 'the root':12}{row['product-lines']:9,}{row['product-files']:7}"
            f"{row['rooms']:7}{row['wide-functions']:6}{share:10.1f}{row['test-lines']:9,}"
        )
    print()
    held, path = limits(), ROOT / "pyproject.toml"
    for name in COUNTS:
        limit, goal = held[name]["limit"], held[name]["goal"]
        over = f"  OVER THE LIMIT by {total[name] - limit:,}" if total[name] > limit else ""
        print(f"{name:15}{total[name]:9,}   limit {limit:,}, goal {goal:,}{over}")
        if given.lower and total[name] < limit:
            text = path.read_text(encoding="utf-8")
            old, new = (rf"(?m)^({name} = \{{ limit = )\d+", rf"\g<1>{total[name]}")
            path.write_text(re.sub(old, new, text), encoding="utf-8")
    return int(given.check and any(total[name] > held[name]["limit"] for name in COUNTS))


if __name__ == "__main__":
    sys.exit(main())
