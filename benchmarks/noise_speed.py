"""What noise costs beside torch's own, on one thread and on two.

    python benchmarks/rounds.py --only noise

Wall milliseconds, medians of turns in which the columns take turns, float32, of as many rows as
agents. "Device's" is the noise of CUDA devices, made on the CPU: what it costs there is not shown
here. Whatever the number of threads the noise is the same, which is checked. On a CUDA device
the fused kernel stands beside the tensor operations that it is compared with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from overhear.training.device.philox import fill_by_tensors, fused, normal_rows
from overhear.training.engine.randomness import SecretRandomness

_SHAPES = ((10, 61_706), (10, 975_000), (100, 4_810))
_ON_DEVICE = ((1000, 4_810), (1000, 61_706), (30, 11_173_962))


def table(*, quick: bool) -> None:
    """Print one row for each kind of noise and shape."""
    kept = torch.get_num_threads()
    print("\n| noise, rows x values | 1 thread | 2 threads | 1 / 2 | torch.randn, 1 | against it |")
    print("|---|---:|---:|---:|---:|---:|")
    for rows, width in _SHAPES[: 1 if quick else None]:
        for name, draw in _kinds(rows, width).items():
            _row(f"{name}, {rows} x {width:,}", draw, rows=rows, width=width, quick=quick)
    torch.set_num_threads(kept)


def _kinds(rows: int, width: int) -> dict[str, Callable[[], Tensor]]:
    def of(source: SecretRandomness) -> Callable[[], Tensor]:
        where = {"round": 1, "call": 0, "rows": range(rows), "width": width}
        return lambda: source.normal(**where, dtype=torch.float32)  # type: ignore[arg-type]

    return {
        "standard": of(SecretRandomness(1)),
        "hardened": of(SecretRandomness(1, hardened=True)),
        "device's": lambda: normal_rows(
            [1, 2, 3, 4], range(rows), width=width, dtype=torch.float32, device="cpu"
        ),
    }


def _row(name: str, draw: Callable[[], Tensor], *, rows: int, width: int, quick: bool) -> None:
    columns = ((1, draw), (2, draw), (1, lambda: torch.randn(rows, width)))
    times: list[list[float]] = [[], [], []]
    for turn in range(3 if quick else 9):
        drawn = []
        for threads, run in columns:
            torch.set_num_threads(threads)
            start = time.perf_counter()
            drawn.append(run())
            times[len(drawn) - 1].append(1e3 * (time.perf_counter() - start))
        if not turn and not torch.equal(drawn[0], drawn[1]):
            raise SystemExit(f"{name}: two threads draw other noise than one")
    one, two, plain = (statistics.median(of) for of in times)
    print(
        f"| {name} | {one:.1f} | {two:.1f} | {one / two:.2f} | {plain:.1f} | {one / plain:.1f} |",
        flush=True,
    )


def on_device(*, quick: bool) -> None:
    """Print one row for each kind of noise and shape on the CUDA device."""
    print(
        "\n| noise in float32, rows x values | kernel, ms | G values/s | tensor operations, ms |",
        end="",
    )
    print(" G values/s | ratio |\n|---|---:|---:|---:|---:|---:|")
    device = torch.device("cuda", torch.cuda.current_device())
    for rows, width in _ON_DEVICE[: 2 if quick else None]:
        out = torch.empty(rows, width, device=device)
        sources = torch.arange(rows, device=device)
        for name, draws in (("standard", 1), ("hardened", 4)):
            cells, seconds = list[str](), list[float]()
            for fill in (fused(device, out.dtype, draws), fill_by_tensors):
                if fill is None:  # a warning has said why
                    raise SystemExit("the fused kernel is not used on this device")
                times = []
                for _ in range(3 if quick else 9):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    fill(out, sources, secret=(1, 2, 3, 4), draws=draws)
                    torch.cuda.synchronize()
                    times.append(time.perf_counter() - start)
                seconds.append(statistics.median(times))
                cells.append(f"{1e3 * seconds[-1]:.2f} | {rows * width / seconds[-1] / 1e9:.1f}")
            ratio = seconds[1] / seconds[0]
            print(f"| {name}, {rows} x {width:,} | {' | '.join(cells)} | {ratio:.1f} |", flush=True)
