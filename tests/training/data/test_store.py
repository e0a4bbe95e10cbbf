"""Stores: the engine takes batches of them, and what needs all records asks for blocks."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from overhear.training.data.store import (
    Examples,
    MappedStore,
    Shard,
    SideBySide,
    TensorStore,
    blocks,
    digest_of_records,
    digests_of,
    followed_by,
)
from overhear.training.engine.engine import Engine
from overhear.training.engine.randomness import SecretRandomness
from overhear.training.graphs.topologies import ring
from tests.training import contract


class Counting(TensorStore):
    """Says how many records each call takes; nobody may have them all."""

    def __init__(self, *parts: torch.Tensor) -> None:
        super().__init__(*parts)
        self.taken: list[int] = []

    def take(self, positions: torch.Tensor) -> Examples:
        self.taken.append(len(positions))
        return super().take(positions)


def _parted(setting, kind):
    """The records of a setting in one store, of which each agent has rows."""
    inputs = torch.cat([shard.inputs for shard in setting.shards]).float()
    targets = torch.cat([shard.targets for shard in setting.shards])
    store, start, shards = kind(inputs, targets), 0, []
    for shard in setting.shards:
        shards.append(Shard(store, torch.arange(start, start + shard.size)))
        start += shard.size
    return store, replace(setting, shards=shards)


def _models(setting) -> torch.Tensor:
    engine = Engine(
        setting, contract.bound_to("dpdl", setting.graph), randomness=SecretRandomness(1)
    )
    for _ in range(3):
        engine.advance()
    return engine.models()


def _three_agents():
    draw = torch.Generator().manual_seed(3)
    return {
        agent: Examples(torch.randn(n, 2, generator=draw), torch.randint(9, (n,), generator=draw))
        for agent, n in ((4, 3), (0, 1), (7, 5))
    }


def test_batches_side_by_side_are_those_of_each_agent():
    shards = _three_agents()
    together = SideBySide(shards)
    where = {7: torch.tensor([1, 4]), 0: torch.zeros(0, dtype=torch.int64), 4: torch.tensor([2])}
    found = together.take(where)
    assert list(found) == [7, 0, 4]
    for agent, at in where.items():
        for one, other in zip(found[agent], shards[agent].take(at), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(together.shards[agent].inputs, shards[agent].inputs)


@pytest.mark.parametrize("position", [-1, 1])
def test_a_position_beyond_an_agent_s_records_is_no_other_agent_s(position):
    with pytest.raises(ValueError, match="at which its agent holds no record"):
        SideBySide(_three_agents()).take({0: torch.tensor([position])})


def test_records_that_are_not_alike_or_not_on_a_device_are_not_put_side_by_side():
    shards = _three_agents()
    assert SideBySide.of(shards, torch.device("cpu")) is None
    assert SideBySide.of(shards, torch.device("meta")) is not None
    shards[0] = Examples(torch.zeros(1, 3), torch.tensor([0]))
    assert SideBySide.of(shards, torch.device("meta")) is None


def test_rows_of_a_store_train_as_examples_do_and_only_batches_are_taken():
    setting = contract.setting(ring(5))
    whole = replace(setting, shards=[Examples(s.inputs.float(), s.targets) for s in setting.shards])
    store, parted = _parted(setting, Counting)
    assert torch.equal(_models(whole), _models(parted))
    engine = Engine(parted, contract.bound_to("dpdl", parted.graph), randomness=SecretRandomness(1))
    store.taken.clear()
    engine.advance()
    drawn = [len(engine.draw_batch(round=1, call=0, agent=agent, rate=None)) for agent in range(5)]
    assert sorted(n for n in store.taken if n) == sorted(n for n in drawn if n)
    assert max(store.taken) < min(shard.size for shard in parted.shards)


def test_a_mapped_file_gives_the_rows_and_lets_its_pages_go(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    store = MappedStore(tmp_path / "x.npy", torch.arange(5000))
    asked = []
    monkeypatch.setattr(store, "_let_go", lambda go=store._let_go: (asked.append(1), go()))
    for start in range(0, 5000, 500):
        found = store.take(torch.arange(start, start + 500))
        assert np.array_equal(found.inputs.numpy(), rows[start : start + 500])
        found.inputs.zero_()  # a copy: the file stays as it is
    assert len(asked) >= 5
    assert np.array_equal(np.load(tmp_path / "x.npy"), rows)
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 - our own
    assert torch.equal(again.take(torch.tensor([7])).inputs, store.take(torch.tensor([7])).inputs)


def test_digests_do_not_depend_on_where_records_are_and_go_block_by_block():
    inputs, targets = torch.randn(9000, 3), torch.arange(9000)
    store = Counting(inputs, targets)
    halves = torch.randperm(9000).chunk(2)
    views = [Shard(store, rows) for rows in halves]
    copies = [Examples(inputs[rows], targets[rows]) for rows in halves]
    assert digest_of_records(views) == digest_of_records(copies)
    assert max(store.taken) <= 4096
    assert digest_of_records(views)[0] == digest_of_records([Examples(inputs, targets)])[0]
    other = targets.clone()
    other[5] = 9001
    assert digests_of(Examples(inputs, other))[5] != digests_of(store)[5]
    assert (
        digests_of(Examples(inputs, other), targets=False)[5]
        == (digests_of(store, targets=False)[5])
    )


@pytest.mark.parametrize("positions", [[], [0], [11], [0, 3, 10, 11], [11, 0, 10, 3]])
def test_records_behind_a_store_have_the_next_positions(positions):
    first, more = (Examples(torch.randn(n, 2), torch.randn(n)) for n in (10, 2))
    joined = followed_by(Shard(TensorStore(*first), torch.arange(10)), more)
    whole, at = followed_by(first, more), torch.tensor(positions, dtype=torch.int64)
    assert joined.size == whole.size == 12
    for one, other in zip(joined.take(at), whole.take(at), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(joined.inputs, whole.inputs)
    assert torch.equal(joined.targets, whole.targets)


def test_blocks_are_all_records_once():
    store = Counting(torch.arange(10.0)[:, None], torch.arange(10))
    found = list(blocks(store, size=4))
    assert store.taken == [4, 4, 2]
    assert torch.cat([block.targets for block in found]).tolist() == list(range(10))
