"""Sentences of docs/results.md about reproduced tables, held against the tables above them."""

import re
from pathlib import Path

import pytest
from scipy.stats import t

PAGE = Path(__file__).parents[3] / "docs" / "results.md"


def rows(*cells: str) -> list[list[str]]:
    """Rows of tables with all of these cells."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("|") and all(cell in parts for cell in cells):
            found.append(parts)
    return found


@pytest.mark.parametrize("other", ["DP-DPSGD", "MUFFLIATO"])
def test_what_is_said_of_dpdl_at_equal_epsilon_is_what_was_printed(other):
    where = "privacy.adversary=eavesdropper, graph.name=ring"
    [row] = rows(f"DPDL, repaired is better than {other}", where)
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = re.findall(rf"{other} by ([+-][\d.]+ ± [\d.]+) points \(mean model, n = (\d+)\)", text)
    assert said == [(row[4], row[5])]


def test_what_is_said_of_verdicts_is_how_many_were_printed():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    printed = re.findall(r"Of (\d+) lines: ([^.]*)\.", text)
    assert len(printed) == 7
    said = [{w: int(n) for n, w in re.findall(r"(\d+) ([a-z ]+)", line)} for _, line in printed]
    assert [sum(one.values()) for one in said] == [int(lines) for lines, _ in printed]
    words = [
        row[-1].partition(":")[0] for row in rows() if row[-1].startswith(("reproduced", "not r"))
    ]
    words += ["not comparable" for row in rows() if "is another one; here " in row[-1]]
    for word in ("reproduced", "not reproduced", "not comparable"):
        assert words.count(word) == sum(one.get(word, 0) for one in said)


def test_distances_from_a_paper_are_those_of_the_figures_beside_them():
    row = (
        r"\| ([\d.]+) ± ([\d.]+) \|[^|]*\|[^|]*\| 10 \| ([\d.]+) \| not comparable: the setting is "
        r"another one; ours is ([\d.]+) (below|above) \(([-+\d.]+) to ([-+\d.]+)\)"
    )
    found = re.findall(row, PAGE.read_text(encoding="utf-8"))
    assert len(found) == 12
    for ours, error, paper, off, way, low, high in found:
        signed = float(off) * (1.0 if way == "above" else -1.0)
        assert signed == pytest.approx(float(ours) - float(paper), abs=1e-3)
        half = float(t.ppf(0.975, 9)) * float(error)
        assert (float(low), float(high)) == pytest.approx((signed - half, signed + half), abs=2e-3)


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [("0.7", "1.21 ± 0.401"), ("1.0", "1.51 ± 0.122"), ("3.0", "0.886 ± 0.137"),
     ("3.0", "1.28 ± 0.238")],
)  # fmt: skip
def test_what_is_said_of_dynamic_noise_is_what_was_printed(epsilon, said):
    of = rows("Dyn is better than Const", f"privacy.epsilon={epsilon}", f"-{said}")
    assert len(of) == 1
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{said} behind" in text or f"{said} points behind" in text


@pytest.mark.parametrize("epsilon", ["0.3", "1.0", "3.0"])
def test_what_is_said_of_bounds_that_shrink_is_what_was_printed(epsilon):
    alone, constant = (
        [row[2] for row in rows(variant) if row[0] == epsilon]
        for variant in ("Dyn\\[C\\]", "Const")
    )
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = re.findall(r"([\d.]+ ± [\d.]+) against ([\d.]+ ± [\d.]+)", text)
    assert len(alone) == 1
    assert any((alone[0], other) in said for other in constant)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [("DPMixSGD", "0.530 ± 0.0057"), ("DM-HSGD", "0.541 ± 0.0098"), ("SGDA", "0.753 ± 0.0028"),
     ("DP-SGDA", "0.702 ± 0.0015")],
)  # fmt: skip
def test_what_is_said_of_min_max_on_images_is_what_was_printed(algorithm, said):
    assert rows(algorithm, said)
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("claim", "where", "said"),
    [
        ("Whisper is better than LDP", "0.6", "+7.83 ± 1.43"),
        ("DECOR is better than LDP", "0.6", "+7.64 ± 1.32"),
        ("Whisper is better than LDP", "0.2", "+4.45 ± 1.93"),
        ("Whisper is better than DECOR", "0.2", "+3.17 ± 1.37"),
    ],
)
def test_what_is_said_of_correlated_noise_on_a9a_is_what_was_printed(claim, where, said):
    assert rows(claim, rf"graph.edge\_probability={where}", said)
    assert said in " ".join(PAGE.read_text(encoding="utf-8").split())
