"""Full float32 products, whatever the process allows elsewhere.

A product in TF32 or bfloat16 keeps 10 or 7 of float32's 23 bits: a norm may then come out shorter
than the gradient by more than the clip factor's slack, and a clipped gradient be longer than its
bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Where a setting of its own exists: CUDA's and the CPU's products and convolutions.
_PLACES = (("cuda", "matmul"), ("cudnn", "conv"), ("mkldnn", "matmul"), ("mkldnn", "conv"))
# Before torch 2.9.
_FLAGS = (("cuda", "matmul"), ("cudnn", ""))


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 products inside, and leave the settings as found.

    The settings belong to the process: other threads compute in full precision meanwhile.

    Examples:
        >>> with full_precision():
        ...     torch.backends.cuda.matmul.fp32_precision
        'ieee'
    """
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        flags: list[Any] = [_at(*place) for place in _FLAGS]
        allowed = [flag.allow_tf32 for flag in flags]
        try:
            for flag in flags:
                flag.allow_tf32 = False
            yield
        finally:
            for flag, value in zip(flags, allowed, strict=True):
                flag.allow_tf32 = value
        return
    settings: list[Any] = [_at(*place) for place in _PLACES]
    before = [setting.fp32_precision for setting in settings]
    try:
        for setting in settings:
            setting.fp32_precision = "ieee"
        yield
    finally:
        for setting, value in zip(settings, before, strict=True):
            # A setting that follows a wider one reads as that one's; it shall go on following.
            setting.fp32_precision = "none"
            if setting.fp32_precision != value:
                setting.fp32_precision = value


def _at(backend: str, part: str) -> Any:
    found = getattr(torch.backends, backend)
    return getattr(found, part) if part else found
