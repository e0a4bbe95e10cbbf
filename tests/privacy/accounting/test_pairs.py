"""The pairs of hypotheses against adversaries that choose every move, and other libraries.

The last release is integrated in closed form, earlier ones on a grid in whose cells the choice is
constant; in every cell the best of all candidate moves is taken. So each figure is that of the best
adaptive adversary of its class on the grid, and no sampling error is in it.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from overhear.privacy.accounting.accountant import composed_delta, composed_epsilon, delta, epsilon
from overhear.privacy.accounting.request import Adjacency
from overhear.privacy.participation import (
    Event,
    ParticipationPattern,
    Reach,
    always,
    cohort,
    group,
    poisson,
)

CELLS = 1601


def positive_part(at_minus, at_zero, at_plus, b):
    """Integral of (w_- N(-b) + w_0 N(0) + w_+ N(b))_+ for arrays of signed weights."""
    # In t = e^(b x) the sign is that of the quadratic p t^2 + z t + m.
    p, z, m = at_plus * math.exp(-b * b / 2), at_zero, at_minus * math.exp(-b * b / 2)
    with np.errstate(all="ignore"):
        root = np.sqrt(np.maximum(z * z - 4 * p * m, 0.0))
        both = np.where(
            p == 0.0,
            np.stack([-m / z, -m / z]),
            np.sort(np.stack([(-z - root) / (2 * p), (-z + root) / (2 * p)]), axis=0),
        )
        cuts = np.log(np.where(both > 0, both, 1e-300)) / b
    cuts = np.where(np.isfinite(cuts), cuts, -1e3)
    real = (z * z >= 4 * p * m) | (p == 0.0)
    low, high = np.where(real, cuts[0], -1e3), np.where(real, cuts[1], -1e3)

    def between(start, end):
        mass = [
            w * (ndtr(end - shift) - ndtr(start - shift))
            for w, shift in ((at_minus, -b), (at_zero, 0.0), (at_plus, b))
        ]
        return np.maximum(sum(mass), 0.0)

    far = np.full_like(low, 1e3)
    return between(-far, low) + between(low, high) + between(high, far)


def best_adaptive(q, a, b1, b2, starts, seconds):
    """Largest H_a of two releases over first moves and, in each cell, over second moves.

    A move is (where the batch without the unit stands, with it, with its replacement).
    """
    o = np.linspace(-9.0, 9.0, CELLS)
    width = o[1] - o[0]
    density = {s: np.exp(-0.5 * (o - s * b1) ** 2) / math.sqrt(2 * math.pi) for s in (-1, 0, 1)}
    best = 0.0
    for first in starts:
        weights = (
            (1 - q) * (1 - a) * density[first[0]],
            q * density[first[1]],
            -a * q * density[first[2]],
        )
        found = np.zeros(CELLS)
        for second in seconds:
            at = {-1: np.zeros(CELLS), 0: np.zeros(CELLS), 1: np.zeros(CELLS)}
            for where, weight in zip(second, weights, strict=True):
                at[where] = at[where] + weight
            found = np.maximum(found, positive_part(at[-1], at[0], at[1], b2))
        best = max(best, float(found.sum() * width))
    return best


SUMS = [(0, v, u) for v, u in itertools.product((-1, 0, 1), repeat=2)]
BALLS = list(itertools.product((-1, 1), repeat=3))
SETTINGS = [
    (q, b1, b2, e)
    for q, (b1, b2), e in itertools.product((0.02, 0.6), ((0.6, 0.8), (1.2, 0.3)), (0.0, 0.5, 2.0))
]


def of_pair(q, j, e, **how):
    return delta(noise_multiplier=1 / j, epsilon=e, rounds=1, sampling_rate=q, **how)


@pytest.mark.parametrize(("q", "b1", "b2", "e"), SETTINGS)
def test_no_adaptive_adversary_of_sums_passes_the_pair_and_the_aligned_one_meets_it(q, b1, b2, e):
    found = best_adaptive(q, math.exp(e), b1, b2, SUMS, SUMS)
    bound = of_pair(q, math.hypot(b1, b2), e, adjacency="replace-one")
    assert found <= bound * (1 + 2e-5) + 1e-12
    assert found >= bound * (1 - 1e-3) - 1e-9


@pytest.mark.parametrize(("q", "b1", "b2", "e"), SETTINGS)
def test_no_adaptive_adversary_of_balls_passes_the_profile(q, b1, b2, e):
    found = best_adaptive(q, math.exp(e), b1, b2, BALLS, BALLS)
    bound = of_pair(q, math.hypot(b1, b2), e, adjacency="replace-one", reach="ball")
    assert found <= bound * (1 + 2e-5) + 1e-12
    assert found >= bound * (1 - 1e-3) - 1e-9


def test_the_search_finds_wrong_claims():
    """A ball by the pair of a sum, and a replaced record by that of an added one."""
    passed = 0
    for q, b1, b2, e in SETTINGS:
        j, a = math.hypot(b1, b2), math.exp(e)
        ball = best_adaptive(q, a, b1, b2, BALLS, BALLS)
        passed += ball > 1.01 * of_pair(q, j, e, adjacency="replace-one")
        replaced = best_adaptive(q, a, b1, b2, SUMS, SUMS)
        if q < 0.6:
            assert replaced > of_pair(q, j, e)
    assert passed >= 6


@pytest.mark.parametrize("e", [0.2, 1.0])
def test_two_batches_that_interleave_cost_no_more_than_one_after_the_other(e):
    """Batch a, then b, then a again: each move of b may depend on a's first release."""
    q, a, b = 0.3, math.exp(e), 0.7
    o = np.linspace(-7.5, 7.5, 161)
    width = o[1] - o[0]
    density = {s: np.exp(-0.5 * (o - s * b) ** 2) / math.sqrt(2 * math.pi) for s in (-1, 0, 1)}
    sides = []
    # A coin for each batch. In every cell of the first release the best moves of b, and in every
    # cell of both the best of the last release.
    for first in ((1, -1), (1, 0)):
        of_second = []
        for second in ((1, -1), (-1, 1), (0, 1), (1, 0)):
            best = np.zeros((o.size, o.size))
            for third in ((1, -1), (-1, 1)):
                at = {-1: np.zeros_like(best), 0: np.zeros_like(best), 1: np.zeros_like(best)}
                for sign, side in ((1.0, 0), (-a, 1)):
                    of_b = (1 - q) * density[0] + q * density[second[side]]
                    at[0] += sign * (1 - q) * np.outer(density[0], of_b)
                    at[third[side]] += sign * q * np.outer(density[first[side]], of_b)
                best = np.maximum(best, positive_part(at[-1], at[0], at[1], b))
            of_second.append(best.sum(axis=1))
        sides.append(float(np.max(of_second, axis=0).sum() * width**2))
    rounds = {Event(1 / (b * math.sqrt(2)), poisson(q)): 1, Event(1 / b, poisson(q)): 1}
    bound = composed_delta(rounds, epsilon=e, adjacency="replace-one")
    assert max(sides) <= bound * (1 + 1e-4)
    assert max(sides) >= 0.995 * bound


# Figures of two accountants of others' making: Laplace inversion of the exact densities, and
# dp-accounting's mixture of Gaussians.
@pytest.mark.parametrize(
    ("multiplier", "rate", "how", "expected"),
    [
        (2.512 / math.sqrt(3), 0.02, {"adjacency": "replace-one"}, 3.798754),
        (2.512 / math.sqrt(3), 0.02, {"adjacency": "replace-one", "reach": "ball"}, 9.810228),
        (2.0, 0.02, {"adjacency": "replace-one"}, 2.603046),
        (2.0, 0.02, {"adjacency": "replace-one", "contributions": 2}, 2.603046),
        (2.0, 0.02, {"adjacency": "replace-one", "reach": "ball"}, 4.723421),
        (1.0, 0.02, {"adjacency": "replace-one"}, 6.239719),  # a mean as a sum of twice its norm
        (2.0, 0.02, {}, 1.329675),
        (2.0, 0.02, {"reach": "ball"}, 3.8991),
        (1.0, 0.01, {"adjacency": "replace-one"}, 2.843440),
        (1.0, 0.01, {"adjacency": "replace-one", "reach": "ball"}, 14.820667),
        (2.0, 0.02, {"adjacency": "zero-out", "reach": "ball"}, 4.723421),
        (2.0, 0.02, {"adjacency": "zero-out"}, 1.329675),
    ],
)
def test_a_thousand_rounds(multiplier, rate, how, expected):
    found = epsilon(noise_multiplier=multiplier, delta=1e-5, rounds=1000, sampling_rate=rate, **how)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found >= expected * (1 - 2e-5)


@pytest.mark.parametrize(
    ("multiplier", "rate", "adjacency", "expected"),
    [
        (2.0, 0.02, "add-or-remove-one", {1: 1.3297, 2: 2.8869, 3: 4.5969, 5: 8.4253, 10: 20.211}),
        (2.0, 0.02, "replace-one", {1: 2.6031, 2: 5.7639, 3: 9.352, 5: 17.713, 10: 45.08}),
        (1.0, 0.01, "add-or-remove-one", {1: 1.8283, 2: 3.9791, 3: 6.3430, 5: 11.638, 10: 27.90}),
    ],
)
def test_several_records_of_one_person(multiplier, rate, adjacency, expected):
    for records, figure in expected.items():
        rounds = {Event(multiplier, group(records, rate)): 1000}
        found = composed_epsilon(rounds, delta=1e-5, adjacency=adjacency)
        assert found == pytest.approx(figure, rel=6e-5)


@pytest.mark.parametrize("records", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_dp_accounting_says_the_same_of_several_records(records):
    from dp_accounting.pld import privacy_loss_distribution as pld

    moves = group(records, 0.02)
    one = pld.from_mixture_gaussian_mechanism(
        2.0, list(moves.multiples), list(moves.probabilities), value_discretization_interval=1e-3
    )
    theirs = one.self_compose(1000).get_epsilon_for_delta(1e-5)
    assert composed_epsilon({Event(2.0, moves): 1000}, delta=1e-5) == pytest.approx(
        theirs, rel=1e-3
    )


def test_k_in_one_bound_is_far_dearer_and_one_rate_for_all_is_too_cheap():
    """Two shortcuts: k records as one of k times the norm, and k q as the rate of one."""
    exact = composed_epsilon({Event(1.0, group(2, 0.01)): 1000}, delta=1e-5)
    whole = epsilon(noise_multiplier=0.5, delta=1e-5, rounds=1000, sampling_rate=0.01)
    cheap = epsilon(noise_multiplier=1.0, delta=1e-5, rounds=1000, sampling_rate=0.02)
    assert whole == pytest.approx(13.36, abs=5e-3)
    assert cheap < exact < whole


@pytest.mark.parametrize(
    ("rate", "draws", "multiplier", "expected", "too_small"),
    [(0.1, 5, 2.0, 0.2640, 0.107), (0.1, 20, 2.0, 1.1222, 0.225), (0.5, 3, 2.0, 0.8836, 0.475)],
)
def test_batches_within_a_cohort_are_not_one_rate(rate, draws, multiplier, expected, too_small):
    rounds = {Event(multiplier, cohort(rate, draws, 0.02)): 200}
    assert composed_epsilon(rounds, delta=1e-5) == pytest.approx(expected, rel=3e-4)
    apart = epsilon(
        noise_multiplier=multiplier, delta=1e-5, rounds=200 * draws, sampling_rate=rate * 0.02
    )
    assert apart == pytest.approx(too_small, abs=6e-4)


@pytest.mark.parametrize(
    ("moves", "multiplier", "coin", "public", "secret"),
    [
        (poisson(0.02), 2.0, 0.5, 0.9223, 0.6220),
        (poisson(0.02), 2.0, 0.1, 0.4087, 0.1073),
        (always(), 20.0, 0.5, 4.997, 3.348),
        (always(), 20.0, 0.1, 2.029, 0.563),
        (always(), 20.0, 0.01, 0.630, 0.045),
    ],
)
def test_a_coin_that_everybody_sees_saves_less_than_a_secret_one(
    moves, multiplier, coin, public, secret
):
    lottery = {Event(multiplier, moves, coin=coin): 1000}
    assert composed_epsilon(lottery, delta=1e-5) == pytest.approx(public, abs=6e-4)
    hidden = {Event(multiplier, poisson(coin * moves.rate)): 1000}
    assert composed_epsilon(hidden, delta=1e-5) == pytest.approx(secret, abs=6e-4)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("reach", list(Reach))
def test_one_record_is_the_group_of_one_and_a_full_batch_the_closed_form(adjacency, reach):
    how = {"delta": 1e-5, "adjacency": adjacency}
    one = {Event(2.0, group(1, 0.05), reach): 30}
    assert composed_epsilon(one, **how) == composed_epsilon(
        {Event(2.0, poisson(0.05), reach): 30}, **how
    )
    nearly = {Event(9.0, poisson(1 - 1e-9), reach): 4}
    full = {Event(9.0, always(), reach): 4}
    assert composed_epsilon(nearly, **how) == pytest.approx(composed_epsilon(full, **how), rel=1e-4)


def test_rounds_of_either_reach_compose_each_by_its_own_pair():
    sums, balls = Event(2.0, poisson(0.02)), Event(2.0, poisson(0.02), Reach.BALL)
    how = {"delta": 1e-5, "adjacency": "replace-one"}
    mixed = composed_epsilon({sums: 500, balls: 500}, **how)
    assert composed_epsilon({sums: 1000}, **how) < mixed < composed_epsilon({balls: 1000}, **how)


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        (ParticipationPattern((0.0, 1.0), (0.5, 0.6)), "must sum to 1"),
        (ParticipationPattern((1.0, 0.0), (0.5, 0.5)), "must rise"),
        (ParticipationPattern((0.0,), (0.5, 0.5)), "give one for each"),
        (ParticipationPattern((-1.0, 1.0), (0.5, 0.5)), "at least 0"),
        (ParticipationPattern((0.0, math.inf), (0.5, 0.5)), "finite"),
        (ParticipationPattern((0.0, 1.0), (math.nan, 0.5)), "finite"),
    ],
)
def test_moves_that_are_none_are_refused(moves, said):
    with pytest.raises(ValueError, match=said):
        composed_epsilon({Event(1.0, moves): 1}, delta=1e-5)


@pytest.mark.parametrize("records", [0, -1, 1001, 10**12])
def test_records_beyond_reason_are_refused(records):
    with pytest.raises(ValueError, match=f"records_per_person={records} must lie in"):
        group(records, 0.1)


@pytest.mark.parametrize("records", [True, 1.5, "3"])
def test_records_that_are_no_count_are_refused(records):
    with pytest.raises(TypeError, match="must be an integer"):
        group(records, 0.1)


@pytest.mark.parametrize(("d", "found"), [(1e-8, 169.380), (1e-5, 152.744)])
def test_records_that_are_almost_always_in_the_batch_cost_what_a_fine_grid_says(d, found):
    """The others are one in 10^18: less than the rounding error of all that moved."""
    events = {Event(0.5, group(2, 1 - 1e-9)): 3}
    ours = composed_epsilon(events, delta=d, adjacency="replace-one")
    assert found < ours < found + 0.05


@pytest.mark.filterwarnings("error")
def test_many_records_that_are_almost_always_in_the_batch_have_a_figure():
    events = {Event(10.0, group(1000, 1 - 1e-12)): 10}
    everybody = epsilon(noise_multiplier=0.01, rounds=10, sampling_rate=1.0, delta=1e-5)
    ours = composed_epsilon(events, delta=1e-5)
    assert 0.99 * everybody < ours < 1.001 * everybody


def test_batches_of_a_cohort_share_no_ball():
    moves = cohort(0.5, 4, 1.0)  # in the cohort four releases: 2 J, as four events say
    for adjacency in Adjacency:
        with pytest.raises(ValueError, match="an event of its own for each batch"):
            composed_epsilon({Event(1.0, moves, Reach.BALL): 1}, delta=1e-5, adjacency=adjacency)
    several = group(3, 0.1)
    ball = Event(1.0, several.as_ball, Reach.BALL)
    assert several.as_ball == poisson(several.rate)
    assert composed_epsilon({ball: 5}, delta=1e-5) > 0
