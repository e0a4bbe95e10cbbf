"""The papers' printed figures: as they were read, and what is said of them, by what they are."""

import csv
import gzip
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from importlib import resources

import numpy as np
import pytest

from overhear.reports.reproduced.paper_result import ENTRIES, METRIC, printed_figures
from overhear.reports.reproduced.paper_result import cells_of as cells_of_entry
from overhear.reports.reproduced.verdicts import figure_of
from overhear.reports.reproduced.work_estimates import sweep_of
from tests.real_data import data_root, root_with

FOLDER = resources.files("overhear.reports.reproduced").joinpath("figures")
NAMES = sorted(path.name for path in FOLDER.iterdir())
ACCURACIES = ("dpdl_table_1", "dpdl_table_2", "dpdl_table_5", "dpdl_table_6")
ALL_DIGITS = "75d677d286e1de92629ea319332cc1a730d9b68e0da64cae3a26a91664b7c734"
Row = Mapping[str, str]


def rows_of(name: str) -> list[Row]:
    text = FOLDER.joinpath(f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def facts_of(name: str) -> str:
    return " ".join(ENTRIES[name].facts)


def cells_of(name: str, value: str, *keys: str) -> dict[tuple[str, ...], dict[str, float]]:
    """Figures by cell and algorithm."""
    found: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in rows_of(name):
        found[tuple(row[key] for key in keys)][row["algorithm"]] = float(row[value])
    return found


def test_no_digit_of_a_figure_has_changed_since_it_was_read():
    digest = hashlib.sha256(b"".join(FOLDER.joinpath(name).read_bytes() for name in NAMES))
    counts = Counter(name.partition("_table")[0] for name in NAMES)
    assert counts == {"dpdl": 6, "dpmixsgd": 9, "dyn_d2p": 2}
    assert digest.hexdigest() == ALL_DIGITS


@pytest.mark.data
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_those_of_the_papers_that_were_read(name):
    path = data_root().parent / "papers" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    assert FOLDER.joinpath(name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("entry", [e for e in ENTRIES.values() if e.printed], ids=lambda e: e.name)
def test_every_printed_figure_is_beside_its_lines(entry):
    figures = printed_figures(cells_of_entry(entry, "paper"), entry)
    figures = tuple(one for one in figures if METRIC not in one.place)  # but for scores beside
    sweep, _ = sweep_of(entry, "paper")
    lines = [{key: choice.shown for key, choice in row.items()} for row in sweep.rows()]
    beside = [
        (figure.low, figure.spread)
        for figure in figures
        if entry.value == "psnr"  # whose lines are attacks on each of the sweep's
        or any(figure.place.items() <= line.items() for line in lines)
    ]
    with_noise = {"DPMixSGD", "DP-SGDA"} if entry.name[-2:] in ("2c", "2d", "4c", "4d") else None
    rows = [
        row
        for row in rows_of(entry.printed.file)
        if row.get("metric", "PSNR") == "PSNR" and row.get("algorithm") != "Non-Private"
        if with_noise is None or row["algorithm"] in with_noise
    ]
    value = {"accuracy": "accuracy_percent", "auroc": "auroc", "psnr": "value"}[entry.value]
    wanted = [
        (float(row[value]), float(row["spread_percent"]) if "spread_percent" in row else None)
        for row in rows
    ]
    assert len(figures) == len(wanted)
    assert Counter(beside) == Counter(wanted)
    assert all(one.source == entry.printed.source for one in figures)


def test_the_lines_of_another_way_of_counting_or_another_form_have_no_figure_of_the_paper():
    entry = ENTRIES["dpdl-table-1"]
    figures = printed_figures(cells_of_entry(entry, "paper"), entry)
    sweep, _ = sweep_of(entry, "paper")
    for row in sweep.rows():
        place = {key: choice.shown for key, choice in row.items()}
        counted = place["privacy.adversary"] == "single-message"
        counted &= place["algorithm.name"] != "DPDL, repaired"  # which is no algorithm of the paper
        assert (figure_of(figures, place) is not None) == counted


def test_there_are_as_many_figures_as_were_read():
    rows = [row for name in NAMES for row in rows_of(name.removesuffix(".csv"))]
    spreads = [row for row in rows if "spread_percent" in row]
    assert (len(rows), len(spreads)) == (1061, 540)


def test_dpdl_is_first_in_all_cells_by_the_lead_that_is_said():
    cells = {
        name: cells_of(
            name, "accuracy_percent", "heterogeneity_inferred", "epsilon_level_inferred", "graph",
            "agents",
        )
        for name in ACCURACIES
    }  # fmt: skip
    first = [max(cell, key=lambda n: cell[n]) for of in cells.values() for cell in of.values()]
    assert Counter(first) == {"DPDL": 108}
    for name, of in cells.items():
        leads = [c["DPDL"] - max(v for k, v in c.items() if k != "DPDL") for c in of.values()]
        said = facts_of(name.replace("_", "-"))
        assert f"lead over the second is {min(leads):.1f} to {max(leads):.1f} points" in said
        assert "first in all 108 cells" in said


def test_the_rows_that_are_copies_are_those_that_are_named():
    found: dict[tuple[tuple[str, ...], ...], list[tuple[str, ...]]] = defaultdict(list)
    for name in ACCURACIES:
        rows: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
        for row in rows_of(name):
            at = (row["heterogeneity_inferred"], row["epsilon_level_inferred"], row["graph"])
            rows[(name, *at, row["algorithm"])].append(
                (row["agents"], row["accuracy_percent"], row["spread_percent"])
            )
        for line, cells in rows.items():
            found[tuple(cells)].append(line)
    copies = sorted(tuple(sorted(lines)) for lines in found.values() if len(lines) > 1)
    assert len(copies) == 8
    within = [pair for pair in copies if {line[0] for line in pair} == {"dpdl_table_2"}]
    assert [[(n[1], n[2], n[3], n[4]) for n in pair] for pair in within] == [
        [("low", level, graph, algorithm) for graph in ("bipartite", "full")]
        for level in "123"
        for algorithm in ("DP-DPSGD", "MUFFLIATO")
    ]
    assert [pair for pair in copies if pair not in within] == [
        (
            ("dpdl_table_1", "low", level, "bipartite", name),
            ("dpdl_table_5", "low", level, "ring", name),
        )
        for level, name in (("2", "DP-DPSGD"), ("3", "MUFFLIATO"))
    ]
    assert ": 6 pairs of rows" in facts_of("dpdl-table-2")
    assert ": 2 pairs of rows" in facts_of("dpdl-table-5")


def test_scores_of_the_papers_attack_are_the_ranges_that_are_said():
    for name, score in (("dpdl_table_3", "PSNR"), ("dpdl_table_4", "MSE")):
        values: dict[str, list[float]] = defaultdict(list)
        for row in rows_of(name):
            if row["metric"] == score:
                values[row["scenario"].partition("-")[0]].append(float(row["value"]))
        for numbers in values.values():
            told = f"{min(numbers):.2f} to {max(numbers):.2f}"
            assert told in facts_of(name.replace("_", "-"))


def test_an_attack_of_the_paper_is_of_the_form_that_it_published_and_below_a_black_image():
    entry = ENTRIES["dpdl-table-3"]
    for scale, count in (("paper", 108), ("smoke", 0)):  # of other data there is none
        figures = printed_figures(cells_of_entry(entry, scale), entry)
        assert {one.place["algorithm.name"] for one in figures} <= {"DPDL, published"}
        assert len(figures) == count
        assert all(one.high < 9.9 for one in figures if METRIC not in one.place)
    assert "is below that of a black image in every cell" in facts_of("dpdl-table-3")


def test_pixels_of_the_papers_attack_have_the_range_that_is_said():
    for name, least, most in (("dpdl_table_3", 1.94, 2.09), ("dpdl_table_4", 3.0, 5.0)):
        scores: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for row in rows_of(name):
            at = (row["scenario"], row["graph"], row["agents"])
            scores[at][row["metric"]] = float(row["value"])
        ranges = [(one["MSE"] * 10 ** (one["PSNR"] / 10)) ** 0.5 for one in scores.values()]
        assert least <= min(ranges) <= max(ranges) <= most


@pytest.mark.data
def test_scores_that_need_no_attack_are_those_that_are_said():
    path = root_with("MNIST/raw/train-images-idx3-ubyte.gz")
    raw = gzip.decompress((path / "MNIST/raw/train-images-idx3-ubyte.gz").read_bytes())
    every = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784)
    digits, mean = every[:300] / 255.0, every.mean(0) / 255.0
    noise = np.clip(np.random.default_rng(1).normal(size=digits.shape), -1, 1) / 2 + 0.5
    for words, guess in (
        ("mean image 12.0 dB", mean), ("black image 9.9 dB", 0.0),
        ("comes next 8.8 dB", np.roll(digits, 1, axis=0)), ("range 4.4 dB", noise),
    ):  # fmt: skip
        psnr = float((-10 * np.log10(((digits - guess) ** 2).mean(1))).mean())
        assert words in facts_of("dpdl-table-3")
        assert psnr == pytest.approx(float(words.split()[-2]), abs=0.05)


def test_dpmixsgd_is_first_where_it_is_said():
    for number, said in (("2", "5 of 48 cells"), ("4", "6 of 16 cells")):
        tables = [f"dpmixsgd_table_{number}{part}" for part in "abcd"]
        cells = {
            (name, *at): cell
            for name in tables
            for at, cell in cells_of(name, "auroc", "data", "level").items()
        }
        first = [at for at, cell in cells.items() if cell["DPMixSGD"] == max(cell.values())]
        assert said == f"{len(first)} of {len(cells)} cells"
        assert number == "4" or {at[1] for at in first} == {"a8a"}
        for name in tables:
            assert said in facts_of(name.replace("_", "-"))


def test_sgda_has_two_figures_of_one_cell():
    found = {
        part: {
            row["auroc"]
            for row in rows_of(f"dpmixsgd_table_{part}")
            if (row["data"], row["algorithm"]) == ("cifar10", "SGDA")
        }
        for part in ("2c", "2d")
    }
    assert found == {"2c": {"0.6648"}, "2d": {"0.6644"}}
    other = cells_of("dpmixsgd_table_2d", "auroc", "data")[("cifar10",)]
    assert other["DM-HSGD"] == other["SGDA"] == 0.6644
    assert "0.6648 in Table 2c and 0.6644 in Table 2d" in facts_of("dpmixsgd-table-2d")


def test_clipping_costs_dpmixsgd_what_is_said():
    found: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows_of("dpmixsgd_table_3"):
        if row["algorithm"] == "DPMixSGD":
            found[row["data"], row["noise_level_order"]][row["clipped"]] = float(row["auroc"])
    costs = [cell["no"] - cell["top 20 %"] for cell in found.values()]
    assert len(costs) == 6
    assert f"costs DPMixSGD {min(costs):.3f} to {max(costs):.3f}" in facts_of("dpmixsgd-table-3")


@pytest.mark.parametrize("number", ["1", "2"])
def test_dyn_is_first_by_the_lead_that_is_said(number):
    cells = cells_of(f"dyn_d2p_table_{number}", "accuracy_percent", "epsilon")
    private = [cell for cell in cells.values() if "Non-Private" not in cell]
    assert len(private) == 4
    assert all(max(cell, key=lambda n: cell[n]) == "Dyn" for cell in private)
    leads = [cell["Dyn"] - cell["Const"] for cell in private]
    said = f"{min(leads):.1f} to {max(leads):.1f} points ahead of Const"
    assert said in facts_of(f"dyn-d2p-table-{number}")
