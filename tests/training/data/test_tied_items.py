"""What shows in items alone that they were made of several records, and what does not."""

import numpy as np
import pytest

from overhear.training.data.load import load_dataset
from overhear.training.data.own_data import dataset_of
from overhear.training.data.tied_items import _fitted, tied_items

DRAW = np.random.default_rng(3)
X = DRAW.gamma(2.0, size=(300, 64)).astype(np.float32)
PART = DRAW.random(size=(300, 1)).astype(np.float32)
WIDE = np.c_[DRAW.lognormal(10, 1.5, 2000), DRAW.normal(size=(2000, 11))]


def told(x) -> list[str]:
    return tied_items(dataset_of((x, np.arange(len(x)) % 2), name="mine"))


PICTURES = DRAW.beta(1, 4, size=(200, 3, 8, 8)).astype(np.float32)
OF_ALL = (PICTURES - PICTURES.mean()) / PICTURES.std()
BY_CHANNEL = PICTURES - PICTURES.mean((0, 2, 3), keepdims=True)
BY_CHANNEL /= PICTURES.std((0, 2, 3), keepdims=True)
ALONE = PICTURES - PICTURES.mean((1, 2, 3), keepdims=True)
ALONE /= ALONE.std((1, 2, 3), keepdims=True)
TIED = {
    "all numbers": (OF_ALL, "all numbers of the items, or of a channel, have mean 0"),
    "by channel": (BY_CHANNEL, "all numbers of the items, or of a channel, have mean 0"),
    "scaled": ((X - X.mean(0)) / (X.std(0) + 1e-6), "64 of 64 columns have mean 0 and deviation 1"),
    "of a sample": ((X - X.mean(0)) / X.std(0, ddof=1), "64 of 64 columns have mean 0 and"),
    "some columns": (np.c_[X, (X - X.mean(0))[:, :3] / X.std(0)[:3]], "3 of 67 columns have mean"),
    "centred": (X - X.mean(0), "64 of 64 columns have mean 0 over the items"),
    "smallest and largest": ((X - X.min(0)) / (X.max(0) - X.min(0)), "64 of 64 columns have ends"),
    "views": (np.r_[X, X.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64)], "600 of 600 items are"),
    "turned": (np.r_[X, np.rot90(X.reshape(-1, 8, 8), 1, (1, 2)).reshape(-1, 64)], "turned"),
    "pictures": (np.r_[X, X[:, ::-1]].reshape(-1, 1, 8, 8), "mirrored or turned"),
    "between": (np.r_[X, PART * X + (1 - PART) * np.roll(X, 7, 0)], "lie on the line between"),
    "halfway": (np.r_[X, 0.5 * (X + np.roll(X, 1, 0))[:60]], "lie on the line between"),
    "slightly changed": (np.r_[X, X + 1e-3 * DRAW.normal(size=X.shape)], "are nearly another one"),
    "many changed a little": (
        np.repeat(X[:60], 10, 0) + 1e-3 * DRAW.normal(size=(600, 64)),
        "are nearly another one",
    ),
    "in units of their own": (
        np.r_[WIDE, WIDE * (1 + 1e-4 * DRAW.normal(size=WIDE.shape))],
        "are nearly another one",
    ),
}
APART = {
    "each picture by itself": ALONE,
    "as is known of pictures": (PICTURES - 0.1307) / 0.3081,
    "as many of one as of the other": np.tile([[1.0], [-1.0]], (50, 6)) * DRAW.choice([-1, 1], 6),
    "units": WIDE,
    "a place among many": np.c_[DRAW.permutation(2000), DRAW.normal(size=(2000, 9))],
    "phases": np.sin(np.arange(40) / 5 + DRAW.uniform(0, 6.28, (4000, 1))),
    "of two numbers": DRAW.normal(size=(4000, 2)) @ DRAW.normal(size=(2, 20))
    + 1e-3 * DRAW.normal(size=(4000, 20)),
    "categories": np.eye(9)[DRAW.integers(0, 9, (4000, 4))].reshape(4000, 36),
    "bars": np.kron(np.eye(8)[DRAW.integers(0, 8, 900)], np.ones(8)),
    "as drawn": X,
    "normal": DRAW.normal(size=(400, 64)),
    "public constants": (X - 2) / 1.41,
    "few values": DRAW.integers(0, 4, size=(400, 12)),
    "yes and no": DRAW.random((400, 49)) < 0.2,
    "one of many": np.eye(64)[DRAW.integers(0, 64, 400)],
    "one column": DRAW.random((100, 1)),
    "a step each": np.arange(400.0)[:, None] * np.ones(3),
}


@pytest.mark.parametrize("kind", TIED)
def test_what_was_made_of_several_records_is_named(kind):
    items, said = TIED[kind]
    assert any(said in one for one in told(items))


BEFORE_A_SPLIT = {
    "mean 0 and deviation 1": (X - X.mean(0)) / X.std(0),
    "all numbers of the items": (X - X.mean()) / X.std(),
    "have ends 0 and 1": (X - X.min(0)) / (X.max(0) - X.min(0)),
}


@pytest.mark.parametrize("said", BEFORE_A_SPLIT)
def test_what_was_fitted_before_records_were_split_is_named(said):
    parts = np.split(BEFORE_A_SPLIT[said][DRAW.permutation(300)], [240])
    values = [part for x in parts for part in (x, np.arange(len(x)) % 2)]
    assert any(said in one for one in tied_items(dataset_of(tuple(values), name="mine")))
    kept = np.split(X[DRAW.permutation(300)], [240])
    values = [part for x in kept for part in (x, np.arange(len(x)) % 2)]
    assert tied_items(dataset_of(tuple(values), name="mine")) == []


@pytest.mark.parametrize("kind", APART)
def test_items_of_one_record_each_are_not(kind):
    assert told(APART[kind]) == []


@pytest.mark.parametrize("name", ["digits", "faces"])
def test_pictures_that_come_along_are_not(name):
    assert tied_items(load_dataset(name)) == []


def test_normal_columns_are_named_in_fewer_than_one_of_a_thousand_data_sets():
    # The worst honest case: a column of exactly the law that a scaler makes. 2,000 data sets of
    # 8 columns; at the rate that the constants give, 3e-5 a column, more than 5 are named once in
    # a million times.
    draw = np.random.default_rng(0)
    sets = (draw.normal(size=(50, 8)).astype(np.float32) for _ in range(2000))
    assert sum(any("deviation 1" in one for one in _fitted(x)) for x in sets) <= 5


def test_what_was_said_of_other_items_is_not_said_again():
    scaled = (X - X.mean(0)) / X.std(0)
    assert [bool(told(one)) for one in (X, scaled, scaled, X)] == [False, True, True, False]
