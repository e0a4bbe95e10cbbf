"""Facts about folders of images."""

import numpy as np
import pytest
from PIL import Image

from overhear.training.data.readers import read_image_folder


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
