"""Verdicts by hand, figures of a user, data that are not at hand, and prices."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from overhear.privacy.errors import InputError
from overhear.reports.reproduced import reproduce as attacked
from overhear.reports.reproduced.figures_file import read_figures
from overhear.reports.reproduced.paper_result import (
    Close,
    Computed,
    Entry,
    Figure,
    Order,
    Paper,
    Scale,
    Trend,
)
from overhear.reports.reproduced.registry import ENTRIES
from overhear.reports.reproduced.reproduce import as_data, as_markdown, outcome_of_closed_form
from overhear.reports.reproduced.verdicts import (
    Seeds,
    check_data,
    claim_lines,
    figure_of,
    figure_verdict,
    placed,
)
from overhear.reports.reproduced.work_estimates import RunEstimate, Seconds, price_of, stored_price
from overhear.reports.sweep.statistics import Mean, mean_of

PAPER = Paper(name="P", source="A. Author, P")
SETTING = Scale(base={"data": {"name": "digits"}}, grid={}, seeds=10, comparable=True)
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
        (Mean(value=87.5, error=0.25, count=10), OTHER, "not comparable", "another one"),
        (Mean(value=math.nan, error=math.nan, count=0), SETTING, "not comparable", "no run"),
    ],
)
def test_a_figure_is_reproduced_within_its_distance_and_two_standard_errors(
    ours, scale, word, because
):
    figure = Figure(place={}, low=87.0, high=88.0, source="here")
    found = figure_verdict(figure, ours, within=2.0, scale=scale)
    assert (found.word, because in found.because) == (word, True)


def test_without_a_figure_there_is_no_verdict():
    found = figure_verdict(None, mean_of([1.0] * 20), within=2.0, scale=SETTING)
    assert (found.word, found.because) == ("not comparable", "the paper prints no number for it")


def test_a_line_has_the_figure_that_names_most_of_its_settings():
    wide = Figure(place={"a": "1"}, low=1.0, high=9.0, source="range")
    exact = Figure(place={"a": "1", "b": "2"}, low=4.0, high=4.0, source="cell")
    assert figure_of([wide, exact], {"a": "1", "b": "2"}) is exact
    assert figure_of([wide, exact], {"a": "1", "b": "3"}) is wide
    assert figure_of([wide, exact], {"a": "2", "b": "2"}) is None


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
    [found] = claim_lines(entry_of(claim), lines, more=True)
    assert (found.verdict.word, because in found.verdict.because) == (word, True)


def test_an_order_is_taken_at_each_place_and_between_no_two_places():
    claim = Order(key="algorithm.name", first="one", others=("a", "b"), source="here")
    lines = [
        seeds_of(name, [1.0, 2.0], **{"graph.name": graph})
        for graph in ("ring", "full")
        for name in ("one", "a", "b")
    ]
    found = claim_lines(entry_of(claim), lines, more=True)
    assert [(one.words[-1], one.where) for one in found] == [
        ("a", "graph.name=ring"),
        ("b", "graph.name=ring"),
        ("a", "graph.name=full"),
        ("b", "graph.name=full"),
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
    assert (
        "| 1 | 3.50 ± 0 | 10 | 3 | reproduced: ours is 0.5 above (+0.5 to +0.5), and 2 is allowed |"
        in text
    )
    assert "| 2 | 1.00 ± 0 | 10 | – | not comparable: the paper prints no number for it |" in text
    assert "1 is better than 2 | everywhere | +2.50 ± 0" in text
    data = json.loads(json.dumps(as_data(outcome), allow_nan=False))
    assert data["lines"][0]["verdict"]["word"] == "reproduced"
    assert data["claims"][0]["difference"] == {"value": 2.5, "error": 0.0, "count": 10}


PLACES = [{"graph.name": "ring", "algorithm.name": "DPDL"}, {"graph.name": "full"}]


def test_figures_of_a_user_are_read_from_csv(tmp_path):
    path = tmp_path / "figures.csv"
    path.write_text("graph.name,figure\nring,88.3\nfull,90\n", encoding="utf-8")
    found = read_figures(path, PLACES)
    assert [(dict(one.place), one.low, one.high) for one in found] == [
        ({"graph.name": "ring"}, 88.3, 88.3),
        ({"graph.name": "full"}, 90.0, 90.0),
    ]
    assert found[0].source.endswith("figures.csv, line 2")
    path.write_text("graph.name,low,high\nring,80,90\n", encoding="utf-8")
    assert read_figures(path, PLACES)[0].high == 90.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph.nam,figure\nring,1\n", "'graph.nam' is no swept key; did you mean graph.name"),
        ("graph.name\nring\n", "no column 'figure'"),
        ("graph.name,figure\nstar,1\n", "line 2: no line has graph.name=star; graph.name has ring"),
        ("graph.name,figure\nring,much\n", "figure='much' must be a finite number"),
        ("graph.name,figure\nring,nan\n", "must be a finite number"),
        ("graph.name,low,high\nring,2,1\n", "low=2 lies above high=1"),
        ("", "no column 'figure'"),
    ],
)
def test_figures_that_do_not_fit_are_refused_with_their_line(tmp_path, text, words):
    path = tmp_path / "figures.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_figures(path, PLACES)
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


def test_a_price_is_runs_times_what_one_takes(monkeypatch):
    entry = ENTRIES["dyn-d2p-table-2"]
    found = price_of(
        entry, "smoke", seconds_of=lambda _: Seconds(begin=2.0, round=3.0, device="CPU")
    )
    assert (found.runs, found.hours) == (16, pytest.approx(16 * (2.0 + 5 * 3.0) / 3600))


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
        return SimpleNamespace(name=name, mean=SimpleNamespace(mse=1.0, psnr=psnr, ssim=0.5))

    def scenario(name: str, psnr: float, attack: str = "") -> SimpleNamespace:
        rows = [row("blind guess", 0.0), row("no defence", psnr), row("defended", psnr / 2)]
        return SimpleNamespace(scenario=name, attack=attack, rows=rows)

    kept = SimpleNamespace(
        scenarios=[
            scenario("momentum", 10.0),
            scenario("momentum", 20.0),
            scenario("momentum", 99.0, attack="added later"),
        ]
    )
    monkeypatch.setattr(attacked, "read_attack", lambda _: kept)
    runs: list[Any] = [SimpleNamespace(name=f"r{n}", seed=n, attacked=n < 3) for n in (1, 2, 3)]
    found = attacked.attacked_lines(Path("d"), runs)
    assert [(line.name, line.scores["psnr"]) for line in found] == [
        ("no defence, momentum", {1: 15.0, 2: 15.0}),
        ("defended, momentum", {1: 7.5, 2: 7.5}),
    ]
