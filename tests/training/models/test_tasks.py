"""Tasks: losses at a point of several blocks."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from overhear.privacy.errors import InputError, InputTypeError
from overhear.training.data.quadratic import quadratic
from overhear.training.data.store import Examples, Shard, TensorStore
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.evaluation import evaluate, gradient_norm
from overhear.training.models.losses import LOSS_NAMES, NetworkLoss, check_loss, loss_named
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


# Losses: one number for each example, by itself; and what a regression is measured by.


def _task(name: str, outputs: int) -> tuple[nn.Module, NetworkLoss]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
    loss = loss_named(name, classes=0, outputs=outputs)
    return model, NetworkLoss(model, loss, regression=True)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("name", ["squared", "absolute"])
def test_each_gradient_is_clipped_by_itself_whatever_the_loss(name, outputs):
    model, task = _task(name, outputs)
    x = torch.randn(5, 3, dtype=torch.float64)
    y = 9 * torch.randn((5,) if outputs == 1 else (5, outputs), dtype=torch.float64)
    found = PairGradients(task, "vmap", dtype=torch.float64).clipped_sums(
        flatten(model)[None], ([0], [0]), [(x, y)], clip_norm=0.3
    )[0]
    expected = torch.zeros_like(found)
    for one, target in zip(x, y, strict=True):
        model.zero_grad()
        off = model(one[None])[0] - target
        (off.square() if name == "squared" else off.abs()).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        expected += gradient * min(1.0, 0.3 / float(gradient.norm()))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSS_NAMES)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_losses_of_ours_pass_the_check_of_losses(name, width):
    classes = width + 1 if name == "cross-entropy" else 0
    outputs = 0 if classes else width
    loss = loss_named(name, classes=classes, outputs=outputs)
    check_loss(loss, name, classes=classes, outputs=outputs)


class Counting:
    """Another loss from call to call."""

    calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return (outputs - targets) ** 2 + self.calls


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (functional.mse_loss, r"returns shape \(\) for 4 examples.*reduction"),
        (lambda o, t: (o[:, None] - t) ** 2, r"returns shape \(4, 4\)"),
        (lambda o, t: (o - t - (o - t).mean()) ** 2, "other numbers for 4 examples together"),
        (lambda o, t: functional.batch_norm(o[:, None], None, None, training=True), "raises|shape"),
        (lambda o, t: (o - t) ** 2 / (o - t).norm(), "other numbers for 4 examples together"),
        (lambda o, t: (o - t).detach() ** 2, "cannot be differentiated|no gradient"),
        (lambda o, t: 0 * o, "no gradient that is finite and not zero"),
        (lambda o, t: (o - t).sign(), "no gradient"),
        (lambda o, t: torch.randn_like(o) * o, "draw nothing at random"),
        (Counting(), "differs from call to call"),
        (lambda o, t: [(o - t) ** 2], "returns list; it must return a tensor"),
        (lambda o, t: (o @ t) ** 2, r"returns shape \(\)"),
        (lambda o: o, "raises TypeError"),
    ],
)  # fmt: skip
def test_a_loss_that_is_not_one_number_an_example_is_refused(loss, why):
    with pytest.raises((InputError, InputTypeError), match=why):
        check_loss(loss, "mine:loss", classes=0, outputs=1)


def test_what_the_loop_alone_can_do_is_no_error_of_a_loss():
    check_loss(
        lambda o, t: torch.stack([a if a > 0 else -a for a in o - t]), "m:l", classes=0, outputs=1
    )


def balanced(outputs, targets):
    counts = (targets[:, None] == torch.arange(outputs.shape[1])).sum(0)
    weights = 1 / counts.clamp(min=1)
    return weights[targets] * functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_weights_of_the_classes_of_a_batch_are_refused_and_public_ones_are_not(classes):
    with pytest.raises(InputError, match="other numbers for 4 examples together"):
        check_loss(balanced, "mine:loss", classes=classes, outputs=0)
    public = nn.CrossEntropyLoss(weight=torch.arange(1.0, classes + 1), reduction="none")
    check_loss(public, "mine:loss", classes=classes, outputs=0)


def test_a_loss_that_is_no_function_is_refused():
    with pytest.raises(InputTypeError, match="is float; it must be a function"):
        loss_named("math:pi", classes=0, outputs=1)


def test_a_regression_is_measured_by_its_error_and_not_by_accuracy():
    model = nn.Linear(1, 1, bias=False)
    task = NetworkLoss(model, loss_named("absolute", classes=0, outputs=1), regression=True)
    x = torch.arange(5.0)[:, None]
    found = evaluate(
        model, torch.tensor([[1.0], [2.0]]), Examples(x, 2 * x[:, 0]), round=3, task=task
    )
    assert (found.accuracy, found.consensus_accuracy, found.auroc) == (None, None, None)
    # The first is off by x, the second by nothing, their mean by x / 2; squares of 0..4 add to 30.
    assert found.loss == pytest.approx((2.0, 0.0))
    assert found.rmse == pytest.approx((math.sqrt(6), 0.0))
    assert found.r2 == pytest.approx((1 - 30 / 40, 1.0))
    assert found.consensus_rmse == pytest.approx(math.sqrt(6) / 2)
    assert found.consensus_r2 == pytest.approx(1 - 7.5 / 40)
    # The mean target, 4, is off by 4, 2, 0, 2 and 4.
    assert found.constant_rmse == pytest.approx(math.sqrt(8))
    assert found.constant_accuracy is found.constant_loss is None


def test_equal_targets_have_no_variance_to_explain():
    model = nn.Linear(1, 1)
    task = NetworkLoss(model, loss_named("squared", classes=0, outputs=1), regression=True)
    same = Examples(torch.randn(4, 1), torch.ones(4))
    assert evaluate(model, torch.zeros(2, 2), same, round=1, task=task).r2 is None


# The norm of all training records' gradient.


def test_it_is_the_norm_of_the_mean_of_the_records_gradients():
    draw = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    inputs = torch.randn(23, 5, generator=draw)
    targets = torch.randint(3, (23,), generator=draw)
    alone = []
    for x, y in zip(inputs.double(), targets, strict=True):
        slopes = torch.autograd.grad(
            cross_entropy(model(x[None]), y[None]), list(model.parameters())
        )
        alone.append(torch.cat([s.flatten() for s in slopes]))
    wanted = float(torch.stack(alone).mean(0).norm())
    records = TensorStore(inputs, targets)
    for batch in (1, 7, 100):
        found = gradient_norm(model, flatten(model), records, batch=batch)
        assert found == pytest.approx(wanted, rel=1e-9)
    half = Shard(records, torch.arange(10))
    assert gradient_norm(model, flatten(model), half) == pytest.approx(
        float(torch.stack(alone[:10]).mean(0).norm()), rel=1e-9
    )


def test_it_vanishes_at_the_known_optimum_of_a_quadratic_alone():
    data = quadratic(6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 1)).double()
    task = NetworkLoss(model, loss_named("squared", classes=0, outputs=1), regression=True)
    best = data.optimum
    assert gradient_norm(model, best, data.train, task=task) < 1e-6
    assert gradient_norm(model, best + 0.1, data.train, task=task) > 1e-2
