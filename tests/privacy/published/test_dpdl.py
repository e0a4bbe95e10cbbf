"""DPDL's own bound, as a claim."""

import math

import pytest

from overhear.privacy import Guarantee, Status, epsilon
from overhear.privacy.published.claim import dpdl_theorem_1

RING = {"delta": 1e-5, "rounds": 1000, "sampling_rate": 0.02, "sensitivity_factor": math.sqrt(3)}


def test_a_claim_is_no_guarantee():
    claim = dpdl_theorem_1(noise_multiplier=2.0, **RING)
    assert not isinstance(claim, Guarantee)
    assert not hasattr(claim, "status")


def test_dpdl_claims_q_k_sqrt_t_log_over_the_multiplier():
    by_hand = 0.02 * math.sqrt(3) * math.sqrt(1000 * math.log(1e5)) / 2.512
    assert dpdl_theorem_1(noise_multiplier=2.512, **RING).epsilon == pytest.approx(by_hand)


def test_dpdl_is_put_beside_the_accountant_at_the_multiplier_over_k():
    claim = dpdl_theorem_1(noise_multiplier=2.512, **RING)
    truth = epsilon(
        noise_multiplier=2.512 / math.sqrt(3), delta=1e-5, rounds=1000, sampling_rate=0.02
    )
    assert claim.proven_epsilon == pytest.approx(truth)
    assert claim.proven_epsilon == pytest.approx(2.07, abs=0.005)  # the page's repaired ring


def test_dpdl_with_the_constant_at_1_claims_less_than_the_accountant_proves():
    claim = dpdl_theorem_1(noise_multiplier=2.512, **RING)
    assert claim.proven_epsilon is not None
    assert claim.epsilon < claim.proven_epsilon


def test_dpdl_epsilon_and_multiplier_are_inverse():
    claim = dpdl_theorem_1(epsilon=1.3, **RING, c2=1.5)
    again = dpdl_theorem_1(noise_multiplier=claim.noise_multiplier, **RING, c2=1.5)
    assert again.epsilon == pytest.approx(1.3)
    assert again.proven_epsilon == claim.proven_epsilon


def test_dpdl_claim_grows_with_the_constant_and_with_the_sensitivity():
    one = dpdl_theorem_1(noise_multiplier=3.0, **RING).epsilon
    assert dpdl_theorem_1(noise_multiplier=3.0, **RING, c2=2.0).epsilon == pytest.approx(2 * one)
    twice = {**RING, "sensitivity_factor": 2 * math.sqrt(3)}
    assert dpdl_theorem_1(noise_multiplier=3.0, **twice).epsilon == pytest.approx(2 * one)


def test_a_heuristic_sensitivity_proves_nothing():
    claim = dpdl_theorem_1(noise_multiplier=2.5, **RING, sensitivity_status=Status.HEURISTIC)
    assert claim.proven_epsilon is None
    assert "nothing" in claim.proven_by


def test_dpdl_limits():
    assert dpdl_theorem_1(noise_multiplier=0.0, **RING).epsilon == math.inf
    assert dpdl_theorem_1(noise_multiplier=0.0, **RING).proven_epsilon == math.inf
    open_view = {**RING, "sensitivity_factor": math.inf}
    assert dpdl_theorem_1(noise_multiplier=2.0, **open_view).proven_epsilon == math.inf
    never = {**RING, "sampling_rate": 0.0}
    assert dpdl_theorem_1(noise_multiplier=2.0, **never).epsilon == 0.0


def test_dpdl_says_which_constants_are_unknown():
    caveats = " ".join(dpdl_theorem_1(noise_multiplier=2.0, **RING).caveats)
    assert "c2 is not known" in caveats
    assert "c1 is not known" in caveats


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "exactly one"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "exactly one"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1"),
        ({"epsilon": 0.0}, r"epsilon=0\.0"),
        ({"epsilon": 1.0, "c2": 0.0}, r"c2=0\.0"),
        ({"epsilon": 1.0, "sensitivity_factor": 0.0}, r"sensitivity_factor=0\.0"),
        ({"epsilon": 1.0, "rounds": 0}, "rounds=0"),
        ({"epsilon": 1.0, "sampling_rate": 2.0}, "did you mean batch_size"),
        ({"epsilon": 1.0, "delta": 1.0}, r"delta=1\.0"),
    ],
    ids=["none", "both", "noise", "epsilon", "c2", "factor", "rounds", "rate", "delta"],
)
def test_a_wrong_argument_of_dpdl_is_named(given, named):
    with pytest.raises(ValueError, match=named):
        dpdl_theorem_1(**{**RING, **given})
