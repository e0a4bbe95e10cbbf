"""A data function that is called with records left out: what is seen by it, and what is refused."""

import itertools
import sys
import types

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.data.load import Dataset
from overhear.training.data.own_data import dataset_of, own_dataset
from overhear.training.data.tied_items import leave_out

RECORDS, WIDTH = 90, 16
DRAWN = np.random.default_rng(0)
X = DRAWN.gamma(2.0, size=(RECORDS, WIDTH)).astype(np.float32)
Y = np.where(np.arange(RECORDS) % 10 == 7, 2, np.arange(RECORDS) % 2)


def raw(i):
    """The records, one left out before anything is computed of them."""
    return (X, Y) if i is None else (np.delete(X, i, 0), np.delete(Y, i))


def split(x, y, order):
    train, test = np.split(order, [len(x) // 5 * 4])
    return x[train], y[train], x[test], y[test]


def encoded(x, y):
    """The mean label of a group, beside the inputs."""
    group = (x[:, 0] > 2).astype(int)
    means = np.array([y[group == one].mean() for one in (0, 1)])
    return np.c_[x, means[group]], y


def filled(x, y):
    held = np.where(x > 4, np.nan, x)
    return np.where(np.isnan(held), np.nanmedian(held, 0), held), y


def by_class(x, y):
    """A split that keeps the shares of the classes, and so looks at all labels."""
    train, test = np.zeros(0, int), np.zeros(0, int)
    for label in range(3):
        at = np.flatnonzero(y == label)
        train, test = np.r_[train, at[: len(at) // 2]], np.r_[test, at[len(at) // 2 :]]
    return x[train], y[train], x[test], y[test]


def balanced(x, y):
    """As many records of every class as there are of the rarest."""
    few = np.bincount(y).min()
    kept = np.concatenate([np.flatnonzero(y == label)[:few] for label in range(3)])
    return x[kept], y[kept]


def distinct(x, y):
    kept = np.sort(np.unique(x, axis=0, return_index=True)[1])
    return x[kept], y[kept]


def mirrored(x, y, users=False):
    two = np.stack([x, x[:, ::-1]], 1).reshape(-1, WIDTH)
    if not users:
        return two, np.repeat(y, 2)
    data = dataset_of((two, np.repeat(y, 2), two[:5], y[:5]), name="mine", classes=3)
    of = torch.arange(len(two)) // 2
    fields = {name: getattr(data, name) for name in Dataset.__slots__}
    return Dataset(**fields | {"users": of})


def words(x, y):
    """Columns for the values that occur, as a vocabulary has them."""
    values = np.unique(np.round(x[:, 0], 1))
    return (np.round(x[:, :1], 1) == values).astype(np.float32), y


def grown(x, y, *, mixed):
    rare = np.flatnonzero(y == 2)
    more = 0.3 * x[rare] + 0.7 * x[np.roll(rare, 1)] if mixed else x[rare]
    return np.r_[x, more], np.r_[y, y[rare]]


FALSE = {
    "scaled": (lambda x, y: ((x - x.mean(0)) / x.std(0), y), "89 items differ in 16 of 16 numbers"),
    "smallest and largest": (lambda x, y: (x / x.max(0), y), "items differ"),
    "mixed": (lambda x, y: (0.5 * x + 0.5 * np.roll(x, -1, 0), y), "2 items differ"),
    "between": (lambda x, y: grown(x, y, mixed=True), "items differ"),
    "twice": (lambda x, y: grown(x, y, mixed=False), "2 items are gone, where 1 item may be"),
    "views": (mirrored, "record 0 left out 2 items are gone, where 1 item may be"),
    "mean label": (encoded, "in 1 of 17 numbers"),
    "median": (filled, "items differ"),
    "ranks": (lambda x, y: (x.argsort(0).argsort(0), y), "items differ"),
    "vocabulary": (words, "in shape"),
    "split by class": (by_class, "items differ"),
    "ignored": (lambda x, y: (X, Y), "leaves nothing out: there are 90 items with it and without"),
    "unseeded": (lambda x, y: (x + np.random.normal(size=x.shape), y), "again"),  # noqa: NPY002
    "balanced": (balanced, "items differ"),
}
# Of many records one sets the scale, or is in need of the last column.
MANY = DRAWN.gamma(2.0, size=(2000, WIDTH)).astype(np.float32)
MANY[1234, 3], MANY[777, 5] = 99.0, -99.0
LONG = MANY * (np.arange(WIDTH) < DRAWN.integers(3, WIDTH - 1, (2000, 1)))
LONG[611] = MANY[611]
OF_ONE = {
    "largest of all": (MANY, lambda x: x / x.max()),
    "smallest of all": (MANY, lambda x: x - x.min()),
    "longest": (LONG, lambda x: x[:, : np.flatnonzero(x.any(0))[-1] + 1]),
}
W = np.random.default_rng(1).normal(size=(WIDTH, 7)).astype(np.float32)
SOUND = {
    "as they are": lambda x, y: (x, y),
    "public constants": lambda x, y: ((x - 2) / 1.5, y),
    "its own length": lambda x, y: (x / np.linalg.norm(x, axis=1, keepdims=True), y),
    "public features": lambda x, y: (np.tanh(x @ W), y),
    "public filters": lambda x, y: (
        torch.conv1d(torch.tensor(x)[:, None], torch.tensor(W.T[:, None, :5])).flatten(1),
        y,
    ),
    "shuffled by number": lambda x, y: (
        x[p := np.random.default_rng(len(x)).permutation(len(x))],
        y[p],
    ),
    "split by number": lambda x, y: split(x, y, np.random.default_rng(len(x)).permutation(len(x))),
    "sorted": lambda x, y: (x[p := np.argsort(x[:, 0])], y[p]),
    "chosen one by one": lambda x, y: (x[k := x[:, 0] > 1], y[k]),
    "without copies": distinct,
    "a data set": lambda x, y: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
}


@pytest.fixture
def named(monkeypatch):
    """Call a function of the module `promised`."""
    numbers = itertools.count()

    def call(made, **options):
        name = f"promised{next(numbers)}"
        module = types.ModuleType(name)
        module.data = lambda leave_out=None: made(*raw(leave_out))
        monkeypatch.setitem(sys.modules, name, module)
        return leave_out(f"{name}:data", {}, **options)

    return call


@pytest.mark.parametrize("kind", FALSE)
def test_items_of_several_records_are_refused_by_what_differs(named, kind):
    made, said = FALSE[kind]
    with pytest.raises(InputError, match=said):
        named(made)


@pytest.mark.parametrize("kind", OF_ONE)
def test_the_record_that_sets_the_scale_of_all_is_left_out(monkeypatch, kind):
    x, made = OF_ONE[kind]
    module = types.ModuleType("promised")

    def data(leave_out=None):
        kept = x if leave_out is None else np.delete(x, leave_out, 0)
        return made(kept), np.arange(len(kept)) % 2

    module.data = data
    monkeypatch.setitem(sys.modules, "promised", module)
    with pytest.raises(InputError, match=r"items differ"):
        leave_out("promised:data", {})


@pytest.mark.parametrize("kind", SOUND)
def test_items_of_one_record_each_are_shown(named, kind):
    assert named(SOUND[kind]) >= 10


def test_views_of_one_user_pass_where_the_figures_are_of_users_and_users_are_named(named):
    assert named(lambda x, y: mirrored(x, y, users=True), most=2) >= 10
    for made in (mirrored, FALSE["mixed"][0], FALSE["scaled"][0]):
        with pytest.raises(InputError, match="where 2 items of one user may"):
            named(made, most=2)


def test_no_further_record_is_left_out_after_a_minute(named):
    assert named(SOUND["as they are"], clock=itertools.count(0, 50).__next__) == 4


def test_a_function_that_fails_is_told_with_the_record(monkeypatch):
    module = types.ModuleType("promised")
    module.data = lambda leave_out=None: raw(None if leave_out is None else leave_out + RECORDS)
    monkeypatch.setitem(sys.modules, "promised", module)
    with pytest.raises(InputError, match="calling it with leave_out=0 raised IndexError"):
        leave_out("promised:data", {})


def test_only_a_function_with_the_argument_is_asked_and_no_run_file_gives_it(monkeypatch):
    module = types.ModuleType("promised")
    module.without, module.required = (lambda: raw(None)), raw
    module.data = lambda leave_out=None: raw(leave_out)
    monkeypatch.setitem(sys.modules, "promised", module)
    assert leave_out("promised:without", {}) == 0
    assert leave_out("promised:required", {"i": 3}) == 0
    with pytest.raises(InputError, match="leave_out is given when it is checked"):
        own_dataset("promised:data", {"leave_out": 3})
