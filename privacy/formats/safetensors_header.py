"""The header of a safetensors file: what it says is held against the file before all else.

Tensors are of floats from 16 to 64 bits, integers and Booleans: no complex numbers, and none of 8
bits and fewer that stand for floats. They follow each other without a gap and fill the file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..bounded import check_size
from ..errors import InputError
from .json_text import parse_json

_LARGEST = 16 << 20  # bytes of the header, which is JSON
_SMALLEST = 2  # which is empty
_MOST_TENSORS = 100_000
_MOST_DIMENSIONS = 64
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "BOOL": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1,
}  # fmt: skip
_METADATA, _KEYS = "__metadata__", {"dtype", "shape", "data_offsets"}


class SafetensorsHeader(NamedTuple):
    """What a file says of its tensors.

    Attributes:
        shapes: by name.
        metadata: texts beside them.
        size: bytes of the file.
    """

    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]
    size: int


def read_header(path: Path) -> SafetensorsHeader:
    """The header of a file that is whole.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is no such file, is cut off, or holds a type of numbers that is not read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.safetensors"
    ...     said = b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}'
    ...     _ = path.write_bytes(struct.pack("<Q", len(said)) + said + bytes(24))
    ...     print(read_header(path).shapes)
    {'a': (2, 3)}
    """
    size = check_size(path, 1 << 62)
    try:
        with path.open("rb") as file:
            length = _length(file.read(8), size)
            said = parse_json(file.read(length).decode("utf-8"))
        return _header(said, size, held=size - 8 - length)
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is not a safetensors file: {error}; pickles and archives are not read: save "
            "with safetensors.torch.save_file or safetensors.numpy.save_file"
        ) from error


def _length(first: bytes, size: int) -> int:
    if len(first) < 8:
        raise InputError(f"it has {size} bytes of at least 8")
    (length,) = struct.unpack("<Q", first)
    most = min(_LARGEST, size - 8)
    if not _SMALLEST <= length <= most:
        bound = f"at least {_SMALLEST}" if length < _SMALLEST else f"at most {most}"
        raise InputError(f"it announces a header of {length} bytes, must be {bound}")
    return int(length)


def _header(said: Any, size: int, *, held: int) -> SafetensorsHeader:
    if not isinstance(said, dict) or len(said) > _MOST_TENSORS:
        raise InputError(f"its header is no object of at most {_MOST_TENSORS} tensors")
    metadata = said.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(of, str) for of in metadata.values()):
        raise InputError("its metadata are not texts by name")
    shapes, spans = dict[str, tuple[int, ...]](), list[tuple[int, int]]()
    for name, of in said.items():
        shapes[name], span = _tensor(of, f"its tensor {name!r:.80}")
        spans.append(span)
    at = 0
    for start, end in sorted(spans):
        if start != at:
            raise InputError(f"its tensors leave a gap or overlap at byte {at}")
        at = end
    if at != held:
        raise InputError(f"its tensors take {at} bytes and it holds {held}; it is cut off")
    return SafetensorsHeader(shapes, metadata, size)


def _tensor(of: Any, which: str) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Shape and first and last byte of a tensor."""
    if not isinstance(of, dict) or of.keys() != _KEYS:
        raise InputError(f"{which} is not described by dtype, shape and data_offsets")
    kind, shape, span = of["dtype"], of["shape"], of["data_offsets"]
    if not isinstance(kind, str) or kind not in _WIDTHS:
        raise InputError(f"{which} is of type {kind!r:.20}, must be one of {', '.join(_WIDTHS)}")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS:
        raise InputError(f"{which} announces the shape {shape!r:.80}, must be whole numbers")
    if not _are_counts(span) or len(span) != 2:
        raise InputError(f"{which} has data_offsets={span!r:.80}, must be two whole numbers")
    needed = math.prod(shape) * _WIDTHS[kind]
    if span[1] - span[0] != needed:
        raise InputError(
            f"{which} announces {needed} bytes by its shape and {span[1] - span[0]} by its place"
        )
    return tuple(shape), (span[0], span[1])


def _are_counts(found: Any) -> bool:
    return isinstance(found, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in found)
