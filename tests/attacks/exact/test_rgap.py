import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from skimage import data
from skimage.transform import resize
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from overhear.attacks.exact.rgap import peel
from overhear.attacks.exact.rgap_record import Affine, read_chain, solve_normal
from overhear.attacks.problem.observation import Observation
from overhear.attacks.problem.problem import Box, Certified
from overhear.training.models.parameters import build_model
from tests.attacks.exact.observed import posed, see

BOX = Box(low=torch.tensor(0.0).double(), span=torch.tensor(1.0).double())


def _photo(side: int, *, left: int = 130) -> Tensor:
    """A crop of the astronaut as (3, side, side) in [0, 1]."""
    crop = data.astronaut()[10:190, left : left + 180]
    return torch.tensor(resize(crop, (side, side), anti_aliasing=True)).permute(2, 0, 1)


def _sigmoid_lenet(side: int) -> nn.Module:
    return build_model(
        "sigmoid-lenet", input_shape=(3, side, side), classes=100,
        generator=torch.Generator().manual_seed(1234),
    )  # fmt: skip


def _relu_network(side: int, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(1234)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 32, 3, padding=1, bias=bias), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, stride=2, bias=bias), nn.ReLU()),
        nn.Flatten(), nn.Linear(32 * (side // 2) ** 2, 10),
    )  # fmt: skip


def _see(
    model: nn.Module, image: Tensor, *, dtype: torch.dtype = torch.float64, **how: Any
) -> Observation:
    return see(model, image, dtype=dtype, **how)


def _decibels(found: Certified | None, image: Tensor) -> float:
    assert found is not None
    assert found.labels.tolist() == [3]
    return float(-10 * torch.log10((found.inputs[0] - image).square().mean().clamp_min(1e-30)))


def _peel(seen: Observation, model: nn.Module, image: Tensor) -> Certified | None:
    return peel(posed(seen, model, tuple(image.shape), BOX))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "least"),
    [(torch.float32, 80), pytest.param(torch.float64, 150, marks=pytest.mark.slow)],
)
def test_a_sigmoid_lenet_gives_a_photo_away(dtype, least):
    model, image = _sigmoid_lenet(32), _photo(32)
    assert _decibels(_peel(_see(model, image, dtype=dtype), model, image), image) > least


@pytest.mark.parametrize(
    ("dtype", "least"),
    [pytest.param(torch.float32, 100, marks=pytest.mark.slow), (torch.float64, 200)],
)
def test_a_relu_network_gives_a_photo_away(dtype, least):
    model, image = _relu_network(16), _photo(16)
    assert _decibels(_peel(_see(model, image, dtype=dtype), model, image), image) > least


def _sure_network(lead: float) -> nn.Module:
    """A sigmoid convolution whose logit of class 3 leads by about as much as is asked."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, stride=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, 10)
    )
    with torch.no_grad():
        model[-1].bias[3] += lead
    return model


@pytest.mark.parametrize("clip_norm", [None, 1e-9], ids=["not clipped", "clipped"])
@pytest.mark.parametrize("lead", [13.0, 25.0])  # 1 - p of 2e-5, and 0 in float32
def test_a_network_that_is_sure_of_its_label_gives_as_much_away(lead, clip_norm):
    model, image = _sure_network(lead), _photo(8)
    seen = _see(model, image, dtype=torch.float32, clip_norm=clip_norm)
    assert _decibels(_peel(seen, model, image), image) > 90


@pytest.mark.parametrize("lead", [0.0, 13.0])
def test_another_loss_than_the_cross_entropy_of_one_label_gives_as_much_away(lead):
    model, image = _sure_network(lead).double(), _photo(8)
    loss = cross_entropy(model(image[None]), torch.tensor([3]), label_smoothing=0.01)
    made = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    seen = replace(_see(model, image), gradient=made[None])
    found = _peel(seen, model, image)
    assert found is not None
    assert (found.inputs[0] - image).abs().max() < 1e-9
    # What no loss of the logits makes is not explained by any.
    spoilt = made.clone()
    spoilt[:10] += made.norm()
    assert _peel(replace(seen, gradient=spoilt[None]), model, image) is None


def test_convolutions_need_no_bias():
    model, image = _relu_network(16, bias=False), _photo(16)
    assert _decibels(_peel(_see(model, image), model, image), image) > 200


@pytest.mark.parametrize("known_size", [False, True], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_need_no_bias(bias, known_size):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 40, bias=bias), nn.ReLU(), nn.Linear(40, 10, bias=bias)
    )
    image = _photo(8)
    seen = _see(model, image, clip_norm=None if known_size else 0.1)
    assert _decibels(_peel(seen, model, image), image) > 200


@pytest.mark.some_quick(1)
@pytest.mark.parametrize("clip_norm", [0.01, 1e6])
def test_a_clipped_gradient_gives_away_as_much(clip_norm):
    model, image = _relu_network(16), _photo(16)
    seen = _see(model, image, clip_norm=clip_norm)
    assert _decibels(_peel(seen, model, image), image) > 200


def test_the_residual_of_every_layer_is_rounding():
    model, image = _relu_network(16), _photo(16)
    found = _peel(_see(model, image), model, image)
    assert found is not None
    assert len(found.left) == 4
    assert max(found.left) < 1e-10


def test_normalised_inputs_come_back_in_their_units():
    low, span = torch.tensor([-2.0, -1.5, -1.0]).reshape(3, 1, 1).double(), torch.tensor(4.0)
    box = Box(low=low, span=span.double())
    model, image = _relu_network(16), box.inputs(_photo(16))
    found = peel(posed(_see(model, image), model, (3, 16, 16), box))
    assert _decibels(found, image) > 200


def test_pixels_outside_a_layers_reach_are_not_made_up():
    torch.manual_seed(0)  # a 2x2 kernel in steps of 3 passes over every third row and column
    model = nn.Sequential(
        nn.Conv2d(3, 32, 2, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 10)
    )
    image = _photo(15)
    assert _peel(_see(model, image), model, image) is None


def test_more_unknowns_than_equations_give_nothing():
    model, image = _sigmoid_lenet(64), _photo(64)  # 12,288 pixels, 7,572 equations
    assert _peel(_see(model, image), model, image) is None


def test_an_altered_gradient_gives_nothing():
    model, image = _relu_network(8), _photo(8)
    seen = _see(model, image)
    gradient = seen.gradient.clone()
    gradient[0, :200] *= 1.5  # of the first convolution
    assert _peel(replace(seen, gradient=gradient), model, image) is None


def test_noise_or_a_batch_are_left_to_optimisation():
    model, image = _relu_network(8), _photo(8)
    assert _peel(_see(model, image, noise_std=1e-3), model, image) is None
    assert _peel(_see(model, image, count=2), model, image) is None


@pytest.mark.parametrize("name", [pytest.param("resnet18", marks=pytest.mark.slow), "lenet"])
def test_networks_that_cannot_be_peeled_give_nothing(name):
    model = build_model(
        name, input_shape=(3, 16, 16), classes=10, generator=torch.Generator().manual_seed(0)
    )
    image = _photo(16)
    assert _peel(_see(model, image), model, image) is None


def test_shared_layers_are_not_read_as_a_chain():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert read_chain(model, dict(model.named_parameters()), (4,)) is None


class _Holds(nn.Module):
    def __init__(self, most: float) -> None:
        super().__init__()
        self.layers, self.most = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), most

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.clamp(max=self.most))


@pytest.mark.parametrize(("most", "length"), [(math.inf, 3), (1.0, 0)])
def test_a_module_that_holds_a_chain_is_one_if_it_does_nothing_else(most, length):
    model = _Holds(most)
    assert len(read_chain(model, dict(model.named_parameters()), (4,)) or []) == length
    assert read_chain(model, dict(model.named_parameters()), (5,)) is None


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2),
        nn.Conv2d(4, 6, (3, 2), padding=(0, 1), dilation=2),
        nn.Conv2d(4, 6, 3, padding="same", bias=False),
        nn.AvgPool2d(2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.Sigmoid(),
        nn.Tanh(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_a_layer_its_derivative_and_its_gradient_are_those_of_autograd(module):
    chance = torch.Generator().manual_seed(0)
    net = nn.Sequential(module, nn.Conv2d(module(torch.zeros(1, 4, 8, 8)).shape[1], 1, 1)).double()
    x = torch.randn(1, 4, 8, 8, generator=chance, dtype=torch.float64, requires_grad=True)
    chain = read_chain(net, {k: v.detach() for k, v in net.named_parameters()}, (4, 8, 8))
    assert chain is not None
    y = module(x)
    out, push, pull = chain[0].at(x[0].detach())
    torch.testing.assert_close(out, y[0].detach())
    delta = torch.randn(out.shape, generator=chance, dtype=torch.float64)
    wanted = [x, *(p for n, p in module.named_parameters() if n == "weight")]
    slopes = torch.autograd.grad((y[0] * delta).sum(), wanted)
    torch.testing.assert_close(pull(delta), slopes[0][0])
    direction = torch.randn(4, 8, 8, generator=chance, dtype=torch.float64)
    torch.testing.assert_close((push(direction) * delta).sum(), (direction * pull(delta)).sum())
    layer = chain[0]
    if isinstance(layer, Affine) and layer.name is not None:
        torch.testing.assert_close(layer.outer(x[0].detach(), delta), slopes[1])


def test_conjugate_gradients_leave_what_is_not_seen_at_zero():
    seen = torch.tensor([1.0, 4.0, 0.0])
    found = solve_normal(lambda v: seen * v, torch.tensor([1.0, 2.0, 0.0]), tolerance=0, steps=5)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.5, 0.0]))


@pytest.mark.parametrize("least", [0.0, 1e-180])
def test_a_dead_first_layer_gives_nothing(least):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 10)
    ).double()
    with torch.no_grad():
        model[0].bias -= 10
    image = torch.rand(5).double()
    seen = _see(model, image)
    gradient = seen.gradient.clone()
    gradient[:, :30] = least
    assert _peel(replace(seen, gradient=gradient), model, image) is None
