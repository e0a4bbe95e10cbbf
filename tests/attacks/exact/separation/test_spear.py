"""Small batches through linear, ReLU, linear: what is certified is true, the rest is missing."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.exact.spear import separate_records
from overhear.attacks.exact.spear_images import activity_patterns
from overhear.attacks.problem.observation import Observation, Sent, observe, sent_gradient
from overhear.attacks.problem.problem import Box, Certified
from overhear.training.models.parameters import flatten
from tests.attacks.exact.observed import posed

UNIT = Box(low=torch.tensor(0.0).double(), span=torch.tensor(1.0).double())
LABELS = torch.tensor([3, 7, 1, 9, 3, 5, 1, 2])


def patches(offset: int, count: int) -> Tensor:
    """Colour patches 32x32 of the astronaut, every fifth of a grid of step 56 from the offset."""
    from skimage import data

    photo = torch.tensor(data.astronaut().transpose(2, 0, 1) / 255.0)
    corners = [divmod(5 * k, 8) for k in range(count)]
    rows = [(offset + 56 * r, offset + 56 * c) for r, c in corners]
    return torch.stack([photo[:, top : top + 32, left : left + 32] for top, left in rows])


def network(inputs: int, *, width: int, classes: int = 10, deep: bool = False) -> nn.Module:
    torch.manual_seed(1234)
    tail = [nn.Linear(width, 30), nn.ReLU(), nn.Linear(30, classes)]
    head = [nn.Flatten(), nn.Linear(inputs, width), nn.ReLU()]
    return nn.Sequential(*head, *(tail if deep else [nn.Linear(width, classes)])).double()


def seen_of(
    model: nn.Module, x: Tensor, y: Tensor, *, clip_norm: float | None = None
) -> Observation:
    return observe(
        model, flatten(model).to(x), inputs=x, targets=y, clip_norm=clip_norm, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip


def attack(seen: Observation, model: nn.Module, x: Tensor, *, box: Box = UNIT) -> Certified | None:
    generator = torch.Generator().manual_seed(0)
    return separate_records(posed(seen, model, tuple(x.shape[1:]), box), generator)


def errors(found: Certified, x: Tensor) -> tuple[Tensor, Tensor]:
    """MSE of each found image to its nearest record, and which record that is."""
    apart = found.inputs.flatten(1)[:, None].double() - x.flatten(1).double()[None]
    return apart.square().mean(dim=2).min(dim=1)


@pytest.mark.parametrize("offset", [7, 20, 40, 3, 60])
def test_eight_astronaut_patches_are_exact_with_certificate(offset):
    x = patches(offset, 8)
    model = network(3072, width=256)
    found = attack(seen_of(model, x, LABELS), model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    assert max(found.left) < 1e-10
    mse, order = errors(found, x)
    assert sorted(order.tolist()) == list(range(8))
    assert float(mse.max()) < 1e-22
    assert found.labels is not None
    assert torch.equal(found.labels, LABELS[order])


def test_single_precision_and_records_clipped_one_by_one_keep_100_db():
    x = patches(7, 8).float()
    model = network(3072, width=256).float()
    seen = seen_of(model, x, LABELS, clip_norm=1.0)
    assert seen.gradient.dtype == torch.float32
    found = attack(seen, model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    assert float(errors(found, x)[0].max()) < 1e-10


def test_a_clipped_mean_is_separated_like_a_plain_one():
    x, y = torch.rand(4, 20, generator=torch.Generator().manual_seed(0)).double(), LABELS[:4]
    model = network(20, width=120)
    sent = sent_gradient(
        model, flatten(model), inputs=x, targets=y, of=Sent(clip_norm=0.1, mean_of=5.0)
    )
    seen = dataclasses.replace(
        seen_of(model, x, y), gradient=sent[None], clip_norm=0.1, mean_of=5.0
    )
    found = attack(seen, model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    assert float(errors(found, x)[0].max()) < 1e-20


@pytest.mark.parametrize(("count", "classes"), [(12, 10), (5, 2)])
def test_more_records_than_classes_are_separated(count, classes):
    x = torch.rand(count, 60, generator=torch.Generator().manual_seed(1)).double()
    y = LABELS.repeat(2)[:count] % classes
    model = network(60, width=250, classes=classes)
    found = attack(seen_of(model, x, y), model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    mse, order = errors(found, x)
    assert float(mse.max()) < 1e-20
    assert found.labels is not None
    assert torch.equal(found.labels, y[order])


def test_further_layers_behind_the_second_do_not_matter():
    x = torch.rand(4, 20, generator=torch.Generator().manual_seed(2)).double()
    model = network(20, width=120, deep=True)
    found = attack(seen_of(model, x, LABELS[:4]), model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    mse, order = errors(found, x)
    assert float(mse.max()) < 1e-20
    assert found.labels is not None
    assert torch.equal(found.labels, LABELS[order])


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_centred_inputs_without_a_unit_that_all_records_activate(bias):
    x = 4 * patches(20, 8) - 2
    model = network(3072, width=256)
    model[3] = nn.Linear(256, 10, bias=bias).double()
    h = x.flatten(1) @ model[1].weight.T.detach() + model[1].bias.detach()
    assert not bool((h > 0).all(dim=0).any())
    box = Box(low=torch.tensor(-2.0).double(), span=torch.tensor(4.0).double())
    found = attack(seen_of(model, x, LABELS), model, x, box=box)
    assert found is not None
    assert len(found.inputs) == len(x)
    assert float(errors(found, x)[0].max()) < 1e-20


def test_one_record_is_a_batch():
    x = torch.rand(1, 20, generator=torch.Generator().manual_seed(3)).double()
    model = network(20, width=40)
    found = attack(seen_of(model, x, LABELS[:1], clip_norm=0.5), model, x)
    assert found is not None
    assert len(found.inputs) == len(x)
    assert float(errors(found, x)[0].max()) < 1e-20


def test_records_of_one_pattern_are_missing_and_the_others_certified():
    x = torch.rand(5, 20, generator=torch.Generator().manual_seed(4)).double()
    x[4] = (x[3] + 1e-6).clamp(0, 1)
    model = network(20, width=150)
    h = x @ model[1].weight.T.detach() + model[1].bias.detach()
    assert torch.equal(h[3] > 0, h[4] > 0)
    found = attack(seen_of(model, x, torch.tensor([3, 7, 1, 9, 2])), model, x)
    assert found is not None
    assert len(found.inputs) == 3
    mse, order = errors(found, x)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert float(mse.max()) < 1e-15


def test_equal_records_leave_no_rank_and_nothing_is_said():
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(5)).double()
    x[2] = x[1]
    model = network(20, width=60)
    assert attack(seen_of(model, x, torch.tensor([1, 2, 2])), model, x) is None


def test_a_second_gradient_of_another_batch_certifies_nothing():
    generator = torch.Generator().manual_seed(6)
    x, other = (torch.rand(4, 20, generator=generator).double() for _ in range(2))
    model = network(20, width=120)
    seen, strange = seen_of(model, x, LABELS[:4]), seen_of(model, other, LABELS[:4])
    count = 20 * 120 + 120
    mixed = torch.cat([seen.gradient[:, :count], strange.gradient[:, count:]], dim=1)
    found = attack(dataclasses.replace(seen, gradient=mixed), model, x)
    assert found is not None
    assert len(found.inputs) == 0
    assert tuple(found.inputs.shape) == (0, 20)


def test_an_image_outside_the_box_is_missing():
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(7)).double()
    x[1, 0] = 1.5
    model = network(20, width=120)
    found = attack(seen_of(model, x, LABELS[:3]), model, x)
    assert found is not None
    assert len(found.inputs) == 2
    assert float(errors(found, x)[0].max()) < 1e-20


def test_of_several_intercepts_the_fullest_is_returned():
    x = torch.rand(4, 20, generator=torch.Generator().manual_seed(8)).double()
    model = network(20, width=120)
    flat = flatten(model)
    models = torch.stack([torch.zeros_like(flat), flat])  # all units of the first are dead
    seen = observe(
        model, models, inputs=x, targets=LABELS[:4], clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    found = attack(seen, model, x)
    assert found is not None
    assert len(found.inputs) == len(x)


class _Half(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, 0.5 * self.weight, self.bias)


class _Scaled(nn.Module):
    """Divides records by their largest number, which a ramp to 1 does not show."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x.amax(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(_Half(20, 60), nn.ReLU(), nn.Linear(60, 10)),
        nn.Sequential(_Scaled(), nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10)),
        nn.Sequential(nn.Linear(20, 60), nn.LeakyReLU(), nn.Linear(60, 10)),
        nn.Sequential(nn.Linear(20, 60), nn.Sigmoid(), nn.Linear(60, 10)),
        nn.Sequential(nn.Linear(20, 60, bias=False), nn.ReLU(), nn.Linear(60, 10)),
        nn.Sequential(nn.ReLU(), nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 10)),
        nn.Linear(20, 10),
    ],
    ids=[
        "half the weights",
        "largest is 1",
        "leaky",
        "sigmoid",
        "no bias",
        "input not raw",
        "one layer",
    ],
)
def test_other_networks_are_left_alone(model):
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(9)).double()
    assert attack(seen_of(model.double(), x, LABELS[:3]), model, x) is None


def test_noise_is_left_alone():
    x = torch.rand(3, 20, generator=torch.Generator().manual_seed(9)).double()
    model = network(20, width=60)
    seen = seen_of(model, x, LABELS[:3])
    assert attack(dataclasses.replace(seen, covariance=torch.tensor([[1e-6]])), model, x) is None


@pytest.mark.slow
def test_no_certified_image_of_sixty_hard_batches_is_false():
    """Narrow layers, near copies and mixtures of records, both precisions, clipped or not."""
    records = certified = 0
    for case in range(60):
        g = torch.Generator().manual_seed(case)
        count, width = 2 + case % 7, (16, 32, 64)[case % 3]
        classes = (2, 3, 10)[(case // 3) % 3]
        x = torch.rand(count, 12, generator=g).double()
        if case % 4 == 1:
            x = (x[:1] + 0.05 * torch.randn(count, 12, generator=g).double()).clamp(0, 1)
        if case % 4 == 2:
            x[-1] = (x[0] + x[1]) / 2
        y = torch.randint(0, classes, (count,), generator=g)
        model = network(12, width=width, classes=classes)
        if case % 2:
            model, x = model.float(), x.float()
        clip_norm = None if case % 5 else 0.5
        found = attack(seen_of(model, x, y, clip_norm=clip_norm), model, x)
        records += count
        if found is None or not len(found.inputs):
            continue
        certified += len(found.inputs)
        mse, order = errors(found, x)
        assert float(mse.max()) < 1e-6, case
        assert len(set(order.tolist())) == len(order)
        assert bool(((found.labels == y[order]) | (found.labels < 0)).all())
    assert certified > records / 4


def test_inputs_keep_the_box_s_units_and_precision():
    box = Box(low=torch.tensor(-2.0), span=torch.tensor(4.0))
    x = 4 * torch.rand(3, 20, generator=torch.Generator().manual_seed(10)).double() - 2
    model = network(20, width=120)
    found = attack(seen_of(model, x, LABELS[:3]), model, x, box=box)
    assert found is not None
    assert found.inputs.dtype == torch.float32
    assert math.sqrt(float(errors(found, x)[0].max())) < 1e-6


def test_units_that_rest_show_no_rounding_and_certify_nothing():
    g = torch.Generator().manual_seed(5)
    wrong = []
    for seed in range(40):
        model, x = network(8, width=4, classes=2), torch.rand(3, 8, generator=g).double()
        model[1].weight.data = torch.randn(4, 8, generator=g).double() / 2
        model[1].bias.data[3] = -9.0
        seen = seen_of(model, x, LABELS[:3] % 2)
        seen = dataclasses.replace(seen, gradient=seen.gradient.bfloat16().double())
        found = attack(seen, model, x)
        wrong += [] if found is None or not len(found.inputs) else [seed]
    assert not wrong


# Patterns of activity from two linear images that exclude each other.


def planted(
    units: int, records: int, *, twins: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(P, N, always, never) in random coordinates, and the records' patterns as `active`."""
    g = torch.Generator().manual_seed(units + records)
    h = torch.randn(units, records, generator=g, dtype=torch.float64)
    if twins:
        h[:, 1] = h[:, 0] * (1 + torch.rand(units, generator=g, dtype=torch.float64))
    a = h.clamp_min(0)
    base = torch.randn(records, records, generator=g, dtype=torch.float64)
    return a @ base, (a - h) @ base, h > 0, a


def solve(units: int, records: int, *, twins: bool = False) -> tuple[set[tuple[bool, ...]], Tensor]:
    p, n, active, _ = planted(units, records, twins=twins)
    found = activity_patterns(
        p, n, always=active.all(dim=1), never=~active.any(dim=1), records=records, noise=1e-15,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    return {tuple(row) for row in found.tolist()}, active


def test_half_of_b_squared_units_give_every_pattern():
    patterns, active = solve(60, 8)
    assert patterns == {tuple(column) for column in active.T.tolist()}


def test_twins_do_not_hide_the_other_records():
    patterns, active = solve(80, 5, twins=True)
    assert {tuple(column) for column in active.T.tolist()} <= patterns


def test_too_few_units_give_candidates_and_no_error():
    patterns, _ = solve(6, 6)
    assert all(len(pattern) == 6 for pattern in patterns)


def test_units_without_dispute_give_one_pattern():
    rows = torch.eye(4, dtype=torch.float64)
    always = torch.tensor([True, True, False, False])
    found = activity_patterns(
        rows * always[:, None], rows * ~always[:, None], always=always, never=~always, records=2,
        noise=1e-15, generator=torch.Generator(),
    )  # fmt: skip
    assert found.tolist() == [always.tolist()]
