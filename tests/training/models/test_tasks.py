"""Tasks: losses at a point of several blocks."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import flatten
from overhear.training.models.tasks import ClassWeights, Task, project_to_simplex


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(4)


@pytest.fixture
def model(generator):
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    for p in net.parameters():
        p.data.normal_(generator=generator)
    return net


def examples(generator, count=6):
    inputs = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (count,), generator=generator)


def test_equal_weights_are_plain_classification(model, generator):
    task = ClassWeights(model, classes=3)
    assert isinstance(task, Task)
    inputs, targets = examples(generator)
    point = task.initial()
    assert torch.equal(point[:-3], flatten(model))
    for x, y in zip(inputs, targets, strict=True):
        plain = cross_entropy(model(x[None]), y[None])
        torch.testing.assert_close(task.loss(point, x, y), plain, rtol=1e-12, atol=1e-13)


def test_the_mean_over_balanced_classes_is_the_stated_objective(model, generator):
    task = ClassWeights(model, classes=3, strength=0.7)
    inputs, _ = examples(generator, 9)
    targets = torch.arange(3).repeat(3)
    y = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    point = torch.cat([flatten(model), y])
    errors = cross_entropy(model(inputs), targets, reduction="none")
    by_class = torch.stack([errors[targets == c].mean() for c in range(3)])
    expected = (y * by_class).sum() - 0.7 * (y - 1 / 3).square().sum()
    losses = [task.loss(point, a, c) for a, c in zip(inputs, targets, strict=True)]
    torch.testing.assert_close(torch.stack(losses).mean(), expected, rtol=1e-12, atol=1e-13)


def test_the_penalty_levels_off_and_is_added_for_every_parameter(model, generator):
    (a,), (c,) = examples(generator, 1)
    none = ClassWeights(model, classes=3)
    one = ClassWeights(model, classes=3, penalty=0.3, penalty_steepness=4.0)
    x = (point := one.initial())[:-3]
    expected = 0.3 * (4.0 * x**2 / (1.0 + 4.0 * x**2)).sum()
    found = one.loss(point, a, c) - none.loss(point, a, c)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    far = one.loss(1e6 * point, a, c) - none.loss(1e6 * point, a, c)
    assert float(far) == pytest.approx(0.3 * len(x), rel=1e-2)


def test_two_logits_that_differ_by_one_product_are_logistic_regression():
    """log(1 + exp(-b a'w)) of labels b in {-1, 1}, for the network with weights 0 and w."""
    net = nn.Linear(3, 2, bias=False).double()
    w, a = torch.tensor([0.3, -1.0, 2.0]).double(), torch.tensor([1.0, 0.5, -0.2]).double()
    point = torch.cat([torch.zeros(3).double(), w, torch.full((2,), 0.5).double()])
    task = ClassWeights(net, classes=2)
    for target, b in ((0, -1.0), (1, 1.0)):
        expected = torch.log1p(torch.exp(-b * a @ w))
        torch.testing.assert_close(task.loss(point, a, torch.tensor(target)), expected)


@pytest.mark.parametrize("layout", ["auto", "vmap", "loop"])
def test_a_coefficient_may_differ_from_coordinate_to_coordinate(layout, model, generator):
    task = ClassWeights(model, classes=3, strength=0.7)
    engine = PairGradients(task, layout)
    batch = examples(generator, 5)
    points = torch.stack([task.initial(), task.initial() + 0.1])[:, None]  # (2, 1, D)
    blocks = zip(task.dimensions, (-0.9, -0.4), strict=True)
    by = torch.cat([torch.full((n,), c).double() for n, c in blocks])
    found = engine.clipped_sums(points, ([0], [0]), [batch], clip_norm=0.3, coefficients=(1.0, by))
    expected = torch.zeros_like(found[0])
    for a, c in zip(*batch, strict=True):
        vector = torch.zeros_like(expected)
        for coef, point in zip((1.0, by), points[:, 0], strict=True):
            at = point.clone().requires_grad_()
            vector += coef * torch.autograd.grad(task.loss(at, a, c), at)[0]
        expected += vector * min(1.0, 0.3 / float(vector.norm()))
    torch.testing.assert_close(found[0], expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(ValueError, match="finite numbers, one a point"):
        engine.clipped_sums(points, ([0], [0]), [batch], clip_norm=0.3, coefficients=(1.0, by[:-1]))


@pytest.mark.parametrize("layout", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("clip_norm", [0.3, None])
def test_every_layout_gives_clipped_gradients_of_the_joint_point(
    layout, clip_norm, model, generator
):
    task = ClassWeights(model, classes=3, strength=0.7)
    engine = PairGradients(task, layout)
    assert (engine.parameters, engine.dtype) == (sum(task.dimensions), torch.float64)
    batches = [examples(generator, n) for n in (5, 0, 2)]
    points = torch.stack([task.initial() + 0.1 * i for i in range(4)]).reshape(2, 2, -1)
    pairs = [0, 1, 1, 0], [0, 0, 2, 1]
    found = engine.clipped_sums(
        points, pairs, batches, clip_norm=clip_norm, coefficients=(1.0, -0.6)
    )
    expected = torch.zeros_like(found)
    for row, (m, d) in enumerate(zip(*pairs, strict=True)):
        for a, c in zip(*batches[d], strict=True):
            vector = torch.zeros_like(found[0])
            for coef, point in zip((1.0, -0.6), points[:, m], strict=True):
                at = point.clone().requires_grad_()
                vector += coef * torch.autograd.grad(task.loss(at, a, c), at)[0]
            shrink = 1.0 if clip_norm is None else min(1.0, clip_norm / float(vector.norm()))
            expected[row] += shrink * vector
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert engine.layout == ("loop" if layout == "loop" else "vmap")


def test_book_keeping_and_what_is_no_task_are_refused(model):
    with pytest.raises(ValueError, match="a task has no layers"):
        PairGradients(ClassWeights(model, classes=3), "book-keeping")
    with pytest.raises(TypeError, match=r"must be an nn\.Module or a task"):
        PairGradients("lenet")


def test_a_projection_is_the_nearest_point_of_the_simplex(generator):
    for _ in range(20):
        value = torch.randn(5, generator=generator, dtype=torch.float64)
        nearest = project_to_simplex(value)
        assert float(nearest.sum()) == pytest.approx(1.0, abs=1e-12)
        assert float(nearest.min()) >= 0.0
        others = torch.rand(200, 5, generator=generator, dtype=torch.float64)
        others = -others.log() / (-others.log()).sum(1, keepdim=True)  # uniform on the simplex
        assert float((value - nearest).norm()) <= float((others - value).norm(dim=1).min())
        # The residue leaves no direction into the simplex along which the distance falls.
        slack = (value - nearest).max() - (value - nearest)
        assert float((slack * nearest).abs().max()) < 1e-12
        assert torch.allclose(project_to_simplex(nearest), nearest, atol=1e-12)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"classes": 1}, "classes=1"),
        ({"classes": 3, "strength": -1.0}, "strength=-1.0"),
        ({"classes": 3, "strength": math.inf}, "strength=inf"),
        ({"classes": 3, "penalty": -0.1}, "penalty=-0.1"),
        ({"classes": 3, "penalty_steepness": math.nan}, "penalty_steepness=nan"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers, named, model):
    with pytest.raises(ValueError, match=named):
        ClassWeights(model, **numbers)
