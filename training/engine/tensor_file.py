"""Safetensors files as tensors: the one place where such a file becomes memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...privacy.bounded import check_memory, decoding
from ...privacy.formats.safetensors_header import read_header


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFile:
    """A safetensors file: its path as it was given, its tensors and its metadata."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file whole.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: `privacy.formats.safetensors_header` refuses it, or memory has no room for it.

    >>> import tempfile, torch
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.safetensors"
    ...     save_file({"a": torch.ones(2, 3)}, path)
    ...     print(read_tensors(path).tensors["a"].sum().item())
    6.0
    """
    from safetensors import safe_open

    header = read_header(path)
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

    read_header(path)
    with decoding(path, "safetensors file"):
        return {name: _signed(tensor) for name, tensor in load(data).items()}


def _signed(tensor: Tensor) -> Tensor:
    """Unsigned integers of more than 8 bits as int64: with others torch does not compute."""
    wide = not (tensor.is_floating_point() or tensor.dtype in _COMPUTED)
    return tensor.to(torch.int64) if wide else tensor


_COMPUTED = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
