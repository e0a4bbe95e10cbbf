"""Files of tensors as frameworks write them: what one is, and whether torch may load it.

A file is known by its first bytes, whatever it is called. An archive of torch is a zip of plain
members around a pickle. Before torch reads it, by its loader of weights alone, its directory is
held against the file, and every name that the pickle asks for against a list: tensors and what
they stand in, nothing that could be called with a size or be code.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import check_expansion, check_memory, check_size, decoding

# NumPy's files: ``npy``, an array, and ``npz``, a zip of them. Headers first, then the numbers.


_LONGEST_HEADER = 10_000  # characters, as NumPy bounds it
_WIDEST = 8  # bytes of a number
_MOST_ARRAYS = 1000
_LARGEST_DIRECTORY = 1 << 20
_ZIP_END = 98  # bytes: the end of a zip, and before it the two records of a long one
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
# By the version of the format; a third one is of records with fields.
_HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}


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
        check_directory(path, what="npz file", most=_MOST_ARRAYS, remedy="write it by np.savez")
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
        file.seek(max(0, size - _ZIP_END))
        end = file.read(_ZIP_END).rjust(_ZIP_END, b"\0")
    mark, _, _, _, members, directory, begins, comment = struct.unpack("<4s4H2IH", end[-22:])
    rest = 22
    if mark != b"PK\5\6" or comment:
        raise InputError(f"{path} is no {what} or is damaged; {remedy}")
    if end[-42:-38] == b"PK\6\7":  # more than 4 GB: the record before says it
        mark, *_, members, directory, begins = struct.unpack("<4sQ2H2I4Q", end[:56])
        rest = _ZIP_END
        (at,) = struct.unpack("<Q", end[-34:-26])
        if mark != b"PK\6\6" or at != size - _ZIP_END:
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
            shape, _, kind = _HEADERS[version](head, max_header_size=_LONGEST_HEADER)
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


# The header of a safetensors file: what it says is held against the file before all else.


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


SAFETENSORS, NPY, NPZ, TORCH = "safetensors file", "npy file", "npz file", "archive of torch"
_LOOKED_AT = 4096  # bytes
_LARGEST_PICKLE = 4 << 20  # bytes; a tensor takes about 200
_MOST_MEMBERS = 20_000
# What torch.save writes of tensors, in lists and dictionaries, with numbers and text beside them.
_NAMES = re.compile(
    r"collections OrderedDict|torch (?:Size|device)|torch\._utils _rebuild_(?:tensor_v2|parameter)"
    r"|torch (?:BFloat16|Half|Float|Double|Byte|Char|Short|Int|Long|Bool)Storage"
    r"|torch (?:bfloat16|float16|float32|float64|uint8|int8|int16|int32|int64|bool)"
)
_OTHER_NAMES = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}

# What is not read: how it begins, what it is, and two lines that make a file which is.
_TO_NPZ = 'numpy.savez("weights.npz", **{w.path: w.numpy() for w in model.weights})'
_OF_KERAS = 'import keras, numpy; model = keras.models.load_model("FILE")'
_LOAD = 'import torch; held = torch.load("FILE", weights_only=False)  # runs whatever is in it'
_SAVE = 'torch.save(held, "tensors.pt")  # of a whole model held.state_dict()'
_UNREAD: tuple[tuple[str, str, tuple[str, str]], ...] = (
    (r"\x89HDF\r\n\x1a\n", "HDF5, as Keras writes weights", (_OF_KERAS, _TO_NPZ)),
    (r"GGUF", "GGUF", (
        'import gguf, numpy; held = gguf.GGUFReader("FILE").tensors',
        'numpy.savez("weights.npz", **{t.name: gguf.dequantize(t.data, t.tensor_type) for t in '
        "held})",
    )),
    (r"\x80\x02\x8a\nl\xfc\x9c", "a file of torch before 1.6, which is a row of pickles", (
        'import torch; held = torch.load("FILE", weights_only=True)', 'torch.save(held, "new.pt")',
    )),
    (r"\x80[\x02-\x05]|\(?[cdl]\w*\n", "a pickle, which can run code", (
        'import numpy, pickle; held = pickle.load(open("FILE", "rb"))  # runs whatever is in it',
        'numpy.savez("arrays.npz", **held)  # of a dictionary; *held of a list',
    )),
    (r"(?:[\x81-\x8f]|\xde..)[\xa1-\xbf]", "msgpack, as Flax writes it", (
        'import flax, numpy; held = flax.serialization.msgpack_restore(open("FILE", "rb").read())',
        'numpy.savez("weights.npz", **flax.traverse_util.flatten_dict(held, sep="/"))',
    )),
    (r"\x1f\x8b|BZh|\xfd7zXZ", "packed", (
        "gunzip --stdout FILE > unpacked  # or bunzip2, unxz", "file unpacked",
    )),
    (r"version https://git-lfs", "a pointer of Git LFS, and not what it points to", (
        "git lfs install", "git lfs pull",
    )),
)  # fmt: skip


def kind_of(path: Path) -> str:
    """What a file of tensors is, by its first bytes.

    Returns:
        `SAFETENSORS`, `NPY`, `NPZ` or `TORCH`.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is unknown, or a kind that is not read, with two lines that convert it.
    """
    check_size(path, 1 << 62)
    with path.open("rb") as file:
        head = file.read(_LOOKED_AT)
    if head.startswith(b"\x93NUMPY"):
        return NPY
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _kind_of_zip(path)
    if head[8:9] == b"{":
        return SAFETENSORS
    for begins, what, lines in _UNREAD:
        if re.match(begins, head.decode("latin-1"), re.DOTALL):
            raise _unread(path, what, lines)
    raise InputError(
        f"{path} begins with {head[:8]!r}, as no file of tensors does that is known here; {_READ}"
    )


_READ = "safetensors, npz, npy and what torch.save writes of tensors are read"


def _unread(path: Path, what: str, lines: tuple[str, str]) -> InputError:
    told = "\n  ".join(line.replace("FILE", path.name) for line in lines)
    return InputError(f"{path} is {what}; {_READ}. Convert it:\n  {told}")


def _members(path: Path) -> list[zipfile.ZipInfo]:
    what, remedy = "npz file or archive of torch", "write it by np.savez or torch.save"
    check_directory(path, what=what, most=_MOST_MEMBERS, remedy=remedy)
    with decoding(path, "zip"), zipfile.ZipFile(path) as packed:
        return packed.infolist()


def _kind_of_zip(path: Path) -> str:
    names = [of.filename for of in _members(path)]
    if any(name.endswith("model.weights.h5") for name in names):
        raise _unread(path, "a model of Keras", (_OF_KERAS, _TO_NPZ))
    if any(name.endswith("/constants.pkl") for name in names):
        lines = (
            'import torch; held = torch.jit.load("FILE").state_dict()',
            _SAVE.partition("  #")[0],
        )
        raise _unread(path, "a program of TorchScript, which can run code", lines)
    return TORCH if any(name.endswith("/data.pkl") for name in names) else NPZ


def check_torch(path: Path) -> None:
    """Refuse an archive of torch that holds more than tensors, or says more than it holds.

    Raises:
        ValueError: members are packed, stand twice or exceed the file; the pickle is too large,
            damaged, or asks for something else than tensors.
    """
    members = _members(path)
    packed = [of for of in members if of.compress_type != zipfile.ZIP_STORED or of.flag_bits & 1]
    held = sum(of.file_size for of in members)
    if packed or len({of.filename for of in members}) < len(members) or held > path.stat().st_size:
        raise InputError(
            f"{path} is no archive as torch writes it: members are packed, stand twice, or "
            "exceed the file; write it anew by torch.save"
        )
    pickles = [of for of in members if of.filename.endswith(".pkl")]
    if len(pickles) > 1 or pickles[0].file_size > _LARGEST_PICKLE:
        raise InputError(
            f"{path} holds {len(pickles)} pickles, the first of {pickles[0].file_size} bytes; one "
            f"of at most {_LARGEST_PICKLE} is read: save fewer tensors in a file"
        )
    with decoding(path, TORCH), zipfile.ZipFile(path) as archive:
        steps = [
            (str(step.name), given)
            for step, given, _ in pickletools.genops(archive.read(pickles[0]))
            if step.name in _OTHER_NAMES or step.name == "GLOBAL"
        ]
    for step, given in steps:
        if step in _OTHER_NAMES or _NAMES.fullmatch(str(given)) is None:
            what = f"{str(given or step)!r:.80}, which is no tensor and might be code"
            raise _unread(path, f"an archive of torch that asks for {what}", (_LOAD, _SAVE))
