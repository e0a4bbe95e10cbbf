"""Full float32 products, whatever the process allows elsewhere.

A product in TF32 or bfloat16 keeps 10 or 7 of float32's 23 bits: a norm may then come out shorter
than the gradient by more than the clip factor's slack, and a clipped gradient be longer than its
bound. How much longer no factor can say, so neither is offered:

- a layout by layer measures a gradient by other products than it adds it up by, and where the terms
  of a product cancel, rounding them moves it by more than any share of its length;
- where gradients are measured as they are added, no clipped one is too long, but how the others'
  come out depends on the size of the batch, which one record changes: libraries take TF32 for some
  shapes and full products for others. In float32 that moves a sum by its last bits; in TF32 by
  2^-11 of every gradient before it is clipped, times what a network makes of it, which nothing
  bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

from ...privacy.errors import InputError

__all__ = ["full_precision", "readable_precision"]

# Where a setting of its own exists: CUDA's and the CPU's products and convolutions; the setting's
# name and value there. Before torch 2.9 CUDA alone has one.
_PLACES: Sequence[tuple[str, str]] = (("cuda", "matmul"), ("cudnn", ""))
_NAME = "allow_tf32"
_FULL: bool | str = False
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    _PLACES = (
        *(("cuda", "matmul"), ("cudnn", "conv"), ("cudnn", "rnn")),
        *(("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
    )
    _NAME = "fp32_precision"
    _FULL = "ieee"


@contextmanager
def full_precision() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 products inside, and leave the settings as found.

    So is automatic mixed precision (`torch.autocast`). The settings belong to the process: other
    threads compute in full precision meanwhile.

    Raises:
        ValueError: A setting does not take, and products would not be full ones.

    >>> with full_precision():
    ...     torch.backends.cuda.matmul.fp32_precision
    'ieee'
    """
    with ExitStack() as given_back:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                given_back.enter_context(torch.autocast(kind, enabled=False))
        name, full = _NAME, _FULL
        settings = [_at(*place) for place in _PLACES]
        for setting in settings:
            given_back.callback(_give_back, setting, getattr(setting, name))
            setattr(setting, name, full)
        if any(getattr(setting, name) != full for setting in settings):
            raise InputError(
                "torch does not leave TF32 or bfloat16 for float32 products "
                f"({', '.join(str(getattr(setting, name)) for setting in settings)}), which a "
                "clip norm would not bound; unset what forces them in the environment"
            )
        yield


@contextmanager
def readable_precision() -> Iterator[None]:
    """Let torch read its older switch of TF32 inside, as `torch.export` does; it computes nothing.

    Torch raises where the switch and the settings that took its place differ, as they do in
    `full_precision`. Settings are left as found; the switch is never written, since none could
    tell what it was.

    >>> with full_precision(), readable_precision():
    ...     torch.backends.cudnn.allow_tf32
    True
    """
    if _NAME == "allow_tf32":
        yield
        return
    with ExitStack() as given_back:
        settings = [_at("cudnn", part) for part in ("conv", "rnn")]
        for setting in settings:
            given_back.callback(_give_back, setting, setting.fp32_precision)
        for value in ("tf32", "ieee"):
            for setting in settings:
                setting.fp32_precision = value
            with suppress(RuntimeError):
                _ = torch.backends.cudnn.allow_tf32
                break
        yield


def _give_back(setting: Any, value: Any) -> None:
    if _NAME == "fp32_precision":
        # A setting that follows a wider one reads as that one's; it shall go on following.
        setting.fp32_precision = "none"
        if setting.fp32_precision == value:
            return
    setattr(setting, _NAME, value)


def _at(backend: str, part: str) -> Any:
    found = getattr(torch.backends, backend)
    return getattr(found, part) if part else found
