import pytest
import torch

from overhear.attacks.problem.objective import cosine_distance, squared_distance, whitened_residual
from overhear.attacks.problem.observation import Observation


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
