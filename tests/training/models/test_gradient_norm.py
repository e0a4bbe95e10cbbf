"""The norm of all training records' gradient."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.training.data.quadratic import quadratic
from overhear.training.data.store import Shard, TensorStore
from overhear.training.models.evaluation import gradient_norm
from overhear.training.models.losses import NetworkLoss, loss_named
from overhear.training.models.parameters import flatten


def test_it_is_the_norm_of_the_mean_of_the_records_gradients():
    draw = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = torch.randn(23, 5, generator=draw)
    targets = torch.randint(3, (23,), generator=draw)
    alone = []
    for x, y in zip(inputs.double(), targets, strict=True):
        slopes = torch.autograd.grad(
            cross_entropy(model(x[None]), y[None]), list(model.parameters())
        )
        alone.append(torch.cat([s.flatten() for s in slopes]))
    wanted = float(torch.stack(alone).mean(0).norm())
    records = TensorStore(inputs, targets)
    for batch in (1, 7, 100):
        found = gradient_norm(model, flatten(model), records, batch=batch)
        assert found == pytest.approx(wanted, rel=1e-9)
    half = Shard(records, torch.arange(10))
    assert gradient_norm(model, flatten(model), half) == pytest.approx(
        float(torch.stack(alone[:10]).mean(0).norm()), rel=1e-9
    )


def test_it_vanishes_at_the_known_optimum_of_a_quadratic_alone():
    data = quadratic(6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1)).double()
    task = NetworkLoss(model, loss_named("squared", classes=0, outputs=1), regression=True)
    best = data.optimum
    assert gradient_norm(model, best, data.train, task=task) < 1e-6
    assert gradient_norm(model, best + 0.1, data.train, task=task) > 1e-2
