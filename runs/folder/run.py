"""Train a run into a run folder, with its ledger, metrics, checkpoints and intercepted rounds.

What is on the disk when is the order that a crash may break at any place:

    run.toml, environment.json, the ledger with its header
    for each round:  its line in the ledger, synced
                     the round itself, whose messages leave
                     its transcript, the checkpoint after it, its metrics
    the sums, which make the run a finished one

Over ranks (`ranks.py`) every rank goes through the same rounds, and rank 0 alone has a ledger and
writes; all meet between the line in the ledger and the round.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...privacy.files import write_durably
from ...privacy.formats.codec import dump
from ...privacy.guarantee import Statement
from ...privacy.releases.ledger import Ledger
from ...training.data.load import Dataset
from ...training.data.tied_items import leave_out, tied_items
from ...training.engine.engine import Engine, check_user_code
from ...training.engine.exchange import share_root
from ...training.engine.links import Gathered
from ...training.engine.randomness import SecretRandomness
from ...training.engine.tensor_file import Checkpoint, save_checkpoint
from ...training.engine.transcript import Transcript
from ...training.models.metrics import Metrics
from ...training.models.parameters import sizes_of
from ...training.noise_tests.noise_tests import RATE, NoiseTestFailed, NoiseTests
from ...training.tracing.trace import check_noise
from ..errors import ContradictedProof
from ..plan.plan import Plan, make_plan
from ..run_file.build import Built, build
from ..run_file.run_file import RunFile, own_calls
from ..run_file.tables import names_of
from ..run_file.trust import SOURCES, check_at_end, write_sources
from ..stop import Stop, tell
from . import folder as run_folder
from .folder import write_sums
from .ranks import Group, Start
from .records import ExposureFacts, Items, LedgerHeader, TrainSummary
from .released import (
    epsilon_so_far,
    forget_states,
    layout_of,
    price_of_loss,
    save_transcript,
    snapshot_rounds,
    write_records,
)

# How the items of a run's data were made of records, looked at before anything is released.


def items_of(
    config: RunFile,
    data: Dataset,
    statement: Statement,
    *,
    notice: Callable[[str], None] | None = None,
) -> Items | None:
    """Leave records out of what a data function gives, and look for items of several records.

    Args:
        notice: told what speaks for items of several records.

    Returns:
        What was found; None of data that come along with a library or were made by a seed.

    Raises:
        ValueError: with a record left out more changes than its own item.
    """
    d = config.data
    if d.root is None and d.source == "rows":
        return None
    shown = 0
    if d.source == "function":
        shown = leave_out(
            d.name,
            d.options,
            classes=data.classes or None,
            outputs=data.outputs,
            most=statement.at_once,
            notice=notice,
        )
    items = Items(source=d.source, left_out=shown, tied=tied_items(data))
    if notice is not None:
        for words in items.tied:
            notice(
                f"Warning: {words}; a figure of a record holds where items are made of one alone"
            )
    return items


# The tests of a run's noise while it trains, and what of them the ledger may say.
#
# That is how many rounds and numbers passed, and at which false-alarm rate: what everybody can tell
# beforehand. A failed test ends the run before the round's messages leave, with no figure.

_SHARE = 1e-10  # of delta: far below what the accountant allows for rounding


def noise_test_rate(plan: Plan) -> float:
    """The false-alarm rate of a run's tests, in all: (1 + e^epsilon) times it is next to no delta.

    Args:
        plan: of the run; its finite epsilons count, and its delta.

    Returns:
        1e-30, or less where an epsilon above 30 or a small delta asks for it; at least 1e-250.
    """
    figures = [g.epsilon for g in plan.guarantees if math.isfinite(g.epsilon)]
    most = min(max(figures, default=0.0), 500.0)
    return max(1e-250, min(RATE, _SHARE * plan.said_of.delta / (1 + math.exp(most))))


class TestedNoise:
    """The tests of one session, on one rank.

    Args:
        ranks: how many processes share the agents.

    Raises:
        ValueError: the step's noise is not that of the plan.
    """

    __test__ = False  # no test of pytest's

    def __init__(self, built: Built, plan: Plan, *, ranks: int) -> None:
        bound = built.bound(plan.noise_multiplier)
        check_noise(plan.noise_multiplier, bound.init, bound.step)
        sizes = sizes_of(built.setting.model)
        self._alone, self._met = ranks == 1, {"rounds": 0, "numbers": 0}
        self.tests = NoiseTests(parts={sum(sizes): sizes}, rate=noise_test_rate(plan) / ranks)

    def meet(self) -> None:
        """All ranks are here, so every one of them has passed what this one has."""
        self._met = self._own()

    def known(self) -> dict[str, int]:
        """What is known to have passed on all ranks."""
        return self._own() if self._alone else self._met

    def _own(self) -> dict[str, int]:
        return {"rounds": self.tests.rounds, "numbers": self.tests.numbers}


@contextmanager
def stopped_by_noise() -> Iterator[None]:
    """End a run where a test of its noise fails.

    Raises:
        ContradictedProof: the noise is not what epsilon was computed for.
    """
    try:
        yield
    except NoiseTestFailed as error:
        raise ContradictedProof(str(error)) from error


Progress = Callable[[int, int, float | None, Metrics | None], None]

_PERIODIC = 2  # checkpoints that are kept beside those of intercepted rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """One process's part of a run.

    Attributes:
        progress: called with (round, rounds, epsilon of the target adversary, metrics).
        last: the last round, which is the planned one unless the budget ends before it.
        items: how they were made of records; None where that was looked at when the run began.
        released: the number of each round that the ledger names already.
        group: this process among the ranks of the run, where there are several.
        run: what tells this run from others of the same run file, in its ledger and checkpoints.
        stop: whether it was asked to stop.
    """

    config: RunFile
    built: Built
    plan: Plan
    out: Path
    progress: Progress | None = None
    last: int
    items: Items | None = None
    released: Sequence[int] = ()
    group: Group | None = None
    run: str = ""
    stop: Stop = field(default_factory=Stop)


def train_run(
    config: RunFile,
    out: Path,
    *,
    progress: Progress | None = None,
    group: Group | None = None,
    stop: Stop | None = None,
) -> TrainSummary:
    """Plan, train, and leave everything that attack and report need in a new folder.

    Args:
        out: the folder; it must be empty or not exist.
        progress: called with (round, rounds, epsilon of the target adversary, metrics).
        group: the ranks of which this process is rank 0; the others call `join_run`.
        stop: asked to stop, the run ends after its round, with a checkpoint.

    Returns:
        Noise multiplier, epsilon by adversary, and the last metrics.

    Raises:
        FileExistsError: the folder holds a run.
        ValueError: what the run file asks for cannot be done.
        OSError: the system refuses a file; what was released is in the ledger.
        MissingRank: a rank is gone; likewise.
        Interrupted: it was asked to stop; at most one round more has left, and none will twice.
    """
    run_folder.check_unused(out)
    stop = stop or Stop()
    stop.note("nothing was released; start the run again")
    session = plan_session(config, out, progress=progress, notice=tell)
    _check_start(session)
    session = agreed(session, group, stop)
    with stop.held():
        run_folder.claim(out)
        with run_folder.stated(out):
            write_durably(out / run_folder.RUN, config.to_toml().encode(), new=True)
            return first_session(session)


def join_run(config: RunFile, out: Path, *, group: Group, stop: Stop | None = None) -> None:
    """Train as another rank than 0, which has the folder: the same rounds, and nothing is written.

    Args:
        out: the folder of rank 0, for what is said.
        stop: as for `train_run`; all ranks end after the same round, whichever is asked.

    Raises:
        ValueError: what the run file asks for cannot be done, or rank 0 computes something else.
        MissingRank: a rank is gone.
        Interrupted: a rank was asked to stop.
    """
    stop = stop or Stop()
    stop.note("nothing was released")
    # Rank 0 knows whether the run is new, and tells or refuses what it takes.
    session = plan_session(config, out, begun=True, notice=lambda _: None)
    _check_start(session)
    session = agreed(session, group, stop)
    with stop.held():
        start = group.share_start(None)
        stop.note("--resume says what was released since the last checkpoint")
        if start is not None:
            _rounds(replace(session, last=start.last), ledger=None, start=start.checkpoint)


def plan_session(
    config: RunFile,
    out: Path,
    *,
    progress: Progress | None = None,
    begun: bool = False,
    notice: Callable[[str], None] | None = None,
) -> Session:
    """A session of the whole run; nothing is written. `begun` and `notice`: see `make_plan`."""
    built = build(config)
    graph, size = built.setting.graph, built.batch_size
    plan = make_plan(config, graph=graph, batch_size=size, begun=begun, notice=notice)
    if plan.scripts.by_user:
        built.setting.check_by_user()
    check_user_code(replace(built.setting, layout=config.training.layout), built.data.measured)
    items = None if begun else items_of(config, built.data, plan.said_of, notice=notice)
    return Session(
        config=config,
        built=built,
        plan=plan,
        out=out,
        progress=progress,
        last=plan.rounds,
        items=items,
    )


def agreed(session: Session, group: Group | None, stop: Stop) -> Session:
    """The session, once the other ranks, if there are any, have planned the same."""
    if group is not None:
        group.agree(session.config, session.built, session.plan)
    return replace(session, group=group, stop=stop)


def first_session(session: Session) -> TrainSummary:
    """Train in a folder that has its run file and nothing released yet; a summary as train_run."""
    built, plan, out = session.built, session.plan, session.out
    # Files beside the ledger first, since its header names their digests.
    run_folder.environment(str(built.setting.device)).write(out / run_folder.ENVIRONMENT)
    algorithm, run = session.config.algorithm, secrets.token_hex(16)
    write_records(out / run_folder.RECORDS, built.setting.shards)
    write_sources(out, own_calls(session.config))
    # A key stands in the header only where the run has such a fact.
    sources, turns = out / SOURCES, session.config.pattern
    facts = {
        "participation": None if plan.participation is None else plan.participation.digest,
        "missing": None if plan.missing is None else plan.missing.at_most,
        "items": session.items,
        "turns": None if turns.is_every else turns.entry,
        "sources": run_folder.digest(sources) if sources.is_file() else None,
    }
    header = LedgerHeader(
        run=run,
        run_file=run_folder.digest(out / run_folder.RUN),
        algorithm=algorithm.name,
        form=algorithm.form,
        agents=built.setting.graph.agents,
        records=run_folder.digest(out / run_folder.RECORDS),
        clip_norm=math.inf if built.clip_norm is None else built.clip_norm,
        noise_multiplier=plan.noise_multiplier,
        sampling_rate=plan.sampling_rate,
        planned_rounds=plan.rounds,
        noise_test_rate=noise_test_rate(plan),
        exposures={name: ExposureFacts.of(one) for name, one in plan.exposures.items()},
    ).model_copy(update={key: fact for key, fact in facts.items() if fact is not None})
    ledger = Ledger(out / run_folder.LEDGER, header.dump())
    try:
        return run_session(replace(session, run=run), ledger=ledger, start=None)
    finally:
        ledger.close()


def run_session(session: Session, *, ledger: Ledger, start: Checkpoint | None) -> TrainSummary:
    """Train from a checkpoint, or from the start, to the last round; then close the folder.

    Args:
        ledger: open, its last entry that of where this begins.
    """
    if session.group is not None:
        session.group.share_start(Start(session.last, start))
    last = _rounds(session, ledger=ledger, start=start)
    check_at_end(session.out, names_of(session.config))
    _prune(session, newest=0)
    write_sums(session.out)
    if session.group is not None:
        session.group.close()
    return summary(session, last)


def summary(session: Session, metrics: Metrics) -> TrainSummary:
    """What a run was: noise multiplier, epsilon by adversary, and the last metrics."""
    planned = session.plan.planned()
    return TrainSummary(
        out=str(session.out),
        noise_multiplier=planned.noise_multiplier,
        adversaries=planned.adversaries,
        metrics=metrics,
    )


@stopped_by_noise()
def _rounds(session: Session, *, ledger: Ledger | None, start: Checkpoint | None) -> Metrics:
    """The rounds, on every rank; rank 0, which alone has a ledger, writes what they leave.

    Asked to stop, it ends where the next round would be announced; over ranks all end there, once
    rank 0 knows of it.
    """
    config, built, out, stop = session.config, session.built, session.out, session.stop
    # The engine with the transcript and the tests of its noise.
    watched = list(config.intercept.victims) or [_victim(config)]
    transcript = Transcript(config.intercept.rounds, agents=watched)
    layout = config.training.layout if start is None else layout_of(start, config)
    ranks = 1 if session.group is None else session.group.place.size
    noise = TestedNoise(built, session.plan, ranks=ranks)
    engine = engine_of(session, layout=layout, transcript=transcript, noise=noise)
    released = list(session.released)
    kept = -1 if start is None else start.round
    # The start: announced and released, or restored and released to nobody.
    if start is None:
        _announce(session, ledger, 0, [], noise, kept=kept)
        engine.start()
        released.append(0)
    else:
        # Its own start is sent to nobody; `check_turns` found its records to be those of before.
        own = built.setting.turns_digest
        engine.restore(start.state, round=start.round, turns=own)
    releases = [{"kind": kind} for kind in session.plan.message_kinds]
    every, rounds = config.training.evaluate_every, config.training.rounds
    with nullcontext() if ledger is None else run_folder.metrics_file(out) as lines:
        while True:
            # What the round leaves: a checkpoint, metrics and progress.
            at = engine.round
            if _is_kept(session, at) or at % config.training.checkpoint_every == 0:
                kept = _save(session, engine, writes=ledger is not None)
            metrics = None
            hurries = stop.signal != 0 and session.group is None
            if at == session.last or (at % every == 0 and not hurries):
                metrics = built.measured(engine.models(), round=at)
                if lines is not None:
                    lines.write(json.dumps(dump(metrics)) + "\n")
                    lines.flush()
                    os.fsync(lines.fileno())
            if session.progress is not None and not stop.signal:
                spent = epsilon_so_far(session.config, session.plan, released) if metrics else None
                session.progress(at, rounds, spent, metrics)
            # The end, once no rank has failed and the noise is tested.
            if at == session.last and metrics is not None:
                if session.group is not None:
                    session.group.barrier()  # no rank has failed
                noise.meet()
                if ledger is not None:
                    ledger.conclude(noise.known())
                    run_folder.tell_layout(out, engine.layout, ranks=ranks)
                stop.finish()
                return metrics
            # The next round stands in the ledger before it is released.
            engine.check_floor()
            if signal := _announce(session, ledger, at + 1, releases, noise, kept=kept):
                _leave(session, engine, ledger, noise, saves=kept < at)
                raise stop.ended(
                    f"stopped after round {at}; nothing is released twice; continue with --resume",
                    signal=signal,
                )
            released.append(at + 1)
            engine.advance()
            if engine.round in config.intercept.rounds and ledger is not None:
                save_transcript(transcript, out / run_folder.TRANSCRIPT)


def _check_start(session: Session) -> None:
    """Refuse an initial model beside which rounding is seen through the noise, before it is spent.

    Raises:
        NoiseBelowRounding: it is too large.
    """
    built, scripts = session.built, session.plan.scripts
    if scripts.floor_of(0, None).parts or scripts.floor_of(1, None).parts:
        bound = built.bound(session.plan.noise_multiplier)
        Engine(built.setting, bound, scripts=scripts).check_start()


def _announce(
    session: Session,
    ledger: Ledger | None,
    round: int,
    releases: Sequence[Mapping[str, str]],
    noise: TestedNoise,
    *,
    kept: int,
) -> int:
    """Put a round on the disk, on rank 0, before anything of it leaves, on any rank.

    Returns:
        The signal by which the run ends, on all ranks, instead of the round; 0 to go on.
    """
    group, signal = session.group, session.stop.signal
    if ledger is not None:
        signal = (signal or (0 if group is None else group.asked)) if round > 0 else 0
        if not signal:
            session.stop.note(price_of_loss(session.plan, kept=kept, announced=round))
            ledger.append(round, releases, noise_tested=noise.known())
    if group is not None:
        signal = group.barrier(signal)
    noise.meet()
    return signal


def _leave(
    session: Session, engine: Engine, ledger: Ledger | None, noise: TestedNoise, *, saves: bool
) -> None:
    """Keep the state, so that the run goes on with nothing to release twice."""
    if saves:
        _save(session, engine, writes=ledger is not None)
    if session.group is not None:
        session.group.barrier()  # no rank has failed, and rank 0 has written
    noise.meet()
    if ledger is not None:
        ledger.conclude(noise.known())


def engine_of(
    session: Session, *, layout: str, transcript: Transcript, noise: TestedNoise | None = None
) -> Engine:
    """The engine, or this rank's part of it, with a tap that keeps what is to be intercepted.

    Over ranks the root is given to `SecretRandomness`, which therefore would not renew it if the
    engine were started again. It is not: a run that goes on is a new process, with another root.
    """
    training, setting = session.config.training, session.built.setting
    ranks = None if session.group is None else session.group.ranks
    root = training.evaluation_noise_seed
    if ranks is not None:
        root = share_root(ranks, root=root, device=setting.device)
    return Engine(
        replace(setting, layout=layout),
        session.built.bound(session.plan.noise_multiplier),
        randomness=SecretRandomness(root, hardened=training.noise == "hardened"),
        taps=[Gathered(session.config.intercept.rounds, [transcript]) if ranks else transcript],
        ranks=ranks,
        scripts=session.plan.scripts,
        noise_tests=None if noise is None else noise.tests,
    )


def _victim(config: RunFile) -> int:
    return 0 if config.privacy is None or config.privacy.victim is None else config.privacy.victim


def _is_kept(session: Session, round: int) -> bool:
    """Whether the state after a round is kept when newer ones are there."""
    return round == session.last or round in snapshot_rounds(session.config.intercept.rounds)


def _save(session: Session, engine: Engine, *, writes: bool) -> int:
    """Keep the state after a round, and of those for going on alone the newest; which round."""
    state = engine.snapshot()  # by all ranks
    if not writes:
        return engine.round
    facts = {
        "run": session.run,
        "run_file": run_folder.digest(session.out / run_folder.RUN),
        "layout": engine.layout if engine.settled else "auto",
    }
    found = Checkpoint(round=engine.round, state=state, facts=facts)
    save_checkpoint(run_folder.checkpoint(session.out, engine.round), found)
    _prune(session, newest=_PERIODIC)
    price = price_of_loss(session.plan, kept=engine.round, announced=engine.round)
    session.stop.note(price)
    return engine.round


def _prune(session: Session, *, newest: int) -> None:
    forget_states(
        session.out / run_folder.CHECKPOINTS, kept=lambda at: _is_kept(session, at), newest=newest
    )
