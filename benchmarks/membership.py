"""Membership inference beside the figures of a public implementation, and beside a proof.

    python benchmarks/membership.py

Small networks on digits, in which each of 30 agents trains on 48 records of its own: without
privacy, and with DP-DPSGD at epsilon 1 for holders of messages. 16 references and 4 games. What a
public implementation prints for its demo (16 models, CIFAR-10) stands beside it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from overhear.runs.audit.evidence import Membership, MembershipRow
from overhear.runs.audit.membership import audit_membership
from overhear.runs.folder.run import train_run
from overhear.runs.requests import MembershipRequest
from overhear.runs.run_file.run_file import load_run_file

PLAIN = """
[data]
name = "digits"
agents = 30
[model]
name = "mlp"
[algorithm]
name = "dsgd"
[training]
rounds = 150
sampling_rate = 0.5
learning_rate = 0.5
"""
PRIVATE = """
[data]
name = "digits"
agents = 30
[model]
name = "mlp"
[algorithm]
name = "dp-dpsgd"
[privacy]
epsilon = 1
delta = 1e-5
[training]
rounds = 60
sampling_rate = 0.5
learning_rate = 0.2
"""
# tensorflow/privacy, research/mi_lira_2021/README.md: wide ResNets of about 91 %
# accuracy on halves of CIFAR-10, 25,000 members, 16 models, two augmentations.
PUBLISHED = {
    "LiRA online": "0.686, 0.059 (fixed variance)",
    "LiRA offline": "0.555, 0.030 (fixed variance)",
    "loss threshold": "0.592, 0.001",
}
MODELS, ATTACKS = ("average", "owner"), (*PUBLISHED, "RMIA online", "RMIA offline")


def main() -> None:
    """Print the table."""
    found, spent = [], []
    for text in (PLAIN, PRIVATE):
        began = time.process_time()
        found.append(inferred(text))
        spent.append(time.process_time() - began)
    print("AUC, TPR at FPR .1 %, TPR at FPR 1 %, in games with random assignment\n")
    print("| model | attack | no privacy | epsilon 1 | published: AUC, TPR at .1 % |")
    print("| --- | --- | --- | --- | --- |")
    for model in MODELS:
        for attack in ATTACKS:
            cells = [told(row(one, model, attack)) for one in found]
            beside = PUBLISHED.get(attack, "-") if model == MODELS[0] else "-"
            print(f"| {model} | {attack} | {' | '.join(cells)} | {beside} |")
    for one, seconds in zip(found, spent, strict=True):
        print(f"\n{one.verdict}: {one.words}. {seconds:.0f} CPU s.")


def inferred(text: str) -> Membership:
    """What is found of a run that is trained for it."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run.toml"
        path.write_text(text, encoding="utf-8")
        folder = Path(place) / "run"
        train_run(load_run_file(path), folder)
        return audit_membership(folder, MembershipRequest(references=16, games=4))


def row(found: Membership, model: str, attack: str) -> MembershipRow:
    """The row of an attack on a model, in the games."""
    rows = found.played.rows if found.played else []
    return next(r for r in rows if (r.model, r.attack) == (model, attack))


def told(one: MembershipRow) -> str:
    """AUC and rates of a row."""
    found = (r.true_positive_rate for r in one.rates)
    rates = ("-" if rate is None else f"{rate:.3f}" for rate in found)
    return f"{one.auc:.3f} ± {one.auc_error:.3f}, {', '.join(rates)}"


if __name__ == "__main__":
    main()
