"""Runs spread over processes by joblib; a process that dies costs what it was at."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from joblib import cpu_count

from ...privacy.errors import InputError, needs, within
from ...privacy.files import PART, lock
from ..attack.attack import attack_run
from ..audit.audit import audit_folder, raise_contradiction
from ..audit.evidence import read_attack, read_audit
from ..errors import STATED, ContradictedProof, as_stated, sentence
from ..folder import folder as run_folder
from ..folder.records import TrainSummary
from ..folder.resume import epsilon_of_ledger, read_run, resume_run
from ..folder.run import train_run
from ..run_file.run_file import RunFile
from ..stop import tell
from .results import LOCKS, POINTS, PointResult, read_result, write_result
from .sweep_file import Point, config_of

# One run of a sweep, in a process of its own: trained, gone on with, attacked and audited.
#
# A process that is killed leaves a run folder, which the next one goes on with, and a lock that the
# system lets go: two processes never train one run, and the one that waited finds it finished.

_LOOK = 0.2  # seconds between two looks at a lock or a device


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A run, as it is handed to a process.

    Attributes:
        point: what it changes of them.
        devices: where it may compute, of which it takes the first that is free; () as its run file
            says.
        path: `sys.path` of who sends it, for code of the user.
    """

    out: Path
    base: Mapping[str, object]
    point: Point
    devices: Sequence[str] = ()
    path: Sequence[str] = ()


def run_point(task: Task) -> PointResult:
    """Train a run to its end, and keep how it ended.

    Returns:
        How it ended; a failure is a result, too.

    Raises:
        OSError: how it ended could not be written; it is run again then.
    """
    sys.path.extend(entry for entry in task.path if entry not in sys.path)
    _take_one_thread()
    with _alone(), _locked(_lock_of(task.out, task.point.name)):
        point_result = read_result(task.out, task.point.name)
        if (
            point_result is not None
            and point_result.state == "done"
            and point_result.has(task.point)
        ):
            return point_result
        began, before = time.monotonic(), 0.0 if point_result is None else point_result.seconds
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
        return PointResult.failed(point, words, run_file=digest)


def _done(task: Task, config: RunFile, digest: str) -> PointResult:
    point, folder = task.point, task.out / POINTS / task.point.name
    summary = _trained(config, folder)
    # What an attack or an audit contradicts is kept beside the figures, and ends nothing.
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


def _take_one_thread() -> None:
    import torch

    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


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


Backend = Literal["loky", "dask", "ray"]
_LOST = {"TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "RayActorError"}
_PACKAGES = {"dask": "distributed", "ray": "ray"}
_LOOPBACK = "127.0.0.1"
Done = Callable[[PointResult], None]


class Engine:
    """Where the runs of a sweep are computed.

    Args:
        jobs: processes at once; by default one for each device, or each core.
        backend: "loky" on this machine, "dask" or "ray" on a cluster of theirs.
        address: of the scheduler; one on this machine is started where none is given.
        devices: that the runs share, one process on each; () as the run file says.

    Raises:
        ValueError: the backend is not installed, or an address has no use.
    """

    def __init__(
        self,
        *,
        jobs: int | None = None,
        backend: Backend = "loky",
        address: str | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self.devices, jobs = tuple(devices), jobs or len(devices) or cpu_count()
        within("jobs", jobs, "[1, inf)")
        if backend == "loky" and address is not None:
            raise InputError(
                f"address={address!r} has no effect with backend='loky', which runs on this "
                "machine; give backend dask or ray, or leave the address out"
            )
        self._jobs, self._backend, self._address = jobs, backend, address

    def run(self, tasks: Sequence[Task], done: Done) -> Iterator[tuple[Task, str]]:
        """Run them all; those that cannot be run come back.

        Returns:
            An iterator over the tasks whose process died, again when it had a machine's whole
            memory, with a sentence.
        """
        left, doubtful = list(tasks), list[Task]()
        with self._ready() as options:
            while left:
                try:
                    self._some(left, done, options, jobs=self._jobs)
                    left = []
                except Exception as error:
                    if not _is_loss(error):
                        raise
                    rest = [one for one in left if not _is_done(one)]
                    doubtful += [one for one in rest if started(one.out, one.point.name)]
                    if len(rest) == len(left) and not doubtful:
                        raise
                    left = [one for one in rest if one not in doubtful]
            # One of them ended its process, or was killed with it: each alone, which one tells.
            for one in doubtful:
                try:
                    self._some([one], done, options, jobs=1, apart=True)
                except Exception as error:
                    if not _is_loss(error):
                        raise
                    yield one, _DIED

    def _some(
        self,
        tasks: Sequence[Task],
        done: Done,
        options: dict[str, object],
        *,
        jobs: int,
        apart: bool = False,
    ) -> None:
        from joblib import Parallel, delayed

        if self._backend == "loky" and jobs == 1 and not apart:
            for task in tasks:
                done(run_point(task))
            return
        # A process of loky counts as one of a pool of two at the least: of one, joblib has none.
        count = max(jobs, 2) if self._backend == "loky" else jobs
        way = "list" if self._backend == "ray" else "generator_unordered"
        found = Parallel(
            n_jobs=count, batch_size=1, pre_dispatch="n_jobs", return_as=way, **options
        )(delayed(run_point)(task) for task in tasks)
        try:
            for result in found:
                done(result)
        finally:
            if hasattr(found, "close"):
                found.close()

    @contextlib.contextmanager
    def _ready(self) -> Iterator[dict[str, object]]:
        """The backend, started; what `Parallel` is to be told."""
        if self._backend == "loky":
            yield {"backend": "loky"}
            return
        try:
            with self._dask() if self._backend == "dask" else self._ray():
                yield {}
        except ImportError as error:
            raise needs(f"backend={self._backend!r}", _PACKAGES[self._backend]) from error

    @contextlib.contextmanager
    def _dask(self) -> Iterator[None]:
        from distributed import Client, LocalCluster
        from joblib import parallel_config

        with contextlib.ExitStack() as stack:
            try:
                if self._address is None:
                    none: Any = None  # no page
                    local = LocalCluster(
                        n_workers=self._jobs,
                        threads_per_worker=1,
                        host=_LOOPBACK,
                        dashboard_address=none,
                    )
                    client = stack.enter_context(Client(stack.enter_context(local)))
                else:
                    client = stack.enter_context(Client(self._address, timeout=_PATIENCE))
            except OSError as error:
                raise InputError(
                    f"no dask scheduler answers at address={self._address!r} within {_PATIENCE} s "
                    f"({error}); start one with `dask scheduler`, or leave the address out"
                ) from error
            with parallel_config("dask", client=client):
                yield

    @contextlib.contextmanager
    def _ray(self) -> Iterator[None]:
        if self._address is None:
            _shut_off_ray()
        import ray  # pyright: ignore[reportMissingImports] # an extra
        from joblib import parallel_config
        from ray.util.joblib import register_ray  # pyright: ignore[reportMissingImports]

        register_ray()
        ours = not ray.is_initialized()
        # Ray opens the folder in which its processes find each other's sockets to everybody.
        short = "/tmp" if sys.platform == "darwin" else None  # noqa: S108 - names of sockets are
        with tempfile.TemporaryDirectory(dir=short, ignore_cleanup_errors=True) as private:
            if ours:
                self._begin_ray(ray, f"{private}/ray")
            try:
                if ours and self._address is None:
                    _check_shut_off(ray.util.get_node_ip_address())
                with parallel_config("ray"):
                    yield
            finally:
                if ours:
                    ray.shutdown()

    def _begin_ray(self, ray: Any, private: str) -> None:
        """Start ray on this machine alone, in a folder, or reach the cluster that is named."""
        if tuple(map(int, ray.__version__.split(".")[:2])) < _RAY_WITH_TOKENS:
            raise InputError(
                f"ray is {ray.__version__}, which runs what anybody on its network sends; install "
                "ray>=2.52, which can ask for a token"
            )
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address is not None:
            _check_answers(self._address)
            ray.init(address=self._address, **quiet)
            return
        ray.init(
            address="local",  # neither of RAY_ADDRESS nor of what a file in /tmp names
            num_cpus=self._jobs,
            **quiet,
            include_dashboard=False,
            _node_ip_address=_LOOPBACK,
            _temp_dir=private,
        )


def _shut_off_ray() -> None:
    """Have ray, which is about to be imported, listen on loopback alone and ask for a token.

    On Linux `ray.init` takes loopback for the address that the network knows, unless clusters are
    switched off, and then all of it listens on every interface. By default it asks for no token, or
    keeps one where every user of the machine can read it. It reads these once in a process.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _check_shut_off(host: str) -> None:
    """Refuse a ray of this machine that others can reach: it was imported before by who calls."""
    if host != _LOOPBACK:
        raise InputError(
            f"ray listens at {host} and not on {_LOOPBACK} alone, since it was imported before the "
            "sweep began; run the sweep first in a process of its own, or name a cluster as address"
        )


_RAY_WITH_TOKENS = (2, 52)
_DIED = (
    "its process ended without a word, alone too: killed, or by a lack of memory; lower what makes "
    "the run large, then --retry"
)
_PATIENCE = 10


def _check_answers(address: str | None) -> None:
    """Refuse an address of ray at which nobody listens, for which ray itself waits minutes."""
    if address is None or address in ("auto", "local"):
        return
    where = urlsplit(address if "://" in address else f"ray://{address}")
    if not where.hostname:
        return
    try:
        port = where.port or 6379
        socket.create_connection((where.hostname, port), timeout=_PATIENCE).close()
    except (OSError, ValueError) as error:
        raise InputError(
            f"no ray cluster answers at address={address!r} within {_PATIENCE} s ({error}); start "
            "one with `ray start --head --port 6379`, or leave the address out"
        ) from error


def _is_loss(error: Exception) -> bool:
    """Whether a process is gone, in the words of any backend."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, BrokenProcessPool) or not _LOST.isdisjoint(kinds)


def _is_done(task: Task) -> bool:
    point_result = read_result(task.out, task.point.name)
    return point_result is not None and not started(task.out, task.point.name)
