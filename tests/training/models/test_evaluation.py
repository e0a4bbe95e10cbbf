"""Metrics: AUROC against counting pairs, and where the metrics of a run have it."""

import math
from dataclasses import asdict

import pytest
import torch
from scipy.stats import rankdata
from torch import nn

from overhear.training.data.store import Examples
from overhear.training.models import evaluation
from overhear.training.models.evaluation import auroc, auroc_of_classes, evaluate, log_odds
from overhear.training.models.losses import FailedForward
from overhear.training.models.parameters import flatten


@pytest.mark.parametrize("levels", [3, 1000])
def test_it_counts_pairs_that_are_in_order_and_half_of_the_ties(levels):
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(levels, (60,), generator=rng).float()
    positive = torch.rand(60, generator=rng) < 0.3
    above = scores[positive][:, None] - scores[~positive][None, :]
    expected = float(((above > 0).double() + 0.5 * (above == 0).double()).mean())
    assert auroc(scores, positive) == pytest.approx(expected, abs=1e-12)
    assert auroc(-scores, positive) == pytest.approx(1 - expected, abs=1e-12)


def test_equal_and_infinite_scores_rank_and_what_has_no_order_has_none_or_is_refused():
    assert auroc(torch.zeros(7), torch.arange(7) < 2) == 0.5
    scores = torch.tensor([math.inf, 2.0, -math.inf, math.inf])
    assert auroc(scores, torch.tensor([True, False, False, False])) == 2.5 / 3
    assert math.isnan(auroc(torch.rand(4), torch.ones(4, dtype=torch.bool)))
    assert math.isnan(auroc(torch.tensor([0.0, math.nan]), torch.tensor([True, False])))
    with pytest.raises(ValueError, match="must be"):
        auroc(torch.zeros(3), torch.zeros(4))


@pytest.mark.parametrize("batch", [2, 2048])
def test_two_classes_are_ranked_by_the_difference_of_their_logits(batch):
    net = nn.Linear(1, 2, bias=False)
    net.weight.data = torch.tensor([[1.0], [3.0]])
    inputs = torch.tensor([[0.1], [-0.4], [0.35], [0.8], [0.3]])
    examples = Examples(inputs, torch.tensor([0, 0, 1, 1, 0]))
    models = torch.stack([flatten(net), -flatten(net)])
    found = evaluate(net, models, examples, round=0, batch=batch)
    assert found.auroc == pytest.approx((1.0, 0.0))
    assert found.consensus_auroc == 0.5  # the mean model scores all alike
    # The constant answer: three of five, and the entropy of these shares.
    assert found.constant_accuracy == 0.6
    assert found.constant_loss == pytest.approx(-0.6 * math.log(0.6) - 0.4 * math.log(0.4))
    assert found.constant_rmse is None


def reference(logits):  # (..., C), by one sum for each class
    own = torch.eye(logits.shape[-1], dtype=torch.bool)
    return logits - logits[..., None, :].masked_fill(own, -math.inf).logsumexp(-1)


@pytest.mark.parametrize(("classes", "agents"), [(2, 1), (2, 300), (3, 300), (20, 1), (20, 300)])
def test_it_is_the_mean_of_each_class_against_the_rest_by_ranks(classes, agents):
    rng, there = torch.Generator().manual_seed(0), max(classes - 1, 2)  # of three, one has none
    targets = torch.arange(99) % there
    inputs = torch.randn(99, classes, generator=rng).round()  # whole numbers, with ties
    models = torch.randn(agents, classes**2, generator=rng).round()
    models[5::7] = math.nan
    net, examples = nn.Linear(classes, classes, bias=False), Examples(inputs, targets)
    found = evaluate(net, models, examples, round=0).auroc
    odds = reference(inputs @ models.unflatten(1, (classes, classes)).mT).double().numpy()
    held = nn.functional.one_hot(targets, there).numpy()
    above = (rankdata(odds, axis=1)[:, :, :there] * held).sum(1)
    of = held.sum(0)
    expected = ((above - of * (of + 1) / 2) / (of * (99 - of))).mean(1)
    assert found == pytest.approx(tuple(expected), abs=1e-12, nan_ok=True)


def test_a_class_without_examples_does_not_count_and_one_class_alone_has_none():
    odds = torch.tensor([[0.2, 0.1, 9.0], [0.1, 0.3, 8.0]])
    assert auroc_of_classes(odds, torch.tensor([0, 1])) == 1.0
    assert math.isnan(auroc_of_classes(odds, torch.tensor([1, 1])))
    assert math.isnan(auroc_of_classes(odds * math.nan, torch.tensor([0, 1])))
    assert math.isnan(auroc_of_classes(odds[:0], torch.tensor([])))
    assert auroc_of_classes(odds[:, :0], torch.tensor([0, 1])) is None


def test_more_than_twenty_classes_have_none():
    net = nn.Linear(1, 21)
    examples = Examples(torch.zeros(2, 1), torch.tensor([0, 1]))
    found = evaluate(net, flatten(net)[None], examples, round=0)
    assert found.auroc is found.consensus_auroc is None


@pytest.mark.parametrize("classes", [2, 3, 10, 20])
def test_odds_have_the_bits_of_a_sum_for_each_class_also_of_what_is_not_finite(classes):
    rng = torch.Generator().manual_seed(0)
    logits = 50 * torch.randn(500, classes, generator=rng)
    for value in (math.inf, -math.inf, math.nan):
        logits[:50][torch.rand(50, classes, generator=rng) < 0.1] = value
    exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(log_odds(logits), reference(logits), **exactly)


class Branches(nn.Module):
    """Of which vmap makes nothing, and with a buffer that no model carries."""

    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(4, classes)
        self.register_buffer("shift", torch.ones(classes))

    def forward(self, x):
        return self.linear(x) if float(x.sum()) > 1e9 else self.linear(x) + self.shift


NETWORKS = {
    "two classes": lambda: nn.Linear(4, 2),
    "three classes": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "images": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(2, 3)
    ),
    "branches": lambda: Branches(3),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("batch", [3, 2048])
def test_models_that_are_taken_together_score_as_one_by_one(name, batch, monkeypatch):
    torch.manual_seed(0)
    net = NETWORKS[name]()
    models = torch.randn(5, len(flatten(net)))
    examples = Examples(torch.randn(8, 4), torch.arange(8) % 2)
    expected = evaluate(net, models, examples, round=3, batch=batch)
    calls = []
    vmap = torch.func.vmap
    monkeypatch.setattr(torch.func, "vmap", lambda fn: (calls.append(fn), vmap(fn))[1])
    monkeypatch.setattr(evaluation, "_takes_many", lambda device: True)
    found = evaluate(net, models, examples, round=3, batch=batch)
    assert calls
    for one, other in zip(asdict(found).values(), asdict(expected).values(), strict=True):
        assert one == (None if other is None else pytest.approx(other, rel=1e-6))


class Moody(nn.Linear):
    """Fails when it is called for the first time, and not again."""

    failed = False

    def forward(self, x):
        if not self.failed:
            self.failed = True
            raise KeyError("a layer")
        return super().forward(x)


def test_an_error_of_the_network_is_not_taken_for_one_of_vmap(monkeypatch):
    monkeypatch.setattr(evaluation, "_takes_many", lambda device: True)
    examples = Examples(torch.zeros(2, 4), torch.tensor([0, 1]))
    with pytest.raises(FailedForward, match="KeyError: 'a layer', where it is evaluated"):
        evaluate(Moody(4, 2), torch.zeros(3, 10), examples, round=0)
