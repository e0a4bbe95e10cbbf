"""A safetensors file of numbers that are computed with: finite, in at least single precision."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ....privacy.errors import InputError
from ....training.engine import tensor_file
from ....training.engine.tensor_file import TensorFile


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file.

    Returns:
        Its tensors, floating-point ones in at least single precision, and its metadata.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no safetensors file, holds nothing, or a value is not finite.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "g.safetensors")
    ...     save_file({"gradient.weight": torch.ones(2, 3)}, path, {"records": "4"})
    ...     file = read_tensors(path)
    >>> file.tensors["gradient.weight"].sum().item(), file.metadata["records"]
    (6.0, '4')
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the path of a safetensors file")
    held = tensor_file.read_tensors(path)
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
