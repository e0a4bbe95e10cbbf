"""The public name `Run`: the folder of a run, with what is in it and what can be asked of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..privacy.errors import InputTypeError
from ..privacy.formats.codec import dump
from ..privacy.releases.ledger import Spent, read_ledger
from ..runs.audit.evidence import read_attack, read_audit
from ..runs.folder import folder as run_folder
from ..runs.folder.records import read_metrics
from ..runs.numbers import bound, small
from ..runs.run_file.run_file import ForeignFolder, RunFile
from ..training.own.objects import give
from . import shown

if TYPE_CHECKING:
    from torch import nn

    from ..reports.judgement.gate import Decision
    from ..runs.plan.plan import Plan

__all__ = ["Checked", "MetricsTable", "Run", "report"]

_OBJECTS = {
    "data": "[data] name",
    "model": "[model] name",
    "algorithm": "[algorithm] name",
    "loss": "[model] loss",
}


@dataclass(frozen=True, slots=True, repr=False)
class MetricsTable(shown.Shown, shown.InRows):
    """The test metrics of a run, a row for each evaluation.

    Attributes:
        rows: by round; lists hold a value for each agent.
    """

    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        """How many evaluations there are."""
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rows."""
        return iter(self.rows)

    def _head(self) -> str:
        return "Test metrics of the mean model"

    def _cells(self) -> list[dict[str, str]]:
        """Of each row what is one number."""
        return [
            {key: f"{value:.4g}" for key, value in row.items() if isinstance(value, int | float)}
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True, repr=False)
class Checked(shown.Shown):
    """What a policy says of a run.

    Attributes:
        decision: every requirement, with its outcome and a sentence.
    """

    decision: Decision

    @property
    def passed(self) -> bool:
        """Whether every requirement is met."""
        return self.decision.exit_code == 0

    def __bool__(self) -> bool:
        """The same."""
        return self.passed

    def _head(self) -> str:
        return "Within the policy" if self.passed else f"Not within: {self.decision.outcome}"

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "outcome": requirement.outcome.value,
                "requirement": requirement.name,
                "why": requirement.sentence,
            }
            for requirement in self.decision.requirements
        ]


class Run(shown.Shown):
    """The folder of a run.

    Args:
        folder: as `train` or `overhear train` left it. Code that its run file names is imported
            only if this process named it already with the same options, or within
            `overhear.runs.run_file.trust.trusting`.
        objects: data, model, algorithm or loss of a run that was trained with objects in the place
            of names, in a process that did not train it; others than these are refused.

    Raises:
        FileNotFoundError: no run is there.

    >>> Run("nowhere")
    Traceback (most recent call last):
        ...
    FileNotFoundError: nowhere...
    """

    def __init__(self, folder: str | Path, **objects: object) -> None:
        self.folder = Path(folder)
        for name, value in objects.items():
            if name not in _OBJECTS:
                raise InputTypeError(
                    f"{name}={value!r:.40} is no object of a run; it must be one of "
                    f"{', '.join(_OBJECTS)}"
                )
            give(value, key=_OBJECTS[name])
        ForeignFolder(self.folder)
        run_folder.require(self.folder, run_folder.RUN)
        run_folder.require(self.folder, run_folder.LEDGER)

    @cached_property
    def config(self) -> RunFile:
        """The run file that was trained."""
        return ForeignFolder(self.folder).run_file()

    @cached_property
    def plan(self) -> Plan:
        """What the run costs each adversary, as it was planned."""
        from ..runs.plan.plan import make_plan

        return make_plan(self.config, begun=True)

    @property
    def ledger(self) -> Spent:
        """What was released, as it stands now."""
        return read_ledger(self.folder / run_folder.LEDGER)

    @property
    def metrics(self) -> MetricsTable:
        """Test metrics, by evaluation."""
        path = self.folder / run_folder.METRICS
        return MetricsTable([dump(line) for line in read_metrics(path)])

    def models(self) -> list[nn.Module]:
        """The model of each agent at the end of the run.

        Raises:
            FileNotFoundError: the run did not end, or its last checkpoint is gone.
        """
        import copy

        from torch.nn.utils import vector_to_parameters

        from ..runs.audit.membership import final_models
        from ..runs.folder.records import header_of
        from ..runs.folder.released import read_released
        from ..runs.run_file.build import build

        last = run_folder.last_round(self.folder)
        built, header = build(self.config), header_of(read_released(self.folder))
        held = final_models(self.folder, header, last, field=built.algorithm.model)
        network = built.setting.model
        found = []
        for row in held:
            model = copy.deepcopy(network)
            vector_to_parameters(row.to(next(model.parameters()).device), model.parameters())
            found.append(model)
        return found

    @property
    def attacks(self) -> shown.AttackResult | None:
        """What all attacks on the run rebuilt; None before any."""
        attack = read_attack(self.folder)
        return None if attack is None else shown.AttackResult(attack, self.folder)

    @property
    def audit_result(self) -> shown.AuditResult | None:
        """What was measured; None before any audit."""
        audit = read_audit(self.folder)
        return None if audit is None else shown.AuditResult(audit)

    def audit(self, **options: Any) -> shown.AuditResult:
        """Measure what is proven; see `overhear.audit`."""
        return shown.audit_of_folder(self.folder, **options)

    def attack(self, **options: Any) -> shown.AttackResult:
        """Rebuild records from what was intercepted; see `overhear.attack`."""
        return shown.attack_of_folder(self.folder, **options)

    def report(self, format: str = "html") -> shown.Report:
        """The report of the run; see `overhear.report`."""
        return shown.report_of_folder(self.folder, format)

    def check(self, policy: str | Path | Mapping[str, Any]) -> Checked:
        """Hold the run against a policy, as `overhear check` does.

        Args:
            policy: path of a policy, or its tables.

        Raises:
            FileNotFoundError: no policy is there.
            ValueError: the policy or the run cannot be read.
        """
        from ..reports.document.collect import check_run
        from ..reports.judgement.policy import load_policy, policy_of
        from ..runs.run_file.trust import trusting

        wanted = policy_of(policy) if isinstance(policy, Mapping) else load_policy(policy)
        with trusting(pins=wanted.code.allow, calls=wanted.code.calls):
            return Checked(check_run(self.folder, wanted))

    def _head(self) -> str:
        rounds = self.config.training.rounds
        return f"{self.folder}: {self.ledger.rounds} of {rounds} rounds released"

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "adversary": g.adversary,
                "epsilon": bound(g.epsilon),
                "delta": small(g.delta),
                "status": str(g.status),
            }
            for g in self.plan.guarantees
        ]


def report(
    target: Run | str | Path, format: str = "html", *, show_records: bool = False
) -> shown.Report:
    """The report of a run, of a folder with logs of releases, or of an attack on gradients.

    Args:
        target: a `Run`, its folder, a folder of logs, or what `overhear invert` wrote.
        format: "html" writes the page beside what it is about; "json" and "md" write nothing.
        show_records: whether the page shows training records, and not public ones alone.

    Raises:
        FileNotFoundError: no run is there.
        ValueError: another format, or a run that cannot be read.
    """
    folder = target.folder if isinstance(target, Run) else Path(target)
    return shown.report_of_folder(folder, format, show_records=show_records)
