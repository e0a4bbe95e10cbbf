"""Long tests are found by the names under which a report holds them."""

import subprocess
import sys

import pytest

from tests import seconds

TESTS = """
import pytest, time

@pytest.mark.parametrize("word", ["a::b.py", "c[d]", "e f"])
def test_plain(word):
    time.sleep(0.5 if word == "c[d]" else 0)

class TestGroup:
    def test_inside(self):
        time.sleep(0.5)
"""


@pytest.mark.slow
def test_names_of_a_report_are_those_of_what_is_collected(tmp_path):
    """Of a report of pytest's own the keys of node ids, of cases and of classes, too."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    options = ["-v", "--junitxml", str(tmp_path / "r.xml"), "inner"]
    ran = subprocess.run(
        [*command, *options], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    found = seconds.measured([tmp_path / "r.xml"])
    ids = [line.rsplit(" PASSED", 1)[0] for line in ran.stdout.splitlines() if " PASSED" in line]
    assert {seconds.key_of(node) for node in ids} == set(found)
    assert {name for name, took in found.items() if took > seconds.MOST} == {
        "inner.test_it::test_plain[c[d]]",
        "inner.test_it.TestGroup::test_inside",
    }


def test_a_test_that_took_long_is_slow(request):
    marked = {i.nodeid for i in request.session.items if i.get_closest_marker("slow")}
    long = seconds.long_ones()
    assert len(long) > 100
    assert all(
        item.nodeid in marked
        for item in request.session.items
        if seconds.key_of(item.nodeid) in long
    )
