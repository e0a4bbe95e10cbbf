"""A command of ours in processes of its own, which get signals; a witness of what it releases.

The witness writes down outside of the run's folder which round is released, with a digest of its
states.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch.distributed import TCPStore

from overhear.commands import cli
from overhear.training.engine.engine import Engine


class Ended(NamedTuple):
    """How the processes of a command ended."""

    codes: list[int]
    said: str
    seconds: float


def witnessed(path: Path) -> None:
    """Write down what the engine of this process releases, from here on."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def seen(engine: Engine, rank: int) -> None:
        state = engine.state.x.rows.detach().numpy().tobytes()
        line = f"{rank} {engine.round} {hashlib.sha256(state).hexdigest()}\n"
        os.write(opened, line.encode())

    advance, start = Engine.advance, Engine.start

    def advanced(self: Engine, **how: object) -> None:
        os.write(opened, b"%d %d begun\n" % (self._mine[0], self.round + 1))
        advance(self, **how)  # type: ignore[arg-type]
        seen(self, self._mine[0])

    def started(self: Engine, **how: object) -> None:
        os.write(opened, b"%d 0 begun\n" % self._mine[0])
        start(self, **how)  # type: ignore[arg-type]
        seen(self, self._mine[0])

    Engine.advance, Engine.start = advanced, started  # type: ignore[method-assign]


def python_with_witness(place: Path) -> str:
    """A program in place of Python, for the ranks that a command starts: they have a witness too.

    It listens to signals as early as our command line does.
    """
    program = place / "python"
    lines = [
        f"#!{sys.executable}",
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]}",
        "from pathlib import Path",
        "from overhear.commands import cli",
        "def run(arguments, run=cli._run):",
        "    from disturbed import witnessed",
        f"    witnessed(Path({str(place / 'seen')!r}))",
        "    return run(arguments)",
        "cli._run = run",
        "sys.exit(cli.main(sys.argv[3:]))  # after -m overhear.commands",
    ]
    program.write_text("\n".join(lines), encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def child(arguments: Sequence[str], seen: Path, said: Path, told: dict[str, str]) -> int:
    """A command in a process of its own, forked from this one, which has loaded all; its number."""
    started = os.fork()
    if started:
        return started
    code = 99
    try:
        os.environ.update(told)
        opened = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(opened, 2)
        witnessed(seen)
        if "--ranks" in arguments:
            sys.executable = python_with_witness(seen.parent)
        code = cli.main(list(arguments))
    finally:
        os._exit(code)
    raise AssertionError


def run(
    arguments: Sequence[str],
    place: Path,
    *,
    ranks: int = 1,
    sent: Sequence[tuple[float, int, Sequence[int]]] = (),
) -> Ended:
    """Run a command to its end.

    Args:
        arguments: of the command.
        place: for what the witness and the command say.
        ranks: processes.
        sent: after how many seconds which signal goes to which of the ranks, or to -1, -2, those
            that the command has started.
    """
    seen, said = place / "seen", place / "said"
    said.unlink(missing_ok=True)
    told: dict[str, str] = {}
    if ranks > 1:
        store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        told = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCH_CPP_LOG_LEVEL": "FATAL",
        }
    begun = time.perf_counter()
    processes = [
        child(arguments, seen, said, told | ({"RANK": str(rank)} if told else {}))
        for rank in range(ranks)
    ]
    left = dict(enumerate(processes))
    codes = [99] * ranks
    waiting = sorted(sent)
    while left:
        now = time.perf_counter() - begun
        while waiting and waiting[0][0] <= now:
            _, number, to = waiting.pop(0)
            for rank in to:
                if rank in left:
                    os.kill(left[rank], number)
                elif rank < 0 and 0 in left and len(own := children_of(left[0])) >= -rank:
                    os.kill(own[rank], number)
        for rank, process in list(left.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                del left[rank]
        if now > 3000:
            for process in left.values():
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)
    return Ended(codes, said.read_text() if said.exists() else "", time.perf_counter() - begun)


def children_of(process: int) -> list[int]:
    """The processes that one has started; of Linux."""
    told = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
    return [int(number) for number in told.split()]
