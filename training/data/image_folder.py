"""A folder of images, one sub-folder a class: ROOT/train/CLASS and ROOT/test/CLASS, or ROOT/CLASS.

Classes are numbered in the order of their names. All images have one size and one number of
channels: resizing or cropping would change the records that are accounted for, so it is left to
the owner of the data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...privacy.bounded import MOST_VALUES
from ...privacy.errors import InputError
from ...privacy.formats.pictures import opened_picture
from .readers import Records

__all__ = ["pictures_of", "read_image_folder"]

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
# Pillow's modes and their white: bits, grey, 16-bit grey, colour.
_WHITE = {"1": 1, "L": 255, "I;16": 65_535, "RGB": 255}
_LAYOUT = "ROOT/train/CLASS/*.png and ROOT/test/CLASS/*.png, or ROOT/CLASS/*.png"


def read_image_folder(root: Path) -> tuple[Records, Records | None, int]:
    """Reads train, test (None without a test folder) and the number of classes.

    Inputs are (N, channels, height, width) float32 in [0, 1], 1 or 3 channels.

    Raises:
        FileNotFoundError: If root is no folder or holds no classes with images.
        ValueError: If images differ in size or channels, cannot be read, or if the test folder has
            a class that the train folder lacks.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder at {root.absolute()}; expected {_LAYOUT}")
    train_folder = root / "train" if (root / "train").is_dir() else root
    classes = _folders(train_folder)
    if len(classes) < 2:
        raise FileNotFoundError(
            f"{train_folder.absolute()} holds {len(classes)} class folders, must hold at least 2; "
            f"expected {_LAYOUT}"
        )
    train = _read_classes(train_folder, classes)
    test_folder = root / "test"
    if train_folder == root or not test_folder.is_dir():
        return train, None, len(classes)
    unknown = sorted(set(_folders(test_folder)) - set(classes))
    if unknown:
        raise InputError(f"{test_folder} has class {unknown[0]!r}, which {train_folder} lacks")
    test = _read_classes(test_folder, classes)
    if test.inputs.shape[1:] != train.inputs.shape[1:]:
        raise InputError(
            f"images in {test_folder} are {test.inputs.shape[1:]} and in {train_folder} "
            f"{train.inputs.shape[1:]} (channels, height, width); they must be equal"
        )
    return train, test, len(classes)


def _folders(folder: Path) -> list[str]:
    hidden = "."
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(hidden))


def _read_classes(folder: Path, classes: list[str]) -> Records:
    images: list[NDArray[np.float32]] = []
    targets: list[int] = []
    paths = [pictures_of(folder / name) for name in classes]
    count, first = sum(map(len, paths)), folder
    for target, found in enumerate(paths):
        for path in found:
            image = _read_image(path)
            first = path if not images else first
            if images and image.shape != images[0].shape:
                raise InputError(
                    f"{path} is {image.shape} and {first} {images[0].shape} (channels, height, "
                    "width); all images must be equal, so resize or convert them beforehand"
                )
            if count * image.size > MOST_VALUES:
                raise InputError(
                    f"{folder} holds {count} images of {image.size} values, and at most "
                    f"{MOST_VALUES} values are held; resize them, or give fewer"
                )
            images.append(image)
            targets.append(target)
    if not images:
        suffixes = ", ".join(sorted(_SUFFIXES))
        raise FileNotFoundError(f"no image ({suffixes}) under {folder.absolute()}")
    return Records(inputs=np.stack(images), targets=np.array(targets, dtype=np.int64))


def pictures_of(folder: Path) -> list[Path]:
    """The pictures of a folder, in the order of their names; none where there is no folder."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [p for p in found if p.suffix.lower() in _SUFFIXES and not p.name.startswith(".")]


def _read_image(path: Path) -> NDArray[np.float32]:
    with opened_picture(path) as opened:
        mode = opened.mode
        if mode == "P" and "transparency" not in opened.info:
            mode = "RGB"  # a palette is only a way to store it
        pixels = np.asarray(opened.convert(mode) if mode != opened.mode else opened)
    if mode not in _WHITE:
        raise InputError(
            f"{path} has mode {mode}, must be grey or RGB without transparency; convert it"
        )
    pixels = pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1)  # (channels, height, width)
    return np.ascontiguousarray(pixels / np.float32(_WHITE[mode]), dtype=np.float32)
