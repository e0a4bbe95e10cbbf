"""One person over several runs: lines of a person's ledger, and what they cost together.

A line is made from a run folder: of every planned round, or of more where more was released. What
is known of the person is what the run file says: the holders of its records, or one record, or
`records_per_person` of them, or all records of a user, or all data, of the agent that is worst off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...privacy.adversary import EAVESDROPPER
from ...privacy.errors import InputError
from ...privacy.guarantee import Status, Unit
from ...privacy.plain_text import plain
from ...privacy.releases.person_ledger import (
    PersonLedger,
    PersonRun,
    PersonView,
    compose,
    read_person_ledger,
)
from ...runs.folder.resume import AccountedRun, read_run, released_sensitivity
from ...runs.numbers import bound, figure, is_infinite, small
from ...training.exposure.events import counted, spent_releases
from ..schema import PersonTotal, PersonTotalRun


def add_runs(ledger: Path, folders: Sequence[Path]) -> None:
    """Append the runs of some folders to a person's ledger; all of them, or none if one is refused.

    Raises:
        FileNotFoundError: a folder holds no run, or one that released nothing.
        ValueError: a run was changed, is named twice, or the ledger is damaged.
    """
    person_runs = [run_of_folder(folder) for folder in folders]
    known = list(read_person_ledger(ledger).runs) if ledger.exists() else []
    for at, run in enumerate(person_runs):
        for other in (*known, *person_runs[:at]):
            if other.run == run.run:
                raise InputError(
                    f"{run.label} and {other.label} hold the same run, and a run is counted once; "
                    "name it once. If more was released since, begin a new ledger"
                )
    for run in person_runs:
        PersonLedger.add(ledger, run)


def run_of_folder(folder: Path) -> PersonRun:
    """The line of a run that released something, finished or not.

    Raises:
        FileNotFoundError: no run is in the folder, or one that released nothing.
        ValueError: its files were changed or do not belong together, or its noise can be repeated.
        UnsupportedView: a round was released again where none may repeat.
    """
    run = read_run(folder)
    if (seed := run.config.training.evaluation_noise_seed) is not None:
        raise InputError(
            f"{folder} draws its noise from evaluation_noise_seed={seed}, so its views are no "
            "releases whose noise was drawn apart from that of other runs; train without the key"
        )
    views = {name: _view(run, name) for name in run.plan.exposures}
    statement, planned = run.plan.statement, run.plan
    more = run.spent.torn or any(
        released_sensitivity(planned, run.spent, name) != planned.exposures[name]
        for name in planned.exposures
    )
    return PersonRun(
        run=run.header.run,
        label=plain(folder),
        whose=_whose(run),
        adjacency=statement.adjacency,
        delta=statement.delta,
        target=planned.target.adversary or EAVESDROPPER.name,
        counted="released" if more else "planned",
        views=views,
    )


def _whose(run: AccountedRun) -> str:
    statement, p = run.plan.statement, run.config.privacy
    if statement.holders:
        return statement.whose
    at = "the agent at highest risk"
    if p is not None and p.victim is not None:
        at = f"agent {p.victim}"
    if statement.unit is Unit.AGENT:
        return f"all data of {at}"
    records = statement.records_per_person
    if statement.unit is Unit.USER:
        return f"one user with at most {records} {'record' if records == 1 else 'records'} at {at}"
    return f"one person with {records} {'record' if records == 1 else 'records'} at {at}"


def _view(run: AccountedRun, name: str) -> PersonView:
    released = released_sensitivity(run.plan, run.spent, name)
    guarantee, statement = run.plan.guarantee(name), run.plan.statement
    multiplier = run.plan.noise_multiplier
    releases = spent_releases(released.releases)
    status = guarantee.status
    if releases and (multiplier == 0 or math.isinf(released.largest)):
        status = status if not status.is_finite else Status.CANNOT_BE_EXPRESSED
        return PersonView(status=status, events={})
    if not status.is_finite:
        status = Status.PROVEN if released.status is Status.PROVEN else Status.HEURISTIC
    events = counted(
        releases, multiplier, statement.adjacency, records=statement.records_per_person
    )
    return PersonView(status=status, events=events if releases else {})


def person_total(
    ledgers: Sequence[Path], *, adversary: str | None = None, delta: float | None = None
) -> PersonTotal:
    """What all runs of some ledgers of one person cost together.

    Args:
        ledgers: one or more; a run that stands in several of them alike is counted once.
        adversary: who holds the views of all runs; the one that every run file targets by default.
        delta: of the total; the smallest of the runs' by default.

    Raises:
        FileNotFoundError: a ledger is not there.
        ValueError: a ledger is damaged, runs that differ have one name, or no adversary is given
            where the runs target different ones.
    """
    runs: dict[str, PersonRun] = {}
    twice = list[str]()
    for path in ledgers:
        if not path.exists():
            raise FileNotFoundError(
                f"no ledger of a person at {path}; begin one with overhear person {path} --add DIR"
            )
        for run in read_person_ledger(path).runs:
            known = runs.setdefault(run.run, run)
            if known is run:
                continue
            if (known.views, known.adjacency, known.whose) != (run.views, run.adjacency, run.whose):
                raise InputError(
                    f"{path} has other figures for the run of {run.label} than a ledger before it "
                    f"({known.label}); give the one that was written last"
                )
            twice.append(run.label)
    every = list(runs.values())
    who = adversary or _common_target(every)
    epsilon = compose(every, who, delta=delta)
    status = next(
        (s for s in ("no protection", "cannot be expressed", "heuristic")
         if any(run.views[who].status == s for run in every if who in run.views)),
        "proven",
    )  # fmt: skip
    if math.isinf(epsilon) and status in ("heuristic", "proven"):
        status = "cannot be expressed"
    least = min(run.delta for run in every) if delta is None else delta
    return PersonTotal.model_validate(
        {
            "version": 1,
            "adversary": who,
            "epsilon": epsilon,
            "delta": least,
            "adjacency": min(every, key=lambda run: run.unread != "").adjacency.value,
            "status": status,
            "runs": [
                PersonTotalRun.model_validate(
                    {
                        "label": plain(run.label),
                        "run": plain(run.run),
                        "whose": plain(run.whose, most=None),
                        "counted": run.counted,
                        "alone": compose([run], who, delta=least),
                        **({"unread": plain(run.unread, most=None)} if run.unread else {}),
                    }
                )
                for run in every
            ],
            "named_twice": [plain(one) for one in twice],
        }
    )


def _common_target(runs: Sequence[PersonRun]) -> str:
    if not runs:
        raise InputError("the ledgers hold no run; add one with overhear person LEDGER --add DIR")
    targets = {run.target: run.label for run in runs if not run.unread}
    if len(targets) > 1:
        each = ", ".join(f"{label}: {name}" for name, label in targets.items())
        raise InputError(
            f"runs name different adversaries ({each}), and one adversary holds all views: give "
            "the one that sees both with --adversary"
        )
    return next(iter(targets), EAVESDROPPER.name)


def sentences(total: PersonTotal) -> Iterator[str]:
    """What a reader must know of a person's total.

    Args:
        total: as `person_total` gives it.
    """
    shown = "infinite" if is_infinite(total.epsilon) else (
        f"at most {bound(total.epsilon)}"
        if total.status == "proven"
        else f"at least {figure(total.epsilon)} ({total.status})"
    )  # fmt: skip
    count = len(total.runs)
    yield (
        f"Over {count} {'run' if count == 1 else 'runs'} epsilon of the person against "
        f"{total.adversary} is {shown} at delta {small(total.delta)} ({total.adjacency})."
    )
    for run in total.runs:
        if run.unread is not None:
            yield (
                f"{run.label} counts as an epsilon without a bound: this version cannot read "
                f"{run.unread}. Begin a new ledger with the folder of that run to have its figure."
            )
    for name in total.named_twice:
        yield f"{name} stands in several ledgers, and is counted once."
    yield (
        "Counted are the rounds that were planned, also of a run that stopped early, and every "
        "round that was released again."
    )
    yield (
        "The figure holds if batches and noise of the runs were drawn independently, if the "
        "numbers of each run (noise, rates, rounds) were fixed before the first run released "
        "anything, and for one adversary who holds the views of all runs. Data of a later run may "
        "depend on what earlier ones released."
    )
    yield (
        "Not counted: runs that no line names. A ledger shows lines that were changed, not lines "
        "that are missing at its end."
    )
