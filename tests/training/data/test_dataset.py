"""Facts about records in memory."""

import collections

import numpy as np
import pytest
import torch
from PIL import Image

from overhear.privacy.errors import InputError
from overhear.training.data import partition
from overhear.training.data.load import Dataset
from overhear.training.data.own_data import dataset_of_stores
from overhear.training.data.readers import read_image_folder
from overhear.training.data.store import TensorStore
from overhear.training.data.table import read_users


def _fields(**changes):
    fields = {
        "name": "toy", "inputs": torch.zeros(4, 1, 2, 2), "targets": torch.tensor([0, 1, 0, 1]),
        "test_inputs": torch.zeros(2, 1, 2, 2), "test_targets": torch.tensor([0, 1]), "classes": 2,
        "mean": (0.5,), "std": (0.25,), "image": True,
    }  # fmt: skip
    return fields | changes


def test_pixels_inverts_normalise_per_channel():
    fields = _fields(
        inputs=torch.zeros(4, 3, 2, 2), test_inputs=torch.zeros(2, 3, 2, 2), mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.25, 2.0),
    )  # fmt: skip
    dataset = Dataset(**fields)
    pixels = torch.rand(5, 3, 2, 2, dtype=torch.float64)
    inputs = dataset.normalise(pixels)
    assert inputs.dtype == torch.float64
    assert torch.allclose(inputs[:, 1], (pixels[:, 1] - 0.2) / 0.25, rtol=0, atol=1e-14)
    assert torch.allclose(dataset.pixels(inputs), pixels, rtol=0, atol=1e-14)
    assert torch.equal(dataset.normalise(pixels[0]), inputs[0])


def test_bounds_are_normalised_black_and_white():
    low, high = Dataset(**_fields()).bounds
    assert (low.tolist(), high.tolist()) == ([-2.0], [2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 1}, "classes=1 of 'toy' must be at least 2"),
        ({"inputs": torch.zeros(4, 1, 2, 2).double()}, "must be float32 and contiguous"),
        ({"inputs": torch.zeros(4, 1, 2, 3).mT}, "must be float32 and contiguous"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, "must be 4 int64 labels"),
        ({"targets": torch.zeros(4)}, "must be 4 int64 labels"),
        ({"targets": torch.tensor([0, 1, 2, 0])}, r"targets of 'toy' must lie in \[0, 1\]"),
        ({"test_targets": torch.tensor([0, -1])}, r"test_targets .* must lie in \[0, 1\]"),
        ({"test_inputs": torch.zeros(2, 1, 2, 3)}, "they must be equal"),
        (
            {"test_inputs": torch.zeros(0, 1, 2, 2), "test_targets": torch.zeros(0).long()},
            "test_inputs of 'toy' are empty",
        ),
        ({"std": (0.0,)}, "with std positive"),
        ({"mean": (0.5, 0.5)}, "must hold 1 values each"),
        (
            {"inputs": torch.zeros(4, 2), "test_inputs": torch.zeros(2, 2)},
            "set image=False for other records",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Dataset(**_fields(**changes))


# Users: whole at one agent, whole in the test part, and held to a public cap.


def some_users(records: int = 200) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).integers(0, 60, size=records))


def test_the_same_text_is_the_same_user_and_nobody_else():
    names = [f"user {i}" for i in range(20_000)]
    found = partition.user_numbers([*names, *names])
    assert len(set(found.tolist())) == len(names)
    assert (found[: len(names)] == found[len(names) :]).all()
    composed, apart = partition.user_numbers(
        ["Zo\u00eb", "Zoe\u0308"]
    )  # one letter, written in two ways
    assert composed == apart
    assert len({*partition.user_numbers(["1", "01", "1.0", "ann", "Ann"]).tolist()}) == 5


@pytest.mark.parametrize("agents", [1, 3, 7])
def test_every_record_is_dealt_once_and_users_stay_whole(agents):
    users = some_users()
    parts = partition.deal_users(users, agents, generator=np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    assert len(parts) == agents
    partition.check_together(users, parts)
    counts = [len(set(users.numpy()[part])) for part in parts]
    assert max(counts) - min(counts) <= 1


def test_a_user_at_two_agents_is_refused():
    users = torch.tensor([4, 4, 5])
    with pytest.raises(InputError, match="records of a user lie at several agents"):
        partition.check_together(users, [np.array([0]), np.array([1, 2])])


def test_more_agents_than_users_are_refused():
    with pytest.raises(InputError, match="agents=3 is more than there are users"):
        partition.deal_users(torch.tensor([1, 1, 2]), 3, generator=np.random.default_rng(0))


def test_the_cap_is_the_largest_count_that_passes():
    users = some_users()
    most = max(collections.Counter(users.tolist()).values())
    partition.check_cap(users, most)
    with pytest.raises(InputError) as refused:
        partition.check_cap(users, most - 1)
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
        partition.hold_out_users(np.array([1, 1, 1, 1]), 1, generator=np.random.default_rng(0))


def test_users_of_another_number_of_records_are_refused():
    store = TensorStore(torch.zeros(10, 1), torch.arange(10) % 2)
    with pytest.raises(InputError, match="users of 'mine' must be 10 int64 numbers"):
        dataset_of_stores(store, store, name="mine", classes=2, users=np.zeros(9, dtype=np.int64))


def test_the_user_column_of_a_table_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who,a\nann,1\n bob ,2\nann,3\n", encoding="utf-8")
    found = read_users(path, "who", form="csv")
    assert found.tolist() == partition.user_numbers(["ann", "bob", "ann"]).tolist()
    path.write_text("who,a\nann,1\n,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 3, column 'who': is empty"):
        read_users(path, "who", form="csv")


# Facts about folders of images.


def _image(seed, shape=(4, 6, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def _write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_train_and_test_folders_are_read_by_class(tmp_path):
    images = [_image(seed) for seed in range(4)]
    for name, image in zip(
        ["train/cat/b.png", "train/cat/a.png", "train/dog/a.bmp", "test/dog/a.PNG"],
        images,
        strict=True,
    ):
        _write(tmp_path / name, image)
    train, test, classes = read_image_folder(tmp_path)
    assert classes == 2
    assert train.targets.tolist() == [0, 0, 1]
    assert test.targets.tolist() == [1]
    assert train.inputs.shape == (3, 3, 4, 6)
    assert train.inputs.dtype == np.float32
    expected = images[1].transpose(2, 0, 1) / 255  # a.png comes before b.png
    assert np.allclose(train.inputs[0], expected, rtol=0, atol=1e-7)


def test_one_level_of_classes_has_no_test_part(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        _write(tmp_path / name, _image(0, (3, 3)))
    train, test, classes = read_image_folder(tmp_path)
    assert train.inputs.shape == (2, 1, 3, 3)
    assert test is None
    assert classes == 2


def test_sixteen_bit_images_fill_the_unit_interval(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        _write(tmp_path / name, np.array([[0, 65535], [65535, 0]], dtype=np.uint16))
    train, _, _ = read_image_folder(tmp_path)
    assert train.inputs[0, 0].tolist() == [[0, 1], [1, 0]]


def test_palettes_and_bits_are_read_as_colour_and_grey(tmp_path):
    image = Image.fromarray(np.array([[0, 255]], dtype=np.uint8))
    for name in ("bits/a/1.png", "bits/b/1.png", "palette/a/1.png", "palette/b/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        image.convert("1" if "bits" in name else "P").save(tmp_path / name)
    bits, _, _ = read_image_folder(tmp_path / "bits")
    palette, _, _ = read_image_folder(tmp_path / "palette")
    assert bits.inputs[0].tolist() == [[[0, 1]]]
    assert palette.inputs[0].tolist() == [[[0, 1]]] * 3


def test_other_files_and_hidden_folders_are_passed_over(tmp_path):
    for name in ("a/1.png", "b/1.png", ".cache/1.png"):
        _write(tmp_path / name, _image(0))
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "a" / ".hidden.png").write_text("no image")
    train, _, classes = read_image_folder(tmp_path)
    assert (len(train.targets), classes) == (2, 2)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a/1.png": (4, 4, 3), "b/1.png": (4, 5, 3)}, "all images must be equal, so resize"),
        ({"a/1.png": (4, 4, 3), "b/1.png": (4, 4)}, "all images must be equal"),
        ({"a/1.png": (4, 4, 4), "b/1.png": (4, 4, 4)}, "grey or RGB without transparency"),
        (
            {"train/a/1.png": (4, 4), "train/b/1.png": (4, 4), "test/c/1.png": (4, 4)},
            "has class 'c', which .*train lacks",
        ),
        (
            {"train/a/1.png": (4, 4), "train/b/1.png": (4, 4), "test/a/1.png": (5, 4)},
            r"\(1, 5, 4\) and in .* \(1, 4, 4\)",
        ),
    ],
)
def test_images_that_do_not_belong_together_are_refused(tmp_path, files, message):
    for name, shape in files.items():
        _write(tmp_path / name, _image(0, shape))
    with pytest.raises(ValueError, match=message):
        read_image_folder(tmp_path)


def test_a_damaged_image_is_named(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        _write(tmp_path / name, _image(0))
    path = tmp_path / "b" / "1.png"
    for content in (path.read_bytes()[:60], b"no image at all"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"1\.png is no picture or is damaged"):
            read_image_folder(tmp_path)


def test_an_empty_layout_is_refused_with_the_expected_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder at"):
        read_image_folder(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="0 class folders, must hold at least 2"):
        read_image_folder(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileNotFoundError, match=r"no image \(.bmp, .jpeg, .jpg, .png\)"):
        read_image_folder(tmp_path)
