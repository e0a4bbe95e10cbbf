"""Noise is independent standard normal, by whichever way it is made.

Ways: NumPy's ziggurat on Philox4x64 (plain) and the sum of four of its draws (hardened), and the
same two on Philox4x32 with Box-Muller as devices make them, run here on the CPU. Roots are given,
so an outcome repeats; a sound generator fails at the rates stated for a root drawn by chance.
"""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from overhear.training.device import philox
from overhear.training.engine.randomness import SecretRandomness

WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "plain": SecretRandomness(11).normal,
    "hardened": SecretRandomness(11, hardened=True).normal,
    "device": functools.partial(SecretRandomness(11)._normal_on_device, device="cpu"),
    "hardened device": functools.partial(
        SecretRandomness(11, hardened=True)._normal_on_device, device="cpu"
    ),
}
DTYPES = [torch.float32, torch.float64]
every_way = pytest.mark.parametrize("way", WAYS)
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


@functools.cache
def sample(way, dtype):
    """4 rows of 500,000 values, in float64 and read-only by agreement."""
    z = WAYS[way](round=3, call=1, rows=[0, 1, 2, 7], width=500_000, dtype=dtype)
    return z.double().numpy()


@every_type
@every_way
def test_mean_and_variance_are_0_and_1(way, dtype):
    z = sample(way, dtype)
    # n = 500,000 a row and n = 2e6 in all: 10 figures within 5 standard errors, 6e-7 each.
    for part in (*z, z.ravel()):
        assert abs(part.mean()) < 5 / part.size**0.5
        assert abs((part**2).mean() - 1) < 5 * (2 / part.size) ** 0.5


@every_type
@every_way
def test_the_distribution_is_normal(way, dtype):
    # n = 500,000: Kolmogorov-Smirnov, false alarms 1e-6.
    assert stats.kstest(sample(way, dtype)[0], "norm").pvalue > 1e-6


@every_type
@every_way
@pytest.mark.parametrize("sign", [-1, 1])
def test_each_tail_holds_its_share(way, dtype, sign):
    z = sign * sample(way, dtype).ravel()
    # n = 2e6, exact binomial bounds, false alarms 1e-6 each: 63.3 and 0.57 are expected beyond.
    for threshold in (4, 5):
        beyond = stats.binom(z.size, stats.norm.sf(threshold))
        assert beyond.ppf(5e-7) <= (z > threshold).sum() <= beyond.isf(5e-7)


@every_type
@every_way
def test_values_of_a_row_are_uncorrelated_and_so_are_their_squares(way, dtype):
    z = sample(way, dtype)[0]
    # n = 500,000, lags 1..16 of both: 32 figures within 6 standard errors of 0, 2e-9 each.
    for values in (z, (z**2 - 1) / 2**0.5):
        for lag in range(1, 17):
            assert abs(values[lag:] @ values[:-lag]) / values.size**0.5 < 6


def test_no_two_sources_rounds_calls_roots_or_ways_go_together():
    width, rows = 4096, [0, 1, 2, 1000, 2**31]
    seen = [
        make(round=r, call=c, rows=rows, width=width, dtype=torch.float64)
        for make in (*WAYS.values(), SecretRandomness(12).normal, SecretRandomness(11 << 64).normal)
        for r in (0, 1, 2)
        for c in (0, 1, 2)
    ]
    z = torch.cat(seen).numpy()
    together = z @ z.T / width**0.5
    # 270 rows of n = 4096: 36,315 pairs beyond 6.5 standard errors, 8e-11 each, 3e-6 in all.
    assert np.abs(together[~np.eye(len(z), dtype=bool)]).max() < 6.5
    # Nor is one a shifted copy of another: no value is drawn twice. Chance: 1e6^2 / 2^53 = 1e-4,
    # were values spread over 53 bits; of the first 64 of each row 17,280^2 / 2^53 = 3e-8.
    assert np.unique(z[:, :64]).size == z[:, :64].size


@every_type
@every_way
def test_rows_drawn_in_any_subset_or_order_are_those_of_the_whole(way, dtype):
    draw = functools.partial(WAYS[way], round=2, call=3, width=101, dtype=dtype)
    whole = draw(rows=list(range(40)))
    for rows in ([0], [39, 0, 17], list(range(0, 40, 2)), list(range(20, 40)), []):
        assert torch.equal(draw(rows=rows), whole[rows])


@pytest.mark.parametrize("draws", [1, 4])
def test_the_size_of_a_piece_changes_nothing(monkeypatch, draws):
    def drawn():
        of = {"width": 31, "dtype": torch.float64, "device": "cpu", "draws": draws}
        return philox.normal_rows([1, 2, 3, 4], range(5), **of)

    whole = drawn()
    for at_once in (3, 16, 40):
        monkeypatch.setattr(philox, "pairs_at_once", lambda _, most=at_once: most)
        assert torch.equal(drawn(), whole)


def repeated_near_zero(way, rounds):
    """How many of 500,000 values a round are within 2^-12 of 0, and how many of these repeat."""
    draw = functools.partial(WAYS[way], call=0, rows=[0], width=500_000, dtype=torch.float32)
    near = torch.cat([z[z.abs() < 2**-12] for z in (draw(round=r)[0] for r in range(rounds))])
    return len(near), len(near) - len(near.abs().unique())


@pytest.mark.parametrize("way", ["hardened", "device", "hardened device"])
def test_float32_noise_that_is_rounded_last_reaches_every_number_near_zero(way):
    # n = 4e6, of which 779 +- 28 are nearer to 0 than 2^-12, where float32 has 2^23 numbers for
    # every halving: repeats of rounded normal noise are Poisson with mean
    # 779^2 / 2 * (1/2^2 + 1/4^2 + ...) / 2^23 = .012; 4 or more have probability 9e-10.
    near, repeats = repeated_near_zero(way, rounds=8)
    assert abs(near - 779) < 150
    assert repeats < 4


def test_plain_float32_noise_has_holes_near_zero():
    # n = 3e7: 5850 near 0, and .68 repeats if it had none; 15 or more have probability 1e-15.
    assert repeated_near_zero("plain", rounds=60)[1] >= 15


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("hardened", [False, True], ids=["plain", "hardened"])
@every_type
def test_noise_of_a_cuda_device_is_standard_normal_and_the_same_for_any_rows(dtype, hardened):
    draw = functools.partial(
        SecretRandomness(11, hardened=hardened).normal, round=1, call=0, dtype=dtype, device="cuda"
    )
    whole = draw(rows=list(range(100)), width=61_707)
    values = whole.double()
    n = values.numel()
    # n = 6.2e6: mean and variance within 5 standard errors, 6e-7 each; 100 rows within 6, 2e-9.
    assert abs(float(values.mean())) < 5 / n**0.5
    assert abs(float(values.square().mean()) - 1) < 5 * (2 / n) ** 0.5
    of_rows = values.square().mean(dim=1) - 1
    assert float(of_rows.abs().max()) < 6 * (2 / 61_707) ** 0.5
    for rows in ([99, 3], list(range(50, 60))):
        assert torch.equal(draw(rows=rows, width=61_707), whole[rows])
    way = WAYS["hardened device" if hardened else "device"]
    # Logarithm and cosine of the two devices differ in the last bits of float64.
    on_cpu = way(round=1, call=0, rows=[3], width=61_707, dtype=dtype)
    tolerance = 1e-13 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(whole[3:4].cpu(), on_cpu, rtol=tolerance, atol=tolerance)
