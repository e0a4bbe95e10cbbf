"""How much of a proven epsilon the audit measures: repaired DPDL, eavesdropper, real engine.

    python benchmarks/audit_power.py [--audits 20] [--canaries 5000] [--quick]

For each epsilon and sampling rate: the median of the audits' lower bounds, beside what a perfect
audit of as many canaries expects, and beside what is proven. Process CPU seconds are of one audit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from overhear.attacks.audit.audit import audit
from overhear.runs.audit.game import game_of
from overhear.runs.plan.plan import make_plan
from overhear.runs.run_file.build import build
from overhear.runs.run_file.run_file import load_run_file

RUN = Path(__file__).parent.parent / "examples" / "dpdl-digits.toml"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=20)
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--quick", action="store_true", help="three audits of 1,000 canaries")
    asked = parser.parse_args()
    audits, canaries = (3, 1000) if asked.quick else (asked.audits, asked.canaries)
    torch.set_num_threads(1)
    print(f"{audits} audits of {canaries} canaries each, digits, ring of 10, delta 1e-5\n")
    print(
        "| sampling | rounds | proven | median | ideal | median / ideal | median / proven "
        "| above proven | CPU s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for rate, rounds in ((1.0, 5), (0.1, 50)):
        for epsilon in (1.0, 3.0, 8.0):
            _row(epsilon, rate, rounds, audits=audits, canaries=canaries)


def _row(epsilon: float, rate: float, rounds: int, *, audits: int, canaries: int) -> None:
    config = load_run_file(
        RUN,
        [
            "model.name=linear",
            "privacy.delta=1e-5",
            'privacy.adversaries=["eavesdropper"]',
            f"privacy.epsilon={epsilon}",
            f"training.sampling_rate={rate}",
            f"training.rounds={rounds}",
            f"audit.canaries={canaries}",
            "intercept.rounds=[1]",
        ],
    )
    built = build(config)
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size)
    found, spent = [], []
    for seed in range(audits):
        game, against, _ = game_of(config, built, plan, multiplier=plan.noise_multiplier)
        assert game is not None  # noqa: S101 # the eavesdropper is measured
        start = time.process_time()
        (one,) = [a for a in audit(game, against, seed=seed) if a.proven.name == "eavesdropper"]
        spent.append(time.process_time() - start)
        found.append(one)
    median = statistics.median(one.measured for one in found)
    ideal = found[0].ideal or 0.0
    over = sum(one.measured > one.proven.epsilon for one in found)
    print(
        f"| {rate:g} | {rounds} | {epsilon:g} | {median:.2f} | {ideal:.2f} | {median / ideal:.3f} "
        f"| {median / epsilon:.2f} | {over} of {audits} | {statistics.median(spent):.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
