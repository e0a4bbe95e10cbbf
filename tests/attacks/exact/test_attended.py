"""Pictures from the first attention of a transformer whose positions are fixed."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.exact.patches import attended_patches
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import Observation
from tests.attacks.exact.observed import posed
from tests.attacks.exact.test_patches import BOUNDS, BOX, _posed

SHAPE = (3, 8, 8)
SMALL = {"fixed": True, "patch": 2, "side": 8, "width": 40}  # 16 patches of 12 pixels


def found_in(seen: Observation, model: nn.Module) -> Tensor | None:
    return attended_patches(posed(seen, model, SHAPE, BOX))


@pytest.mark.parametrize(
    "settings",
    [{}, {"token": True, "layers": 2}, {"linear": True, "first": True}, {"image": True}],
    ids=["plain", "class-token", "norm-first", "image"],
)
def test_every_patch_is_found_at_its_place(settings):
    model, x, seen = _posed(**SMALL, **settings)
    found = found_in(seen, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_a_clip_changes_nothing():
    model, x, seen = _posed(**SMALL)
    clipped = replace(seen, gradient=0.01 * seen.gradient, clip_norm=0.1)
    found = found_in(clipped, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_without_positions_any_patch_could_stand_anywhere_and_the_picture_is_refused():
    model, _, _ = _posed(**SMALL)
    model.positions.zero_()
    x = torch.rand(1, *SHAPE, dtype=torch.float64)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), torch.tensor([2])).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    _, _, seen = _posed(**SMALL)
    assert found_in(replace(seen, gradient=gradient[None]), model) is None


@pytest.mark.parametrize(
    "changed", [{"width": 16}, {"width": 24}, {"side": 9}], ids=["tokens", "pixels", "cut-off"]
)
def test_too_few_features_and_pixels_that_no_patch_holds_are_refused(changed):
    model, _, seen = _posed(**{**SMALL, **changed})
    side = changed.get("side", 8)
    assert attended_patches(posed(seen, model, (3, side, side), BOX)) is None


def test_the_gradient_of_an_attention_that_is_fed_twice_spans_more_than_its_patches():
    model, x, seen = _posed(**SMALL, layers=2, shared=True)
    values = {name: value.detach() for name, value in model.named_parameters()}
    torch.func.grad(lambda v: torch.func.functional_call(model, v, (x,)).sum())(values)
    assert found_in(seen, model) is None


def test_noise_batches_and_other_networks_are_refused():
    model, _, seen = _posed(**SMALL)
    assert found_in(replace(seen, covariance=torch.ones(1, 1)), model) is None
    assert found_in(replace(seen, records=2), model) is None
    plain = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)).double()
    size = sum(p.numel() for p in plain.parameters())
    vector = torch.ones(1, size, dtype=torch.float64)
    assert found_in(replace(seen, gradient=vector, points=vector[None]), plain) is None


def test_the_attack_says_that_patches_are_at_their_places():
    model, x, seen = _posed(**SMALL)
    found = reconstruct(
        seen, model, preset="matched", input_shape=SHAPE, classes=5, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(0), prior_image=torch.full(SHAPE, 0.5),
    )  # fmt: skip
    assert (found.stage, found.labels.tolist()) == ("patches at their places", [2])
    assert float((found.inputs - x).square().mean()) < 1e-10


def test_a_search_in_float32_takes_a_network_s_buffers_along():
    model, _, seen = _posed(**SMALL)
    found = reconstruct(
        seen, model, preset=replace(PRESETS["inverting-gradients"], adam_steps=2),
        input_shape=SHAPE, classes=5, bounds=BOUNDS, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert found.stage == "optimisation"
    assert model.positions.dtype == torch.float64
