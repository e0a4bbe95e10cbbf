"""Batches that are not Poisson: printed figures, second methods, and shortcuts that say too little.

Golden values are those of a reference accountant beside this one, of 1,000 rounds each.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from overhear.privacy import composed_delta, composed_epsilon, poisson
from overhear.privacy.accounting.gaussian import delta_from_mu, epsilon_from_mu
from overhear.privacy.batches.patterns import least_epsilon_of_shuffled
from overhear.privacy.batches.sampling import (
    Drawing,
    EpochRound,
    Scheme,
    drawings,
    epoch_events,
    largest_for,
    overflow,
)
from overhear.privacy.errors import InputError
from overhear.privacy.participation import Event, Reach, always

CASES = {  # noise multiplier, rate, delta
    "small": (1.0, 0.01, 1e-5),
    "usual": (2.0, 0.02, 1e-5),
    "rare": (0.8, 0.001, 1e-6),
}
ROUNDS = 1000
ADDED, BLANK, REPLACED = "add-or-remove-one", "zero-out", "replace-one"


def fixed(case, adjacency, *, rounds=ROUNDS):
    z, q, delta = CASES[case]
    events = {Event(z, poisson(q), Reach.PLACE): rounds}
    return composed_epsilon(events, delta=delta, adjacency=adjacency)


@pytest.mark.parametrize(
    ("case", "adjacency", "expected"),
    [
        ("small", REPLACED, 14.821),
        ("usual", REPLACED, 4.7235),
        ("rare", REPLACED, 8.7500),
        ("small", ADDED, 13.361),
        ("usual", ADDED, 3.8991),
        ("rare", ADDED, 8.6307),
        ("small", BLANK, 10.499),
        ("usual", BLANK, 2.6166),
        ("rare", BLANK, 7.4444),
    ],
)
def test_batches_of_a_fixed_size_cost_what_is_printed(case, adjacency, expected):
    assert fixed(case, adjacency) == pytest.approx(expected, rel=6e-5)


@pytest.mark.parametrize(
    ("z", "q", "records", "largest", "expected"),
    [
        (1.0, 0.01, 60_000, 677, 3.2552),
        (1.0, 0.01, 60_000, 742, 1.8283),
        (1.0, 0.01, 60_000, 779, 1.8283),
        (2.0, 0.02, 500, 21, 1.3388),
        (2.0, 0.02, 500, 32, 1.3297),
    ],
)
def test_batches_that_are_cut_cost_what_is_printed(z, q, records, largest, expected):
    of = Drawing(Scheme.TRUNCATED, records, largest, records)
    event = of.event(z, Reach.SUM, q, added=False)
    assert composed_epsilon({event: ROUNDS}, delta=1e-5) == pytest.approx(expected, rel=6e-5)


@pytest.mark.parametrize(
    ("case", "blank", "replaced"),
    [("small", 17.857, 46.211), ("usual", 11.480, 28.373), ("rare", 6.3121, 14.451)],
)
def test_shuffled_batches_cost_what_is_printed(case, blank, replaced):
    z, q, delta = CASES[case]
    rounds = [EpochRound(z, Reach.SUM, 1, ROUNDS)]
    for adjacency, expected in ((BLANK, blank), (REPLACED, replaced)):
        events = epoch_events(rounds, round(1 / q), replaced=adjacency == REPLACED)
        found = composed_epsilon(events, delta=delta, adjacency=adjacency)
        assert found == pytest.approx(expected, rel=6e-5)


@pytest.mark.parametrize(
    ("case", "blank", "replaced"),
    [("small", 7.061, 8.578), ("usual", 1.3655, 1.9176), ("rare", 6.0446, 7.5436)],
)
def test_shuffled_batches_cost_at_least_what_is_printed(case, blank, replaced):
    z, q, delta = CASES[case]
    for replace, expected in ((False, blank), (True, replaced)):
        found = least_epsilon_of_shuffled(
            z, batches=round(1 / q), epochs=round(q * ROUNDS), delta=delta, replace=replace
        )
        assert found == pytest.approx(expected, rel=1e-4)


def test_the_figure_of_poisson_batches_is_none_of_shuffled_ones():
    poisson_figure = composed_epsilon({(0.8, 0.001): ROUNDS}, delta=1e-6)
    least = least_epsilon_of_shuffled(0.8, batches=1000, epochs=1, delta=1e-6)
    assert poisson_figure == pytest.approx(0.46771, rel=1e-4)
    assert least > 12 * poisson_figure


def test_a_replaced_client_of_a_fixed_cohort_is_not_covered_at_the_undoubled_multiplier():
    # Sampled without replacement at z in place of z / 2: what is told of a real pair of data sets,
    # all others at -C and one at +C or -C, is the pair "remove" at twice the distance.
    from dp_accounting import dp_event, rdp

    event = dp_event.SampledWithoutReplacementDpEvent(10_000, 100, dp_event.GaussianDpEvent(1.0))
    from dp_accounting import NeighboringRelation

    told = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    printed = told.compose(event, ROUNDS).get_epsilon(1e-5)
    real = composed_epsilon({(0.5, 0.01): ROUNDS}, delta=1e-5)
    assert printed == pytest.approx(3.58, abs=0.01)
    assert real == pytest.approx(13.361, rel=1e-4)
    assert fixed("small", REPLACED) > real > 3 * printed


@pytest.mark.parametrize(("case", "expected"), [("small", 20.99), ("usual", 7.87), ("rare", 13.46)])
def test_renyi_divergences_of_sampling_without_replacement_lie_above(case, expected):
    from dp_accounting import NeighboringRelation, dp_event, rdp

    z, q, delta = CASES[case]
    records = 100_000
    event = dp_event.SampledWithoutReplacementDpEvent(
        records, round(q * records), dp_event.GaussianDpEvent(z / 2)
    )
    by = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    found = by.compose(event, ROUNDS).get_epsilon(delta)
    assert found == pytest.approx(expected, rel=1e-3)
    assert fixed(case, REPLACED) < found


@pytest.mark.slow
@pytest.mark.parametrize(("largest", "expected"), [(677, 3.2673)])
def test_truncated_batches_of_another_library_agree(largest, expected):
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant

    event = dp_event.TruncatedSubsampledGaussianDpEvent(
        dataset_size=60_000, sampling_probability=0.01, truncated_batch_size=largest,
        noise_multiplier=1.0,
    )  # fmt: skip
    other = pld_privacy_accountant.PLDAccountant().compose(event, ROUNDS).get_epsilon(1e-5)
    ours = Drawing(Scheme.TRUNCATED, 60_000, largest, 60_000).event(
        1.0, Reach.SUM, 0.01, added=False
    )
    assert other == pytest.approx(expected, rel=1e-3)
    assert composed_epsilon({ours: ROUNDS}, delta=1e-5) == pytest.approx(other, rel=5e-3)


# One round, against exact enumeration of its batches.

SCALE = np.linspace(-14.0, 14.0, 28_001)
STEP = SCALE[1] - SCALE[0]


def mixture(means, z):
    """Density of equally likely means with noise z."""
    return np.mean([norm.pdf(SCALE, m, z) for m in means], axis=0)


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * STEP)


def sums_of(values, sets):
    return [sum(values[i] for i in chosen) for chosen in sets]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("adjacency", [ADDED, BLANK, REPLACED])
def test_no_data_set_of_four_records_tells_more_of_a_fixed_batch(adjacency, epsilon):
    # All sets of 2 of 4 records, the last of which is the one that is meant; the others are every
    # choice of -1, 0, 1 and of half of it.
    z, records, size = 1.3, 4, 2
    event = Event(z, poisson(size / records), Reach.PLACE)
    bound = composed_delta({event: 1}, epsilon=epsilon, adjacency=adjacency)
    most = 0.0
    sets = list(itertools.combinations(range(records), size))
    fewer = list(itertools.combinations(range(records - 1), size))
    for others in itertools.product((-1.0, -0.5, 0.0, 1.0), repeat=3):
        real = mixture(sums_of((*others, 1.0), sets), z)
        if adjacency == ADDED:
            other = mixture(sums_of(others, fewer), z)
        else:
            other = mixture(sums_of((*others, 0.0 if adjacency == BLANK else -1.0), sets), z)
        for p, q in ((real, other), (other, real)):
            most = max(most, hockey_stick(p, q, epsilon))
    assert most <= bound * (1 + 1e-6) + 1e-9
    assert most > 0.85 * bound


def test_a_pair_that_is_blank_would_be_too_cheap_as_one_that_was_never_there():
    # "remove" and "add" at J, the figure of Poisson batches, against a real pair of data sets.
    z, size, records, epsilon = 1.3, 2, 4, 1.0
    sets = list(itertools.combinations(range(records), size))
    real = mixture(sums_of((-1.0, -1.0, -1.0, 1.0), sets), z)
    blank = mixture(sums_of((-1.0, -1.0, -1.0, 0.0), sets), z)
    cheap = composed_delta({(z, size / records): 1}, epsilon=epsilon)
    assert hockey_stick(real, blank, epsilon) > 1.5 * cheap


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("adjacency", [ADDED, BLANK, REPLACED])
@pytest.mark.parametrize(("rate", "largest"), [(0.3, 1), (0.3, 2), (0.7, 2), (0.5, 3)])
def test_no_data_set_of_four_records_tells_more_of_a_batch_that_is_cut(
    rate, largest, adjacency, epsilon
):
    z, records = 1.3, 4

    def density(values):
        """Over all sets that are drawn, and all subsets of B that are kept."""
        total = np.zeros_like(SCALE)
        n = len(values)
        for drawn in itertools.product((0, 1), repeat=n):
            chance = rate ** sum(drawn) * (1 - rate) ** (n - sum(drawn))
            held = [v for v, there in zip(values, drawn, strict=True) if there]
            kept = list(itertools.combinations(held, min(largest, len(held))))
            total += chance * mixture([sum(k) for k in kept], z)
        return total

    of = Drawing(Scheme.TRUNCATED, records, largest, records)
    event = of.event(z, Reach.SUM, rate, added=False)
    bound = composed_delta({event: 1}, epsilon=epsilon, adjacency=adjacency)
    most = 0.0
    for others in ((-1.0,) * 3, (1.0,) * 3, (0.0,) * 3, (-1.0, -1.0, 1.0)):
        real = density((*others, 1.0))
        other = density(
            others if adjacency == ADDED else (*others, 0.0 if adjacency == BLANK else -1.0)
        )
        for p, q in ((real, other), (other, real)):
            most = max(most, hockey_stick(p, q, epsilon))
    assert most <= bound * (1 + 1e-6) + 1e-9
    assert epsilon > 1.0 or most > 0.05 * bound  # the lottery tells whether a batch is full


def test_real_pairs_of_twenty_records_lie_below_the_figure_of_batches_that_are_cut():
    # All others alike; five rounds, whose losses are rounded down to 1e-3 nats: a lower bound.
    n, q, size, z, rounds, delta, step = 20, 0.3, 6, 1.5, 5, 1e-5, 1e-3
    event = Drawing(Scheme.TRUNCATED, n, size, n).event(z, Reach.SUM, q, added=False)
    ours = composed_epsilon({event: rounds}, delta=delta, adjacency=REPLACED)
    assert ours == pytest.approx(6.3518, abs=1e-4)
    grid = np.linspace(-22.0, 22.0, 22_001)

    def density(record, others):
        total = np.zeros_like(grid)
        for k in range(n):  # of the others are drawn
            chance = binom.pmf(k, n - 1, q)
            stays = min(size / (k + 1), 1.0)
            with_it = norm.pdf(grid, others * min(k, size - 1) + record, z)
            without = norm.pdf(grid, others * min(k, size), z)
            total += chance * (q * stays * with_it + (1 - q * stays) * without)
        return total * (grid[1] - grid[0])

    def least_deltas(p, r, epsilons):
        losses = np.floor(np.log(p / r) / step).astype(int)
        masses = np.bincount(losses - losses.min(), weights=p)
        length = rounds * masses.size
        composed = np.fft.irfft(np.fft.rfft(masses, length) ** rounds, length)
        at = step * (np.arange(length) + rounds * losses.min())
        return [float(composed[at > e] @ -np.expm1(e - at[at > e])) for e in epsilons]

    for others, most in ((-1.0, 2.743), (0.0, 3.440), (1.0, 2.743)):
        pair = density(1.0, others), density(-1.0, others)
        found = [least_deltas(*order, (0.9 * most, ours)) for order in (pair, pair[::-1])]
        assert max(d for d, _ in found) > delta  # real, and not far below what it can be
        assert max(d for _, d in found) < 0.1 * delta


@pytest.mark.parametrize("replaced", [False, True])
def test_no_order_of_four_records_in_two_batches_tells_more_than_the_order_itself(replaced):
    # Two rounds of two records, all 24 orders, all other records at -1: a mixture of normals in
    # the plane, on a grid.
    z, epsilon = 1.0, 1.0
    axis = np.linspace(-9.0, 7.0, 401)
    a, b = np.meshgrid(axis, axis)

    def density(values):
        total = np.zeros_like(a)
        orders = list(itertools.permutations(values))
        for w, x, y, v in orders:
            total += norm.pdf(a, w + x, z) * norm.pdf(b, y + v, z) / len(orders)
        return total

    cell = (axis[1] - axis[0]) ** 2
    real = density((-1.0, -1.0, -1.0, 1.0))
    other = density((-1.0, -1.0, -1.0, -1.0 if replaced else 0.0))
    bound = delta_from_mu((2.0 if replaced else 1.0) / z, epsilon)
    found = max(
        float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)
        for p, q in ((real, other), (other, real))
    )
    assert found <= bound * (1 + 1e-4)
    assert found > 0.3 * bound


@pytest.mark.parametrize("adjacency", [ADDED, BLANK, REPLACED])
def test_random_places_of_three_means_lie_below_the_pair(adjacency):
    # The unit, what is in its place, and what replaces it, in 40 random directions of a plane, by
    # sums over a grid, whose error is below 1e-4.
    z, q = 1.0, 0.3
    rng = np.random.default_rng(2)
    axis = np.linspace(-7.0, 7.0, 141)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2
    event = Event(z, poisson(q), Reach.PLACE)
    bounds = {e: composed_delta({event: 1}, epsilon=e, adjacency=adjacency) for e in (0.0, 0.7)}

    def at(mean):
        return norm.pdf(x, mean[0], z) * norm.pdf(y, mean[1], z)

    for _ in range(40):
        c0, c1, c2 = (v / max(np.linalg.norm(v), 1e-9) for v in rng.normal(size=(3, 2)))
        if adjacency == BLANK:
            c2 = np.zeros(2)
        p = (1 - q) * at(c0) + q * at(c1)
        r = at(c0) if adjacency == ADDED else (1 - q) * at(c0) + q * at(c2)
        for epsilon, bound in bounds.items():
            for one, other in ((p, r), (r, p)):
                delta = float(np.maximum(one - math.exp(epsilon) * other, 0).sum() * cell)
                assert delta <= bound * (1 + 1e-4)


# Limits, and what they are made of.


def test_full_batches_are_one_gaussian():
    event = {Event(2.0, always(), Reach.PLACE): 9}
    assert composed_epsilon(event, delta=1e-5, adjacency=BLANK) == epsilon_from_mu(1.5, 1e-5)
    assert composed_epsilon(event, delta=1e-5, adjacency=REPLACED) == epsilon_from_mu(3.0, 1e-5)


def test_a_batch_that_is_never_cut_is_a_poisson_one():
    whole = Drawing(Scheme.TRUNCATED, 500, 500, 500).event(2.0, Reach.SUM, 0.02, added=False)
    assert whole == Event(2.0, poisson(0.02))


def test_the_lottery_costs_less_than_coupling_and_more_than_poisson_batches():
    z, q, n, largest, delta = 1.0, 0.01, 60_000, 742, 1e-5
    event = Drawing(Scheme.TRUNCATED, n, largest, n).event(z, Reach.SUM, q, added=False)
    epsilon = composed_epsilon({event: ROUNDS}, delta=delta)
    plain = composed_delta({(z, q): ROUNDS}, epsilon=epsilon)
    coupled = plain + (1 + math.exp(epsilon)) * ROUNDS * float(binom.sf(largest, n, q))
    assert plain <= delta * (1 + 1e-6)
    assert composed_delta({event: ROUNDS}, epsilon=epsilon) < coupled


@pytest.mark.parametrize(("n", "q", "largest"), [(6, 0.3, 2), (5, 0.5, 3), (4, 0.9, 1)])
def test_how_often_a_batch_is_full_is_what_enumeration_counts(n, q, largest):
    full, kept = 0.0, 0.0
    for drawn in itertools.product((0, 1), repeat=n):  # the first record is the one that is meant
        chance = q ** sum(drawn) * (1 - q) ** (n - sum(drawn))
        if sum(drawn[1:]) >= largest:
            full += chance
            kept += chance * drawn[0] * largest / sum(drawn)
    found, rate = overflow(n, q, largest)
    assert found == pytest.approx(full)
    assert rate == pytest.approx(kept / full)


def test_unequal_agents_cost_no_less_than_any_of_them():
    for q, largest in ((0.02, 14), (0.3, 40)):
        each = [
            Drawing(Scheme.TRUNCATED, n, largest, n).event(1.0, Reach.SUM, q, added=False)
            for n in range(480, 501, 5)
        ]
        joint = Drawing(Scheme.TRUNCATED, 480, largest, 500).event(1.0, Reach.SUM, q, added=False)
        spent = [composed_epsilon({e: 10}, delta=1e-5) for e in each]
        assert composed_epsilon({joint: 10}, delta=1e-5) >= max(spent)


def test_the_largest_batch_of_auto_is_the_least_that_is_rarely_exceeded():
    for n, q in ((500, 0.02), (60_000, 0.01), (7, 0.5), (3, 1.0)):
        found = largest_for(n, q)
        assert binom.sf(found, n, q) <= 1e-8
        assert found == 1 or binom.sf(found - 1, n, q) > 1e-8


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("epoch", [1, 3, 4, 7, 50])
def test_epochs_cost_the_dearest_of_their_rounds(epoch, replaced):
    rng = np.random.default_rng(epoch)
    lengths = [int(n) for n in rng.integers(1, 9, size=6)]
    found, first, costs = [], 1, []
    for n in lengths:
        reach = Reach.BALL if rng.random() < 0.5 else Reach.SUM
        multiplier = float(rng.uniform(0.5, 3.0))
        found.append(EpochRound(multiplier, reach, first, n))
        far = 2.0 if replaced or reach is Reach.BALL else 1.0
        costs += [(far / multiplier) ** 2] * n
        first += n
    expected = sum(max(costs[i : i + epoch]) for i in range(0, len(costs), epoch))
    events = epoch_events(found, epoch, replaced=replaced)
    adjacency = REPLACED if replaced else BLANK
    spent = composed_epsilon(events, delta=1e-5, adjacency=adjacency)
    assert spent == pytest.approx(epsilon_from_mu(math.sqrt(expected), 1e-5), rel=1e-9)


def test_a_round_that_is_released_again_counts_for_the_same_records():
    once = epoch_events([EpochRound(2.0, Reach.SUM, 1, 10)], 10, replaced=False)
    again = epoch_events([EpochRound(2.0, Reach.SUM, 1, 10, 3)], 10, replaced=False)
    assert sum(once.values()) == 1
    assert sum(again.values()) == 4


def test_shuffled_costs_at_least_no_more_than_at_most():
    for z, b, epochs, share in ((0.5, 3, 1, 1.0), (1.0, 20, 4, 0.9), (4.0, 100, 30, 1.0)):
        for replace in (False, True):
            least = least_epsilon_of_shuffled(
                z, batches=b, epochs=epochs, delta=1e-5, replace=replace, share=share
            )
            mu = (2.0 if replace else 1.0) * math.sqrt(epochs) / z
            assert 0.0 <= least <= epsilon_from_mu(mu, 1e-5)


def test_at_least_is_what_a_simulated_adversary_reaches():
    # 200,000 epochs with the record and as many without: P(largest sum > c), to 5 standard errors.
    rng = np.random.default_rng(8)
    z, b, c, n = 1.0, 10, 2.5, 200_000
    noise = z * rng.normal(size=(n, b))
    with_it, blank = noise.copy(), noise
    with_it[:, 0] += 2.0
    blank = blank.copy()
    blank[:, 0] += 1.0
    p = 1 - norm.cdf((c - 2) / z) * norm.cdf(c / z) ** (b - 1)
    q = 1 - norm.cdf((c - 1) / z) * norm.cdf(c / z) ** (b - 1)
    for values, chance in ((with_it, p), (blank, q)):
        seen = float((values.max(axis=1) > c).mean())
        assert seen == pytest.approx(chance, abs=5 * math.sqrt(chance / n))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"batches": "weighted"}, "no bound is known here"),
        ({"batch_size": 10.5}, "must be an integer"),
        ({"batch_size": 0}, "must be an integer"),
        ({"batch_size": 51}, "more than the 50 records of agent 1"),
        ({"batch_size": None}, "needs batch_size"),
        ({"largest_batch": 20}, "cuts Poisson batches"),
        ({"batches": "poisson", "largest_batch": 0}, "must lie in"),
        ({"batches": "poisson", "largest_batch": 10**30}, "must lie in"),
        ({"batches": "poisson", "largest_batch": True}, "an integer, or 'auto'"),
        ({"batches": "poisson", "largest_batch": "all"}, "an integer, or 'auto'"),
    ],
)
def test_what_no_agent_can_draw_is_refused(how, words):
    given = {"batches": "fixed", "batch_size": 10.0, "sampling_rate": 0.1, **how}
    with pytest.raises(InputError, match=words):
        drawings(given.pop("batches"), [60, 50], **given)


@pytest.mark.parametrize(
    "how",
    [{"batches": "fixed", "batch_size": 10.0}, {"batches": "poisson", "largest_batch": "auto"}],
)
def test_more_records_than_are_told_apart_are_refused(how):
    # Beyond 2^53 the search for a size would go on for ever: one more is no other number.
    with pytest.raises(InputError, match="at most 1e\\+12"):
        drawings(how.pop("batches"), [10**19], **{"batch_size": None, **how}, sampling_rate=0.1)


def test_a_lottery_within_a_lottery_is_refused():
    one = Event(1.0, poisson(0.1), coin=0.5, otherwise=Event(1.0, always()))
    with pytest.raises(InputError, match="one lottery of two"):
        composed_epsilon({one._replace(otherwise=one): 1}, delta=1e-5)
