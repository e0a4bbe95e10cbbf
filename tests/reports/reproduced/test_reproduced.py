"""Verdicts by hand, figures of a user, data that are not at hand, and prices."""

import json
import math
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from overhear.privacy.errors import InputError
from overhear.reports.reproduced import reproduce as reproducing
from overhear.reports.reproduced import verdicts, work_estimates
from overhear.reports.reproduced.paper_result import (
    ENTRIES,
    SCALES,
    Close,
    Computed,
    Entry,
    Figure,
    Order,
    Paper,
    Scale,
    Trend,
    cells_of,
    read_figures,
)
from overhear.reports.reproduced.reproduce import as_data, as_markdown, outcome_of_closed_form
from overhear.reports.reproduced.verdicts import (
    Seeds,
    check_data,
    claim_lines,
    figure_of,
    figure_verdict,
    placed,
)
from overhear.reports.reproduced.work_estimates import (
    RunEstimate,
    Seconds,
    part_of,
    price_of,
    stored_price,
    sweep_of,
)
from overhear.reports.sweep.cells import Cells, Mean, mean_of
from overhear.runs.attack.planted import save_picture
from overhear.runs.audit.evidence_schema import Means
from overhear.runs.requests import ReproduceRequest

READ = "overhear.reports.sweep.cells.read_attack"
PAPER = Paper(name="P", source="A. Author, P")
SETTING = Scale(base={"data": {"name": "digits"}}, grid={}, seeds=10)
OTHER = Scale(base={"data": {"name": "digits"}}, grid={}, seeds=10, differs=("digits",))


def entry_of(*claims: Order | Trend | Close) -> Entry:
    return Entry(
        name="p-table-1", paper=PAPER, title="Table 1", value="energy", claims=claims,
        closed=lambda scale: [], more=True,
    )  # fmt: skip


def seeds_of(name: str, values: list[float], **more: str) -> Seeds:
    held = dict(enumerate(values, 1))
    return Seeds(place={"algorithm.name": name, **more}, compared=held, of_mean=held)


@pytest.mark.parametrize(
    ("ours", "scale", "word", "because"),
    [
        (
            Mean(value=89.0, error=0.25, count=10),
            SETTING,
            "reproduced",
            "ours is 1 above (+0.434 to +1.57), and 2.5 is allowed",
        ),
        (Mean(value=90.6, error=0.25, count=10), SETTING, "not reproduced", "ours is 2.6 above"),
        (Mean(value=87.5, error=0.25, count=10), SETTING, "reproduced", "inside"),
        (Mean(value=84.0, error=0.25, count=10), SETTING, "not reproduced", "ours is 3 below"),
        (Mean(value=87.5, error=0.25, count=9), SETTING, "not comparable", "n = 9"),
        (
            Mean(value=89.0, error=math.nan, count=1),
            SETTING,
            "not comparable",
            "so far ours is 1 ab",
        ),
        (
            Mean(value=87.5, error=0.25, count=10),
            OTHER,
            "not comparable",
            "another one; ours is in",
        ),
        (
            Mean(value=89.0, error=0.25, count=10),
            OTHER,
            "not comparable",
            "the setting is another one; ours is 1 above (+0.434 to +1.57)",
        ),
        (Mean(value=math.nan, error=math.nan, count=0), SETTING, "not comparable", "no run"),
    ],
)
def test_a_figure_is_reproduced_within_its_distance_and_two_standard_errors(
    ours, scale, word, because
):
    figure = Figure(place={}, low=87.0, high=88.0, source="here")
    found = figure_verdict(figure, ours, within=2.0, scale=scale)
    assert (found.word, because in f"{found.because}; {found.here}") == (word, True)


def test_without_a_figure_there_is_no_verdict():
    found = figure_verdict(None, mean_of([1.0] * 20), within=2.0, scale=SETTING)
    because = "the paper prints no number for this setting"
    assert (found.word, found.because) == ("not comparable", because)
    elsewhere = figure_verdict(None, mean_of([1.0] * 20), within=2.0, scale=OTHER)
    assert (elsewhere.because, elsewhere.here) == ("the setting is another one", "")


def test_a_line_has_the_figure_that_names_most_of_its_settings():
    wide = Figure(place={"a": "1"}, low=1.0, high=9.0, source="range")
    exact = Figure(place={"a": "1", "b": "2"}, low=4.0, high=4.0, source="cell")
    assert figure_of([wide, exact], {"a": "1", "b": "2"}) is exact
    assert figure_of([wide, exact], {"a": "1", "b": "3"}) is wide
    assert figure_of([wide, exact], {"a": "2", "b": "2"}) is None
    own = replace(wide, own=True)  # a user's, however few settings it names
    assert figure_of([own, exact], {"a": "1", "b": "2"}) is own


def test_an_order_is_held_against_paired_differences_as_scipy_takes_them():
    draw = np.random.default_rng(5)
    base = draw.normal(size=10)
    one, other = base + 1.0 + 0.1 * draw.normal(size=10), base
    claim = Order(key="algorithm.name", first="one", others=("other",), source="here")
    lines = [seeds_of("other", list(other)), seeds_of("one", list(one))]
    [found] = claim_lines(entry_of(claim), lines, more=True)
    interval = stats.ttest_rel(one, other).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.difference.error == pytest.approx(stats.sem(one - other))
    assert found.verdict.word == "reproduced"
    [turned] = claim_lines(entry_of(claim), lines, more=False)  # where less is better
    assert (turned.verdict.word, turned.low) == ("not reproduced", pytest.approx(-interval.high))


@pytest.mark.parametrize(
    ("shift", "spread", "count", "word", "because"),
    [
        (1.0, 0.1, 10, "reproduced", "all of the interval"),
        (-1.0, 0.1, 10, "not reproduced", "the contrary"),
        (0.0, 1.0, 10, "not reproduced", "both sides"),
        (1.0, 0.1, 9, "not comparable", "n = 9"),
    ],
)
def test_an_order_that_is_not_told_is_not_reproduced(shift, spread, count, word, because):
    ups = [shift + spread * (-1) ** seed for seed in range(count)]
    claim = Order(key="algorithm.name", first="one", others=("other",), source="here")
    lines = [seeds_of("one", ups), seeds_of("other", [0.0] * count)]
    [found] = claim_lines(entry_of(claim), lines, more=True, scale=SETTING)
    assert (found.verdict.word, because in found.verdict.because) == (word, True)
    [elsewhere] = claim_lines(entry_of(claim), lines, more=True, scale=OTHER)
    told = ("not comparable", "the setting is another one", found.verdict.because)
    assert astuple(elsewhere.verdict) == told


def test_an_order_is_taken_at_each_place_and_between_no_two_places():
    claim = Order(key="algorithm.name", first="one", others=("a", "b"), source="here")
    lines = [
        seeds_of(name, [1.0, 2.0], **{"graph.name": graph})
        for graph in ("ring", "full")
        for name in ("one", "a", "b")
    ]
    found = claim_lines(entry_of(claim), lines, more=True)
    assert [(one.words[-1], *one.where.items()) for one in found] == [
        (name, ("graph.name", graph)) for graph in ("ring", "full") for name in "ab"
    ]


def test_a_trend_is_taken_step_by_step_along_its_key():
    claim = Trend(key="privacy.epsilon", of={"algorithm.name": "one"}, source="here")
    lines = [
        seeds_of(name, [level + 0.01 * seed for seed in range(10)], **{"privacy.epsilon": at})
        for at, level in (("1", 1.0), ("3", 2.0), ("8", 0.0))
        for name in ("one", "two")
    ]
    found = claim_lines(entry_of(claim), lines, more=True)
    assert [one.verdict.word for one in found] == ["reproduced", "not reproduced"]
    assert found[0].words == "one is better at privacy.epsilon 3 than at 1"


@pytest.mark.parametrize(("cost", "word"), [(0.01, "reproduced"), (0.05, "not reproduced")])
def test_a_small_cost_is_reproduced_if_the_interval_stays_within_it(cost, word):
    claim = Close(key="algorithm.name", first="one", other="other", within=0.02, source="here")
    other = [0.8 + 0.001 * seed for seed in range(10)]
    lines = [seeds_of("one", [value - cost for value in other]), seeds_of("other", other)]
    [found] = claim_lines(entry_of(claim), lines, more=True)
    assert found.verdict.word == word


def test_a_reproduction_as_text_and_as_data_says_the_same():
    claim = Order(key="a", first="1", others=("2",), source="here")
    figure = Figure(place={"a": "1"}, low=3.0, high=3.0, source="Table 1 of P")
    computed = [
        Computed(place={"a": "1"}, values=dict.fromkeys(range(10), 3.5)),
        Computed(place={"a": "2"}, values=dict.fromkeys(range(10), 1.0)),
    ]
    entry = entry_of(claim)
    outcome = outcome_of_closed_form(entry, "small", computed, figures=(figure,))
    text = as_markdown(outcome)
    assert "In every line n = 10.\n\n| a | energy | paper | verdict |\n" in text
    told = "reproduced: ours is 0.5 above (+0.5 to +0.5), and 2 is allowed"
    assert f"| 1 | 3.50 ± 0 | 3 | {told} |" in text
    told = "not comparable: the paper prints no number for this setting"
    assert f"| 2 | 1.00 ± 0 | none for this setting | {told} |" in text
    assert "1 is better than 2 | +2.50 ± 0" in text
    elsewhere = as_markdown(outcome_of_closed_form(entry, "small", computed, figures=()))
    assert f"paper = none for this setting; verdict = {told}; n = 10.\n\n| a | ene" in elsewhere
    data = json.loads(json.dumps(as_data(outcome), allow_nan=False))
    assert data["lines"][0]["verdict"]["word"] == "reproduced"
    assert data["claims"][0]["difference"] == {"value": 2.5, "error": 0.0, "count": 10}


ALGORITHMS = [
    {"algorithm.name": "dpdl", "algorithm.form": "published", "label": "DPDL, published"},
    {"algorithm.name": "dpdl", "label": "DPDL, repaired"},
    {"algorithm.name": "muffliato", "label": "MUFFLIATO"},
]
BASE = {"data": {"name": "mnist", "agents": 10, "concentration": 0.5}, "attack": {"restarts": 1}}
GRID = {
    "data.agents": [10, 20], "data.concentration": [0.1, 0.5], "privacy.epsilon": [1.0, 8.0],
    "graph.name": ["ring", "full"], "algorithm.name": ALGORITHMS,
}  # fmt: skip
TABLE = Entry(
    name="p-table-2", paper=PAPER, title="Table 2",
    scales={
        "smoke": Scale(
            base=BASE, grid={"graph.name": ["ring"], "algorithm.name": ALGORITHMS}, seeds=2
        ),
        "small": Scale(base={"data": {"name": "digits"}}, grid=GRID, seeds=20),
        **{s: Scale(base=BASE, grid=GRID, seeds=20) for s in SCALES if s not in ("smoke", "small")},
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "algorithm=Muffliato,graph=ring",
            {"algorithm.name": ["MUFFLIATO"], "graph.name": ["ring"]},
        ),
        ("algorithm=dpdl", {"algorithm.name": ["DPDL, published", "DPDL, repaired"]}),
        (
            "algorithm=DPDL, repaired,graph=full",
            {"algorithm.name": ["DPDL, repaired"], "graph.name": ["full"]},
        ),
        ("graph.name=ring|full", {"graph.name": ["ring", "full"]}),
        ("epsilon=8,agents=20", {"privacy.epsilon": ["8.0"], "data.agents": ["20"]}),
        ("heterogeneity=high,data=mnist", {"data.concentration": ["0.1"]}),
    ],
)  # fmt: skip
def test_a_cell_is_named_by_short_keys_and_by_values_as_they_are_shown_or_are(text, found):
    cells = cells_of(TABLE, "paper")
    assert cells.chosen([text], None) == [found]
    assert cells.chosen([text], 2) == [{**found, "seed": [1, 2]}]
    assert cells.chosen([], 2) == [{"seed": [1, 2]}]


@pytest.mark.parametrize(
    ("text", "seeds", "words"),
    [
        ("graf=ring", None, "and not 'graf'; did you mean graph?"),
        ("graph=rign", None, "is ring or full, and not 'rign'; did you mean ring?"),
        ("algorithm=muffliat", None, "and not 'muffliat'; did you mean muffliato?"),
        ("ring", None, "must read key=value,key=value"),
        ("graph=ring,graph.name=full", None, "gives graph.name twice"),
        ("data=digits", None, "no data.name=digits at scale smoke"),
        ("agents=20", None, "no data.agents=20 at scale smoke; choose another scale, or"),
        ("concentration=0.5", 3, "seeds=3 must lie in [1, 2]"),
    ],
)  # fmt: skip
def test_a_cell_that_the_table_does_not_have_is_refused_with_what_there_is(text, seeds, words):
    with pytest.raises(InputError) as caught:
        cells_of(TABLE, "smoke").chosen([text], seeds)
    assert words in str(caught.value)


def test_the_high_heterogeneity_is_the_least_concentration_as_a_number():
    of = Cells(name="t", scale="small", swept={"small": {"data.concentration": [2.0, 10.0]}})
    assert of.places("heterogeneity", "high") == [{"data.concentration": "2.0"}]


_HEAD = "data,heterogeneity_inferred,epsilon_level_inferred,graph,agents,algorithm"
RAW = f"""{_HEAD},accuracy_percent,spread_percent
mnist,high,1,ring,10,DPDL,94.4,0.3
mnist,low,1,ring,10,MUFFLIATO,85.5,0.4
mnist,low,2,full,20,MUFFLIATO,88.5,0.4
mnist,low,inf,full,20,Non-Private,99.5,0.4
"""


def test_a_paper_s_table_as_it_is_extracted_is_a_file_of_figures(tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(RAW.replace("low,inf", "low,2"), encoding="utf-8")
    found, left = read_figures(path, cells_of(TABLE, "paper"), value="accuracy")
    first = {"data.concentration": "0.1", "privacy.epsilon": "1.0", "graph.name": "ring",
             "data.agents": "10"}  # fmt: skip
    assert [(dict(one.place), one.low) for one in found[:2]] == [
        ({**first, "algorithm.name": "DPDL, published"}, 94.4),
        ({**first, "data.concentration": "0.5", "algorithm.name": "MUFFLIATO"}, 85.5),
    ]
    assert found[2].place["privacy.epsilon"] == "8.0"
    assert left.startswith("1 of 4 figures of ")
    # At a scale with other data, or with one size, heterogeneity and no epsilon none is beside.
    for scale in ("small", "smoke"):
        found, left = read_figures(path, cells_of(TABLE, scale), value="accuracy")
        assert (found, left[:6]) == ((), "4 of 4")
    # A user's figure of the repaired form stands beside it.
    path.write_text(RAW.replace("DPDL,94", '"DPDL, repaired",94').replace("low,inf", "low,2"))
    found, _ = read_figures(path, cells_of(TABLE, "paper"), value="accuracy")
    assert found[0].place["algorithm.name"] == "DPDL, repaired"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("low,2,full,20", "low,2,star,20", "line 4: graph.name of p-table-2 is ring or full"),
        ("high,1", "high,3", "line 2: privacy.epsilon of p-table-2 is 1.0 or 8.0, and not '3'"),
        ("mnist,high", "cifar10,high", "line 2: data.name of p-table-2 is mnist"),
        ("MUFFLIATO,88", "MUFLIATO,88", "did you mean MUFFLIATO?"),
        ("graph,agents", "graph,agent", "and not 'agent'; did you mean agents?"),
        ("full,20,MUFFLIATO,88.5", "full,20,MUFFLIATO,", "figure='' must be a finite"),
        ("mnist,low,2,full,20", "mnist,low,1,ring,10", "another figure in"),
    ],
)
def test_a_table_that_was_changed_so_that_it_fits_nothing_is_refused(
    tmp_path, before, after, words
):
    assert before in RAW
    path = tmp_path / "raw.csv"
    path.write_text(RAW.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_figures(path, cells_of(TABLE, "paper"), value="accuracy")
    assert words in str(caught.value)


def test_each_score_of_an_attack_is_a_figure_of_its_own(tmp_path):
    ring = Scale(base=BASE, grid={"graph.name": ["ring"]}, seeds=2, attack=True)
    scales = dict.fromkeys(SCALES, ring)
    scales["paper"] = replace(ring, grid={"graph.name": ["ring", "full"]})
    entry = replace(TABLE, value="psnr", scales=scales)
    path = tmp_path / "scores.csv"
    path.write_text(
        "metric,unit_inferred,scenario,graph,value\nSSIM,percent,ND-CG,ring,12\n"
        "PSNR,dB,ND-CG,ring,6.8\nPSNR,dB,DPDL-MM,ring,4\nPSNR,dB,DPDL-MM,full,5\n"
    )
    found, left = read_figures(path, cells_of(entry, "small"), value="psnr")
    no_defence = {"attack": "no defence, cross-gradient", "graph.name": "ring"}
    assert [(dict(one.place), one.low) for one in found] == [
        ({**no_defence, "metric": "ssim"}, 0.12),
        (no_defence, 6.8),
        ({"attack": "defended, momentum", "graph.name": "ring"}, 4.0),
    ]
    assert figure_of(found, no_defence) is found[1]
    assert left.startswith("1 of 4 figures")
    with pytest.raises(InputError, match="leave it out"):
        cells_of(entry, "small").chosen(["attack=defended, momentum"], None)


def test_a_reproduction_says_who_is_first_in_the_paper_and_here_and_what_its_table_holds():
    claim = Order(key="a", first="1", others=("2",), source="here")
    figures = [
        Figure(place={"a": name}, low=low, high=low, source="Table 1", spread=0.6)
        for name, low in (("1", 3.0), ("2", 2.0))
    ]
    computed = [
        Computed(place={"a": name}, values={1: value}) for name, value in (("1", 1.0), ("2", 1.5))
    ]
    entry = replace(entry_of(claim), facts=("Two rows are one.",))
    outcome = outcome_of_closed_form(entry, "small", computed, figures=figures)
    text = as_markdown(outcome)
    told = "in the paper 1 1; here 2 1; the same in 0 of 1. With n = 1 this tells no order."
    assert (
        f"- Two rows are one.\n- First by means in each cell that has figures of both: {told}"
        in (text)
    )
    assert (
        "| 1 | 1.00 | 3 ± 0.6 | not comparable: n = 1, and a verdict takes 10 seeds; so far" in text
    )
    assert as_data(outcome)["facts"][0] == "Two rows are one."
    elsewhere = replace(entry, closed=None, scales=dict.fromkeys(SCALES, OTHER))
    text = as_markdown(replace(outcome, entry=elsewhere))
    assert "has figures of both, here in another setting: in the paper 1 1; here 2 1;" in text


@pytest.mark.parametrize(
    ("own", "told"),
    [("7", "Figures of the file that are not the entry's: 1, the first 7"), ("3.0", "")],
)
def test_a_figure_of_a_user_comes_first_and_is_told_where_it_is_another(
    tmp_path, monkeypatch, own, told
):
    printed = Figure(place={"a": "1", "b": "1"}, low=3.0, high=3.0, source="Table 1")
    monkeypatch.setattr(reproducing, "printed_figures", lambda *_: (printed,))
    computed = [Computed(place={"a": "1", "b": "1"}, values={1: 1.0})]
    entry = replace(entry_of(), closed=lambda _: computed)
    path = tmp_path / "f.csv"
    path.write_text(f"a,figure\n1,{own}\n", encoding="utf-8")
    request = ReproduceRequest(figures=path)
    outcome = reproducing.reproduce(entry, "small", tmp_path / "d", request)
    [line] = outcome.lines
    assert line.paper is not None
    assert (line.paper.low, line.paper.own) == (float(own), True)
    assert outcome.left_out.startswith(told)
    assert bool(outcome.left_out) == bool(told)


def test_figures_of_a_user_are_read_from_csv(tmp_path):
    path = tmp_path / "figures.csv"
    path.write_text("graph.name,figure\nring,88.3\nfull,90\n", encoding="utf-8")
    found, left = read_figures(path, cells_of(TABLE, "paper"))
    assert [(dict(one.place), one.low, one.high) for one in found] == [
        ({"graph.name": "ring"}, 88.3, 88.3),
        ({"graph.name": "full"}, 90.0, 90.0),
    ]
    assert found[0].source.endswith("figures.csv, line 2")
    assert left == ""
    path.write_text("graph.name,low,high\nring,80,90\n", encoding="utf-8-sig")  # as of Excel
    assert read_figures(path, cells_of(TABLE, "paper"))[0][0].high == 90.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph.nam,figure\nring,1\n", "and not 'graph.nam'; did you mean graph.name?"),
        ("graph.name\nring\n", "no column 'figure'"),
        ("graph.name,figure\nring,much\n", "figure='much' must be a finite number"),
        ("graph.name,figure\nring,nan\n", "must be a finite number"),
        ("graph.name,low,high\nring,2,1\n", "low=2 lies above high=1"),
        ("graph.name,figure,auroc\nring,2,1\n", "2 columns 'figure'"),
        ("", "no column 'figure'"),
        ("graph.name,figure\nring,\udcff\n", "is not UTF-8 after line"),
    ],
)
def test_figures_that_do_not_fit_are_refused_with_their_line(tmp_path, text, words):
    path = tmp_path / "figures.csv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(InputError) as caught:
        read_figures(path, cells_of(TABLE, "paper"))
    assert words in str(caught.value)


def test_data_that_are_not_at_hand_are_named_with_their_folder(tmp_path, monkeypatch):
    scale = ENTRIES["dpdl-table-1"].scales["paper"]
    monkeypatch.delenv("OVERHEAR_DATA", raising=False)
    with pytest.raises(InputError, match=r"MNIST/raw .* let OVERHEAR_DATA name the folder"):
        check_data("dpdl-table-1", scale)
    monkeypatch.setenv("OVERHEAR_DATA", str(tmp_path))
    (tmp_path / "MNIST").mkdir()
    check_data("dpdl-table-1", scale)
    swept = ENTRIES["dpmixsgd-table-2a"].scales["paper"]
    with pytest.raises(FileNotFoundError) as caught:
        check_data("dpmixsgd-table-2a", swept)
    assert f"cifar-10-batches-py with data_batch_1 to 5 and test_batch, expected in {tmp_path}" in (
        str(caught.value)
    )
    assert "libsvm/a8a (LIBSVM text), libsvm/a8a.t" in str(caught.value)
    placed_sets = placed(swept).grid["data.name"]
    assert Path(placed_sets[1]["data.root"]) == tmp_path / "libsvm/a9a"
    libsvm = ENTRIES["whisper-a9a-p"].scales["small"]
    with pytest.raises(FileNotFoundError, match=r"libsvm/a9a \(LIBSVM text\), libsvm/a9a.t"):
        check_data("whisper-a9a-p", libsvm)
    assert Path(placed(libsvm).base["data"]["root"]) == tmp_path / "libsvm/a9a"


@pytest.mark.parametrize(
    ("cells", "runs", "seconds"),
    [
        # Eight rows of two seeds: one first run, seven rows more, and each again.
        ([], 16, 7.0 + 2.0 + 7 * 1.0 + 8 * 0.5 + 16 * (5 * 3.0 + 6 * 0.25)),
        (["epsilon=1,algorithm=Dyn"], 2, 7.0 + 2.0 + 0.5 + 2 * (5 * 3.0 + 6 * 0.25)),
    ],
)
def test_a_price_is_what_the_runs_that_are_asked_for_take(monkeypatch, cells, runs, seconds):
    monkeypatch.setattr(work_estimates, "_start_seconds", lambda: 7.0)
    entry = ENTRIES["dyn-d2p-table-2"]
    config = sweep_of(entry, "smoke")[1]["training"]
    assert isinstance(config, dict)
    assert config["rounds"] == 5  # evaluated before the first and after each
    timed = Seconds(first=2.0, row=1.0, again=0.5, round=3.0, evaluation=0.25, device="CPU")
    only = part_of(entry, "smoke", cells, None)
    found = price_of(entry, "smoke", only=only, jobs=1, seconds_of=lambda *_: timed)
    assert (found.runs, found.hours) == (runs, pytest.approx(seconds / 3600))


def test_a_price_counts_the_attack_of_every_run_and_the_start_of_every_process(monkeypatch):
    monkeypatch.setattr(work_estimates, "_start_seconds", lambda: 7.0)
    asked = []

    def seconds_of(rows: object, attacked: bool) -> Seconds:
        asked.append(attacked)
        return Seconds(first=1.0, row=1.0, again=1.0, round=0.0, attack=9.0, device="CPU")

    found = price_of(ENTRIES["dpdl-table-3"], "smoke", jobs=2, seconds_of=seconds_of)
    assert (asked, found.hours) == ([True], pytest.approx((3 * 7.0 + 4 * 10.0) / 3600))


def test_a_stored_price_of_another_sweep_is_none():
    entry = ENTRIES["dpdl-table-1"]
    assert stored_price(entry, "smoke") is not None
    fewer = Entry(
        name=entry.name, paper=PAPER, title="T", value="accuracy",
        scales={**entry.scales, "smoke": Scale(
            base=entry.scales["smoke"].base, grid={"graph.name": ["ring"]}, seeds=1)},
    )  # fmt: skip
    assert stored_price(fewer, "smoke") is None


@pytest.mark.parametrize(
    ("hours", "words"),
    [(0.001, "3.6 s CPU"), (0.5, "30 min CPU"), (12.34, "12 h CPU"), (4321.0, "4300 h CPU")],
)
def test_prices_are_told_in_a_unit_that_fits(hours, words):
    assert RunEstimate(runs=1, hours=hours, device="CPU").words() == words


def test_an_attacked_line_is_the_mean_over_rounds_of_each_scenario(monkeypatch):
    def row(name: str, psnr: float) -> SimpleNamespace:
        mean = SimpleNamespace(mse=1.0, psnr=psnr, ssim=0.5)
        scaled = SimpleNamespace(mse=4.0, psnr=psnr, ssim=0.5)
        return SimpleNamespace(name=name, mean=mean, conventions={"dpdl": scaled})

    def scenario(name: str, psnr: float, attack: str = "", preset: str = "dlg") -> SimpleNamespace:
        rows = [row("blind guess", 0.0), row("no defence", psnr), row("defended", psnr / 2)]
        return SimpleNamespace(scenario=name, attack=attack, rows=rows, preset=preset)

    kept = SimpleNamespace(
        scenarios=[
            scenario("momentum", 10.0),
            scenario("momentum", 20.0),
            scenario("momentum", 99.0, attack="added later"),
        ]
    )
    monkeypatch.setattr(READ, lambda _: kept)
    runs: list[Any] = [
        SimpleNamespace(name=f"r{n}", seed=n, state="done", attacked=n < 3) for n in (1, 2, 3)
    ]
    found = verdicts.attacked_lines(Path("d"), runs)
    assert [(line.name, line.scores["psnr"]) for line in found] == [
        ("no defence, momentum", {1: 15.0, 2: 15.0}),
        ("defended, momentum", {1: 7.5, 2: 7.5}),
    ]
    [line, _] = verdicts.attacked_lines(Path("d"), runs, convention="dpdl")
    assert line.scores["mse"] == {1: 4.0, 2: 4.0}
    # Of two presets no line is the mean.
    kept.scenarios.append(scenario("momentum", 40.0, preset="matched"))
    assert {
        line.name: line.scores["psnr"][1] for line in verdicts.attacked_lines(Path("d"), runs)
    } == {
        "no defence, momentum, dlg": 15.0,
        "no defence, momentum, matched": 40.0,
        "defended, momentum, dlg": 7.5,
        "defended, momentum, matched": 20.0,
    }


def test_scores_that_take_no_attack_are_those_of_the_attacked_records(tmp_path, monkeypatch):
    # A white record and a black one, of which each is the other's neighbour.
    for name, level in (("0", 1.0), ("1", 0.0)):
        (tmp_path / "points" / "r").mkdir(parents=True, exist_ok=True)
        save_picture(tmp_path / "points" / "r" / f"{name}.png", torch.full((1, 8, 8), level))
    blind = SimpleNamespace(mean=None, conventions={"dpdl": Means(mse=1.0, psnr=6.0, ssim=0.1)})
    scenario = SimpleNamespace(attack="", rows=[blind], originals=["0.png", "1.png"])
    monkeypatch.setattr(READ, lambda _: SimpleNamespace(scenarios=[scenario, scenario]))
    runs: list[Any] = [SimpleNamespace(name="r", seed=1, state="done", attacked=True)]
    found = verdicts.unattacked_scores(tmp_path, runs, convention="dpdl")
    assert list(found) == ["mean image", "black picture", "another record", "noise"]
    assert {name: of["mse"].count for name, of in found.items()} == dict.fromkeys(found, 1)
    of = {name: of["mse"].value for name, of in found.items()}
    assert (of["mean image"], of["black picture"], of["another record"]) == (1.0, 2.0, 4.0)
    # E (1 - clip(N, -1, 1))^2 = 1 + E clip(N, -1, 1)^2 = 1.516
    assert of["noise"] == pytest.approx(1.516, abs=0.4)
