"""Several runs on the same records: what one adversary who looks on at all of them learns.

Each run's releases are those of its ledger, at the least those that were planned, and of the agent
whose records are worst off in that run. All of them are composed as the releases of one run are.
Where runs deal the records to agents differently, one record may be worst off in each of them;
where they deal alike and another agent is worst in each, the figure is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ...privacy.errors import InputError
from ...privacy.guarantee import EAVESDROPPER, Statement, Status, Unit
from ...privacy.plain_text import plain
from ...privacy.releases import person_ledger
from ...privacy.releases.person_ledger import read_person_ledger
from ...runs.folder.released import HeldRecords, held_records
from ...runs.folder.resume import AccountedRun, read_run, released_sensitivity
from ...runs.numbers import bound, is_infinite, lower_bound, small
from ...training.exposure.events import counted, spent_releases
from ...training.exposure.guarantees import run_epsilon
from ...training.persons import total_epsilon
from ..schema import PersonTotal, PersonTotalRun, Total, TotalAdversary, TotalRun

_ASSUME = "--assume-same-records takes them for the same"


def total_of_runs(
    folders: Sequence[Path], *, delta: float | None = None, assume_same_records: bool = False
) -> Total:
    """Account for several runs on the same records as for one.

    Args:
        folders: of the runs, finished or not; at least one, none twice.
        delta: of the total; the smallest of the runs' by default.
        assume_same_records: take the records of all runs for the same where they differ, or where
            it cannot be told.

    Raises:
        FileNotFoundError: a folder holds no run, or one that released nothing.
        ValueError: a run was changed, is given twice, or cannot be composed with the others.
    """
    if not folders:
        raise InputError("no run is given, and a total needs 1 or more")
    # Runs that are whole, apart from each other, and make one statement.
    _check_folders(folders)
    runs = {folder: read_run(folder) for folder in folders}
    _check_apart(runs)
    statement = _statement(runs, delta)
    records, holders = _records(runs, assumed=assume_same_records)
    if statement.unit is Unit.AGENT and holders != "the same":
        raise InputError(
            "unit='agent' hides all data of one agent, and which agent holds which records differs "
            "between the runs, or is not known; give runs of one partition"
        )
    _check_victims(runs, holders)
    # Adversaries that every run accounts for; others are named as left out.
    every = [list(run.plan.exposures) for run in runs.values()]
    shared = [name for name in every[0] if all(name in names for names in every)]
    if not shared:
        raise InputError(
            "no adversary is accounted for in every run "
            f"({'; '.join(', '.join(names) for names in every)}); name one of them in "
            "[privacy] adversaries of all run files"
        )
    total_adversaries = [_adversary(name, list(runs.values()), statement) for name in shared]
    return Total(
        version=1,
        counted=len(runs),
        runs=[_run(folder, run) for folder, run in runs.items()],
        delta=statement.delta,
        unit=statement.unit,
        records_per_person=statement.records_per_person if statement.unit is Unit.USER else None,
        adjacency=statement.adjacency,
        composed="as its report" if len(runs) == 1 else "privacy loss distribution",
        records=records,
        holders=holders,
        adversaries=sorted(total_adversaries, key=lambda one: -one.epsilon),
        left_out=sorted({name for names in every for name in names} - set(shared)),
    )


def _check_folders(folders: Sequence[Path]) -> None:
    seen: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in seen:
            raise InputError(
                f"{folder} is the folder {seen[place]} again; a run is counted once, so name it "
                "once"
            )
        seen[place] = folder


_Runs = dict[Path, AccountedRun]


def _check_apart(runs: _Runs) -> None:
    """Refuse copies of one run, and runs whose noise is the same."""
    seen: dict[str, Path] = {}
    seeds: dict[int, Path] = {}
    for folder, run in runs.items():
        first = seen.setdefault(run.header.run, folder)
        if first != folder:
            raise InputError(
                f"{folder} and {first} hold the same run; name one of them. If both were continued "
                "apart, neither ledger names all that was released, and no total can be given"
            )
        seed = run.config.training.evaluation_noise_seed
        if seed is not None and seeds.setdefault(seed, folder) != folder:
            raise InputError(
                f"{folder} and {seeds[seed]} draw their noise from the same "
                f"evaluation_noise_seed={seed}, and what is sent with the same noise twice is not "
                "hidden by it; no total can be given"
            )


_ONE_FOR_ALL: tuple[tuple[str, Callable[[Statement], object], str, str], ...] = (
    ("adjacency", lambda one: one.adjacency.value, "what neighbouring data sets are",
     "train with one adjacency, or give the runs of one adjacency"),
    ("unit", lambda one: one.unit.value, "what is hidden", "give the runs of one unit"),
    ("records_per_person", lambda one: one.at_once, "the cap on the records of a user",
     "train with one, or compose the user's lines with overhear person"),
)  # fmt: skip


def _statement(runs: _Runs, delta: float | None) -> Statement:
    stated = [run.plan.said_of for run in runs.values()]
    if len({one.holders for one in stated}) > 1:
        each = ", ".join(
            f"{folder}: {one.whose or 'one record of one agent'}"
            for folder, one in zip(runs, stated, strict=True)
        )
        raise InputError(
            f"the runs are about different persons ({each}), and a total is about one; train with "
            "the same [privacy] holders, or compose the person's lines with overhear person"
        )
    for key, of, what, remedy in _ONE_FOR_ALL:
        different = {of(one): folder for folder, one in zip(runs, stated, strict=True)}
        if len(different) > 1:
            each = ", ".join(f"{folder}: {value}" for value, folder in different.items())
            raise InputError(
                f"{key} differs ({each}), and {what} must be one for a total; {remedy}"
            )
    smallest = min(one.delta for one in stated)
    return replace(stated[0], delta=smallest if delta is None else delta)


def _records(
    runs: _Runs, *, assumed: bool
) -> tuple[
    Literal["the same", "assumed to be the same"], Literal["the same", "others", "not known"]
]:
    """Whether all runs are on the same records, and whether the same agents hold them."""
    if len(runs) == 1:
        return "the same", "the same"
    held: dict[Path, HeldRecords] = {}
    for folder, run in runs.items():
        try:
            held[folder] = held_records(folder, run.header, run.built.setting.shards)
        except (InputError, FileNotFoundError) as error:
            if assumed:
                return "assumed to be the same", "not known"
            raise InputError(f"{error}; or {_ASSUME}") from error
    first = next(iter(runs))
    for folder, found in held.items():
        if found.records != held[first].records:
            if assumed:
                return "assumed to be the same", "not known"
            raise InputError(
                f"{folder} is trained on other records than {first} ({_data(runs[folder])}, not "
                f"{_data(runs[first])}), and only runs on the same records add up; give those, or "
                f"{_ASSUME}: that is an upper bound where a record is in both"
            )
    alike = all(found.held == held[first].held for found in held.values())
    return "the same", "the same" if alike else "others"


def _data(run: AccountedRun) -> str:
    return f"{len(run.built.data.targets)} records of {run.config.data.name}"


def _check_victims(runs: _Runs, holders: str) -> None:
    """Figures for one agent's records alone add up where the same agent holds the same records."""
    victims = {folder: _victim(run) for folder, run in runs.items()}
    if holders != "the same" and len(runs) > 1:
        for folder, run in runs.items():
            if run.plan.said_of.holders:
                raise InputError(
                    f"{folder} is about {run.plan.said_of.whose}, and the agents do not hold the "
                    "same records in every run; compose the person's lines with overhear person"
                )
    if set(victims.values()) == {None} or len(runs) == 1:
        return
    if holders != "the same" or len(set(victims.values())) > 1:
        each = ", ".join(
            f"{folder}: {'every agent' if victim is None else f'agent {victim}'}"
            for folder, victim in victims.items()
        )
        raise InputError(
            f"[privacy] victim limits figures to the records of one agent ({each}), and these are "
            "not the same records in every run; leave victim out of the run files"
        )


def _victim(run: AccountedRun) -> int | None:
    return None if run.config.privacy is None else run.config.privacy.victim


def _adversary(name: str, runs: Sequence[AccountedRun], statement: Statement) -> TotalAdversary:
    spent = [
        (released_sensitivity(run.plan, run.spent, name), run.plan.noise_multiplier) for run in runs
    ]
    alone = [
        run_epsilon(
            sensitivity,
            statement=replace(run.plan.said_of, delta=statement.delta),
            noise_multiplier=noise_multiplier,
        )
        for run, (sensitivity, noise_multiplier) in zip(runs, spent, strict=True)
    ]
    epsilon = alone[0] if len(runs) == 1 else total_epsilon(spent, statement=statement)
    guarantees = [run.plan.guarantee(name) for run in runs]
    unproven = [one for one in guarantees if one.status is not Status.PROVEN]
    blame = max(guarantees, key=lambda one: one.epsilon)
    if unproven and math.isfinite(epsilon):
        blame = unproven[0]
    status = _status([one.status for one in guarantees], epsilon)
    return TotalAdversary(
        name=name, epsilon=epsilon, status=status, alone=alone, because=blame.because
    )


def _status(statuses: Sequence[str], epsilon: float) -> Status:
    """What is known of a figure of several runs: no more than of the run of which least is."""
    if math.isinf(epsilon):
        exposed = Status.NO_PROTECTION in statuses
        return Status.NO_PROTECTION if exposed else Status.CANNOT_BE_EXPRESSED
    return Status.PROVEN if {*statuses} <= {Status.PROVEN} else Status.HEURISTIC


def _run(folder: Path, run: AccountedRun) -> TotalRun:
    return TotalRun(
        run=plain(folder),
        algorithm=run.config.algorithm.name,
        form=run.config.algorithm.form,
        agents=run.built.setting.graph.agents,
        rounds=run.spent.rounds,
        planned_rounds=run.plan.rounds,
        victim=_victim(run),
    )


# A total in words: what was added up, of which records, and what it does not count.

_UNCOUNTED = (
    "Not counted: runs that are not named here, such as those that hyper-parameters were chosen "
    "by, runs that were deleted, and whatever other programs released of these records."
)
_COMPOSED = {
    "privacy loss distribution": (
        "All releases that the ledgers name are composed by privacy loss distribution; epsilons "
        "are not added up."
    ),
    "as its report": "One run is given, so every figure is that of its own report.",
}


def sentences(total: Total) -> Iterator[str]:
    """What a reader must know of a total."""
    yield _counted(total)
    yield from notes(total)


def notes(total: Total) -> Iterator[str]:
    """The same without the figures, which a page cites."""
    yield _COMPOSED[total.composed]
    yield _records_words(total)
    victims = {run.victim for run in total.runs}
    if victims != {None}:
        yield (
            f"The figures are for the records of agent {victims.pop()} alone: the run files name "
            "it as the victim."
        )
    unproven: dict[tuple[str, str], list[str]] = {}
    for adversary in total.adversaries:
        if adversary.status != "proven":
            unproven.setdefault((adversary.status, adversary.because), []).append(adversary.name)
    for (status, because), names in unproven.items():
        yield f"{', '.join(names)}: {status}: {because}."
    if total.left_out:
        yield (
            f"Not every run accounts for {', '.join(total.left_out)}, so no total is known for "
            "these."
        )
    yield _UNCOUNTED


def _counted(total: Total) -> str:
    each = "; ".join(_run_words(one.run, one.rounds, one.planned_rounds) for one in total.runs)
    return (
        f"Counted at delta {small(total.delta)}, for one "
        f"{Unit(total.unit).name_with(total.records_per_person)} ({total.adjacency}): {each}."
    )


def _run_words(name: str, rounds: int, planned: int) -> str:
    released = f"{rounds} releases of rounds" if rounds != 1 else "1 release of a round"
    of = f"{planned} planned" if planned > rounds else "all that were planned"
    return f"{name} ({released}, {of}{' counted' if planned > rounds else ''})"


def _records_words(total: Total) -> str:
    if len(total.runs) == 1:
        return "Other runs on the same records cost more together; name them, too."
    if total.records != "the same":
        return (
            "The runs are assumed to be on the same records; nothing shows that they are. For a "
            "record that is in fewer of them the figures are upper bounds."
        )
    if total.holders == "the same":
        return "Every agent holds the same records in all runs."
    return (
        "The runs deal the same records to agents differently, so a record may be at the worst-off "
        "agent of each."
    )


# One person over several runs: lines of a person's ledger, and what they cost together.
#
# A line is made from a run folder: of every planned round, or of more where more was released. What
# is known of the person is what the run file says: the holders of its records, or one record, or
# `records_per_person` of them, or all records of a user, or all data, of the agent that is worst
# off.


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
        person_ledger.PersonLedger.add(ledger, run)


def run_of_folder(folder: Path) -> person_ledger.PersonRun:
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
    statement, planned = run.plan.said_of, run.plan
    more = run.spent.torn or any(
        released_sensitivity(planned, run.spent, name) != planned.exposures[name]
        for name in planned.exposures
    )
    return person_ledger.PersonRun(
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
    statement, p = run.plan.said_of, run.config.privacy
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


def _view(run: AccountedRun, name: str) -> person_ledger.PersonView:
    released = released_sensitivity(run.plan, run.spent, name)
    guarantee, statement = run.plan.guarantee(name), run.plan.said_of
    multiplier = run.plan.noise_multiplier
    releases = spent_releases(released.releases)
    status = guarantee.status
    if releases and (multiplier == 0 or math.isinf(released.largest)):
        status = status if not status.is_finite else Status.CANNOT_BE_EXPRESSED
        return person_ledger.PersonView(status=status, events={})
    if not status.is_finite:
        status = Status.PROVEN if released.status is Status.PROVEN else Status.HEURISTIC
    events = counted(
        releases, multiplier, statement.adjacency, records=statement.records_per_person
    )
    return person_ledger.PersonView(status=status, events=events if releases else {})


def person_total(
    ledgers: Sequence[Path], *, adversary: str | None = None, delta: float | None = None
) -> PersonTotal:
    """What all runs of some ledgers of one person cost together.

    Args:
        ledgers: one or more; a run that stands in several of them alike is counted once.
        adversary: who holds the views of all runs; the one that every run file targets by default.

    Raises:
        FileNotFoundError: a ledger is not there.
        ValueError: a ledger is damaged, runs that differ have one name, or no adversary is given
            where the runs target different ones.
    """
    # Each run once; the same one in two ledgers must have the same figures.
    runs: dict[str, person_ledger.PersonRun] = {}
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
    # One adversary over all runs.
    every = list(runs.values())
    who = adversary or _common_target(every)
    epsilon = person_ledger.compose(every, who, delta=delta)
    least = min(run.delta for run in every) if delta is None else delta
    return PersonTotal(
        version=1,
        adversary=who,
        epsilon=epsilon,
        delta=least,
        adjacency=min(every, key=lambda run: run.unread != "").adjacency,
        status=_status([run.views[who].status for run in every if who in run.views], epsilon),
        runs=[
            _person_run(run, alone=person_ledger.compose([run], who, delta=least)) for run in every
        ],
        named_twice=[plain(one) for one in twice],
    )


def _person_run(run: person_ledger.PersonRun, *, alone: float) -> PersonTotalRun:
    return PersonTotalRun.model_validate(
        {
            "label": plain(run.label),
            "run": plain(run.run),
            "whose": plain(run.whose, most=None),
            "counted": run.counted,
            "alone": alone,
            **({"unread": plain(run.unread, most=None)} if run.unread else {}),
        }
    )


def _common_target(runs: Sequence[person_ledger.PersonRun]) -> str:
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


def person_sentences(total: PersonTotal) -> Iterator[str]:
    """What a reader must know of a person's total."""
    shown = "infinite" if is_infinite(total.epsilon) else (
        f"at most {bound(total.epsilon)}"
        if total.status == "proven"
        else f"at least {lower_bound(total.epsilon)} ({total.status})"
    )  # fmt: skip
    # The figure, and runs that no figure is known of.
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
    # What is counted, what is assumed, and what is not counted.
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
