"""Normal noise for many sources at once, in integer operations of any device.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a key of
64 bits and a counter of 128 into 128 bits without a state: a value depends on its place alone::

    x = philox(counter=(pair + 2^30 draw, source, nonce), key)         4 words of 32 bits
    u, v = (top 53 bits of x[0:2] + 1) 2^-53, (top 53 bits of x[2:4]) 2^-53
    values 2 pair, 2 pair + 1 = sqrt(-2 ln u) (cos 2 pi v, sin 2 pi v)     Box-Muller, in float64

53 bits of radius end the tail at 8.57 standard deviations; 32 bits would at 6.66, and one of 4e10
normal values lies beyond. Words are int64 tensors that hold 32 bits: a product of two wraps round,
and shifted and masked it is right all the same, as known answers confirm.

On CUDA one kernel makes the same values (`fused_philox`). Privacy rests on them, so it is used only
where a first block of it agrees with the tensor operations here, on the same device.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...privacy.errors import InputError, within

_MASK = 2**32 - 1
_PAIRS = 2**30  # a draw; the top two bits of the word count draws
_CACHED = 2**15  # pairs at once for a thread of the CPU: what lives at a time stays near its cores
_AT_ONCE = 2**19  # the same on a device whose memory is not known
_LEAST, _MOST = 2**16, 2**24  # the same by memory; more would spare no more launches
_BYTES_A_PAIR = 160  # of all that lives at a time: counters, words, uniforms, angles, values
_SHARE = 4  # of the free memory one part, so that others on the device find some

# What the kernel is compared on; its first radius is 6.57, where each of 53 bits of u shows.
_SECRET = (0x89ABCDEF, 0x01234567, 0xFEDCBA98, 0x76543210)
_ROWS, _WIDTH = (4250885226, 0, 2**32 - 1, 7), 1399

Words = tuple[Tensor, Tensor, Tensor, Tensor]
Fill = Callable[..., None]  # (out, sources, *, secret, draws)

_fused: dict[tuple[torch.device, torch.dtype, int], Fill | None] = {}


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Ten rounds of Philox4x32.

    Args:
        counter: four int64 tensors of values in [0, 2^32), of shapes that broadcast.
        key: two integers in [0, 2^32).

    Returns:
        Four int64 tensors of values in [0, 2^32), of the shape they broadcast to.
    """
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = a * 0xD2511F53, c * 0xCD9E8D57
        # What lies above 32 bits of a low word goes when it is mixed in.
        a = _mixed(q >> 32, b).bitwise_xor_(k).bitwise_and_(_MASK)
        c = _mixed(p >> 32, d).bitwise_xor_(m).bitwise_and_(_MASK)
        b, d = q, p
        k, m = (k + 0x9E3779B9) & _MASK, (m + 0xBB67AE85) & _MASK
    return a, b.bitwise_and_(_MASK), c, d.bitwise_and_(_MASK)


def _mixed(fresh: Tensor, word: Tensor) -> Tensor:
    """Their exclusive or, in place where the first is as large as both together."""
    if torch.broadcast_shapes(fresh.shape, word.shape) == fresh.shape:
        return fresh.bitwise_xor_(word)
    return fresh ^ word


def pairs_at_once(device: torch.device) -> int:
    """How many pairs of values are made at once: as many as stay in caches, or fit in memory.

    What a value is depends on its place alone, so this decides speed and memory, not noise.

    Args:
        device: where they are made; of a CUDA device the free memory is asked for.

    >>> pairs_at_once(torch.device("cpu")) // torch.get_num_threads()
    32768
    """
    if device.type == "cpu":
        return _CACHED * torch.get_num_threads()
    if device.type != "cuda" or not torch.cuda.is_available():
        return _AT_ONCE
    free, _ = torch.cuda.mem_get_info(device)
    # What the allocator keeps for later counts as taken there, and is free to this process.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(max(free // (_SHARE * _BYTES_A_PAIR), _LEAST), _MOST)


def normal_rows(
    secret: Sequence[int],
    rows: Sequence[int],
    *,
    width: int,
    dtype: torch.dtype,
    device: torch.device | str,
    draws: int = 1,
) -> Tensor:
    """Independent standard normal noise, one row a source, all rows in one go.

    Args:
        secret: four integers in [0, 2^32): the key, and the nonce in the counter.
        rows: the sources, in [0, 2^32).
        width: values a source, at most 2^31.
        dtype: torch.float32 or torch.float64; it is made in float64 and rounded last.
        device: where it is made.
        draws: 1 to 4 independent draws are added for each value and scaled to variance 1.

    Returns:
        (rows, width).

    Raises:
        ValueError: a number beyond these bounds, whose noise would be that of another place.
    """
    _check_places(rows, width=width, draws=draws)
    out = torch.empty(len(rows), width, dtype=dtype, device=device)
    fill = (fused(out.device, dtype, draws) if out.is_cuda else None) or fill_by_tensors
    fill(out, _on_device(rows, out.device), secret=secret, draws=draws)
    return out


def fill_by_tensors(out: Tensor, sources: Tensor, *, secret: Sequence[int], draws: int) -> None:
    """Fill (rows, width) by tensor operations of any device: the reference of the fused kernel."""
    # Several rows at once, or a part of one: a value depends on its place alone.
    width = out.shape[1]
    pairs, most = (width + 1) // 2, pairs_at_once(out.device)
    tall = max(1, most // max(1, pairs))
    for source, into in zip(sources.unsqueeze(1).split(tall), out.split(tall), strict=True):
        for first in range(0, pairs, most):
            last = min(first + most, pairs)
            pair = torch.arange(first, last, device=out.device).unsqueeze(0)
            part = into.narrow(1, 2 * first, min(2 * last, width) - 2 * first)
            made = _summed_pairs(pair, source, secret=secret, draws=draws)
            torch.mul(made.narrow(1, 0, part.shape[1]), draws**-0.5, out=part)


def fused(device: torch.device, dtype: torch.dtype, draws: int) -> Fill | None:
    """The fused kernel, or None where it does not give the values of `fill_by_tensors`.

    It is compared once in a process for each device, type and number of draws, which are code of
    their own, and in float64 for each. Where it differs or fails to compile, a warning says so.
    """
    key = device, dtype, draws
    if key not in _fused:
        try:
            from .fused_philox import fill

            found = _difference(fill, device, torch.float64, draws)
            found = found or _difference(fill, device, dtype, draws)
        except Exception as error:  # noqa: BLE001 - whatever a compiler or a driver raises
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        _fused[key] = None if found else fill
        if found:
            warnings.warn(
                f"the fused kernel of noise is not used on {device} ({found}): tensor operations "
                "make the same noise, several times slower; check triton and its C compiler",
                stacklevel=3,
            )
    return _fused[key]


def _difference(fill: Fill, device: torch.device, dtype: torch.dtype, draws: int) -> str:
    """How what a kernel makes differs from the reference; empty where it does not.

    Of CUDA's logarithm, sine and cosine in float64 1, 2 and 2 units in the last place may be wrong
    (CUDA C++ Programming Guide, Mathematical Functions); roots, products and sums are rounded. Two
    implementations then differ by 7 * 2^-52 of radius times cosine at most, and one draw, scaled,
    by 2^-49 of itself; four draws, each within 8.58, by 2^-44 with their sums. A float32 value
    may be any that such a float64 value rounds to.
    """
    sources = _on_device(_ROWS, device)
    found = torch.full((len(_ROWS), _WIDTH), math.nan, dtype=dtype, device=device)
    exact = torch.empty_like(found, dtype=torch.float64)
    for make, out in ((fill, found), (fill_by_tensors, exact)):
        make(out, sources, secret=_SECRET, draws=draws)
    slack = exact.abs() * 2.0**-49 if draws == 1 else 2.0**-44
    agrees = ((exact - slack).to(dtype) <= found) & (found <= (exact + slack).to(dtype))
    if bool(agrees.all()):
        return ""
    most = float((found.double() - exact).abs().max())
    return f"{int((~agrees).sum())} of {agrees.numel()} values differ, by up to {most:.1e}"


def _check_places(rows: Sequence[int], *, width: int, draws: int) -> None:
    """Refuse numbers that do not fit their place in the counter."""
    within("width", width, f"[0, {2 * _PAIRS}]", "split the vector into blocks")
    within("draws", draws, "[1, 4]", "4 is the hardened noise")
    if len(rows) and not 0 <= min(rows) <= max(rows) <= _MASK:
        raise InputError(f"rows={min(rows)}..{max(rows)} must lie in [0, 2**32); number from 0")


def _on_device(rows: Sequence[int], device: torch.device) -> Tensor:
    # Consecutive rows are counted there, as a copy would wait for the device.
    if len(rows) and list(rows) == list(range(rows[0], rows[0] + len(rows))):
        return torch.arange(rows[0], rows[0] + len(rows), device=device)
    return torch.tensor(rows, dtype=torch.int64, device=device)


def _summed_pairs(pair: Tensor, source: Tensor, *, secret: Sequence[int], draws: int) -> Tensor:
    """(sources, 2 pairs) Box-Muller, summed over the draws."""
    nonce = pair.new_full((1, 1), secret[2]), pair.new_full((1, 1), secret[3])
    shape = (len(source), pair.shape[1], 2)
    total = pair.new_zeros(shape, dtype=torch.float64)
    even, odd = total.unbind(2)
    for draw in range(draws):
        a, b, c, d = philox4x32((pair + draw * _PAIRS, source, *nonce), (secret[0], secret[1]))
        u = _top_bits(a, b).add_(1).double()  # exact
        v = _top_bits(c, d).double()
        radius, angle = u.mul_(2.0**-53).log_().mul_(-2).sqrt_(), v.mul_(2.0**-53 * math.tau)
        even += angle.cos().mul_(radius)
        odd += radius.mul_(angle.sin_())
        del a, b, c, d, u, v, radius, angle  # or they would live on through the next draw
    return total.flatten(1)


def _top_bits(high: Tensor, low: Tensor) -> Tensor:
    """The top 53 bits of two words, in place of the first."""
    return high.bitwise_left_shift_(21).bitwise_or_(low.bitwise_right_shift_(11))
