"""Networks that register layers in another order, hold numbers of one type, or read their input."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.exact.stages import FEWER, count_proven
from overhear.attacks.inversion.inversion import Reconstruction, reconstruct
from overhear.attacks.problem.objective import preset_of
from overhear.attacks.problem.observation import Observation
from overhear.training.models.parameters import flatten

PRESET = replace(preset_of("matched", 1), adam_steps=60, newton_steps=20)


def _attack(
    model: nn.Module, x: Tensor, y: Tensor, *, weights: Tensor | None = None
) -> Reconstruction:
    losses = functional.cross_entropy(model(x), y, reduction="none")
    losses = losses if weights is None else losses * weights
    slopes = torch.autograd.grad(losses.mean(), list(model.parameters()), allow_unused=True)
    pairs = zip(slopes, model.parameters(), strict=True)
    flat = torch.cat([(torch.zeros_like(p) if of is None else of).flatten() for of, p in pairs])
    seen = Observation.single(
        gradient=flat, model=flatten(model).detach(), noise_std=0.0, clip_norm=None, records=len(x)
    )
    return reconstruct(
        seen, model, preset=PRESET, input_shape=x.shape[1:], classes=3,
        bounds=(torch.tensor(0.0), torch.tensor(1.0)), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


class Turned(nn.Module):
    """The last layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.head, self.body = nn.Linear(24, 3), nn.Sequential(nn.Linear(24, 24), nn.GELU())
        self.first = nn.Linear(16, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.head(self.body(functional.gelu(self.first(x))))


class Constant(nn.Module):
    """It holds numbers of one type, and takes no others."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.mixed = how, torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4)
        self.first, self.head = nn.Linear(4, 12), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = (
            self.mixed @ x.unflatten(1, (4, 4)) if self.how == "mixed" else x.unflatten(1, (4, 4))
        )
        rows = rows.float() if self.how == "float" else rows
        return self.head(torch.tanh(self.first(rows)).flatten(1))


class Gated(nn.Module):
    """One of two parts answers, which the numbers of a record choose."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.parts = nn.Linear(16, 2), nn.ModuleList(nn.Linear(16, 24) for _ in "ab")
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        chosen = functional.one_hot(self.gate(x).argmax(dim=1), 2)
        made = torch.stack([functional.gelu(part(x)) for part in self.parts], dim=1)
        return self.head((made * chosen[..., None]).sum(dim=1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("made", [Turned, Gated])
def test_one_record_is_exact_whatever_the_order_of_layers(made, seed):
    torch.manual_seed(seed)
    x = torch.rand(1, 16)
    found = _attack(made(), x, torch.tensor([seed]))
    assert count_proven([found.stage]) == 1
    torch.testing.assert_close(found.inputs, x, rtol=0, atol=1e-4)


@pytest.mark.parametrize("how", ["mixed", "float"])
def test_networks_of_numbers_of_one_type_are_attacked(how):
    torch.manual_seed(0)
    x = torch.rand(1, 16)
    found = _attack(Constant(how), x, torch.tensor([1]))
    assert found.supported == (True,)
    torch.testing.assert_close(found.inputs, x, rtol=0, atol=1e-2)


@pytest.mark.parametrize("weights", [(0.0, 1.0), (0.0, 1.0, 0.0), (2.0, 0.0, 1.0)])
def test_of_a_batch_of_which_some_count_for_nothing_the_others_are_found(weights):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3)
    )
    x, kept = torch.rand(len(weights), 16), sum(w > 0 for w in weights)
    found = _attack(model, x, torch.arange(len(weights)) % 3, weights=torch.tensor(weights))
    assert (found.stage, sum(found.supported)) == (FEWER, kept)
    off = torch.cdist(x[torch.tensor(weights) > 0], found.inputs[list(found.supported)])
    assert float(off.amin(dim=1).max()) < 1e-3
    assert found.loss is not None
    assert found.loss.rest == len(weights) - kept


def test_several_records_of_one_direction_are_not_proven_to_be_one():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 3))
    x = torch.rand(1, 8) + torch.tensor([[0.0], [0.1]]) * torch.eye(8)[:1]
    found = _attack(model, x, torch.zeros(2, dtype=torch.int64))
    assert count_proven([found.stage] * 2) == 0


class Backwards(nn.Module):
    """Layers of a ReLU network, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.second, self.first = nn.Linear(24, 3), nn.Linear(48, 24), nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu())


def test_a_batch_is_certified_whatever_the_order_of_layers():
    torch.manual_seed(0)
    x = torch.rand(3, 16)
    found = _attack(Backwards(), x, torch.tensor([0, 1, 2]))
    assert count_proven([found.stage] * 3) == 3
    assert float(torch.cdist(x, found.inputs).amin(dim=1).max()) < 1e-3
    assert found.labels.sort().values.tolist() == [0, 1, 2]
