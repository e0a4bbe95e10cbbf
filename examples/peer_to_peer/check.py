"""What the agents' ledgers cost each adversary, and whether what was kept is what they say.

python check.py LEDGER_FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from agent import RECORDS, START, gradients, mixed
from torch import Tensor

from overhear.privacy.guarantee import Statement
from overhear.runs.recorder.conformance import Released, conformance


def start_of(round: int, _agent: int, released: Sequence[Released]) -> Tensor | None:
    """Where a round starts: the mean of what was sent in the round before."""
    last = [one for one in released if one.round == round - 1]
    return mixed([one.value for one in sorted(last, key=lambda one: one.sender)]) if last else None


def check(folder: Path) -> None:
    """Print the checks and the account."""
    found = conformance(folder, gradients=gradients, points=start_of, public=[START])
    print(found)
    print()
    adversaries = ["eavesdropper", "neighbour:1"]
    print(found.account(Statement(delta=1 / RECORDS**2), adversaries=adversaries))


if __name__ == "__main__":
    check(Path(sys.argv[1]))
