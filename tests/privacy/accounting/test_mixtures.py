"""Facts about rounds that are composed as mixtures of a few."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from overhear.privacy.accounting.dominating_pairs import Pair, Round, discretised_pair, mixtures
from overhear.privacy.accounting.privacy_loss import compose, tilt_for_delta
from overhear.privacy.guarantee import Statement
from overhear.privacy.noise.schedule import Schedule, calibrated_schedule, scheduled_epsilon
from overhear.privacy.participation import group, poisson

EPSILONS = (-1.0, -0.02, 0.0, 1e-3, 0.3, 4.0)


def hockey_stick(round_: Round, epsilon: float) -> float:
    """One round's divergence from normal tails beyond the noise at which the loss is epsilon."""
    d, q, a = 1.0 / round_.noise_multiplier, round_.moves.rate, math.exp(epsilon)
    pair = round_.pair

    def mixed(z: float, shift: float, side: float) -> float:
        return float((1 - q) * ndtr(side * z) + q * ndtr(side * (z - shift)))

    if pair is Pair.REPLACE:  # u = e^(d z) solves u^2 + c u = a
        c = (1 - q) * (1 - a) * math.exp(0.5 * d * d) / q
        z = math.log(0.5 * (math.sqrt(c * c + 4 * a) - c)) / d
        return mixed(z, d, -1.0) - a * mixed(z, -d, -1.0)
    odds = (a if pair is Pair.REMOVE else 1 / a) - 1 + q
    if odds <= 0:
        return 1 - a if pair is Pair.REMOVE else 0.0
    z = 0.5 * d + math.log(odds / q) / d
    if pair is Pair.REMOVE:
        return mixed(z, d, -1.0) - a * float(ndtr(-z))
    return float(ndtr(z)) - a * mixed(z, d, 1.0)


def many(pair: Pair, count: int = 70) -> list[Round]:
    generator = np.random.default_rng(5)
    return [
        Round(noise_multiplier=float(m), moves=poisson(float(q)), pair=pair, count=1)
        for m, q in zip(
            generator.uniform(0.6, 0.65, count), generator.uniform(0.1, 0.108, count), strict=True
        )
    ]


@pytest.mark.parametrize("pair", [Pair.REMOVE, Pair.ADD, Pair.REPLACE])
def test_a_round_is_never_worse_than_its_lottery(pair):
    rounds = many(pair)
    corners, cells = mixtures(rounds)
    assert sum(cell.counts.size for cell in cells) == len(rounds)
    assert max(len(cell.corners) for cell in cells) == 4
    by_corner = {k: [hockey_stick(c, e) for e in EPSILONS] for k, c in enumerate(corners)}
    found = np.concatenate(
        [cell.weights @ np.array([by_corner[k] for k in cell.corners]) for cell in cells]
    )
    true = np.array([[hockey_stick(r, e) for e in EPSILONS] for r in rounds])
    # Cells list rounds in another order, so compare what belongs together by the nearest at 0.
    order = [int(np.abs(true[:, 2] - row[2]).argmin()) for row in found]
    assert sorted(order) == list(range(len(rounds)))
    assert (found >= true[order] * (1 - 1e-9) - 1e-14).all()
    assert found == pytest.approx(true[order], rel=2e-2, abs=1e-9)


def test_the_lottery_in_the_multiplier_alone_would_not_do():
    # A chord in 1/multiplier lies below the divergence at epsilon 0, which is Phi of half of it.
    ends, middle = (1.0, 3.0), 2.0
    at_zero = [
        hockey_stick(
            Round(noise_multiplier=1 / d, moves=poisson(1.0), pair=Pair.REMOVE, count=1), 0.0
        )
        for d in (*ends, middle)
    ]
    assert 0.5 * (at_zero[0] + at_zero[1]) < at_zero[2] - 0.05


@pytest.mark.slow  # quick: 100 such rounds in test_second_methods.py, replaced in test_estimates.py
@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=[] if pair is Pair.REPLACE else [pytest.mark.slow]) for pair in Pair],
)
@pytest.mark.parametrize("delta", [pytest.param(1e-3, marks=pytest.mark.slow), 1e-9])
def test_mixtures_compose_from_above_and_close_to_round_by_round(pair, delta):
    rounds = [
        Round(
            noise_multiplier=float(m),
            moves=poisson(0.02 if t % 2 else 0.05),
            pair=pair,
            count=1 + t % 3,
        )
        for t, m in enumerate(np.geomspace(1.0, 1.5, 150))
    ]
    exact = [discretised_pair(r, missing=1e-20) for r in rounds]
    tilt = tilt_for_delta(exact, delta)
    corners, cells = mixtures(rounds)
    pairs = [discretised_pair(r, missing=1e-20) for r in corners]
    one_by_one = compose(exact, tilt=tilt).epsilon(delta)
    mixed = compose(pairs, tilt=tilt, cells=cells).epsilon(delta)
    # Of blank ones each counts as the dearest of those near it.
    above = 1e-2 if pair in (Pair.BLANK, Pair.UNBLANK) else 1e-3
    assert one_by_one * (1 - 1e-5) <= mixed <= one_by_one * (1 + above)


def test_few_corners_stand_for_many_rounds_and_none_for_scattered_ones():
    spread = [
        Round(noise_multiplier=1 + t / 500, moves=poisson(0.1), pair=Pair.REMOVE, count=2)
        for t in range(500)
    ]
    corners, cells = mixtures(spread)
    assert len(corners) < 100
    assert sum(corner.count for corner in corners) == 1000
    assert sum(cell.counts.sum() for cell in cells) == 1000
    apart = [
        Round(noise_multiplier=1.5**t, moves=poisson(0.1), pair=Pair.REMOVE, count=1)
        for t in range(80)
    ]
    assert mixtures(apart) is None


@pytest.mark.parametrize("multiplier", [0.0101, 1e8])
def test_lotteries_keep_their_digits_at_extreme_noise(multiplier):
    rounds = [
        Round(
            noise_multiplier=multiplier * (1 + t / 10_000),
            moves=poisson(0.1),
            pair=Pair.REPLACE,
            count=1,
        )
        for t in range(100)
    ]
    _, cells = mixtures(rounds)
    weights = np.concatenate([cell.weights for cell in cells])
    assert weights.sum(axis=1) == pytest.approx(1.0)
    assert len(np.unique(weights)) > 40


@pytest.mark.parametrize("growth", [2.0, 4.0])
@pytest.mark.slow
def test_a_corner_far_below_the_others_keeps_its_moment(growth):
    """Warnings are errors here: the moment of a corner with all the weight must not be log 0."""
    rate = 640 / 60_000
    plan = Schedule(rounds=100, sampling_rate=rate, clip_decay=1.0, budget_growth=growth)
    found = calibrated_schedule(plan, epsilon=3.0, statement=Statement(delta=1e-5))
    assert 0.99 * 3.0 < scheduled_epsilon(plan, found, statement=Statement(delta=1e-5)) <= 3.0


def test_rounds_of_several_records_count_as_the_loudest_near_them():
    rounds = [
        Round(noise_multiplier=2.0 + t / 1000, moves=group(3, 0.02), pair=Pair.REMOVE, count=2)
        for t in range(200)
    ]
    pairs = [discretised_pair(r, missing=1e-20) for r in rounds]
    tilt = tilt_for_delta(pairs, 1e-5)
    corners, cells = mixtures(rounds)
    assert len(corners) < 20
    assert sum(cell.counts.sum() for cell in cells) == 400
    exact = compose(pairs, tilt=tilt).epsilon(1e-5)
    loud = [discretised_pair(r, missing=1e-20) for r in corners]
    mixed = compose(loud, tilt=tilt, cells=cells).epsilon(1e-5)
    assert exact * (1 - 1e-5) <= mixed <= exact * 1.03
