"""Tasks: losses at a point of several blocks."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from overhear.privacy.errors import InputError
from overhear.training.accounts.account import account
from overhear.training.algorithms import ALGORITHMS, bind
from overhear.training.data.store import Examples
from overhear.training.engine.engine import Engine, with_numbers
from overhear.training.engine.recording import Recorded
from overhear.training.engine.setting import Setting
from overhear.training.gradients.gradients import PairGradients
from overhear.training.graphs.topologies import ring
from overhear.training.models.parameters import flatten
from overhear.training.models.tasks import (
    ClassWeights,
    RecordWeights,
    Task,
    project_to_simplex,
)


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
    inputs, targets = examples(generator, 1)
    one = ClassWeights(model, classes=3, penalty=0.3, penalty_steepness=4.0)
    point = one.initial()
    x = point[:-3]
    expected = 0.3 * (4.0 * x**2 / (1.0 + 4.0 * x**2)).sum()
    plain = ClassWeights(model, classes=3).loss(point, inputs[0], targets[0])
    found = one.loss(point, inputs[0], targets[0]) - plain
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
    far = one.loss(1e6 * point, inputs[0], targets[0])
    far = far - ClassWeights(model, classes=3).loss(1e6 * point, inputs[0], targets[0])
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
    by = torch.cat(
        [torch.full((n,), c) for n, c in zip(task.dimensions, (-0.9, -0.4), strict=True)]
    )
    by = by.double()
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


# A weight for each record: robust logistic regression as DPMixSGD's paper has it.


def by_hand(w, y, a, b, *, strength, penalty, steepness):
    """sum_j y_j log(1 + exp(-b_j a_j'w)) - strength |y - 1/N|^2 + R(w), and its two gradients."""
    margins, apart = b * (a @ w), y - 1 / len(y)
    losses, curved = np.log1p(np.exp(-margins)), 1 + steepness * w**2
    value = y @ losses - strength * apart @ apart + penalty * np.sum(steepness * w**2 / curved)
    by_w = -a.T @ (y * b / (1 + np.exp(margins))) + penalty * 2 * steepness * w / curved**2
    return value, by_w, losses - 2 * strength * apart


NUMBERS = {"strength": 0.5, "penalty": 0.01, "penalty_steepness": 10.0}


@pytest.mark.parametrize("layout", ["vmap", "loop"])
def test_weights_of_records_are_the_robust_logistic_regression_of_the_paper(layout):
    """Of the network with logits 0 and a'w; gradients over all records are N of the objective."""
    rng = np.random.default_rng(3)
    records, width = 7, 3
    a, labels = rng.normal(size=(records, width)), rng.integers(2, size=records)
    w, y = rng.normal(size=width), rng.dirichlet(np.ones(records))
    value, by_w, by_y = by_hand(w, y, a, 2 * labels - 1, strength=0.5, penalty=0.01, steepness=10.0)
    net = nn.Linear(width, 2, bias=False).double()
    task = RecordWeights(net, records=records, classes=2, **NUMBERS)
    point = torch.cat([torch.zeros(width), torch.tensor(w), torch.tensor(y)]).double()
    targets = task.numbered(torch.tensor(labels), torch.arange(records))
    inputs = torch.tensor(a)
    losses = [task.loss(point, x, t) for x, t in zip(inputs, targets, strict=True)]
    assert float(torch.stack(losses).mean()) == pytest.approx(value, rel=1e-12)
    sums = PairGradients(task, layout, dtype=torch.float64).clipped_sums(
        point[None], ([0], [0]), [(inputs, targets)], clip_norm=None
    )[0]
    np.testing.assert_allclose(sums[width : 2 * width] / records, by_w, rtol=1e-10)
    np.testing.assert_allclose(sums[2 * width :] / records, by_y, rtol=1e-10)


def test_the_best_weights_of_records_are_the_projected_losses():
    """argmax of y'l - s |y - 1/N|^2 on the simplex: the projection of 1/N + l / (2 s)."""
    losses = torch.tensor([0.2, 1.0, 0.9, 0.1]).double()
    y, strength = torch.full((4,), 0.25).double(), 0.8
    for _ in range(2000):
        y = project_to_simplex(y + 0.05 * (losses - 2 * strength * (y - 0.25)))
    best = project_to_simplex(0.25 + losses / (2 * strength))
    torch.testing.assert_close(y, best, rtol=0, atol=1e-12)
    grid = torch.tensor([[i, j, k, 20 - i - j - k] for i in range(21) for j in range(21 - i)
                         for k in range(21 - i - j)]).double() / 20  # fmt: skip
    values = grid @ losses - strength * (grid - 0.25).square().sum(1)
    assert float(values.max()) <= float(best @ losses - strength * (best - 0.25).square().sum())


def of_records(**changed):
    net = nn.Linear(2, 2)
    shards = [Examples(torch.randn(4, 2), torch.tensor([0, 1, 1, 0])) for _ in range(3)]
    given = {"records": 12, "classes": 2} | changed
    return Setting(
        graph=ring(3),
        model=net,
        shards=shards,
        sampling_rate=0.5,
        device=torch.device("cpu"),
        task=RecordWeights(net, **given),
    )


def bound_to(name, *, clip_norm, noise_std=1.0, step=None):
    algorithm = ALGORITHMS[name]
    found = bind(
        algorithm,
        algorithm.settings(learning_rate_y=1e-3),
        learning_rate=0.1,
        clip_norm=clip_norm,
        noise_std=noise_std,
        batch_size=2.0,
        records=4.0,
    )
    return found if step is None else found._replace(step=step)


@pytest.mark.parametrize("name", ["dpmixsgd", "dp-sgda"])
def test_weights_of_records_have_no_finite_figure(name):
    """A clip would give one that is false of what is sent, so no round that clips is begun."""
    with pytest.raises(InputError, match="which neither a clip norm nor noise hides"):
        Engine(of_records(), bound_to(name, clip_norm=1.0)).advance()
    Engine(of_records(), bound_to(name, clip_norm=None)).advance()
    found = account(
        name, graph="ring:3", rounds=2, sampling_rate=0.5, delta=1e-5, noise_multiplier=5.0,
        clip_norm=None, records=4.0,
    )  # fmt: skip
    assert {g.epsilon for g in found.guarantees.values()} == {math.inf}


def in_the_open(state, round):
    """A false twin of SGDA: no noise is in what it sends of the weights, and it clips."""
    gx, gy = round.clipped_sums((state.x, state.y), batch=round.draw(), clip_norm=1.0)
    y = round.project(round.mix(state.y + 1e-3 * gy, kind="dual"))
    return type(state)(round.mix(state.x - 0.1 * (gx + round.noise(gx, std=1.0)), kind="model"), y)


def test_a_step_that_sends_weights_of_records_in_the_open_is_stopped_and_infinite():
    twin = bound_to("dp-sgda", clip_norm=1.0, step=in_the_open)
    with pytest.raises(InputError, match="has a weight for each record"):
        Engine(of_records(), twin).advance()
    found = account(
        ALGORITHMS["sgda"].init, in_the_open, graph="ring:3", rounds=2, sampling_rate=0.5,
        delta=1e-5, noise_multiplier=1.0,
    )  # fmt: skip
    assert found["eavesdropper"].epsilon == math.inf


def test_each_record_moves_its_own_weight():
    """One record an agent that is always drawn: of unequal losses, the largest gains most."""
    s = of_records()
    engine = Engine(s, bound_to("sgda", clip_norm=None, noise_std=0.0))
    recorded = Recorded()
    engine.advance(recorded=recorded)
    _, gy = recorded.contributions
    for agent, positions in enumerate(recorded.batches[0]):
        moved = {4 * agent + i for i in positions.tolist()}
        assert set((gy[agent] > 1e-6).nonzero().flatten().tolist()) == moved


def test_a_record_without_a_number_or_a_weight_is_refused():
    task = of_records().task
    plain = task.loss(task.initial(), torch.ones(2), torch.tensor(1))
    assert math.isnan(float(plain))
    with pytest.raises(InputError, match="no weight of its record"):
        task.loss(task.initial(), torch.ones(2), torch.tensor([0.5, 0.5]))
    with pytest.raises(InputError, match="11 weights for 12 records"):
        of_records(records=11)
    kept = Examples(torch.ones(1, 2), torch.tensor([1]))
    assert with_numbers(None, kept, torch.tensor([3])) is kept
