"""Scores of membership on a model whose curve is known in closed form.

The model is the sum of the records that are in, each of length 1 in 400 dimensions, and Gaussian
noise of deviation 1. What it says of a record x is x @ model, offset by a constant. Whether a
record is in moves that by 1, and all else spreads it by s, s^2 = 1 + sum of (x @ z)^2 / 4 over
other records z. So no test of that statistic does better than AUC = Phi(1 / (s sqrt 2)), and a
TPR of Phi(Phi^-1(FPR) + 1 / s).
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from overhear.attacks.membership.roc import roc
from overhear.attacks.membership.scores import (
    ATTACKS,
    AVERAGE,
    OWNER,
    balanced_coins,
    confidences,
    confidences_by_model,
    fair_coins,
    lira_offline,
    lira_online,
    make_pool,
    rmia_online,
    threshold,
)
from overhear.privacy.errors import InputError
from overhear.training.data.load import load_dataset
from overhear.training.data.store import Examples
from overhear.training.models.parameters import build_model, flatten

RECORDS, DIMENSIONS, REFERENCES, GAMES = 1000, 400, 128, 12


class Toy(NamedTuple):
    targets: np.ndarray
    included: np.ndarray
    references: np.ndarray
    coins: np.ndarray
    strength: float  # 1 / s


@pytest.fixture(scope="module")
def toy():
    generator = np.random.default_rng(7)
    records = generator.standard_normal((RECORDS, DIMENSIONS))
    records /= np.linalg.norm(records, axis=1, keepdims=True)
    offset = -30.0 + generator.standard_normal(RECORDS)  # some records are hard for every model

    def statistics(included: np.ndarray) -> np.ndarray:
        noise = generator.standard_normal((len(included), DIMENSIONS))
        return (included @ records + noise) @ records.T + offset

    coins = balanced_coins(REFERENCES, RECORDS, generator=generator)
    included = fair_coins(GAMES, RECORDS, generator=generator)
    overlaps = (records @ records.T) ** 2
    spread = np.sqrt(1.0 + 0.25 * (overlaps.sum(axis=1) - 1.0))
    strength = float((1.0 / spread).mean())  # which varies by 2 % between records
    return Toy(statistics(included), included, statistics(coins), coins, strength)


def curve(toy: Toy, attack, *, included: np.ndarray | None = None):
    scores = [attack(target, toy.references, toy.coins) for target in toy.targets]
    inside = toy.included if included is None else included
    return roc(np.concatenate(scores), inside.reshape(-1))


@pytest.mark.parametrize("attack", [lira_online, lira_offline, rmia_online])
def test_the_curve_is_that_of_the_best_test(toy, attack):
    """12,000 guesses: 5 standard errors of AUC and TPR, and .01 for what 64 references miss.

    A false alarm has a probability below 1e-6 for each of the two. RMIA's probabilities are far
    below 1 here, where its ratio is the likelihood ratio.
    """
    found = curve(toy, attack)
    ideal = float(ndtr(toy.strength / math.sqrt(2.0)))
    assert found.auc == pytest.approx(ideal, abs=5.0 * found.auc_error + 0.01)
    assert found.auc > curve(toy, threshold).auc + 5.0 * found.auc_error
    rate = found.at(0.1)
    best = float(ndtr(ndtri(0.1) + toy.strength))
    value, _, _ = rate.true_positive_rate(confidence=0.95)
    assert value == pytest.approx(best, abs=5.0 * math.sqrt(best / rate.members) + 0.02)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_shuffled_coins_leave_chance(toy, attack):
    """Labels that nothing depends on: 5 standard errors, a false alarm in 1.7 million."""
    shuffled = fair_coins(GAMES, RECORDS, generator=np.random.default_rng(8))
    found = curve(toy, attack, included=shuffled)
    assert found.auc == pytest.approx(0.5, abs=5.0 * found.auc_error)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("references", [2, 3, 8])
def test_few_references_are_enough_to_score(toy, attack, references):
    coins = balanced_coins(references, RECORDS, generator=np.random.default_rng(9))
    scores = attack(toy.targets[0], toy.references[:references], coins)
    assert np.isfinite(scores).all()


def test_equal_references_divide_by_no_zero():
    coins = np.array([[True, True], [False, False]])
    for attack in ATTACKS.values():
        assert np.isfinite(attack(np.array([1.0, 50.0]), np.full((2, 2), 50.0), coins)).all()


def test_a_record_that_is_in_no_reference_is_refused():
    coins = np.array([[True, False], [False, False]])
    with pytest.raises(InputError, match="at least one of either"):
        lira_online(np.zeros(2), np.zeros((2, 2)), coins)
    with pytest.raises(InputError, match=r"must be \(C,\)"):
        rmia_online(np.zeros(3), np.zeros((2, 2)), ~coins)


# Records at stake, their coins, and what models say of them.


@pytest.fixture(scope="module")
def parts():
    order = np.random.default_rng(0).permutation(1438)
    return [np.sort(part) for part in np.array_split(order, 3)]


def test_the_run_s_own_coins_give_its_own_training_set(parts):
    data = load_dataset("digits")
    pool = make_pool(data, parts, most=5000, generator=np.random.default_rng(1))
    for part, shard in zip(parts, pool.shards(pool.trained), strict=True):
        assert sorted(shard.inputs.sum(dim=(1, 2, 3)).tolist()) == sorted(
            data.inputs[torch.from_numpy(part)].sum(dim=(1, 2, 3)).tolist()
        )
        assert shard.targets.bincount().tolist() == data.targets[part].bincount().tolist()


def test_every_record_at_stake_is_in_where_its_coin_says_so(parts):
    pool = make_pool(load_dataset("digits"), parts, most=100, generator=np.random.default_rng(1))
    assert len(pool.owners) == 200
    none, every = pool.shards(np.zeros(200, dtype=bool)), pool.shards(np.ones(200, dtype=bool))
    assert sum(len(shard.targets) for shard in none) == 1438 - 100
    grown = [len(b.targets) - len(a.targets) for a, b in zip(none, every, strict=True)]
    assert grown == np.bincount(pool.owners, minlength=3).tolist()


def test_a_held_out_record_would_be_held_by_an_agent_of_its_class():
    data = load_dataset("digits")
    parts = [np.flatnonzero(data.targets.numpy() < 5), np.flatnonzero(data.targets.numpy() >= 5)]
    pool = make_pool(data, parts, most=300, generator=np.random.default_rng(1))
    assert ((pool.records.targets.numpy() >= 5) == (pool.owners == 1)).all()


def test_too_few_records_are_refused(parts):
    with pytest.raises(InputError, match="needs at least 10 of each"):
        make_pool(load_dataset("digits"), parts, most=9, generator=np.random.default_rng(1))
    with pytest.raises(InputError, match="references=1 must be at least 2"):
        balanced_coins(1, 5, generator=np.random.default_rng(1))


def test_the_statistic_is_the_log_odds_of_the_label():
    model = build_model(
        "linear", input_shape=(4,), classes=3, generator=torch.Generator().manual_seed(0)
    )
    records = Examples(
        torch.randn(50, 4, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 3
    )
    p = model(records.inputs).double().softmax(dim=1).gather(1, records.targets[:, None])[:, 0]
    found = confidences(model, flatten(model), records)
    assert found == pytest.approx(torch.log(p / (1 - p)).detach().numpy(), abs=1e-5)


def test_a_model_that_diverged_says_nothing():
    model = build_model(
        "linear", input_shape=(4,), classes=3, generator=torch.Generator().manual_seed(0)
    )
    records = Examples(torch.ones(5, 4), torch.zeros(5, dtype=torch.int64))
    assert not confidences(model, torch.full_like(flatten(model), torch.nan), records).any()
    assert np.abs(confidences(model, 1e30 * flatten(model), records)).max() <= 50.0


def test_the_owner_s_model_is_asked_about_its_own_records(parts):
    pool = make_pool(load_dataset("digits"), parts, most=50, generator=np.random.default_rng(1))
    model = build_model(
        "linear", input_shape=(1, 8, 8), classes=10, generator=torch.Generator().manual_seed(0)
    )
    models = torch.randn(3, len(flatten(model)), generator=torch.Generator().manual_seed(2))
    found = confidences_by_model(model, models, pool)
    for agent in range(3):
        mine = pool.owners == agent
        assert (found[OWNER][mine] == found[f"agent {agent}"][mine]).all()
    mean = confidences(model, models.mean(dim=0), pool.records)
    assert (found[AVERAGE] == mean).all()
