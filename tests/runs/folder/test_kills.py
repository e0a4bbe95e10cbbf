"""Runs that are killed at random moments leave folders in which everything adds up."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = Path(__file__).resolve().parents[3] / "benchmarks" / "kills.py"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_every_release_of_a_killed_run_is_accounted_for():
    # In a process of its own with one thread: it forks.
    done = subprocess.run(
        [sys.executable, KILLS, "--kills", "5"], check=False, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = {what: int(count) for what, count in re.findall(r"\| (.+?) \| (\d+) \|", done.stdout)}
    assert counts["kills"] == 5
    # On a machine that is busy most kills may come before there is a ledger, and so a release.
    looked_at = counts["every release is in the ledger, as often"]
    assert looked_at >= 1
    assert looked_at + counts.get("no ledger, nothing released", 0) >= 5
    assert counts["checks that failed"] == 0
