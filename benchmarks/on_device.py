"""All that is to be seen on a CUDA device: its tests, the demo, and the benchmarks' columns.

    make gpu                                      # in the environment of the checkout
    python benchmarks/on_device.py --quick        # fewer rounds

Tests first, then the demo, then the tables; each goes on whatever came of the one before, and all
is written to benchmarks/results/, engine-CHIP.md, rounds-CHIP.md and on-device-CHIP.md. The exit
code is 0 where all of it ended well, 1 where something did not, and 2 where no device is there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


class Part(NamedTuple):
    """A command, and which file its output goes to."""

    name: str
    command: list[str]
    file: str


class Ended(NamedTuple):
    """What came of a command."""

    code: int
    seconds: float
    output: str


def chip_of(name: str) -> str:
    """A device's name as part of a file's name.

    >>> chip_of("NVIDIA A100-SXM4-80GB")
    'nvidia-a100-sxm4-80gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def parts(out: Path, *, quick: bool) -> list[Part]:
    """What is run, in its order."""
    few = ["--quick"] if quick else []
    python = sys.executable
    overhear = [python, "-m", "overhear.commands.cli"]
    engine = [python, str(HERE / "engine.py"), "--device", "cuda", *few]
    rounds = [python, str(HERE / "rounds.py"), "--device", "cuda", *few]
    dropped = [python, str(HERE / "dropped.py")]
    return [
        Part("tests", [python, "-m", "pytest", "-q", "-m", "gpu", "-rfE"], "on-device"),
        Part("demo", [*overhear, "demo", "--device", "cuda", "--out", str(out)], "on-device"),
        Part("gradients by layout", engine, "engine"),
        Part("whole rounds", rounds, "rounds"),
        Part("records that overflow", [*dropped, "--device", "cuda"], "dropped"),
    ]


def run(part: Part) -> Ended:
    """Run a command, and show its output as it comes."""
    begun, lines = time.perf_counter(), list[str]()
    with subprocess.Popen(  # noqa: S603 - the commands above
        part.command, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None  # noqa: S101 - asked for above
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return Ended(process.returncode, time.perf_counter() - begun, "".join(lines))


def written(part: Part, ended: Ended) -> str:
    """A section of a result file; tables as they are, and anything else as text."""
    shown = " ".join(Path(word).name if "/" in word else word for word in part.command)
    of = ended.output.strip()
    body = of if part.file != "on-device" else f"```text\n{of}\n```"
    ended_with = f"exit code {ended.code}, {ended.seconds:.0f} s"
    return f"## {part.name.capitalize()}\n\n    {shown}\n\n{ended_with}\n\n{body}\n"


def main() -> int:
    """Run all parts; see the head of this file for the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "no CUDA device is there: torch.cuda.is_available() is False, so nothing was run; use "
            "a machine with a device, its driver, and a build of torch for it",
            file=sys.stderr,
        )
        return 2
    chip = torch.cuda.get_device_name()
    head = (
        f"{dt.datetime.now(tz=dt.UTC).date()}, {chip}, torch {torch.__version__}, CUDA "
        f"{torch.version.cuda}. By `make gpu`.\n"
    )
    sections: dict[str, list[str]] = {}
    failed = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for part in parts(Path(folder) / "demo", quick=chosen.quick):
            print(f"\n== {part.name}", flush=True)
            ended = run(part)
            if ended.code:
                failed.append(part.name)
            sections.setdefault(part.file, []).append(written(part, ended))
    RESULTS.mkdir(exist_ok=True)
    for file, of in sections.items():
        path = RESULTS / f"{file}-{chip_of(chip)}.md"
        text = "\n".join([f"# On a device: {file}\n", head, *of])
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(HERE.parent)}")
    if failed:
        print(f"did not end well: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
