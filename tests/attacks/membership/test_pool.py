"""Records at stake, their coins, and what models say of them."""

import numpy as np
import pytest
import torch

from overhear.attacks.membership.scores import (
    AVERAGE,
    OWNER,
    balanced_coins,
    confidences,
    confidences_by_model,
    make_pool,
)
from overhear.privacy.errors import InputError
from overhear.training.data.load import load_dataset
from overhear.training.data.store import Examples
from overhear.training.models.parameters import build_model, flatten


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
