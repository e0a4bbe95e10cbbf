"""What the checks of a record found together, and the status that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....attacks.watching.result import TOTAL_FALSE_ALARM, Check, Verdict
from ....privacy.guarantee import Statement, Status
from ....privacy.releases.log import ReleaseLog
from ....training.accounts.declared import DeclaredAccount, account_of_releases
from .left_over import told


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class Conformance:
    """What was kept of a log, held against its lines.

    Attributes:
        log: what is declared.
        rounds: the numbers of the rounds that were looked at.
        outcomes: of each check.
        assumed: what nothing here shows, in sentences.
    """

    log: ReleaseLog
    rounds: Sequence[int]
    outcomes: Sequence[Check]
    assumed: Sequence[str]

    def __getitem__(self, name: str) -> Check:
        """The outcome of a check by its name."""
        return self._by_name[name]

    @property
    def _by_name(self) -> Mapping[str, Check]:
        return {one.name: one for one in self.outcomes}

    @property
    def failed(self) -> Sequence[str]:
        """The checks that contradict the log."""
        return [one.name for one in self.outcomes if one.verdict is Verdict.FAILED]

    @property
    def passed(self) -> bool:
        """Whether some check ran and none failed."""
        return not self.failed and any(one.verdict is Verdict.PASSED for one in self.outcomes)

    @property
    def status(self) -> Status:
        """Checked only where every check that applies ran and passed, points among them if needed.

        The check of points must have passed where releases depend on public ones alone, by which
        figures for outsiders are smaller, and where a part of a value is said to be known.
        """
        needed = [one for one in self.outcomes if one.applies]
        whole = self.passed and all(one.verdict is Verdict.PASSED for one in needed)
        return Status.CHECKED if whole else Status.DECLARED

    @property
    def false_alarm(self) -> float:
        """At most the probability that a sound record fails, of all checks together."""
        return TOTAL_FALSE_ALARM * sum(one.p is not None for one in self.outcomes)

    @property
    def said(self) -> str:
        """What the checks come to, in words."""
        if not self.passed:
            by = " and ".join(self.failed)
            return f"declared; contradicted by {by}" if by else "declared"
        if self.status is Status.CHECKED:
            return f"declared; checked in {told(self.rounds)}"
        missing = [one.name for one in self.outcomes if one.applies and not one.tests]
        return f"declared; checked in {told(self.rounds)} but for {', '.join(missing)}"

    def account(
        self, statement: Statement, *, adversaries: Sequence[str] = (), victim: int | None = None
    ) -> DeclaredAccount:
        """What the log costs each adversary, at the status that the checks give it."""
        return account_of_releases(
            self.log,
            statement=statement,
            adversaries=adversaries,
            victim=victim,
            status=self.status,
        )

    def __repr__(self) -> str:
        """The outcomes as a table, and what stays assumed."""
        lines = [f"{self.log.header.system}: {self.said}", ""]
        width = max(len(one.name) for one in self.outcomes)
        for one in self.outcomes:
            lines.append(f"{one.name:<{width}}  {one.verdict!s:<7}  {one.words}")
        lines += ["", "assumed all the same:"]
        lines += [f"  {sentence}" for sentence in self.assumed]
        return "\n".join(lines)
