"""How a model's tokens are recognised, and what is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.tokens.layers import probe_tokens, token_table
from tests.attacks.tokens.texts import Attention, Bag, Encoder


class Changed(nn.Module):
    """A model that is fed something of its tokens, in a way that a test gives."""

    def __init__(self, feed: Callable[[nn.Module, Tensor], Tensor], **options: object) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, **options)  # type: ignore[arg-type]
        self.other, self.head, self.feed = nn.Embedding(20, 8), nn.Linear(8, 2), feed

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.feed(self, x).mean(dim=1))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (Encoder(4), "words.weight"),
        (Encoder(4, positions="table"), "words.weight"),
        (Attention(4), "words.weight"),
        (Bag(), "words.weight"),
        (Changed(lambda m, x: m.words.weight[x]), "words.weight"),
        (Changed(lambda m, x: m.words(x) + m.other(torch.zeros_like(x))), "words.weight"),
    ],
    ids=["encoder", "table-of-positions", "attention", "bag", "indexed", "segments"],
)
def test_the_table_of_a_models_tokens_is_found_by_calling_it(model, name):
    found = token_table(model, (4,))
    assert found is not None
    assert (found.parameter, found.tied) == (name, False)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 2), (4,)),
        (nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(18, 2)), (1, 4, 4)),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), (1, 4, 4)),
    ],
)
def test_a_model_of_numbers_has_none(model, shape):
    assert token_table(model, shape) is None
    assert probe_tokens(model, shape).is_floating_point()


def test_padding_and_tokens_that_the_model_adds_are_known():
    def led(model: nn.Module, x: Tensor) -> Tensor:
        return model.words(torch.cat([torch.full_like(x[:, :1], 7), x], dim=1))

    found = token_table(Changed(led, padding_idx=3), (5,))
    assert found is not None
    assert (found.padding, found.constant, found.vocabulary) == (3, (7,), 20)
    assert not bool((probe_tokens(Changed(led, padding_idx=3), (5,)) == 3).any())


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (Changed(lambda m, x: m.words(x[:, :2]) + m.other(x[:, 2:])), (4,), "2 of the 4 tokens"),
        (Changed(lambda m, x: m.words(x + 1)), (4,), "not the tokens as given"),
        (Changed(lambda m, x: m.words(x), max_norm=1.0), (4,), "has max_norm=1.0"),
        (Changed(lambda m, x: m.words(x), scale_grad_by_freq=True), (4,), "scale_grad_by_freq"),
        (Changed(lambda m, x: m.words(x.flatten(1))), (2, 2), "input_shape=(2, 2)"),
    ],
    ids=["two-embeddings", "computed", "max-norm", "frequency", "two-dimensions"],
)
def test_tokens_that_are_looked_up_otherwise_are_refused(model, shape, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        token_table(model, shape)
