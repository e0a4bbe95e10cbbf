"""The registry of tables and figures: complete, runnable, and no figure without a source."""

import json

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.published.whisper import whisper_information
from overhear.reports.reproduced.closed_forms import energies_of, noise_energies
from overhear.reports.reproduced.paper_result import LEAST_SEEDS, SCALES
from overhear.reports.reproduced.registry import ENTRIES, entry_named
from overhear.reports.reproduced.work_estimates import runs_of, sweep_of
from overhear.reports.sweep.table import VALUES
from overhear.runs.sweep.sweep_file import check_points, points_of
from overhear.training.graphs.graph import Graph
from tests.real_data import reference_values

WANTED = (
    *(f"dpdl-table-{number}" for number in (1, 2, 3, 4, 5, 6)),
    *(f"dpdl-figure-{number}" for number in (1, 2, 3, 4, 5, 6, 8, 9)),
    "dpmixsgd-figure-1",
    "dpmixsgd-auroc",
    *(f"dpmixsgd-table-2{letter}" for letter in "abcd"),
    *(f"dyn-d2p-{name}" for name in ("table-1", "table-2", "figure-1", "figure-4", "figure-5")),
    *(f"whisper-{name}" for name in ("quadratic", "a9a-p", "a9a-epsilon", "noise-p")),
)
RUN = [entry for entry in ENTRIES.values() if not entry.lacks and entry.closed is None]


def test_every_table_and_figure_has_an_entry_under_its_name():
    assert set(WANTED) == set(ENTRIES)
    assert all(name == entry.name for name, entry in ENTRIES.items())


@pytest.mark.parametrize("entry", RUN, ids=lambda entry: entry.name)
def test_a_row_of_each_sweep_can_be_run(entry, monkeypatch):
    monkeypatch.setenv("OVERHEAR_DATA", "somewhere")
    assert entry.value in VALUES
    for scale in SCALES:
        sweep, base = sweep_of(entry, scale)
        points = points_of(sweep, {})
        first = {tuple(point.settings.values()): point for point in points[:1]}
        assert not check_points(base, list(first.values()))
        assert set(entry.columns) <= set(entry.scales["paper"].grid)


@pytest.mark.slow
@pytest.mark.parametrize("entry", RUN, ids=lambda entry: entry.name)
def test_no_row_of_a_sweep_is_refused(entry, monkeypatch):
    monkeypatch.setenv("OVERHEAR_DATA", "somewhere")
    for scale in SCALES:
        sweep, base = sweep_of(entry, scale)
        assert not check_points(base, points_of(sweep, {}))


def test_figures_and_claims_of_papers_say_where_they_were_read():
    for entry in ENTRIES.values():
        for one in (*entry.figures, *entry.claims):
            assert len(one.source) > 20
        for scale in entry.scales.values():
            assert scale.differs or scale.comparable  # what is another setting says how


def test_smoke_is_small_and_a_claim_at_another_scale_has_enough_seeds():
    for entry in RUN:
        assert runs_of(entry, "smoke") <= 24
        assert entry.scales["smoke"].base["data"]["name"] in ("digits", "quadratic")  # no files
        assert min(entry.scales[name].seeds for name in ("small", "paper")) >= LEAST_SEEDS


def test_the_quoted_accuracies_of_dyn_d2p_are_figures_of_its_lines():
    entry = ENTRIES["dyn-d2p-table-2"]
    sweep, _ = sweep_of(entry, "paper")
    rows = [{key: choice.shown for key, choice in row.items()} for row in sweep.rows()]
    held = {tuple(one.place.items()): one.low for one in entry.figures}
    assert len(held) == 8
    assert held[("algorithm.clip_decay", "Const"), ("privacy.epsilon", "0.3")] == 45.4
    assert all(any(dict(place).items() <= row.items() for row in rows) for place in held)


def test_the_noise_of_whisper_is_that_of_its_theorem():
    seen = set()
    for name in ("whisper-quadratic", "whisper-a9a-p", "whisper-a9a-epsilon"):
        for scale in ENTRIES[name].scales.values():
            noises = {
                row["label"]: row["privacy.noise_multiplier"]
                for row in scale.grid.get("privacy.noise_multiplier", ())
            } or {"epsilon 10": scale.base["privacy"]["noise_multiplier"]}
            for label, noise in noises.items():
                epsilon, rounds = float(label.split()[1]), scale.base["training"]["rounds"]
                allowed = whisper_information(epsilon=epsilon, delta=1e-5, rounds=rounds)
                assert noise == round(allowed**-0.5, 6)
                seen.add((epsilon, rounds))
    assert len(seen) == 14  # 3 of 5 rounds, 3 of 200, 8 of 5000


def test_a_name_that_is_near_is_told():
    with pytest.raises(InputError, match=r"no table or figure is called 'dpdl-tabel-1'; did you .*"
                       r"dpdl-table-1"):  # fmt: skip
        entry_named("dpdl-tabel-1")


def test_noise_on_a_full_graph_is_that_of_a_server_for_all_but_independent_agents():
    full = [one for one in noise_energies("smoke") if one.place["graph.edge_probability"] == "1"]
    found = {one.place["algorithm.name"]: one.values[1] for one in full}
    assert found["CDP"] == pytest.approx(found["LDP"] / 20)
    assert found["DECOR"] == pytest.approx(found["CDP"], rel=1e-3)
    assert found["Whisper"] == pytest.approx(found["CDP"], rel=1e-3)


@pytest.mark.data
def test_noise_energies_are_those_of_the_reference_file():
    path = reference_values("whisper.json")
    for case in json.loads(path.read_text())["cases"]:
        graph = Graph(name="golden", weights=np.array(case["W"]))
        found = energies_of(graph, bound=case["privacy_bound_b"])
        assert found["LDP"] == pytest.approx(case["ldp"]["tr_WRWt"], rel=1e-9)
        assert found["DECOR"] == pytest.approx(case["decor"]["tr_WRWt"], rel=1e-6)
        assert found["Whisper"] == pytest.approx(case["whisper"]["tr_WRWt"], rel=1e-6)
        assert found["CDP"] == pytest.approx(case["cdp"]["tr_equiv_corrected"], rel=1e-9)
