"""Readers of MNIST-like idx files, CIFAR-10 batches and LIBSVM text.

The folder layouts are those of torchvision's data sets. A file that is cut short, mislabelled or of
another kind is refused; nothing is downloaded. CIFAR-10 comes as Python pickles, which can run any
code when loaded: the unpickler here knows the four names that such a batch needs, with fixed
arguments where they matter, and refuses every other.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...privacy import files
from ...privacy.errors import InputError
from ...privacy.files import MOST_VALUES


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Records:
    """Inputs as stored (N, *shape), uint8 or float, and their labels (N,) int64."""

    inputs: NDArray[Any]
    targets: NDArray[np.int64]


_IDX_UINT8 = 0x08  # the idx format has other element types; MNIST and its kin use bytes


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """One idx file of bytes, plain or, by its suffix, gzipped.

    Args:
        dimensions: 3 for images (N, height, width), 1 for labels (N,).

    Raises:
        ValueError: If the magic number or the length is wrong.
    """
    files.check_size(path, MOST_VALUES)
    packed = path.suffix == ".gz"
    with files.decoding(path, "idx file"), gzip.open(path) if packed else path.open("rb") as file:
        shape = _idx_shape(file.read(4 + 4 * dimensions), path, dimensions=dimensions)
        announced = math.prod(shape)
        _check_announced(path, announced, header=4 + 4 * dimensions)
        content = file.read(announced)
        beyond = len(file.read(1))  # at the end a packed file is held against its checksum
    if beyond or len(content) != announced:
        holds = "more" if beyond else str(len(content))
        raise InputError(
            f"{path} announces {announced} bytes of data and holds {holds}; fetch it again"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _idx_shape(header: bytes, path: Path, *, dimensions: int) -> tuple[int, ...]:
    magic = bytes([0, 0, _IDX_UINT8, dimensions])
    if header[:4] != magic:
        raise InputError(
            f"{path} starts with {header[:4].hex() or 'nothing'}, must start with {magic.hex()}: "
            f"it is no idx file of {'images' if dimensions == 3 else 'labels'}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise InputError(
            f"{path} ends within its header of {4 + 4 * dimensions} bytes; fetch it again"
        )
    return tuple(np.frombuffer(header[4:], dtype=">u4").tolist())


def _check_announced(path: Path, announced: int, *, header: int) -> None:
    """Refuse a size that the file cannot have, before it is read."""
    if path.suffix == ".gz":
        files.check_expansion(path, announced)
    elif (held := path.stat().st_size - header) != announced:
        raise InputError(
            f"{path} announces {announced} bytes of data and holds {held}; fetch it again"
        )


def read_idx_folder(root: Path, *, folder: str) -> tuple[Records, Records]:
    """The four idx files of an MNIST-like set: train and test, images (N, 1, height, width).

    Args:
        root: Searched as ROOT/FOLDER/raw and as ROOT itself.
        folder: "MNIST" or "FashionMNIST".

    Raises:
        FileNotFoundError: If a file is in neither place.
        ValueError: If a file is damaged, or labels and images differ in number.
    """
    places = [root / folder / "raw", root]
    return _read_idx_pair(places, "train"), _read_idx_pair(places, "t10k")


def _read_idx_pair(places: list[Path], prefix: str) -> Records:
    images_path = _find(places, f"{prefix}-images-idx3-ubyte")
    labels_path = _find(places, f"{prefix}-labels-idx1-ubyte")
    images = read_idx(images_path, dimensions=3)
    labels = read_idx(labels_path, dimensions=1)
    if len(images) != len(labels):
        raise InputError(
            f"{images_path} holds {len(images)} images and {labels_path} {len(labels)} labels; "
            "the two files do not belong together"
        )
    if labels.max(initial=0) > 9:
        raise InputError(f"{labels_path} holds label {labels.max()}, must lie in [0, 9]")
    return Records(inputs=images[:, None], targets=labels.astype(np.int64))


def _find(places: list[Path], name: str) -> Path:
    for place in places:
        for path in (place / name, place / f"{name}.gz"):
            if path.is_file():
                return path
    looked = " and ".join(str(place.absolute()) for place in places)
    raise FileNotFoundError(
        f"no {name} (or {name}.gz) in {looked}; set root to the folder that holds "
        f"{places[0].relative_to(places[-1])}"
    )


_CIFAR_PIXELS = 3 * 32 * 32
_LARGEST_BATCH = 64 << 20  # bytes; the official ones have half
_MOST_NUMBERED = 1 << 20  # values of a pickle


def read_cifar10(root: Path) -> tuple[Records, Records]:
    """CIFAR-10's python batches: train and test, images (N, 3, 32, 32).

    Args:
        root: Holds cifar-10-batches-py with test_batch and any of data_batch_1 to data_batch_5;
            those that are there make the training set.

    Raises:
        FileNotFoundError: If there is no training batch or no test batch.
        ValueError: If a batch is damaged, or holds anything but a batch.
    """
    folder = root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)]
    train = [folder / name for name in names if (folder / name).is_file()]
    test = folder / "test_batch"
    if not train or not test.is_file():
        missing = "test_batch" if train else "data_batch_1 to data_batch_5"
        raise FileNotFoundError(
            f"no {missing} in {folder.absolute()}; set root to the folder that holds "
            "cifar-10-batches-py"
        )
    batches = [_read_cifar_batch(path) for path in train]
    joined = Records(
        inputs=np.concatenate([batch.inputs for batch in batches]),
        targets=np.concatenate([batch.targets for batch in batches]),
    )
    return joined, _read_cifar_batch(test)


def _read_cifar_batch(path: Path) -> Records:
    held = files.read_bounded(path, _LARGEST_BATCH)
    try:
        with files.decoding(path, "CIFAR-10 batch"):
            _check_opcodes(held)
            content = _CifarUnpickler(io.BytesIO(held), encoding="bytes").load()
            # Keys are bytes in the official files (written by Python 2), text in later ones.
            batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
            pixels, labels = batch["data"], _labels(batch["labels"])
    except _RefusedError as error:
        raise InputError(f"{path} is refused: {error}") from error
    if not isinstance(pixels, np.ndarray) or pixels.shape != (len(labels), _CIFAR_PIXELS):
        # The shape of a list is not asked for: lists in lists become arrays of any size.
        shape = pixels.shape if isinstance(pixels, np.ndarray) else f"of a {type(pixels).__name__}"
        raise InputError(
            f"{path} holds data of shape {shape} and {len(labels)} labels, must be "
            f"({len(labels)}, {_CIFAR_PIXELS})"
        )
    if labels.ndim != 1 or labels.dtype.kind != "i" or not ((labels >= 0) & (labels <= 9)).all():
        raise InputError(f"{path} holds labels that are not whole numbers in [0, 9]")
    return Records(inputs=pixels.reshape(-1, 3, 32, 32), targets=labels.astype(np.int64))


def _labels(held: object) -> NDArray[Any]:
    """Labels as an array; lists in lists, which may each be held a thousand times, are none."""
    if isinstance(held, list) and not all(type(label) is int for label in held):
        raise _RefusedError("its labels are not whole numbers in [0, 9]")
    return np.asarray(held)


def _check_opcodes(held: bytes) -> None:
    """Refuse a pickle that announces more than it holds, or numbers its values sparsely.

    The table of values grows to the largest number, before there is a second value.
    """
    for code, argument, _ in pickletools.genops(held):
        if code.name in {"PUT", "LONG_BINPUT"} and int(argument or 0) > _MOST_NUMBERED:
            raise _RefusedError(f"it numbers a value {argument}, above {_MOST_NUMBERED}")


class _RefusedError(InputError):
    """The pickle asks for something that a batch of images does not need."""


def _bytes_dtype(code: str | bytes, *_: object) -> np.dtype[Any]:
    if code not in {"u1", b"u1"}:
        raise _RefusedError(f"it holds an array of type {code!r}, pixels are bytes ('u1')")
    return np.dtype("u1", copy=True)  # a copy, as the pickle goes on to set its state


def _latin1(text: str, encoding: str | bytes) -> bytes:
    if encoding not in {"latin1", b"latin1"}:
        raise _RefusedError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


_NDARRAY = object()  # the class of arrays, which a batch names and must not call


def _empty_array(kind: object, *_: object) -> NDArray[np.uint8]:
    """An array without elements, whose bytes the pickle goes on to give; whatever shape it asks."""
    if kind is not _NDARRAY:
        raise _RefusedError("it makes an array of a class of its own")
    return np.empty(0, dtype=np.uint8)


_ALLOWED: dict[tuple[str, str], object] = {
    # NumPy 1 and 2 file it under different modules.
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _bytes_dtype,
    ("_codecs", "encode"): _latin1,
}


class _CifarUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Only what a CIFAR-10 batch needs."""
        if (module, name) not in _ALLOWED:
            raise _RefusedError(
                f"it asks for {module}.{name}, which no CIFAR-10 batch needs; do not load this file"
            )
        return _ALLOWED[module, name]


def read_libsvm(
    path: Path,
    test: Path | None = None,
    *,
    features: int | None,
    labels: Sequence[int] | None = None,
) -> tuple[Records, Records | None, tuple[int, ...]]:
    """LIBSVM text: train, test and the labels; inputs (N, features) float32.

    Labels are whole numbers; they become 0, 1, ... in their order (so -1 and +1 become 0 and 1).
    Not declared, they are the values of the training file, ascending: one record more or less, of
    a label of its own, would number the others anew. Indices count from 1.

    Args:
        test: The test file; by default PATH.t if there is one.
        features: Number of features. Never read off the data: a file need not use them all, and
            the number must agree between files and be public.
        labels: The public labels, in the order of their numbers; None where the file tells them.

    Raises:
        FileNotFoundError: If a named file is not there.
        ValueError: If features is missing or too small, a line cannot be read, a value is not
            finite, or a label is not a whole number, not declared or unknown to the training file.
    """
    if test is None and Path(f"{path}.t").is_file():
        test = Path(f"{path}.t")
    # Labels by their order: those that are declared, or those of the training file.
    train_inputs, given = _read_libsvm_file(path, features)
    values = np.unique(given) if labels is None else np.array(labels, dtype=np.float64)
    if len(values) < 2 or (values != np.round(values)).any():
        raise InputError(
            f"{path} has labels {values[:5].tolist()}, must have at least two whole numbers: "
            "classes, not measurements"
        )

    def numbered(found: NDArray[np.float64], where: Path) -> NDArray[np.int64]:
        unknown = np.setdiff1d(found, values)
        if unknown.size:
            never = f"{path} never uses" if labels is None else f"labels={list(labels)} lacks"
            raise InputError(f"{where} has label {unknown[0]:g}, which {never}")
        order = np.argsort(values)
        return order[np.searchsorted(values[order], found)].astype(np.int64)

    declared = tuple(int(value) for value in values)
    train = Records(inputs=train_inputs, targets=numbered(given, path))
    if test is None:
        return train, None, declared
    test_inputs, test_labels = _read_libsvm_file(test, features)
    return train, Records(inputs=test_inputs, targets=numbered(test_labels, test)), declared


def _read_libsvm_file(
    path: Path, features: int | None
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    from sklearn.datasets import load_svmlight_file

    load: Any = load_svmlight_file  # its types are guessed from its defaults, wrongly
    if not path.is_file():
        raise FileNotFoundError(f"no LIBSVM file at {path.absolute()}; set root to the file itself")
    records = files.count_lines(path)
    if features is not None and records * features > MOST_VALUES:
        raise InputError(
            f"{path} has {records} lines, which times features={features} are "
            f"{records * features} numbers; at most {MOST_VALUES} are held: give fewer records, or "
            "fewer features"
        )
    with files.decoding(path, "LIBSVM text"):
        inputs, labels = load(path, n_features=features, zero_based=False, dtype=np.float32)
    if features is None:
        raise InputError(
            f"features=None: pass the number of features; {path} uses {inputs.shape[1]}, other "
            "files of the set may use more"
        )
    if not np.isfinite(inputs.data).all() or not np.isfinite(labels).all():
        raise InputError(f"{path} holds a value that is not finite")
    return inputs.toarray(), labels


# A folder of images, one sub-folder a class: ROOT/train/CLASS and ROOT/test/CLASS, or ROOT/CLASS.
#
# Classes are numbered in the order of their names. All images have one size and one number of
# channels: resizing or cropping would change the records that are accounted for, so it is left to
# the owner of the data.

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
    with files.opened_picture(path) as opened:
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
