"""The least squares of `quadratic` are the quadratics that its page states."""

import math

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.data.partition import parts_held
from overhear.training.data.quadratic import quadratic


def loss(inputs, targets, point):
    """Mean over records of (a'w + b - t)^2."""
    return (inputs.double() @ point[:-1] + point[-1] - targets.double()).square().mean()


def stated(agent, point, *, dimension, rotation, condition, spread):
    """(w - c_i)' H_i (w - c_i) + b^2 + s^2, written out anew."""
    turn = np.eye(dimension)
    angle = math.radians(agent * rotation)
    for k in range(0, dimension - 1, 2):
        turn[k, k] = turn[k + 1, k + 1] = math.cos(angle)
        turn[k + 1, k], turn[k, k + 1] = math.sin(angle), -math.sin(angle)
    hessian = turn @ np.diag([1 if k % 2 == 0 else 1 / condition for k in range(dimension)])
    hessian = hessian @ turn.T
    away = point.numpy()[:-1] - turn @ np.ones(dimension) / math.sqrt(dimension)
    return away @ hessian @ away + float(point[-1]) ** 2 + spread**2


@pytest.mark.parametrize("dimension", [2, 5])
def test_the_mean_loss_of_an_agent_is_its_stated_quadratic(dimension):
    options = {"dimension": dimension, "rotation": 15.0, "condition": 7.0, "spread": 0.3}
    data = quadratic(4, records=30, seed=3, **options)
    points = torch.randn(6, dimension + 1, generator=torch.Generator().manual_seed(0)).double()
    for agent, part in enumerate(parts_held(data.held_by, 4)):
        for point in points:
            wanted = stated(agent, point, **options)
            of_train = loss(data.inputs[part], data.targets[part], point)
            of_test = loss(data.test_inputs[part], data.test_targets[part], point)
            assert float(of_train) == pytest.approx(wanted, rel=1e-5)
            assert float(of_test) == pytest.approx(wanted, rel=1e-5)


def test_the_gradient_of_all_agents_vanishes_at_the_optimum():
    data = quadratic(20, dimension=4)
    point = data.optimum.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(data.inputs, data.targets, point), point)
    assert slope.norm() < 1e-6
    (other,) = torch.autograd.grad(loss(data.inputs, data.targets, point + 0.1), point)
    assert other.norm() > 1e-2


def whispered(point, *, agents, rotation=15.0):
    """The objectives of Whisper's section VI-A, written out anew: (A,)."""
    x1, x2 = point[0], point[1]
    cosine, sine = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    found = []
    for i in range(1, agents + 1):
        if i <= agents / 2:
            found.append(15 * (x1 + i) ** 2 + x2**2)
        else:
            # The function turned by the angle about (i, 0): it is evaluated where the point was.
            u, v = cosine * (x1 - i) + sine * x2, -sine * (x1 - i) + cosine * x2
            found.append(15 * u**2 + v**2)
    return np.array(found)


@pytest.mark.parametrize("agents", [5, 20])
def test_the_form_whisper_is_the_problem_of_its_paper(agents):
    data = quadratic(agents, form="whisper", records=8, spread=0.0, seed=2)
    for point in np.random.default_rng(0).normal(0, 5, (4, 3)):
        wanted = whispered(point, agents=agents) + point[2] ** 2
        # Central differences of a quadratic are its gradient.
        steps = [
            (whispered(point + h, agents=agents) - whispered(point - h, agents=agents)) / 2
            for h in np.eye(3)
        ]
        slopes = np.stack([*steps[:2], np.full(agents, 2 * point[2])])  # (3, A)
        for agent, part in enumerate(parts_held(data.held_by, agents)):
            at = torch.tensor(point, requires_grad=True)
            found = loss(data.inputs[part], data.targets[part], at)
            (slope,) = torch.autograd.grad(found, at)
            assert found.item() == pytest.approx(wanted[agent], rel=1e-5)
            assert slope.tolist() == pytest.approx(slopes[:, agent].tolist(), rel=1e-4, abs=1e-3)


def test_the_optimum_of_the_form_whisper_is_where_its_mean_is_least():
    best = quadratic(20, form="whisper").optimum.numpy()
    hessian = np.zeros((2, 2))
    for j, h in enumerate(np.eye(2)):
        for k, g in enumerate(np.eye(2)):
            corners = ((h + g, 1), (h, -1), (g, -1), (0 * h, 1))
            hessian[j, k] = sum(s * whispered(c, agents=20).mean() for c, s in corners)
    slope = [(whispered(h, agents=20) - whispered(-h, agents=20)).mean() / 2 for h in np.eye(2)]
    assert best.tolist() == pytest.approx([*np.linalg.solve(hessian, np.negative(slope)), 0.0])
    assert best.round(3).tolist() == [2.846, 15.076, 0.0]


def test_the_seed_decides_the_records_and_not_the_quadratics():
    one, two = quadratic(3, seed=0), quadratic(3, seed=1)
    assert not torch.equal(one.inputs, two.inputs)
    assert torch.equal(one.optimum, two.optimum)


def test_without_rotation_all_agents_share_an_optimum():
    assert quadratic(6, rotation=0.0).optimum.tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "wisper"}, "form='wisper' must be 'whisper'"),
        ({"dimension": 1}, "dimension=1 must be at least 2"),
        ({"records": 3}, "records=3 must be at least 4"),
        ({"condition": 0.5}, "condition=0.5 must be"),
        ({"spread": -1.0}, "spread=-1.0 must be"),
        ({"rotation": math.inf}, "rotation=inf must be"),
        ({"records": 10**9}, "at most 1073741824 numbers"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        quadratic(5, **options)


def test_records_go_to_the_agent_that_the_data_name():
    assert [part.tolist() for part in parts_held(torch.tensor([2, 0, 1, 0]), 3)] == [
        [1, 3],
        [2],
        [0],
    ]
    with pytest.raises(InputError, match="agent 1 holds no record"):
        parts_held(torch.tensor([0, 2]), 3)
    with pytest.raises(InputError, match="the data name agents 0 to 3"):
        parts_held(torch.tensor([0, 3]), 3)
