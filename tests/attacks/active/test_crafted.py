"""Crafted models, and the records that a gradient on them isolates."""

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.first_layer import residual
from overhear.attacks.exact.imprinted import isolate
from overhear.attacks.inversion.crafted import craft, least_rounds, why_not_crafted
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Certified, Imprint, build_box
from overhear.attacks.scoring.metrics import match
from overhear.training.models.parameters import NETWORKS
from tests.attacks.exact.observed import posed

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


def isolated(seen: Observation, model: nn.Module, sent: list[Imprint]) -> Certified | None:
    box = build_box(BOUNDS, SHAPE, dtype=torch.float64)
    return isolate(posed(seen, model.double(), SHAPE, box, classes=CLASSES, imprints=tuple(sent)))


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


@pytest.mark.parametrize(("name", "shape", "why"), [("resnet18", (3, 32, 32), "one chain")])
def test_a_network_for_which_no_model_is_known_is_named_with_the_reason(name, shape, why):
    assert why in why_not_crafted(NETWORKS[name](shape, 10), shape)


def pieces(
    model: nn.Module, shape: tuple[int, ...], *, clip_norm: float | None, seed: int = 0
) -> tuple[Observation, list[Imprint], Tensor, Tensor]:
    """What is seen of one smooth record, in float32 as a run computes it."""
    made = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, shape[0], 3, 3, generator=made)
    x = nn.functional.interpolate(coarse, shape[1:], mode="bilinear")
    y = torch.randint(CLASSES, (1,), generator=made)
    sent = craft(
        model, input_shape=shape, classes=CLASSES, bounds=BOUNDS, records=1, generator=made,
        rounds=least_rounds(model, shape),
    )  # fmt: skip
    sent = [one.to(dtype=torch.float32) for one in sent]
    points = torch.stack([one.parameters for one in sent])
    seen = observe(
        model.float(), points, inputs=x, targets=y, clip_norm=clip_norm, noise_std=0.0,
        generator=made,
    )  # fmt: skip
    return seen.to(dtype=torch.float64), sent, x, y


OWN = nn.Sequential(
    nn.Conv2d(2, 5, (3, 2), padding=1), nn.Tanh(), nn.MaxPool2d(2),
    nn.Conv2d(5, 6, 3, dilation=2, padding=2), nn.GELU(), nn.Flatten(), nn.Linear(6 * 5 * 7, 9),
    nn.Sigmoid(), nn.Linear(9, CLASSES),
)  # fmt: skip


@CLIPS
@pytest.mark.parametrize(
    ("name", "shape", "rounds"),
    [("cnn", (1, 8, 8), 1), ("cnn", (3, 9, 8), 4), ("sigmoid-lenet", (1, 8, 8), 1),
     ("lenet", (1, 12, 12), 5), ("own", (2, 11, 13), 10)],
)  # fmt: skip
def test_one_record_comes_back_piece_by_piece_behind_pooling(name, shape, rounds, clip_norm):
    model = OWN if name == "own" else NETWORKS[name](shape, CLASSES)
    assert least_rounds(model, shape) == rounds
    seen, sent, x, y = pieces(model, shape, clip_norm=clip_norm)
    box = build_box(BOUNDS, shape, dtype=torch.float64)
    found = isolate(posed(seen, model.double(), shape, box, classes=CLASSES, imprints=tuple(sent)))
    assert found is not None
    assert match(x, found.inputs.float()).psnr[0] > 70
    assert found.labels.tolist() == y.tolist()
    if rounds > 1:  # a round of which nothing was seen
        first = seen.only(*range(rounds - 1))
        assert (
            isolate(posed(first, model, shape, box, classes=CLASSES, imprints=tuple(sent))) is None
        )


def test_pieces_take_rounds_and_are_of_one_record():
    model, how = NETWORKS["lenet"]((1, 28, 28), 10), {"classes": 10, "bounds": BOUNDS}
    assert least_rounds(model, (1, 28, 28)) == 12
    assert why_not_crafted(model, (1, 28, 28)) == ""
    assert "batch = 1" in why_not_crafted(model, (1, 28, 28), records=2)
    made = torch.Generator()
    for records, rounds, why in ((1, 11, "at least 12"), (2, 12, "MaxPool2d")):
        with pytest.raises(ValueError, match=why):
            craft(
                model, input_shape=(1, 28, 28), records=records, rounds=rounds, generator=made,
                **how,
            )  # fmt: skip


def test_behind_an_average_no_piece_is_known():
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 2)]
    assert "AvgPool2d" in why_not_crafted(nn.Sequential(*layers), (1, 8, 8))


def test_a_forward_of_ones_own_has_no_crafted_model():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    assert "one chain" in why_not_crafted(Own(), SHAPE)
