"""A run folder as a policy sees it: figures computed anew from the run, and the evidence.

Nothing is believed because privacy.json says so. Its figures are computed again from the run file
and the ledger, and a file that says anything else is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from ...privacy.errors import InputError
from ...privacy.formats.json_text import parse_json, read_json
from ...privacy.plain_text import plain
from ...privacy.releases.ledger import Spent
from ...runs.described import LARGEST_OBJECT
from ...runs.folder import folder as run_folder
from ...runs.folder.resume import read_run
from ...runs.folder.signature import check_signature
from ...runs.plan.opinions import second_traces
from ...runs.plan.plan import Plan
from ...runs.run_file.run_file import RunFile
from ..judgement.facts import Facts, facts_of_report
from ..judgement.gate import Decision, decide
from ..judgement.policy import Policy
from ..judgement.remedies import limit_fixes, limit_risks
from ..schema import REPORT_SCHEMA, Report
from .collect import collect

# The same arithmetic on another machine may differ in the last digits. No decision is made on the
# figures that were held, so the tolerance lets nothing pass.
_TOLERANCE = 1e-6
# When and where the report was made; the rest is the run's.
# The total is of other folders too, which need not be here; audits of a run file go on.
_OF_THE_REPORT = frozenset({"/made", "/tool/version", "/run/device", "/total", "/trail"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedRun:
    """What is known of a run.

    Attributes:
        report: the object of privacy.json, computed anew.
        reported: whether privacy.json was there; with the same content, where that was asked for.
        plan: of the run file, from which the figures are.
    """

    folder: Path
    config: RunFile
    report: Report
    reported: bool
    spent: Spent
    plan: Plan

    @property
    def victim(self) -> int | None:
        """The only agent whose records the figures are for; None if they are for any record."""
        return None if self.config.privacy is None else self.config.privacy.victim

    @property
    def facts(self) -> Facts:
        """What is judged."""
        planned = range(1, self.report.run.rounds + 1)
        return facts_of_report(
            self.report,
            folder=str(self.folder),
            reported=self.reported,
            missing=len(planned) - len(set(self.spent.numbers) & set(planned)),
            victim=self.victim,
        )

    def facts_for(self, policy: Policy) -> Facts:
        """What a policy judges: with a second trace and the signature where it asks for them."""
        facts, wanted = self.facts, policy.evidence
        if facts.ran is None:
            return facts
        traced = second_traces(self.config, self.plan) if wanted.second_opinion else {}
        signed = check_signature(self.folder, wanted.signed_by) if wanted.signed_by else None
        return replace(facts, ran=replace(facts.ran, traced=traced, signed=signed))


def read_checked_run(folder: Path, *, hold_report: bool = True) -> CheckedRun:
    """Read a run folder, and compute its figures anew.

    Args:
        folder: of a finished run.
        hold_report: whether to refuse a privacy.json that says anything else.

    Raises:
        FileNotFoundError: no run is in the folder.
        ValueError: its files were changed, do not belong together, or cannot be read.
    """
    read = read_run(folder)
    _check_closed(folder)
    reported = (folder / run_folder.PRIVACY).exists()
    told = _told_of(folder) if reported and hold_report else None
    report = collect(folder, recipients=told, read=read)
    if reported and hold_report:
        _check_report(folder, report.dump())
    return CheckedRun(
        folder=folder,
        config=read.config,
        report=report,
        reported=reported,
        spent=read.spent,
        plan=read.plan,
    )


def check_run(folder: Path, policy: Policy) -> Decision:
    """Check a finished run against a policy, for every program that asks.

    Raises:
        FileNotFoundError: no run is in the folder.
        ValueError: its files were changed, do not belong together, or cannot be read.
    """
    run = read_checked_run(folder)
    return decide(
        policy,
        run.facts_for(policy),
        fixes=limit_fixes(run.config, run.spent),
        risks=limit_risks(run.config, run.spent),
    )


def first_difference(held: object, fresh: object) -> str | None:
    """The JSON pointer of the first place where two reports of one run differ, if any.

    >>> first_difference({"a": [1, 2.0]}, {"a": [1, 2.5]})
    '/a/1'
    """
    return next(_differences(held, fresh, ""), None)


def _differences(held: object, fresh: object, place: str) -> Iterator[str]:
    if place in _OF_THE_REPORT:
        return
    if isinstance(held, dict) and isinstance(fresh, dict):
        for key in [*fresh, *(key for key in held if key not in fresh)]:
            below = f"{place}/{key}"
            if key in held and key in fresh:
                yield from _differences(held[key], fresh[key], below)
            elif below not in _OF_THE_REPORT:
                yield below
    elif isinstance(held, list) and isinstance(fresh, list):
        if len(held) != len(fresh):
            yield place
        for index, (one, other) in enumerate(zip(held, fresh, strict=False)):
            yield from _differences(one, other, f"{place}/{index}")
    elif _is_number(held) and _is_number(fresh):
        if not math.isclose(held, fresh, rel_tol=_TOLERANCE, abs_tol=1e-12):
            yield place
    elif type(held) is not type(fresh) or held != fresh:
        yield place


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _told_of(folder: Path) -> int | None:
    """The agent of whose records the report says what recipients could learn; None of none."""
    try:
        agent = read_json(folder / run_folder.PRIVACY, LARGEST_OBJECT)["recipients"]["victim"]
    except (ValueError, KeyError, TypeError):
        return None  # another check says so where there should be one
    return agent if isinstance(agent, int) and not isinstance(agent, bool) else None


def _check_report(folder: Path, fresh: Mapping[str, object]) -> None:
    """Refuse a privacy.json that is not what the run gives."""
    path = folder / run_folder.PRIVACY
    try:
        held = read_json(path, LARGEST_OBJECT)
    except InputError as error:
        raise InputError(f"{error}, or write it with `overhear report {folder}`") from error
    version = held.get("schema") if isinstance(held, dict) else None
    if isinstance(version, int) and version != REPORT_SCHEMA:
        newer = ", which a newer overhear wrote" if version > REPORT_SCHEMA else ""
        raise InputError(
            f"{path} is of version {version}{newer}, and this program reads version "
            f"{REPORT_SCHEMA}; write it again with `overhear report {folder}`"
        )
    # As the fresh one would be read back: tuples are lists.
    place = first_difference(held, parse_json(json.dumps(fresh)))
    if place is not None:
        raise InputError(
            f"{path} is not the report of this run: it differs from what the run's files give at "
            f"{plain(place) or 'its root'}; it is older than they are, or was edited. Write it "
            f"again with `overhear report {folder}`"
        )


def _check_closed(folder: Path) -> None:
    """Refuse a report on a run, finished or not, whose files nothing names any more."""
    sums = folder / run_folder.SUMS
    if not sums.exists() and (folder / run_folder.PRIVACY).exists():
        raise InputError(
            f"{sums} is missing, so nothing says that the files of the run are those that were "
            f"written; `overhear report {folder}` writes it"
        )
