"""Noise and batches: one stream a source, none used twice."""

import numpy as np
import pytest
import torch

from overhear.training.randomness import Purpose, SecretRandomness

FLOAT = torch.float32


def noise(root=None, *, round=1, call=0, rows=(0,), width=1000, dtype=FLOAT):
    source = SecretRandomness(root=root)
    return source.normal(round=round, call=call, rows=list(rows), width=width, dtype=dtype)


def test_every_source_round_and_call_has_noise_of_its_own():
    seen = [
        noise(3, round=r, call=c, rows=[s])[0] for r in (1, 2) for c in (0, 1) for s in (0, 1, 7)
    ]
    correlations = np.corrcoef(torch.stack(seen).numpy())
    off = correlations[~np.eye(len(seen), dtype=bool)]
    # n=1000 each: 66 pairs, |r| > .16 has probability 5e-7 each.
    assert np.abs(off).max() < 0.16


def test_noise_and_batches_never_share_a_stream():
    source = SecretRandomness(root=3)
    streams = [source.stream(p, round=1, call=0, row=0).integers(2**63, size=4) for p in Purpose]
    assert not set(streams[0].tolist()) & set(streams[1].tolist())


def test_the_default_root_is_never_the_same():
    assert not torch.equal(noise(), noise())


def test_the_same_root_repeats_whoever_asks_for_which_rows():
    together = noise(9, rows=[0, 1, 2])
    assert torch.equal(together[1:2], noise(9, rows=[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal(dtype):
    n = 400_000
    z = noise(5, rows=range(4), width=n // 4, dtype=dtype).double().flatten()
    # Mean and variance within 5 standard errors: false alarms 6e-7 each.
    assert abs(float(z.mean())) < 5 / n**0.5
    assert abs(float(z.var()) - 1) < 5 * (2 / n) ** 0.5
    # Share beyond 2: p = .0455, standard error sqrt(p (1 - p) / n).
    share = float((z.abs() > 2).double().mean())
    assert abs(share - 0.0455) < 5 * (0.0455 * 0.9545 / n) ** 0.5


def test_roots_beyond_128_bits_are_refused():
    with pytest.raises(ValueError, match="root"):
        SecretRandomness(root=2**128)
