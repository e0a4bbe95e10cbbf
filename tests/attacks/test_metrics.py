import math

import pytest
import torch

from overhear.attacks.metrics import Scores, blind_guess, match, mse, psnr, ssim


def _images(count: int, *, side: int = 8, channels: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_psnr_is_minus_ten_log10_of_the_mse() -> None:
    truth, guess = _images(2)
    assert psnr(truth, guess) == pytest.approx(-10 * math.log10(mse(truth, guess)))


def test_equal_images_score_perfectly() -> None:
    image = _images(1)[0]
    assert (mse(image, image), psnr(image, image), ssim(image, image)) == (0.0, math.inf, 1.0)


def test_ssim_of_one_window_equals_its_formula() -> None:
    truth, guess = _images(2, side=7)  # one 7x7 window: no averaging over places
    x, y = truth.double().flatten(), guess.double().flatten()
    covariance = float(torch.cov(torch.stack([x, y]))[0, 1])
    c1, c2 = 0.01**2, 0.03**2
    top = (2 * x.mean() * y.mean() + c1) * (2 * covariance + c2)
    bottom = (x.mean() ** 2 + y.mean() ** 2 + c1) * (x.var() + y.var() + c2)
    assert ssim(truth, guess) == pytest.approx(float(top / bottom), rel=1e-9)


@pytest.mark.parametrize("side", [3, 4, 6])
def test_ssim_of_a_small_image_uses_a_smaller_odd_window(side: int) -> None:
    truth, guess = _images(2, side=side, channels=3)
    assert -1 <= ssim(truth, guess) < 1


def test_match_undoes_a_permutation() -> None:
    truth = _images(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    scores = match(truth, truth[order])
    assert [int(order[guess]) for guess in scores.order] == [0, 1, 2, 3, 4]
    assert scores.mean_mse == 0.0


def test_match_minimises_the_total_and_not_each_error() -> None:
    # Greedy pairing takes 0.5 with 0.4 first and is left with 0.0 and 1.0.
    truth = torch.tensor([0.5, 0.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
    guess = torch.tensor([0.4, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
    assert match(truth, guess).order == (1, 0)


def test_records_that_are_not_pictures_have_no_ssim() -> None:
    scores = match(torch.zeros(2, 5), torch.ones(2, 5))
    assert all(math.isnan(value) for value in scores.ssim)
    assert scores.mean_mse == 1.0


def test_the_mean_is_the_best_constant_guess() -> None:
    images = _images(20)
    best = blind_guess(images)
    error = (images - best).square().mean()
    assert all(error <= (images - other).square().mean() for other in images)


def test_values_outside_the_unit_interval_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"guess spans \[-1, -1\].*undo the normalisation"):
        mse(torch.zeros(1, 4, 4), -torch.ones(1, 4, 4))


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="must agree"):
        match(torch.zeros(2, 1, 4, 4), torch.zeros(3, 1, 4, 4))


def test_ssim_refuses_records_that_are_not_pictures() -> None:
    with pytest.raises(ValueError, match="score other records by mse"):
        ssim(torch.zeros(16), torch.zeros(16))


def test_scores_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Scores(mse=(), psnr=(), ssim=(), order=())
