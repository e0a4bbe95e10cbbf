"""Data of one's own: what becomes of them, and what is refused by its value and row."""

import sys

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from overhear.privacy.errors import InputError, InputTypeError
from overhear.training.data.load import load_dataset
from overhear.training.data.own_data import dataset_of, own_dataset, read_npy, read_npz
from overhear.training.data.store import MappedStore

X, Y = np.arange(40.0).reshape(20, 2), np.arange(20) % 3


class Items:
    """A map-style data set of given items."""

    def __init__(self, items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int):
        return self.items[at]


class Random(Items):
    """Another record whenever it is asked."""

    def __getitem__(self, at: int):
        return torch.rand(3), 0


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


def test_arrays_become_float32_and_a_fifth_is_held_out():
    data = dataset_of((X, Y), name="mine")
    assert (data.inputs.dtype, tuple(data.inputs.shape)) == (torch.float32, (16, 2))
    assert tuple(data.test_inputs.shape) == (4, 2)
    every = torch.cat([data.inputs, data.test_inputs])
    assert sorted(every[:, 0].tolist()) == X[:, 0].tolist()
    assert torch.equal(torch.cat([data.targets, data.test_targets]), (every[:, 0] / 2 % 3).long())
    assert (data.classes, data.image) == (3, False)


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (torch.tensor(x), torch.tensor(y)),
        lambda x, y: [x.astype(np.float32), y.astype(np.uint8)],
        lambda x, y: (x, y.astype(bool) if y.max() < 2 else y),
        lambda x, y: TensorDataset(torch.tensor(x), torch.tensor(y)),
        lambda x, y: Items([(list(row), int(label)) for row, label in zip(x, y, strict=True)]),
    ],
    ids=["tensors", "small types", "lists", "torch data set", "items"],
)
def test_the_same_records_in_any_form_are_the_same_data_set(form):
    one, other = dataset_of(form(X, Y), name="mine"), dataset_of((X, Y), name="mine")
    at = torch.arange(one.train.size)
    for a, b in zip(one.train.take(at), other.train.take(at), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.test_inputs, other.test_inputs)


def test_test_parts_of_ones_own_are_kept():
    data = dataset_of((X, Y, X[:5], Y[:5]), name="mine")
    assert (len(data.inputs), len(data.test_inputs)) == (20, 5)
    pair = tuple(
        TensorDataset(torch.tensor(x), torch.tensor(y)) for x, y in ((X, Y), (X[:5], Y[:5]))
    )
    assert (
        dataset_of(pair, name="mine").train.size,
        len(dataset_of(pair, name="m").test_inputs),
    ) == (20, 5)


def test_a_number_of_classes_that_is_not_given_is_noted():
    assert dataset_of((X, Y), name="mine").notes == (
        "the number of classes of 'mine', 3, is taken from its labels and counted as public",
    )
    given = dataset_of((X, Y), name="mine", classes=7)
    assert (given.classes, given.notes) == (7, ())


def test_numbers_to_predict_are_kept():
    one = dataset_of((X, X[:, :1]), name="mine", outputs=1)
    assert (one.targets.dtype, tuple(one.targets.shape), one.classes) == (torch.float32, (16,), 0)
    assert tuple(dataset_of((X, X), name="mine", outputs=2).targets.shape) == (16, 2)


def _bad(**at):
    """The arrays with another value in row 5."""
    x, y = X.copy(), Y.copy()
    for key, value in at.items():
        (x if key == "x" else y)[5] = value
    return x, y


@pytest.mark.parametrize(
    ("value", "how", "why"),
    [
        (_bad(x=np.nan), {}, r"X\[5, 0\]=nan must be a finite number"),
        (_bad(x=[1, np.inf]), {}, r"X\[5, 1\]=inf"),
        (_bad(x=[1e39, 0]), {}, r"X\[5, 0\]=1e\+39 must be a finite number of float32"),
        (_bad(y=-1), {}, r"y\[5\]=-1 is negative; labels count from 0"),
        (_bad(y=9), {}, "y goes to 9 and no record has label 3"),
        (_bad(y=9), {"classes": 4}, r"y\[5\]=9 must be at most 3, as there are 4 classes"),
        ((X, 0 * Y), {}, "y names one class only, 0"),
        ((X, Y + 0.5), {}, r"y\[0\]=0.5 is of type float64 and labels are whole numbers"),
        ((X, Y * 1.0), {}, r"set \[data\] outputs to predict numbers"),
        ((X, Y[:, None]), {}, r"y has shape \(20, 1\)"),
        ((X, Y[:9]), {}, r"y has shape \(9,\) for 20 records"),
        ((X[:, 0], Y), {}, r"X has shape \(20,\)"),
        ((X.astype(str), Y), {}, "X has shape"),
        ((X + 1j, Y), {}, "of numbers"),
        ((X[:4], Y[:4]), {}, "holds 4 records, too few to hold a fifth out"),
        ((X, Y, X[:, :1], Y), {}, "test records have shape"),
        ((X, X[:, 0] * np.nan), {"outputs": 1}, r"y\[0\]=nan must be a finite number"),
        ((X, X), {"outputs": 1}, r"y has shape \(20, 2\); with outputs=1 give \(20,\)"),
        ((X, Y), {"outputs": 1, "classes": 2}, "give one of them"),
        ([X, [[1], [2, 3]] * 10], {}, "y is no array"),
        (Items([]), {}, "a data set without records"),
        (Items([(torch.zeros(2), 0)] * 9 + [(torch.zeros(3), 0)]), {}, r"item 9 has shape \(3,\)"),
        (Items([torch.zeros(2)] * 9), {}, "item 0 is tensor.*must be a pair"),
        (Items([(torch.zeros(2), 0.5)] * 9), {}, "its target is 0.5; a label is one whole number"),
        (Items([(torch.full((2,), np.nan), 0)] * 9), {}, r"item 0: its inputs hold nan at \[0\]"),
        (Items([("picture", 0)] * 9), {}, "its inputs are of str; give a tensor"),
        (Random([0] * 9), {}, "item 0 comes out otherwise when it is read again; leave out"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_value_and_row(value, how, why):
    with pytest.raises(InputError, match=why):
        dataset_of(value, name="mine", **how)


@pytest.mark.parametrize("value", [None, 3, (X,), (X, Y, X), {"X": X}, Stream(), "mine"])
def test_what_is_no_data_set_is_refused_with_what_is_one(value):
    with pytest.raises(InputTypeError, match="it must give arrays"):
        dataset_of(value, name="mine")


def test_a_data_set_of_ours_is_itself_unless_the_run_file_says_otherwise():
    digits = load_dataset("digits")
    assert dataset_of(digits, name="mine") is digits
    with pytest.raises(InputError, match="classes=3, and the data set 'digits' has 10"):
        dataset_of(digits, name="mine", classes=3)
    with pytest.raises(InputError, match="outputs=1, and the data set 'digits' has 0"):
        dataset_of(digits, name="mine", outputs=1)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("made", {"sede": 1}, "sede is unknown, and 'own_data_of_tests:made' takes seed"),
        ("needs", {}, "size is missing; 'own_data_of_tests:needs' needs it"),
        ("fails", {}, "calling it raised KeyError: 'no such file'"),
        ("VALUES", {"seed": 1}, "seed is unknown, and 'own_data_of_tests:VALUES' is no function"),
    ],
)
def test_functions_and_their_options(tmp_path, monkeypatch, name, options, why):
    (tmp_path / "own_data_of_tests.py").write_text(
        "import numpy as np\n"
        "VALUES = np.zeros((9, 2)), np.arange(9) % 2\n"
        "def made(seed=0): return np.full((9, 2), seed), VALUES[1]\n"
        "def needs(size): return VALUES\n"
        "def fails(): raise KeyError('no such file')\n"
    )
    monkeypatch.chdir(tmp_path)
    own = "own_data_of_tests"
    monkeypatch.delitem(sys.modules, own, raising=False)  # of another case's folder
    assert own_dataset(f"{own}:made", {"seed": 4}).inputs.unique().tolist() == [4]
    assert own_dataset(f"{own}:VALUES", {}).classes == 2
    with pytest.raises(InputError, match=why):
        own_dataset(f"{own}:{name}", options)


def test_array_files_hold_what_arrays_do(tmp_path):
    np.savez(tmp_path / "a.npz", X=X, y=Y, X_test=X[:5], y_test=Y[:5])
    packed = read_npz(tmp_path / "a.npz", classes=3)
    assert (len(packed.inputs), len(packed.test_inputs)) == (20, 5)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    mapped = read_npy(tmp_path / "x.npy", tmp_path / "y.npy")
    whole = dataset_of((X, Y), name="mine")
    at = torch.arange(16)
    assert torch.equal(mapped.train.take(at).inputs, whole.inputs)
    assert torch.equal(mapped.test_inputs, whole.test_inputs)
    assert isinstance(mapped.train.store, MappedStore)
    assert mapped.inputs.is_meta


@pytest.mark.parametrize(
    ("arrays", "why"),
    [
        ({"X": X}, "has no array 'y'; its arrays are X"),
        ({"X": X, "y": Y, "X_test": X}, "has no array 'y_test'"),
        ({"X": np.array([object()]), "y": Y}, "'X' is of type 'object', must be of real numbers"),
        ({"X": _bad(x=np.nan)[0], "y": Y}, r"X\[5, 0\]=nan"),
    ],
)
def test_npz_refusals(tmp_path, arrays, why):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=why):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("inputs", "labels", "why"),
    [
        (b"no array", Y, "x.npy is no npy file or is damaged"),
        (X[:, 0], Y, r"has shape \(20,\); it must be"),
        (np.array([[object()]]), Y, "must be of real numbers"),
        (_bad(x=np.nan)[0], Y, r"x.npy\[5, 0\]=nan"),
        (X, b"no array", "y.npy is no npy file"),
        (X, Y[:3], r"y.npy has shape \(3,\) for 20 records"),
        (X, _bad(y=-1)[1], r"y.npy\[5\]=-1 is negative"),
    ],
)
def test_npy_refusals(tmp_path, inputs, labels, why):
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    for path, content in zip(paths, (inputs, labels), strict=True):
        path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with pytest.raises(InputError, match=why):
        read_npy(*paths)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no npz file at"):
        read_npz(tmp_path / "a.npz")
    with pytest.raises(FileNotFoundError, match="set root to the file itself"):
        read_npy(tmp_path / "x.npy", tmp_path / "y.npy")
