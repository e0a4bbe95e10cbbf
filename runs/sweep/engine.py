"""Runs spread over processes by joblib; a process that dies costs what it was at."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from ...privacy._validate import within
from ...privacy.errors import InputError
from ...privacy.missing import needs
from .one_run import Task, run_point, started
from .results import PointResult, read_result

__all__ = ["BACKENDS", "Backend", "Engine", "default_jobs"]

Backend = Literal["loky", "dask", "ray"]
BACKENDS: tuple[str, ...] = get_args(Backend)
_LOST = {"TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "RayActorError"}
_PACKAGES = {"dask": "distributed", "ray": "ray"}
_LOOPBACK = "127.0.0.1"
Done = Callable[[PointResult], None]


def default_jobs(devices: Sequence[str]) -> int:
    """One process for each device, or for each core that this process may use."""
    if devices:
        return len(devices)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Engine:
    """Where the runs of a sweep are computed.

    Args:
        jobs: processes at once.
        backend: "loky" on this machine, "dask" or "ray" on a cluster of theirs.
        address: of the scheduler; one on this machine is started where none is given.

    Raises:
        ValueError: the backend is not installed, or an address has no use.
    """

    def __init__(self, *, jobs: int, backend: Backend, address: str | None) -> None:
        within("jobs", jobs, "[1, inf)")
        if backend == "loky" and address is not None:
            raise InputError(
                f"address={address!r} has no effect with backend='loky', which runs on this "
                "machine; give backend dask or ray, or leave the address out"
            )
        self._jobs, self._backend, self._address = jobs, backend, address

    def run(self, tasks: Sequence[Task], done: Done) -> Iterator[tuple[Task, str]]:
        """Run them all; those that cannot be run come back.

        Args:
            tasks: what is run; each keeps how it ended.
            done: called with each result, as it comes.

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
            for one in tasks:
                done(run_point(one))
            return
        # A process of loky counts as one of a pool of two at the least: of one, joblib has none.
        count = max(jobs, 2) if self._backend == "loky" else jobs
        way = "list" if self._backend == "ray" else "generator_unordered"
        found = Parallel(
            n_jobs=count, batch_size=1, pre_dispatch="n_jobs", return_as=way, **options
        )(delayed(run_point)(one) for one in tasks)
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
            raise InputError(
                needs(f"backend={self._backend!r}", _PACKAGES[self._backend])
            ) from error

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
        if self._address is not None:
            _check_answers(self._address)
            ray.init(address=self._address, log_to_driver=False)
            return
        ray.init(
            address="local",  # neither of RAY_ADDRESS nor of what a file in /tmp names
            num_cpus=self._jobs,
            log_to_driver=False,
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
    kept = read_result(task.out, task.point.name)
    return kept is not None and not started(task.out, task.point.name)
