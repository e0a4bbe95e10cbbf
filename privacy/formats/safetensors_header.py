"""The header of a safetensors file: what it says is held against the file before all else.

The library holds it against the file: tensors follow each other without a gap and fill the file.
Here the header has a bound, and tensors are of floats from 16 to 64 bits, integers and Booleans: no
complex numbers, and none of 8 bits and fewer that stand for floats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..bounded import check_size
from ..errors import InputError

_LARGEST = 16 << 20  # bytes of the header, which is JSON
_MOST_DIMENSIONS = 64
_KINDS = re.compile("[FIU](64|32|16)|BF16|I8|U8|BOOL")
_MOST_SAID = 200  # characters of what the library says


class SafetensorsHeader(NamedTuple):
    """What a file says of its tensors.

    Attributes:
        names: of the tensors.
        metadata: texts beside them.
        size: bytes of the file.
    """

    names: tuple[str, ...]
    metadata: Mapping[str, str]
    size: int


def read_header(path: Path) -> SafetensorsHeader:
    """The header of a file that is whole.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is no such file, is cut off, or holds a type of numbers that is not read.
    """
    size = check_size(path, 1 << 62)
    try:
        return _read(path, size)
    except InputError as error:
        raise InputError(
            f"{path} is not a safetensors file: {error}; pickles and archives are not read: save "
            "with safetensors.torch.save_file or safetensors.numpy.save_file"
        ) from error


def _read(path: Path, size: int) -> SafetensorsHeader:
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    most = min(_LARGEST, size - 8)
    if most < 0:
        raise InputError(f"it has {size} bytes of at least 8")
    if length > most:
        raise InputError(f"it announces a header of {length} bytes, must be at most {most}")
    try:
        with safe_open(path, framework="numpy") as opened:
            parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 # no mapping
            metadata = opened.metadata() or {}
    except SafetensorError as error:
        raise InputError(str(error).partition("\n")[0][:_MOST_SAID]) from error
    for name, part in parts.items():
        kind, count = part.get_dtype(), len(part.get_shape())
        if _KINDS.fullmatch(kind) is None or count > _MOST_DIMENSIONS:
            raise InputError(
                f"its tensor {name!r:.80} is of type {kind} and has {count} dimensions, must be of "
                "floats from 16 to 64 bits, integers or Booleans, with at most "
                f"{_MOST_DIMENSIONS} dimensions"
            )
    return SafetensorsHeader(tuple(parts), metadata, size)
