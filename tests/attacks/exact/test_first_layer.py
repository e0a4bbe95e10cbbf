from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.first_layer import first_linear_input, residual
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.problem import Box
from tests.attacks.exact.observed import posed

BOX = Box(low=torch.tensor(0.0), span=torch.tensor(1.0))
SHAPE = (1, 8, 8)


def _observe(
    model: nn.Module, inputs: Tensor, *, clip_norm: float | None = 1.0, noise_std: float = 0.0
) -> Observation:
    return observe(
        model, torch.cat([p.detach().flatten() for p in model.parameters()]), inputs=inputs,
        targets=torch.arange(len(inputs)), clip_norm=clip_norm, noise_std=noise_std,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def _mlp(*, seed: int = 0, bias: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32, bias=bias), nn.ReLU(), nn.Linear(32, 10))


def _picture(seed: int = 0, *, count: int = 1) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("clip_norm", [None, 1.0, 0.01])
def test_a_first_linear_layer_gives_the_input_away_whatever_the_clip(clip_norm):
    model, truth = _mlp(), _picture()
    seen = _observe(model, truth, clip_norm=clip_norm)
    found = first_linear_input(posed(seen, model, SHAPE, BOX))
    assert found is not None
    torch.testing.assert_close(found, truth, atol=1e-4, rtol=0)
    assert residual(seen, model, inputs=found, targets=torch.tensor([0])) < 1e-4


def test_a_point_with_further_blocks_gives_the_input_away_too():
    model, truth = _mlp(), _picture()
    seen = _observe(model, truth)
    wider = replace(seen, points=torch.cat([seen.points, torch.ones(1, 1, 10)], dim=2))
    found = first_linear_input(posed(wider, model, SHAPE, BOX))
    assert found is not None
    torch.testing.assert_close(found, truth, atol=1e-4, rtol=0)


def test_a_wrong_input_leaves_a_large_residual():
    model, truth = _mlp(), _picture()
    seen = _observe(model, truth)
    assert residual(seen, model, inputs=_picture(1), targets=torch.tensor([0])) > 0.1


def test_under_noise_the_singular_vector_beats_the_ratio_of_a_row():
    model, truth = _mlp(), _picture()
    seen = _observe(model, truth, noise_std=0.003)
    weight, bias = seen.gradient[0, :2048].view(32, 64), seen.gradient[0, 2048:2080]
    row = int(bias.abs().argmax())  # the best row there is
    ratio = (weight[row] / bias[row]).clamp(0, 1).view(1, *SHAPE)
    found = first_linear_input(posed(seen, model, SHAPE, BOX))
    assert found is not None
    assert (found - truth).square().mean() < 0.5 * (ratio - truth).square().mean()


def test_an_estimate_under_noise_is_better_than_the_prior_on_average():
    prior, errors = torch.full(SHAPE, 0.5), []
    for seed in range(20):
        model, truth = _mlp(seed=seed), _picture(seed)
        seen = _observe(model, truth, noise_std=0.03)
        found = first_linear_input(posed(seen, model, SHAPE, BOX, prior=prior))
        assert found is not None
        errors.append(float((found - truth).square().mean() - (prior - truth).square().mean()))
    # n = 20 pictures with fixed seeds: deterministic, no false alarms.
    assert sum(errors) < 0


def test_a_gradient_inside_the_noise_gives_nothing():
    model = _mlp()
    seen = _observe(model, _picture(), noise_std=1.0)
    assert first_linear_input(posed(seen, model, SHAPE, BOX)) is None


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 8), nn.Flatten(), nn.Linear(2, 10)),
        nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 10)),
        nn.Sequential(nn.Flatten(), nn.Sigmoid(), nn.Linear(64, 10)),
        nn.Sequential(nn.Flatten(), nn.Hardtanh(-2, 2), nn.Linear(64, 10)),
        _mlp(bias=False),
    ],
    ids=["convolution", "pooled", "squashed", "cut", "no bias"],
)
def test_other_first_layers_are_left_to_optimisation(model):
    seen = _observe(model, _picture())
    assert first_linear_input(posed(seen, model, SHAPE, BOX)) is None


def test_a_batch_of_two_is_left_to_optimisation():
    model = _mlp()
    seen = _observe(model, _picture(count=2))
    assert first_linear_input(posed(seen, model, SHAPE, BOX)) is None


def test_a_picture_under_noise_is_smoothed_where_its_noise_is_known():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 256, 64), nn.ReLU(), nn.Linear(64, 10))
    truth = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    truth = truth.repeat_interleave(4, 2).repeat_interleave(4, 3)
    seen = _observe(model, truth, noise_std=0.003)
    found = first_linear_input(posed(seen, model, (3, 16, 16), BOX))
    flat = first_linear_input(posed(seen, model, (3 * 256,), BOX))
    assert found is not None
    assert flat is not None
    left = (found - truth).square().mean()
    assert left < 0.65 * (flat.view_as(truth) - truth).square().mean()
