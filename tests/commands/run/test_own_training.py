"""Membership in models of one's own training, by `overhear membership-training`."""

import json
import sys

import pytest

from overhear.commands.cli import main

CODE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def dataset():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=draw)
    return TensorDataset(x, (x[:, 0] > 0).long())

def train(data):
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_training_of_tests.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_training_of_tests", None)  # the next folder has a file of its own


def infer(*options):
    return main(["membership-training", "own_training_of_tests:train", *options])


def test_membership_is_inferred_in_models_of_a_function(capsys, folder):
    data = ["--data", "own_training_of_tests:dataset"]
    assert infer(*data, "--method", "rmia", "--references", "2", "--records", "40") == 0
    assert "AUROC" in capsys.readouterr().out
    assert infer(*data, "--references", "2", "--records", "40", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["auroc"] <= 1
    assert found["records"] == 40
    assert found["rates"][1]["true_positives"] is None  # of 20 non-members .1 % cannot be told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option '--data'"),
        (["--data", "own_training_of_tests:datset"], "did you mean 'dataset'"),
        (["--data", "own_training_of_tests:dataset", "--method", "dlg"], "method='dlg'"),
        (["--data", "own_training_of_tests:dataset", "--out", "x"], "No such option: --out"),
        (["--data", "own_training_of_tests:dataset", "--records", "5"], "records=5"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(capsys, folder, options, message):
    assert infer(*options) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said
    assert "Traceback" not in said
