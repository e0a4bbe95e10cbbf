"""Planted faults: what each does to the true epsilon, what was measured, and what catches it.

    python benchmarks/audit_bugs.py [--group NAME ...] [--only NAME ...] [--holdout] [--audits N]

The engine is patched as `tests/attacks/planted` says and audited as ever: DPDL repaired on digits,
a linear model, a ring of ten, epsilon 8 at delta 1e-5, rate .2, 24 rounds, 500 canaries (1,000
where a fault is found by chance), unless the fault needs something else. Faults of training are
there while a folder is trained and gone when it is audited.

With one audit each the table is printed, with more how many of them name the fault. Found is a
fault where a check that has to name it fails, or an adversary is contradicted; the exit code is 1
where that is less often than it has to be: always, or 9 times in 10 for those found by chance.
`--holdout` takes the faults that no check was written for in place of the others.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.attacks.planted.audits import Caught, audited  # noqa: E402 # beside us
from tests.attacks.planted.catalogue import GROUPS  # noqa: E402
from tests.attacks.planted.planted import Origin, Planted  # noqa: E402

_SOUND = "none"
_HEAD = (
    "bug",
    "what it does to epsilon",
    "proven",
    "measured",
    "verdict",
    "checks that fail",
    "p or bound",
    "CPU s",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a fault was not found as often as it has to be."""
    asked = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    faults = chosen(asked.group, only=asked.only, holdout=asked.holdout)
    if asked.audits == 1:
        print(f"| {' | '.join(_HEAD)} |\n|{' --- |' * len(_HEAD)}")
    missed = []
    for fault in faults:
        found = [audited(fault, overrides=asked.set) for _ in range(asked.audits)]
        caught = sum(one.is_caught for one in found)
        if asked.audits == 1:
            print(f"| {' | '.join(row(found[0]))} |", flush=True)
        else:
            print(_times(fault, found), flush=True)
        if fault is not None and caught < fault.enough(asked.audits):
            missed.append(fault.name)
    if missed:
        print(f"\n{len(missed)} of {len(faults)} not found: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--only", nargs="*", default=None, help=f"names; {_SOUND} for no fault")
    parser.add_argument("--holdout", action="store_true")
    parser.add_argument("--audits", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="table.key=value")
    return parser


def chosen(
    groups: Sequence[str], *, only: Sequence[str] | None = None, holdout: bool = False
) -> list[Planted | None]:
    """The faults that are asked for; None stands for the sound engine.

    Raises:
        SystemExit: a name that no fault has.
    """
    every = {one.name: one for name in GROUPS for one in GROUPS[name]}
    if only is not None:
        unknown = [name for name in only if name not in every and name != _SOUND]
        if unknown:
            raise SystemExit(f"no fault is named {', '.join(unknown)}; see tests/attacks/planted")
        return [every.get(name) for name in only]
    found: list[Planted | None] = [None]
    for name in groups:
        found += [one for one in GROUPS[name] if (one.origin is Origin.HOLDOUT) == holdout]
    return found


def row(found: Caught) -> list[str]:
    """One row of the table."""
    fault = found.fault
    proven, bound = found.measured
    return [
        _SOUND if fault is None else fault.name,
        "Nothing." if fault is None else fault.sentence,
        "-" if proven is None else f"{proven:.2f}",
        "-" if bound is None else f"{bound:.2f}",
        found.verdict.partition(":")[0],
        ", ".join(found.named) or "none",
        found.shown_by,
        f"{found.cpu_seconds:.0f}",
    ]


def _times(fault: Planted | None, found: Sequence[Caught]) -> str:
    names = sorted({name for one in found for name in one.named})
    by = ", ".join(f"{name} {sum(name in one.named for one in found)}" for name in names)
    if fault is None:
        return f"{_SOUND}: {sum(bool(one.named) for one in found)} of {len(found)} found ({by})"
    caught = sum(one.is_caught for one in found)
    return f"{fault.name}: {caught} of {len(found)} found, {fault.enough(len(found))} needed ({by})"


if __name__ == "__main__":
    sys.exit(main())
