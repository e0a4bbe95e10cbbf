"""Users: whole at one agent, whole in the test part, and held to a public cap."""

import collections

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.data.own_data import dataset_of_stores
from overhear.training.data.partition import (
    check_cap,
    check_together,
    deal_users,
    hold_out_users,
    user_numbers,
)
from overhear.training.data.store import TensorStore
from overhear.training.data.table import read_users


def some_users(records: int = 200) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 60, size=records))


def test_the_same_text_is_the_same_user_and_nobody_else():
    names = [f"user {i}" for i in range(20_000)]
    found = user_numbers([*names, *names])
    assert len(set(found.tolist())) == len(names)
    assert (found[: len(names)] == found[len(names) :]).all()
    composed, apart = user_numbers(["Zo\u00eb", "Zoe\u0308"])  # one letter, written in two ways
    assert composed == apart
    assert len({*user_numbers(["1", "01", "1.0", "ann", "Ann"]).tolist()}) == 5


@pytest.mark.parametrize("agents", [1, 3, 7])
def test_every_record_is_dealt_once_and_users_stay_whole(agents):
    users = some_users()
    parts = deal_users(users, agents, generator=np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert len(parts) == agents
    check_together(users, parts)
    counts = [len(set(users.numpy()[part])) for part in parts]
    assert max(counts) - min(counts) <= 1


def test_a_user_at_two_agents_is_refused():
    users = torch.tensor([4, 4, 5])
    with pytest.raises(InputError, match="records of a user lie at several agents"):
        check_together(users, [np.array([0]), np.array([1, 2])])


def test_more_agents_than_users_are_refused():
    with pytest.raises(InputError, match="agents=3 is more than there are users"):
        deal_users(torch.tensor([1, 1, 2]), 3, generator=np.random.default_rng(0))


def test_the_cap_is_the_largest_count_that_passes():
    users = some_users()
    most = max(collections.Counter(users.tolist()).values())
    check_cap(users, most)
    with pytest.raises(InputError) as refused:
        check_cap(users, most - 1)
    assert str(refused.value) == (
        f"a user has more than {most - 1} records; raise records_per_person, or drop records by a "
        "public rule"
    )


def test_who_is_tested_with_is_not_trained_on():
    users = some_users().numpy()
    store = TensorStore(torch.arange(200.0)[:, None], torch.arange(200) % 2)
    data = dataset_of_stores(store, None, name="mine", classes=2, users=users)
    assert data.users is not None
    assert data.users.tolist() == users[data.inputs[:, 0].long().numpy()].tolist()
    tested = set(users[data.test_inputs[:, 0].long().numpy()].tolist())
    assert not tested & set(data.users.tolist())
    assert 40 <= len(data.test_inputs) < 60
    assert len(data.inputs) + len(data.test_inputs) == 200


def test_without_users_the_same_records_are_held_out_as_ever():
    store = TensorStore(torch.arange(50.0)[:, None], torch.arange(50) % 2)
    data = dataset_of_stores(store, None, name="mine", classes=2)
    order = np.random.default_rng(20_000).permutation(50)
    assert data.test_inputs[:, 0].tolist() == sorted(order[:10].tolist())
    assert data.inputs[:, 0].tolist() == sorted(order[10:].tolist())


def test_too_few_users_to_hold_some_out_are_refused():
    with pytest.raises(InputError, match=r"too few users .*\[data\] test"):
        hold_out_users(np.array([1, 1, 1, 1]), 1, generator=np.random.default_rng(0))


def test_users_of_another_number_of_records_are_refused():
    store = TensorStore(torch.zeros(10, 1), torch.arange(10) % 2)
    with pytest.raises(InputError, match="users of 'mine' must be 10 int64 numbers"):
        dataset_of_stores(store, store, name="mine", classes=2, users=np.zeros(9, dtype=np.int64))


def test_the_user_column_of_a_table_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who,a\nann,1\n bob ,2\nann,3\n", encoding="utf-8")
    found = read_users(path, "who", form="csv")
    assert found.tolist() == user_numbers(["ann", "bob", "ann"]).tolist()
    path.write_text("who,a\nann,1\n,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 3, column 'who': is empty"):
        read_users(path, "who", form="csv")
