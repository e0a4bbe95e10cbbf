from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.first_layer import first_linear_input, residual
from overhear.attacks.exact.stages import solve_exactly
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.attacks.problem.problem import Box, Found, Problem, build_box
from overhear.training.models.parameters import flatten
from overhear.training.models.tasks import AreaUnderCurve, with_centres
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


# Which stage comes first, and what it accepts.

BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
STAGES_SHAPE = (1, 4, 4)


def _network(width: int = 40) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 5)
    ).double()  # fmt: skip


def _seen(model: nn.Module, count: int = 1, **changes: object) -> tuple[Observation, torch.Tensor]:
    inputs = torch.rand(count, *STAGES_SHAPE, generator=torch.Generator().manual_seed(1)).double()
    seen = observe(
        model, flatten(model), inputs=inputs, targets=torch.arange(count), clip_norm=None,
        noise_std=0.0, generator=torch.Generator(),
    )  # fmt: skip
    return replace(seen, **changes), inputs  # type: ignore[arg-type] # a table of changes


def _solved(seen: Observation, model: nn.Module, *, labels: list[int]) -> Found | None:
    problem = Problem(
        observation=seen, model=model, preset=PRESETS["matched"], shape=STAGES_SHAPE, classes=5,
        box=build_box(BOUNDS, STAGES_SHAPE, dtype=torch.float64), labels=torch.tensor(labels),
        prior_image=None,
    )  # fmt: skip
    return solve_exactly(problem, torch.Generator().manual_seed(0))


def test_one_record_of_a_linear_first_layer_needs_no_peeling():
    model = _network()
    seen, inputs = _seen(model)
    found = _solved(seen, model, labels=[0])
    assert isinstance(found, Found)
    assert found.stage == "exact"
    torch.testing.assert_close(found.pixels, inputs)


def test_a_batch_goes_to_the_activation_patterns():
    model = _network()
    seen, _ = _seen(model, 3)
    found = _solved(seen, model, labels=[0, 1, 2])
    assert isinstance(found, Found)
    assert found.stage == "certified"


@pytest.mark.parametrize(("declared", "accepted"), [(0.0, False), (1e-3, True)])
def test_rounding_of_messages_is_allowed_for_where_it_is_declared(declared, accepted):
    model = _network()
    seen, inputs = _seen(model)
    generator = torch.Generator().manual_seed(2)
    error = torch.randn(seen.gradient.shape, generator=generator, dtype=torch.float64)
    off = seen.gradient + 1e-3 * seen.gradient.norm() * error / error.norm()
    found = _solved(replace(seen, gradient=off, rounding=declared), model, labels=[0])
    assert (found is not None) == accepted
    if found is not None:
        assert float((found.pixels - inputs).square().mean()) < 1e-4


def test_a_wrong_label_is_not_explained_however_much_was_rounded():
    model = _network()
    seen, _ = _seen(model, rounding=2e-3)
    found = _solved(seen, model, labels=[3])
    assert isinstance(found, Found)
    assert (found.stage, found.labels.tolist()) == ("exact", [0])  # by the loss that it shows


def _of_auc(x: torch.Tensor) -> tuple[nn.Module, Observation]:
    """A linear network whose score is sure: its gradient is small beside that of the centres."""
    base = nn.Linear(16, 2)
    with torch.no_grad():
        base.weight.copy_(torch.stack([torch.full((16,), -0.15), torch.full((16,), 0.15)]))
        base.bias.zero_()
    task, model = AreaUnderCurve(base), with_centres(base)
    point = torch.cat([flatten(base), torch.tensor([0.35, 0.2, -0.4])])
    seen = Observation(
        gradient=torch.zeros(1, 36), points=point[None, None],
        covariance=torch.zeros(1, 1, dtype=torch.float64), clip_norm=None, records=1, task=task,
    )  # fmt: skip
    sent = sent_gradients(seen, model, inputs=x, targets=torch.tensor([1])).detach()
    return model, replace(seen, gradient=sent)


@pytest.mark.parametrize(("declared", "accepted"), [(1e-4, True), (1e-6, False), (0.0, False)])
def test_a_small_gradient_of_the_bias_enlarges_what_messages_rounded(declared, accepted):
    x = torch.rand(1, 16, generator=torch.Generator().manual_seed(1))
    model, seen = _of_auc(x)
    size, bias = seen.gradient.norm(), seen.gradient[0, 32:34].norm()
    assert size > 5 * bias
    error = torch.randn(seen.gradient.shape, generator=torch.Generator().manual_seed(4))
    rounded = seen.gradient + error * (1e-4 * size / error.norm())
    problem = Problem(
        observation=replace(seen, gradient=rounded, rounding=declared), model=model,
        preset=PRESETS["matched"], shape=(16,), classes=2, prior_image=None, labels=None,
        box=build_box(BOUNDS, (16,), dtype=torch.float32),
    )  # fmt: skip
    found = solve_exactly(problem, torch.Generator())
    assert (found is not None) is accepted
    if isinstance(found, Found):
        assert found.stage == "exact"
        assert float((found.pixels - x).abs().max()) < 0.02
