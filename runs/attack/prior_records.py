"""Records of a file as candidates of the posterior, none of them one that is planted.

Shape letters: N records, P planted ones.

A denoiser of the user's, by the name that [attack] gives it; none comes with overhear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ...attacks.posterior import MOST, Candidates, Denoiser
from ...privacy.errors import InputError
from ...privacy.files import opened_picture
from ...training.data.columns import Declared
from ...training.data.readers import pictures_of
from ...training.data.table import read_inputs, read_table
from ...training.data.table_rows import header_of
from ...training.engine.tensor_file import TensorFile, read_foreign
from ...training.own.names import own_object
from ..run_file.tables import Call
from ..run_file.trust import ask, check_of_attack, say_of, sources_of

# A file of numbers that are computed with: finite, in at least single precision.


def read_tensors(path: Path) -> TensorFile:
    """Read a file of tensors of any kind that `read_foreign` knows.

    Returns:
        Its tensors, floating-point ones in at least single precision, and its metadata.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no such file, holds nothing, or a value is not finite.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the path of a file of tensors")
    held = read_foreign(path)
    if not held.tensors:
        raise InputError(f"{path} holds no tensors; save one gradient per parameter")
    return TensorFile(
        path=path,
        tensors={name: _widened(path, name, tensor) for name, tensor in held.tensors.items()},
        metadata=held.metadata,
    )


def _widened(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: {name!r} holds values that are not finite; leave them out")
    return tensor if tensor.dtype == torch.float64 else tensor.float()


# Records that an attacker is taken to know:
#   safetensors, npz, npy, torch.save: `inputs` as the network is fed, or `pixels`, numbers in
#     [0, 1] or levels from 0 to 255 as uint8; `labels`, if they are known; what has no name is
#     `pixels` where it is uint8
#   a picture: one record without a label
#   a folder of pictures: FOLDER/*.png without labels, or FOLDER/CLASS/*.png with a sub-folder for
#     each class, in the order of their names, or named by its number
#   csv, parquet: rows of the columns that the run file declares, with the target or without it
#
# Shape letters: N records.

_PICTURES, _TABLES = (".png", ".jpg", ".jpeg", ".bmp"), (".csv", ".parquet")
_MOST_FILES = 20_000
_LEVELS = 255
_WHITE_OF_16_BITS = 65535
_SLACK = 1e-3  # what rounding of a normalisation may leave; a wrong scale leaves more


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """Records of a file.

    Attributes:
        pixels: (N, *shape) float64 on the unit box, N at least 1.
        labels: (N,) class indices; None where the file does not tell them.
    """

    pixels: Tensor
    labels: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordForm:
    """What a record of a file has to be.

    Attributes:
        shape: of one record.
        classes: number of classes.
        to_unit: (N, *shape) inputs of the network as numbers on the unit box.
        said: what makes the box, for a refusal: "mean and std (or low and high)".
        table: declared columns of a csv or parquet file; None where none are declared.
        separator: of a csv file.
    """

    shape: tuple[int, ...]
    classes: int
    to_unit: Callable[[Tensor], Tensor]
    said: str
    table: Declared | None = None
    separator: str = ","


def read_records(path: Path, form: RecordForm) -> Records:
    """The records of a file.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it cannot be read, holds nothing or another shape or type, a value is not finite
            or out of range, or a label is no class.
    """
    suffix = path.suffix.lower()
    if path.is_dir():
        return _of_folder(path, form)
    _check_file(path)
    if suffix in _PICTURES:
        return Records(pixels=_fitting([path], form))
    if suffix in _TABLES:
        return _of_table(path, form, suffix[1:])
    arrays = dict(read_foreign(path).tensors)
    if set(arrays) == {"0"}:  # one array without a name
        arrays = {"pixels" if arrays["0"].dtype == torch.uint8 else "inputs": arrays["0"]}
    return _of_arrays(path, arrays, form)


def _check_file(path: Path) -> None:
    """Refuse what is no regular file, such as a pipe, which may have no end."""
    if not path.exists():
        raise FileNotFoundError(f"no file or folder of records at {path}")
    if not path.is_file():
        raise InputError(f"{path} is no regular file; give a file")


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of the names and bytes of all files below a folder.

    Raises:
        FileNotFoundError: nothing is there.
    """
    if not path.is_dir():
        _check_file(path)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    found = hashlib.sha256()
    for one in files:
        with one.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        found.update(one.relative_to(path).as_posix().encode() + b"\0" + digest)
    return found.hexdigest()


def _of_arrays(path: Path, arrays: Mapping[str, Tensor], form: RecordForm) -> Records:
    # One array of records, of their shape and of numbers.
    kind = next((name for name in ("inputs", "pixels") if name in arrays), None)
    if kind is None:
        raise InputError(
            f"{path} must hold an array `inputs` (as the network is fed) or `pixels` (in [0, 1]); "
            f"it holds {', '.join(map(repr, arrays)) or 'none'}"
        )
    if kind == "inputs" and "pixels" in arrays:
        raise InputError(f"{path} holds both 'inputs' and 'pixels'; keep one of them")
    held = arrays[kind]
    if tuple(held.shape) == form.shape:
        held = held[None]
    if tuple(held.shape[1:]) != form.shape or len(held) == 0:
        raise InputError(
            f"{path}: {kind!r} has shape {tuple(held.shape)}, must be (records, "
            f"{', '.join(map(str, form.shape))})"
        )
    levels = kind == "pixels" and held.dtype == torch.uint8
    rows = kind == "inputs" and len(form.shape) == 1  # whose columns may be categories
    if not (held.is_floating_point() or levels or rows):
        raise InputError(
            f"{path}: {kind!r} is of {_dtype(held)}, must be a floating-point type"
            + (", or uint8 of levels up to 255" if kind == "pixels" else "")
        )
    if not bool(torch.isfinite(held).all()):
        raise InputError(f"{path}: {kind!r} holds values that are not finite; leave them out")
    if levels and int(held.max()) <= 1:
        raise InputError(
            f"{path}: 'pixels' is of uint8 and at most {int(held.max())}, but levels go up to 255; "
            "give numbers in [0, 1] as a floating-point type"
        )
    # Records in units of [0, 1], where they have to lie.
    units = held.double() / _LEVELS if levels else held.double()
    units = form.to_unit(units) if kind == "inputs" else units
    if float(units.min()) < -_SLACK or float(units.max()) > 1 + _SLACK:
        raise InputError(
            f"{path}: {kind!r} spans [{float(held.min()):.4g}, {float(held.max()):.4g}], which "
            f"is outside what {form.said} make of pixels in [0, 1]; correct them"
        )
    return Records(pixels=units.clamp(0, 1), labels=_labels(path, arrays, form, records=len(held)))


def _labels(
    path: Path, arrays: Mapping[str, Tensor], form: RecordForm, *, records: int
) -> Tensor | None:
    if "labels" not in arrays:
        return None
    labels = arrays["labels"]
    if labels.ndim == 0 and records == 1:
        labels = labels[None]
    if tuple(labels.shape) != (records,) or labels.is_floating_point():
        raise InputError(
            f"{path}: 'labels' is of {_dtype(labels)} and shape {tuple(labels.shape)}, must be "
            f"whole numbers, one for each of {records} records"
        )
    labels = labels.to(torch.int64)
    if int(labels.min()) < 0 or int(labels.max()) >= form.classes:
        raise InputError(
            f"{path}: 'labels' spans [{int(labels.min())}, {int(labels.max())}], must lie in 0 to "
            f"{form.classes - 1}"
        )
    return labels


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _of_folder(path: Path, form: RecordForm) -> Records:
    inner = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    plain = pictures_of(path)
    if plain and inner:
        raise InputError(
            f"{path} holds pictures and folders, such as {inner[0].name!r}; give pictures alone, "
            "or a folder for each class"
        )
    if not inner:
        return Records(pixels=_fitting(plain, form, folder=path))
    numbers = _numbers([p.name for p in inner], form.classes)
    if numbers is None:
        raise InputError(
            f"{path} holds {len(inner)} folders, such as {inner[0].name!r}, must hold one for each "
            f"of {form.classes} classes, or folders named by their numbers; or give pictures alone"
        )
    each = [pictures_of(p) for p in inner]
    labels = [number for number, found in zip(numbers, each, strict=True) for _ in found]
    pixels = _fitting([one for found in each for one in found], form, folder=path)
    return Records(pixels=pixels, labels=torch.tensor(labels, dtype=torch.int64))


def _numbers(names: list[str], classes: int) -> list[int] | None:
    """The classes of folders, by their names or their order."""
    if all(name.isascii() and name.isdigit() and int(name) < classes for name in names):
        return [int(name) for name in names]
    return list(range(classes)) if len(names) == classes else None


def _fitting(paths: list[Path], form: RecordForm, *, folder: Path | None = None) -> Tensor:
    """(N, *shape) pictures, each of which has to have the shape of a record."""
    if not paths:
        raise FileNotFoundError(f"no picture ({', '.join(_PICTURES)}) in {folder}")
    if len(paths) > _MOST_FILES:
        raise InputError(f"{folder} holds {len(paths)} pictures; give at most {_MOST_FILES}")
    found = []
    for path in paths:
        if len(form.shape) != 3 or form.shape[0] not in (1, 3):
            raise InputError(
                f"{path} is a picture, and records are of shape {form.shape}; give safetensors"
            )
        found.append(_picture(path, *form.shape))
    return torch.stack(found)


def _picture(path: Path, channels: int, height: int, width: int) -> Tensor:
    """(channels, height, width) pixels in [0, 1]."""
    with opened_picture(path) as image:
        if (image.height, image.width) != (height, width):
            raise InputError(
                f"{path} is {image.height}x{image.width}, must be {height}x{width}; resize it"
            )
        if image.mode.startswith("I"):  # 16 bits of grey, which a conversion would cut off at 255
            levels = np.array(image, dtype=np.float64)[..., None].repeat(channels, axis=2)
            white = _WHITE_OF_16_BITS
        else:
            levels = np.array(image.convert("L" if channels == 1 else "RGB"), dtype=np.float64)
            white = _LEVELS
    return torch.from_numpy(levels).reshape(height, width, channels).permute(2, 0, 1) / white


def _of_table(path: Path, form: RecordForm, kind: str) -> Records:
    if form.table is None:
        raise InputError(
            f"{path} is a table, and the run file declares no columns; give npz or "
            "safetensors with an array `inputs`"
        )
    known = form.table.target.name in header_of(path, form=kind, separator=form.separator)
    if known:
        store = read_table(path, form.table, form=kind, separator=form.separator)
        inputs, labels = store.take(torch.arange(store.size)).inputs, store.targets
    else:
        found = read_inputs(path, form.table, form=kind, separator=form.separator)
        inputs, labels = torch.from_numpy(found), None
    if labels is not None and int(labels.max()) >= form.classes:
        raise InputError(f"{path}: label {int(labels.max())} must lie in 0 to {form.classes - 1}")
    pixels = form.to_unit(inputs.double()).clamp(0, 1)
    return Records(pixels=pixels, labels=labels)


_HALF_A_LEVEL = 0.5 / 255  # the same picture, saved in another way
_ROUNDING = 1e-6
_PICTURE = 4  # dimensions of (N, channels, height, width)
_NAMED = 4  # records that a refusal lists


def candidates_of(
    known: Records, *, to_inputs: Callable[[Tensor], Tensor], classes: int, seed: int
) -> Candidates:
    """Records as candidates: at most 2,000 of them, a random part by the seed where there are more.

    The function makes (N, *shape) numbers on the unit box inputs of the network; each of the
    classes is tried of records whose label is not known.
    """
    each = 1 if known.labels is not None else classes
    order = torch.randperm(len(known.pixels), generator=torch.Generator().manual_seed(seed))
    chosen = order[: max(MOST // each, 1)]
    inputs = to_inputs(known.pixels[chosen]).float()
    if known.labels is not None:
        return Candidates(inputs=inputs, labels=known.labels[chosen])
    records = torch.arange(len(chosen)).repeat_interleave(classes)
    return Candidates(
        inputs=inputs[records], labels=torch.arange(classes).repeat(len(chosen)), records=records
    )


def check_unplanted(path: Path, known: Records, planted: Tensor) -> None:
    """Refuse records among which the planted ones are: whoever holds them has nothing to rebuild.

    Args:
        planted: (P, *shape) on the unit box.

    Raises:
        ValueError: one is the same as a planted one, pictures to half a grey level.
    """
    slack = _HALF_A_LEVEL if planted.ndim == _PICTURE else _ROUNDING
    rows = known.pixels.flatten(1)
    same = set[int]()
    for record in planted.flatten(1).to(rows):
        same |= set(torch.nonzero((rows - record).abs().amax(dim=1) <= slack)[:, 0].tolist())
    if same:
        listed = ", ".join(map(str, sorted(same)[:_NAMED]))
        more = f" and {len(same) - _NAMED} more" if len(same) > _NAMED else ""
        raise InputError(
            f"{path} holds records that are to be rebuilt, which would be found and not rebuilt: "
            f"record {listed}{more}, counted from 0; leave them out"
        )


KEY = "[attack] denoiser"


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """A denoiser, and the SHA-256 of the code that it is made of.

    Attributes:
        denoiser: the function; None where none is named.
        files: SHA-256 by path of a file, or by name of an installed module.
    """

    denoiser: Denoiser | None = None
    files: dict[str, str] = field(default_factory=dict)


def own_denoiser(
    name: str | None, *, folder: Path | None, notice: Callable[[str], None] | None = None
) -> Own:
    """What a name stands for; its module is imported, which runs it.

    Args:
        name: "module:NAME"; None where no denoiser is asked for.
        folder: of the run whose run file names it, perhaps; None where the user gave it.
        notice: told beforehand which file runs.

    Raises:
        InputError: nobody vouches for the code of the folder, there is no such function, or its
            module raises an error.
    """
    if name is None:
        return Own()
    call = Call(key=KEY, name=name)
    if folder is not None:
        check_of_attack(folder, call)
        say_of([call], notice)
    else:
        ask([call], notice=notice)
    found = own_object(name, key=KEY)
    if not callable(found):
        raise InputError(
            f"{KEY}={name!a} is {type(found).__name__}, must be a function f(pixels, noise_std)"
        )
    sources = sources_of({KEY: name})
    return Own(denoiser=cast(Denoiser, found), files={**sources.files, **sources.installed})
