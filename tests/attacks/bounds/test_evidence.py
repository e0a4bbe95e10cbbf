"""Bets against a claim: what they are worth if it holds, and if it does not."""

import math

import numpy as np
import pytest

from overhear.attacks.bounds.evidence import (
    BETS,
    LINKS,
    RISK,
    Evidence,
    after,
    decisive,
    least_error,
    second_risk,
    second_risk_of_links,
)
from overhear.attacks.bounds.lower_bounds import Guesses, best_threshold
from overhear.attacks.bounds.mechanism import Claim

ONE = Claim(rounds={(1.0, 1.0): 1})  # mu 1


def _guesses(canaries: int, generator: np.random.Generator, *, mu: float = 1.0) -> Guesses:
    """Scores that take mu for 1, of the best test of what has another."""
    included = generator.integers(2, size=canaries).astype(bool)
    scores = generator.normal(size=canaries) / mu + np.where(included, 0.5, -0.5)
    return Guesses(scores=scores, included=included)


@pytest.mark.parametrize("least", [0.0, 1e-9, 0.02, 0.3, 0.5])
def test_no_bet_is_worth_more_than_its_stake_where_the_claim_holds(least):
    # Exact: the expected payoff of one canary at any error rate that the claim allows.
    for stake in BETS:
        right = 1.0 + least * stake / (1.0 - least)
        for rate in np.linspace(least, 1.0, 11):
            assert rate * (1.0 - stake) + (1.0 - rate) * right <= 1.0 + 1e-12


@pytest.mark.parametrize("tested", [1, 3, 40])
@pytest.mark.parametrize("risk", [0.05, 0.2])
def test_a_second_look_that_exceeds_decides_by_itself_and_its_stake_is_fair(risk, tested):
    total = 0.0
    for attempt in range(1, 60):
        second = second_risk(attempt, risk=risk, tested=tested)
        lost = (0.0,) * (attempt - 1)
        nothing = (-math.inf,) * len(BETS)
        won = Evidence(at_zero=nothing, learned=nothing, looks=(*lost, 1.0 / (risk * second)))
        assert decisive(won, tested=tested)
        total += risk * second
    # What such looks contradict of sound claims over all audits, beside half of the risk of bets.
    assert total * tested <= 0.5 * (1.0 - LINKS) * RISK * (1.0 + 1e-9)
    of_links = sum(0.005 * second_risk_of_links(j, risk=0.005) for j in range(1, 60))
    assert of_links <= LINKS * RISK


def test_evidence_begins_at_even_odds_and_a_look_that_is_lost_costs_its_stake():
    assert Evidence().odds == pytest.approx(1.0)
    assert Evidence(looks=[0.0]).odds == pytest.approx(0.75)
    assert Evidence(looks=[20.0]).odds == pytest.approx(0.5 + 0.5 * (0.5 * 20 + 0.5))


@pytest.mark.slow
def test_sound_claims_are_contradicted_no_more_often_than_stated():
    """2,000 audits that go on for 30 looks, at the worst that the claim allows.

    P(ever at odds of 20 to 1) is at most .05 by Ville; more than 132 of 2,000 has probability
    below 1e-3. Every one of the 30 looks is a chance to stop.
    """
    rng, ever, final = np.random.default_rng(5), 0, []
    for _ in range(2000):
        held, highest = Evidence(), 0.0
        for _ in range(30):
            coins = rng.random(40) < least_error(ONE)
            scores = np.where(coins, -1.0, 1.0)
            part = Guesses.__new__(Guesses)
            object.__setattr__(part, "scores", scores)
            object.__setattr__(part, "included", np.ones(40, dtype=bool))
            held = after(held, part, claim=ONE, threshold=0.0)
            highest = max(highest, held.odds)
        ever += highest >= 20.0
        final.append(held.odds)
    assert ever <= 132
    # The expectation of the wealth is at most 1 at any time.
    assert np.mean(final) < 1.0 + 4.0 * np.std(final) / math.sqrt(len(final))


def test_weaker_noise_is_found_and_sooner_the_weaker_it_is():
    rng, needed = np.random.default_rng(3), []
    for mu in (1.25, 1.5, 2.0):
        held = Evidence()
        while not decisive(held, tested=3):
            held = after(held, _guesses(250, rng, mu=mu), claim=ONE, threshold=0.0)
        needed.append(held.canaries)
    assert needed == sorted(needed, reverse=True)
    assert needed[-1] <= 750
    assert needed[0] <= 10_000


def test_a_learned_threshold_finds_what_scores_off_their_place_hide():
    rng = np.random.default_rng(2)
    seen = _guesses(3000, rng, mu=2.0)
    moved = Guesses(scores=seen.scores - 3.0, included=seen.included)  # no score is above 0
    assert not decisive(after(Evidence(), moved, claim=ONE, threshold=0.0), tested=1)
    found = after(Evidence(), moved, claim=ONE, threshold=None)
    assert decisive(found, tested=1)
    assert max(found.at_zero) < 0.0
    assert found.canaries == 3000


def test_a_threshold_is_learned_from_every_fifth_canary_alone():
    # The others are guessed at it; were it chosen with them, nothing would be wrong.
    rng = np.random.default_rng(9)
    included = rng.integers(2, size=500).astype(bool)
    scores = np.where(included, 5.0, 4.0)
    scores[np.arange(500) % 5 == 0] = np.where(included[::5], 1.0, -1.0)
    found = after(Evidence(), Guesses(scores=scores, included=included), claim=ONE, threshold=None)
    assert found.learned == pytest.approx(
        after(
            Evidence(),
            Guesses(scores=np.delete(scores, np.s_[::5]), included=np.delete(included, np.s_[::5])),
            claim=ONE,
            threshold=0.0,
        ).at_zero
    )


@pytest.mark.parametrize(
    ("scores", "included", "threshold"),
    [
        ([1.0, 2.0], [False, True], 1.5),
        ([-1.0, 1.0], [False, True], 0.0),
        ([-math.inf, math.inf], [False, True], 0.0),
        ([math.inf, math.inf], [False, True], 0.0),
        ([-3.0, -2.0, -1.0], [False, True, True], -2.5),
    ],
)
def test_the_best_threshold_lies_between_scores(scores, included, threshold):
    assert best_threshold(np.array(scores), np.array(included)) == threshold


def test_what_no_audit_can_have_won_is_refused():
    with pytest.raises(ValueError, match="must hold 11 logarithms"):
        Evidence(at_zero=[0.0])
    with pytest.raises(ValueError, match="must hold 11 logarithms"):
        Evidence(learned=[math.nan] * 11)
    with pytest.raises(ValueError, match="finite and at least 0"):
        Evidence(looks=[-1.0])
    with pytest.raises(ValueError, match="tested=0"):
        decisive(Evidence(), tested=0)
    with pytest.raises(ValueError, match="threshold=inf"):
        after(Evidence(), _guesses(9, np.random.default_rng(0)), claim=ONE, threshold=math.inf)


def test_what_is_paid_for_a_canary_is_fair_at_the_least_error_rate():
    coins = np.array([True, False])
    right, wrong = (
        np.exp(
            0.5
            * np.array(
                after(
                    Evidence(), Guesses(scores=scores, included=coins), claim=ONE, threshold=0.0
                ).at_zero
            )
        )
        for scores in (np.array([1.0, -1.0]), np.array([0.0, 0.0]))  # a ratio of 0 is wrong
    )
    assert wrong == pytest.approx(1.0 - np.array(BETS))
    least = least_error(ONE)
    assert least * wrong + (1.0 - least) * right == pytest.approx(1.0, abs=1e-12)


def test_the_more_claims_are_tested_the_more_it_takes():
    held = Evidence(looks=[8000.0])  # odds of 2,001 to 1
    assert decisive(held, tested=1)
    assert not decisive(held, tested=2)
