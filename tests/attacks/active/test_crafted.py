"""Crafted models, and the records that a gradient on them isolates."""

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.active.crafted import craft, why_not_crafted
from overhear.attacks.exact.first_layer import residual
from overhear.attacks.exact.imprinted import Isolated, isolate
from overhear.attacks.problem.imprint import Imprint
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.prior import build_box
from overhear.attacks.scoring.metrics import match
from overhear.training.models.networks import NETWORKS

SHAPE, CLASSES = (1, 8, 8), 4
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
CLIPS = pytest.mark.parametrize("clip_norm", [None, 1.0])


def records(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, generator=made), torch.randint(4, (count,), generator=made)


def seen_by(
    model: nn.Module, count: int, *, rounds: int = 1, clip_norm: float | None, seed: int = 3
) -> tuple[Observation, list[Imprint], Tensor, Tensor]:
    """What a malicious neighbour of a batch gets back, in float32 as a run computes it."""
    x, y = records(count)
    made = torch.Generator().manual_seed(seed)
    sent = craft(
        model, input_shape=SHAPE, classes=CLASSES, bounds=BOUNDS, records=count, generator=made,
        public=records(400, seed=9)[0], rounds=rounds,
    )  # fmt: skip
    sent = [one.to(dtype=torch.float32) for one in sent]
    points = torch.stack([one.parameters for one in sent])
    seen = observe(
        model, points, inputs=x, targets=y, clip_norm=clip_norm, noise_std=0.0, generator=made
    )
    return seen.to(dtype=torch.float64), sent, x, y


def isolated(seen: Observation, model: nn.Module, sent: list[Imprint]) -> Isolated | None:
    box = build_box(BOUNDS, SHAPE, dtype=torch.float64)
    return isolate(seen, model.double(), sent, box=box, classes=CLASSES)


@CLIPS
@pytest.mark.parametrize(
    ("name", "count", "rounds"), [("mlp", 12, 1), ("linear", 3, 3), ("conv4", 2, 2)]
)
def test_all_records_of_a_batch_come_back_with_their_labels(name, count, rounds, clip_norm):
    model = NETWORKS[name](SHAPE, CLASSES)
    seen, sent, x, y = seen_by(model, count, rounds=rounds, clip_norm=clip_norm)
    found = isolated(seen, model, sent)
    assert found is not None
    scores = match(x, found.inputs.float().clamp(0, 1))
    assert min(scores.psnr) > 70
    assert found.labels[list(scores.order)].tolist() == y.tolist()
    assert residual(seen, model, inputs=found.inputs, targets=found.labels) < 1e-3


def test_layers_between_carry_every_direction():
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 9), nn.ReLU(), nn.Linear(9, 4)
    )
    seen, sent, x, _ = seen_by(model, 6, clip_norm=1.0)
    found = isolated(seen, model, sent)
    assert found is not None
    assert min(match(x, found.inputs.float().clamp(0, 1)).psnr) > 70


def test_records_that_share_every_bin_stay_hidden():
    model = NETWORKS["mlp"](SHAPE, CLASSES)
    seen, sent, x, y = seen_by(model, 4, clip_norm=None)
    twice = observe(
        model.float(), sent[0].parameters[None], inputs=torch.cat([x, x[:1]]),
        targets=torch.cat([y, (y[:1] + 1) % CLASSES]), clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    found = isolated(twice.to(dtype=torch.float64), model, sent)
    assert found is not None
    assert len(found.labels) == 3  # the other three; of the two nothing is claimed
    assert match(x[1:], found.inputs.float().clamp(0, 1)).psnr[0] > 70
    assert len(seen.points) == 1


def test_on_a_model_that_was_not_crafted_nothing_is_isolated():
    model = NETWORKS["mlp"](SHAPE, CLASSES)
    x, y = records(6)
    _, sent, _, _ = seen_by(model, 6, clip_norm=None)
    honest = nn.utils.parameters_to_vector(NETWORKS["mlp"](SHAPE, CLASSES).parameters()).detach()
    seen = observe(
        model.float(), honest, inputs=x, targets=y, clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    assert isolated(seen.to(dtype=torch.float64), model, sent) is None


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("lenet", (1, 28, 28), "MaxPool2d"),
        ("resnet18", (3, 32, 32), "one chain"),
        ("sigmoid-lenet", (1, 8, 8), "Sigmoid"),
    ],
)
def test_a_network_for_which_no_model_is_known_is_named_with_the_reason(name, shape, why):
    assert why in why_not_crafted(NETWORKS[name](shape, 10), shape)


def test_a_forward_of_ones_own_has_no_crafted_model():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    assert "one chain" in why_not_crafted(Own(), SHAPE)
