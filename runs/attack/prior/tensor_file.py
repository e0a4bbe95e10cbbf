"""A safetensors file, read whole: its tensors and its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ....privacy.bounded import check_safetensors
from ....privacy.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFile:
    """A safetensors file: its path as it was given, its tensors and its metadata."""

    path: Path
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file.

    Args:
        path: of the file.

    Returns:
        Its tensors, floating-point ones in at least single precision, and its metadata.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no safetensors file, holds nothing, or a value is not finite.

    Examples:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "g.safetensors")
        ...     save_file({"gradient.weight": torch.ones(2, 3)}, path, {"records": "4"})
        ...     file = read_tensors(path)
        >>> file.tensors["gradient.weight"].sum().item(), file.metadata["records"]
        (6.0, '4')
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the path of a safetensors file")
    check_safetensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
    except SafetensorError as error:
        raise InputError(
            f"{path} is not a safetensors file ({error}); pickles and archives are not read: save "
            "with safetensors.torch.save_file or safetensors.numpy.save_file"
        ) from error
    if not tensors:
        raise InputError(f"{path} holds no tensors; save one gradient per parameter")
    return TensorFile(
        path=path,
        tensors={name: _widened(path, name, tensor) for name, tensor in tensors.items()},
        metadata=metadata,
    )


def _widened(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if not bool(torch.isfinite(tensor).all()):
        raise InputError(f"{path}: {name!r} holds values that are not finite; leave them out")
    return tensor if tensor.dtype == torch.float64 else tensor.float()
