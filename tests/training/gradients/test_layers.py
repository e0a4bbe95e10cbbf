import math

import pytest
import torch
from torch import nn

from overhear.training.gradients.ghost import factor, find_layers, unsupported_layer
from overhear.training.gradients.linear_conv import Cells, Layer

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear over positions": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear over few positions": (lambda: nn.Linear(24, 30), (3, 24)),
    "convolution of few positions": (lambda: nn.Conv2d(6, 20, 3), (6, 4, 4)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 4, 5)),
    "wide convolution": (lambda: nn.Conv2d(6, 3, (2, 3), stride=2, bias=False), (6, 5, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 2)),
    "group norm of flat inputs": (lambda: nn.GroupNorm(2, 4), (4,)),
    "layer norm": (lambda: nn.LayerNorm(4), (4,)),
    "layer norm of two sides": (lambda: nn.LayerNorm((3, 2)), (4, 3, 2)),
    "layer norm without bias": (lambda: nn.LayerNorm(4, bias=False), (3, 4)),
    "embedding": (lambda: nn.Embedding(3, 4), (6,)),
    "embedding of one token": (lambda: nn.Embedding(3, 4), ()),
    "embedding with padding": (lambda: nn.Embedding(3, 4, padding_idx=-1), (2, 3)),
}


def passed(name, *, seed=0):
    """A layer, five examples of its inputs and signals, and their gradients one by one (B, D)."""
    torch.manual_seed(seed)
    build, shape = LAYERS[name]
    module = build().double()
    if isinstance(module, nn.Embedding):
        inputs = torch.randint(module.num_embeddings, (5, *shape))
    else:
        inputs = torch.randn(5, *shape, dtype=torch.float64)
    signals = torch.randn_like(module(inputs))
    rows = []
    for x, u in zip(inputs, signals, strict=True):
        found = torch.autograd.grad((module(x[None])[0] * u).sum(), list(module.parameters()))
        rows.append(torch.cat([g.flatten() for g in found]))
    (layer,) = find_layers(module)
    return layer, inputs, signals, torch.stack(rows)


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_weighted_sum_is_that_of_gradients_one_by_one(name, measured):
    layer, inputs, signals, gradients = passed(name)
    found = factor(layer, inputs, signals=signals, measured=measured)
    weights = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    row = torch.ones(gradients.shape[1], dtype=torch.float64)
    found.add_sum(row, weights=weights, examples=slice(1, 4))
    torch.testing.assert_close(row, 1 + weights[1:4] @ gradients[1:4], rtol=0, atol=1e-12)
    found.add_sum(row, weights=None, examples=slice(0, 2))
    expected = 1 + weights[1:4] @ gradients[1:4] + gradients[:2].sum(0)
    torch.testing.assert_close(row, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_those_of_gradients_one_by_one(name):
    layer, inputs, signals, gradients = passed(name)
    found = factor(layer, inputs, signals=signals, measured=True).squared_norms()
    torch.testing.assert_close(found, gradients.square().sum(1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_cells_take_the_examples_that_they_name(name, measured, weighted):
    layer, inputs, signals, gradients = passed(name)
    index = torch.tensor([4, 0, 1, 2, 2, 2])
    weights = torch.tensor([[1.0, 0.5, 2.0], [3.0, 0.0, 0.0]]).double() if weighted else None
    cells = Cells(shape=(2, 3), index=index, weights=weights)
    parts = factor(layer, inputs, signals=signals, measured=measured).sums(cells)
    found = torch.cat([values for _, values in sorted(parts, key=lambda part: part[0])], 1)
    chosen = gradients[index].unflatten(0, (2, 3))
    expected = chosen.sum(1) if weights is None else (weights[..., None] * chosen).sum(1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_the_norm_of_few_positions_is_not_short_where_they_cancel(seed):
    """Positions of size 1e6 cancel to a gradient of about 1, which a sum in float32 misses."""
    draw = torch.Generator().manual_seed(seed)
    inputs, signals = torch.randn(4, 3, 24, generator=draw), torch.randn(4, 3, 30, generator=draw)
    inputs[:, 1], signals[:, 0] = inputs[:, 0], 1e6 * signals[:, 0]
    signals[:, 1] = signals[:, 2] - signals[:, 0]
    (layer,) = find_layers(nn.Linear(24, 30, bias=False))
    found = factor(layer, inputs, signals=signals, measured=True)
    assert found.gradients is None
    norms = found.squared_norms().double().sqrt()
    for b, norm in enumerate(norms):
        row = torch.zeros(720)
        found.add_sum(row, weights=None, examples=slice(b, b + 1))
        exact = signals[b].double().T @ inputs[b].double()
        assert max(float(row.double().norm()), float(exact.norm())) <= float(norm)


@pytest.mark.parametrize("positions", [1, 2])
def test_the_norm_of_factors_whose_squares_underflow_is_not_zero(positions):
    draw = torch.Generator().manual_seed(0)
    inputs = 1e-163 * torch.randn(3, positions, 24, generator=draw, dtype=torch.float64)
    signals = 1e150 * torch.randn(3, positions, 30, generator=draw, dtype=torch.float64)
    (layer,) = find_layers(nn.Linear(24, 30, bias=False))
    found = factor(layer, inputs, signals=signals, measured=True)
    assert found.gradients is None
    assert (found.squared_norms() >= (signals.mT @ inputs).square().sum((1, 2))).all()


def test_the_norm_of_a_long_gradient_is_not_short():
    """A running float32 sum comes out 1e-4 short here, 100 times what the slack covers."""
    draw = torch.Generator().manual_seed(0)
    inputs, signals = (0.5 + torch.rand(2, 2, 2000, generator=draw) for _ in range(2))
    layer = Layer(name="", module=nn.Linear(2000, 2000, bias=False), weight=0, bias=None)
    found = factor(layer, inputs, signals=signals, measured=True)
    exact = (signals.mT.double() @ inputs.double()).square().sum((1, 2))
    assert (found.squared_norms() / exact - 1).abs().max() < 1e-6


def test_a_repeated_token_whose_signals_nearly_cancel_keeps_its_norm():
    """The terms of a Gram matrix, of 1e8 here, would lose a norm of 1e-4 in float32."""
    (layer,) = find_layers(nn.Embedding(2, 1))
    signals = torch.tensor([[[10_000.0], [-10_000.0], [0.01]]])
    found = factor(layer, torch.zeros(1, 3, dtype=torch.int64), signals=signals, measured=True)
    assert float(found.squared_norms()) == pytest.approx(1e-4, rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_a_row_of_signals_that_nearly_cancel_is_as_long_as_its_norm_says(seed):
    """Sums in another order differ by .06 here, the rounding of 1e6 in float32."""
    draw = torch.Generator().manual_seed(seed)
    signals = torch.randn(1, 6, 3, generator=draw)
    signals[:, 0], signals[:, 1] = 1e6 * signals[:, 0], -1e6 * signals[:, 0]
    signals = signals[:, torch.randperm(6, generator=draw)]
    (layer,) = find_layers(nn.Embedding(2, 3))
    found = factor(layer, torch.zeros(1, 6, dtype=torch.int64), signals=signals, measured=True)
    norm = float(found.squared_norms().double().sqrt())
    weights = torch.tensor([1 / norm])
    row = torch.zeros(6)
    found.add_sum(row, weights=weights, examples=slice(0, 1))
    ((_, cell),) = found.sums(Cells(shape=(1, 1), index=None, weights=weights[None]))
    for length in (row.double().norm(), cell.double().norm()):
        assert float(length) == pytest.approx(1.0, abs=1e-6)


def test_a_signal_at_the_padding_counts_nowhere():
    (layer,) = find_layers(nn.Embedding(3, 2, padding_idx=1))
    signals = torch.tensor([[[3.0, 4.0], [math.nan, 1.0]]])
    found = factor(layer, torch.tensor([[0, 1]]), signals=signals, measured=True)
    row = torch.zeros(6)
    found.add_sum(row, weights=None, examples=slice(0, 1))
    assert found.squared_norms().tolist() == [25.0]
    assert row.tolist() == [3.0, 4.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Embedding(3, 2, sparse=True), "is sparse"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "by frequency"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.Conv2d(2, 2, 3, groups=2), "has groups"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), "padding mode"),
        (nn.Conv2d(2, 2, 3, padding="same"), "padding in words"),
        (nn.BatchNorm1d(2), "is neither"),
        (nn.Conv1d(2, 2, 3), "is neither"),
        (type("Own", (nn.LayerNorm,), {})(2), "is neither"),
    ],
)
def test_a_layer_that_a_rule_would_get_wrong_has_none(module, reason):
    found = unsupported_layer(module)
    assert found is not None
    assert reason in found


def test_tied_weights_have_no_rule():
    model = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    model[1].weight = model[0].weight
    assert "shares its parameters" in str(unsupported_layer(model))


def test_a_normalisation_without_parameters_needs_no_rule():
    model = nn.Sequential(
        nn.LayerNorm(2, elementwise_affine=False), nn.GroupNorm(1, 2, affine=False), nn.Linear(2, 2)
    )
    assert unsupported_layer(model) is None
    assert [layer.name for layer in find_layers(model)] == ["2"]


def test_a_layer_without_a_rule_is_refused():
    layer = Layer(name="own", module=nn.PReLU(), weight=0, bias=None)
    with pytest.raises(TypeError, match=r"layer 'own' \(PReLU\) has no rule"):
        factor(layer, torch.ones(1, 1), signals=torch.ones(1, 1), measured=True)
