"""What the compressors send, and what they are refused for."""

import functools
import math

import numpy as np
import pytest
import torch

from overhear.training.algorithms.compression import (
    Compressor,
    Settings,
    prepare,
    quantised,
    random_k,
    top_k,
)
from overhear.training.graphs.topologies import build_graph, full, ring
from overhear.training.step.purity import purified
from overhear.training.step.script import runs_batched

NUMBER = torch.zeros(1)


def mask(turn: int, agent: int = 0, *, entries: int = 40, kept: float = 0.25, seed=(0, 0)):
    row = torch.ones(entries)
    return random_k(row, turn * row, agent + NUMBER, kept=kept, seed=seed).bool()


@pytest.mark.parametrize("kept", [0.01, 0.1, 0.5, 1.0])
def test_top_k_is_what_sorting_keeps(kept):
    row = np.random.default_rng(0).normal(size=30)
    expected = np.zeros(30)
    most = np.argsort(-abs(row))[: max(1, round(kept * 30))]
    expected[most] = row[most]
    assert top_k(torch.from_numpy(row), kept=kept).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "sent",
    [
        functools.partial(top_k, kept=0.1),
        functools.partial(quantised, bits=2),
        functools.partial(quantised, bits=8),
    ],
)
def test_what_is_left_out_is_a_contraction(sent):
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        row = torch.randn(30, generator=rng, dtype=torch.float64) ** 3
        left = float((row - sent(row)).square().sum() / row.square().sum())
        assert left <= 1 - 1 / 30 + 1e-12


def test_quantised_takes_the_nearest_of_its_steps():
    row = np.random.default_rng(0).normal(size=50)
    steps = np.linspace(-abs(row).max(), abs(row).max(), 2**3 - 1)
    nearest = steps[abs(row[:, None] - steps).argmin(1)]
    np.testing.assert_allclose(
        quantised(torch.from_numpy(row), bits=3).numpy(), nearest, atol=1e-12
    )


def test_quantised_of_nothing_is_nothing():
    assert quantised(torch.zeros(3), bits=4).tolist() == [0.0, 0.0, 0.0]


def by_hand(turn: int, agent: int, *, entries: int, count: int, seed: tuple[int, int]) -> set[int]:
    """The entries of random-k in Python's own whole numbers."""

    def mixed(word: int) -> int:
        word = (word ^ word >> 16) * 0x7FEB352D % 2**32
        word = (word ^ word >> 15) * 0x846CA68B % 2**32
        return word ^ word >> 16

    key = mixed(mixed(mixed(mixed(turn) ^ agent) ^ seed[0]) ^ seed[1])
    order = sorted(range(entries), key=lambda at: (mixed(mixed(at) ^ key), at))
    return set(order[-count:])


@pytest.mark.parametrize("seed", [(0, 0), (2**32 - 1, 1)])
def test_random_k_follows_its_public_numbers(seed):
    for turn in (1, 2, 900):
        found = mask(turn, 7, seed=seed)
        assert set(found.nonzero()[:, 0].tolist()) == by_hand(
            turn, 7, entries=40, count=10, seed=seed
        )


def test_random_k_keeps_every_entry_equally_often_and_pairs_too():
    """n = 2,000 rounds, 40 entries, 780 pairs; each within 5.5 standard errors: 3e-5 in all."""
    n, share = 2_000, 0.25
    taken = torch.stack([mask(turn) for turn in range(n)]).double()
    assert (taken.sum(1) == 10).all()
    assert float((taken.mean(0) - share).abs().max()) < 5.5 * math.sqrt(share * 0.75 / n)
    both = share * 9 / 39  # of ten of forty without replacement
    pairs = (taken.T @ taken / n)[~torch.eye(40, dtype=torch.bool)]
    assert float((pairs - both).abs().max()) < 5.5 * math.sqrt(both * (1 - both) / n)
    again = (taken[1:] * taken[:-1]).mean(0)  # of two rounds that follow one another
    assert float((again - share**2).abs().max()) < 5.5 * math.sqrt(share**2 / n)


def test_random_k_differs_between_rounds_agents_seeds_and_values_of_a_round():
    first = mask(1)
    for other in (mask(2), mask(1, 1), mask(1, seed=(1, 0)), mask(1, seed=(0, 1))):
        assert not torch.equal(first, other)


def test_random_k_does_not_look_at_what_it_sends():
    row, turn = torch.arange(1.0, 21.0), torch.full((20,), 3.0)
    sent = [random_k(v, turn, NUMBER, kept=0.3, seed=(0, 0)) for v in (row, -(row**2), row.flip(0))]
    assert all(torch.equal(one != 0, sent[0] != 0) for one in sent)


def test_every_compressor_is_pure_and_may_be_called_for_many_agents_at_once():
    rows, turns, numbers = torch.zeros(5, 6), torch.zeros(5, 6), torch.zeros(5, 1)
    for fn, given in (
        (functools.partial(top_k, kept=0.5), [rows]),
        (functools.partial(quantised, bits=4), [rows]),
        (functools.partial(random_k, kept=0.5, seed=(0, 1)), [rows, turns, numbers]),
    ):
        assert runs_batched(purified(fn, "postprocess"), given)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"kept": -0.1}, r"kept=-0.1 must lie in \(0, 1\]"),
        ({"kept": 0.0}, "kept=0.0 must lie"),
        ({"kept": math.nan}, "kept=nan must lie"),
        ({"compressor": Compressor.QUANTISED, "bits": 1}, "bits=1 must lie in"),
        ({"compressor": Compressor.QUANTISED, "bits": 17}, "bits=17"),
        ({"compressor": Compressor.RANDOM_K, "mask_seed": -1}, "mask_seed=-1"),
        ({"consensus_step": 0.0}, "consensus_step=0.0"),
        ({"consensus_step": 1.1}, "consensus_step=1.1"),
        ({"bits": 4}, 'bits=4 has no effect with compressor = "top-k"'),
        ({"mask_seed": 0}, 'mask_seed=0 has no effect with compressor = "top-k"'),
        ({"compressor": Compressor.NONE, "kept": 0.1}, "kept=0.1 has no effect"),
    ],
)
def test_numbers_out_of_range_or_without_effect_are_refused(numbers, said):
    with pytest.raises(ValueError, match=said):
        Settings(**numbers)


def test_a_graph_that_changes_is_refused():
    numbers = {"compressor": Compressor.NONE, "kept": None, "bits": None, "mask_seed": None}
    assert prepare(graph=ring(5), **numbers)
    with pytest.raises(ValueError, match="changes from round to round"):
        prepare(graph=build_graph("directed-exponential", 8), **numbers)
    assert prepare(graph=full(2), **numbers)


def test_settings_say_the_numbers_that_are_used():
    def said(compressor: Compressor) -> list[object]:
        settings = Settings(compressor=compressor)
        return [settings.kept, settings.bits, settings.mask_seed]

    assert said(Compressor.TOP_K) == [0.1, None, None]
    assert said(Compressor.RANDOM_K) == [0.1, None, 0]
    assert said(Compressor.QUANTISED) == [None, 8, None]
    assert said(Compressor.NONE) == [None, None, None]
