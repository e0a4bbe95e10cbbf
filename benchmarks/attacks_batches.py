"""Batches beside the figures to reach: tables and dense records of ReLU networks.

    OMP_NUM_THREADS=1 python benchmarks/attacks_batches.py --quick          # one seed a row
    OMP_NUM_THREADS=1 python benchmarks/attacks_batches.py --data DIR       # DIR/libsvm/a9a.t
    OMP_NUM_THREADS=1 python benchmarks/attacks_batches.py --only dense --seeds 7,8

Networks are linear, activation, linear, with PyTorch's initialisation; gradients are float32, of
the plain mean, and their labels are not told. A record counts as certified where it is, and is held
against the truth afterwards: "false" counts certified records that are further than 1e-3 from any.
Seconds are process CPU time on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from overhear.attacks.exact.stages import solve_exactly
from overhear.attacks.problem.objective import PRESETS
from overhear.attacks.problem.observation import observe
from overhear.attacks.problem.problem import Found, Problem, build_box
from overhear.training.models.parameters import flatten

SPEAR = "SPEAR to 25, SPEAR++ to 10 times that"
REACHED = "15 of 16 patterns in 4.4 s"
_FALSE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Which seeds, and where tables lie."""

    seeds: tuple[int, ...]
    data: Path | None


def network(inputs: int, *, width: int, classes: int, activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, width), activation(), nn.Linear(width, classes))


def solve(
    inputs: Tensor, targets: Tensor, *, model: nn.Module, classes: int
) -> tuple[int, int, float]:
    """How many records are certified, how many of these are false, and CPU seconds."""
    seen = observe(
        model, flatten(model), inputs=inputs, targets=targets, clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    ).to(dtype=torch.float64)  # fmt: skip
    bounds = (torch.tensor(0.0), torch.tensor(1.0))
    problem = Problem(
        observation=seen, model=model, preset=PRESETS["matched"], shape=tuple(inputs.shape[1:]),
        classes=classes, box=build_box(bounds, inputs.shape[1:], dtype=torch.float64),
        labels=None, prior_image=None,
    )  # fmt: skip
    begin = time.process_time()
    found = solve_exactly(problem, torch.Generator().manual_seed(0))
    seconds = time.process_time() - begin
    if not isinstance(found, Found):
        return 0, 0, seconds
    apart = (found.pixels[:, None] - inputs.double()[None]).abs().amax(dim=2).min(dim=1).values
    return len(apart), int((apart > _FALSE).sum()), seconds


def row(name: str, results: Sequence[tuple[int, int, float]], *, batch: int, reach: str) -> None:
    counts = ", ".join(str(count) for count, _, _ in results)
    false = sum(wrong for _, wrong, _ in results)
    seconds = ", ".join(f"{spent:.1f}" for _, _, spent in results)
    print(f"| {name} | {counts} of {batch} | {false} | {reach} | {seconds} s |", flush=True)


def tables(work: Work) -> None:
    if work.data is None:
        print("| a9a | skipped | | | name the folder of libsvm/a9a.t by --data |")
        return
    from sklearn.datasets import load_svmlight_file

    sparse, signs = load_svmlight_file(str(work.data / "libsvm" / "a9a.t"), n_features=123)
    rows, labels = torch.tensor(sparse.toarray()).float(), torch.tensor((signs > 0).astype(int))
    for batch, width, activation, reach in (
        (16, 100, nn.ReLU, f"{REACHED} ({SPEAR})"),
        (24, 100, nn.ReLU, SPEAR),
        (32, 200, nn.ReLU, SPEAR),
        (32, 200, nn.GELU, "none is known"),
    ):
        results = []
        for seed in work.seeds:
            torch.manual_seed(seed)
            chosen = torch.randperm(len(rows))[:batch]
            model = network(123, width=width, classes=2, activation=activation)
            results.append(solve(rows[chosen], labels[chosen], model=model, classes=2))
        row(
            f"a9a, batch {batch}, {width} units of {activation.__name__}", results, batch=batch,
            reach=reach,
        )  # fmt: skip


def dense(work: Work) -> None:
    for batch, width, classes in ((16, 100, 2), (16, 100, 10), (20, 200, 10), (24, 300, 10)):
        results = []
        for seed in work.seeds:
            torch.manual_seed(seed)
            inputs, targets = torch.rand(batch, 123), torch.randint(0, classes, (batch,))
            model = network(123, width=width, classes=classes, activation=nn.ReLU)
            results.append(solve(inputs, targets, model=model, classes=classes))
        row(
            f"uniform numbers, batch {batch}, {width} units, {classes} classes", results,
            batch=batch, reach=f"{REACHED} ({SPEAR})" if batch == 16 else SPEAR,
        )  # fmt: skip


ROWS: dict[str, Callable[[Work], None]] = {"tables": tables, "dense": dense}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one seed a row")
    parser.add_argument("--only", default=",".join(ROWS), help=f"rows among {', '.join(ROWS)}")
    parser.add_argument("--seeds", default="0,1,2", help="of records and networks")
    parser.add_argument("--data", type=Path, default=os.environ.get("OVERHEAR_DATA"))
    asked = parser.parse_args()
    unknown = set(asked.only.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"--only {', '.join(sorted(unknown))}: choose among {', '.join(ROWS)}")
    torch.set_num_threads(1)
    seeds = tuple(int(seed) for seed in asked.seeds.split(","))
    data = None if asked.data is None else Path(asked.data)
    work = Work(seeds=seeds[:1] if asked.quick else seeds, data=data)
    print("| work | certified | false | reached (peer) | CPU time |")
    print("|---|---|---|---|---|")
    for name in asked.only.split(","):
        ROWS[name](work)


if __name__ == "__main__":
    main()
