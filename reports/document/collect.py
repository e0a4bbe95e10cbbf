"""Collect a run folder into privacy.json and report.html, and check it against a policy."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeGuard

from ... import __version__
from ...privacy.errors import InputError
from ...privacy.files import SHOWN, read_bounded, write_durably
from ...privacy.formats.codec import parse_json, read_json
from ...privacy.guarantee import Unit
from ...privacy.plain_text import plain
from ...privacy.releases.ledger import Spent
from ...runs.attack.scenario import commands_of, shown_pictures
from ...runs.audit.assumptions import Facts as AssumedFacts
from ...runs.audit.assumptions import assumptions
from ...runs.audit.evidence import (
    measured,
    read_attack,
    read_audit,
    read_last_model,
    read_membership,
    trail_of_folder,
)
from ...runs.audit.evidence_schema import Attack
from ...runs.described import LARGEST_OBJECT
from ...runs.errors import ContradictedProof
from ...runs.folder import folder as run_folder
from ...runs.folder.folder import write_sums
from ...runs.folder.records import Environment, Items, header_of, read_metrics
from ...runs.folder.released import epsilon_of
from ...runs.folder.resume import AccountedRun, epsilon_of_ledger, read_run, released_sensitivities
from ...runs.folder.signature import check_signature
from ...runs.plan.opinions import contradiction, opinions, second_traces
from ...runs.plan.plan import Plan
from ...runs.plan.recipients import recipients as recipients_of
from ...runs.plan.schema import Recipients
from ...runs.run_file.build import Built
from ...runs.run_file.run_file import RunFile
from ...training.exposure.events import accounted
from ...training.exposure.sensitivity import JointSensitivity
from ..judgement.facts import Facts, facts_of_report
from ..judgement.gate import Decision, decide
from ..judgement.policy import Policy
from ..judgement.remedies import fixes_of_run, limit_fixes, limit_risks, rounds_within
from ..schema import REPORT_SCHEMA, About, Released, Report, Reproduce, Run, Tool
from ..total.total import total_of_runs
from .html import render
from .summary import course, made_now, risk_by_adversary, run_facts, traffic, utility

_POINTS = 12  # of epsilon by round
_LARGEST_PICTURE, _LONG = 64 << 20, 8 << 30  # bytes of a picture, and of any other file


def report_run(
    folder: Path,
    *,
    show_records: bool = False,
    others: Sequence[Path] = (),
    recipients: int | None = None,
) -> Path:
    """Write privacy.json and report.html for a run folder, from its files alone.

    Args:
        folder: a run folder of `overhear train`, attacked or not.
        show_records: show pictures of attacks on records that were not planted, too. An attack
            plants public records, so today there are none to hide.
        others: runs on the same records, with which the total is given.
        recipients: the agent of whose record final models and distant agents are told.

    Returns:
        The path of report.html.

    Raises:
        FileNotFoundError: no run is in the folder, or one that released nothing.
        ValueError: the ledger or stopped.json belongs to another run file.
        ContradictedProof: another library puts an epsilon above the one that is stated; the files
            are written, and say so.
    """
    report = collect(folder, others=others, recipients=recipients)
    pictures = _pictures(folder, report.attack, show_records=show_records)
    page = render(report, images=pictures)
    report.write(folder / run_folder.PRIVACY, mode=SHOWN)
    write_durably(folder / run_folder.REPORT, page.encode(), mode=SHOWN)
    write_sums(folder)
    if said := contradiction(report.second_opinion):
        raise ContradictedProof(f"{said}. {folder / run_folder.REPORT} says so too")
    return folder / run_folder.REPORT


def _pictures(folder: Path, attack: Attack | None, *, show_records: bool) -> dict[str, bytes]:
    """The pictures of attacks, by path: of planted public records alone unless asked for more."""
    scenarios = attack.scenarios if attack else []
    found = shown_pictures(folder, scenarios, show_records=show_records)
    return {name: read_bounded(path, _LARGEST_PICTURE) for name, path in found.items()}


def collect(
    folder: Path,
    *,
    others: Sequence[Path] = (),
    recipients: int | None = None,
    read: AccountedRun | None = None,
) -> Report:
    """The report of a run that is finished or not, from the files of its folder alone.

    Args:
        others: folders of runs on the same records, with which the total is given.
        recipients: the agent of whose record final models and distant agents are told.
        read: the run, where it was read already.

    Raises:
        FileNotFoundError: no run is in the folder, or one that released nothing.
        ValueError: its files cannot be read, or do not belong together.
    """
    # What the run's files say, each held against the others.
    found = read or read_run(folder)
    config, built, plan, spent = found.config, found.built, found.plan, found.spent
    attack, audit = read_attack(folder), read_audit(folder)
    metrics = read_metrics(folder / run_folder.METRICS)
    came = course(folder, plan, spent=spent, metrics=metrics)
    # What follows from them.
    device = Environment.read(folder / run_folder.ENVIRONMENT).device
    run = run_facts(config, built, plan, came=came, sent=traffic(built, plan), device=device)
    ledger, items = _ledger(plan, spent), _items(config, spent)
    limit, graph = plan.target.epsilon, built.setting.graph
    report = Report(
        version=REPORT_SCHEMA,
        tool=Tool(name="overhear", version=__version__),
        made=made_now(),
        run=run,
        plan=plan.planned(),
        ledger=ledger,
        second_opinion=opinions(plan, released_sensitivities(plan, spent), ledger.epsilon),
        risk=risk_by_adversary(plan, spent, epsilon=ledger.epsilon),
        epsilon_by_round=_epsilon_by_round(plan, spent),
        within_limit={} if limit is None else rounds_within(plan, spent, limit=limit),
        fixes=fixes_of_run(config, plan, spent, graph=graph, epsilon=ledger.epsilon),
        utility=utility(metrics),
        attack=attack,
        audit=audit,
        measured=measured(audit),
        assumptions=assumptions(_facts(built, run, spent, plan, items), audit),
        reproduce=_reproduce(folder, config),
    )
    inferred = read_membership(folder)
    told = {
        "items": items,
        # The page goes to readers who are not to know of whom it speaks.
        "membership": inferred and inferred.model_copy(update={"exposed": []}),
        "last_model": read_last_model(folder),
        "trail": trail_of_folder(folder, config),
        "about": config.report and About.model_validate(config.report.entries()),
        "recipients": None if recipients is None else _recipients(config, plan, ledger, recipients),
        "total": total_of_runs([folder, *others]) if others else None,
    }
    # What is not there has no key in the file.
    return report.model_copy(update={key: one for key, one in told.items() if one is not None})


def _recipients(config: RunFile, plan: Plan, ledger: Released, victim: int) -> Recipients:
    """As planned, where the ledger has no more than what was planned."""
    if ledger.repeated or ledger.torn or ledger.rounds > plan.rounds:
        raise InputError(
            f"the ledger has {ledger.rounds} releases of {plan.rounds} planned rounds, some of "
            "them more than once; figures by distance are of every round once: leave --recipients "
            "out"
        )
    return recipients_of(config, plan, victim)


def _items(config: RunFile, spent: Spent) -> Items | None:
    """What the ledger says of how items were made; nothing was shown where it says nothing."""
    d, said = config.data, header_of(spent).items
    if said is None and (d.root is not None or d.source != "rows"):
        return Items(source=d.source)
    return said


def _facts(built: Built, run: Run, spent: Spent, plan: Plan, items: Items | None) -> AssumedFacts:
    return AssumedFacts(
        items=items,
        planned=header_of(spent).planned_rounds,
        released=spent.rounds,
        repeated=sum(times - 1 for number, times in _repeated(spent) if number > 0),
        torn=spent.torn or any(entry.get("torn", False) for entry in spent.entries),
        seed=run.evaluation_noise_seed,
        duplicates=run.duplicate_records,
        records=len(built.data.targets),
        clipped=built.clip_norm is not None,
        encrypted=run.links == "encrypted",
        server=run.server,
        changing=run.graphs_in_turn > 1 and run.participation is None,
        announced=len(spent.entries) + spent.torn,
        tested=spent.tested_rounds,
        numbers=spent.tested_numbers,
        test_rate=header_of(spent).noise_test_rate,
        counted_as_public=built.data.notes,
        batches=built.setting.batches_words,
        counted=None if plan.summary is None else plan.summary.counted,
        participation=run.participation,
        missing=run.missing,
        records_of_user=plan.said_of.at_once if plan.said_of.unit is Unit.USER else None,
        users_known=built.data.users is not None,
    )


def _ledger(plan: Plan, spent: Spent) -> Released:
    """What the ledger says was released.

    `epsilon` is what may be signed: of the planned rounds, or of more where the ledger has more.
    What stopped a run early may depend on the data, so epsilon of the rounds that were released is
    a `reading`.
    """
    return Released(
        rounds=spent.rounds,
        rounds_accounted=_rounds_accounted(plan, spent),
        entries=len(spent.entries),
        resumed_after=list(spent.resumed_after),
        repeated=_repeated(spent),
        torn=spent.torn,
        epsilon=epsilon_of_ledger(plan, spent),
        reading={
            name: epsilon_of(plan, exposure, rounds=spent.numbers)
            for name, exposure in plan.exposures.items()
        },
    )


def _repeated(spent: Spent) -> list[tuple[int, int]]:
    """(round, how often) of what was released more than once; 0 is the start."""
    return [(number, n) for number, n in sorted(Counter(spent.numbers).items()) if n > 1]


def _rounds_accounted(plan: Plan, spent: Spent) -> int:
    """The rounds that every figure covers, where an adversary's exposure tells rounds apart."""
    counted = [
        _rounds_of(accounted(exposure, spent.numbers))
        for exposure in plan.exposures.values()
        if _rounds_of(exposure) == plan.rounds
    ]
    return min(counted, default=max(spent.rounds - spent.torn, plan.rounds)) + spent.torn


def _rounds_of(exposure: JointSensitivity) -> int:
    """The rounds of its releases; those that begin with the same round are of the same rounds."""
    of_each = {r.first: r.rounds + r.replays for r in exposure.releases if r.first > 0}
    return sum(of_each.values())


def _epsilon_by_round(plan: Plan, spent: Spent) -> dict[str, list[tuple[int, float]]]:
    """Epsilon of what was released up to some rounds, at most `_POINTS` and the first."""
    ends = [at for at, number in enumerate(spent.numbers, start=1) if number > 0]
    last = len(ends)
    points = sorted({1, *(max(1, round(last * k / _POINTS)) for k in range(1, _POINTS + 1))})
    points *= bool(last)
    known: dict[object, float] = {}
    found: dict[str, list[tuple[int, float]]] = {}
    for name, exposure in plan.exposures.items():
        line = []
        for at in points:
            key = (exposure.releases, exposure.each, at)  # equal releases cost the same
            if key not in known:
                known[key] = epsilon_of(plan, exposure, rounds=spent.numbers[: ends[at - 1]])
            line.append((at, known[key]))
        found[name] = line
    return found


def _reproduce(folder: Path, config: RunFile) -> Reproduce:
    """Commands, versions and digests; of the evidence what is there."""
    kept = {
        run_folder.RUN: ["overhear plan run.toml", "overhear train run.toml --out DIR"],
        run_folder.LEDGER: [],
        run_folder.METRICS: [],
        run_folder.STOPPED: [],
        **{name: [command] for name, command in commands_of(folder, config).items()},
        run_folder.AUDIT: ["overhear audit DIR"],
        run_folder.MEMBERSHIP: ["overhear membership DIR"],
        run_folder.LAST_MODEL: ["overhear audit-last-model DIR"],
    }
    there = {name: commands for name, commands in kept.items() if (folder / name).exists()}
    commands = [command for commands in there.values() for command in commands]
    return Reproduce(
        commands=[*commands, "overhear report DIR"],
        check=["cd DIR && sha256sum --check SHA256SUMS"],
        environment=Environment.read(folder / run_folder.ENVIRONMENT),
        files={name: run_folder.digest(folder / name, most=_LONG) for name in there},
    )


# A run folder as a policy sees it: figures computed anew from the run, and the evidence.


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
