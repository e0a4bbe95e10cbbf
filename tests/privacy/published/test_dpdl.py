"""The papers' own bounds of DPDL and DPMixSGD, as claims."""

import math

import pytest

from overhear.privacy import Guarantee, Status, composed_epsilon, epsilon
from overhear.privacy.published.dpdl import PublishedClaim, dpdl_theorem_1, dpmixsgd_theorem_3

RING = {"delta": 1e-5, "rounds": 1000, "sampling_rate": 0.02, "sensitivity_factor": math.sqrt(3)}
MIX = {
    "delta": 1e-5,
    "rounds": 2000,
    "examples": 20_000,
    "batch_size": 10,
    "start_batch_size": 0,
}
WORDS = {"paper": "P", "statement": "S", "adversary": "A", "proven_by": "B", "caveats": ("C",)}
FIGURES = {"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "proven_epsilon": 2.0}


def test_a_claim_is_no_guarantee():
    claim = dpdl_theorem_1(noise_multiplier=2.0, **RING)
    assert not isinstance(claim, Guarantee)
    assert not hasattr(claim, "status")


@pytest.mark.parametrize("name", list(WORDS))
def test_a_claim_says_where_it_is_from_and_what_is_wrong_with_it(name):
    empty: object = () if name == "caveats" else ""
    with pytest.raises(ValueError, match=name):
        PublishedClaim(**{**WORDS, **FIGURES, name: empty})  # type: ignore[arg-type] # wrong on purpose


@pytest.mark.parametrize("name", ["epsilon", "noise_multiplier", "proven_epsilon"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_a_figure_of_a_claim_is_a_figure(name, value):
    with pytest.raises(ValueError, match=f"{name}="):
        PublishedClaim(**{**WORDS, **FIGURES, name: value})  # type: ignore[arg-type] # wrong on purpose


def test_delta_of_a_claim_lies_between_0_and_1():
    with pytest.raises(ValueError, match="delta=0"):
        PublishedClaim(**{**WORDS, **FIGURES, "delta": 0.0})  # type: ignore[arg-type] # wrong on purpose


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
