"""The decision: whether a run is within a policy, and what would turn it.

Only proven figures pass. A contradiction of a proof stands above everything, because it says that
the proof or the code is wrong; then come figures over a limit, then evidence that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..document.checked_run import CheckedRun
from ..plain_text import plain
from .evidence_check import check_evidence
from .finding import Decision
from .limit_check import check_limit
from .policy import Policy
from .proof_check import check_proofs

__all__ = ["decide"]


def decide(policy: Policy, run: CheckedRun) -> Decision:
    """Hold a run against a policy.

    Args:
        policy: what must hold.
        run: its figures, computed anew, and its evidence.
    """
    return Decision(
        findings=(
            *(check_limit(limit, run) for limit in policy.limits),
            *check_proofs(run),
            *check_evidence(policy, run),
        ),
        notes=tuple(plain(note) for note in _notes(policy, run)),
    )


def _notes(policy: Policy, run: CheckedRun) -> Iterator[str]:
    """What passes, and still matters to whoever relies on it."""
    copies = run.report["run"]["duplicate_records"]
    if copies:
        yield (
            f"{copies} records occur more than once: a figure holds for one copy, and whoever is "
            "in the data k times is protected less"
        )
    limited = {limit.adversary for limit in policy.limits}
    if run.report["run"]["links"] == "encrypted" and "eavesdropper" in limited:
        yield "links are taken to be encrypted: the eavesdropper reads the released models alone"
    if run.spent.torn:
        yield "the torn last line of the ledger is counted as a release"
