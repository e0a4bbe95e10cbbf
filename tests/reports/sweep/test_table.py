"""Tables and plots of sweeps: means, errors and differences by hand, and epsilon beside them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from overhear.commands import cli
from overhear.privacy import Adjacency, Bound, Guarantee, Sampling, Status, Unit
from overhear.privacy.errors import InputError
from overhear.reports.sweep.cells import difference_of, mean_of
from overhear.reports.sweep.plot import figure_of, plot_sweep
from overhear.reports.sweep.table import lines_of, sweep_table, table_text
from overhear.runs.requests import PlotRequest
from overhear.runs.sweep.results import PointResult, write_result, write_tuned
from overhear.runs.sweep.sweep_file import checked, file_text, points_of
from overhear.training.models.metrics import Metrics

BASE = {"data": {"name": "digits"}}
SPENT = {"algorithm.name": ["zeta"], "privacy.noise_multiplier": [1, 2]}
GRID = {"algorithm.name": ["zeta", "alpha"], "graph.name": ["ring", "full"]}


def adversary(epsilon: float, status: str = "proven") -> Guarantee:
    return Guarantee(
        adversary="eavesdropper", victim=0, worst_adversary=None, joint_sensitivity=1.0,
        effective_noise_multiplier=1.0, mu_per_round=1.0, epsilon=epsilon, delta=1e-5,
        unit=Unit.RECORD, adjacency=Adjacency.ADD_OR_REMOVE_ONE, sampling=Sampling.POISSON,
        status=Status(status), bound=Bound.PLD, because="",
    )  # fmt: skip


def sweep_of(
    out: Path,
    accuracies: dict[tuple[str, str], list[float]],
    *,
    epsilon: float = 2.0,
    constant: float | None = None,
    attacked: str = "",
    **more: Any,
) -> Path:
    sweep = checked({"base": BASE, "grid": GRID, "seeds": 4, **more}, where="s.toml")
    out.mkdir()
    (out / "sweep.toml").write_text(file_text(sweep, BASE), encoding="utf-8")
    (out / "results").mkdir()
    for point in points_of(sweep, {}):
        values = accuracies.get(tuple(point.settings.values()), [])
        if point.seed > len(values):
            continue
        value = values[point.seed - 1]
        failed = math.isnan(value)
        metrics = None
        if not failed:
            metrics = Metrics(
                round=5, accuracy=(value - 0.1, value - 0.3), loss=(1.0, 1.0),
                consensus_accuracy=value, consensus_loss=1.0, consensus_distance=0.0,
                constant_accuracy=constant,
            )  # fmt: skip
        result = PointResult(
            name=point.name, settings=dict(point.settings), seed=point.seed,
            state="failed" if failed else "done", error="no" if failed else None, run_file="",
            seconds=1.0, adversaries=[] if failed else [adversary(epsilon + point.seed)],
            attacked=point.settings["algorithm.name"] == attacked, metrics=metrics,
        )  # fmt: skip
        write_result(out, result)
    return out


FOUR = {
    ("zeta", "ring"): [0.50, 0.60, 0.55, 0.52],
    ("zeta", "full"): [0.70, 0.72, 0.71, 0.69],
    ("alpha", "ring"): [0.80, 0.89, 0.86, 0.81],
    ("alpha", "full"): [0.71, 0.70, 0.72, 0.70],
}


def test_means_errors_and_paired_differences_are_those_of_scipy(tmp_path):
    table = sweep_table(sweep_of(tmp_path / "d", FOUR), columns=["graph.name"])
    zeta, alpha = (100 * np.array(FOUR[name, "ring"]) for name in ("zeta", "alpha"))
    first, second = table.cells[:2]
    assert first.row == {"algorithm.name": "zeta"}
    assert first.mean.value == pytest.approx(zeta.mean())
    assert first.mean.error == pytest.approx(stats.sem(zeta))
    assert second.above is not None
    interval = stats.ttest_rel(alpha, zeta).confidence_interval(0.95)
    assert (second.above.low, second.above.high) == pytest.approx((interval.low, interval.high))
    assert first.agents is not None
    assert first.agents.value == pytest.approx(zeta.mean() - 20)


def test_lines_stand_as_in_the_sweep_file_and_the_best_is_bold_with_its_ties(tmp_path):
    table = sweep_table(sweep_of(tmp_path / "d", FOUR), columns=["graph.name"])
    names = [(c.column["graph.name"], c.row["algorithm.name"], c.best) for c in table.cells]
    assert names == [
        ("ring", "zeta", False),
        ("ring", "alpha", True),
        ("full", "zeta", True),
        ("full", "alpha", True),
    ]
    assert "**71.00" not in lines_of(table)[0]["mean model"]
    assert "n = 4 seeds" in table.caption


@pytest.mark.parametrize(
    ("constant", "bold"),
    [
        (0.10, [False, True, True, True]),
        (0.70, [False, True, False, False]),  # .7050 and .7075 are not told from .70
        (0.55, [False, True, True, True]),
        (0.90, [False] * 4),
    ],
)
def test_only_what_beats_the_constant_answer_is_bold(tmp_path, constant, bold):
    out = sweep_of(tmp_path / "d", FOUR, constant=constant)
    table = sweep_table(out, columns=["graph.name"])
    assert [cell.best for cell in table.cells] == bold
    assert all(line["constant answer"] == f"{100 * constant:.2f}" for line in lines_of(table))
    assert "the most frequent class" in table.caption
    assert ("no line is shown to be better" in table.caption) is not any(bold)
    assert ("if it tells that from the constant answer" in table.caption) is any(bold)
    assert json.loads(table_text(table, format="json"))["lines"][0]["constant_answer"]["n"] == 4


def test_the_majority_class_nine_times_is_never_bold(tmp_path):
    out = sweep_of(tmp_path / "d", {name: [0.62] * 4 for name in FOUR}, constant=0.62)
    text = table_text(sweep_table(out))
    assert "**" not in text
    assert "no line is shown to be better, so none is bold" in text


def test_a_difference_of_equal_means_is_zero_and_no_rounding_error():
    found = difference_of({1: 385 / 6, 2: 430 / 6}, {1: 72.5, 2: 190 / 3})
    assert found is not None
    assert found.mean == 0.0


def test_a_difference_is_over_common_seeds_and_failures_are_told(tmp_path):
    held = {**FOUR, ("zeta", "ring"): [math.nan, 0.60, 0.55]}
    table = sweep_table(sweep_of(tmp_path / "d", held), columns=["graph.name"])
    second = table.cells[1]
    assert second.above is not None
    assert second.above.count == 2
    assert second.above.mean == pytest.approx(100 * ((0.89 - 0.60) + (0.86 - 0.55)) / 2)
    assert table.cells[0].failed == 1
    assert "1 runs failed" in table.caption
    assert "n = 2 to 4 seeds" in table.caption


CLT = "central limit: approximation, may be too small"


@pytest.mark.parametrize(
    "of", [{"status": "heuristic"}, {"bound": CLT}, {"name": "b"}, {"delta": 0.5}]
)
def test_epsilon_is_the_largest_of_the_line_and_the_weakest_status(of, tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    path = next(out.glob("results/zeta_ring_seed-1-*.json"))
    text = json.loads(path.read_text(encoding="utf-8"))
    text["adversaries"][0] |= of
    path.write_text(json.dumps(text), encoding="utf-8")
    if "delta" in of:
        with pytest.raises(InputError, match="say epsilon of eavesdropper of other deltas"):
            sweep_table(out, columns=["graph.name"])
        return
    cell = sweep_table(out, columns=["graph.name"]).cells[0]
    held = [] if "name" in of else [(6.0, "heuristic")]  # one run says nothing of it
    assert [(s.epsilon, s.status) for s in cell.spent] == held


def test_one_seed_has_no_error_and_no_interval(tmp_path):
    held = {key: of[:1] for key, of in FOUR.items()}
    table = sweep_table(sweep_of(tmp_path / "d", held), columns=["graph.name"])
    assert "±" not in table_text(table)
    assert "(n = 1)" in lines_of(table)[1]["difference"]
    assert all(cell.best for cell in table.cells)  # nothing is told from anything


def test_a_choice_on_validation_records_stands_in_its_line_and_caption(tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    row = {"algorithm.name": "zeta", "graph.name": "ring"}
    write_tuned(out, [(row, {"training.learning_rate": "0.3"})])
    table = sweep_table(out)
    assert table.cells[0].tuned == {"training.learning_rate": "0.3"}
    assert "no epsilon counts that choice" in table.caption


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rows": ["algorithm.name"]}, "graph.name would be mixed within a line"),
        ({"columns": ["model.name"]}, "'model.name' was not swept"),
        ({"rows": ["graph.name"], "columns": ["graph.name"]}, "give it once"),
        ({"value": "beauty"}, "value='beauty' must be one of"),
        ({"value": "rmse"}, "no run of the sweep .* has rmse; choose one of accuracy"),
    ],
)
def test_what_cannot_be_a_table_is_refused(tmp_path, asked, words):
    with pytest.raises(InputError, match=words):
        sweep_table(sweep_of(tmp_path / "d", FOUR), **asked)


def test_folders_without_a_sweep_are_refused(tmp_path, capsys):
    for command in (["table"], ["plot", "--out", "a.svg"]):
        assert cli.main([command[0], str(tmp_path), *command[1:]]) == 2
        assert "holds no sweep" in capsys.readouterr().err


def test_a_label_of_a_sweep_is_no_formula_in_csv(tmp_path):
    out, name = sweep_of(tmp_path / "d", FOUR), "graph.name"
    for path in (out / "results").iterdir():
        held = json.loads(path.read_text(encoding="utf-8"))
        held["settings"][name] = {"ring": "=1+1", "full": "@SUM(1)"}[held["settings"][name]]
        path.write_text(json.dumps(held), encoding="utf-8")
    text = table_text(sweep_table(out), format="csv")
    assert {line.split(",")[1] for line in text.splitlines()[1:]} == {"'=1+1", "'@SUM(1)"}
    assert ',"-13.25 [-20.17, -6.33]",' in text  # a difference of accuracies is no text


def test_the_formats_hold_the_same_figures(tmp_path, capsys):
    out = sweep_of(tmp_path / "d", FOUR)
    found = {}
    for name in ("markdown", "latex", "csv", "json"):
        assert cli.main(["table", str(out), "--columns", "graph.name", "--format", name]) == 0
        found[name] = capsys.readouterr().out
    assert "| ring | alpha | **84.00 ± 2.12** |" in found["markdown"]
    assert r"\textbf{84.00 $\pm$ 2.12}" in found["latex"]
    assert "ring,alpha,84.00 ± 2.12" in found["csv"]
    lines = json.loads(found["json"])["lines"]
    assert lines[1]["mean_model"]["mean"] == pytest.approx(84.0)
    assert lines[1]["epsilon"]["eavesdropper"] == {
        "epsilon": 6.0,
        "delta": 1e-5,
        "status": "proven",
    }


def test_a_name_of_latex_or_markdown_is_shown_and_does_nothing(tmp_path):
    values = ["a_b & 5 %", "![x](y) | \\input{z}"]
    held = {(values[0], "ring"): [0.5, 0.6], (values[1], "ring"): [0.5, 0.6]}
    grid = {"algorithm.name": values, "graph.name": ["ring"]}
    table = sweep_table(sweep_of(tmp_path / "d", held, grid=grid))
    latex = table_text(table, format="latex")
    assert r"a\_b \& 5 \%" in latex
    assert "\\input{" not in latex
    assert r"\!\[x\]\(y\) \|" in table_text(table).replace(r"(y)", r"\(y\)")


def test_the_interval_covers_as_often_as_it_says():
    """2,000 sweeps of 5 seeds without a difference: 95 % hold 0; false alarms below 1e-6."""
    generator = np.random.default_rng(5)
    told = 0
    for _ in range(2000):
        a, b = generator.normal(size=(2, 5))
        found = difference_of(dict(enumerate(a)), dict(enumerate(b)))
        told += found is not None and found.is_told
    assert stats.binom.cdf(told, 2000, 0.05) > 5e-7
    assert stats.binom.sf(told - 1, 2000, 0.05) > 5e-7


def test_a_mean_of_nothing_has_no_value():
    assert mean_of([]).count == 0
    assert math.isnan(mean_of([]).value)
    assert math.isnan(mean_of([1.0]).error)
    assert mean_of([math.inf, 1.0]).value == math.inf  # without a warning, which is an error here
    assert difference_of({1: 1.0}, {2: 1.0}) is None


def test_panels_stand_in_rows_and_columns_and_a_line_has_one_style(tmp_path):
    lines, grid = ["_a$x", "b$"], {"data.agents": [4, 6, 8], "privacy.epsilon": [1, 2]}
    held = {
        (str(row), str(column), line): [(row + column / 10 + number / 100) / 10] * (3 - number)
        for row, column in [(4, 1), (4, 2), (6, 1), (6, 2), (8, 2)]
        for number, line in enumerate(lines)
    }
    out = sweep_of(tmp_path / "d", held, grid={**grid, "algorithm.name": lines})
    asked = PlotRequest(panel=["agents", "privacy.epsilon"], cell="agents=4|6|8")
    figure = figure_of(out, asked)
    drawn = {axes.get_title(): [line.get_ydata()[0] for line in axes.lines] for axes in figure.axes}
    assert list(drawn) == [f"agents = {r}, epsilon = {c}" for r in (4, 6, 8) for c in (1, 2)]
    assert drawn.pop("agents = 8, epsilon = 1") == []
    assert drawn == {
        f"agents = {r}, epsilon = {c}": pytest.approx([100 * held[r, c, name][0] for name in lines])
        for r, c, _ in held
    }
    styles = {tuple((o.get_color(), o.get_linestyle()) for o in axes.lines) for axes in figure.axes}
    assert len(styles - {()}) == 1
    assert [one.get_text() for one in figure.legends[0].get_texts()] == [r" _a\$x", r"b\$"]
    words = figure.get_supxlabel()
    assert "n = 2 to 3 seeds; 23 of 48 runs failed or have not ended" in words.replace("\n", " ")
    own = figure_of(out, PlotRequest(cell="agents=4,epsilon=2,seed=1", agents=True))
    assert [line.get_ydata()[0] for line in own.axes[0].lines] == pytest.approx([22, 22.1])
    assert "\nagents = 4; epsilon = 2; one seed, no standard\nerror" in own.get_supxlabel()
    for ending in ("svg", "png", "pdf"):
        plot_sweep(out, tmp_path / f"a.{ending}", asked)
        assert (tmp_path / f"a.{ending}").stat().st_size > 1000


def test_bars_and_points_hold_the_means(tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    [axes] = figure_of(out, PlotRequest(x="graph.name")).axes
    heights = [patch.get_height() for patch in axes.patches]
    assert heights == pytest.approx([54.25, 70.5, 84.0, 70.75])
    next(out.glob("results/zeta_ring_seed-1-*")).unlink()
    half = figure_of(out, PlotRequest(x="graph.name", cell="seed=1")).axes[0]
    places = [(round(patch.get_x()), patch.get_height()) for patch in half.patches]
    assert places == [(1, pytest.approx(70)), (0, pytest.approx(80)), (1, pytest.approx(71))]
    errors = [segment for one in half.collections for segment in one.get_segments()]
    assert [len(segment) for segment in errors] == [0] * len(errors)  # of one seed
    figure = figure_of(out, PlotRequest(x="epsilon", panel="graph"))
    assert figure.get_supxlabel().startswith("epsilon of eavesdropper at delta 1e-05\n")


def test_names_are_wrapped_and_crowded_bars_have_slanted_ones(tmp_path):
    names, long = ["a|b", "b", *"cdefg"], "long " * 60
    grid = {"algorithm.name": [*names, long], "graph.name": ["ring"]}
    out = sweep_of(tmp_path / "d", {(name, "ring"): [0.5] for name in [*names, long]}, grid=grid)
    figure = figure_of(out, PlotRequest(x="algorithm", line="algorithm"))
    ticks = figure.axes[0].get_xticklabels()
    assert {one.get_rotation() for one in ticks} == {45}
    texts = [*ticks, *figure.legends[0].get_texts()]
    assert max(len(line) for one in texts for line in one.get_text().split("\n")) < 50
    [axes] = figure_of(out, PlotRequest(x="algorithm", cell="algorithm=a|b")).axes
    assert [one.get_text() for one in axes.get_xticklabels()] == ["a|b"]


@pytest.mark.parametrize("order", [1, -1])
def test_one_adversary_stands_on_the_axis_of_epsilon(tmp_path, order):
    """Another's epsilon is no stand-in where a run names another one first, or has it alone."""
    out = sweep_of(tmp_path / "d", {("zeta", "1"): [0.5], ("zeta", "2"): [0.6]}, grid=SPENT)
    [seen] = json.loads(next(out.glob("results/*.json")).read_text())["adversaries"]
    single = {**seen, "name": "single-message", "epsilon": 0.5}
    for name, held in zip(("1", "2"), [[single], [seen, single]][::order], strict=True):
        change(out, f"zeta_{name}_seed-1", adversaries=held)
    if order == 1:
        figure = figure_of(out, PlotRequest(x="epsilon"))
        assert points_drawn(figure.axes[0]) == [(0.5, 50), (0.5, 60)]
        assert figure.get_supxlabel().startswith("epsilon of single-message at")
    else:
        with pytest.raises(InputError, match="'eavesdropper' must be one of single-message, which"):
            figure_of(out, PlotRequest(x="epsilon"))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"y": "beauty"}, "y='beauty' must be one of"),
        ({"x": "model.name"}, "are round, epsilon, .*, and not 'model.name'"),
        ({"x": "name"}, "'name' may be algorithm.name or graph.name or data.name"),
        ({"x": "epsilon"}, "graph.name would be mixed"),
        ({"agents": "no"}, "agents='no' must be True or False"),
        ({"x": None}, "x=None must be a name"),
        ({"panel": "data.name"}, "'data.name' was not swept"),
        ({"line": "algorithm.name"}, "graph.name would be mixed"),
        ({"panel": ["graph.name", "graph"]}, "'graph.name' is given twice"),
        ({"panel": ["graph.name"] * 3}, "--panel is given 3 times"),
        ({"y": "psnr", "panel": "graph.name"}, "has no rounds"),
        ({"y": "rmse", "panel": "graph.name"}, "no run of the sweep .* has rmse"),
        ({"y": "gradient_norm", "agents": True}, "leave --agents out"),
        ({"cell": "graph=star"}, "graph.name of .* is ring or full, and not 'star'"),
        ({"x": "epsilon", "adversary": "moon", "panel": "graph.name"}, "adversary='moon'"),
        ({"adversary": "moon"}, "no effect without --x epsilon"),
        ({"gallery": True, "y": "loss"}, "--y has no effect with --gallery"),
        ({"gallery": True, "panel": None, "cell": None}, "was attacked, or none of --cell"),
    ],
)
def test_what_cannot_be_a_plot_is_refused(tmp_path, asked, words):
    with pytest.raises(InputError, match=words):
        figure_of(sweep_of(tmp_path / "d", FOUR), PlotRequest(**asked))


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"must end in one of \.svg"):
        plot_sweep(sweep_of(tmp_path / "d", FOUR), tmp_path / "a.docx", PlotRequest())


def change(out: Path, run: str, **values: Any) -> None:
    """Change what a result says, and the epsilon of its adversary."""
    path = next(out.glob(f"results/{run}-*.json"))
    held = json.loads(path.read_text(encoding="utf-8"))
    if (epsilon := values.pop("epsilon", None)) is not None:
        held["adversaries"][0]["epsilon"] = epsilon
        if epsilon == "inf":
            held["adversaries"][0] |= {"status": "no protection", "bound": "closed form"}
    path.write_text(json.dumps({**held, **values}), encoding="utf-8")


def test_a_line_with_a_run_that_contradicts_its_proof_is_not_called_proven(tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    change(out, "zeta_ring_seed-2", contradictions=["more was measured"])
    table = sweep_table(out, columns=["graph.name"])
    assert [cell.status(cell.spent[0]) for cell in table.cells] == ["contradicted", *["proven"] * 3]
    assert "audit of 1 run measured more than is proven" in table.caption
    with pytest.raises(InputError, match="its epsilon does not hold: more was measured"):
        figure_of(out, PlotRequest(x="epsilon", panel="graph"))


def points_drawn(axes: Any) -> list[tuple[float, float]]:
    drawn = [container.lines[0].get_xydata() for container in axes.containers]
    return [(round(float(x), 6), round(float(y), 6)) for line in drawn for x, y in line]


def test_a_figure_stands_at_the_largest_epsilon_of_its_seeds_and_none_is_lost(tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    change(out, "zeta_ring_seed-1", epsilon=9.0)
    axes = figure_of(out, PlotRequest(x="epsilon", panel="graph")).axes
    found = [point for one in axes for point in points_drawn(one)]
    assert sorted(found) == [(6.0, 70.5), (6.0, 70.75), (6.0, 84.0), (9.0, 54.25)]


def test_settings_with_an_infinite_epsilon_are_told_of(tmp_path):
    out = sweep_of(tmp_path / "d", FOUR)
    change(out, "zeta_ring_seed-2", epsilon="inf")
    figure = figure_of(out, PlotRequest(x="epsilon", panel="graph"))
    assert sum(len(points_drawn(axes)) for axes in figure.axes) == 3
    assert "of 1 of 4 settings infinite, and not shown" in figure.get_supxlabel()


def test_a_small_difference_keeps_its_digits(tmp_path):
    rows = {("zeta", "ring"): [0.5, 0.6], ("alpha", "ring"): [0.50001, 0.60002]}
    lines = lines_of(sweep_table(sweep_of(tmp_path / "d", rows), columns=["graph.name"]))
    assert lines[1]["difference"] == "+0.0015 [-0.00485, +0.00785]"


def test_the_page_holds_the_table_the_plot_and_what_failed(tmp_path, capsys):
    held = {**FOUR, ("zeta", "ring"): [math.nan, 0.60, 0.55]}
    out, page = sweep_of(tmp_path / "d", held), tmp_path / "a.html"
    assert cli.main(["table", str(out), "--format", "html", "--out", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert '<td class="best">84.00 ± 2.12</td>' in text
    assert "data:image/png;base64," in text
    assert "algorithm.name=zeta, graph.name=ring, seed 1: no" in text
    assert "<script" not in text
    command = ["table", str(out), "--format", "html", "--value", "loss"]
    assert cli.main(command) == 2
    assert "--value have no effect" in capsys.readouterr().err
