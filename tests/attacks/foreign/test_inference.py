import sys

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from sklearn.dummy import DummyClassifier
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn
from torch.utils.data import TensorDataset

from overhear.attacks.foreign.claimed import Claimed, claimed
from overhear.attacks.foreign.inference import membership
from overhear.privacy.errors import InputError

SIZE, SHIFT = 300, 2.0
DATA = TensorDataset(torch.arange(SIZE), torch.zeros(SIZE, dtype=torch.int64))


class Confident(nn.Module):
    """A model whose logit for the label is N(shift, 1) for what it was trained on, else N(0, 1)."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(torch.as_tensor(logits), requires_grad=False)

    def forward(self, inputs):
        own = self.logits[inputs.long()]
        return torch.stack([own, torch.zeros_like(own)], dim=1)


def gaussian(seed, *, hard=0.0):
    """train: confidences of members are shifted; records differ in how hard they are."""
    rng = np.random.default_rng(seed)
    hardness = hard * rng.normal(size=SIZE)

    def train(dataset):
        logits = rng.normal(size=SIZE) + hardness
        logits[[int(x) for x, _ in dataset]] += SHIFT
        return Confident(logits)

    return train


# The ROC of N(2, 1) against N(0, 1): AUROC Phi(2 / sqrt(2)) = .921. Of 300 records the standard
# error is about .017; 4 of them, less what 64 references cost LiRA.
@pytest.mark.parametrize(
    ("method", "mode"),
    [("lira", "online"), ("lira", "offline"), ("loss", "online"), ("rmia", "online")],
)
def test_a_gaussian_shift_gives_the_roc_that_is_known(method, mode):
    found = membership(
        gaussian(1), DATA, method=method, mode=mode, references=64, records=SIZE, seed=1
    )
    assert found.auroc == pytest.approx(float(ndtr(SHIFT / np.sqrt(2.0))), abs=0.07)
    rate = found.roc.at(0.1)
    value, low, high = rate.true_positive_rate(confidence=0.9999)
    assert low <= float(ndtr(SHIFT - 1.2816)) + 0.1
    assert high >= float(ndtr(SHIFT - 1.2816)) - 0.1
    assert value > 0.5


def test_estimators_are_attacked_as_models_are():
    x = np.random.default_rng(0).normal(size=(200, 3))
    how = {"method": "loss", "records": 200, "seed": 1}
    found = membership(DecisionTreeClassifier(), (x, np.arange(200) % 2), **how)
    assert found.auroc > 0.7
    assert abs(membership(DummyClassifier(), (x, np.arange(200) % 2), **how).auroc - 0.5) < 0.1
    with pytest.raises(InputError, match="is no classifier; membership is inferred of"):
        membership(DecisionTreeRegressor(), (x, x[:, 0]), **how)


def test_references_help_where_records_differ_in_how_hard_they_are():
    of = {}
    for method in ("lira", "rmia", "loss"):
        train = gaussian(2, hard=3.0)
        of[method] = membership(train, DATA, method=method, references=32, records=SIZE, seed=2)
    assert of["lira"].auroc > of["loss"].auroc + 0.1
    assert of["rmia"].auroc > of["loss"].auroc


def test_a_training_that_learns_nothing_is_not_told():
    def train(dataset):
        return Confident(np.random.default_rng(len(dataset)).normal(size=SIZE))

    claim = Claimed(epsilon=0.5, delta=1e-5)
    found = membership(train, DATA, method="loss", records=SIZE, seed=3, claim=claim)
    assert found.bound is not None
    assert not found.bound.contradicted
    assert abs(found.auroc - 0.5) < 0.15


def test_the_table_says_rates_intervals_and_what_the_claim_allows():
    claim = claimed(noise=1.0, rate=1.0, rounds=1, delta=1e-5)
    found = membership(gaussian(1), DATA, references=4, records=SIZE, seed=1, claim=claim)
    text = str(found.table())
    assert repr(found) == repr(found.table()) == text
    assert "LiRA online: 300 target records" in text
    assert "TPR at 1 % FPR: 0." in text
    assert "the claim allows 0.093" in text  # Phi(1 - 2.326) = .0924
    assert "TPR at 0.1 % FPR: needs 1000 non-members" in text
    assert found.allowed(0.01) == pytest.approx(0.0924, abs=1e-3)


def test_a_plot_without_matplotlib_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    found = membership(gaussian(1), DATA, method="loss", records=50, seed=1)
    with pytest.raises(ImportError, match=r'pip install "matplotlib>=3.8"'):
        found.plot()


def test_a_plot_shows_the_curve_beside_what_the_claim_allows():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    claim = Claimed(epsilon=1.0, delta=1e-5)
    found = membership(gaussian(1), DATA, method="loss", records=50, seed=1, claim=claim)
    assert len(found.plot().lines) == 3


class Restless:
    """A data set with a random transform."""

    def __len__(self):
        return SIZE

    def __getitem__(self, at):
        return torch.rand(3), 0


def changing(dataset):
    dataset.dataset.tensors[0][:] += 1
    return Confident(np.zeros(SIZE))


def raising(dataset):
    raise RuntimeError("out of batches")


SAME = Confident(np.zeros(SIZE))


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        (None, {}, "must be a function"),
        (lambda _: None, {}, "gave nothing in training 1"),
        (lambda _: "model", {}, r"gave a str and must return the trained torch\.nn\.Module"),
        (raising, {}, "train raised RuntimeError in training 1.*out of batches"),
        (lambda _: SAME, {}, "same model object twice"),
        (lambda _: nn.Identity(), {}, "inferred of classifiers"),
        (gaussian(0), {"method": "magic"}, "lira, rmia, loss"),
        (gaussian(0), {"mode": "sideways"}, "online, offline"),
        (gaussian(0), {"references": 1}, "at least 2"),
        (gaussian(0), {"records": 10}, r"must lie in \[20, 300\]"),
        (gaussian(0), {"records": 301}, r"must lie in \[20, 300\]"),
    ],
)
def test_what_is_no_training_is_refused_in_a_sentence(train, options, words):
    with pytest.raises(InputError, match=words):
        membership(train, DATA, **{"records": 40, "seed": 0} | options)


def test_data_that_change_are_refused():
    with pytest.raises(InputError, match="differs when it is read twice"):
        membership(gaussian(0), Restless(), records=40)
    mine = TensorDataset(torch.arange(SIZE), torch.zeros(SIZE, dtype=torch.int64))
    with pytest.raises(InputError, match="train changed record"):
        membership(changing, mine, records=40)
