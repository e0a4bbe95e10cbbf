import math

import pytest
import torch
from torch import Tensor

from overhear.attacks.exact.first_layer import denoise

NOISE_STD = 0.2


def _noise(shape: tuple[int, ...], seed: int) -> Tensor:
    return NOISE_STD * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _blocks(seed: int) -> Tensor:
    """(3, 32, 32) of constant blocks of eight."""
    drawn = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return drawn.repeat_interleave(8, 1).repeat_interleave(8, 2)


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_of_blocks_comes_out_with_a_fraction_of_its_noise(seed):
    truth = _blocks(seed)
    found = denoise(truth + _noise(truth.shape, seed), NOISE_STD)
    assert float((found.image - truth).square().mean()) < 0.3 * NOISE_STD**2
    assert found.weight > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_without_smoothness_is_hardly_touched(seed):
    truth = 5.0 * torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(seed))
    noisy = truth + _noise(truth.shape, seed)
    left = (denoise(noisy, NOISE_STD).image - truth).square().mean()
    assert float(left) < 1.1 * float((noisy - truth).square().mean())


@pytest.mark.slow
def test_the_risk_is_that_of_the_mean():
    # n = 40 pictures of 3,072 values. The estimates' mean is within 4 standard errors of the
    # errors' mean, so a false alarm has probability below 1e-4 (choosing the least biases it by
    # less than that).
    risks, errors = [], []
    for seed in range(40):
        truth = _blocks(seed)
        found = denoise(truth + _noise(truth.shape, 1000 + seed), NOISE_STD)
        risks.append(found.risk)
        errors.append(float((found.image - truth).square().mean()))
    gaps = torch.tensor(risks) - torch.tensor(errors)
    assert abs(float(gaps.mean())) < 4 * float(gaps.std()) / math.sqrt(40) + 0.01 * NOISE_STD**2


def test_scaling_picture_and_noise_scales_what_is_found():
    noisy = _blocks(0) + _noise((3, 32, 32), 0)
    one, tenfold = denoise(noisy, NOISE_STD), denoise(10 * noisy, 10 * NOISE_STD)
    torch.testing.assert_close(tenfold.image, 10 * one.image, rtol=1e-4, atol=1e-4)
    assert tenfold.risk == pytest.approx(100 * one.risk, rel=1e-4)
