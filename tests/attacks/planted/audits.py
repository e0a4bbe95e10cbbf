"""Audits of runs with a planted fault, and whether the fault was named."""

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overhear.runs.audit.audit import audit_config, audit_folder
from overhear.runs.audit.evidence import read_audit
from overhear.runs.audit.evidence_schema import Audit, AuditCheck, AuditedAdversary
from overhear.runs.errors import ContradictedProof
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import RunFile, load_run_file
from tests.attacks.planted.planted import CONTRADICTED, TRAINING, Planted
from tests.attacks.planted.seams import ROUNDS

RUN = f"""\
[data]
name = "digits"
agents = 10
partition = "dirichlet"

[graph]
name = "ring"

[model]
name = "linear"

[algorithm]
name = "dpdl"

[privacy]
epsilon = 8
delta = 1e-5
adversaries = ["eavesdropper"]

[training]
rounds = {ROUNDS}
sampling_rate = 0.2
learning_rate = 0.2

[intercept]
rounds = [1]

[audit]
canaries = 500
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caught:
    """What an audit of a faulty run found.

    Attributes:
        audit: its object; None where it ended in an error.
        error: which, by its class and its words.
        stopped: why training ended by itself; empty where it did not.
        fault: what was planted; None of a sound run.
        cpu_seconds: of this process, training included.
    """

    audit: Audit | None
    error: str = ""
    stopped: str = ""
    fault: Planted | None
    cpu_seconds: float

    @property
    def verdict(self) -> str:
        """Of the audit; what happened where there was none."""
        if self.audit is None:
            return f"not trained: {self.stopped}" if self.stopped else self.error
        return self.audit.verdict

    @property
    def measured(self) -> tuple[float | None, float | None]:
        """What is proven against the eavesdropper, and what was measured."""
        for one in self._adversaries:
            if one.name == "eavesdropper":
                return one.proven_epsilon, one.measured_epsilon
        return None, None

    @property
    def _adversaries(self) -> list[AuditedAdversary]:
        return [] if self.audit is None else self.audit.adversaries

    @property
    def failed(self) -> list[AuditCheck]:
        """Checks that failed."""
        checks = [] if self.audit is None else self.audit.checks
        return [check for check in checks if not check.passed]

    @property
    def named(self) -> list[str]:
        """What found something: the names of checks, `CONTRADICTED`, `TRAINING`."""
        names = [check.name for check in self.failed]
        contradicted = any(one.verdict == "contradicted" for one in self._adversaries)
        names += [CONTRADICTED] if contradicted else []
        return [*names, *([TRAINING] if self.stopped else [])]

    @property
    def is_caught(self) -> bool:
        """Whether what has to name the fault did."""
        return self.fault is not None and bool(self.fault.named_by & set(self.named))

    @property
    def shown_by(self) -> str:
        """The smallest p of the checks that have to name it, or the bound that contradicts."""
        if self.stopped:
            return "stopped"
        wanted = frozenset[str]() if self.fault is None else self.fault.named_by
        p = [check.p for check in self.failed if check.name in wanted]
        if p:
            chance = [of for of in p if of is not None]
            return f"p {min(chance):.0e}" if len(chance) == len(p) else "exact"
        if CONTRADICTED not in wanted or CONTRADICTED not in self.named:
            return "-"
        return ", ".join(
            f"at least {one.measured_epsilon:.2f}"
            for one in self._adversaries
            if one.verdict == "contradicted" and one.measured_epsilon is not None
        )


def audited(fault: Planted | None, *, overrides: Sequence[str] = ()) -> Caught:
    """Audit a run file, or train a folder and audit it, with a fault in it.

    Noise, coins and canaries are of the system's entropy, so that every call is another audit.

    Args:
        fault: what is planted; None for the sound engine.
        overrides: of the run file, after the fault's own.
    """
    started, audit, error, stopped = time.process_time(), None, "", ""
    with tempfile.TemporaryDirectory() as held:
        path = Path(held) / "run.toml"
        own = fault.settings if fault is not None else ()
        path.write_text(RUN, encoding="utf-8")
        config = load_run_file(path, [*_audit_rows(fault), *own, *overrides])
        try:
            if fault is not None and fault.folder:
                audit = _of_folder(config, Path(held) / "run", fault)
            else:
                with contextlib.nullcontext() if fault is None else fault.plant():
                    audit = audit_config(config)
        except ContradictedProof as raised:
            stopped = str(raised)
        except Exception as raised:  # noqa: BLE001 - an audit that breaks names no fault
            error = f"{type(raised).__name__}: {raised}"
    spent = time.process_time() - started
    return Caught(audit=audit, error=error, stopped=stopped, fault=fault, cpu_seconds=spent)


def _audit_rows(fault: Planted | None) -> list[str]:
    return ["audit.canaries=1000"] if fault is not None and fault.statistical else []


def _of_folder(config: RunFile, folder: Path, fault: Planted) -> Audit:
    with fault.plant():
        train_run(config, folder)
    with contextlib.suppress(ContradictedProof):
        audit_folder(folder)
    found = read_audit(folder)
    assert found is not None
    return found
