"""Runs that are killed again and again: what is left after each kill, held against a witness.

    python benchmarks/kills.py [--kills N] [--seed SEED]
    python benchmarks/kills.py --signals N [--seed SEED]

With --signals N runs, attacks and audits get signals that ask them to stop instead (`stops.py`).
A child trains a small run on digits; at a random moment it is killed as the system kills (SIGKILL),
what is in its folder is checked, and another child resumes it, until the run is finished and its
report is made; then the next run begins. The witness is a tap: with the first message of a round it
writes the round into a file outside the folder. Half of the runs have a target epsilon, the others
a noise multiplier.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from stops import run_stops
from stops import table as stops_table

from overhear.privacy import read_ledger
from overhear.reports.document.collect import collect
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.plan.plan import Plan, make_plan
from overhear.runs.run_file.run_file import RunFile, load_run_file
from overhear.training.engine.tensor_file import BrokenCheckpoint, load_checkpoint
from overhear.training.engine.transcript import Transcript
from overhear.training.exposure.events import accounted
from overhear.training.exposure.guarantees import run_epsilon

RUN = """
[data]
name = "digits"
agents = 4
[model]
name = "linear"
[algorithm]
name = "dp-dpsgd"
[privacy]
{target}
delta = 1e-4
[training]
rounds = 40
sampling_rate = 0.1
checkpoint_every = 3
[intercept]
rounds = [2, 11, 29]
"""
TARGETS = ("epsilon = 4", "noise_multiplier = 1.5")


@dataclass
class Table:
    """What is counted over all runs; `failures` says what did not hold."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def hold(self, what: str, holds: bool, told: object = "") -> None:
        """Count a check, and keep what it says if it fails."""
        self.counts[what] += 1
        if not holds:
            self.failures.append(f"{what}: {told}")


def witness(path: Path) -> Callable[[Transcript, Any], None]:
    """A tap that writes down each round whose first message is handed over."""
    keep, seen = Transcript.__call__, [-1]
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tap(self: Transcript, message: Any) -> None:
        if message.round != seen[0]:
            seen[0] = message.round
            os.write(opened, b"%d\n" % message.round)
        keep(self, message)

    return tap


def child(config: RunFile, folder: Path, seen: Path) -> int:
    """Start or continue the run in a process of its own; its number."""
    started = os.fork()
    if started:
        return started
    code = 1
    try:
        Transcript.__call__ = witness(seen)  # type: ignore[method-assign] # in this process alone
        run = resume_run if (folder / run_folder.RUN).exists() else train_run
        run(config, folder)
        code = 0
    except Exception as error:  # noqa: BLE001 # a child must end here, whatever it met
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)
    raise AssertionError


def check(folder: Path, seen: Path, plan: Plan, config: RunFile, table: Table) -> None:
    """What must hold in a folder at every moment."""
    released = Counter(map(int, seen.read_text().split())) if seen.exists() else Counter[int]()
    for path in (folder / run_folder.CHECKPOINTS).glob("round-*.safetensors"):
        try:
            load_checkpoint(path)
            table.hold("checkpoints match their checksums", True)
        except BrokenCheckpoint as error:
            table.hold("checkpoints match their checksums", False, error)
    if not (folder / run_folder.LEDGER).exists():
        table.hold("no ledger, nothing released", not released, released)
        return
    spent = read_ledger(folder / run_folder.LEDGER)
    held = [*spent.numbers, *([] if spent.torn_round is None else [spent.torn_round])]
    missing = released - Counter(held)
    table.hold("every release is in the ledger, as often", not missing, missing)
    for name, sensitivity in plan.exposures.items():
        one, other = (
            run_epsilon(
                sensitivity,
                statement=plan.said_of,
                noise_multiplier=plan.noise_multiplier,
                rounds=sorted(rounds.elements()),
            )
            for rounds in (Counter(held), released)
        )
        signed = run_epsilon(
            accounted(sensitivity, spent.numbers, torn=spent.torn),
            statement=plan.said_of,
            noise_multiplier=plan.noise_multiplier,
        )
        holds = signed >= one >= other
        table.hold("epsilon of the ledger is no less", holds, (name, signed, one, other))
    p = config.privacy
    if p is not None and p.epsilon is not None and not spent.torn:
        table.hold("the target is kept", signed_of(plan, spent.numbers) <= p.epsilon, spent.numbers)


def signed_of(plan: Plan, numbers: list[int]) -> float:
    """Epsilon of the target adversary, as a report signs it."""
    sensitivity = accounted(plan.exposures[str(plan.target.adversary)], numbers)
    return run_epsilon(sensitivity, statement=plan.said_of, noise_multiplier=plan.noise_multiplier)


def one_run(place: Path, config: RunFile, table: Table, *, draw: random.Random, kills: int) -> None:
    """One run from its beginning to its report, killed on the way; `kills` at most in all."""
    folder, seen = place / "out", place / "seen"
    plan = make_plan(config)
    while True:
        process = child(config, folder, seen)
        if table.counts["kills"] < kills:
            # From before the first file to where an uninterrupted run is done.
            time.sleep(draw.random() * table.counts["milliseconds of a run"] / 1000)
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        check(folder, seen, plan, config, table)
        if os.WIFEXITED(status):
            table.hold("a child that is left alone finishes", os.WEXITSTATUS(status) == 0, folder)
            break
        table.counts["kills"] += 1
    report = collect(folder)
    spent = read_ledger(folder / run_folder.LEDGER)
    table.counts["runs"] += 1
    table.counts["resumptions"] += len(spent.resumed_after)
    table.counts["releases"] += len(spent.numbers)
    table.counts["rounds released again"] += len(spent.numbers) - len(set(spent.numbers))
    table.counts["runs ended by the budget"] += (folder / run_folder.STOPPED).exists()
    limit = report.plan.target.epsilon
    signed = report.ledger.epsilon[str(plan.target.adversary)]
    table.hold("a report is within its target", limit is None or signed <= limit, signed)
    rounds = report.utility.rounds
    table.hold("an evaluation of a round is there once", rounds == sorted(set(rounds)), rounds)


def run_kills(kills: int, *, seed: int = 0) -> Table:
    """Kill so many children, over as many runs as it takes.

    Args:
        kills: how many.
        seed: of the moments.
    """
    table, draw = Table(), random.Random(seed)
    with tempfile.TemporaryDirectory() as held:
        files = []
        for at, target in enumerate(TARGETS):
            path = Path(held) / f"{at}.toml"
            path.write_text(RUN.format(target=target), encoding="utf-8")
            files.append(load_run_file(path))
        train_run(files[0], Path(held) / "warm")
        started = time.perf_counter()
        train_run(files[0], Path(held) / "timed")
        table.counts["milliseconds of a run"] = round(1000 * (time.perf_counter() - started))
        while table.counts["kills"] < kills:
            place = Path(held) / f"run-{table.counts['runs']}"
            place.mkdir()
            config = files[table.counts["runs"] % len(files)]
            one_run(place, config, table, draw=draw, kills=kills)
            if table.failures:
                break
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--signals", type=int, help="instead: as many SIGINT, SIGTERM, SIGHUP")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.signals is not None:
        stops = run_stops(given.signals, seed=given.seed)
        print(stops_table(stops))
        print(*stops.failures, sep="\n", file=sys.stderr)
        return 1 if stops.failures else 0
    table = run_kills(given.kills, seed=given.seed)
    print("| what | how often |\n| --- | ---: |")
    for what, count in table.counts.items():
        print(f"| {what} | {count} |")
    print(f"| checks that failed | {len(table.failures)} |")
    for failure in table.failures:
        print(failure, file=sys.stderr)
    return 1 if table.failures else 0


if __name__ == "__main__":
    sys.exit(main())
