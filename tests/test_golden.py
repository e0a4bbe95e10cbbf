"""The small runs of tests/golden leave what they left before: figures, ledgers, models, words.

Where a change is meant, `python benchmarks/compare_trees.py --write` writes the goldens anew; the
difference belongs to the commit that makes it.
"""

from pathlib import Path

import pytest

from tests.benchmark_scripts import benchmark

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests/golden"
CASES = sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "policy")


@pytest.fixture(scope="session")
def compare_trees():
    return benchmark("compare_trees")


@pytest.fixture(scope="session")
def rows(compare_trees, tmp_path_factory):
    """Of each golden run what differs; all of them are run by one process."""
    out = tmp_path_factory.mktemp("golden") / "runs"
    cases = compare_trees.golden_cases(FOLDER)
    assert compare_trees.run_all({"new": ROOT}, cases, out, ROOT) == []
    return {case.name: compare_trees.compare(case, out, FOLDER, close=True) for case in cases}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_leaves_what_it_left_before(rows, name):
    found = [one for part in rows[name].found.values() for one in part]
    assert not found, "\n".join(map(str, found[:20]))


def test_figures_words_and_keys_that_differ_are_found(compare_trees):
    golden = compare_trees.golden.read(FOLDER, "whisper")
    assert golden["others"]["exit codes"]["plan"] == 0

    def found(new, close=True):
        told = compare_trees.differences(golden["plan"], new, "plan", close=close)
        return [(one.path, one.words) for one in told]

    row = golden["plan"]["adversaries"][0]
    others = golden["plan"]["adversaries"][1:]
    assert found(golden["plan"]) == []
    for changed, path, words in (
        ({"epsilon": row["epsilon"] * 1.001}, "epsilon", False),
        ({"status": "heuristic"}, "status", False),
        ({"because": "it is so"}, "because", True),
        ({"price": 1}, "price", False),
    ):
        plan = golden["plan"] | {"adversaries": [row | changed, *others]}
        assert found(plan) == [(f"plan.adversaries.0.{path}", words)]
    near = golden["plan"] | {
        "adversaries": [row | {"epsilon": row["epsilon"] * 1.0000001}, *others]
    }
    assert found(near) == []
    assert found(near, close=False) == [("plan.adversaries.0.epsilon", False)]


def test_goldens_stay_small():
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert set(CASES) == {name.removesuffix(".json") for name in sizes if name.endswith(".json")}
    assert sum(sizes.values()) < 310_000
