"""Ranks as torchrun starts them: processes that know their place from the environment.

They are forked from one server that has loaded what they need, so a case costs little.
"""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch.distributed import TCPStore

PRELOADED = [
    *("opacus", "sklearn.datasets", "scipy.stats", "torch.distributed"),
    *("overhear.commands.cli", "overhear.commands.train", "overhear.runs.folder.resume"),
    *(f"overhear.commands.terminal.{name}" for name in ("progress", "tables")),
]
LIMIT = 60  # seconds; a hang shall fail, not hold up the suite

Change = Callable[[], None]  # made in a rank before it starts


class Ended(NamedTuple):
    codes: list[int | None]  # exit code of each rank; None of one that had to be killed
    said: list[str]  # standard error of each

    @property
    def errors(self) -> list[str]:
        return [line for said in self.said for line in said.splitlines() if "error:" in line]


def unchanged() -> None:
    pass


def _be_rank(told: dict[str, str], arguments: list[str], change: Change, said: str) -> None:
    os.environ.update(told)
    opened = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(opened, 1)
    os.dup2(opened, 2)
    code = 99
    try:
        from overhear.commands import cli

        change()
        code = cli.main(arguments)
    except BaseException:  # noqa: BLE001 - a rank must end here, whatever it met
        traceback.print_exc()
    finally:
        os._exit(code)


def started_by_hand(
    arguments: Sequence[Sequence[str]],
    folder: Path,
    *,
    changes: Sequence[Change] | None = None,
    agent: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command as ranks; each has its own arguments and its own change.

    Args:
        arguments: of each rank.
        folder: for what they print.
        changes: of each rank.
        agent: whether who starts them keeps the store, as torchrun does; otherwise rank 0 does.
        variables: of the environment of every rank, beside or in place of the usual ones.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    told = {
        "WORLD_SIZE": str(len(arguments)), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "TORCH_CPP_LOG_LEVEL": "FATAL", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    if agent:
        told |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    else:
        del store  # its port is free again
    told |= variables or {}
    made = changes or [unchanged] * len(arguments)
    paths = [folder / f"said-{rank}.txt" for rank in range(len(arguments))]
    processes = [
        server.Process(
            target=_be_rank,
            args=(told | {"RANK": str(rank)}, list(given), made[rank], str(paths[rank])),
        )
        for rank, given in enumerate(arguments)
    ]
    try:
        for process in processes:
            process.start()
        until = time.monotonic() + LIMIT
        for process in processes:
            process.join(max(until - time.monotonic(), 0.1))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()
    return Ended(codes, [path.read_text() for path in paths])
