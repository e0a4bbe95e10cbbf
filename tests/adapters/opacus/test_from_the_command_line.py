"""A kept log of Opacus, held against its lines by `overhear audit` with an oracle of one's own."""

import sys
from pathlib import Path

import pytest
import torch

from overhear.commands.cli import main

from .private_training import digits, noise_times, trained

ORACLE = """
import torch
from torch import nn
from sklearn.datasets import load_digits
from overhear.runs.recorder.keeping import per_example

held = load_digits()
x = torch.tensor(held.data[:500] / 16, dtype=torch.float32)
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))
gradients = per_example(net, {0: (x, torch.tensor(held.target[:500]))})
START = torch.load("start.pt")

def start_of(round, agent, released):
    point = START.clone()
    for one in released:
        point -= 0.5 * one.value
    return point
"""
GIVEN = ("--oracle", "oracle_of_digits:gradients", "--points", "oracle_of_digits:start_of")


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (0.5, 4)])
def test_the_exit_code_says_whether_the_log_is_kept_to(tmp_path, monkeypatch, capsys, factor, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "oracle_of_digits", raising=False)

    def begin(optimizer, loader):
        start = [of.detach().reshape(-1) for of in optimizer.params]
        torch.save(torch.cat(start), "start.pt")
        noise_times(factor)(optimizer, loader)

    trained(tmp_path / "log", digits(500), fault=begin)
    Path("oracle_of_digits.py").write_text(ORACLE)
    assert main(["audit-log", "log", *GIVEN]) == code
    said = " ".join(capsys.readouterr().out.split())
    verdict = "checked in rounds 1 to 50" if code == 0 else "contradicted by residuals"
    assert f"Verdict: declared; {verdict}" in said
