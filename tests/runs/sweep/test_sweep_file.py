"""Sweep files: what they say, and what is refused in a sentence."""

import time
from typing import Any

import pytest

from overhear.privacy.errors import InputError
from overhear.runs.sweep import sweep_file

RUN: dict[str, Any] = {
    "data": {"name": "digits", "agents": 2},
    "model": {"name": "linear"},
    "algorithm": {"name": "dp-dpsgd"},
    "privacy": {"noise_multiplier": 1.0, "delta": 1e-5},
    "training": {"rounds": 2, "sampling_rate": 0.05},
}


def swept(**values: Any) -> Any:
    return sweep_file.checked(
        {"base": RUN, "grid": {"graph.name": ["ring"]}, **values}, where="s.toml"
    )


def test_every_combination_is_a_run_of_every_seed_and_the_last_key_varies_fastest():
    grid = {"graph.name": ["ring", "full"], "training.rounds": [1, 2, 3]}
    points = sweep_file.points_of(swept(grid=grid, seeds=2), {})
    assert len(points) == 12
    assert [p.settings["training.rounds"] for p in points[::2]] == ["1", "2", "3"] * 2
    assert [p.seed for p in points[:4]] == [1, 2, 1, 2]
    assert len({p.name for p in points}) == 12


def test_keys_that_go_together_are_one_value_under_a_label():
    value = {"graph.name": "erdos-renyi", "graph.edge_probability": 0.4, "label": "random"}
    [point] = sweep_file.points_of(swept(grid={"graph.name": [value]}), {})
    assert point.settings == {"graph.name": "random"}
    assert 'graph.name="erdos-renyi"' in point.overrides
    assert "graph.edge_probability=0.4" in point.overrides


def test_a_value_that_is_a_table_goes_with_others_under_a_label():
    turns = {"cycle": 2}
    value = {"algorithm.name": "mafalda", "privacy.participation": turns, "label": "turns"}
    [point] = sweep_file.points_of(swept(grid={"algorithm.name": [value]}), {})
    assert 'privacy.participation={"cycle" = 2}' in point.overrides


def test_keys_may_stand_in_tables_without_quotes():
    found = swept(grid={"graph": {"name": ["ring", "full"]}})
    assert found.grid == {"graph.name": ["ring", "full"]}


def test_no_seed_of_tuning_is_reported_and_every_tried_run_keeps_records_for_validation():
    found = swept(tune={"training.learning_rate": [0.1, 1.0], "seeds": 2}, seeds=3)
    tried = [point for one in sweep_file.tried_of(found) for point in one.points]
    assert len(tried) == 4
    assert {p.seed for p in tried} == {sweep_file.TUNING_SEEDS, sweep_file.TUNING_SEEDS + 1}
    assert all("data.validation=0.2" in p.overrides for p in tried)
    assert not {p.seed for p in tried} & {p.seed for p in sweep_file.points_of(found, {})}


def test_a_sweep_file_is_read_back_as_it_is_kept(tmp_path):
    found = swept(
        grid={"graph.name": ["ring", {"graph.name": "full", "label": "all"}]},
        tune={"training.learning_rate": [0.1], "validation": 0.3},
        also={"attack": {"seed": [4]}},
        seeds=[4, 5],
    )
    path = tmp_path / "sweep.toml"
    path.write_text(sweep_file.file_text(found, RUN), encoding="utf-8")
    again, base = sweep_file.read_sweep_file(path)
    assert again.model_dump() == found.model_dump()
    assert base == RUN


def test_a_run_file_is_found_here_or_beside_the_sweep_file(tmp_path, run_file, monkeypatch):
    sweep = tmp_path / "s.toml"
    sweep.write_text(
        f'base = "{run_file.name}"\n[grid]\n"graph.name" = ["ring"]\n', encoding="utf-8"
    )
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert "model" in sweep_file.read_sweep_file(sweep)[1]
    run_file.unlink()
    with pytest.raises(FileNotFoundError, match="is no file, neither here nor in"):
        sweep_file.read_sweep_file(sweep)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"grid": {}}, "names no key, so there is nothing to sweep"),
        ({"grid": {"graph.name": []}}, "has no value; give at least one"),
        ({"grid": {"graph.name": "ring"}}, "graph.name='ring'"),
        ({"grid": {"graph.name": ["ring", "ring"]}}, "gives ring twice"),
        ({"grid": {"graph": ["ring"]}}, "must read table.key"),
        ({"grid": {"training.seed": [1]}}, "is what `seeds` is for"),
        ({"seeds": 0}, "seeds=0"),
        ({"seeds": [1, "a", 2.5, -1]}, r"^s.toml: seeds=.* or a list of different integers from 0"),
        ({"seeds": []}, "names no seed"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"seeds": [sweep_file.TUNING_SEEDS]}, "must lie below"),
        ({"tune": {}}, "names no key"),
        ({"tune": {"graph.name": ["full"]}}, "leave it in one of them"),
        ({"tune": {"training.learning_rate": [1.0], "validation": 1.0}}, "validation=1.0"),
        ({"also": {"attack": {"model.name": ["linear"]}}}, "is no key of \\[grid\\]"),
        ({"also": {"plot": True}}, "is no key of a sweep file"),
        ({"gird": {}}, "did you mean grid"),
        ({"base": 3}, "base=3"),
        ({"seeds": 1000, "grid": {"training.rounds": list(range(1, 102))}}, "has 101000 runs"),
    ],
)
def test_what_is_no_sweep_is_refused_in_a_sentence(values, words):
    with pytest.raises(InputError, match=words):
        swept(**values)


def test_a_file_of_another_encoding_is_named_once(tmp_path):
    path = tmp_path / "s.toml"
    path.write_bytes(b'base = "\xff"')
    with pytest.raises(InputError) as refusal:
        sweep_file.read_sweep_file(path)
    assert str(refusal.value).count(str(path)) == 1


def test_a_missing_or_broken_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sweep file at"):
        sweep_file.read_sweep_file(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text("base = [", encoding="utf-8")
    with pytest.raises(InputError, match="is not TOML"):
        sweep_file.read_sweep_file(tmp_path / "s.toml")
    (tmp_path / "s.toml").write_text("seeds = 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="base is missing"):
        sweep_file.read_sweep_file(tmp_path / "s.toml")


def test_settings_that_differ_have_names_that_differ(tmp_path):
    values = ["a/b", "a b", "a-b", "x" * 200 + "1", "x" * 200 + "2", "../../etc"]
    points = sweep_file.points_of(swept(grid={"graph.path": values}), {})
    names = {p.name for p in points}
    assert len(names) == len(values)
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in names)


RATE = "training.learning_rate"


def test_a_table_without_a_key_of_the_run_file_is_a_value():
    cosine = {"schedule": "cosine", "start": 0.5}
    values = [0.1, [0.2, 0.1], cosine, {**cosine, "start": 0.25, "label": "slow"}]
    points = sweep_file.points_of(swept(grid={RATE: values}), {})
    shown = [point.settings[RATE] for point in points]
    assert shown == ["0.1", "[0.2, 0.1]", "schedule=cosine, start=0.5", "slow"]
    assert points[3].overrides[0] == f'{RATE}={{"schedule" = "cosine", "start" = 0.25}}'
    assert len({point.name for point in points}) == 4


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"also": {"attack": {"graph.name": ["rng"]}}}, "no run of the sweep has graph.name='rng'"),
        ({"also": {"audit": {"seed": [9]}}}, "audit: no run of the sweep has seed=9; choose among"),
        ({"also": {"audit": {"seed": ["1"]}}}, "no run of the sweep has seed='1'"),
        ({"grid": {"graph.name": [{"graph.name": "ring", RATE: 1}], RATE: [2]}}, "both set"),
        (
            {"grid": {"graph.name": [{"graph.name": "ring", RATE: 1}]}, "tune": {RATE: [2]}},
            "both set 'training.learning_rate'",
        ),
        ({"grid": {"graph.name": [{"graph.name": "ring", "training.seed": 1}]}}, "`seeds` is for"),
        (
            {"tune": {RATE: [{RATE: 1, "data.validation": 0.5}]}},
            "sets 'data.validation', which .tune. validation sets",
        ),
        ({"grid": {"data.validation": [0.5]}, "tune": {RATE: [1]}}, "no reported run may have"),
        ({"grid": {"graph.name": [{"label": "x"}]}}, "has a table without a key"),
        ({"grid": {f"a.b{i}": list(range(10)) for i in range(400)}}, "has about 1e\\+300 runs"),
    ],
)
def test_what_would_be_undone_or_left_out_in_silence_is_refused(values, words):
    with pytest.raises(InputError, match=words):
        swept(**values)


def test_a_truth_value_is_chosen_as_the_file_writes_it():
    also = {"attack": {"model.pretrained": [True]}}
    sweep = swept(grid={"model.pretrained": [True, False]}, also=also)
    assert [point.attack for point in sweep_file.points_of(sweep, {})] == [True, False]


def test_words_in_a_list_keep_their_spaces():
    sweep = swept(grid={"data.columns": [["a  b", "c"]]})
    assert sweep_file.points_of(sweep, {})[0].overrides[0] == 'data.columns=["a  b", "c"]'


def test_many_values_of_one_key_are_read_in_linear_time():
    values = [f"v{i}" for i in range(60_000)]
    began = time.process_time()
    swept(grid={"training.rounds": values})
    assert time.process_time() - began < 15
