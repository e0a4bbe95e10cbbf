from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.problem.objective import (
    PRESETS,
    cosine_distance,
    squared_distance,
    whitened_residual,
)
from overhear.attacks.problem.observation import (
    Observation,
    Sent,
    sent_gradient,
    twice_differentiable,
)
from overhear.training.models.parameters import flatten


def _seen(gradient: torch.Tensor, *, noise_std: float = 0.0) -> Observation:
    return Observation.single(
        gradient=gradient, model=torch.zeros_like(gradient), noise_std=noise_std, clip_norm=None,
        records=1,
    )  # fmt: skip


def test_every_distance_of_the_truth_is_zero_without_noise():
    gradient = torch.arange(1.0, 6.0, dtype=torch.float64)
    assert float(squared_distance(gradient[None], _seen(gradient))) == 0
    assert float(cosine_distance(gradient[None], _seen(gradient))) == pytest.approx(0, abs=1e-15)


def test_the_cosine_does_not_see_a_clip():
    first, second = torch.rand(2, 50, generator=torch.Generator().manual_seed(0)).double()
    whole = cosine_distance(first[None], _seen(second))
    assert float(cosine_distance(0.01 * first[None], _seen(second))) == pytest.approx(float(whole))


def test_opposite_gradients_are_two_apart_and_nothing_is_one_apart():
    gradient = torch.ones(4)
    rows = torch.stack([-gradient, torch.zeros(4)])[:, None]
    assert cosine_distance(rows, _seen(gradient)).tolist() == pytest.approx([2.0, 1.0])


def test_the_whitened_residual_of_the_truth_is_the_number_of_parameters():
    count, generator = 20_000, torch.Generator().manual_seed(0)
    truth = torch.rand(count, generator=generator)
    seen = _seen(truth + 0.2 * torch.randn(count, generator=generator), noise_std=0.2)
    # Chi-squared, n = 20000; 5 standard deviations: false alarms below 1e-6.
    assert float(whitened_residual(truth[None], seen)) == pytest.approx(
        count, abs=5 * (2 * count) ** 0.5
    )


def test_rows_are_measured_one_by_one():
    rows = torch.eye(3)[:, None]
    together = squared_distance(rows, _seen(torch.ones(3)))
    assert together.tolist() == [float(squared_distance(r, _seen(torch.ones(3)))) for r in rows]


def test_whitening_without_noise_is_refused():
    with pytest.raises(ValueError, match="without noise leaves nothing to whiten by"):
        whitened_residual(torch.ones(1, 2), _seen(torch.ones(2)))


def test_the_published_attacks_are_pure_optimisation():
    published = [PRESETS[name] for name in ("dlg", "idlg", "inverting-gradients")]
    assert not any(preset.exact or preset.follow_noise for preset in published)


def test_the_published_attacks_leave_the_network_as_it_is():
    published = [PRESETS[name] for name in ("dlg", "idlg", "inverting-gradients")]
    assert not any(preset.softness or preset.colour for preset in published)


def test_dlg_and_idlg_differ_in_the_labels_alone():
    assert replace(PRESETS["dlg"], joint_labels=False) == PRESETS["idlg"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adam_steps": 0, "newton_steps": 0}, "nor both 0"),
        ({"starts": 0}, "starts=0"),
        ({"tv_weight": -1.0}, "tv_weight=-1.0"),
        ({"fade": 0.0}, "fade=0.0"),
        ({"softness": -1.0}, "softness=-1.0"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(PRESETS["matched"], **changes)  # type: ignore[arg-type] # a table of bad values


# Second derivatives of attention and norms, one by one and under vmap.


class _Rows(nn.Module):
    """A layer on three rows of eight features, between two linear ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.head = nn.Linear(8, 8), layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.into(x.reshape(len(x), 3, 8))
        attends = isinstance(self.layer, nn.MultiheadAttention)
        z = self.layer(z, z, z)[0] if attends else self.layer(z)
        head: Tensor = self.head(z.tanh().mean(dim=1))
        return head


_LAYERS = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", batch_first=True),
    "layer-norm": lambda: nn.LayerNorm(8),
    "layer-norm-of-two": lambda: nn.LayerNorm((3, 8), bias=False),
    "rms-norm": lambda: nn.RMSNorm(8),
}


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("kind", _LAYERS)
def test_the_gradient_of_a_sent_gradient_is_its_difference_quotient(kind, clip_norm):
    torch.manual_seed(0)
    model = _Rows(_LAYERS[kind]()).double().eval()
    x, targets = torch.rand(3, 24, dtype=torch.float64), torch.tensor([0, 2, 2])
    way = torch.randn_like(x)

    def size(inputs: Tensor) -> Tensor:
        flat = flatten(model)
        return (
            sent_gradient(model, flat, inputs=inputs, targets=targets, of=Sent(clip_norm=clip_norm))
            .pow(3)
            .sum()
        )

    asked = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(size(asked), asked)
    quotient = float(size(x + 1e-5 * way) - size(x - 1e-5 * way)) / 2e-5
    assert quotient == pytest.approx(float((slope * way).sum()), rel=1e-5)


@pytest.mark.parametrize("kind", _LAYERS)
def test_values_are_those_of_torch(kind):
    torch.manual_seed(0)
    model, x = _Rows(_LAYERS[kind]()).double().eval(), torch.rand(3, 24, dtype=torch.float64)
    expected = model(x)
    with twice_differentiable():
        torch.testing.assert_close(model(x), expected)


def test_the_fast_path_is_as_it_was_after_an_error():
    before = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(RuntimeError, match="size"), twice_differentiable():
        torch.ones(2) @ torch.ones(3)
    assert torch.backends.mha.get_fastpath_enabled() == before
