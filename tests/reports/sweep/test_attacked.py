"""Scores of attacks in a sweep's table: an image of a seed counts once, over its scenarios."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from overhear.attacks.scoring.metrics import bootstrap_interval
from overhear.privacy.errors import InputError
from overhear.reports.sweep import cells
from overhear.reports.sweep.plot import figure_of
from overhear.reports.sweep.table import lines_of, sweep_table, table_text
from overhear.runs.attack.scenario import PLANTED
from overhear.runs.requests import PlotRequest
from overhear.runs.sweep.results import read_results
from tests.reports.sweep.test_table import sweep_of


def row(mse, *, ssim=None):
    scores = {"mse": mse, "psnr": [-10 * math.log10(v) for v in mse], "ssim": ssim or mse}
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    return SimpleNamespace(**scores, mean=SimpleNamespace(**means))


def scenario(mse, *, attack="", **more):
    first = row([9.0] * len(mse))  # a blind guess, which is not counted
    return SimpleNamespace(attack=attack, rows=[first, row(mse, **more)])


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Two lines of two seeds, of which the second line was not attacked."""
    names = ["zeta", "alpha"]
    lines = {(name,): [0.5] * 2 for name in names}
    grid = {"algorithm.name": names}
    out = sweep_of(tmp_path / "d", lines, attacked="zeta", grid=grid, seeds=2)
    found = {
        result.name: SimpleNamespace(
            scenarios=[
                scenario([base, base + 0.2]),
                scenario([base + 0.02, base + 0.24]),
                scenario([5.0, 5.0], attack="somebody's own"),
            ]
        )
        for result in read_results(out)
        for base in [0.1 * result.seed]
    }
    monkeypatch.setattr(cells, "read_attack", lambda folder: found[folder.name])
    return out, found


PER_IMAGE = [0.11, 0.32, 0.21, 0.42]  # of seeds 1 and 2, each the mean of two scenarios


def test_an_image_counts_once_with_its_mean_over_scenarios(sweep):
    out, _ = sweep
    table = sweep_table(out)
    of = table.cells[0].attacked["mse"]
    assert of.count == 4
    assert of.mean == pytest.approx(np.mean(PER_IMAGE))
    assert (of.low, of.high) == pytest.approx(bootstrap_interval(PER_IMAGE))
    assert of.low < of.mean < of.high
    assert table.cells[1].attacked == {}
    assert sweep_table(out, value="mse").cells[0].mean.value == pytest.approx(of.mean)


def test_the_columns_stand_in_every_format(sweep):
    out, _ = sweep
    table = sweep_table(out)
    first, second = lines_of(table)
    assert first["attack MSE"].startswith("0.265 [")
    assert "attack SSIM" in first
    assert "attack MSE" not in second
    assert "mean over n = 4 images of all seeds" in table.caption
    assert "attack MSE" in table_text(table, format="csv").splitlines()[0]
    held = json.loads(table_text(table, format="json"))["lines"][0]["attack"]["mse"]
    assert held["images"] == 4
    assert held["mean"] == pytest.approx(0.265)


def test_what_has_no_ssim_has_no_column_of_it_and_a_perfect_psnr_is_infinite(sweep):
    out, found = sweep
    for one in found.values():
        one.scenarios = [scenario([0.5], ssim=[math.nan])]
        one.scenarios[0].rows[-1].psnr = [math.inf]
    table = sweep_table(out)
    assert set(table.cells[0].attacked) == {"mse", "psnr"}
    assert table.cells[0].attacked["psnr"].mean == math.inf
    assert "∞" in lines_of(table)[0]["attack PSNR, dB"]
    held = json.loads(table_text(table, format="json"))["lines"][0]["attack"]["psnr"]
    assert held["mean"] == "inf"


def test_a_single_image_has_no_interval(sweep):
    out, found = sweep
    for one in found.values():
        one.scenarios = [scenario([0.5])]
    assert sweep_table(out).cells[0].attacked["mse"].count == 2
    one = [of for of in read_results(out) if of.attacked][:1]
    alone = cells.over_images(out, one)["mse"]
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_a_sweep_without_an_attack_has_no_such_column(sweep):
    out, found = sweep
    for name in found:
        found[name] = None
    table = sweep_table(out)
    assert not any("attack" in head for head in lines_of(table)[0])
    assert "images" not in table.caption


def test_a_gallery_has_the_pictures_of_its_seed_scenario_and_round(sweep):
    out, found = sweep
    levels = {}

    def paint(point, *what):
        """The file of a picture of a level of its own."""
        path = out / "points" / point / "attacks" / f"{'-'.join(what)}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), levels.setdefault((point, *what), len(levels))).save(path)
        return f"attacks/{path.name}"

    def rebuilt(point, name, *where):
        images = [paint(point, name, *where)]
        return SimpleNamespace(name=name, images=images, psnr=[levels[point, name, *where]])

    kinds, scenarios = ("no defence", "defended"), ("cross-gradient", "momentum")
    for point, held in found.items():
        held.scenarios = [
            SimpleNamespace(
                attack="",
                scenario=of,
                round=number,
                victim=0,
                preset="dlg",
                records=PLANTED,
                originals=[paint(point, "truth")],
                rows=[
                    rebuilt(point, "blind guess", str(number)),
                    *(rebuilt(point, kind, str(number), of) for kind in (*kinds, "clipping only")),
                ],
            )
            for number in (9, 4)
            for of in scenarios
        ]
    [axes] = figure_of(out, PlotRequest(gallery=True, cell="seed=2")).axes
    point = next(name for name in found if "zeta_seed-2" in name)
    places = [(kind, number, of) for kind in kinds for of in scenarios for number in "49"]
    places = [("truth",)] * 2 + places + [("blind guess", number) for number in "49"]
    wanted = [levels[point, *place] for place in places]
    assert [int(image.get_array()[0, 0, 0]) for image in axes.images] == wanted
    texts = [text for one in axes.texts if (text := one.get_text().replace("\n", " "))]
    assert [text for text in texts if "dB" in text] == [f"{level:.1f} dB" for level in wanted[2:]]
    names = [f"{kind}, {of}" for kind in kinds for of in scenarios]
    names = ["seed 2", "round 4", "round 9", "truth", *names, "blind guess"]
    assert [text for text in texts if "dB" not in text] == names
    # No file that lies elsewhere is drawn, and no record that is not a planted public one.
    first, *others = found[point].scenarios
    shutil.copy(out / "points" / point / first.originals[0], out / "elsewhere.png")
    first.originals = ["../../elsewhere.png"]
    for other in others:
        other.records = "records of its own"
    drawn = figure_of(out, PlotRequest(gallery=True, cell="seed=2")).axes[0].images
    assert [int(image.get_array()[0, 0, 0]) for image in drawn] == [
        levels[point, kind, "9", first.scenario] for kind in kinds
    ] + [levels[point, "blind guess", "9"]]
    for held in found.values():
        held.scenarios = [SimpleNamespace(attack="", originals=[])]
    with pytest.raises(InputError, match="rows of a table and no pictures"):
        figure_of(out, PlotRequest(gallery=True))
