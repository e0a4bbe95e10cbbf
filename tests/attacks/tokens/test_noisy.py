"""Tokens under noise: no more false ones than is said, as many as the power says, else nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from overhear.attacks.tokens import noisy
from overhear.attacks.tokens.certificate import TokenReconstruction
from overhear.attacks.tokens.reconstruct import reconstruct_tokens
from tests.attacks.tokens.texts import CLASSES, Bag, Encoder, drawn, sent


def _found(model: nn.Module, records: int, noise_std: float, **how: Any) -> tuple[Any, Any]:
    x, y = drawn(records, 8)
    seen = sent(model, x, y, noise_std=noise_std)
    found: TokenReconstruction = reconstruct_tokens(
        seen, model, length=8, classes=CLASSES, generator=torch.Generator().manual_seed(0), **how
    )
    return x, found


@pytest.mark.slow
def test_false_tokens_are_as_rare_as_is_said_and_found_ones_as_many(monkeypatch):
    """n = 40 batches; 4 or more with a false token have probability 0.07 % at a rate of 1 %."""
    monkeypatch.setattr(noisy, "_TRIED", 0)  # the places are not looked for
    monkeypatch.setattr(noisy, "_SIMULATED", 2)
    torch.manual_seed(0)
    public = drawn(200, 8)[0]
    model, wrong, shares, powers = Bag(), 0, [], []
    for _ in range(40):
        x, found = _found(model, 2, 0.002, public=public)
        true = set(x.flatten().tolist())
        wrong += bool(set(found.found) - true)
        shares.append(len(true & set(found.found)) / len(true))
        powers.append(found.power)
        assert found.false_alarm == 0.01
        assert bool((found.tokens == -1).all())
    assert wrong <= 3
    share, power = sum(shares) / 40, sum(powers) / 40
    assert 0.1 < power < 0.9  # or nothing would be tested
    assert abs(share - power) < 0.15


def test_noise_that_hides_everything_leaves_nothing_to_say():
    torch.manual_seed(1)
    _, found = _found(Encoder(8), 2, 1.0)
    assert (found.decided, found.found, found.stage) == ("nothing", (), ("prior", "prior"))
    assert found.power < 0.02


@pytest.mark.slow
def test_little_noise_leaves_every_token_at_its_place():
    torch.manual_seed(2)
    x, found = _found(Encoder(8), 1, 1e-4)
    assert found.decided == "sequences"
    assert torch.equal(found.tokens, x)


@pytest.mark.slow
def test_a_place_is_told_only_where_the_whole_batch_leaves_noise_alone():
    """Of tokens that are put at places at noise from none to much, none is wrong here."""
    torch.manual_seed(3)
    model = Encoder(8)
    for noise_std in (3e-4, 1e-3, 3e-3, 1e-2):
        x, found = _found(model, 1, noise_std)
        known = found.tokens >= 0
        assert torch.equal(found.tokens[known], x[known])


def test_an_embedding_that_is_not_trained_shows_nothing_under_noise():
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("words", torch.randn(60, 16))
            self.head = nn.Linear(16, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.words[x].mean(dim=1))

    torch.manual_seed(4)
    _, found = _found(Frozen(), 1, 0.01)
    assert found.decided == "nothing"
    assert "not trained" in found.notes[0]
