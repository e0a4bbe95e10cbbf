"""Orders of places that a network cannot tell apart: none of them is claimed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.problem.observation import Observation
from overhear.attacks.tokens.reconstruct import reconstruct_tokens
from overhear.attacks.tokens.symmetries import symmetries
from overhear.training.models.parameters import flatten


class Text(nn.Module):
    """Tokens whose places are seen in streams, halves, both ways, one by one, or by themselves."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table = kind, nn.Embedding(40, 24)
        self.gaps = nn.Conv1d(24, 40, 3, padding=2, dilation=2)
        self.steps, self.places = nn.GRU(24, 24, batch_first=True), nn.Embedding(12, 24)
        self.head = nn.Linear(40 if kind in ("gaps", "least") else 24, 3)

    def forward(self, x: Tensor) -> Tensor:
        fed = self.table(x)
        if self.kind in ("gaps", "least"):
            made = self.gaps(fed.mT).relu()
            return self.head(made.amax(2) if self.kind == "gaps" else made.mean(2))
        if self.kind == "streams":
            parts = [fed[:, 0::2], fed[:, 1::2]]
        elif self.kind == "halves":
            half = x.shape[1] // 2
            parts = [fed[:, :half], fed[:, :half].flip(1), fed[:, half:], fed[:, half:].flip(1)]
        else:
            parts = [fed + self.places.weight if self.kind == "placed" else fed]
        return self.head(sum(self.steps(part)[0][:, -1] for part in parts))


def _found(kind: str, seed: int):
    torch.manual_seed(seed)
    model, x = Text(kind), torch.randint(40, (1, 12))
    functional.cross_entropy(model(x), torch.tensor([seed % 3])).backward()
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    seen = Observation.single(
        gradient=torch.cat([of.flatten() for of in slopes]), model=flatten(model).detach(),
        noise_std=0.0, clip_norm=None, records=1,
    )  # fmt: skip
    found = reconstruct_tokens(
        seen, model, length=12, classes=3, generator=torch.Generator().manual_seed(0)
    )
    return x, found


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["gaps", "least", "streams", "halves"])
def test_no_order_is_claimed_that_many_places_may_change_at_once(kind, seed):
    x, found = _found(kind, seed)
    assert found.decided != "sequences"
    if found.decided == "multisets":
        assert found.tokens.sort(dim=1).values.equal(x.sort(dim=1).values)


@pytest.mark.parametrize("kind", ["steps", "placed"])
def test_an_order_is_claimed_where_every_place_is_seen_by_itself(kind):
    x, found = _found(kind, 0)
    assert (found.decided, found.tokens.tolist()) == ("sequences", x.tolist())


def test_the_symmetries_of_a_circle_are_found_and_no_others():
    draw = torch.Generator().manual_seed(0)
    seen = torch.randn(40, 5, generator=draw).double()

    def around(x: Tensor) -> Tensor:
        return torch.tanh(seen[x] + 2 * seen[x.roll(1, 1)].square()).sum(dim=1)

    ways = symmetries(around, torch.arange(40), 8, draw)
    assert ways is not None
    assert len(ways) == 28  # every place may go to every other one
    assert all(int((way - torch.arange(8)).remainder(8).unique().numel()) == 1 for way in ways)
    assert len(symmetries(around, torch.arange(2), 8, draw) or []) == 28  # of two words, too
    assert symmetries(around, torch.arange(40), 200, draw) is None
