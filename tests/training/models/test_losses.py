"""Losses: one number for each example, by itself; and what a regression is measured by."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from overhear.privacy.errors import InputError, InputTypeError
from overhear.training.data.store import Examples
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.evaluation import evaluate
from overhear.training.models.losses import LOSS_NAMES, NetworkLoss, check_loss, loss_named
from overhear.training.models.parameters import flatten


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
