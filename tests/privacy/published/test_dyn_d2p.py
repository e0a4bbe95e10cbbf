"""Dyn-D2P's central-limit figure."""

import math

import pytest

from overhear.privacy import Statement, delta_from_mu, epsilon, mu_from
from overhear.privacy.noise.schedule import Schedule, calibrated_schedule, scheduled_epsilon
from overhear.privacy.published.claim import dyn_d2p_clt, dyn_d2p_proposition_4

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
