"""Settings under which a device computes the same bits again, for evaluation runs.

A run with `evaluation_noise_seed` is to end with the same models bit for bit. On CUDA that takes

| setting                               | value     | why                                      |
|---------------------------------------|-----------|------------------------------------------|
| `torch.use_deterministic_algorithms`  | True      | atomic additions come in any order       |
| `torch.backends.cudnn.deterministic`  | True      | so do those of some convolutions         |
| `torch.backends.cudnn.benchmark`      | False     | a clock would choose the convolution     |
| environment `CUBLAS_WORKSPACE_CONFIG` | ":4096:8" | cuBLAS splits products by its workspace  |

and the same chip, versions and number of ranks. Memory is not filled before it is written
(`torch.utils.deterministic.fill_uninitialized_memory`), which costs time and which nothing here
reads. The CPU needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import deterministic

from ...privacy.errors import InputError
from .precision import full_precision

__all__ = ["computing", "repeatable"]

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_SERVE = (":4096:8", ":16:8")  # of its values, those under which cuBLAS repeats itself


@contextmanager
def computing(device: torch.device, *, repeats: bool = False) -> Iterator[None]:
    """Full products inside, and on a device the same bits again where `repeats` asks for them.

    Raises:
        ValueError: Torch allows no full products, or an operation that does not repeat itself.
    """
    with full_precision(), repeatable(device) if repeats else nullcontext():
        yield


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """Let a device compute the same bits again inside; leave the settings as found.

    Args:
        device: Where the run computes; on the CPU nothing is set.

    Raises:
        ValueError: An operation inside has no algorithm that repeats itself on the device.

    >>> with repeatable(torch.device("cpu")):
    ...     torch.are_deterministic_algorithms_enabled()
    False
    """
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    filling: Any = deterministic  # a module with a property, which no stub knows
    algorithms = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    fills = filling.fill_uninitialized_memory
    fixed, measures = cudnn.deterministic, cudnn.benchmark
    workspace = os.environ.get(_WORKSPACE)
    try:
        if workspace not in _SERVE:
            os.environ[_WORKSPACE] = _SERVE[0]
        torch.use_deterministic_algorithms(True)
        filling.fill_uninitialized_memory = False
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise InputError(
            "evaluation_noise_seed promises the same bits again, but "
            f"{' '.join(str(error).split())[:200]}; take a network without this operation, set "
            "training.device=cpu, or leave out evaluation_noise_seed"
        ) from error
    finally:
        cudnn.deterministic, cudnn.benchmark = fixed, measures
        filling.fill_uninitialized_memory = fills
        torch.use_deterministic_algorithms(algorithms, warn_only=warns)
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
        else:
            os.environ[_WORKSPACE] = workspace
