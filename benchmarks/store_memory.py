"""Memory of a training run on a large csv file, above that of the same run on a small one.

    python benchmarks/store_memory.py [--rows 2000000] [--columns 20]

A csv file is made, with `columns` numbers and a label in a row, and each part is a process of its
own:

=========  =====================================================================================
convert    csv to the mapped file, which happens once
large      `overhear train` on it, from the mapped file
small      the same on 1,000 rows: what program, model and engine take themselves
=========  =====================================================================================

Printed is, in MB, the largest resident memory (`ru_maxrss`, mapped pages of files among it), and
the largest anonymous memory, which is what cannot be given back to the system without swapping,
looked at every 20 ms. The exit code is 1 where a run on the large file takes 300 MB more than one
on the small file, by either measure.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

ALLOWED = 300.0  # MB
SMALL = 1000  # rows

RUN = """
[data]
name = "csv"
root = "{rows}.csv"
cache = "cache"
target = "label"
classes = 2
agents = 5
[data.columns]
{columns}
[model]
name = "mlp"
[algorithm]
name = "dp-dpsgd"
[privacy]
noise_multiplier = 1.0
delta = 1e-5
[training]
rounds = 50
batch_size = 64
"""


def write_csv(path: Path, *, rows: int, columns: int) -> None:
    """Numbers in [-1, 1] with four digits, and a label that depends on the first."""
    draw = np.random.default_rng(0)
    names = ",".join(f"c{i}" for i in range(columns))
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{names},label\n")
        for start in range(0, rows, 10_000):
            block = draw.uniform(-1, 1, size=(min(10_000, rows - start), columns)).round(4)
            for row in block.tolist():
                file.write(f"{','.join(map(str, row))},{int(row[0] > 0)}\n")


def anonymous() -> float:
    """MB of this process that no file holds."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def part(name: str) -> None:
    """One part, in a process of its own; its memory on standard output."""
    from overhear.runs.folder.run import train_run
    from overhear.runs.run_file.build import data_of
    from overhear.runs.run_file.run_file import load_run_file

    most, done = [anonymous()], threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    what, rows = name.split(":")
    config = load_run_file(f"{rows}.toml")
    if what == "convert":
        data_of(config)
    else:
        train_run(config, Path(f"run-{rows}"))
    done.set()
    watcher.join()
    whole = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"MEASURED {whole:.1f} {most[0]:.1f}")


def measured(name: str, folder: Path) -> tuple[float, float]:
    """MB resident and MB anonymous of a part."""
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603 - this file
    line = next(one for one in done.stdout.splitlines() if one.startswith("MEASURED"))
    whole, own = map(float, line.split()[1:])
    return whole, own


def main() -> int:
    """Make the files, run the parts, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--part")
    asked = parser.parse_args()
    if asked.part:
        part(asked.part)
        return 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for rows in (SMALL, asked.rows):
            write_csv(folder / f"{rows}.csv", rows=rows, columns=asked.columns)
            ranges = "\n".join(f"c{i} = [-1, 1]" for i in range(asked.columns))
            text = RUN.format(rows=rows, columns=ranges)
            (folder / f"{rows}.toml").write_text(text, encoding="utf-8")
        size = (folder / f"{asked.rows}.csv").stat().st_size / 2**20
        print(f"{asked.rows} rows of {asked.columns} numbers: {size:.0f} MB of csv")
        print(f"{'part':<28}{'resident':>10}{'anonymous':>11}  MB")
        found = {}
        for name in (
            f"convert:{SMALL}",
            f"convert:{asked.rows}",
            f"train:{SMALL}",
            f"train:{asked.rows}",
        ):
            found[name] = measured(name, folder)
            print(f"{name:<28}{found[name][0]:>10.0f}{found[name][1]:>11.0f}", flush=True)
        mapped = next(p for p in (folder / "cache").glob(f"{asked.rows}-*[0-9a-f].npy"))
        print(f"mapped file: {mapped.stat().st_size / 2**20:.0f} MB")
    more = [
        b - a for a, b in zip(found[f"train:{SMALL}"], found[f"train:{asked.rows}"], strict=True)
    ]
    print(
        f"training on the large file takes {more[0]:.0f} MB more resident, {more[1]:.0f} anonymous"
    )
    return int(max(more) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
