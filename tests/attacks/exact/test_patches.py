"""Pictures from patch embeddings with learned positions."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from overhear.attacks.exact.patches import embedded_patches
from overhear.attacks.inversion.inversion import reconstruct
from overhear.attacks.problem.observation import Observation
from overhear.attacks.problem.problem import Box
from overhear.training.models.parameters import flatten
from tests.attacks.exact.observed import posed

BOX = Box(low=torch.tensor(0.0).double(), span=torch.tensor(1.0).double())
BOUNDS = (torch.tensor(0.0), torch.tensor(1.0))


class Vision(nn.Module):
    """A vision transformer in the ways that people write them."""

    def __init__(
        self, *, patch=4, width=64, layers=1, side=16, token=False, linear=False, table=False,
        fixed=False, image=False, first=False, shared=False,
    ):  # fmt: skip
        super().__init__()
        self.patch, self.linear, self.image = patch, linear, image
        places = (side // patch) ** 2
        if linear:
            self.embed = nn.Linear(3 * patch * patch, width)
        else:
            self.embed = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width)) if token else None
        positions = 0.1 * torch.randn(1, places + token, width)
        self.table = nn.Embedding(places + 3, width) if table else None
        if image:
            positions = positions.transpose(1, 2).reshape(1, width, side // patch, -1).contiguous()
        if fixed:
            self.register_buffer("positions", positions)
        elif not table:
            self.positions = nn.Parameter(positions)
        every = [
            nn.TransformerEncoderLayer(
                width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=first
            )
            for _ in range(layers)
        ]
        self.layers = nn.Sequential(*(every[:1] * layers if shared else every))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        if self.linear:
            z = self.embed(functional.unfold(x, self.patch, stride=self.patch).transpose(1, 2))
        else:
            z = self.embed(x)
            z = (z + self.positions if self.image else z).flatten(2).transpose(1, 2)
        if self.token is not None:
            z = torch.cat([self.token.expand(len(z), -1, -1), z], dim=1)
        if self.table is not None:
            z = z + self.table(torch.arange(z.shape[1]) + 2)
        elif not self.image:
            z = z + self.positions
        z = self.layers(z)
        return self.head(z[:, 0] if self.token is not None else z.mean(dim=1))


def _posed(dtype=torch.float64, **settings) -> tuple[Vision, Tensor, Observation]:
    """A network, a record with label 2 and what plain PyTorch makes of it."""
    torch.manual_seed(3)
    model = Vision(**settings).to(dtype)
    side = settings.get("side", 16)
    x = torch.rand(1, 3, side, side, dtype=torch.float64)
    functional.cross_entropy(model(x.to(dtype)), torch.tensor([2])).backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    seen = Observation.single(
        gradient=gradient.double(), model=flatten(model).double(), noise_std=0.0, clip_norm=None,
        records=1,
    )  # fmt: skip
    return model, x, seen


def _found(seen: Observation, model: nn.Module, side: int = 16) -> Tensor | None:
    return embedded_patches(posed(seen, model, (3, side, side), BOX))


def test_of_pixels_that_a_network_changes_by_their_value_no_picture_is_claimed():
    model, _, seen = _posed()
    model.embed.register_forward_pre_hook(lambda _, fed: fed[0] * (fed[0] > 0.04))
    assert _found(seen, model) is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"token": True, "layers": 3},
        {"linear": True, "first": True},
        {"table": True},
        {"image": True, "layers": 2},
        {"patch": 8, "width": 16},
    ],
    ids=["plain", "class-token", "linear", "table", "image", "few"],
)
def test_the_picture_is_exact_however_patches_and_positions_are_written(settings):
    model, x, seen = _posed(**settings)
    found = _found(seen, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_float32_gradients_give_more_than_fifty_decibels():
    model, x, seen = _posed(torch.float32)
    found = _found(seen, model)
    assert found is not None
    assert float((found - x).square().mean()) < 1e-5


def test_a_clip_scales_both_sides_and_changes_nothing():
    model, x, seen = _posed()
    clipped = replace(seen, gradient=seen.gradient / 7, clip_norm=float(seen.gradient.norm()) / 7)
    found = _found(clipped, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_more_patches_than_features_are_refused_from_one_intercept():
    model, _, seen = _posed(patch=4, width=12)
    assert _found(seen, model) is None


def test_two_intercepts_determine_what_one_does_not():
    rows, points = [], []
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = Vision(width=12).double()
        functional.cross_entropy(model(x), torch.tensor([2])).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        points.append(flatten(model)[None])
    seen = Observation(
        gradient=torch.stack(rows), points=torch.stack(points), clip_norm=None, records=1,
        covariance=torch.zeros(2, 2, dtype=torch.float64),
    )  # fmt: skip
    assert _found(seen.only(0), model) is None
    found = _found(seen, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", [{"fixed": True}, {"side": 18}], ids=["fixed", "cut-off"])
def test_positions_that_are_not_learned_and_pixels_that_no_patch_holds_yield_nothing(settings):
    model, _, seen = _posed(**settings)
    assert _found(seen, model, settings.get("side", 16)) is None


def test_a_bias_that_contradicts_the_positions_is_refused():
    model, _, seen = _posed()
    at = dict(zip((n for n, _ in model.named_parameters()), model.parameters(), strict=True))
    before = 0
    for name, parameter in at.items():
        if name == "embed.bias":
            break
        before += parameter.numel()
    gradient = seen.gradient.clone()
    gradient[0, before : before + 64] *= 2
    assert _found(replace(seen, gradient=gradient), model) is None


def test_the_attack_accepts_the_picture_and_reads_its_label():
    model, x, seen = _posed(torch.float32, layers=2)
    found = reconstruct(
        replace(seen, gradient=seen.gradient.float(), points=seen.points.float()),
        model,
        preset="matched", input_shape=(3, 16, 16), classes=5, bounds=BOUNDS,
        generator=torch.Generator().manual_seed(0), prior_image=torch.full((3, 16, 16), 0.5),
    )  # fmt: skip
    assert (found.stage, found.labels.tolist(), found.iterations) == ("patches", [2], 0)
    assert float((found.inputs - x).square().mean()) < 1e-5


def test_a_layer_that_stands_twice_and_was_differentiated_before_is_no_obstacle():
    model, x, seen = _posed(layers=2, shared=True)
    values = {name: value.detach() for name, value in model.named_parameters()}
    torch.func.grad(lambda v: torch.func.functional_call(model, v, (x,)).sum())(values)
    found = _found(seen, model)
    assert found is not None
    torch.testing.assert_close(found, x, rtol=0, atol=1e-6)


def test_the_picture_of_another_gradient_is_not_accepted():
    from overhear.attacks.exact.stages import solve_exactly
    from overhear.attacks.problem.objective import PRESETS
    from overhear.attacks.problem.problem import Problem

    model, _, seen = _posed()
    sizes = [parameter.numel() for parameter in model.parameters()]
    spoilt = seen.gradient.clone()
    spoilt[0, -sum(sizes[-2:]) - sum(sizes[4:-2]) : -sum(sizes[-2:])] *= -1  # the encoder's alone
    problem = Problem(
        observation=replace(seen, gradient=spoilt), model=model, preset=PRESETS["matched"],
        shape=(3, 16, 16), classes=5, box=BOX, labels=torch.tensor([2]), prior_image=None,
    )  # fmt: skip
    assert _found(problem.observation, model) is not None
    assert solve_exactly(problem, torch.Generator().manual_seed(0)) is None
