"""Rows of a table under attack: mixed columns through train, attack, report and check."""

from pathlib import Path

import pytest
import torch

from overhear.attacks.scoring.columns import Distance, column_scores, decoded, with_columns
from overhear.attacks.scoring.metrics import match
from overhear.commands import cli
from overhear.privacy.errors import InputError
from overhear.reports.document.collect import read_checked_run, report_run
from overhear.runs.attack.attack import attack_run
from overhear.runs.attack.planted import HELD_OUT, plant
from overhear.runs.attack.points import check_attackable
from overhear.runs.audit.evidence import read_attack
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.build import build, data_of
from overhear.runs.run_file.run_file import RunFile, load_run_file
from tests.real_data import root_with

RUN = """
[data]
name = "csv"
root = "{root}"
target = "relapse"
agents = 4
[data.columns]
age = [0, 120]
sex = ["f", "m"]
smoker = [0, 1]
relapse = ["no", "yes"]
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 0
delta = 1e-4
[training]
rounds = 1
sampling_rate = 0.1
[intercept]
rounds = [1]
[attack]
presets = ["matched"]
images = 2
restarts = 1
"""


def test_a_weight_of_public_records_is_refused_where_none_are_known_or_for_a_batch(tmp_path):
    text = RUN.format(root=_table(tmp_path / "t.csv"))
    for changes, words in (
        ([], r"posterior weighs public records, and none of 't\.csv' are known; use matched"),
        (["attack.batch=2"], r"one at a time, and not batch=2; use matched, or set batch = 1"),
    ):
        (tmp_path / "run.toml").write_text(text)
        config = load_run_file(
            tmp_path / "run.toml", ['attack.presets=["posterior"]', "attack.images=4", *changes]
        )
        with pytest.raises(InputError, match=words):
            check_attackable(config, built=build(config, device=torch.device("cpu")))


def _table(path: Path, *, records: int = 60, alike: bool = False) -> Path:
    draw = torch.Generator().manual_seed(records)
    lines = ["age,sex,smoker,relapse"]
    for i in range(records):
        age, sex, smoker = torch.randint(20, 90, (3,), generator=draw).tolist()
        row = "50,f,1" if alike else f"{age},{'fm'[sex % 2]},{smoker % 2}"
        lines.append(f"{row},{('no', 'yes')[i % 2]}")
    path.write_text("\n".join(lines) + "\n")
    return path


def _config(folder: Path, *given: str) -> RunFile:
    (folder / "file.toml").write_text(RUN.format(root=_table(folder / "rows.csv")))
    return load_run_file(folder / "file.toml", given)


def _trained(folder: Path, *given: str) -> Path:
    train_run(_config(folder, *given), folder / "out")
    return folder / "out"


def test_without_noise_every_column_is_rebuilt_and_shown(tmp_path):
    test = _table(tmp_path / "test.csv", records=40)
    folder = _trained(tmp_path, f"data.test={str(test)!r}")
    (scenario,) = attack_run(folder).scenarios
    last = scenario.rows[-1]
    assert [one.name for one in last.columns] == ["age", "sex", "smoker"]
    assert [one.kind for one in last.columns] == ["number", "category", "binary"]
    assert (last.certified, last.whole) == (2, 2)
    assert float(last.columns[0].mae or 0) < 0.1 < float(last.columns[0].baseline)
    assert [one.accuracy for one in last.columns[1:]] == [1.0, 1.0]
    held = [line.split(",")[:3] for line in test.read_text().splitlines()[1:]]
    assert all(values in held for values in scenario.values)
    assert [values[1:] for values in last.values] == [values[1:] for values in scenario.values]
    assert scenario.conclusion.startswith("A leak is shown") or "2 of 2" in scenario.bound.sentence
    page = report_run(folder).read_text(encoding="utf-8")
    assert "what the attack made of the run's own messages" in page
    assert "Pixels" not in page
    assert read_checked_run(folder).reported


def test_markdown_under_either_name_holds_the_errors_of_a_table(tmp_path, capsys):
    folder = _trained(tmp_path)
    attack_run(folder)
    said = []
    for name in ("md", "markdown"):
        assert cli.main(["report", str(folder), "--format", name]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    attack = said[0].partition("## Attack")[2].partition("## ")[0]
    assert "| error | certified, whole | found |" in attack
    assert "PSNR" not in attack
    assert "2 certified, 2 whole of 2 | 2 of 2 rebuilt" in attack


def test_values_of_held_out_records_are_not_kept(tmp_path):
    folder = _trained(tmp_path)
    (scenario,) = attack_run(folder).scenarios
    assert (scenario.records, scenario.values) == (HELD_OUT, [])
    assert all(row.values == [] for row in scenario.rows)
    assert "what the attack made of the run's own messages" not in report_run(folder).read_text()
    assert read_attack(folder) is not None


def test_the_error_of_a_record_counts_each_column_once(tmp_path):
    data = with_columns(data_of(_config(tmp_path)))
    truth = torch.tensor([[0.25, 1.0, 0, 0, 0, 1.0]])
    for guess, error in (
        ([[0.75, 1.0, 0, 0, 0, 1.0]], 0.25 / 3),
        ([[0.25, 0, 1.0, 0, 0, 1.0]], 1 / 3),
        ([[0.25, 1.0, 0, 0, 0, 0.0]], 1 / 3),
        ([[0.75, 0, 0, 1.0, 0, 0.0]], 2.25 / 3),
    ):
        by = Distance.of(data.columns)
        points = by.points(truth), by.points(torch.tensor(guess))
        assert match(*points, convention=by.convention).mse == pytest.approx([error])


def test_categories_and_binary_values_are_decoded_to_one(tmp_path):
    data = with_columns(data_of(_config(tmp_path)))
    found = decoded(torch.tensor([[1.2, 0.3, 0.4, -0.1, 0.0, 0.6]]), data.columns)
    assert found.tolist() == [[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]]
    (_, sex, _) = column_scores(data.columns, found, found, blind=found)
    assert (sex.accuracy, sex.auc) == (1.0, None)  # one value: nothing to rank


def test_public_records_that_are_all_alike_are_refused(tmp_path):
    test = _table(tmp_path / "test.csv", records=10, alike=True)
    data = with_columns(data_of(_config(tmp_path, f"data.test={str(test)!r}")))
    with pytest.raises(ValueError, match="all have the same values"):
        plant(data, 2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--convention", "dpdl"], "scales the pixels of images"),
        (["--images", "12"], "images=12 must be at most 11"),
    ],
)
def test_what_a_table_does_not_take_is_refused(tmp_path, given, words, capsys):
    assert cli.main(["attack", str(_trained(tmp_path)), *given]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(("network", "batch"), [("linear", 1), ("mlp", 16), ("mlp", 32)])
def test_rows_of_a9a_are_rebuilt_whole_without_noise(network, batch, tmp_path):
    root = root_with("libsvm/a9a")
    _, tail = RUN.split("[data.columns]")
    lines = f'[data]\nname = "libsvm"\nroot = "{root}/libsvm/a9a"\nfeatures = 123\nagents = 4\n'
    text = lines + tail[tail.index("[model]") :]
    (tmp_path / "file.toml").write_text(text)
    many = max(batch, 2)
    given = [
        "training.sampling_rate=0.01", f"model.name={network!r}", f"attack.batch={batch}",
        f"attack.images={many}",
    ]  # fmt: skip
    train_run(load_run_file(tmp_path / "file.toml", given), tmp_path / "out")
    (scenario,) = attack_run(tmp_path / "out").scenarios
    assert (scenario.rows[-1].whole, scenario.rows[0].whole) == (many, 0)
    assert scenario.rows[-1].certified == many
    assert {one.kind for one in scenario.rows[-1].columns} == {"binary"}
    assert len(scenario.values[0]) == 123
