"""NumPy's files: ``npy``, an array, and ``npz``, a zip of them. Headers first, then the numbers.

Arrays are of real numbers of at most 8 bytes each: no objects, which are pickles, no fields, no
text. A zip is one that NumPy writes: its directory within a megabyte, at its end and without a
comment, members stored or deflated, each name once.
"""

from __future__ import annotations

import io
import math
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..bounded import check_expansion, check_memory, check_size, decoding
from ..errors import InputError

_LONGEST_HEADER = 10_000  # characters, as NumPy bounds it
_WIDEST = 8  # bytes of a number
_MOST_MEMBERS = 1000
_LARGEST_DIRECTORY = 1 << 20
_LOOKED_AT = 98  # bytes: the end of a zip, and before it the two records of a long one
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
# By the version of the format; a third one is of records with fields.
_READ = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


class ArrayHeader(NamedTuple):
    """What a file says of its array.

    Attributes:
        shape: of the array; no negative number.
        dtype: real numbers.
        start: bytes before its numbers.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def header_of(path: Path) -> ArrayHeader:
    """The header of a npy file, which announces just what the file holds.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is no such file, or holds something else than real numbers.
    """
    size = check_size(path, 1 << 62)
    with path.open("rb") as file:
        return _checked(file, size, str(path))


def read_array(path: Path) -> NDArray[Any]:
    """The array of a npy file, in memory.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: `header_of` refuses it, or memory has no room for it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "y.npy"
    ...     np.save(path, np.array([3, 4]))
    ...     print(header_of(path).shape, read_array(path).sum())
    (2,) 7
    """
    check_memory(str(path), header_of(path).size, "give fewer records")
    with decoding(path, "npy file"):
        return np.asarray(np.load(path, allow_pickle=False))


def map_array(path: Path) -> NDArray[Any]:
    """The array of a npy file, mapped read-only; errors as of `header_of`."""
    header_of(path)
    with decoding(path, "npy file that can be mapped"):
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


class PackedArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a npz file by name; each is read when it is asked for.

    Args:
        copies: how many times what it becomes will be in memory.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is no such file, or becomes too much for its size or the machine.
    """

    def __init__(self, path: Path, *, copies: int) -> None:
        self._path = path
        check_directory(path, what="npz file", most=_MOST_MEMBERS, remedy="write it by np.savez")
        with decoding(path, "npz file"), zipfile.ZipFile(path) as packed:
            members = packed.infolist()
        self._members = dict[str, zipfile.ZipInfo]()
        for of in members:
            name = of.filename.removesuffix(".npy")
            why = _why_refused(of)
            if name in self._members:
                why = "stands twice"
            if why:
                raise InputError(f"{path}: member {of.filename!r:.80} {why}; write it by np.savez")
            self._members[name] = of
        size = sum(of.file_size for of in members)
        check_expansion(path, size, width=_WIDEST)
        check_memory(
            f"{path}, unpacked,", copies * size, "give fewer records, or data in two npy files"
        )

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One array.

        Raises:
            KeyError: there is none of that name.
            ValueError: it holds something else than real numbers, or is damaged.
        """
        member = self._members[name]
        with decoding(self._path, "npz file"), zipfile.ZipFile(self._path) as packed:
            with packed.open(member) as file:
                _checked(file, member.file_size, f"{self._path}: {name!r:.80}")
            with packed.open(member) as file:
                found = np.lib.format.read_array(file, allow_pickle=False)
                file.read()  # at the end it is held against its checksum
                return np.asarray(found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


def _why_refused(of: zipfile.ZipInfo) -> str:
    parts = of.filename.replace("\\", "/").split("/")
    if {"", ".", ".."} & set(parts) or not of.filename.isprintable():
        return "is no name of an array"
    if of.compress_type not in _PACKINGS or of.flag_bits & _ENCRYPTED:
        return "is encrypted, or packed as NumPy packs nothing"
    return ""


def check_directory(path: Path, *, what: str, most: int, remedy: str) -> None:
    """Refuse a zip whose directory is too large to be read, by the records at its end.

    Args:
        most: members.
        remedy: how to write the file anew.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is no zip as NumPy and torch write one, or names too much.
    """
    size = check_size(path, 1 << 62)
    with path.open("rb") as file:
        file.seek(max(0, size - _LOOKED_AT))
        end = file.read(_LOOKED_AT).rjust(_LOOKED_AT, b"\0")
    mark, _, _, _, members, directory, begins, comment = struct.unpack("<4s4H2IH", end[-22:])
    rest = 22
    if mark != b"PK\5\6" or comment:
        raise InputError(f"{path} is no {what} or is damaged; {remedy}")
    if end[-42:-38] == b"PK\6\7":  # more than 4 GB: the record before says it
        mark, *_, members, directory, begins = struct.unpack("<4sQ2H2I4Q", end[:56])
        rest = _LOOKED_AT
        (at,) = struct.unpack("<Q", end[-34:-26])
        if mark != b"PK\6\6" or at != size - _LOOKED_AT:
            raise InputError(f"{path} is no {what} or is damaged; {remedy}")
    if begins + directory + rest != size:  # readers would not agree on where members stand
        raise InputError(f"{path} is no {what} or is damaged; {remedy}")
    if members > most or directory > _LARGEST_DIRECTORY:
        raise InputError(
            f"{path} has {members} members, named in {directory} bytes; at most {most} in "
            f"{_LARGEST_DIRECTORY} bytes are read: give fewer arrays"
        )


def _checked(file: IO[bytes], size: int, where: str) -> ArrayHeader:
    """The header at the start of a file of so many bytes."""
    head = io.BytesIO(file.read(_LONGEST_HEADER + 12))
    try:
        with warnings.catch_warnings(action="ignore"):
            version, _ = np.lib.format.read_magic(head)
            shape, _, kind = _READ[version](head, max_header_size=_LONGEST_HEADER)
    except Exception as error:  # what Python's parser raises, of memory too
        raise InputError(f"{where} is no npy file or is damaged: its header is none") from error
    if kind.hasobject or kind.kind not in "biuf" or not 0 < kind.itemsize <= _WIDEST:
        raise InputError(
            f"{where} is of type {str(kind)!r:.80}, must be of real numbers of at most {_WIDEST} "
            "bytes"
        )
    header = ArrayHeader(shape, kind, head.tell())
    if any(type(n) is not int or n < 0 for n in shape) or header.size != size:
        raise InputError(
            f"{where} announces the shape {str(shape)[:80]}, in a file of {size} bytes; it is cut "
            "off or damaged"
        )
    return header
