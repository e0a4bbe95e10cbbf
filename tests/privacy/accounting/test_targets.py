"""The noise for what a membership inference may achieve, in place of epsilon."""

import math

import pytest
from scipy.special import ndtri

from overhear.privacy.accounting.risk import composed_risk, risk, scale_for_risk
from overhear.privacy.participation import Event, Reach, group, poisson


def test_published_settings():
    """riskcal 1.5.1 says 2.6058 for the first; it has no answer for the second in two minutes."""
    rounds = {(1.0, 0.02): 1000}
    assert scale_for_risk(rounds, advantage=0.1) == pytest.approx(2.6056, rel=2e-5)
    found = scale_for_risk(rounds, true_positive_rate=(0.2, 0.01))
    assert found == pytest.approx(0.7131, rel=1e-4)


@pytest.mark.parametrize("adjacency", ["add-or-remove-one", "replace-one"])
@pytest.mark.parametrize(
    "rounds",
    [
        {(1.0, 0.02): 300},
        {(1.0, 0.1): 50, (3.0, 0.5): 2},
        {Event(1.0, group(3, 0.05), Reach.SUM): 20},
        {Event(1.0, poisson(0.05), Reach.BALL): 20},
        {(4.0, 1.0): 9},
    ],
)
@pytest.mark.parametrize("target", [{"advantage": 0.2}, {"true_positive_rate": (0.3, 0.05)}])
def test_the_noise_meets_the_target_and_a_little_less_does_not(rounds, adjacency, target):
    scale = scale_for_risk(rounds, adjacency=adjacency, **target)

    def reached(factor):
        scaled = {
            key._replace(noise_multiplier=factor * key.noise_multiplier)
            if isinstance(key, Event)
            else (factor * key[0], key[1]): count
            for key, count in rounds.items()
        }
        found = composed_risk(scaled, adjacency=adjacency, false_positive_rates=(0.05,))
        if "advantage" in target:
            return found.advantage - target["advantage"]
        return found.true_positive_rates[0][1] - 0.3

    assert reached(scale) <= 1e-12
    assert reached(scale * (1 - 1e-4)) > 0


def test_full_batches_follow_from_the_normal_quantiles():
    mu = 2 * ndtri(0.55)
    assert scale_for_risk({(1.0, 1.0): 4}, advantage=0.1) == pytest.approx(2 / mu, rel=1e-5)
    mu = ndtri(0.2) - ndtri(0.01)
    found = scale_for_risk({(1.0, 1.0): 4}, true_positive_rate=(0.2, 0.01))
    assert found == pytest.approx(2 / mu, rel=1e-5)


def test_the_inverse_gives_back_the_risk_of_a_run():
    of = {"sampling_rate": 0.01, "rounds": 1000}
    known = risk(noise_multiplier=1.0, **of)
    found = scale_for_risk({(1.0, 0.01): 1000}, advantage=known.advantage)
    assert found == pytest.approx(1.0, rel=1e-4)


def test_what_sampling_alone_meets_needs_no_noise():
    # A record is in any of three batches with probability .003.
    assert scale_for_risk({(1.0, 0.001): 3}, advantage=0.01) == 0.0
    assert scale_for_risk({(0.0, 0.0): 3}, advantage=0.01) == 0.0


@pytest.mark.parametrize(
    ("rounds", "target", "words"),
    [
        ({(1.0, 0.1): 1}, {}, "exactly one of them"),
        ({(1.0, 0.1): 1}, {"advantage": 0.1, "true_positive_rate": (0.2, 0.1)}, "exactly one"),
        ({(1.0, 0.1): 1}, {"advantage": 0.0}, "advantage=0.0 must lie strictly"),
        ({(1.0, 0.1): 1}, {"advantage": math.nan}, "advantage=nan must lie strictly"),
        ({(1.0, 0.1): 1}, {"true_positive_rate": (0.1, 0.1)}, "a blind guess has"),
        ({(1.0, 0.1): 1}, {"true_positive_rate": (0.1, 0.0)}, "strictly between 0 and 1"),
        ({(0.0, 0.1): 1}, {"advantage": 0.1}, "stays 0 at every scale"),
    ],
)
def test_a_target_that_is_none_is_refused(rounds, target, words):
    with pytest.raises(ValueError, match=words):
        scale_for_risk(rounds, **target)


@pytest.mark.slow
def test_rates_below_the_rounding_of_1_add_up_over_the_rounds():
    often = {(1.0, 1e-17): 1_000_000}  # a record is in one of the batches with 1e-11
    assert scale_for_risk(often, advantage=1e-13) > 0.0
    assert scale_for_risk(often, advantage=1e-10) == 0.0


def test_rounds_that_release_nothing_need_no_noise():
    assert scale_for_risk({(math.inf, 0.5): 3}, advantage=0.1) == 0.0
