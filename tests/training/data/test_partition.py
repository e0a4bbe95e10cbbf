"""Facts about partitions over agents and Poisson batches."""

import numpy as np
import pytest
from scipy import stats

from overhear.training.data.partition import partition, poisson_batch

LABELS = np.repeat(np.arange(10), 100)
SCHEMES = ("iid", "dirichlet", "shards")


def _rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("agents", [1, 7, 10, 300])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_record_goes_to_exactly_one_agent_and_nobody_is_empty(scheme, agents):
    shares = partition(LABELS, agents, scheme=scheme, generator=_rng())
    assert len(shares) == agents
    assert min(share.size for share in shares) >= 1
    assert np.array_equal(np.sort(np.concatenate(shares)), np.arange(1000))
    assert all(share.dtype == np.int64 and (np.diff(share) > 0).all() for share in shares)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_generator_alone_decides_the_partition(scheme):
    one, two, other = (
        partition(LABELS, 10, scheme=scheme, generator=_rng(seed)) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_shares_are_equal_up_to_one_record():
    sizes = [share.size for share in partition(LABELS, 7, generator=_rng())]
    assert max(sizes) - min(sizes) == 1


def test_shards_give_each_agent_at_most_two_labels():
    shares = partition(LABELS, 10, scheme="shards", shards=2, generator=_rng())
    assert all(np.unique(LABELS[share]).size <= 2 for share in shares)


def test_many_agents_on_few_records_are_repaired_to_one_each():
    shares = partition(
        np.zeros(12, dtype=int), 12, scheme="dirichlet", concentration=0.01, generator=_rng()
    )
    assert [share.size for share in shares] == [1] * 12


def test_dirichlet_shares_follow_the_beta_distribution():
    # One class, two agents: the first share is Beta(c, c). Kolmogorov-Smirnov at n=400 draws;
    # the threshold 1e-4 is the false-alarm rate, and the seed is fixed. The class has 10,000
    # records, so rounding moves the distribution by next to nothing.
    generator = _rng(3)
    labels = np.zeros(10_000, dtype=int)
    first = [
        partition(labels, 2, scheme="dirichlet", concentration=2.0, generator=generator)[0].size
        for _ in range(400)
    ]
    assert stats.kstest(np.array(first) / 10_000, stats.beta(2.0, 2.0).cdf).pvalue > 1e-4


def test_large_concentration_tends_to_equal_shares_of_each_class():
    shares = partition(LABELS, 10, scheme="dirichlet", concentration=1e9, generator=_rng())
    for share in shares:
        assert np.bincount(LABELS[share], minlength=10).tolist() == [10] * 10


def test_records_of_a_class_are_dealt_at_random_not_in_order():
    (first, _) = partition(
        np.zeros(1000, dtype=int), 2, scheme="dirichlet", concentration=1e9, generator=_rng()
    )
    # 500 of 1,000 positions at random: hypergeometric, sd 7.9; 60 is 7.6 of them.
    assert abs(np.count_nonzero(first < 500) - 250) < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agents": 1001}, "agents=1001 is more than the 1000 records"),
        ({"agents": 0}, "agents=0 must be at least 1"),
        ({"scheme": "random"}, "unknown; choose one of iid, dirichlet, shards"),
        ({"scheme": "dirichlet", "concentration": 0.0}, "concentration=0.0 must be above 0"),
        ({"scheme": "dirichlet", "concentration": np.inf}, "must be above 0 and finite"),
        ({"scheme": "shards", "shards": 0}, "shards=0 must be at least 1"),
        ({"scheme": "shards", "shards": 101}, "agents=10 times shards=101 is more"),
    ],
)
def test_an_impossible_partition_is_refused(options, message):
    options = {"agents": 10, **options}
    with pytest.raises(ValueError, match=message):
        partition(LABELS, options.pop("agents"), generator=_rng(), **options)


def test_targets_must_be_one_label_a_record():
    with pytest.raises(ValueError, match="one label a record"):
        partition(np.zeros((4, 2)), 2, generator=_rng())


def test_rate_zero_draws_nobody_and_rate_one_everybody():
    assert poisson_batch(50, 0.0, generator=_rng()).size == 0
    assert poisson_batch(50, 1.0, generator=_rng()).tolist() == list(range(50))
    assert poisson_batch(0, 0.5, generator=_rng()).size == 0


def test_participation_is_binomial_and_independent():
    # n = 20,000 rounds of 5 records at rate .3. Each count is Binomial(n, .3) and each pair's
    # joint count Binomial(n, .09). Two-sided exact tests, 5 + 10 of them, at 1e-5 each:
    # false-alarm rate below 2e-4, with a fixed seed.
    generator, rounds = _rng(11), 20_000
    present = np.zeros((rounds, 5), dtype=int)
    for row in present:
        row[poisson_batch(5, 0.3, generator=generator)] = 1
    for count in present.sum(axis=0):
        assert stats.binomtest(int(count), rounds, 0.3).pvalue > 1e-5
    joint = present.T @ present
    for i in range(5):
        for j in range(i):
            assert stats.binomtest(int(joint[i, j]), rounds, 0.09).pvalue > 1e-5


def test_batch_sizes_vary_as_a_binomial():
    # n = 4,000 batches; chi-square over 0..10 records at rate .3, false-alarm rate 1e-4.
    generator = _rng(12)
    sizes = [poisson_batch(10, 0.3, generator=generator).size for _ in range(4000)]
    expected = 4000 * stats.binom.pmf(np.arange(11), 10, 0.3)
    observed = np.bincount(sizes, minlength=11)
    pooled = [np.append(counts[:7], counts[7:].sum()) for counts in (observed, expected)]
    assert stats.chisquare(*pooled).pvalue > 1e-4


@pytest.mark.parametrize("rate", [-0.1, 1.3, float("nan")])
def test_a_rate_outside_the_unit_interval_is_refused(rate):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]; did you mean the batch size"):
        poisson_batch(10, rate, generator=_rng())


def test_a_negative_number_of_records_is_refused():
    with pytest.raises(ValueError, match="records=-1"):
        poisson_batch(-1, 0.5, generator=_rng())
