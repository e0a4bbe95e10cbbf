"""Continue a run that was cut off, from its newest checkpoint that is whole.

Rounds after the checkpoint that the ledger names are released again, with fresh noise and batches:
the ledger counts both. Where all rounds are one release to some adversary, none may repeat, and the
run is not continued. Where [privacy] has a target, rounds end before one that would exceed it.

A sum of releases that is bounded before the run is what the target was calibrated for. Where rounds
cost the same, that is a number of releases: it does not matter which of them repeat, nor that what
cut the run off may depend on the data.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...privacy.errors import InputError, UnsupportedView
from ...privacy.files import PART, check_size, make_folder, sync_folder, write_durably
from ...privacy.formats.codec import parse_json
from ...privacy.releases.ledger import Ledger, Spent
from ...training.accounts.summary import reached
from ...training.engine import tensor_file
from ...training.exposure.events import accounted
from ...training.exposure.sensitivity import JointSensitivity
from ..numbers import bound, small
from ..plan.plan import Plan, make_plan
from ..run_file.build import Built, build
from ..run_file.run_file import ForeignFolder, RunFile, check_same
from ..stop import Stop
from . import folder as run_folder
from . import records
from . import released as folder_released
from .folder import check_sums
from .ranks import Group
from .records import LedgerHeader
from .released import epsilon_of
from .run import Progress, Session, agreed, first_session, plan_session, run_session, summary

Notice = Callable[[str], None]

# The sums first: without the rest they would name files that are gone.
_DERIVED = (run_folder.SUMS, run_folder.PRIVACY, run_folder.REPORT, run_folder.STOPPED)
_BEHIND_LEDGER = (run_folder.CHECKPOINTS, run_folder.TRANSCRIPT, run_folder.METRICS, *_DERIVED)


def resume_run(
    config: RunFile,
    out: Path,
    *,
    progress: Progress | None = None,
    notice: Notice | None = None,
    group: Group | None = None,
    stop: Stop | None = None,
) -> records.TrainSummary:
    """Continue a run to its end; a finished one is left as it is.

    Args:
        config: the run file, which must be that of the folder; its device may be another.
        out: the folder of `train_run`.
        progress: as for `train_run`.
        notice: called with sentences for the reader: where the run goes on, and what it repeats.
        group: as for `train_run`; there may be another number of ranks than the run began with.
        stop: as for `train_run`.

    Returns:
        As `train_run`; with `stopped` if the budget ended the run early.

    Raises:
        FileNotFoundError: the folder holds no run.
        LedgerInUse: another process trains into it.
        UnsupportedView: a round would be released again where none may repeat.
        ValueError: another run file, cost or records in turns, or no whole checkpoint or ledger.
        OSError: the system refuses a file; what was released is in the ledger.
        Interrupted: as for `train_run`.
    """
    say, stop = notice or _keep_silent, stop or Stop()
    stop.note("nothing more was released; continue with --resume")
    # The folder's own run; without a ledger nothing of it was released.
    if not (out / run_folder.RUN).is_file():
        raise FileNotFoundError(
            f"{out} holds no {run_folder.RUN}, so there is no run to continue; leave --resume out "
            "to start one"
        )
    check_same(config, out / run_folder.RUN)
    begun = (out / run_folder.LEDGER).exists()
    if not begun:
        check_nothing_released(out)
    session = plan_session(config, out, progress=progress, begun=begun)
    session = agreed(session, group, stop)
    if run_folder.is_finished(out):
        return _finished(session, say)
    with run_folder.stated(out):
        # A run that released nothing begins; any other goes on under its ledger.
        if not begun:
            say(f"{out} has no ledger, so nothing was released; the run begins.")
            with stop.held():
                return first_session(session)
        ledger = Ledger.reopen(out / run_folder.LEDGER)
        try:
            if run_folder.is_finished(out):  # by the process that had it open before us
                return _finished(session, say)
            return _continue(session, ledger, say)
        finally:
            ledger.close()


def _continue(session: Session, ledger: Ledger, say: Notice) -> records.TrainSummary:
    out, plan = session.out, session.plan
    # What was released, and the newest checkpoint to go on from.
    spent = folder_released.read_released(out)
    header = records.header_of(spent)
    check_ledger(out, spent, plan)
    released = [*spent.numbers, *([] if spent.torn_round is None else [spent.torn_round])]
    start, broken = _newest(out, header, say)
    after = -1 if start is None else start.round
    _check_begun(out, released, after)
    # Rounds after the checkpoint are released again, which the target has to allow.
    repeated = sorted({number for number in released if number > after})
    _check_repeats(session, repeated)
    folder_released.check_turns(out, header, session.built.setting)
    last = affordable_round(session, released, after=after)
    say(folder_released.where_it_goes_on(out, plan, after=after, repeated=repeated))
    moved = run_folder.note_device(
        out,
        str(session.built.setting.device),
        after=after,
        seeded=session.config.training.evaluation_noise_seed is not None,
    )
    if moved:
        say(moved)
    # From here on the folder changes.
    with session.stop.held():
        _tidy(out, after=after, ledger=spent, broken=broken)
        ledger.resume(after)
        again = (last > after and bool(repeated)) or len(set(released)) < len(released)
        stopped = _stop(session, last, again=again) if last < plan.rounds else None
        session = replace(session, last=last, released=released, run=header.run)
        train_summary = run_session(session, ledger=ledger, start=start)
    if stopped is None:
        return train_summary
    say(stopped.because)
    return train_summary.model_copy(update={"stopped": stopped})


def affordable_round(session: Session, released: Sequence[int], *, after: int) -> int:
    """The last round that can be released within the target, when going on after a round.

    Args:
        released: the number of each release that the ledger names.
        after: the round of the checkpoint; -1 is before the start.

    Returns:
        The planned last round, or an earlier one, at the least `after`.

    Raises:
        ValueError: the run would begin anew, and its start alone exceeds the target.
    """
    p, plan = session.config.privacy, session.plan
    goal = None if p is None else p.goal
    if p is None or goal is None:
        return plan.rounds
    exposure = plan.exposures[p.adversary]

    def exceeds(last: int) -> bool:
        every = accounted(exposure, [*released, *range(after + 1, last + 1)])
        if every == exposure:  # no more than planned, which is within the target
            return False
        found = reached(
            every, statement=plan.said_of, noise_multiplier=plan.noise_multiplier, goal=goal
        )
        return found > goal.figure

    ahead = range(after + 1, plan.rounds + 1)
    last = after + bisect.bisect_left(ahead, True, key=exceeds)
    if last < 0:
        raise InputError(
            f"the start of this run was released before, and once more would exceed {goal.words} "
            f"of {p.adversary}; start a new run in another folder"
        )
    return last


def _stop(session: Session, last: int, *, again: bool) -> records.Stopped:
    """Write down where the budget ends the run; without any release `again` none can be."""
    p, plan = session.config.privacy, session.plan
    goal = None if p is None else p.goal
    if p is None or goal is None:
        raise InputError("a run without a target has no budget that could end it")
    epsilon = plan.guarantee(p.adversary).epsilon
    spent = f"epsilon {bound(epsilon)}"
    spent += f", and {goal.words} is reached," if goal.of_risk else f" of {goal.figure:g}"
    why = "rounds that were released twice have used up the rest"
    if not again:
        why = "the target leaves nothing for a round that is released twice, as the next would be"
    stopped = records.Stopped(
        round=last,
        rounds=plan.rounds,
        adversary=p.adversary,
        epsilon=epsilon,
        target=epsilon if p.epsilon is None else p.epsilon,
        delta=p.delta,
        because=(
            f"Stopped after round {last} of {plan.rounds}: {why}. One more release would exceed "
            f"the target of {p.adversary}; spent is {spent} at delta {small(p.delta)}."
        ),
    )
    stopped.write(session.out / run_folder.STOPPED)
    return stopped


def _finished(session: Session, say: Notice) -> records.TrainSummary:
    out = session.out
    check_sums(out)
    if session.group is not None:
        session.group.share_start(None)
    say(f"The run in {out} is finished; nothing was changed.")
    metrics = records.read_metrics(out / run_folder.METRICS)
    train_summary = summary(session, metrics[-1])
    if not (out / run_folder.STOPPED).is_file():
        return train_summary
    return train_summary.model_copy(
        update={"stopped": records.Stopped.read(out / run_folder.STOPPED)}
    )


def check_nothing_released(out: Path) -> None:
    """Without a ledger a run may begin only where nothing is that is written after one."""
    for name in _BEHIND_LEDGER:
        path = out / name
        if any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size:
            raise InputError(
                f"{out} has {name} but no {run_folder.LEDGER}: the ledger is missing, so what this "
                "run released is unknown and it can be neither continued nor reported; put the "
                "ledger back, or start a new run in another folder and take what this one released "
                "as not protected"
            )


def check_exposures(header: LedgerHeader, plan: Plan) -> None:
    """Refuse a plan whose rounds cost something else than those that the ledger announces.

    Args:
        plan: of the same run file, with the graph and the data as they are today.

    Raises:
        ValueError: they differ, with the adversary and both figures; or the ledger has none.
    """
    held = header.exposures
    planned = {name: records.ExposureFacts.of(one) for name, one in plan.exposures.items()}
    if held is None:
        raise InputError(
            "the ledger lacks what each adversary is exposed to, so what was released cannot be "
            "accounted for; use the version that wrote it, or start a new run"
        )
    # Who takes part, and how many may be missing, is as it was.
    list_now = None if plan.participation is None else plan.participation.digest
    if header.participation != list_now:
        raise InputError(
            "the list of who takes part in which round is not the one that the run was begun with; "
            "put it back, or start a new run in another folder"
        )
    missing = 0 if plan.missing is None else plan.missing.at_most
    if (header.missing or 0) != missing:
        then = f"[participation] missing={header.missing or 0}, not {missing}"
        raise InputError(f"the run was begun with {then}; put it back, or start a new run")
    # What each adversary is exposed to is as it was, up to rounding.
    for name in {**planned, **held}:
        begun, now = _costs(held.get(name)), _costs(planned.get(name))
        for what in {**begun, **now}:
            if not _is_close(begun.get(what), now.get(what)):
                raise InputError(
                    f"for {name} the run was begun with {what} {begun.get(what)}, but the files "
                    f"there are now give {now.get(what)}; put the graph, the data and the version "
                    "(in environment.json) back that it was begun with"
                )


def _costs(exposure: records.ExposureFacts | None) -> dict[str, float]:
    return {} if exposure is None else exposure.figures()


def _is_close(begun: float | None, now: float | None) -> bool:
    """Whether two figures are equal but for the rounding of another machine, or one is not said."""
    if begun is None or now is None:
        return False
    if math.isnan(begun):
        return True
    return math.isclose(begun, now, rel_tol=1e-9, abs_tol=1e-12)


def _newest(
    out: Path, header: LedgerHeader, say: Notice
) -> tuple[tensor_file.Checkpoint | None, list[Path]]:
    """The newest checkpoint that is whole and of this run, and those that are newer but not."""
    broken: list[Path] = []
    for _, path in reversed(tensor_file.round_files(out / run_folder.CHECKPOINTS)):
        try:
            checkpoint = tensor_file.load_checkpoint(path)
        except tensor_file.BrokenCheckpoint as error:
            say(f"Skipped: {error}.")
            broken.append(path)
            continue
        if (checkpoint.facts.get("run"), checkpoint.facts.get("run_file")) == (
            header.run,
            header.run_file,
        ):
            return checkpoint, broken
        say(f"Skipped: {path} belongs to another run.")
        broken.append(path)
    return None, broken


def _check_begun(out: Path, released: Sequence[int], after: int) -> None:
    """The checkpoint and the ledger must be of one run, and rounds need one to go on from."""
    rounds = sum(number > 0 for number in released)
    if after < 0 and rounds:
        raise InputError(
            f"{out} has no checkpoint that is whole, but its ledger names {rounds} releases, so "
            "the run cannot be continued; put back a copy of a checkpoint, or start a new run in "
            "another folder: what this one released stays spent, and `overhear report` counts it"
        )
    if after > max(released, default=-1):
        raise InputError(
            f"the newest checkpoint of {out} is of round {after}, but its ledger ends at round "
            f"{max(released, default=0)}; the folder's files do not belong together, start a new "
            "run in another folder"
        )


def _check_repeats(session: Session, repeated: Sequence[int]) -> None:
    """Refuse a repetition that nobody can account for, before anything is released."""
    for exposure in session.plan.exposures.values():
        if exposure.whole_run and repeated:
            raise UnsupportedView(
                f"round {repeated[0]} was released already, and would be once more; for "
                f"{exposure.adversary.name} all rounds are one release in which none may repeat, "
                "so start a new run in another folder"
            )


def _tidy(out: Path, *, after: int, ledger: Spent, broken: Sequence[Path]) -> None:
    """Take what is of the rounds after the checkpoint out of the way; done twice, it does no more.

    Transcripts show what was released, so they are kept aside: those in place are of the rounds
    from which the final models come.
    """
    for name in _DERIVED:
        (out / name).unlink(missing_ok=True)
    for path in [*out.glob(f"*{PART}"), *(out / run_folder.CHECKPOINTS).glob(f"*{PART}")]:
        path.unlink()
    for path in broken:
        path.replace(path.with_name(path.name.replace("round-", "broken-")))
    metrics = out / run_folder.METRICS
    if metrics.exists():
        check_size(metrics, records.MOST_MEASURED)
        with metrics.open("rb") as lines:
            kept = [line.rstrip() for line in lines if _round_of(line) < after]
        write_durably(metrics, b"".join(line + b"\n" for line in kept))
    transcripts = out / run_folder.TRANSCRIPT
    folder_released.forget_half_saved(transcripts)
    for number, path in tensor_file.round_files(transcripts):
        if number > after:
            aside = transcripts / f"discarded-{len(ledger.resumed_after) + 1}"
            make_folder(aside)
            path.replace(aside / path.name)
            sync_folder(transcripts)


def _round_of(line: bytes) -> float:
    """The round of a line of metrics; of one that was cut off infinity."""
    try:
        return float(parse_json(line)["round"])
    except (ValueError, LookupError, TypeError):
        return float("inf")


def _keep_silent(_: str) -> None:
    pass


# A run folder as its files say it is, each held against the others, with the plan of its run file.
#
# Report, check, comparison and total read a run by `read_run`, and take what may be signed of it
# from `epsilon_of_ledger`.


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountedRun:
    """A run that released something, finished or not."""

    config: RunFile
    built: Built
    plan: Plan
    spent: Spent

    @property
    def header(self) -> LedgerHeader:
        """What the ledger says of every release."""
        return records.header_of(self.spent)


def read_run(folder: Path) -> AccountedRun:
    """Read a run folder.

    Raises:
        FileNotFoundError: no run is in it, or one that released nothing.
        ValueError: its files were changed, do not belong together, or cannot be read.
    """
    opened = ForeignFolder(folder)
    check_sums(folder)
    run_folder.require(folder, run_folder.RUN)
    config = opened.run_file()
    spent = _spent(folder)
    folder_released.check_records_file(folder, records.header_of(spent))
    built = build(config, device=torch.device("cpu"))  # where the run's own may not be there
    plan = make_plan(config, graph=built.setting.graph, batch_size=built.batch_size, begun=True)
    check_ledger(folder, spent, plan)
    return AccountedRun(config=config, built=built, plan=plan, spent=spent)


def _spent(folder: Path) -> Spent:
    """The ledger of a run that released something."""
    if (folder / run_folder.LEDGER).exists():
        return folder_released.read_released(folder)
    check_nothing_released(folder)
    raise FileNotFoundError(
        f"{folder} has no {run_folder.LEDGER}, so nothing was released and there is nothing to "
        f"report; `overhear train {folder / run_folder.RUN} --out {folder} --resume` begins the run"
    )


def check_ledger(folder: Path, spent: Spent, plan: Plan) -> None:
    """Refuse a ledger of another run: what was released is what it says, at what its header says.

    Args:
        plan: of its run file, with the graph and the data as they are today.

    Raises:
        ValueError: they do not belong together.
    """
    header = records.header_of(spent)
    if header.run_file != run_folder.digest(folder / run_folder.RUN):
        raise InputError(
            f"{folder / run_folder.RUN} is not the run file that the ledger was written for, so "
            "the folder's files do not belong together; put the original back, or start a new run "
            "in another folder"
        )
    for name, planned, written in (
        ("noise_multiplier", plan.noise_multiplier, header.noise_multiplier),
        ("sampling_rate", plan.sampling_rate, header.sampling_rate),
    ):
        if abs(planned - written) > 1e-9 * max(1.0, abs(planned)):
            raise InputError(
                f"the run was begun with {name}={written:g}, and now {planned:g} would be used; "
                "go on with the version and the data that it was begun with"
            )
    check_exposures(header, plan)


def released_sensitivity(plan: Plan, spent: Spent, name: str) -> JointSensitivity:
    """The joint sensitivity to an adversary of every planned round, or of more that were released.

    Raises:
        UnsupportedView: a round was released again where none may repeat.
    """
    return accounted(plan.exposures[name], spent.numbers, torn=spent.torn)


def released_sensitivities(plan: Plan, spent: Spent) -> dict[str, JointSensitivity]:
    """By adversary the releases that may be signed for."""
    return {name: released_sensitivity(plan, spent, name) for name in plan.exposures}


def epsilon_of_ledger(plan: Plan, spent: Spent) -> dict[str, float]:
    """What may be signed, by adversary: epsilon of every planned round, or of more.

    Raises:
        UnsupportedView: a round was released again where none may repeat.
    """
    return {
        name: epsilon_of(plan, exposure)
        for name, exposure in released_sensitivities(plan, spent).items()
    }
