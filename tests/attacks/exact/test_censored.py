from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear
from sklearn.datasets import load_digits
from torch import Tensor, nn

from overhear.attacks.exact.censored import Censored, censored_record
from overhear.attacks.exact.censored_system import System, Top, bounded
from overhear.attacks.exact.rgap import peel
from overhear.attacks.exact.rgap_record import Affine, read_chain
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation
from overhear.attacks.problem.problem import Box
from overhear.training.models.parameters import build_model, unflatten
from tests.attacks.exact.observed import posed, see

BOX = Box(low=torch.tensor(0.0).double(), span=torch.tensor(1.0).double())
SHAPE = (1, 8, 8)


def _digit(k: int = 0) -> Tensor:
    return torch.tensor(load_digits().images[k] / 16.0)[None]


def _saturated(factor: float = 10.0) -> nn.Module:
    """A sigmoid LeNet whose kernels are so large that a good part of its units tell a bound."""
    model = build_model(
        "sigmoid-lenet", input_shape=SHAPE, classes=10,
        generator=torch.Generator().manual_seed(1234),
    )  # fmt: skip
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 4:
                value *= factor
            elif name.endswith("bias") and len(value) > 10:
                value.zero_()
    return model


def _see(
    model: nn.Module, image: Tensor, *, dtype: torch.dtype = torch.float32, **how: Any
) -> Observation:
    return see(model, image, dtype=dtype, **how)


def _solve(seen: Observation, model: nn.Module) -> Censored | None:
    return censored_record(posed(seen, model, SHAPE, BOX))


def _decibels(found: Censored | None, image: Tensor) -> float:
    assert found is not None
    assert found.certified
    assert found.labels.tolist() == [3]
    assert found.reason == ""
    return float(-10 * torch.log10((found.inputs[0] - image).square().mean().clamp_min(1e-30)))


@pytest.mark.slow  # peeling tries for seconds
@pytest.mark.parametrize("clip_norm", [None, 1e-3], ids=["not clipped", "clipped"])
def test_saturated_units_give_a_record_away_that_peeling_does_not_find(clip_norm):
    model = _saturated()
    seen = _see(model, _digit(), clip_norm=clip_norm)
    assert peel(posed(seen, model, SHAPE, BOX)) is None
    found = _solve(seen, model)
    assert _decibels(found, _digit()) > 80
    assert found is not None
    assert found.saturated > found.units / 10


def test_without_rounding_the_record_is_exact():
    model = _saturated(3.0)
    assert _decibels(_solve(_see(model, _digit(1), dtype=torch.float64), model), _digit(1)) > 140


def test_what_saturated_units_hide_is_told_and_never_certified():
    model = _saturated(300.0)
    found = _solve(_see(model, _digit()), model)
    assert found is not None
    assert not found.certified
    assert found.saturated > found.units / 2
    assert found.reason == (
        "the search through saturated units found no picture that explains the gradient; "
        f"{found.saturated} of {found.units} units are saturated or indistinguishable from it"
    )


@pytest.mark.slow
def test_saturated_units_are_counted():
    model = _saturated(30.0)
    found = _solve(_see(model, _digit()), model)
    assert _decibels(found, _digit()) > 60
    assert found is not None
    assert found.saturated > found.units / 3


@pytest.mark.slow
def test_an_altered_gradient_is_not_certified():
    model = _saturated()
    seen = _see(model, _digit())
    kernels = next(iter(model.parameters())).numel()
    seen.gradient[0, :kernels] *= 1.01
    found = _solve(seen, model)
    assert found is None or not found.certified


def test_a_search_that_fails_takes_few_solves(monkeypatch):
    solves, jacobian = list[None](), System.jacobian

    def counted(system: System, x: Tensor) -> Tensor:
        solves.append(None)
        return jacobian(system, x)

    monkeypatch.setattr(System, "jacobian", counted)
    monkeypatch.setattr("overhear.attacks.exact.censored_system._WASTED", 1.0)
    model = _saturated(300.0)
    found = _solve(_see(model, _digit()), model)
    assert found is not None
    assert not found.certified
    assert len(solves) == 2  # a round without progress, and the deviations at the end


def test_an_image_that_falls_back_carries_the_reason():
    model = _saturated(300.0)
    seen = _see(model, _digit())
    found = reconstruct(
        seen, model, preset=replace(PRESETS["matched"], adam_steps=2, newton_steps=0, starts=1),
        input_shape=SHAPE, classes=10, bounds=(torch.tensor(0.0), torch.tensor(1.0)),
        generator=torch.Generator().manual_seed(0), prior_image=torch.full(SHAPE, 0.5),
    )  # fmt: skip
    told = _solve(seen, model)
    assert told is not None
    assert found.supported == (False,)
    assert found.reason == told.reason


def test_noise_a_batch_and_other_networks_are_left_to_other_stages():
    model = _saturated()
    assert _solve(_see(model, _digit(), clip_norm=1.0, noise_std=1e-6), model) is None
    assert _solve(_see(model, _digit(), count=2), model) is None
    torch.manual_seed(0)
    relu = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    assert _solve(_see(relu, _digit()), relu) is None


def test_tanhs_average_pools_and_linear_layers_are_read():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.Tanh(), nn.Flatten(), nn.Linear(256, 40), nn.Sigmoid(), nn.Linear(40, 10),
    )  # fmt: skip
    assert _decibels(_solve(_see(model, _digit()), model), _digit()) > 80


def _system(model: nn.Module, seen: Observation) -> System:
    values = unflatten(model, seen.points[0, 0].double())
    chain = read_chain(model, values, SHAPE)
    assert chain is not None
    last = chain[-1]
    assert isinstance(last, Affine)
    gradients = unflatten(model, seen.gradient[0].double())
    bias = gradients[f"{last.name}.bias"]
    features = gradients[f"{last.name}.weight"].T @ bias / (bias @ bias)
    derivative = bias @ last.weight
    top = Top(
        features=features, deviation=2.0**-24 * features, derivative=derivative,
        variance=(2.0**-24 * derivative) ** 2,
    )  # fmt: skip
    return System(chain[:-1], gradients, top=top)


def test_deviations_are_what_float32_leaves_of_the_equations():
    model = _saturated()
    system = _system(model, _see(model, _digit()))
    left = (system.made(_digit()) - system.seen) / system.deviations(_digit(), rounding=2.0**-24)
    assert 0.1 < float(left.square().mean().sqrt()) < 5


def test_the_jacobian_is_that_of_small_steps():
    model = _saturated(3.0)
    system = _system(model, _see(model, _digit(), dtype=torch.float64))
    way = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).double()
    ahead, behind = system.made(_digit() + 1e-5 * way), system.made(_digit() - 1e-5 * way)
    made = system.jacobian(_digit()) @ way.flatten()
    assert torch.allclose(made, (ahead - behind) / 2e-5, rtol=1e-5, atol=1e-8)


def test_bounded_least_squares_are_those_of_scipy():
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 30, generator=chance).double()
    target = 3 * torch.randn(60, generator=chance).double()
    low, high = -0.3 * torch.ones(30).double(), 0.4 * torch.ones(30).double()
    ours = bounded(rows.T @ rows, rows.T @ target, low=low, high=high)
    assert ours is not None
    theirs = lsq_linear(rows.numpy(), target.numpy(), bounds=(low.numpy(), high.numpy()), tol=1e-14)
    assert np.abs(ours.numpy() - theirs.x).max() < 1e-6
