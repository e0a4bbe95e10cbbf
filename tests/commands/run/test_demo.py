"""The demo keeps the time that it says, and ends with a leak beside its fix."""

import re
from pathlib import Path

import pytest

from overhear.commands.cli import main

POLICY = Path(__file__).resolve().parents[3] / "examples/policy.toml"
MOST_S = 60  # of one core


@pytest.mark.slow
def test_the_demo_shows_a_leak_beside_its_fix_and_passes_the_policy(tmp_path, capsys):
    assert main(["--quiet", "demo", "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    announced = re.search(r"in about (\d+) seconds of one core", said)
    assert announced is not None
    assert int(announced[1]) <= MOST_S
    beside = re.search(r"eavesdropper +([\d.]+), heuristic +([\d.]+), proven", said)
    assert beside is not None
    assert float(beside[1]) > float(beside[2]) == 3.0
    assert re.search(r"What epsilon 3 means here: of 100 people .* finds at most", said, re.S)
    assert main(["check", str(tmp_path / "run"), "--policy", str(POLICY)]) == 0
