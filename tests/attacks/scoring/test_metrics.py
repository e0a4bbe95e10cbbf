import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.attacks.scoring.metrics import (
    CONVENTIONS,
    DPDL,
    Convention,
    Scores,
    blind_guess,
    conventions_for,
    match,
    mse,
    psnr,
    ssim,
)


def _images(count: int, *, side: int = 8, channels: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_psnr_is_minus_ten_log10_of_the_mse():
    truth, guess = _images(2)
    assert psnr(truth, guess) == pytest.approx(-10 * math.log10(mse(truth, guess)))


def test_equal_images_score_perfectly():
    image = _images(1)[0]
    assert (mse(image, image), psnr(image, image), ssim(image, image)) == (0.0, math.inf, 1.0)


def test_ssim_of_one_window_equals_its_formula():
    truth, guess = _images(2, side=7)  # one 7x7 window: no averaging over places
    x, y = truth.double().flatten(), guess.double().flatten()
    covariance = float(torch.cov(torch.stack([x, y]))[0, 1])
    c1, c2 = 0.01**2, 0.03**2
    top = (2 * x.mean() * y.mean() + c1) * (2 * covariance + c2)
    bottom = (x.mean() ** 2 + y.mean() ** 2 + c1) * (x.var() + y.var() + c2)
    assert ssim(truth, guess) == pytest.approx(float(top / bottom), rel=1e-9)


@pytest.mark.parametrize("side", [3, 4, 6])
def test_ssim_of_a_small_image_uses_a_smaller_odd_window(side):
    truth, guess = _images(2, side=side, channels=3)
    assert -1 <= ssim(truth, guess) < 1


def test_match_undoes_a_permutation():
    truth = _images(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    scores = match(truth, truth[order])
    assert [int(order[guess]) for guess in scores.order] == [0, 1, 2, 3, 4]
    assert scores.mean_mse == 0.0


def test_match_minimises_the_total_and_not_each_error():
    # Greedy pairing takes 0.5 with 0.4 first and is left with 0.0 and 1.0.
    truth = torch.tensor([0.5, 0.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
    guess = torch.tensor([0.4, 1.0]).reshape(2, 1, 1, 1).expand(2, 1, 4, 4)
    assert match(truth, guess).order == (1, 0)


def test_records_that_are_not_pictures_have_no_ssim():
    scores = match(torch.zeros(2, 5), torch.ones(2, 5))
    assert all(math.isnan(value) for value in scores.ssim)
    assert scores.mean_mse == 1.0


def test_the_mean_is_the_best_constant_guess():
    images = _images(20)
    best = blind_guess(images)
    error = (images - best).square().mean()
    assert all(error <= (images - other).square().mean() for other in images)


def test_what_is_no_picture_to_score_is_refused():
    with pytest.raises(ValueError, match=r"guess spans \[-1, -1\].*undo the normalisation"):
        mse(torch.zeros(1, 4, 4), -torch.ones(1, 4, 4))
    with pytest.raises(ValueError, match="must agree"):
        match(torch.zeros(2, 1, 4, 4), torch.zeros(3, 1, 4, 4))
    with pytest.raises(ValueError, match="score other records by mse"):
        ssim(torch.zeros(16), torch.zeros(16))
    with pytest.raises(ValueError, match="at least one"):
        Scores(mse=(), psnr=(), ssim=(), order=())
    with pytest.raises(ValueError, match="give match a fallback"):
        match(_levels(0.0, 1.0), _levels(1.0))
    with pytest.raises(ValueError, match="must agree"):
        match(_levels(0.0), _levels(0.0, 1.0), fallback=_levels(0.5)[0])
    with pytest.raises(ValueError, match="fallback of shape"):
        match(_levels(0.0, 1.0), _levels(0.0), fallback=torch.zeros(1, 1, 1))
    with pytest.raises(ValueError, match="indices of the 1 images"):
        Scores(mse=(0.1,), psnr=(10.0,), ssim=(0.5,), order=(0,), missing=(1,))
    with pytest.raises(ValueError, match="must be below high"):
        Convention(low=1.0, high=1.0)


def _levels(*values: float) -> torch.Tensor:
    """(B, 1, 4, 4) images of one grey level each."""
    return torch.tensor(values).reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.permutations(range(5)), st.permutations(range(5)), st.integers(0, 1000))
def test_the_order_of_either_batch_changes_no_score(rows, columns, seed):
    truth, guess = torch.rand(2, 5, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    plain, moved = match(truth, guess), match(truth[rows], guess[columns])
    assert moved.mse == tuple(plain.mse[row] for row in rows)
    assert [columns[place] for place in moved.order] == [plain.order[row] for row in rows]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
    st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
    st.permutations(range(4)),
)
def test_duplicates_are_paired_with_the_same_total_in_every_order(truth, guess, order):
    plain = match(_levels(*truth), _levels(*guess))
    moved = match(_levels(*truth), _levels(*guess)[order])
    assert sorted(plain.order) == sorted(moved.order) == [0, 1, 2, 3]
    assert moved.mean_mse == pytest.approx(plain.mean_mse)
    # On a line, sorting both sides is an optimal pairing.
    best = np.square(np.sort(truth) - np.sort(guess)).mean()
    assert plain.mean_mse == pytest.approx(best)


def test_missing_reconstructions_are_named_and_scored_by_the_fallback():
    scores = match(_levels(0.0, 0.75, 1.0), _levels(1.0, 0.75), fallback=_levels(0.5)[0])
    assert scores.missing == (0,)
    assert scores.order == (2, 1, 0)
    assert scores.mse == (0.25, 0.0, 0.0)


def test_the_fallback_goes_where_it_makes_the_total_least():
    # 0.5 is nearer to 0.4 than to 0.9, but 0.4 is served by the fallback as well.
    scores = match(_levels(0.4, 0.9), _levels(0.5), fallback=_levels(0.4)[0])
    assert scores.missing == (0,)


def test_a_batch_of_which_nothing_was_found_gets_the_fallback_alone():
    scores = match(_levels(0.0, 1.0), _levels()[:0], fallback=_levels(0.5)[0])
    assert (scores.missing, scores.order, scores.mse) == ((0, 1), (0, 0), (0.25, 0.25))


def test_a_complete_batch_misses_nothing_and_ignores_the_fallback():
    scores = match(_levels(0.0, 1.0), _levels(1.0, 0.2), fallback=_levels(0.0)[0])
    assert scores.missing == ()
    assert scores.order == (1, 0)


def test_the_dpdl_convention_quadruples_the_mse_and_keeps_the_psnr():
    black, dark = torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.1)
    assert mse(black, dark, convention=DPDL) == pytest.approx(0.04)
    assert psnr(black, dark, convention=DPDL) == pytest.approx(20.0)  # 10 log10(4 / .04)


def test_data_range_two_on_the_unit_interval_adds_six_decibels():
    black, dark = torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.1)
    wide = Convention(data_range=2.0)
    assert psnr(black, dark, convention=wide) == pytest.approx(26.0206, abs=1e-4)
    assert mse(black, dark, convention=wide) == pytest.approx(0.01)


def test_colours_of_the_dpdl_convention_are_standardised_at_the_range_of_the_image():
    colour = conventions_for(3)["dpdl"]
    black, white = torch.zeros(3, 8, 8), torch.ones(3, 8, 8)
    half = torch.cat([black[:, :4], white[:, 4:]], dim=1)
    # From (0 - .4914) / .2470 of red to (1 - .4822) / .2435 of green.
    span = 0.5178 / 0.2435 + 0.4914 / 0.2470
    expected = sum((0.1 / s) ** 2 for s in (0.2470, 0.2435, 0.2616)) / 3
    guess = (half - 0.1 * (2 * half - 1)).clamp(0, 1)
    assert mse(half, guess, convention=colour) == pytest.approx(expected)
    level = 10 * math.log10(span**2 / expected)
    assert psnr(half, guess, convention=colour) == pytest.approx(level)
    assert 4.1 < span < 4.12
    # An image without a range is scored at that of the scale.
    flat, own = torch.full((1, 8, 8), 0.5), Convention(data_range=None)
    assert psnr(flat, flat - 0.1, convention=own) == pytest.approx(20.0, abs=1e-4)


def test_ssim_of_flat_images_in_the_dpdl_convention_equals_its_formula():
    # Means -.6 and -.4, no variance: only the term of the means is left, C1 = (.01 x 2)^2.
    first, second = torch.full((1, 8, 8), 0.2), torch.full((1, 8, 8), 0.3)
    expected = (2 * 0.24 + 4e-4) / (0.36 + 0.16 + 4e-4)
    assert ssim(first, second, convention=DPDL) == pytest.approx(expected, abs=1e-5)
    assert ssim(first, second) == pytest.approx((0.12 + 1e-4) / (0.13 + 1e-4), abs=1e-5)


def test_grey_scores_at_least_six_decibels_in_the_dpdl_convention():
    worst = torch.zeros(1, 8, 8)  # no image is farther from grey than black or white
    grey = torch.full((1, 8, 8), 0.5)
    assert psnr(worst, grey, convention=DPDL) == pytest.approx(6.0206, abs=1e-4)


def test_match_scores_in_the_convention_that_it_is_given():
    truth, guess = _images(2, side=7)[:, None]
    plain, dpdl = match(truth, guess), match(truth, guess, convention=CONVENTIONS["dpdl"])
    assert dpdl.mse[0] == pytest.approx(4 * plain.mse[0])
    assert dpdl.psnr[0] == pytest.approx(plain.psnr[0])
    assert dpdl.ssim[0] != pytest.approx(plain.ssim[0], abs=1e-3)
