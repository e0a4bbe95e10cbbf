"""Gradients of rows of a table, attacked with its declared columns."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from overhear.attacks.problem.objective import PRESETS
from overhear.runs.attack.invert import attack_gradients, read_columns
from overhear.runs.attack.words import summary_lines
from overhear.runs.requests import GradientRequest
from overhear.training.data.table import read_table
from overhear.training.models.parameters import build_model

CLASSES = 2


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    """Each test in a folder of its own, and with few steps."""
    monkeypatch.chdir(tmp_path)
    short = replace(PRESETS["matched"], adam_steps=80, starts=1)
    monkeypatch.setattr("overhear.attacks.problem.objective.PRESETS", {"matched": short})


COLUMNS = """
[data]
name = "csv"
target = "ill"

[data.columns]
age = [0, 120]
sex = ["f", "m"]
town = ["a", "b", "c"]
ill = ["no", "yes"]
"""
ROWS = "age,sex,town,ill\n30,m,b,yes\n61,f,c,no\n"


def tabled(rows: str = ROWS) -> tuple[Path, Path, Path]:
    """A file of columns, the true rows, and the gradient of a network on them."""
    columns, truth, file = Path("run.toml"), Path("truth.csv"), Path("g.safetensors")
    columns.write_text(COLUMNS, encoding="utf-8")
    truth.write_text(rows, encoding="utf-8")
    known = read_columns(columns)
    store = read_table(truth, known.declaration, form="csv", separator=",")
    inputs, labels = store.take(torch.arange(store.size)).inputs, store.targets
    made = torch.Generator().manual_seed(0)
    model = build_model("mlp", input_shape=(10,), classes=CLASSES, generator=made)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    held = dict(zip(names, gradients, strict=True))
    held |= {f"parameter.{n}": p.detach() for n, p in model.named_parameters()}
    save_file(held, file)
    return file, columns, truth


def test_rows_of_a_table_are_told_column_by_column():
    file, columns, truth = tabled()
    found = attack_gradients(
        GradientRequest(
            file, model="mlp", out=Path("out"), columns=columns, truth=truth, records=2,
            classes=CLASSES,
        )
    )  # fmt: skip
    assert sorted(found.values) == [["30", "m", "b"], ["61", "f", "c"]]
    assert found.whole == 2
    assert [(one.name, one.accuracy) for one in found.columns][1:] == [("sex", 1.0), ("town", 1.0)]
    age = found.columns[0]
    assert age.mae is not None
    assert age.mae < 0.1 < age.baseline
    said = "\n".join(summary_lines(found, Path("out")))
    assert "right in every column: 2 of 2 records" in said
    assert "30, m, b" in said


def test_what_is_no_file_is_not_read_for_columns(tmp_path):
    with pytest.raises(ValueError, match="is no regular file"):
        read_columns(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file of columns"):
        read_columns(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("x = 1", None, "must declare .data.columns."),
        ("[data", None, "is not TOML"),
        (COLUMNS, (9,), "must be .10,., as many numbers"),
    ],
)
def test_columns_that_are_none_of_the_records_are_refused(text, shape, message):
    file, columns, _ = tabled()
    columns.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        attack_gradients(
            GradientRequest(
                file, model="mlp", out=Path("out"), columns=columns, input_shape=shape,
                classes=CLASSES,
            )
        )  # fmt: skip
