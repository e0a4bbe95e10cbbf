"""Readers make an item of one record alone: the others stay as they are when it is taken out."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from overhear.runs.run_file.data_table import DataTable
from overhear.training.data.store import TensorStore, digests_of

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
