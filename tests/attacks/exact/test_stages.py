"""Which stage comes first, and what it accepts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from overhear.attacks.exact.stages import Part, solve_exactly
from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.problem.presets import PRESETS
from overhear.attacks.problem.prior import build_box
from overhear.attacks.problem.problem import Found, Problem
from overhear.training.models.parameters import flatten

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


def _solved(seen: Observation, model: nn.Module, *, labels: list[int]) -> Found | Part | None:
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
    seen, _ = _seen(model, rounding=1.0)
    found = _solved(seen, model, labels=[3])
    assert isinstance(found, Found)
    assert (found.stage, found.labels.tolist()) == ("peeling", [0])  # which finds its own label
