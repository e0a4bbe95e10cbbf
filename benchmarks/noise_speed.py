"""What noise costs beside torch's own, on one thread and on two.

    python benchmarks/rounds.py --only noise

Wall milliseconds, medians of turns in which the columns take turns, float32, of as many rows as
agents. "Device's" is the noise of CUDA devices, made on the CPU: what it costs there is not shown
here. Whatever the number of threads the noise is the same, which is checked.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from overhear.training.device.philox import normal_rows
from overhear.training.engine.randomness import SecretRandomness

_SHAPES = ((10, 61_706), (10, 975_000), (100, 4_810))


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
