"""The AUROC task: its saddle is the square loss of pairs, and a record's loss is its own."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from overhear.privacy.errors import InputError
from overhear.training.gradients.gradients import PairGradients
from overhear.training.models.parameters import MODEL_NAMES, flatten, unflatten
from overhear.training.models.tasks import AreaUnderCurve, ClassWeights, Task, with_centres
from tests.training.models.test_parameters import IMAGE, _build


def setting(positives=5, negatives=9):
    draw = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    for p in net.parameters():
        p.data.normal_(generator=draw)
    count = positives + negatives
    inputs = torch.randn(count, 4, generator=draw, dtype=torch.float64)
    targets = torch.tensor([1] * positives + [0] * negatives)
    task = AreaUnderCurve(net, positive_share=positives / count)
    return net, task, inputs, targets


def scores(net, inputs):
    logits = net(inputs)
    return (logits[:, 1] - logits[:, 0]).sigmoid()


def at_saddle(net, inputs, targets):
    """(w, a, b, alpha) with a, b and alpha at the saddle."""
    h = scores(net, inputs).detach()
    a, b = h[targets == 1].mean(), h[targets == 0].mean()
    return torch.cat([flatten(net), torch.stack([a, b, b - a])])


def mean_loss(task, point, inputs, targets):
    return torch.stack(
        [task.loss(point, x, t) for x, t in zip(inputs, targets, strict=True)]
    ).mean()


def of_pairs(net, inputs, targets):
    h = scores(net, inputs)
    apart = 1 - h[targets == 1][:, None] + h[targets == 0][None, :]
    return apart.square().mean()


def test_the_saddle_is_the_square_loss_over_pairs():
    net, task, inputs, targets = setting()
    assert isinstance(task, Task)
    p = float((targets == 1).double().mean())
    point = at_saddle(net, inputs, targets).requires_grad_()
    value = mean_loss(task, point, inputs, targets)
    pairs = of_pairs(net, inputs, targets)
    torch.testing.assert_close(value, p * (1 - p) * (pairs - 1), rtol=1e-12, atol=1e-13)
    (slope,) = torch.autograd.grad(value, point)
    assert slope[-3:].abs().max() < 1e-12  # in a, b and alpha
    of_net = torch.autograd.grad(pairs, list(net.parameters()))
    wanted = p * (1 - p) * torch.cat([g.flatten() for g in of_net])
    torch.testing.assert_close(slope[:-3], wanted, rtol=1e-10, atol=1e-12)


def test_the_dual_variable_is_concave_and_stays_between_minus_one_and_one():
    net, task, inputs, targets = setting()
    point = at_saddle(net, inputs, targets)
    best = mean_loss(task, point, inputs, targets)
    for step in (-0.3, 0.2):
        other = point.clone()
        other[-1] += step
        assert mean_loss(task, other, inputs, targets) < best
        other = point.clone()
        other[-3] += step
        assert mean_loss(task, other, inputs, targets) > best
    assert task.project(torch.tensor([-3.0])).tolist() == [-1.0]
    assert task.project(torch.tensor([0.25])).tolist() == [0.25]


def test_block_0_is_the_flat_vector_of_the_network_with_centres():
    net, task, inputs, _ = setting()
    whole = with_centres(net)
    assert task.dimensions == (len(flatten(whole)), 1)
    assert torch.equal(task.initial()[:-1], flatten(whole))
    assert torch.equal(whole(inputs), net(inputs))


def test_each_example_is_clipped_as_one_vector_of_both_blocks():
    net, task, inputs, targets = setting()
    point = at_saddle(net, inputs, targets)
    found = PairGradients(task).clipped_sums(
        point[None], ([0], [0]), [(inputs, targets)], clip_norm=0.05
    )[0]
    wanted = torch.zeros_like(found)
    for x, t in zip(inputs, targets, strict=True):
        at = point.clone().requires_grad_()
        (vector,) = torch.autograd.grad(task.loss(at, x, t), at)
        assert vector[-1] != 0
        wanted += vector * min(1.0, 0.05 / float(vector.norm()))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["auc", "class-weights"])
def test_a_label_given_as_probabilities_has_the_loss_of_the_label(name):
    net, task, inputs, targets = setting()
    if name == "class-weights":
        task = ClassWeights(net, classes=2)
    point = task.initial() + 0.1
    for x, t in zip(inputs, targets, strict=True):
        hard = task.loss(point, x, t)
        soft = task.loss(point, x, one_hot(t, 2).double())
        torch.testing.assert_close(soft, hard, rtol=1e-12, atol=1e-13)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match=r"positive_share=1.0 must lie in \(0, 1\)"):
        AreaUnderCurve(nn.Linear(2, 2), positive_share=1.0)


# Facts about the reference networks.


@pytest.mark.parametrize(
    ("name", "input_shape", "classes", "parameters"),
    [
        ("lenet", (1, 28, 28), 10, 61_706),  # LeCun et al. 1998, with full connections
        ("linear", (1, 28, 28), 10, 7_850),
        ("linear", (123,), 2, 248),
        ("mlp", (1, 8, 8), 10, 64 * 32 + 32 + 32 * 10 + 10),
        ("mlp", (1, 28, 28), 10, 784 * 112 + 112 + 112 * 10 + 10),
        ("cnn", (3, 32, 32), 10, 136_874),
        ("conv4", (3, 32, 32), 10, 896 + 18_496 + 2 * 36_928 + 4096 * 10 + 10),
        ("conv4", (1, 5, 6), 3, 320 + 18_496 + 2 * 36_928 + 64 * 2 * 2 * 3 + 3),
        ("resnet18", (3, 32, 32), 10, 11_173_962),  # He et al., CIFAR stem; GroupNorm as BatchNorm
        # DLG: 3-12-12-12 convolutions, then 768-100.
        ("sigmoid-lenet", (3, 32, 32), 100, 912 + 2 * 3_612 + 76_900),
    ],
)
def test_parameter_counts_are_the_published_ones(name, input_shape, classes, parameters):
    assert flatten(_build(name, input_shape, classes)).shape == (parameters,)


@pytest.mark.parametrize("input_shape", [(1, 28, 28), (3, 32, 32), (1, 25, 25), (2, 13, 30)])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_network_gives_logits_for_every_image_shape(name, input_shape):
    model = _build(name, input_shape, classes=7)
    assert model(torch.zeros(3, *input_shape)).shape == (3, 7)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_examples_of_a_batch_do_not_touch_each_other(name):
    model = _build(name).double()
    inputs = torch.rand(4, *IMAGE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([model(one[None]) for one in inputs])
    assert torch.allclose(model(inputs), alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_per_example_gradients_can_be_vectorised(name):
    model = _build(name)
    parameters = unflatten(model, flatten(model))

    def loss(values, one, target):
        logits = torch.func.functional_call(model, values, (one[None],))
        return cross_entropy(logits, target[None])

    inputs, targets = torch.rand(3, *IMAGE), torch.tensor([0, 1, 2])
    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(
        parameters, inputs, targets
    )
    assert all(gradients[key].shape == (3, *value.shape) for key, value in parameters.items())


def test_sigmoid_lenet_draws_from_minus_half_to_half():
    flat = flatten(_build("sigmoid-lenet"))
    assert flat.abs().max() <= 0.5
    # 85,036 uniform values: the largest misses .5 by more than 1e-3 with probability e^-170.
    assert flat.abs().max() > 0.499


@pytest.mark.parametrize("side", range(4, 10))
def test_conv4_takes_every_side_from_4(side):
    assert _build("conv4", (2, side, 4))(torch.zeros(1, 2, side, 4)).shape == (1, 10)


def test_conv4_refuses_a_side_of_3():
    with pytest.raises(ValueError, match=r"does not fit 'conv4'.*sides of at least 4"):
        _build("conv4", (3, 32, 3))
