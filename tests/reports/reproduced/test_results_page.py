"""Sentences of docs/results*.md about reproduced tables, compared with the tables behind them."""

import re
from pathlib import Path

import pytest
from scipy.stats import t

DOCS = Path(__file__).parents[3] / "docs"
SUMMARY = (DOCS / "results.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("results-*.md")}
ALL = " ".join(" ".join(PAGES.values()).split())
TABLE = re.compile(r"(?:In every line ([^|]*?)\.\n\n)?((?:^\|.*\n)+)", re.M)
FIGURE = re.compile(r"[\d.]+ ± [\d.]*\d")


def rows(**cells: str) -> list[dict[str, str]]:
    """Rows of tables with all of these cells, and with what is the same in every line of theirs."""
    found = []
    for shared, table in (pair for text in PAGES.values() for pair in TABLE.findall(text)):
        same = [part.split(" = ", 1) for part in " ".join(shared.split()).split("; ") if shared]
        heads, _, *lines = ([c.strip() for c in of[1:-1].split("|")] for of in table.splitlines())
        found += [dict(same) | dict(zip(heads, line, strict=True)) for line in lines]
    return [row for row in found if cells.items() <= row.items()]


def test_the_summary_takes_two_screens_and_its_tables_a_page_each():
    assert len(SUMMARY) < 6_000
    assert {name for name, text in PAGES.items() if len(text) >= 10_000} == set()


def test_every_figure_of_the_summary_stands_in_a_table_of_the_page_that_its_row_leads_to():
    page, seen = "", 0
    for row in re.findall(r"^\| .*±.*$", SUMMARY, re.M):
        page = (re.findall(r"results-[\w-]+\.md", row) or [page])[0]
        printed = {f for _, table in TABLE.findall(PAGES[page]) for f in FIGURE.findall(table)}
        assert set(FIGURE.findall(row)) <= printed, row
        seen += len(FIGURE.findall(row))
    assert seen > 25


def test_what_is_said_of_verdicts_is_how_many_were_printed():
    printed = re.findall(r"Of (\d+) lines: ([^.]*)\.", ALL)
    assert len(printed) == 8
    said = [{w: int(n) for n, w in re.findall(r"(\d+) ([a-z ]+)", line)} for _, line in printed]
    assert [sum(one.values()) for one in said] == [int(lines) for lines, _ in printed]
    words = [row["verdict"].partition(":")[0] for row in rows() if {"claim", "verdict"} <= set(row)]
    for word in ("reproduced", "not reproduced", "not comparable"):
        assert words.count(word) == sum(one.get(word, 0) for one in said)


def test_distances_from_a_paper_are_those_of_the_figures_beside_them():
    found = [row for row in rows(n="10") if row.get("here", "").startswith("ours is ")]
    assert len(found) == 16
    for row in found:
        score = row.get("AUROC: agents") or row["PSNR, dB"]
        ours, error = map(float, score.split(" ± "))
        off, way, low, high = re.findall(r"[-+\d.]+|below|above", row["here"])
        signed = float(off) * (1.0 if way == "above" else -1.0)
        digit = 0.06 if "PSNR, dB" in row else 1e-3  # three digits are printed
        assert signed == pytest.approx(ours - float(row["paper"]), abs=digit)
        half = float(t.ppf(0.975, 9)) * error
        assert (float(low), float(high)) == pytest.approx(
            (signed - half, signed + half), abs=2 * digit
        )


@pytest.mark.parametrize(
    ("claim", "key", "at", "column", "sentence"),
    [
        ("DPDL, repaired is better than DP-DPSGD", "privacy.adversary", "eavesdropper",
         "mean model", "DP-DPSGD by {} points (mean model, n = 10)"),
        ("DPDL, repaired is better than MUFFLIATO", "privacy.adversary", "eavesdropper",
         "mean model", "MUFFLIATO by {} points (mean model, n = 10)"),
        ("Dyn is better than Const", "privacy.epsilon", "0.7", "better by",
         "Dyn is {} behind Const at epsilon 0.7"),
        ("Dyn is better than Const", "privacy.epsilon", "3.0", "better by",
         "{} behind at epsilon 3."),
        ("Dyn is better than Const", "privacy.epsilon", "1.0", "better by",
         "Dyn is {} points behind Const at epsilon 1,"),
        ("Whisper is better than LDP", "graph.edge_probability", "0.6", "better by",
         "independent noise, by {} and"),
        ("DECOR is better than LDP", "graph.edge_probability", "0.6", "better by",
         "and {} points. They do not"),
        ("Whisper is better than LDP", "graph.edge_probability", "0.2", "better by",
         "ahead of independent noise by {} and"),
        ("Whisper is better than DECOR", "graph.edge_probability", "0.2", "better by",
         "and of DECOR by {}."),
    ],
)  # fmt: skip
def test_what_is_said_of_a_claim_is_what_was_printed(claim, key, at, column, sentence):
    printed = [row[column] for row in rows(claim=claim, **{key: at})]
    said = [sentence.format(one.lstrip("-") if "behind" in sentence else one) for one in printed]
    assert [one for one in said if one in ALL]


@pytest.mark.parametrize("epsilon", ["0.3", "1.0", "3.0"])
def test_what_is_said_of_bounds_that_shrink_is_what_was_printed(epsilon):
    alone, constant = (
        [row["accuracy, %: agents"] for row in rows(**{"algorithm.clip_decay": name})
         if row["privacy.epsilon"] == epsilon]
        for name in (r"Dyn\[C\]", "Const")
    )  # fmt: skip
    said = re.findall(r"([\d.]+ ± [\d.]+) against ([\d.]+ ± [\d.]+)", ALL)
    assert len(alone) == 1
    assert any((alone[0], other) in said for other in constant)
