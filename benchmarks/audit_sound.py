"""Sound runs under audit: how often one is suspected, contradicted, or fails a check.

    python benchmarks/audit_sound.py [--audits 100] [--seed 0] [--only ALGORITHM ...]

Every private algorithm of the registry in turn, on a ring, a full, a directed, a time-varying and
other graphs, both adjacencies, rates of 1, .5, .2 and .05, few and many coordinates, one to eight
rounds. Nothing is planted but canaries, so whatever is found is a false alarm. Of 100 sound audits
more than 5 suspicious ones, or any that is contradicted or fails a check, make the exit code 1; a
bound is at 95 %, a contradiction at 99.9 % after it, and a check errs once in a million.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from overhear.privacy.errors import InputError
from overhear.runs.audit.audit import audit_config
from overhear.runs.audit.evidence_schema import Audit
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.algorithms import ALGORITHMS

SUSPICIOUS_OF_100 = 5
AGENTS, RECORDS, FEATURES, CLASSES = 6, 24, 10, 3  # the small data: D = 33
GRAPHS = ("ring", "full", "directed-ring", "directed-exponential", "star", "grid")
RATES = (1.0, 0.5, 0.2, 0.05)
ADJACENCIES = ("add-or-remove-one", "replace-one")
# Settings under which an algorithm does something else.
VARIANTS = {
    "choco-sgd": ("algorithm.compressor=random-k",),
    "dpdl": ("algorithm.form=published",),
    "dp-cga": ("algorithm.clip=batch",),
    "dp-dpsgd": ("algorithm.order=step-then-mix",),
    "dp-netfleet": ("algorithm.batches=per-round",),
    "dpmixsgd": ("algorithm.form=published",),
    "muffliato": ("algorithm.gossip_steps=2",),
    "porter": ("algorithm.compressor=quantised",),
}
_ALARMS = ("suspicious", "contradicted", "failed checks")
_DIGITS_EVERY = 5  # audits, one of which is of digits: D = 650
_RUN = """\
[model]
name = "linear"

[algorithm]
name = "{algorithm}"

[graph]
name = "{graph}"

[privacy]
epsilon = {epsilon}
delta = 1e-5
adjacency = "{adjacency}"

[training]
rounds = {rounds}
sampling_rate = {rate}
learning_rate = 0.1

[intercept]
rounds = [1]

[audit]
canaries = {canaries}
checked_rounds = 4

[data]
agents = {agents}
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One sound run.

    Attributes:
        algorithm, graph, adjacency, rate, rounds, epsilon: of its run file.
        digits: whether it has digits, and the small data otherwise.
        overrides: more of the run file.
        canaries: of the audit.
    """

    algorithm: str
    graph: str
    adjacency: str
    rate: float
    rounds: int
    epsilon: float
    digits: bool
    overrides: tuple[str, ...] = ()
    canaries: int = 120

    def __str__(self) -> str:
        """In a line."""
        data = "digits" if self.digits else "small"
        more = " ".join(self.overrides)
        return (
            f"{self.algorithm} on {self.graph}, {self.adjacency}, rate {self.rate:g}, "
            f"{self.rounds} rounds, epsilon {self.epsilon:g}, {data} {more}".rstrip()
        )

    def text(self, data: Path) -> str:
        """The run file; `data` is the small data set."""
        head = _RUN.format(agents=AGENTS, **dataclasses.asdict(self))
        if self.digits:
            return f'{head}name = "digits"\npartition = "dirichlet"\n'
        return f'{head}name = "libsvm"\nroot = "{data.as_posix()}"\nfeatures = {FEATURES}\n'


def cases(seed: int, *, only: Sequence[str] = ()) -> Iterator[Case]:
    """Cases without end: the algorithms in turn, the rest drawn."""
    draw = np.random.default_rng(seed)
    every: list[tuple[str, tuple[str, ...]]] = []
    for name, of in ALGORITHMS.items():
        if of.private and (not only or name in only):
            every.append((name, ()))
            every += [(name, VARIANTS[name])] if name in VARIANTS else []
    number = 0
    while True:
        algorithm, overrides = every[number % len(every)]
        yield Case(
            algorithm=algorithm,
            graph=str(draw.choice(GRAPHS)),
            adjacency=str(draw.choice(ADJACENCIES)),
            rate=float(draw.choice(RATES)),
            rounds=int(draw.integers(1, 9)),
            epsilon=float(draw.choice([1.0, 3.0, 8.0])),
            digits=number % _DIGITS_EVERY == 0,
            overrides=overrides,
            # Where a batch is clipped, an agent can hold one canary a run.
            canaries=30 if "algorithm.clip=batch" in overrides else 120,
        )
        number += 1


def write_small_data(path: Path) -> None:
    """Write records of normal features in the LIBSVM form, and as many for the test beside it."""
    draw = np.random.default_rng(1)
    for to, count in ((path, AGENTS * RECORDS), (path.with_name(f"{path.name}.t"), 12)):
        lines = [
            " ".join(
                [
                    str(i % CLASSES),
                    *(f"{k + 1}:{x:.4f}" for k, x in enumerate(draw.normal(size=FEATURES))),
                ]
            )
            for i in range(count)
        ]
        to.write_text("\n".join(lines) + "\n", encoding="utf-8")


def audit_case(case: Case, *, folder: Path) -> Audit | str:
    """The audit of a case; where its run file or its game is refused, the sentence."""
    path = folder / "run.toml"
    path.write_text(case.text(folder / "small"), encoding="utf-8")
    try:
        config = load_run_file(path, case.overrides)
        return audit_config(config)
    except InputError as error:
        return str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was found of how many; 1 if that is too much."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--audits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--only", nargs="*", default=(), metavar="ALGORITHM")
    parser.add_argument("--verbose", action="store_true", help="a line for every audit")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    started = time.process_time()
    verdicts, checks, refused = Counter[str](), Counter[str](), 0
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        write_small_data(folder / "small")
        for case in cases(asked.seed, only=asked.only):
            if verdicts.total() == asked.audits:
                break
            before = time.process_time()
            found = audit_case(case, folder=folder)
            spent = time.process_time() - before
            if isinstance(found, str):
                refused += 1
                if asked.verbose:
                    print(f"refused: {case}: {found}", flush=True)
                continue
            verdicts[found.verdict] += 1
            failed = [check for check in found.checks if not check.passed]
            checks.update(check.name for check in failed)
            alarm = bool(failed) or found.verdict in _ALARMS
            if alarm or asked.verbose:
                print(f"{found.verdict}: {case} ({spent:.1f} s)")
                for line in _said(found) if alarm else []:
                    print(f"    {line}")
                sys.stdout.flush()
    spent = time.process_time() - started
    print(f"\n{verdicts.total()} audits, {refused} cases refused, {spent:.0f} CPU s")
    for verdict, count in verdicts.most_common():
        print(f"{verdict}: {count}")
    for name, count in checks.most_common():
        print(f"check that failed: {name}: {count}")
    allowed = SUSPICIOUS_OF_100 * verdicts.total() / 100
    wrong = verdicts["contradicted"] + verdicts["failed checks"]
    return 1 if wrong or checks or verdicts["suspicious"] > max(1.0, allowed) else 0


def _said(found: Audit) -> Iterator[str]:
    """What was found against a sound run."""
    for check in found.checks:
        if not check.passed:
            yield f"{check.name}: {check.words}"
    for one in found.adversaries:
        if one.verdict in ("suspicious", "contradicted"):
            again = "" if one.again is None else f", again {one.again.epsilon:.3f}"
            yield (
                f"{one.name} {one.verdict}: proven {one.proven_epsilon:.3f}, "
                f"measured {one.measured_epsilon}{again}"
            )
            for message in [*one.messages, *one.messages_again]:
                if message.measured_epsilon > message.proven_epsilon:
                    yield (
                        f"  {message.message} of agent {message.agent}: proven "
                        f"{message.proven_epsilon:.3f}, measured {message.measured_epsilon:.3f}"
                    )


if __name__ == "__main__":
    sys.exit(main())
