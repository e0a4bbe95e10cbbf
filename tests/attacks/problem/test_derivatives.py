"""Second derivatives of attention and norms, one by one and under vmap."""

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.problem.observation import Sent, sent_gradient, twice_differentiable
from overhear.training.models.parameters import flatten


class _Rows(nn.Module):
    """A layer on three rows of eight features, between two linear ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.head = nn.Linear(8, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.into(x.reshape(len(x), 3, 8))
        attends = isinstance(self.layer, nn.MultiheadAttention)
        z = self.layer(z, z, z)[0] if attends else self.layer(z)
        head: Tensor = self.head(z.tanh().mean(dim=1))
        return head


_LAYERS = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True),
    "layer-norm": lambda: nn.LayerNorm(8),
    "layer-norm-of-two": lambda: nn.LayerNorm((3, 8), bias=False),
    "rms-norm": lambda: nn.RMSNorm(8),
}


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("kind", _LAYERS)
def test_the_gradient_of_a_sent_gradient_is_its_difference_quotient(kind, clip_norm):
    torch.manual_seed(0)
    model = _Rows(_LAYERS[kind]()).double().eval()
    x, targets = torch.rand(3, 24, dtype=torch.float64), torch.tensor([0, 2, 2])
    way = torch.randn_like(x)

    def size(inputs: Tensor) -> Tensor:
        flat = flatten(model)
        return (
            sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=clip_norm))
            .pow(3)
            .sum()
        )

    asked = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(size(asked), asked)
    quotient = float(size(x + 1e-5 * way) - size(x - 1e-5 * way)) / 2e-5
    assert quotient == pytest.approx(float((slope * way).sum()), rel=1e-5)


@pytest.mark.parametrize("kind", _LAYERS)
def test_values_are_those_of_torch(kind):
    torch.manual_seed(0)
    model, x = _Rows(_LAYERS[kind]()).double().eval(), torch.rand(3, 24, dtype=torch.float64)
    expected = model(x)
    with twice_differentiable():
        torch.testing.assert_close(model(x), expected)


def test_the_fast_path_is_as_it_was_after_an_error():
    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(RuntimeError, match="size"), twice_differentiable():
        torch.ones(2) @ torch.ones(3)
    assert torch.backends.mha.get_fastpath_enabled() == before
