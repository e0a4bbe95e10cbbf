"""The rounds of a record: what is promised, what it costs at most, and what is no promise."""

import itertools

import numpy as np
import pytest

from overhear.privacy.batches.patterns import EVERY, Pattern, PatternKind, pattern_of
from overhear.privacy.view.whole_run import largest_apart, largest_most


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("cyclic", "unknown"),
        ({}, "unknown"),
        ([], "unknown"),
        (None, "unknown"),
        (True, "unknown"),
        ({"cycle": 10, "apart": 2}, "unknown"),
        ({"turns": 2}, "unknown"),
        ({"cycle": 0}, "integer from 1"),
        ({"cycle": 2.0}, "integer from 1"),
        ({"apart": True}, "integer from 1"),
        ({"most": 2**40}, "integer from 1"),
        ([3, 3], "rise"),
        ([7, 3], "rise"),
        ([1.5], "numbers of rounds"),
        ([-1], "numbers of rounds"),
    ],
)
def test_what_is_no_pattern_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        pattern_of(value)


def test_a_pattern_is_read_back_as_it_was_said():
    for value in ("every", {"cycle": 4}, {"apart": 3}, {"most": 2}, [3, 7]):
        assert pattern_of(value).entry == value
    assert pattern_of({"cycle": 1}) == EVERY


def test_turns_too_rare_for_the_batches_are_refused():
    assert Pattern(PatternKind.CYCLE, 10).coin(0.1, 50) == 1.0
    with pytest.raises(ValueError, match=r"sampling_rate=0.1 or less"):
        Pattern(PatternKind.CYCLE, 10).coin(0.2, 50)


def _blocks(seed, rounds, bands):
    rng = np.random.default_rng(seed)
    C = np.tril(rng.normal(size=(rounds, rounds)))
    C = np.where(np.subtract.outer(range(rounds), range(rounds)) < bands, C, 0.0)
    return np.abs(C.T @ C)


def _worst(blocks, allowed):
    T = len(blocks)
    every = (of for k in range(T + 1) for of in itertools.combinations(range(T), k) if allowed(of))
    return max(blocks[np.ix_(of, of)].sum() for of in every)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_over_patterns_are_never_below_the_worst_pattern(seed):
    blocks, b = _blocks(seed, 9, 9), 1 + seed % 4
    own = blocks.diagonal()
    apart = _worst(blocks, lambda of: all(j - i >= b for i, j in itertools.pairwise(of)))
    assert largest_apart(blocks, own, np.arange(9.0), b) >= apart - 1e-12
    assert largest_most(blocks, own, b) >= _worst(blocks, lambda of: len(of) <= b) - 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_of_bands_no_wider_than_rounds_are_apart_the_bound_is_exact(seed):
    b = 2 + seed % 2
    blocks = _blocks(seed, 9, b)
    exact = _worst(blocks, lambda of: all(j - i >= b for i, j in itertools.pairwise(of)))
    found = largest_apart(blocks, blocks.diagonal(), np.arange(9.0), b)
    assert found == pytest.approx(exact, rel=1e-12)
