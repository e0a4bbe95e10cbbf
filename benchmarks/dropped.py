"""What it costs that a record which overflows counts as zero by a choice, as on a device.

    OMP_NUM_THREADS=1 python benchmarks/dropped.py
    python benchmarks/dropped.py --device cuda

Clipped sums of ten agents' batches of 32 records on their own models, 28 x 28 pixels, float32, with
the choice and without it, in turn; the median of each, and of the ratios within a round. On the CPU
the engine looks at the sums in place of the choice: here it is made to go the way of a device. CPU
time of the process there, wall time on a device.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Tensor

from overhear.runs.stop import keep_freed_memory
from overhear.training.gradients.gradients import Layout, PairGradients
from overhear.training.models.parameters import build_model, flatten

AGENTS, RECORDS, SHAPE = 10, 32, (1, 28, 28)
LAYOUTS: tuple[Layout, ...] = ("book-keeping", "grouped", "vmap")
CLIP_NORM = 1.0


def seconds(
    engine: PairGradients, models: Tensor, batches: list[tuple[Tensor, Tensor]], device: str
) -> float:
    """Of one call."""
    own = list(range(AGENTS))
    clock = time.process_time if device == "cpu" else time.perf_counter
    begin = clock()
    engine.clipped_sums(models, (own, own), batches, clip_norm=CLIP_NORM)
    engine.check()  # waits for a device
    return clock() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=21)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as runs do
    draw = torch.Generator().manual_seed(0)
    print("| network | layout | with, ms | without, ms | ratio |")
    print("| --- | --- | --- | --- | --- |")
    for name in ("linear", "mlp", "lenet"):
        model = build_model(name, input_shape=SHAPE, classes=10, generator=draw)
        models = flatten(model).repeat(AGENTS, 1).to(given.device)
        batches = [
            (
                torch.randn(RECORDS, *SHAPE, generator=draw).to(given.device),
                torch.randint(10, (RECORDS,), generator=draw).to(given.device),
            )
            for _ in range(AGENTS)
        ]
        for layout in LAYOUTS:
            engines = []
            for drops in (True, False):
                engine = PairGradients(model, layout, device=given.device, drops=drops)
                engine._deferred = True
                seconds(engine, models, batches, given.device)
                engines.append(engine)
            times = [
                [seconds(engine, models, batches, given.device) for engine in engines]
                for _ in range(given.rounds)
            ]
            ours, plain = (statistics.median(column) for column in zip(*times, strict=True))
            ratio = statistics.median(one / other for one, other in times)
            print(
                f"| {name} | {layout} | {1e3 * ours:.1f} | {1e3 * plain:.1f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
