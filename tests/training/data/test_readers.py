"""Facts about the readers: every file here is written by the test."""

import gzip
import importlib.util
import pickle
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from overhear.privacy.errors import InputError
from overhear.runs.run_file.data_table import DataTable
from overhear.training.data.readers import read_cifar10, read_idx, read_idx_folder, read_libsvm
from overhear.training.data.store import TensorStore, digests_of

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([7, 0, 9], dtype=np.uint8)
NAMES = {
    "train-images-idx3-ubyte": IMAGES,
    "train-labels-idx1-ubyte": LABELS,
    "t10k-images-idx3-ubyte": IMAGES[:1],
    "t10k-labels-idx1-ubyte": LABELS[:1],
}


def _idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def _write_idx(folder, *, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in NAMES.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(_idx(array)))
        else:
            (folder / name).write_bytes(_idx(array))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("place", ["FashionMNIST/raw", "."])
def test_idx_files_are_read_plain_or_zipped_in_both_places(tmp_path, place, zipped):
    _write_idx(tmp_path / place, zipped=zipped)
    train, test = read_idx_folder(tmp_path, folder="FashionMNIST")
    assert np.array_equal(train.inputs, IMAGES[:, None])
    assert train.targets.tolist() == [7, 0, 9]
    assert train.targets.dtype == np.int64
    assert test.inputs.shape == (1, 1, 4, 5)


@pytest.mark.parametrize(
    ("content", "dimensions", "message"),
    [
        (_idx(IMAGES)[:-1], 3, "announces 60 bytes of data and holds 59"),
        (_idx(IMAGES) + b"x", 3, "announces 60 bytes of data and holds 61"),
        (_idx(IMAGES)[:9], 3, "ends within its header of 16 bytes"),
        (_idx(IMAGES), 1, "starts with 00000803, must start with 00000801: .* labels"),
        (_idx(LABELS), 3, "starts with 00000801, must start with 00000803: .* images"),
        (b"", 1, "starts with nothing"),
        (b"\x00\x00\x0d\x01" + _idx(LABELS)[4:], 1, "starts with 00000d01"),
    ],
)
def test_an_idx_file_that_is_cut_or_of_another_kind_is_refused(
    tmp_path, content, dimensions, message
):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_idx(path, dimensions=dimensions)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(_idx(LABELS))[:-12], b"not gzip", gzip.compress(b"")[:5]],
    ids=["cut", "no gzip", "head only"],
)
def test_a_damaged_gz_file_is_refused(tmp_path, content):
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no idx file or is damaged"):
        read_idx(path, dimensions=1)


def test_a_flipped_bit_in_a_gz_file_is_noticed(tmp_path):
    content = bytearray(gzip.compress(_idx(LABELS)))
    content[-8] ^= 1  # the checksum
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no idx file or is damaged"):
        read_idx(path, dimensions=1)


def test_files_that_are_missing_or_undeclared_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train-images.*MNIST/raw and .*holds MNIST/raw"):
        read_idx_folder(tmp_path, folder="MNIST")
    with pytest.raises(ValueError, match=r"pass the number of features; .* uses 7"):
        read_libsvm(_libsvm(tmp_path, "1 7:1\n-1 2:1\n"), features=None)
    with pytest.raises(ValueError, match=r"set\.t has label 3, which .*set never uses"):
        read_libsvm(_libsvm(tmp_path, "1 1:1\n2 1:1\n", test="3 1:1\n"), features=1)


def test_images_and_labels_that_differ_in_number_are_refused(tmp_path):
    _write_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(LABELS[:2]))
    with pytest.raises(ValueError, match=r"holds 3 images and .* 2 labels"):
        read_idx_folder(tmp_path, folder="MNIST")


def test_an_idx_label_above_nine_is_refused(tmp_path):
    _write_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(_idx(LABELS + 1))
    with pytest.raises(ValueError, match=r"label 10, must lie in \[0, 9\]"):
        read_idx_folder(tmp_path, folder="MNIST")


PIXELS = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)


def _write_cifar(root, *, protocol=2, train=("data_batch_1",), **changes):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(exist_ok=True)
    batch = {"data": PIXELS, "labels": [3, 8], **changes}
    for name in (*train, "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))


@pytest.mark.parametrize("protocol", range(6))
def test_cifar_batches_of_every_pickle_protocol_are_read(tmp_path, protocol):
    if protocol == 5:  # protocol 5 stores arrays by a function that no CIFAR batch uses
        _write_cifar(tmp_path, protocol=protocol)
        with pytest.raises(ValueError, match=r"refused: it asks for numpy.*_frombuffer"):
            read_cifar10(tmp_path)
        return
    _write_cifar(tmp_path, protocol=protocol)
    train, test = read_cifar10(tmp_path)
    assert np.array_equal(train.inputs.reshape(2, -1), PIXELS)
    assert train.inputs.shape == (2, 3, 32, 32)
    assert test.targets.tolist() == [3, 8]


def test_the_cifar_batches_that_are_there_are_joined(tmp_path):
    _write_cifar(tmp_path, train=("data_batch_2", "data_batch_5"))
    train, test = read_cifar10(tmp_path)
    assert train.targets.tolist() == [3, 8, 3, 8]
    assert len(test.targets) == 2


class _Evil:
    def __reduce__(self):
        return eval, ("__import__('pathlib').Path('owned').touch()",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused_before_it_does(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    _write_cifar(tmp_path, protocol=protocol, filenames=_Evil())
    with pytest.raises(ValueError, match=r"is refused: it asks for .*eval.*do not load this file"):
        read_cifar10(tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("name", ["load", "frombuffer", "ndarray.tofile"])
def test_numpy_is_no_way_around(tmp_path, name):
    _write_cifar(tmp_path)
    evil = b"\x80\x02cnumpy\n" + name.encode() + b"\n."
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(evil)
    with pytest.raises(ValueError, match="is refused"):
        read_cifar10(tmp_path)


def test_other_encodings_are_refused(tmp_path):
    _write_cifar(tmp_path)
    evil = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R."
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(evil)
    with pytest.raises(ValueError, match="asks for the encoding 'zip'"):
        read_cifar10(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": PIXELS[:, :3000]}, r"shape \(2, 3000\) and 2 labels"),
        ({"data": PIXELS[:1]}, r"shape \(1, 3072\) and 2 labels"),
        ({"data": PIXELS.astype(float)}, "array of type 'f8'"),
        ({"data": [1, 2]}, "shape of a list and 2 labels"),
        ({"labels": [3, 10]}, r"not whole numbers in \[0, 9\]"),
        ({"labels": [3, -1]}, r"not whole numbers in \[0, 9\]"),
        ({"labels": [3.5, 1.0]}, "not whole numbers"),
    ],
)
def test_a_cifar_batch_of_other_contents_is_refused(tmp_path, changes, message):
    _write_cifar(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        read_cifar10(tmp_path)


@pytest.mark.parametrize("content", [b"", b"plain text", pickle.dumps([1]), pickle.dumps({})])
def test_a_file_that_is_no_cifar_batch_is_refused(tmp_path, content):
    _write_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(ValueError, match="no CIFAR-10 batch or is damaged"):
        read_cifar10(tmp_path)


def test_a_cut_cifar_batch_is_refused(tmp_path):
    _write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no CIFAR-10 batch or is damaged"):
        read_cifar10(tmp_path)


def test_missing_cifar_batches_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data_batch_1 to .*cifar-10-batches-py"):
        read_cifar10(tmp_path)
    _write_cifar(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(FileNotFoundError, match="no test_batch in"):
        read_cifar10(tmp_path)


def _libsvm(tmp_path, text, test=None):
    path = tmp_path / "set"
    path.write_text(text)
    if test is not None:
        (tmp_path / "set.t").write_text(test)
    return path


def test_libsvm_reads_continuous_and_negative_values(tmp_path):
    path = _libsvm(tmp_path, "+1 1:0.5 4:-3e-2  # a remark\n-1 2:-7\n-1\n", test="-1 1:1\n")
    train, test, labels = read_libsvm(path, features=5)
    expected = [[0.5, 0, 0, -0.03, 0], [0, -7, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert np.array_equal(train.inputs, np.array(expected, dtype=np.float32))
    assert train.inputs.dtype == np.float32
    assert train.targets.tolist() == [1, 0, 0]
    assert test.targets.tolist() == [0]
    assert test.inputs.shape == (1, 5)
    assert labels == (-1, 1)


def test_libsvm_labels_become_classes_in_their_order(tmp_path):
    train, test, labels = read_libsvm(_libsvm(tmp_path, "3 1:1\n1 1:1\n8 1:1\n1 1:1\n"), features=1)
    assert train.targets.tolist() == [1, 0, 2, 0]
    assert test is None
    assert labels == (1, 3, 8)


def test_declared_libsvm_labels_number_the_classes_whatever_the_file_holds(tmp_path):
    path = _libsvm(tmp_path, "1 1:1\n8 1:1\n1 1:1\n")
    train, _, labels = read_libsvm(path, features=1, labels=[3, 1, 8])
    assert (train.targets.tolist(), labels) == ([1, 2, 1], (3, 1, 8))
    with pytest.raises(InputError, match=r"has label 8, which labels=\[1, 3\] lacks"):
        read_libsvm(path, features=1, labels=[1, 3])


def test_libsvm_test_file_may_be_named(tmp_path):
    path = _libsvm(tmp_path, "1 1:1\n2 1:1\n")
    (tmp_path / "other").write_text("2 1:5\n")
    _, test, _ = read_libsvm(path, tmp_path / "other", features=1)
    assert test.targets.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 0:1\n-1 1:1\n", "Invalid index 0"),
        ("1 3:1\n-1 1:1\n", "n_features was set to 2, but input file contains 3"),
        ("1 2:1 1:1\n", "sorted and unique"),
        ("1 1:1 1:1\n", "sorted and unique"),
        ("1 1:x\n", "is no LIBSVM text or is damaged"),
        ("one 1:1\n", "is no LIBSVM text or is damaged"),
        ("1 99999999999999:1\n", "is no LIBSVM text or is damaged"),
        ("1 1:nan\n-1 1:1\n", "holds a value that is not finite"),
        ("1 1:inf\n-1 1:1\n", "holds a value that is not finite"),
        ("nan 1:1\n-1 1:1\n", "holds a value that is not finite"),
        ("0.5 1:1\n1 1:1\n", r"labels \[0.5, 1.0\].*classes, not measurements"),
        ("1 1:1\n1 1:1\n", "at least two whole numbers"),
        ("", "at least two whole numbers"),
    ],
)
def test_libsvm_text_that_is_wrong_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_libsvm(_libsvm(tmp_path, text), features=2)


def test_a_missing_libsvm_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="set root to the file itself"):
        read_libsvm(tmp_path, features=1)
    path = _libsvm(tmp_path, "1 1:1\n-1 1:1\n")
    with pytest.raises(FileNotFoundError, match="elsewhere"):
        read_libsvm(path, tmp_path / "elsewhere", features=1)


# Readers make an item of one record alone: the others stay as they are when it is taken out.

COUNT, LEFT = 24, (0, 7, 23)  # the first and the last record hold every smallest and largest value
AGE = [None if i == 11 else 5 * i for i in range(COUNT)]
SEX = ["f" if i == 0 else "x" if i == 23 else "" if i == 12 else "m" for i in range(COUNT)]
Y = [2 if i == 23 else i % 2 for i in range(COUNT)]
X = np.arange(3.0 * COUNT).reshape(COUNT, 3)
COLUMNS = {"age": [0, 100], "sex": ["f", "m"]}


def write_csv(folder: Path, kept: list[int], separator: str = ",") -> dict[str, object]:
    lines = [[str(i // 2), "" if AGE[i] is None else str(AGE[i]), SEX[i], str(Y[i])] for i in kept]
    rows = [separator.join(line) for line in (["who", "age", "sex", "y"], *lines)]
    (folder / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    more = {"columns": COLUMNS, "target": "y", "outside": "clamp", "classes": 3}
    return {"name": "csv", "root": str(folder / "t.csv"), "separator": separator, **more}


def write_parquet(folder: Path, kept: list[int]) -> dict[str, object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"age": AGE, "sex": SEX, "y": Y}
    table = {name: [of[i] for i in kept] for name, of in columns.items()}
    pq.write_table(pa.table(table), folder / "t.parquet")
    more = {"columns": COLUMNS, "target": "y", "outside": "clamp", "classes": 3}
    return {"name": "parquet", "root": str(folder / "t.parquet"), **more}


def write_npz(folder: Path, kept: list[int]) -> dict[str, object]:
    np.savez(folder / "t.npz", X=X[kept], y=np.array(Y)[kept])
    return {"name": "npz", "root": str(folder / "t.npz"), "classes": 3}


def write_npy(folder: Path, kept: list[int]) -> dict[str, object]:
    np.save(folder / "X.npy", X[kept])
    np.save(folder / "y.npy", np.array(Y)[kept])
    paths = {"root": str(folder / "X.npy"), "target": str(folder / "y.npy")}
    return {"name": "npy", "classes": 3, **paths}


def write_libsvm(folder: Path, kept: list[int], **more: object) -> dict[str, object]:
    lines = [f"{-1 if Y[i] == 2 else 5 + Y[i]} 1:{i + 1} {1 + i % 4 + 1}:{2 * i + 1}" for i in kept]
    (folder / "t.svm").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"name": "libsvm", "root": str(folder / "t.svm"), "features": 6, **more}


def write_images(folder: Path, kept: list[int]) -> dict[str, object]:
    from PIL import Image

    for label in set(Y):
        (folder / "images" / f"c{label}").mkdir(parents=True, exist_ok=True)
    for i in kept:
        grey = np.full((4, 5), 10 * i + 1, dtype=np.uint8)
        Image.fromarray(grey).save(folder / "images" / f"c{Y[i]}" / f"{i:03}.png")
    return {"name": "image-folder", "root": str(folder / "images")}


READERS = {
    "csv": write_csv,
    "semicolons": lambda folder, kept: write_csv(folder, kept, ";"),
    "converted csv": lambda folder, kept: {
        **write_csv(folder, kept),
        "cache": str(folder / "cache"),
    },
    "csv of users": lambda folder, kept: {**write_csv(folder, kept), "user": "who"},
    "csv of a number": lambda folder, kept: {
        **{key: v for key, v in write_csv(folder, kept).items() if key != "classes"},
        "outputs": 1,
    },
    "parquet": write_parquet,
    "npz": write_npz,
    "npy": write_npy,
    "libsvm": lambda folder, kept: write_libsvm(folder, kept, labels=[-1, 5, 6]),
    "image-folder": write_images,
    "shortened": lambda folder, kept: {**write_npz(folder, kept), "feature_norm": 20.0},
}


def items(folder: Path, write, kept: list[int]) -> Counter[bytes]:
    folder.mkdir()
    data = DataTable.model_validate(write(folder, kept)).read()
    test = TensorStore(data.test_inputs, data.test_targets)
    return Counter([*digests_of(data.train).tolist(), *digests_of(test).tolist()])


@pytest.mark.parametrize("reader", READERS)
def test_the_other_items_stay_bit_by_bit(tmp_path, reader):
    if reader == "parquet" and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("needs pyarrow")
    every = list(range(COUNT))
    whole = items(tmp_path / "whole", READERS[reader], every)
    for left in LEFT:
        kept = [i for i in every if i != left]
        found = items(tmp_path / f"without {left}", READERS[reader], kept)
        assert (whole - found).total() == 1
        assert not found - whole


def test_labels_that_are_not_declared_are_numbered_by_all_records_and_that_is_said(tmp_path):
    every = list(range(COUNT))
    whole = items(tmp_path / "whole", write_libsvm, every)
    found = items(tmp_path / "found", write_libsvm, every[:-1])  # the only one of label -1
    assert (found - whole).total() == COUNT - 1
    (tmp_path / "more").mkdir()
    table = DataTable.model_validate(write_libsvm(tmp_path / "more", every))
    said = "the labels of 't.svm', [-1, 5, 6], are taken from its records and counted as public"
    assert table.read().notes == (said,)
    declared = write_libsvm(tmp_path / "more", every, labels=[-1, 5, 6])
    assert DataTable.model_validate(declared).read().notes == ()
