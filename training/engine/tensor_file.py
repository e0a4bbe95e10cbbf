"""Files of tensors in memory: the one place where such a file becomes that.

What runs write is safetensors, and `read_tensors` reads nothing else. What users bring may be what
NumPy or torch wrote, too, which `read_foreign` tells by its first bytes. Checkpoints are below.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.files import check_expansion, check_memory, decoding, write_durably
from ...privacy.formats import tensor_archives
from ..device.later import is_tensor, torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFile:
    """A file of tensors: its path as it was given, its tensors and its metadata."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file whole.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: `privacy.formats.safetensors_header` refuses it, or memory has no room for it.
    """
    from safetensors import safe_open

    header = tensor_archives.read_header(path)
    check_memory(str(path), header.size, "give a smaller file")
    with decoding(path, "safetensors file"), safe_open(path, framework="pt") as file:
        tensors = {name: _signed(file.get_tensor(name)) for name in header.names}
    return TensorFile(path=path, tensors=tensors, metadata=header.metadata)


def tensors_of(path: Path, data: bytes) -> Mapping[str, Tensor]:
    """The tensors of a file whose bytes were read already, and are as they are on disk.

    Raises:
        ValueError: as of `read_tensors`.
    """
    from safetensors.torch import load

    tensor_archives.read_header(path)
    with decoding(path, "safetensors file"):
        return {name: _signed(tensor) for name, tensor in load(data).items()}


def read_foreign(path: Path) -> TensorFile:
    """Read a file of tensors that may be safetensors, npz, npy, or what torch.save wrote.

    Names of nested dictionaries are joined by dots, and what has no name is called by its number.
    Numbers and text beside tensors are metadata, as they are in safetensors.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is of another kind or damaged, becomes too much, asks for code, or a name
            stands twice.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.pt"
    ...     torch.save({"grads": [torch.ones(2, 3)], "records": 4}, path)
    ...     file = read_foreign(path)
    >>> file.tensors["grads.0"].sum().item(), dict(file.metadata)
    (6.0, {'records': '4'})
    """
    kind = tensor_archives.kind_of(path)
    if kind == tensor_archives.NPY:
        return TensorFile(
            path=path, tensors={"0": _of_numpy(tensor_archives.read_array(path))}, metadata={}
        )
    if kind == tensor_archives.NPZ:
        packed = tensor_archives.PackedArrays(path, copies=3)
        names = {_plain(name): name for name in packed}
        if len(names) < len(packed):
            raise InputError(f"{path} holds names that differ in / or :0 alone; keep one of them")
        tensors = {plain: _of_numpy(packed[name]) for plain, name in names.items()}
        return TensorFile(path=path, tensors=tensors, metadata={})
    return _of_torch(path) if kind == tensor_archives.TORCH else read_tensors(path)


def _plain(name: str) -> str:
    """`a/kernel:0` as `a.kernel`, and `arr_3`, as NumPy calls what has no name, as `3`."""
    return re.sub(r"^arr_(?=\d+$)|:0$", "", name.replace("/", "."))


def _of_numpy(array: NDArray[Any]) -> Tensor:
    wide = array.dtype.kind == "u" and array.dtype != np.uint8
    kept = array.astype(np.int64) if wide else array
    return torch.from_numpy(kept.astype(kept.dtype.newbyteorder("=")))


_MOST_VALUES = 20_000  # tensors, numbers, and lists of them
_DEEPEST = 8  # dictionaries and lists in each other


def _of_torch(path: Path) -> TensorFile:
    """An archive of torch, mapped, so that no storage is larger than what the file holds."""
    # Tensors and nothing that would run, mapped and not yet read.
    tensor_archives.check_torch(path)
    with decoding(path, tensor_archives.TORCH):
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    tensors: dict[str, Tensor] = {}
    said: dict[str, str] = {}
    pending: list[tuple[str, object, int]] = [("", held, 0)]
    seen = 0
    # Nested values are named by their path; how many and how deep is bounded.
    while pending:
        name, value, depth = pending.pop()
        seen += 1
        if seen + len(pending) > _MOST_VALUES or depth > _DEEPEST:
            raise InputError(
                f"{path} holds more than {_MOST_VALUES} values, or one within more than {_DEEPEST} "
                "others; save a dictionary or a list of tensors"
            )
        if name in tensors or name in said:
            raise InputError(f"{path} holds {name!r:.80} twice; keep one of them")
        if is_tensor(value):
            tensors[name or "0"] = value.detach()
        elif isinstance(value, list | tuple) and all(type(v) in _NUMBERS for v in value):
            said[name] = ",".join(map(str, value))
        elif isinstance(value, Mapping | list | tuple):
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            named = [(f"{name}.{key}" if name else str(key), v, depth + 1) for key, v in inner]
            pending += named[::-1]
        elif value is not None:
            said[name] = str(value).lower() if isinstance(value, bool) else str(value)
    # A small file may stand for tensors that need far more memory.
    becomes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    check_expansion(path, becomes)
    check_memory(str(path), 2 * becomes, "give a smaller file")
    with decoding(
        path, tensor_archives.TORCH
    ):  # no longer mapped, so whoever changes the file changes nothing
        copied = {name: tensor.clone() for name, tensor in tensors.items()}
    return TensorFile(path=path, tensors=copied, metadata=said)


_NUMBERS = {int, float, str}  # and words


def _signed(tensor: Tensor) -> Tensor:
    """Unsigned integers of more than 8 bits as int64: with others torch does not compute."""
    kind = str(tensor.dtype).removeprefix("torch.")
    wide = not (tensor.is_floating_point() or kind in _COMPUTED)
    return tensor.to(torch.int64) if wide else tensor


_COMPUTED = {"int64", "int32", "int16", "int8", "uint8", "bool"}


# Checkpoints: the state after a round, whole or not there, and known to be what was written.
#
# One safetensors file: the fields of the state, and beside them the round, facts of the caller's
# and a SHA-256 over all of it. Noise and batches have no state that is kept: a run that goes on
# draws a fresh root, so what it releases again is a new release, and who finds the file can
# subtract nothing. The exception is a history, noise that later rounds take back: it is a part of
# the state, so such a checkpoint is as secret as the data.
#
# How files of a round are named, and which files of a folder are of rounds.

_ROUND, _SUM, _FORMAT = "round", "sha256", "format"
FORMAT = "1"
"""Raised with every change of what a checkpoint holds; one that names none is of the first."""
_NUMBER = re.compile(r"[0-9]{1,18}")


class BrokenCheckpoint(InputError):
    """A file that is not, or not wholly, what was written as a checkpoint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """The state after a round.

    Attributes:
        round: the round; 0 is the start.
        state: by field, as `Engine.snapshot` gives it.
        facts: what it belongs to.
    """

    round: int
    state: Mapping[str, Tensor]
    facts: Mapping[str, str] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; a crash leaves the file that was there, or this one.

    Args:
        path: the file; its folder must exist.
        checkpoint: what to write.

    Raises:
        OSError: the system refuses; the error names the file.
    """
    from safetensors.torch import save

    state = {name: value.detach().cpu().contiguous() for name, value in checkpoint.state.items()}
    facts = {**checkpoint.facts, _ROUND: str(checkpoint.round), _FORMAT: FORMAT}
    write_durably(path, save(state, metadata={**facts, _SUM: _sum(state, facts)}))


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        BrokenCheckpoint: it is not what was written, or nothing says that it is.
        ValueError: another version wrote it.
    """
    try:
        tensor_file = read_tensors(path)
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(
            f"{path} cannot be read ({error}); it is cut off or damaged"
        ) from error
    facts, state = dict(tensor_file.metadata), dict(tensor_file.tensors)
    said = facts.pop(_SUM, None)
    if said is None or not _NUMBER.fullmatch(facts.get(_ROUND, "")):
        raise BrokenCheckpoint(f"{path} carries no checksum, so it may be damaged")
    if said != _sum(state, facts):
        raise BrokenCheckpoint(f"{path} does not match its checksum; it is damaged")
    if (found := facts.pop(_FORMAT, "1")) != FORMAT:
        raise InputError(
            f"{path} is of format {found}, and this version reads {FORMAT}: another version of "
            "overhear wrote it, which environment.json of the run names; continue with that one"
        )
    return Checkpoint(round=int(facts.pop(_ROUND)), state=state, facts=facts)


def _sum(state: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    hashed = hashlib.sha256()
    for part in [repr(sorted(facts.items())), *(sorted(state))]:
        hashed.update(part.encode() + b"\0")
    for name in sorted(state):
        value = state[name]
        hashed.update(f"{value.dtype} {tuple(value.shape)}\0".encode())
        hashed.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()


_NAME = re.compile(r"round-([0-9]{6,18})\.safetensors")


def round_name(number: int) -> str:
    """The name of the file of a round.

    >>> round_name(7)
    'round-000007.safetensors'
    """
    return f"round-{number:06d}.safetensors"


def round_files(folder: Path) -> list[tuple[int, Path]]:
    """The rounds of which a folder has files, in their order, and the files.

    What has another name, such as a copy that a file manager made, and what is no regular file,
    is no file of a round.
    """
    found = []
    for path in folder.glob("round-*.safetensors"):
        named = _NAME.fullmatch(path.name)
        if named and path.name == round_name(int(named[1])) and path.is_file():
            found.append((int(named[1]), path))
    return sorted(found)
