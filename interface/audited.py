"""What an audit of a run measured, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runs.audit.audit import audit_folder
from ..runs.audit.evidence import read_audit
from ..runs.audit.evidence_schema import Audit
from ..runs.errors import ContradictedProof
from ..runs.numbers import bound, lower_bound
from .shown import as_frame, as_html, as_text, overrides_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What was measured of a run, beside what is proven.

    Attributes:
        found: as audit.json holds it.
    """

    found: Audit

    @property
    def verdict(self) -> str:
        """Of the whole audit: consistent, suspicious, contradicted, and so on."""
        return self.found.verdict

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against what is proven."""
        return self.found.verdict in ("consistent", "cleared")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """By adversary what is proven and what was measured."""
        return [
            {
                "adversary": adversary.name,
                "proven_epsilon": float(adversary.proven_epsilon),
                "status": adversary.status,
                "measured_epsilon": adversary.measured_epsilon,
                "ideal_epsilon": adversary.ideal_epsilon,
                "seen_epsilon": adversary.seen_epsilon,
                "canaries": adversary.canaries,
                "verdict": adversary.verdict,
            }
            for adversary in self.found.adversaries
        ]

    def to_pandas(self) -> DataFrame:
        """The rows as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame(self.rows)

    def __repr__(self) -> str:
        """The rows, and every check of the engine."""
        return as_text(self._head(), self._cells(), self._notes())

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return as_html(self._head(), self._cells(), self._notes())

    def _head(self) -> str:
        return f"Audit with {self.found.canaries} canaries: {self.found.verdict}"

    def _cells(self) -> list[dict[str, str]]:
        return [
            {
                "adversary": row["adversary"],
                "at most": f"{bound(row['proven_epsilon'])} ({row['status']})",
                "measured": "at least " + lower_bound(row["measured_epsilon"])
                if row["measured_epsilon"] is not None
                else "nothing",
                "verdict": row["verdict"],
            }
            for row in self.rows
        ]

    def _notes(self) -> list[str]:
        return [
            f"{check.name}: {'passed' if check.passed else 'FAILED'}: {check.words}"
            for check in self.found.checks
        ]


def audit_of_folder(
    folder: Path, *, again: bool = False, device: str | None = None, **keys: Any
) -> AuditResult:
    """Audit the run of a folder, with keys of [audit] in place of those of its run file."""
    overrides = overrides_of({f"audit.{key}": value for key, value in keys.items()})
    try:
        found = audit_folder(folder, overrides=overrides, device=device, again=again)
    except ContradictedProof:
        audit = read_audit(folder)
        if audit is None:
            raise
        found = audit
    return AuditResult(found)
