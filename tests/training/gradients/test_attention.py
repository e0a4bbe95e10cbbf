"""Gradients of torch's own attention, clipped example by example."""

import pytest
import torch
from torch import Tensor, nn

from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import flatten
from tests.training.gradients.layout_cases import oracle


class _Attending(nn.Module):
    def __init__(self, *, first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(6, 3, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encoder(x)
        return self.head((z + self.attention(z, z, z)[0]).mean(dim=1))


@pytest.mark.parametrize("layout", ["loop", "vmap"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_sums_of_an_encoder_are_those_of_one_backward_per_example(layout, first, training):
    torch.manual_seed(0)
    model = _Attending(first=first).double().train(training)
    models = flatten(model) + 0.1 * torch.randn(2, flatten(model).numel(), dtype=torch.float64)
    batches = [(torch.randn(n, 4, 6, dtype=torch.float64), torch.randint(3, (n,))) for n in (3, 1)]
    pairs = ([0, 1, 1], [0, 0, 1])
    found = PairGradients(model, layout=layout).clipped_sums(models, pairs, batches, clip_norm=0.3)
    expected = oracle(model, models, batches, 0.3, pairs=pairs)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
