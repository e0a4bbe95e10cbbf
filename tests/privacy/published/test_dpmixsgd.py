"""DPMixSGD's own bound, as a claim."""

import math

import pytest

from overhear.privacy import composed_epsilon, epsilon
from overhear.privacy.published.claim import dpmixsgd_theorem_3

MIX = {"delta": 1e-5, "rounds": 2000, "examples": 20_000, "batch_size": 10, "start_batch_size": 0}


def test_dpmixsgd_claims_the_variance_of_its_form():
    claim = dpmixsgd_theorem_3(epsilon=0.5, **MIX, gradient_bound=2.0, c=3.0)
    std = claim.noise_multiplier * 2.0 / 10
    assert std**2 == pytest.approx(3.0 * 2.0**2 * 2000 * math.log(1e5) / (20_000**2 * 0.5**2))
    again = dpmixsgd_theorem_3(noise_std=std, **MIX, gradient_bound=2.0, c=3.0)
    assert again.epsilon == pytest.approx(0.5)


def test_dpmixsgd_as_published_is_unbounded():
    claim = dpmixsgd_theorem_3(epsilon=0.5, **MIX)
    assert claim.proven_epsilon == math.inf
    assert "clipped" in claim.proven_by


def test_dpmixsgd_repaired_rounds_cost_what_the_page_says():
    claim = dpmixsgd_theorem_3(noise_std=0.1, **MIX, repaired=True)
    assert claim.noise_multiplier == pytest.approx(1.0)
    assert claim.proven_epsilon == pytest.approx(0.0975, abs=5e-4)
    assert claim.epsilon < claim.proven_epsilon  # with c = 1


def test_dpmixsgd_start_is_counted_in_what_is_proven():
    # The start at multiplier 1 too: 1.687 on the page. There the noise on its mean is smaller.
    assert composed_epsilon({(1.0, 5e-4): 2000, (1.0, 0.1): 1}, delta=1e-5) == pytest.approx(
        1.687, abs=2e-3
    )
    whole = dpmixsgd_theorem_3(
        noise_std=0.1, **{**MIX, "start_batch_size": 2000}, repaired=True
    ).proven_epsilon
    alone = dpmixsgd_theorem_3(noise_std=0.1, **MIX, repaired=True).proven_epsilon
    start = composed_epsilon({(1.0, 5e-4): 2000, (200.0, 0.1): 1}, delta=1e-5)
    assert whole == pytest.approx(start)
    assert alone is not None
    assert whole is not None
    assert whole > alone


def test_dpmixsgd_start_may_have_noise_of_its_own():
    found = dpmixsgd_theorem_3(
        noise_std=0.1,
        **{**MIX, "start_batch_size": 2000, "start_noise_std": 5.0 / 2000},
        repaired=True,
    )
    start = composed_epsilon({(1.0, 5e-4): 2000, (5.0, 0.1): 1}, delta=1e-5)
    assert found.proven_epsilon == pytest.approx(start)


def test_dpmixsgd_start_of_the_size_of_a_batch_is_one_more_round():
    whole = dpmixsgd_theorem_3(
        noise_std=0.1, **{**MIX, "start_batch_size": 10}, repaired=True
    ).proven_epsilon
    assert whole == pytest.approx(
        epsilon(noise_multiplier=1.0, delta=1e-5, rounds=2001, sampling_rate=5e-4)
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "noise_std=None"),
        ({"noise_std": -1.0}, r"noise_std=-1\.0"),
        ({"noise_std": 1.0, "batch_size": 0}, "batch_size=0"),
        ({"noise_std": 1.0, "batch_size": 30_000}, "batch_size=30000"),
        ({"noise_std": 1.0, "start_batch_size": -1}, "start_batch_size=-1"),
        ({"noise_std": 1.0, "gradient_bound": 0.0}, r"gradient_bound=0\.0"),
        ({"noise_std": 1.0, "c": -1.0}, r"c=-1\.0"),
    ],
    ids=["none", "noise", "no batch", "large batch", "start", "gradient", "c"],
)
def test_a_wrong_argument_of_dpmixsgd_is_named(given, named):
    with pytest.raises(ValueError, match=named):
        dpmixsgd_theorem_3(**{**MIX, **given})
