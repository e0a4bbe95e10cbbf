"""What a published claim must say, and what it refuses."""

import math

import pytest

from overhear.privacy import (
    Guarantee,
    Statement,
    Status,
    composed_epsilon,
    delta_from_mu,
    epsilon,
    mu_from,
)
from overhear.privacy.noise.schedule import Schedule, calibrated_schedule, scheduled_epsilon
from overhear.privacy.published.claim import (
    PublishedClaim,
    dpdl_theorem_1,
    dpmixsgd_theorem_3,
    dyn_d2p_clt,
    dyn_d2p_proposition_4,
)

WORDS = {"paper": "P", "statement": "S", "adversary": "A", "proven_by": "B", "caveats": ("C",)}
FIGURES = {"epsilon": 1.0, "delta": 1e-5, "noise_multiplier": 1.0, "proven_epsilon": 2.0}


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


# DPDL's own bound, as a claim.

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


# DPMixSGD's own bound, as a claim.

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


# Dyn-D2P's central-limit figure.

ITS_OWN = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1.0, budget_growth=1.0)
STATEMENT = Statement(delta=1e-5)
SMALL = Schedule(rounds=12, sampling_rate=0.1)


@pytest.mark.parametrize(
    ("claimed", "really"), [(0.3, 0.67), (1.0, 3.02), (3.0, 5.76)], ids=["0.3", "1", "3"]
)
def test_in_its_own_setting_the_claim_is_about_half_of_the_truth(claimed, really):
    claim = dyn_d2p_clt(ITS_OWN, epsilon=claimed, statement=Statement(delta=1e-4))
    assert claim.epsilon == claimed
    assert claim.proven_epsilon == pytest.approx(really, abs=0.005)


def test_the_limit_is_the_papers_sum():
    claim = dyn_d2p_clt(SMALL, noise_multiplier=3.0, statement=STATEMENT)
    mus = [4.0 ** (k / 12) / 3.0 for k in range(12)]
    total = 0.1 * math.sqrt(sum(math.exp(mu**2) - 1 for mu in mus))
    assert delta_from_mu(total, claim.epsilon) == pytest.approx(1e-5, rel=1e-9)


def test_equal_rounds_have_the_limit_of_the_accountant_by_that_name():
    claim = dyn_d2p_clt(ITS_OWN, noise_multiplier=0.8, statement=Statement(delta=1e-4))
    named = epsilon(
        noise_multiplier=0.8, delta=1e-4, rounds=3500, sampling_rate=1 / 2500, accountant="gdp-clt"
    )
    assert claim.epsilon == pytest.approx(named, rel=1e-9)


def test_equal_rounds_have_the_closed_form_of_equation_9():
    claim = dyn_d2p_clt(ITS_OWN, epsilon=1.0, statement=Statement(delta=1e-4))
    squared = math.log(2500**2 * mu_from(1.0, 1e-4) ** 2 / 3500 + 1)
    assert claim.noise_multiplier == pytest.approx(squared**-0.5, rel=1e-9)


def test_proposition_4_is_its_printed_sum():
    plan = Schedule(rounds=12, sampling_rate=0.1, clip_norm=2.0, clip_decay=3.0, budget_growth=2.0)
    claim = dyn_d2p_proposition_4(plan, epsilon=1.0, statement=STATEMENT)
    # sigma_k = C_k / mu_k for any mu_0: here 1, so that sigma is the first multiplier.
    bounds = [2.0 * 3.0 ** (-k / 12) for k in range(12)]
    noises = [c / 2.0 ** (k / 12) for k, c in enumerate(bounds)]
    total = sum(c**2 / s**2 for c, s in zip(bounds, noises, strict=True))
    wanted = 0.1 / mu_from(1.0, 1e-5) * math.sqrt(2 * total)
    assert claim.noise_multiplier == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("plan", "inside"),
    [(ITS_OWN, False), (Schedule(rounds=1000, sampling_rate=0.02), True)],
    ids=["its own setting", "larger batches"],
)
def test_proposition_4_says_where_its_factor_of_2_ends(plan, inside):
    claim = dyn_d2p_proposition_4(plan, epsilon=0.3, statement=Statement(delta=1e-4))
    limit = dyn_d2p_clt(
        plan, noise_multiplier=claim.noise_multiplier, statement=Statement(delta=1e-4)
    )
    assert (limit.epsilon <= 0.3) == inside
    assert claim.caveats[0].startswith("outside its range") != inside
    if not inside:
        assert f"epsilon {limit.epsilon:.4g} for this noise" in claim.caveats[0]
        assert claim.proven_epsilon == pytest.approx(11.77, abs=0.005)


@pytest.mark.parametrize("growth", [1.0, 4.0, 100.0], ids=["const", "4", "100"])
@pytest.mark.parametrize("target", [0.05, 1.0, 20.0], ids=["0.05", "1", "20"])
def test_the_first_multiplier_gives_back_the_claim(growth, target):
    plan = Schedule(rounds=12, sampling_rate=0.1, budget_growth=growth)
    claim = dyn_d2p_clt(plan, epsilon=target, statement=STATEMENT)
    again = dyn_d2p_clt(plan, noise_multiplier=claim.noise_multiplier, statement=STATEMENT)
    assert again.epsilon == pytest.approx(target, rel=1e-8)


def test_one_round_is_the_closed_form_of_its_limit():
    plan = Schedule(rounds=1, sampling_rate=0.5)
    found = dyn_d2p_clt(plan, epsilon=1.0, statement=STATEMENT).noise_multiplier
    assert 0.5 * math.sqrt(math.expm1(found**-2)) == pytest.approx(mu_from(1.0, 1e-5))


def test_the_calibrated_schedule_takes_more_noise_than_the_claim():
    claim = dyn_d2p_clt(SMALL, epsilon=1.0, statement=STATEMENT)
    needed = calibrated_schedule(SMALL, epsilon=1.0, statement=STATEMENT)
    assert claim.noise_multiplier < needed
    assert (
        scheduled_epsilon(SMALL, needed, statement=STATEMENT) <= 1.0 < (claim.proven_epsilon or 0.0)
    )


def test_very_little_noise_is_a_large_claim_and_no_overflow():
    claim = dyn_d2p_clt(SMALL, noise_multiplier=0.02, statement=STATEMENT)
    assert claim.epsilon > 1e6


def test_the_clip_decay_does_not_enter():
    other = Schedule(rounds=12, sampling_rate=0.1, clip_norm=9.0, clip_decay=2.0)
    one, two = (dyn_d2p_clt(s, epsilon=1.0, statement=STATEMENT) for s in (SMALL, other))
    assert one == two


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "exactly one"),
        ({"noise_multiplier": 1.0, "epsilon": 1.0}, "exactly one"),
        ({"noise_multiplier": 0.0}, r"noise_multiplier=0\.0"),
        ({"epsilon": 0.0}, r"epsilon=0\.0"),
    ],
    ids=["none", "both", "noise", "epsilon"],
)
def test_a_wrong_argument_is_named(given, named):
    with pytest.raises(ValueError, match=named):
        dyn_d2p_clt(SMALL, statement=STATEMENT, **given)


def test_a_record_that_is_never_sampled_has_no_limit():
    with pytest.raises(ValueError, match=r"sampling_rate=0\.0"):
        dyn_d2p_clt(Schedule(rounds=3, sampling_rate=0.0), epsilon=1.0, statement=STATEMENT)
