"""Canaries that a recorder plants in a loop of one's own, and scores by what is released."""

import numpy as np
import pytest
import torch

import overhear as oh
from overhear.privacy.errors import InputError
from overhear.runs.recorder.record import record

D, N, ROUNDS = 400, 60, 30
X = torch.from_numpy(np.random.default_rng(0).normal(size=(N, D)))
DATA = torch.utils.data.TensorDataset(X, torch.arange(N) % 2)


def trained(folder, data, *, clip=1.0, noise=1.0, planted=True):
    """A loop as its users write it, with real clipping and noise as they are told."""
    given = {"agent": 0, "agents": 1, "clip": 1.0, "rate": 0.2, "rounds": ROUNDS, "noise": 1.0}
    model = torch.zeros(D, dtype=torch.float64)
    with record(folder / "0.jsonl", **given, data=data) as ledger:
        for t in range(1, ROUNDS + 1):
            batch = ledger.batch(len(data))
            x = [data[i][0] for i in batch] or [torch.zeros(D, dtype=torch.float64)]
            each = (model - torch.stack(x))[: len(batch)]
            if planted:
                each = ledger.canaries(each, batch)
            each = each * (clip / each.norm(dim=1, keepdim=True)).clamp(max=1.0)
            value = each.sum(dim=0) + noise * ledger.noise(D, 1.0, like=model)
            ledger.release(t, kind="g", to="all", noise=1.0, value=value)
            model = model - 0.01 * value
    return ledger


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        pytest.param({}, "consistent", id="sound"),
        pytest.param({"noise": 0.4}, "contradicted", id="noise of .4", marks=pytest.mark.slow),
        pytest.param({"clip": 20.0}, "contradicted", id="no clipping", marks=pytest.mark.slow),
    ],
)
def test_a_plain_loop_is_audited_by_its_canaries(tmp_path, how, verdict):
    audited = {"canaries": 400, "kind": "gradient", "seed": 1}
    found = oh.audit(lambda data: trained(tmp_path, data, **how), data=DATA, **audited)
    assert str(found.verdict) == verdict
    assert found.first.ratios
    assert found.claimed.mechanism is not None
    assert found.epsilon > (found.claimed.epsilon if how else 1.0)
    assert not list(tmp_path.iterdir())  # nothing is released, and no log says so


def test_other_data_are_trained_on_as_they_are(tmp_path):
    ledger = trained(tmp_path, DATA)
    assert ledger.path == tmp_path / "0.jsonl"
    rows = torch.zeros(2, D)
    assert ledger.canaries(rows, [0, 1]) is rows


def test_releases_whose_canaries_could_not_be_scored_are_refused(tmp_path):
    def audit(train):
        oh.audit(train, data=DATA, canaries=20, seed=1)

    def silent(data):
        with record(tmp_path / "a.jsonl", agents=1, clip=1.0) as log:
            log.release(1, kind="model", to="all", noise=1.0)
        return log

    with pytest.raises(InputError, match="listens to no library that shows scores"):
        audit(silent)
    with pytest.raises(InputError, match=r"did not go through ledger\.canaries"):
        audit(lambda data: trained(tmp_path, data, planted=False))
    with pytest.raises(InputError, match=r"n=60 is not the length of the data, 80 with"):
        audit(lambda data: record(tmp_path / "b.jsonl", agent=0, agents=1, data=data).batch(N))
