"""Norms that rounding makes no shorter than the clip factor's slack allows for."""

import pytest
import torch
from torch import nn

from overhear.training.gradients.clipping import clip_factors, squared_norms, total_squares
from overhear.training.gradients.ghost import factor
from overhear.training.gradients.linear_conv import Layer

LOSS = 1.5e-6  # of a float32 norm, as `squared_norms` says
SLACK = 32 * torch.finfo(torch.float32).eps


def swallowed(run: int, lanes: int, runs: int = 32) -> torch.Tensor:
    """(1, run * runs): a one in each of the first lanes of a run, then what it swallows."""
    row = torch.full((run,), 2.0**-12)
    row[:lanes] = 1.0
    return row.repeat(runs)[None]


@pytest.mark.parametrize("run", [12, 48, 96, 512, 4096])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_small_entries_behind_large_ones_are_not_lost(run, lanes):
    """In one running sum of 512 on 8 lanes the norm is short by 1.9e-6."""
    row = swallowed(run, min(lanes, run // 2))
    exact = row.double().square().sum(1).sqrt()
    assert float(1 - squared_norms(row).double().sqrt() / exact) <= LOSS


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_the_gradient_of_a_linear_layer_is_no_longer_than_the_clip_norm(lanes):
    """Its norm is the product of two, each of which may be short."""
    inputs, signals = (swallowed(512, lanes) for _ in range(2))
    layer = Layer(
        name="", module=nn.Linear(inputs.shape[1], signals.shape[1], bias=False), weight=0,
        bias=None,
    )  # fmt: skip
    found = factor(layer, inputs[:, None], signals=signals[:, None], measured=True)
    factors = clip_factors(found.squared_norms(), 1.0)
    length = inputs.double().norm() * signals.double().norm()
    assert float(length) * float(factors) <= 1.0
    assert float(length) * float(factors) >= 1.0 - 2 * SLACK


def test_squares_of_many_layers_are_not_lost():
    """A running float32 sum over a thousand layers would be short by 3e-5."""
    parts = [torch.tensor([1.0])] + [torch.tensor([2.0**-25])] * 1000
    exact = 1 + 1000 * 2.0**-25
    assert float(total_squares(parts)) == pytest.approx(exact, rel=1e-7)
