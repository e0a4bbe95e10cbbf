"""Planted bugs: what each does to the true epsilon, what was measured, and what catches it.

    python benchmarks/audit_bugs.py [--canaries 5000] [--only NAME ...]

The engine is patched as `tests/attacks/planted_bugs.py` says, and audited like any other. The game
is DPDL on digits, a ring of ten, epsilon 3 at delta 1e-5, every record in every batch unless the
bug is one of sampling; Whisper where the bug needs shared seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from overhear.runs.audit import game as audits  # noqa: E402 # the tests lie beside us
from overhear.runs.audit.audit import audit_config  # noqa: E402
from overhear.runs.evidence.schema import Audit  # noqa: E402
from overhear.runs.run_file.run_file import load_run_file  # noqa: E402
from tests.attacks.checks.planted_bugs import ACCOUNTING, PATCHES  # noqa: E402

BATCH = 20.0  # expected, where the bug needs to know it
DPDL = (
    "model.name=linear",
    "algorithm.alpha=1.0",
    "privacy.epsilon=3",
    "privacy.delta=1e-5",
    'privacy.adversaries=["eavesdropper"]',
    "training.rounds=5",
    "intercept.rounds=[1]",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--only", nargs="*", default=None)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("| bug | what it does | proven | at least | second look | canaries | checks that fail |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    names = ["none", *PATCHES, *ACCOUNTING]
    for name in names if asked.only is None else asked.only:
        found, what = audited(name, canaries=asked.canaries)
        one = next(a for a in found.adversaries if a.name == "eavesdropper")
        again = "-" if one.again is None else f"{one.again.epsilon:.2f}"
        failed = ", ".join(check.name for check in found.checks if not check.passed) or "none"
        print(
            f"| {name} | {what} | {one.proven_epsilon:.2f} "
            f"| {one.measured_epsilon:.2f} | {again} | {one.verdict} | {failed} |",
            flush=True,
        )


def audited(name: str, *, canaries: int = 5000, seed: int = 0) -> tuple[Audit, str]:
    """The audit of a run with one bug, and the sentence that goes with the bug.

    Args:
        name: of the bug; "none" for the sound engine.
        canaries: how many.
        seed: of the coins.
    """
    rate = 0.2 if "batches" in name else 1.0
    if name in ("clipping after averaging", "mean by the realised size"):
        rate = 0.2
    run, values = ROOT / "examples" / "dpdl-digits.toml", [*DPDL, f"training.sampling_rate={rate}"]
    if name == "seed known to more than declared":
        run = ROOT / "examples" / "whisper-digits.toml"
        values = [v for v in values if not v.startswith("algorithm.")]
    if "replace-one" in name or "replacement" in name:
        values.append("privacy.adjacency=replace-one")
    config = load_run_file(run, [*values, f"audit.canaries={canaries}", f"audit.seed={seed}"])
    with contextlib.ExitStack() as stack:
        what = "nothing"
        if name in PATCHES:
            bug = PATCHES[name]
            what = bug.sentence
            sized = name in ("clipping after averaging", "mean by the realised size")
            # The size that is expected of ordinary records is what the bug divides by.
            stack.enter_context(bug.plant(28.75) if sized else bug.plant())  # type: ignore[call-arg] # by name
        elif name in ACCOUNTING:
            fault = ACCOUNTING[name]
            what = fault.sentence
            stack.enter_context(_faulty(fault.apply))
        found = audit_config(config)
    return found, what


@contextlib.contextmanager
def _faulty(apply: Any) -> Any:
    """The accounting of the audit with a fault, as if the plan had made it."""
    sound_claim, sound_epsilon = audits.claim_of, audits.run_epsilon
    with (
        patch.object(audits, "claim_of", lambda e, **how: sound_claim(apply(e), **how)),
        patch.object(audits, "run_epsilon", lambda e, **how: sound_epsilon(apply(e), **how)),
    ):
        yield


if __name__ == "__main__":
    main()
