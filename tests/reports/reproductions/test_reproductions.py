"""The registry of tables and figures: complete, runnable, and no figure without a source."""

import json

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.privacy.published.whisper import whisper_information
from overhear.reports.reproduced.paper_result import (
    ENTRIES,
    LEAST_SEEDS,
    SCALES,
    energies_of,
    entry_named,
    noise_energies,
)
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
    *(f"dpmixsgd-table-{number}{letter}" for number in (2, 4) for letter in "abcd"),
    "dpmixsgd-table-3",
    *(f"dyn-d2p-{name}" for name in ("table-1", "table-2", "figure-1", "figure-4", "figure-5")),
    *(f"whisper-{name}" for name in ("quadratic", "a9a-p", "a9a-epsilon", "noise-p")),
)
RUN = [entry for entry in ENTRIES.values() if entry.closed is None]


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
        assert all(len(claim.source) > 20 for claim in entry.claims)
        assert entry.printed is None or entry.printed.source.startswith("Table ")
        for scale in entry.scales.values():
            assert scale.differs  # each paper leaves some of its settings to us


def test_an_entry_is_the_table_that_it_is_named_after():
    for number, data, model, graphs in (
        (1, "mnist", "lenet", ["bipartite", "full"]),
        (2, "cifar10", "cnn", ["bipartite", "full"]),
        (5, "mnist", "lenet", ["ring"]),
        (6, "cifar10", "cnn", ["ring"]),
    ):
        scale = ENTRIES[f"dpdl-table-{number}"].scales["paper"]
        assert (scale.base["data"]["name"], scale.base["model"]["name"]) == (data, model)
        assert list(scale.grid["graph.name"]) == graphs
        assert list(scale.grid["data.agents"]) == [10, 20, 30]
        assert len(scale.grid["privacy.epsilon"]) * len(scale.grid["data.concentration"]) == 6
    for part, varied in zip(
        "abcd",
        ("data.agents", "graph.edge_probability", "privacy.epsilon", "privacy.delta"),
        strict=True,
    ):
        for number, sets in ((2, 3), (4, 1)):
            grid = ENTRIES[f"dpmixsgd-table-{number}{part}"].scales["paper"].grid
            assert (len(grid[varied]), len(grid["data.name"])) == (4, sets)
    for number, (graph, data) in {
        1: ("bipartite", "mnist"), 2: ("full", "mnist"), 3: ("bipartite", "cifar10"),
        4: ("full", "cifar10"), 8: ("ring", "mnist"), 9: ("ring", "cifar10"),
    }.items():  # fmt: skip
        entry = ENTRIES[f"dpdl-figure-{number}"]
        base = entry.scales["paper"].base
        assert (entry.value, base["graph"]["name"], base["data"]["name"]) == ("loss", graph, data)


def test_attacks_and_accuracies_of_dpdl_have_one_setting():
    known = [
        ENTRIES[name].scales["paper"].base
        for name in ("dpdl-table-1", "dpdl-table-3", "dpdl-figure-1", "dpdl-figure-5")
    ]
    for table, keys in {
        "training": ("rounds", "batch_size", "learning_rate"), "privacy": ("delta", "clip_norm"),
        "algorithm": ("alpha", "momentum"),
    }.items():  # fmt: skip
        for key in keys:
            assert len({base[table].get(key) for base in known}) == 1
    lost = ENTRIES["dpdl-table-3"].scales["paper"].differs[0]
    for word in ("delta", "Dirichlet", "momentum", "alpha", "rounds"):
        assert word in lost
    recursion = "beta and the first batch"
    for name in ("dpmixsgd-table-2a", "dpmixsgd-table-4a", "dpmixsgd-table-3", "dpmixsgd-figure-1"):
        assert recursion in "; ".join(ENTRIES[name].scales["paper"].differs)
    assert ENTRIES["dpmixsgd-figure-1"].scales["paper"].base["graph"]["name"] == "erdos-renyi"


def test_smoke_is_small_and_a_scale_with_fewer_seeds_than_a_claim_takes_says_so():
    for entry in RUN:
        assert runs_of(entry, "smoke") <= 24
        smoke = entry.scales["smoke"]
        own = [smoke.base["data"]["name"]] if "name" in smoke.base.get("data", {}) else []
        for name in smoke.grid.get("data.name", own):
            assert name in ("digits", "quadratic")  # no files
        for scale in map(entry.scales.get, ("small", "medium")):
            if scale.seeds < LEAST_SEEDS and not scale.attack:
                assert "three seeds" in "; ".join(scale.differs)


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
    assert len(seen) == 15  # 3 of 5 rounds, 3 of 200, 9 of 5000


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
