"""Facts about the reference networks."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from overhear.training.models.parameters import MODEL_NAMES, flatten, unflatten
from tests.training.models.test_parameters import IMAGE, _build


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
