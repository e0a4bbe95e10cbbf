import math

import numpy as np
import pytest

from overhear.attacks.audit.audited import Verdict
from overhear.attacks.foreign.claimed import Claimed, claimed, parse_claim
from overhear.attacks.foreign.scores_audit import audit_scores, ideal_words
from overhear.privacy.errors import InputError

MU = 1.4
GAUSSIAN = claimed(noise=1.0 / MU, rate=1.0, rounds=1, delta=1e-5)
PAIR = Claimed(epsilon=1.5, delta=1e-5)
AUDITS, CANARIES, RISK = 300, 300, 0.05


def ratios(rng, *, count=CANARIES, noise=1.0):
    """Log-likelihood ratios of N(mu, 1) against N(0, 1), with noise of another deviation."""
    coins = rng.random(count) < 0.5
    return MU * (coins * MU + noise * rng.normal(size=count) - 0.5 * MU), coins


def answers(rng, *, epsilon, count=CANARIES):
    """Randomised response: the coin, or with probability 1 / (1 + e^epsilon) the other side."""
    coins = rng.random(count) < 0.5
    lies = rng.random(count) < 1.0 / (1.0 + math.exp(epsilon))
    return np.where(coins ^ lies, 1.0, -1.0) + 1e-3 * rng.normal(size=count), coins


SOUND = {
    "ratios, mechanism": (ratios, GAUSSIAN, True),
    "scores, mechanism": (ratios, GAUSSIAN, False),
    "ratios, pair": (lambda rng: answers(rng, epsilon=1.5), PAIR, True),
    "scores, pair": (lambda rng: answers(rng, epsilon=1.5), PAIR, False),
}


# 300 audits of 300 canaries at 95 %; a fair 5 % exceeds 5 % + 3 sigma with probability .002.
@pytest.mark.some_quick(2)
@pytest.mark.parametrize("name", SOUND)
def test_at_most_one_sound_audit_in_twenty_is_contradicted(name):
    play, claim, are_ratios = SOUND[name]
    rng = np.random.default_rng(7)
    found = [audit_scores(*play(rng), claim=claim, ratios=are_ratios) for _ in range(AUDITS)]
    rate = np.mean([one.contradicted for one in found])
    assert rate <= RISK + 3.0 * math.sqrt(RISK * (1.0 - RISK) / AUDITS)
    assert np.mean([one.epsilon > 0.0 for one in found]) > 0.5  # they could show something


@pytest.mark.parametrize("are_ratios", [True, False])
def test_missing_noise_is_found_where_ratio_0_is_blind(are_ratios):
    scores, coins = ratios(np.random.default_rng(0), count=500, noise=0.3)
    moved = scores + 40.0  # as sampled rounds move them, whose ratios take the noise for 1
    found = audit_scores(moved, coins, claim=GAUSSIAN, ratios=are_ratios)
    assert found.contradicted
    assert "middle" in found.bounds[0].name


@pytest.mark.slow
@pytest.mark.parametrize(("rare", "high"), [(0.02, -1.0), (0.05, 2.0)])
def test_rows_sorted_by_their_coins_contradict_no_more_true_claims(rare, high):
    """Of 200 audits of scores that know no coin; more than 22 with probability 1e-4 at 5 %."""
    claim, rng = claimed(noise=100.0, rate=1.0, rounds=1), np.random.default_rng(5)
    found = 0
    for _ in range(200):
        coins = np.sort(rng.random(362) < 0.5)[::-1]
        scores = np.where(rng.random(362) < rare, high, 1.0)
        if np.ptp(scores):
            found += audit_scores(scores, coins, claim=claim, ratios=True).contradicted
    assert found <= 22


def test_the_order_of_rows_with_equal_scores_tells_nothing():
    rng = np.random.default_rng(3)
    coins = np.sort(rng.random(2000) < 0.5)[::-1]  # as a file may be sorted
    scores = (rng.random(2000) < 0.5).astype(float)  # apart from the coins
    found = audit_scores(scores, coins, claim=Claimed(epsilon=0.3, delta=1e-5))
    assert not found.contradicted
    assert found.epsilon < 0.1


def test_a_perfect_audit_is_told_first_and_few_canaries_measure_nothing():
    rng = np.random.default_rng(0)
    found = audit_scores(
        *answers(rng, epsilon=5.49, count=500), claim=parse_claim(["epsilon=5.49"])
    )
    assert ideal_words(found) == (
        "A perfect audit of 500 canaries shows about 4.22 of epsilon 5.49 at delta 1e-5, whatever "
        "the mechanism, if the system leaks as randomised response does, and less of any other; "
        "5000 canaries show 5.03. A claim with its mechanism takes fewer."
    )
    assert repr(found).startswith(ideal_words(found))
    coins = np.arange(20) % 2 == 0
    few = audit_scores(rng.normal(size=20), coins, claim=Claimed(epsilon=40.0, delta=1e-5))
    assert few.verdict is Verdict.NOT_MEASURED


def test_a_sound_audit_finds_what_a_perfect_one_would():
    found = audit_scores(*ratios(np.random.default_rng(1), count=4000), claim=GAUSSIAN, ratios=True)
    assert found.ideal == pytest.approx(found.epsilon, rel=0.1)
    assert found.ideal < GAUSSIAN.epsilon


def test_where_nothing_is_claimed_the_bound_stands_by_itself():
    claim = Claimed(epsilon=math.inf, delta=1e-5)
    found = audit_scores(*answers(np.random.default_rng(0), epsilon=3.0), claim=claim)
    assert found.verdict is Verdict.NOTHING_PROVEN
    assert found.epsilon > 1.0
    assert found.ideal is None


@pytest.mark.slow
def test_guesses_from_the_middle_hold_where_canaries_disturb_each_other():
    """600 audits each: of a round that is as clear of all canaries at once, and of one by one.

    Either is of mu 0.93 and epsilon 4 for each canary. More than 47 with probability .001.
    """
    claim, rng = claimed(noise=1.0 / 0.93, rate=1.0, rounds=1), np.random.default_rng(1)
    above = [0, 0]
    for _ in range(600):
        coins = rng.random(60) < 0.5
        clear = 0.93 * abs(0.465 + rng.normal())
        right = rng.random(60) < 1.0 / (1.0 + math.exp(-clear))
        together = np.where(coins == right, clear, -clear) * (1.0 + 1e-6 * rng.normal(size=60))
        alone = 0.93 * (coins - 0.5) + rng.normal(size=60)
        for at, scores in enumerate((together, np.exp(alone))):
            above[at] += audit_scores(scores, coins, claim=claim).contradicted
    assert max(above) <= 47


@pytest.mark.parametrize("half", [30, 200])
@pytest.mark.parametrize("are_ratios", [False, True])
@pytest.mark.parametrize("order", ["sorted", "one by one", "shuffled"])
def test_labels_alone_are_audited_in_any_order(half, are_ratios, order):
    """400 equal rows cannot be told from 200 twice: they are evidence, and refused by no order."""
    rows = {
        "sorted": np.repeat([True, False], half),
        "one by one": np.arange(2 * half) % 2 == 0,
        "shuffled": np.random.default_rng(0).permutation(np.arange(2 * half) < half),
    }
    coins = rows[order]
    how = {"claim": Claimed(epsilon=1.0, delta=1e-5), "ratios": are_ratios}
    assert audit_scores(coins.astype(float), coins, **how).contradicted
    # The sound twin: labels that know nothing of the coins, a confusion table written out.
    quarters = np.repeat([0.0, 1.0, 0.0, 1.0], half // 2)
    assert not audit_scores(quarters, np.repeat([True, False], half), **how).contradicted


COINS = np.arange(100) % 2 == 0
VALUES = np.random.default_rng(0).normal(size=100)
MIXED = np.random.default_rng(0).permutation(np.tile(np.arange(50), 4))


@pytest.mark.parametrize(
    ("scores", "coins", "words"),
    [
        (VALUES[:19], COINS[:19], "19 canaries were scored; an audit takes from 20"),
        (VALUES, COINS[:99], "must both be"),
        (VALUES, np.ones(100, dtype=bool), "a fair assignment"),
        (VALUES[:20], np.ones(20, dtype=bool), "20 of 20 canaries are included"),
        (np.ones(100), COINS, "all 100 scores are 1"),
        (np.where(VALUES > 2, np.nan, VALUES), COINS, "not numbers"),
        (np.tile(VALUES[:50], 2), np.tile(COINS[:50], 2), "every canary twice"),
        (np.repeat(VALUES[:50], 2), np.repeat(COINS[:50], 2), "every canary twice"),
        (VALUES[MIXED], COINS[MIXED], "every canary 4 times"),
        (VALUES, np.full(100, 2), "must be bool"),
        (["a"] * 100, COINS, "must be .m,. numbers"),
        (VALUES, None, "included is missing"),
    ],
)
def test_what_is_no_audit_is_refused_in_a_sentence(scores, coins, words):
    with pytest.raises(InputError, match=words):
        audit_scores(scores, coins, claim=PAIR)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"claim": 3.0}, "must be a Claimed"),
        ({"claim": PAIR, "confidence": 0.2}, "must lie strictly"),
    ],
)
def test_what_is_no_claim_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        audit_scores(VALUES, COINS, **options)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["epsilom=3"], "did you mean epsilon"),
        (["epsilon"], "KEY=VALUE"),
        (["epsilon=3", "epsilon=4"], "twice"),
        (["epsilon=three"], "must be a number"),
        (["epsilon=nan"], "at least 0"),
        (["noise=1,rate=0.1"], "rounds is missing"),
        (["noise=1,rate=0.1,rounds=2.5"], "whole number"),
        (["delta=1e-5"], "nothing is claimed"),
        (["epsilon=1,noise=1,rate=1,rounds=1"], "costs epsilon 4.377"),
        (["noise=0,rate=1,rounds=1"], "nothing to contradict"),
    ],
)
def test_what_is_no_claim_is_refused_in_a_sentence(texts, words):
    with pytest.raises(InputError, match=words):
        parse_claim(texts)


def test_a_claim_may_be_rounded():
    claim = parse_claim(["epsilon=4.37", "noise=1,rate=1,rounds=1"])
    assert claim.epsilon == pytest.approx(4.377, abs=1e-3)  # never below what its mechanism costs


def test_scores_of_any_size_have_a_threshold_between_them():
    """The difference of the largest floats is none, and no warning is."""
    coins = np.random.default_rng(1).random(100) < 0.5
    found = audit_scores(np.where(coins, 1e308, -1e308), coins, claim=claimed(epsilon=0.5))
    assert found.verdict is Verdict.CONTRADICTED


@pytest.mark.parametrize("noise", ["1e-300", "1e-100", "1e-17"])
@pytest.mark.parametrize("rate", ["1", "0.1"])
def test_a_mechanism_of_next_to_no_noise_is_refused_in_a_sentence(noise, rate):
    with pytest.raises(InputError, match="the claimed mechanism has epsilon inf"):
        parse_claim([f"noise={noise},rate={rate},rounds=10"])
