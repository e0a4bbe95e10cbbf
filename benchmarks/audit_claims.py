"""Claims put to the test: figures that papers state or that are usual, and what was measured.

    python benchmarks/audit_claims.py [--canaries 5000] [--simulated 100000]

DPDL and Whisper are run by the real engine on digits. Dyn-D2P's central-limit figure needs more
canaries than that engine plays in minutes, so its scores are drawn from the mechanism itself.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for what the tests have beside them

from overhear.attacks.bounds.lower_bounds import Guesses  # noqa: E402
from overhear.attacks.bounds.mechanism import Claim, epsilon  # noqa: E402
from overhear.privacy.guarantee import Statement  # noqa: E402
from overhear.privacy.noise.schedule import Schedule  # noqa: E402
from overhear.privacy.published.claim import dyn_d2p_clt  # noqa: E402
from overhear.runs.audit.audit import audit_config  # noqa: E402
from overhear.runs.run_file.run_file import load_run_file  # noqa: E402
from tests.attacks.bounds.simulated_scores import simulated_scores  # noqa: E402
from tests.attacks.bounds.tail_bound import tail  # noqa: E402

EXAMPLES = Path(__file__).parent.parent / "examples"
THRESHOLD = 1.25  # log ratio, fixed in advance


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--canaries", type=int, default=5000)
    parser.add_argument("--simulated", type=int, default=100_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| claim | against | claimed | proven | measured, at least | verdict |")
    print("| --- | --- | --- | --- | --- | --- |")
    for form in ("published", "repaired"):
        values = [f"algorithm.form={form}", "algorithm.alpha=1.0", "model.name=linear"]
        values += ["training.rounds=20", "privacy.adversary=single-message"]
        _engine(
            f"DPDL {form}",
            "dpdl-digits.toml",
            values,
            canaries=asked.canaries,
            claims=("single-message", "eavesdropper")
            if form == "repaired"
            else ("single-message",),
        )
    _engine(
        "Whisper",
        "whisper-digits.toml",
        ["model.name=linear", "training.rounds=20"],
        canaries=asked.canaries,
        claims=("eavesdropper",),
        against=("eavesdropper", "neighbour"),
    )
    _limit(asked.simulated)


def _engine(
    name: str,
    run: str,
    values: Sequence[str],
    *,
    canaries: int,
    claims: Sequence[str],
    against: Sequence[str] = ("eavesdropper",),
) -> None:
    config = load_run_file(
        EXAMPLES / run,
        [*values, f"audit.canaries={canaries}", "audit.seed=0", "intercept.rounds=[1]"],
    )
    found = audit_config(config)
    by_name = {one.name: one for one in found.adversaries}
    for claim, who in itertools.product(claims, against):
        one = by_name[who]
        proven = "none" if one.status != "proven" else f"{one.proven_epsilon:.2f}"
        claimed = by_name[claim].proven_epsilon
        _row(f"{name}: {claim}", who, claimed, proven, one.measured_epsilon)


def _limit(canaries: int) -> None:
    schedule = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1, budget_growth=1)
    stated = dyn_d2p_clt(schedule, epsilon=1.0, statement=Statement(delta=1e-4))
    claim = Claim(rounds={(float(stated.noise_multiplier or 0.0), 1 / 2500): 3500})
    rng = np.random.default_rng(0)
    coins = rng.integers(2, size=canaries).astype(bool)
    parts = [simulated_scores(claim, part, generator=rng) for part in np.array_split(coins, 10)]
    guesses = Guesses(scores=np.concatenate(parts), included=coins)
    found = tail(guesses, threshold=THRESHOLD, delta=1e-4, confidence=0.95)
    _row(
        f"Dyn-D2P, central limit (simulated, {canaries} canaries, ratio above {THRESHOLD})",
        "eavesdropper",
        stated.epsilon,
        f"{epsilon(claim, 1e-4):.2f}",
        found.epsilon,
    )


def _row(name: str, who: str, claimed: float, proven: str, measured: float) -> None:
    verdict = "falsified" if measured > claimed else "stands"
    print(f"| {name} | {who} | {claimed:.2f} | {proven} | {measured:.2f} | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
