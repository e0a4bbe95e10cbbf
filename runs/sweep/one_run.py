"""One run of a sweep, in a process of its own: trained, gone on with, attacked and audited.

A process that is killed leaves a run folder, which the next one goes on with, and a lock that the
system lets go: two processes never train one run, and the one that waited finds it finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...privacy.durable import PART, lock
from ..attack.attack import attack_run
from ..audit.audit import audit_folder, raise_contradiction
from ..errors import STATED, ContradictedProof, as_stated, sentence
from ..evidence.evidence import read_attack, read_audit
from ..folder import folder as run_folder
from ..folder.accounted_run import epsilon_of_ledger, read_run
from ..folder.records import TrainSummary
from ..folder.resume import resume_run
from ..folder.run import train_run
from ..run_file.run_file import RunFile
from ..stop import tell
from .points import Point, config_of
from .results import LOCKS, POINTS, PointResult, read_result, write_result

__all__ = ["Task", "digest_of", "run_point", "started"]

_LOOK = 0.2  # seconds between two looks at a lock or a device


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A run, as it is handed to a process.

    Attributes:
        out: folder of the sweep.
        base: tables of the run file.
        point: what it changes of them.
        devices: where it may compute, of which it takes the first that is free; () as its run file
            says.
        threads: of each process.
        path: `sys.path` of who sends it, for code of the user.
    """

    out: Path
    base: Mapping[str, object]
    point: Point
    devices: Sequence[str] = ()
    threads: int = 1
    path: Sequence[str] = ()


def run_point(task: Task) -> PointResult:
    """Train a run to its end, and keep how it ended.

    Returns:
        How it ended; a failure is a result, too.

    Raises:
        OSError: how it ended could not be written; it is run again then.
    """
    sys.path.extend(entry for entry in task.path if entry not in sys.path)
    _take_threads(task.threads)
    with _alone(), _locked(_lock_of(task.out, task.point.name)):
        kept = read_result(task.out, task.point.name)
        if kept is not None and kept.state == "done" and kept.has(task.point):
            return kept
        began, before = time.monotonic(), 0.0 if kept is None else kept.seconds
        with _device(task) as device:
            result = _ended(task, device)
        result = result.model_copy(update={"seconds": before + time.monotonic() - began})
        write_result(task.out, result)
        _lock_of(task.out, task.point.name).unlink(missing_ok=True)
        return result


def started(out: Path, name: str) -> bool:
    """Whether a process began a run and did not say how it ended."""
    return _lock_of(out, name).exists()


def digest_of(config: RunFile) -> str:
    """SHA-256 of a resolved run file, but for the device, which no figure depends on."""
    training = config.training.model_copy(update={"device": "auto"})
    return hashlib.sha256(
        config.model_copy(update={"training": training}).to_toml().encode()
    ).hexdigest()


def _ended(task: Task, device: str | None) -> PointResult:
    point = task.point
    digest = ""
    try:
        config = config_of(task.base, point)
        digest = digest_of(config)
        if device is not None:
            training = config.training.model_copy(update={"device": device})
            config = config.model_copy(update={"training": training})
        return _done(task, config, digest)
    except Exception as error:  # noqa: BLE001 - a run that fails is a result, and stops no other
        known = as_stated(error)
        words = " ".join(sentence(known).split())
        if not isinstance(known, STATED):
            words = f"crash: {type(error).__name__}: {words}"
            tell("".join(traceback.format_exception(error)).rstrip())
        return _failed(point, words, digest)


def _done(task: Task, config: RunFile, digest: str) -> PointResult:
    point, folder = task.point, task.out / POINTS / task.point.name
    summary = _trained(config, folder)
    contradictions = []
    if point.attack:
        try:
            if read_attack(folder) is None:
                attack_run(folder)
        except ContradictedProof as error:
            contradictions.append(str(error))
        else:
            found = read_attack(folder)
            of = () if found is None else found.scenarios
            contradictions += [s.bound.sentence for s in of if s.bound.exceeded]
    if point.audit:
        try:
            if (audited := read_audit(folder)) is None:
                audit_folder(folder)
            else:
                raise_contradiction(audited)  # what was found stands, however often it is read
        except ContradictedProof as error:
            contradictions.append(str(error))
    return PointResult(
        name=point.name,
        settings=dict(point.settings),
        seed=point.seed,
        state="done",
        run_file=digest,
        seconds=0.0,
        noise_multiplier=summary.noise_multiplier,
        adversaries=summary.adversaries,
        metrics=summary.metrics,
        attacked=point.attack,
        audited=point.audit,
        contradictions=contradictions,
        error=None if summary.stopped is None else summary.stopped.because,
    )


def _trained(config: RunFile, folder: Path) -> TrainSummary:
    if (folder / run_folder.RUN).is_file():
        return _as_released(folder, resume_run(config, folder))
    if folder.is_dir():  # whoever made it died before its first file
        for path in folder.glob(f"*{PART}"):
            path.unlink()
    return train_run(config, folder)


def _as_released(folder: Path, summary: TrainSummary) -> TrainSummary:
    """Epsilon of what a run that was cut off has released, which may be more than was planned."""
    run = read_run(folder)
    spent = epsilon_of_ledger(run.plan, run.spent)
    rows = [
        row.released(max(row.epsilon, spent.get(row.adversary, row.epsilon)))
        for row in summary.adversaries
    ]
    return summary.model_copy(update={"adversaries": rows})


def _failed(point: Point, words: str, digest: str) -> PointResult:
    return PointResult(
        name=point.name,
        settings=dict(point.settings),
        seed=point.seed,
        state="failed",
        error=words,
        run_file=digest,
        seconds=0.0,
    )


def _take_threads(threads: int) -> None:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Leave the stop that a terminal asks of all its processes to the one that sent the task."""
    if threading.current_thread() is not threading.main_thread() or _in_sender():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _in_sender() -> bool:
    """Whether the sweep runs in this very process, which hears what it is asked."""
    import multiprocessing

    return multiprocessing.parent_process() is None and signal.getsignal(signal.SIGINT) not in (
        signal.SIG_DFL,
        signal.default_int_handler,
    )


def _lock_of(out: Path, name: str) -> Path:
    return out / LOCKS / name


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, waiting for another that holds it."""
    with path.open("a") as file:
        lock(file.fileno(), wait=True)
        yield


@contextlib.contextmanager
def _device(task: Task) -> Iterator[str | None]:
    """The first device that no other process of the sweep computes on."""
    if not task.devices:
        yield None
        return
    while True:
        for number, device in enumerate(task.devices):
            file = (task.out / LOCKS / f".device-{number}").open("a")
            with file:
                if lock(file.fileno()):
                    yield device
                    return
        time.sleep(_LOOK)
