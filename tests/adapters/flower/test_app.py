"""The example in Flower's own simulation, which `make test-flower` runs in its environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from overhear.privacy import epsilon
from overhear.privacy.guarantee import Statement, Unit
from overhear.privacy.releases.log import read_log
from overhear.training.accounts.declared import account_of_releases

NEEDED = "needs flwr[simulation]: make test-flower"
pytest.importorskip("flwr", reason=NEEDED, exc_type=ImportError)
pytest.importorskip("ray", reason=NEEDED, exc_type=ImportError)

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


def simulated(folder, *more):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/flower/app.py"), str(folder), *more],
        capture_output=True, text=True, timeout=300, check=False, cwd=folder.parent,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip


def server_epsilon(folder):
    statement = Statement(delta=1e-5, unit=Unit.CLIENT)
    return account_of_releases(read_log(folder), statement=statement)["server"].epsilon


def test_three_clients_of_two_rounds_are_one_account(tmp_path):
    done = simulated(tmp_path / "ledger")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Received 3 results and 0 failures" in done.stdout + done.stderr
    logs = sorted((tmp_path / "ledger").iterdir())
    assert [path.name for path in logs] == [f"agent-{k}.jsonl" for k in range(3)]
    expected = epsilon(noise_multiplier=2.0, delta=1e-5, rounds=2, sampling_rate=1.0)
    assert server_epsilon(tmp_path / "ledger") == pytest.approx(expected)


def test_a_loss_without_noise_never_leaves(tmp_path):
    done = simulated(tmp_path / "ledger", "--leak")
    said = done.stdout + done.stderr
    assert "holds metrics.train_loss, which is sent without noise" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("ledger/*.jsonl"))
    assert len(list(tmp_path.glob("ledger/*.withheld"))) == 3
