"""Collect a run folder into privacy.json and report.html."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ... import __version__
from ...privacy.bounded import read_bounded
from ...privacy.durable import SHOWN, write_durably
from ...privacy.errors import InputError
from ...privacy.guarantee import Unit
from ...privacy.releases.ledger import Spent
from ...runs.attack.scenario import commands_of, shown_pictures
from ...runs.audit.assumptions import Facts, assumptions
from ...runs.audit.audit_log import trail_of_folder
from ...runs.audit.evidence import (
    measured,
    read_attack,
    read_audit,
    read_last_model,
    read_membership,
)
from ...runs.audit.evidence_schema import Attack
from ...runs.errors import ContradictedProof
from ...runs.folder import folder as run_folder
from ...runs.folder.folder import write_sums
from ...runs.folder.records import Environment, Items, header_of, read_metrics
from ...runs.folder.released import epsilon_of
from ...runs.folder.resume import AccountedRun, epsilon_of_ledger, read_run, released_sensitivities
from ...runs.plan.opinions import contradiction, opinions
from ...runs.plan.plan import Plan
from ...runs.plan.recipients import recipients as recipients_of
from ...runs.plan.schema import Recipients
from ...runs.run_file.build import Built
from ...runs.run_file.run_file import RunFile
from ...training.exposure.events import accounted
from ...training.exposure.sensitivity import JointSensitivity
from ..judgement.remedies import fixes_of_run, rounds_within
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


def _facts(built: Built, run: Run, spent: Spent, plan: Plan, items: Items | None) -> Facts:
    return Facts(
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
