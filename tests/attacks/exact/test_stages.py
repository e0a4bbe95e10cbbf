"""Which stage comes first, and what it accepts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from overhear.attacks.exact.stages import solve_exactly
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation, observe, sent_gradients
from overhear.attacks.problem.problem import Found, Problem, build_box
from overhear.training.models.parameters import flatten
from overhear.training.models.tasks import AreaUnderCurve, with_centres

BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))
SHAPE = (1, 4, 4)


def _network(width: int = 40) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 5)
    ).double()  # fmt: skip


def _seen(model: nn.Module, count: int = 1, **changes: object) -> tuple[Observation, torch.Tensor]:
    inputs = torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1)).double()
    seen = observe(
        model, flatten(model), inputs=inputs, targets=torch.arange(count), clip_norm=None,
        noise_std=0.0, generator=torch.Generator(),
    )  # fmt: skip
    return replace(seen, **changes), inputs  # type: ignore[arg-type] # a table of changes


def _solved(seen: Observation, model: nn.Module, *, labels: list[int]) -> Found | None:
    problem = Problem(
        observation=seen, model=model, preset=PRESETS["matched"], shape=SHAPE, classes=5,
        box=build_box(BOUNDS, SHAPE, dtype=torch.float64), labels=torch.tensor(labels),
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
