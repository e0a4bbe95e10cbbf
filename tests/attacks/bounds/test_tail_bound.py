import math

import numpy as np
import pytest

from overhear.attacks.bounds.lower_bounds import Guesses
from overhear.attacks.bounds.mechanism import Claim, epsilon
from tests.attacks.bounds.simulated_scores import simulated_scores
from tests.attacks.bounds.tail_bound import tail


def _guesses(claim: Claim, canaries: int, seed: int) -> Guesses:
    rng = np.random.default_rng(seed)
    included = rng.integers(2, size=canaries).astype(bool)
    return Guesses(scores=simulated_scores(claim, included, generator=rng), included=included)


def test_the_bound_is_above_the_truth_as_seldom_as_it_says():
    """400 audits of 500 canaries at a threshold where the bound is tight for pure epsilon.

    Randomised response at epsilon 1: nominal 5 %; more than 36 of 400 has probability 3e-4.
    """
    rng, above = np.random.default_rng(1), 0
    keep = math.e / (1 + math.e)
    for _ in range(400):
        included = rng.integers(2, size=500).astype(bool)
        said = np.where(rng.random(500) < keep, included, ~included)
        found = tail(
            Guesses(scores=np.where(said, 1.0, -1.0), included=included),
            threshold=0.0,
            delta=1e-12,
            confidence=0.95,
        )
        above += found.epsilon > 1.0
    assert 0 < above <= 36


def test_a_tail_says_more_than_the_middle_of_seldom_sampled_rounds():
    claim = Claim(rounds={(0.44, 1 / 500): 100})
    guesses = _guesses(claim, 20_000, seed=2)
    far, middle = (
        tail(guesses, threshold=t, delta=1e-4, confidence=0.95).epsilon for t in (1.5, 0.0)
    )
    assert far > 2 * middle > 0
    assert far < epsilon(claim, 1e-4)


def test_nothing_in_the_tail_bounds_nothing():
    guesses = _guesses(Claim(rounds={(2.0, 1.0): 1}), 100, seed=3)
    assert tail(guesses, threshold=50.0, delta=1e-5, confidence=0.95).epsilon == 0.0


@pytest.mark.parametrize(
    ("how", "words"), [({"threshold": math.inf}, "threshold=inf"), ({"delta": 2.0}, "delta=2.0")]
)
def test_values_outside_their_range_are_refused(how, words):
    guesses = _guesses(Claim(rounds={(2.0, 1.0): 1}), 100, seed=3)
    fixed = {"threshold": 1.0, "delta": 1e-5, "confidence": 0.95}
    with pytest.raises(ValueError, match=words):
        tail(guesses, **(fixed | how))
