"""The noise of `philox` by one kernel of Triton, which is imported where a CUDA device needs it.

A program makes a block of pairs, counted through all rows: the words of `philox4x32` as uint32, and
Box-Muller in float64 by CUDA's libdevice, in the order of operations of `philox.fill_by_tensors`.
Products and sums are not contracted to one rounding, as they are two there. Arguments have one type
whatever their values, so that the code that was compared with the reference is the one that runs.
A number that a kernel assigns to a name becomes float32, so none is assigned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

with suppress(ImportError):  # torch for the CPU alone brings no Triton
    import triton.language as tl

_BLOCK = 256  # pairs a program


def _fill(
    out: tl.tensor,
    sources: tl.tensor,
    rows: tl.int64,
    width: tl.int64,
    key: tl.uint64,
    nonce: tl.uint64,
    draws: tl.constexpr,
    block: tl.constexpr,
) -> None:
    pairs = (width.to(tl.int64) + 1) // 2
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, pair = place // pairs, place % pairs
    held = row < rows
    source = tl.load(sources + row, mask=held, other=0).to(tl.uint32)
    counter = pair.to(tl.uint32)
    key, nonce = key.to(tl.uint64), nonce.to(tl.uint64)
    key_0, key_1 = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    nonce_0, nonce_1 = nonce.to(tl.uint32), (nonce >> 32).to(tl.uint32)
    cosines = tl.zeros((block,), tl.float64)
    sines = tl.zeros((block,), tl.float64)
    for _ in range(draws):
        a, b, c, d = tl.philox_impl(counter, source, nonce_0, nonce_1, key_0, key_1)
        u = ((a.to(tl.int64) << 21) | (b >> 11).to(tl.int64)) + 1
        v = (c.to(tl.int64) << 21) | (d >> 11).to(tl.int64)
        radius = tl.sqrt(tl.log(u.to(tl.float64) * 2.0**-53) * -2)
        angle = v.to(tl.float64) * (2.0**-53 * 6.283185307179586)
        cosines += tl.cos(angle) * radius
        sines += tl.sin(angle) * radius
        counter += 1 << 30
    into = out + row * width + 2 * pair
    tl.store(into, cosines * draws**-0.5, mask=held)
    tl.store(into + 1, sines * draws**-0.5, mask=held & (2 * pair + 1 < width))


@cache
def _kernel() -> Any:
    import triton

    return triton.jit(_fill, do_not_specialize=["rows", "width", "key", "nonce"])


def fill(out: Tensor, sources: Tensor, *, secret: Sequence[int], draws: int) -> None:
    """Fill a tensor with noise, in one launch.

    Args:
        out: (rows, width), contiguous, float32 or float64; width at most 2^31.
        sources: (rows,) int64 in [0, 2^32), on the device of `out`.
        secret: four integers in [0, 2^32), the key and the nonce.
        draws: 1 to 4, added and scaled.
    """
    rows, width = out.shape
    blocks = -(-rows * ((width + 1) // 2) // _BLOCK)
    if blocks:
        with torch.cuda.device_of(out):
            _kernel()[(blocks,)](
                *(out, sources, rows, width, secret[0] | secret[1] << 32),
                *(secret[2] | secret[3] << 32, draws, _BLOCK),
                num_warps=_BLOCK // 32,
                enable_fp_fusion=False,
            )
