"""Which tests take long: `python tests/seconds.py REPORT.xml ...` writes seconds.txt.

The reports are those of pytest's --junitxml. A test that took more than `MOST` seconds is slow: it
runs in `make test-slow` and not in `make test`. `make test-seconds` reads what `test-all` left.
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

FILE = Path(__file__).with_name("seconds.txt")
MOST = 0.15  # seconds of a test that is quick


def key_of(node: str) -> str:
    """The name of a test in a report, from its node id.

    >>> key_of("tests/runs/test_plan.py::test_a_plan[a::b.py]")
    'tests.runs.test_plan::test_a_plan[a::b.py]'
    """
    plain, bracket, case = node.partition("[")
    *where, name = plain.split("::")
    path, *classes = where
    return (
        ".".join([path.removesuffix(".py").replace("/", "."), *classes])
        + f"::{name}{bracket}{case}"
    )


def long_ones() -> frozenset[str]:
    """The tests that take longer than a quick one may."""
    return frozenset(line.split(maxsplit=1)[1] for line in FILE.read_text("utf-8").splitlines())


def measured(reports: Iterable[Path]) -> dict[str, float]:
    """Seconds of each test of some reports."""
    found: dict[str, float] = {}
    for report in reports:
        for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own tests
            found[f"{case.get('classname')}::{case.get('name')}"] = float(case.get("time", "0"))
    return found


def main(reports: list[str]) -> None:
    """Write the tests that took longer, in the order of their names; print the costliest files."""
    found = measured(map(Path, reports))
    lines = [f"{took:.1f} {name}\n" for name, took in sorted(found.items()) if took > MOST]
    FILE.write_text("".join(lines), encoding="utf-8")
    files: Counter[str] = Counter()
    for name, took in found.items():
        files[name.partition("::")[0]] += took
    for file, took in files.most_common(30):
        print(f"{took:8.1f} s {file}")
    print(f"{len(lines)} of {len(found)} tests take over {MOST} s; all {files.total():.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
