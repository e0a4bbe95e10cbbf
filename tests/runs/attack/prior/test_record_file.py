"""Files of records that an attacker is taken to know: what is read, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from overhear.privacy.errors import InputError
from overhear.runs.attack.prior_records import (
    RecordForm,
    Records,
    candidates_of,
    check_unplanted,
    digest_of,
    read_records,
)
from overhear.training.data.columns import declared

SHAPE = (1, 3, 4)
FORM = RecordForm(
    shape=SHAPE, classes=3, to_unit=lambda x: (x + 1) / 2, said="mean and std", table=None
)
UNITS = torch.linspace(0, 1, 36).reshape(3, *SHAPE)
LABELS = torch.tensor([2, 0, 1])


def _saved(folder: Path, name: str, **arrays: torch.Tensor) -> Path:
    path = folder / name
    if path.suffix == ".npz":
        np.savez(path, **{key: value.numpy() for key, value in arrays.items()})
    else:
        save_file({key: value.contiguous() for key, value in arrays.items()}, path)
    return path


def _pictures(folder: Path) -> Path:
    for name, image in zip("abc", UNITS, strict=True):
        levels = (image[0] * 255).round().to(torch.uint8).numpy()
        (folder / "set").mkdir(exist_ok=True)
        Image.fromarray(levels).save(folder / "set" / f"{name}.png")
    return folder / "set"


@pytest.mark.parametrize("name", ["r.safetensors", "r.npz"])
@pytest.mark.parametrize("kind", ["inputs", "pixels", "levels"])
def test_arrays_are_read_as_the_network_is_fed_or_as_pixels(tmp_path, name, kind):
    arrays = {
        "inputs": {"inputs": (2 * UNITS - 1).float()},
        "pixels": {"pixels": UNITS.double()},
        "levels": {"pixels": (UNITS * 255).round().to(torch.uint8)},
    }[kind]
    found = read_records(_saved(tmp_path, name, labels=LABELS, **arrays), FORM)
    assert torch.allclose(found.pixels, UNITS.double(), atol=1 / 500)
    assert found.labels is not None
    assert found.labels.tolist() == [2, 0, 1]


def test_pictures_have_labels_by_their_folders_alone(tmp_path):
    plain = read_records(_pictures(tmp_path), FORM)
    assert plain.labels is None
    assert torch.allclose(plain.pixels, UNITS.double(), atol=1 / 500)
    for name, number in (("b", "2"), ("a", "0")):
        (tmp_path / "by-class" / number).mkdir(parents=True)
        (tmp_path / "set" / f"{name}.png").rename(tmp_path / "by-class" / number / "x.png")
    found = read_records(tmp_path / "by-class", FORM)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 2]
    assert torch.allclose(found.pixels, UNITS[:2].double(), atol=1 / 500)


def test_a_picture_of_sixteen_bits_has_the_same_pixels(tmp_path):
    grey = (UNITS[0, 0].double() * 65535).round().numpy().astype("uint16")
    Image.fromarray(grey).save(tmp_path / "deep.png")
    found = read_records(tmp_path / "deep.png", FORM).pixels[0]
    assert torch.allclose(found, UNITS[0].double(), atol=1e-4)


@pytest.mark.parametrize("target", [True, False])
def test_a_table_is_read_with_its_target_or_without(tmp_path, target):
    columns = {"age": [0, 100], "sex": ["f", "m"], "ill": ["no", "yes"]}
    table = declared(columns, target="ill", outputs=0, clamp=False)
    form = RecordForm(shape=(5,), classes=2, to_unit=lambda x: x, said="the ranges", table=table)
    rows = ["sex,age,ill", "f,50,yes", "m,25,no"]
    text = "\n".join(rows if target else [row.rpartition(",")[0] for row in rows])
    (tmp_path / "r.csv").write_text(text + "\n")
    found = read_records(tmp_path / "r.csv", form)
    assert found.pixels.tolist() == [[0.5, 1, 0, 0, 0], [0.25, 0, 1, 0, 0]]
    assert (None if found.labels is None else found.labels.tolist()) == ([1, 0] if target else None)
    (tmp_path / "r.csv").write_text("sex,age\nf,101\n")
    with pytest.raises(InputError, match=r"line 2, column 'age': '101' lies outside"):
        read_records(tmp_path / "r.csv", form)
    with pytest.raises(InputError, match="declares no columns"):
        read_records(tmp_path / "r.csv", FORM)


BAD = UNITS.clone()
BAD[1, 0, 0, 0] = torch.nan


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": UNITS}, "must hold an array `inputs`"),
        ({"inputs": UNITS, "pixels": UNITS.clone()}, "holds both 'inputs' and 'pixels'"),
        ({"pixels": UNITS[:, :, :2]}, r"has shape \(3, 1, 2, 4\), must be \(records, 1, 3, 4\)"),
        ({"pixels": UNITS[:0]}, r"has shape \(0, 1, 3, 4\)"),
        ({"pixels": 255 * UNITS}, r"spans \[0, 255\]"),
        ({"inputs": UNITS - 1.5}, "outside what mean and std make"),
        ({"pixels": BAD}, "not finite"),
        ({"inputs": BAD}, "not finite"),
        ({"pixels": UNITS.round().to(torch.uint8)}, "at most 1, but levels go up to 255"),
        ({"pixels": UNITS.round().to(torch.int64)}, "is of int64, must be a floating-point type"),
        ({"inputs": UNITS.round().to(torch.uint8)}, "is of uint8, must be a floating-point type"),
        ({"pixels": UNITS, "labels": torch.tensor([0, 3, 1])}, r"spans \[0, 3\], must lie in 0 to"),
        ({"pixels": UNITS, "labels": torch.tensor([0, -1, 1])}, "must lie in 0 to 2"),
        ({"pixels": UNITS, "labels": torch.tensor([0, 1])}, "one for each of 3 records"),
        ({"pixels": UNITS, "labels": torch.ones(3)}, "is of float32"),
    ],
)
@pytest.mark.parametrize("name", ["r.safetensors", "r.npz"])
def test_what_is_no_record_is_refused(tmp_path, name, arrays, words):
    with pytest.raises(InputError, match=words):
        read_records(_saved(tmp_path, name, **arrays), FORM)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "r.npz").write_bytes(b"PK\x03\x04 torn")
    np.savez(tmp_path / "o.npz", pixels=np.array([object()], dtype=object))
    (tmp_path / "r.pt").write_bytes(b"pickle")
    for name in ("r.npz", "o.npz", "r.pt"):
        with pytest.raises(InputError, match=name):
            read_records(tmp_path / name, FORM)
    (tmp_path / "empty").mkdir()
    for name in ("gone.npz", "empty"):
        with pytest.raises(FileNotFoundError, match=name):
            read_records(tmp_path / name, FORM)
    small = tmp_path / "small"
    small.mkdir()
    Image.fromarray(np.zeros((2, 2), dtype=np.uint8)).save(small / "x.png")
    with pytest.raises(InputError, match="2x2, must be 3x4"):
        read_records(small, FORM)
    (small / "0").mkdir()
    with pytest.raises(InputError, match="pictures and folders"):
        read_records(small, FORM)


def test_planted_records_are_refused_though_saved_as_grey_levels(tmp_path):
    known = read_records(_pictures(tmp_path), FORM)
    with pytest.raises(InputError, match="record 1, counted from 0; leave them out"):
        check_unplanted(tmp_path, known, UNITS[1:2])
    check_unplanted(tmp_path, known, (UNITS[1:2] + 0.01).clamp(0, 1))


def test_a_record_without_a_label_is_a_candidate_under_each():
    known = Records(pixels=UNITS.double())
    found = candidates_of(known, to_inputs=lambda x: 2 * x - 1, classes=3, seed=0)
    assert len(found) == 9
    assert sorted(zip(found.numbers.tolist(), found.labels.tolist(), strict=True)) == [
        (record, label) for record in range(3) for label in range(3)
    ]
    assert torch.equal(found.inputs[0], found.inputs[1])
    assert found.log_priors.exp().tolist() == pytest.approx([1 / 3] * 9)


def test_of_many_records_a_random_part_is_weighed():
    many = Records(pixels=torch.rand(5000, *SHAPE).double(), labels=torch.zeros(5000).long())
    found = candidates_of(many, to_inputs=lambda x: x, classes=3, seed=1)
    assert len(found) == 2000
    assert not torch.equal(found.inputs, many.pixels[:2000].float())
    alone = candidates_of(Records(pixels=many.pixels), to_inputs=lambda x: x, classes=3, seed=1)
    assert len(alone) == 3 * (2000 // 3)


def test_the_digest_is_that_of_names_and_bytes(tmp_path):
    folder = _pictures(tmp_path)
    before = digest_of(folder)
    (folder / "c.png").rename(folder / "d.png")
    assert digest_of(folder) != before
