"""Whisper's Theorem 2."""

import math

import numpy as np
import pytest

from overhear.privacy import epsilon_from_mu, mu_from, victim_information, whisper_covariance
from overhear.privacy.published.whisper import (
    whisper_constraint_10,
    whisper_information,
    whisper_theorem_2,
)

PAPER = {"delta": 1e-5, "rounds": 5000, "clip_norm": 0.1}


@pytest.mark.parametrize(
    ("target", "b", "saved"),
    [
        (3.0, 0.0017348321192510023, 1.49),
        (10.0, 0.015503552285754198, 1.29),
        (40.0, 0.1432002083288661, 1.14),
    ],
    ids=["3", "10", "40"],
)
def test_exact_accounting_needs_less_variance_than_the_paper(target, b, saved):
    found = whisper_information(epsilon=target, **PAPER)
    exact = mu_from(target, 1e-5) ** 2 / (4 * 5000 * 0.1**2)
    assert found == pytest.approx(b, rel=1e-9)  # the reference values of its setting
    assert exact / found == pytest.approx(saved, abs=0.005)


@pytest.mark.parametrize("target", [3.0, 10.0, 40.0], ids=["3", "10", "40"])
def test_the_mended_theorem_claims_more_than_is_spent(target):
    claim = whisper_theorem_2(epsilon=target, **PAPER)
    mu = 2.0 * math.sqrt(5000) / claim.noise_multiplier
    assert claim.proven_epsilon == pytest.approx(epsilon_from_mu(mu, 1e-5))
    assert claim.proven_epsilon is not None
    assert claim.proven_epsilon < target


@pytest.mark.parametrize(
    ("target", "proven", "inside"),
    [(3.0, 1.74, True), (10.0, 6.90, True), (15.0, 11.32, False), (40.0, 41.76, False)],
    ids=["3", "10", "15", "40"],
)
def test_constraint_10_is_put_beside_what_is_spent_and_its_range(target, proven, inside):
    claim = whisper_constraint_10(epsilon=target, delta=1e-5, rounds=5000)
    # [R^-1]_ii at the constraint, with the paper's clip norm, which falls out.
    allowed = target**2 / (16 * 0.1**2 * 5000 * math.log(1e5))
    assert claim.noise_multiplier == pytest.approx(1 / (0.1 * math.sqrt(allowed)))
    mu = math.sqrt(4 * 0.1**2 * 5000 * allowed)
    assert claim.proven_epsilon == pytest.approx(epsilon_from_mu(mu, 1e-5))
    assert claim.proven_epsilon == pytest.approx(proven, abs=0.005)
    assert ("log(1/delta) = 11.51" not in claim.caveats[0]) == inside


def test_constraint_10_is_outside_its_range_from_log_one_over_delta_on():
    edge = math.log(1 / 1e-5)
    for target, outside in ((edge, True), (math.nextafter(edge, 0), False)):
        found = whisper_constraint_10(epsilon=target, delta=1e-5, rounds=10)
        assert found.caveats[0].startswith("Proposition 1 asks") == outside


def test_the_bound_is_the_renyi_loss_of_the_rounds_solved_for_the_noise():
    b = whisper_information(epsilon=2.0, **PAPER)
    rho = 2 * 0.1**2 * 5000 * b  # alpha rho, a replaced record
    orders = np.linspace(1.001, 500, 400_000)
    best = np.min(orders * rho + math.log(1e5) / (orders - 1))
    assert best == pytest.approx(2.0, rel=1e-6)


def test_followed_as_printed_it_protects_nobody():
    claim = whisper_theorem_2(epsilon=3.0, **PAPER, with_slips=True)
    assert claim.noise_multiplier == 0.0
    assert claim.proven_epsilon == math.inf
    assert ">=" in claim.statement
    assert "reversed" in claim.caveats[0]


def test_a_covariance_of_that_information_has_that_multiplier_for_the_worst_agent():
    b = whisper_information(epsilon=10.0, **PAPER)
    W = np.array([[0.7, 0.3, 0.0], [0.3, 0.4, 0.3], [0.0, 0.3, 0.7]])
    worst = victim_information(whisper_covariance(W, bound=b)).max()
    claim = whisper_theorem_2(epsilon=10.0, **PAPER)
    assert 1 / (0.1 * math.sqrt(worst)) == pytest.approx(claim.noise_multiplier)


@pytest.mark.parametrize("target", [0.1, 3.0, 40.0])
def test_a_claim_of_a_noise_multiplier_is_the_inverse_of_one_of_epsilon(target):
    claim = whisper_theorem_2(epsilon=target, **PAPER)
    again = whisper_theorem_2(noise_multiplier=claim.noise_multiplier, **PAPER)
    assert again.epsilon == pytest.approx(target)
    assert again.proven_epsilon == claim.proven_epsilon


def test_a_claim_is_of_noise_or_of_epsilon():
    for given in ({}, {"epsilon": 1.0, "noise_multiplier": 2.0}):
        with pytest.raises(ValueError, match="give exactly one"):
            whisper_theorem_2(**given, **PAPER)


def test_a_small_epsilon_keeps_its_digits():
    log = math.log(1e5)
    found = whisper_information(epsilon=1e-12, delta=1e-5, rounds=1)
    assert found == pytest.approx(1e-24 / (4 * log) / 2, rel=1e-9)


def test_the_multiplier_does_not_depend_on_the_clip_norm():
    one, two = (
        whisper_theorem_2(epsilon=3.0, delta=1e-5, rounds=10, clip_norm=c).noise_multiplier
        for c in (1.0, 0.1)
    )
    assert one == pytest.approx(two)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"epsilon": 0.0}, r"epsilon=0\.0"),
        ({"delta": 1.0}, r"delta=1\.0"),
        ({"rounds": 0}, "rounds=0"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0"),
    ],
    ids=["epsilon", "delta", "rounds", "clip"],
)
def test_a_wrong_argument_is_named(given, named):
    with pytest.raises(ValueError, match=named):
        whisper_theorem_2(**{"epsilon": 1.0, **PAPER, **given})
    if "clip_norm" not in given:
        with pytest.raises(ValueError, match=named):
            whisper_constraint_10(**{"epsilon": 1.0, "delta": 1e-5, "rounds": 10, **given})
