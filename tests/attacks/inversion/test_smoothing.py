import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn import functional

from overhear.attacks.inversion.restarts import Smoothed


def _values() -> Tensor:
    return torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(),
        nn.LeakyReLU(0.2),
        nn.MaxPool2d(2),
        nn.MaxPool2d((3, 2)),
        nn.MaxPool2d(3, stride=3),
    ],
)
def test_a_narrow_transition_is_the_function_itself(layer):
    values = _values()
    with Smoothed(1e-9):
        smooth = layer(values)
    torch.testing.assert_close(smooth, layer(values), atol=1e-7, rtol=0)


def test_outside_its_context_nothing_is_smooth():
    values = _values()
    with Smoothed(0.5):
        assert not torch.equal(torch.relu(values), values.clamp_min(0))
    assert torch.equal(torch.relu(values), values.clamp_min(0))


def test_width_zero_leaves_every_function_as_it_is():
    values = _values()
    with Smoothed(0.0):
        assert torch.equal(functional.relu(values), values.clamp_min(0))


def test_overlapping_windows_keep_their_maximum():
    values = _values()
    with Smoothed(0.5):
        found = functional.max_pool2d(values, 3, 2, 1)
    assert torch.equal(found, functional.max_pool2d(values, 3, 2, 1))


def test_the_width_goes_with_the_layers_size():
    values = _values()
    with Smoothed(0.5):
        torch.testing.assert_close(torch.relu(100 * values), 100 * torch.relu(values))


def test_first_and_second_derivatives_are_those_of_the_formula():
    values = _values()[0, 0, 0]
    width = 0.5 * values.square().mean().sqrt()
    direction = torch.linspace(-1, 1, len(values), dtype=torch.float64)
    found = []
    for smooth in (lambda z: 0.5 * (z + (z * z + width * width).sqrt()), torch.relu):
        with Smoothed(0.5):
            free = values.clone().requires_grad_()
            (slope,) = torch.autograd.grad(smooth(free).sum(), free, create_graph=True)
            (bend,) = torch.autograd.grad(slope @ direction, free)
            found.append((slope.detach(), bend))
    torch.testing.assert_close(found[0], found[1])


def test_a_batch_of_calls_is_the_calls_one_by_one():
    values = _values()
    with Smoothed(0.3):
        together = vmap(grad(lambda z: functional.relu(z).square().sum()))(values)
        apart = [grad(lambda z: functional.relu(z).square().sum())(z) for z in values]
    torch.testing.assert_close(together, torch.stack(apart))


def test_a_negative_width_is_refused():
    with pytest.raises(ValueError, match=r"width=-0.1 must be at least 0"):
        Smoothed(-0.1)
