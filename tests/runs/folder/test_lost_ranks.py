"""No run goes on without one of its ranks: one sentence, one exit code, and nobody is left."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch

from overhear.commands import cli
from overhear.privacy import read_ledger
from overhear.runs.folder import folder as run_folder
from overhear.runs.folder import run as running
from overhear.runs.folder.ranks import Group
from overhear.runs.folder.resume import resume_run
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.build import Built
from overhear.runs.run_file.run_file import load_run_file
from overhear.training.engine.tensor_file import load_checkpoint
from tests.runs.folder.rank_processes import Ended, started_by_hand, unchanged
from tests.runs.folder.test_ranks import FAST, RUN, command

LIMIT = 100  # seconds; a hang shall fail, not hold up the suite
LONG = ["training.rounds=60", "training.checkpoint_every=8", "training.evaluate_every=30"]
SETS = [f"--set={change}" for change in LONG]

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def whole(run_file):
    out = run_file.parent / "whole"
    train_run(load_run_file(run_file, LONG), out)
    return out


def children(pid: int) -> dict[int, int]:
    """The process of each rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            found |= {int(v[5:]): int(child) for v in variables if v.startswith(b"RANK=")}
    return found


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


IMPATIENT = """
import sys
from overhear.commands import cli
from overhear.runs.folder import launch
assert launch._STOPPED <= 10
launch._STOPPED = 2.0
sys.exit(cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def started(
    run_file: Path, out: Path, *more: str, impatient: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Ranks that have released some rounds; whatever is left of them is killed.

    An impatient parent gives up one that is stopped after 2 seconds in place of 10.
    """
    program = ["-c", IMPATIENT] if impatient else ["-m", "overhear.commands.cli"]
    process = subprocess.Popen(
        [sys.executable, *program, *command(run_file, out, *more)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=FAST,
    )  # fmt: skip
    ledger, until = out / "ledger.jsonl", time.monotonic() + LIMIT
    try:
        while not (ledger.exists() and ledger.read_bytes().count(b"\n") > 12):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


def kill(processes: dict[int, int], rank: int) -> None:
    os.kill(processes[rank], signal.SIGKILL)


def stop(processes: dict[int, int], rank: int) -> None:
    os.kill(processes[rank], signal.SIGSTOP)


def cut(processes: dict[int, int], rank: int) -> None:
    """Shut the connections between a rank and the other ranks, all of which live on."""
    ours, theirs = processes[rank], [pid for at, pid in processes.items() if at != rank]
    ends = {end for pid in theirs for _, end, _ in connections(pid)}
    pidfd = os.pidfd_open(ours)
    for number, _, peer in connections(ours):
        if peer in ends:
            held = ctypes.CDLL(None, use_errno=True).syscall(438, pidfd, number, 0)  # pidfd_getfd
            assert held >= 0, os.strerror(ctypes.get_errno())
            with socket.socket(fileno=held) as link:
                link.shutdown(socket.SHUT_RDWR)


def connections(pid: int) -> list[tuple[int, str, str]]:
    """File descriptor, own and other end of each TCP connection of a process."""
    inodes = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink())):
                inodes[found[1]] = int(path.name)
    rows = [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return [(inodes[row[9]], row[1], row[2]) for row in rows if row[9] in inodes]


FIRST, SECOND, THIRD = (
    r"rank 0 of 2 \(agents 0\.\.1\)",
    r"rank 1 of 2 \(agents 2\.\.4\)",
    r"rank 2 of 4 \(agent 2\)",
)
LOSSES = [
    pytest.param(2, 1, kill, SECOND, id="1-killed"),
    pytest.param(2, 0, kill, FIRST, id="0-killed", marks=pytest.mark.slow),
    pytest.param(2, 0, stop, FIRST, id="0-hangs", marks=pytest.mark.slow),
    pytest.param(2, 1, stop, SECOND, id="1-hangs", marks=pytest.mark.slow),
    pytest.param(4, 2, stop, THIRD, id="2-of-4-hangs", marks=pytest.mark.slow),
    pytest.param(4, 2, kill, THIRD, id="2-of-4-killed", marks=pytest.mark.slow),
    pytest.param(2, 1, cut, f"({FIRST}|{SECOND})", id="cut-off", marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.distributed
@needs_proc
@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("size", "rank", "lose", "named"), LOSSES)
def test_a_run_that_lost_a_rank_says_which_and_goes_on_to_the_same_models(
    run_file, whole, tmp_path, size, rank, lose, named
):
    out = tmp_path / "out"
    with started(run_file, out, "--ranks", str(size), "--rank-timeout", "3", *SETS) as process:
        ranks = children(process.pid)
        lose(ranks, rank)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2, said
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, said
        assert re.match(f"error: {named}", errors[0])
        assert "--resume continues the run" in errors[0]
        assert not [pid for pid in ranks.values() if is_running(pid)]
    assert 12 <= len(read_ledger(out / "ledger.jsonl").numbers) < 61
    resume_run(load_run_file(run_file, LONG), out)
    ends = [load_checkpoint(f / "checkpoints/round-000060.safetensors").state for f in (out, whole)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert (out / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.distributed
@pytest.mark.slow
@needs_proc
@pytest.mark.some_cases(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_long_before_the_ranks_miss_it(run_file, tmp_path, rank):
    with started(run_file, tmp_path / "out", "--ranks", "2", *SETS, impatient=True) as process:
        ranks = children(process.pid)
        stop(ranks, rank)
        _, said = process.communicate(timeout=45)  # they miss it after 60
        assert process.returncode == 2, said
        (error,) = [line for line in said.splitlines() if line.startswith("error:")]
        assert error.startswith(f"error: rank {rank} of 2 is stopped")
        assert "--resume continues the run" in error
        assert not [pid for pid in ranks.values() if is_running(pid)]


@pytest.mark.distributed
@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_outlives_its_parent(run_file, tmp_path, sent):
    """Neither one that goes on nor one that hangs."""
    with started(run_file, tmp_path / "out", "--ranks", "2", *SETS, impatient=True) as process:
        ranks = children(process.pid)
        stop(ranks, 1)
        process.send_signal(sent)
        process.communicate(timeout=60)
        until = time.monotonic() + 10
        while any(map(is_running, ranks.values())) and time.monotonic() < until:
            time.sleep(0.05)
        assert not [pid for pid in ranks.values() if is_running(pid)]


def by_hand(run_file: Path, folder: Path, *more: list[str], **how) -> Ended:
    given = command(run_file, folder / "out", "--rank-timeout", "20")
    return started_by_hand([given + own for own in more], folder, **how)


def refuse() -> None:
    def refused(*_, **__):
        raise FileNotFoundError("no data on this machine")

    running.plan_session = refused


def crash() -> None:
    def crashed(*_, **__):
        raise RuntimeError("a slip")

    Built.measured = crashed


def fill_the_disk() -> None:
    def full(*_, **__):
        raise OSError(28, "No space left on device", "checkpoint")

    running.save_checkpoint = full


FAILURES = [  # what a rank does, which one, of how many, and whether an agent keeps the store
    pytest.param(
        *(change, rank, size, agent),
        id=f"{change.__name__}-{rank}-of-{size}-{'torchrun' if agent else 'store-of-0'}",
        marks=[] if (change, rank, size, agent) == (refuse, 1, 2, True) else [pytest.mark.slow],
    )
    for change, rank, size, agent in [
        *product((refuse, crash), (0, 1), (2,), (True, False)),
        *((refuse, 1, 3, True), (crash, 0, 3, False)),
    ]
]
ENDS_WITH = {refuse: (2, "error: no data on this machine"), crash: (1, "RuntimeError: a slip")}


@pytest.mark.distributed
@pytest.mark.parametrize(("change", "rank", "size", "agent"), FAILURES)
def test_a_rank_that_fails_says_so_once_and_all_have_its_exit_code(
    run_file, tmp_path, change, rank, size, agent
):
    code, words = ENDS_WITH[change]
    changes = [change if at == rank else unchanged for at in range(size)]
    ended = by_hand(run_file, tmp_path, *[[]] * size, changes=changes, agent=agent)
    assert ended.codes == [code] * size, ended.said
    assert sum(said.count(words) for said in ended.said) == 1
    assert not "".join(said for at, said in enumerate(ended.said) if at not in (0, rank))


@pytest.mark.distributed
@pytest.mark.slow
def test_a_disk_that_is_full_ends_all_ranks(run_file, tmp_path):
    changes = [fill_the_disk, unchanged]
    ended = by_hand(run_file, tmp_path, [], [], changes=changes)
    assert ended.codes == [2, 2]
    assert len(ended.errors) == 1
    assert "continue the run with --resume" in ended.errors[0] or "No space" in ended.errors[0]


@pytest.mark.distributed
def test_a_bad_run_file_is_refused_once(run_file, tmp_path):
    ended = by_hand(run_file, tmp_path, *[["--set=training.rounds=-1"]] * 2)
    assert ended.codes == [2, 2]
    assert len(ended.errors) == 1, ended.said


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_of_another_run_file_is_refused_before_anything_is_written(run_file, tmp_path):
    ended = by_hand(run_file, tmp_path, [], ["--set=training.evaluation_noise_seed=4"])
    assert ended.codes == [2, 2]
    assert len(ended.errors) == 1, ended.said
    assert "rank 1 of 2 (agents 2..4) has another run file than rank 0" in ended.errors[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.distributed
def test_a_rank_without_agents_is_refused_once(run_file, tmp_path):
    ended = by_hand(run_file, tmp_path, *[[]] * 6)
    assert ended.codes == [2] * 6
    assert len(ended.errors) == 1, ended.said
    assert "start fewer ranks" in ended.errors[0]


@pytest.mark.distributed
def test_what_rank_0_finds_in_the_folder_ends_all_ranks(run_file, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/held").touch()
    ended = by_hand(run_file, tmp_path, [], [])
    assert ended.codes == [2, 2]
    assert len(ended.errors) == 1, ended.said
    assert "a run is never overwritten" in ended.errors[0]


@pytest.mark.distributed
def test_a_finished_run_is_left_as_it_is_by_all_ranks(run_file, tmp_path):
    train_run(load_run_file(run_file), tmp_path / "out")
    ended = by_hand(run_file, tmp_path, ["--resume"], ["--resume"])
    assert ended.codes == [0, 0]
    assert "is finished; nothing was changed" in ended.said[0]
    assert ended.said[1] == ""


def end_at_the_end() -> None:
    def lost(group: Group) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Group.finish = lost


def close_slowly() -> None:
    from overhear.runs.folder import run

    close = run.write_sums

    def slowly(out: Path) -> None:
        time.sleep(2)
        close(out)

    run.write_sums = slowly


@pytest.mark.slow
@pytest.mark.distributed
def test_a_rank_that_is_lost_after_the_last_round_leaves_a_finished_run(run_file, tmp_path):
    changes = [close_slowly, end_at_the_end, unchanged]  # rank 2 misses rank 1 before the end
    ended = by_hand(run_file, tmp_path, [], [], [], changes=changes)
    assert ended.codes == [0, -signal.SIGKILL, 0], ended.said
    assert "The run is in" in ended.said[0]
    assert not ended.errors
    assert ended.said[2] == ""
    assert run_folder.is_finished(tmp_path / "out")


@pytest.mark.distributed
@pytest.mark.slow
def test_rank_0_may_be_lost_once_it_has_closed_the_folder(run_file, tmp_path):
    ended = by_hand(run_file, tmp_path, [], [], changes=[end_at_the_end, unchanged])
    assert ended.codes == [-signal.SIGKILL, 0], ended.said
    assert not ended.errors
    assert run_folder.is_finished(tmp_path / "out")


def plan_slowly() -> None:
    plan = running.plan_session

    def slowly(*given, **how):
        time.sleep(3)
        return plan(*given, **how)

    running.plan_session = slowly


def evaluate_slowly() -> None:
    measured = Built.measured

    def slowly(*given, **how):
        time.sleep(1.5)
        return measured(*given, **how)

    Built.measured = slowly


def plan_and_evaluate_slowly() -> None:
    plan_slowly()
    evaluate_slowly()


def write_slowly() -> None:
    write = running.save_checkpoint

    def slowly(*given, **how):
        time.sleep(4)
        write(*given, **how)

    running.save_checkpoint = slowly


@pytest.mark.distributed
@pytest.mark.slow
def test_rank_0_may_plan_and_all_may_evaluate_longer_than_the_limit(run_file, tmp_path):
    given = command(
        run_file, tmp_path / "out", "--rank-timeout=1", "--set=training.evaluate_every=8"
    )
    changes = [plan_and_evaluate_slowly, evaluate_slowly]
    ended = started_by_hand([given, given], tmp_path, changes=changes)
    assert ended.codes == [0, 0], ended.said


@pytest.mark.distributed
@pytest.mark.slow
def test_rank_0_is_named_with_the_option_where_it_writes_longer_than_the_limit(run_file, tmp_path):
    given = command(run_file, tmp_path / "out", "--rank-timeout=1")
    ended = started_by_hand([given, given], tmp_path, changes=[write_slowly, unchanged])
    assert ended.codes == [2, 2]
    assert len(ended.errors) == 1, ended.said
    assert re.search(rf"error: {FIRST} did not answer within 1 s", ended.errors[0])
    assert "--rank-timeout gives a rank that is only slow longer" in ended.errors[0]


@pytest.mark.distributed
@pytest.mark.slow
def test_what_rank_0_refuses_ends_the_ranks_of_one_command(run_file, tmp_path, capfd):
    (tmp_path / "held").touch()
    begun = time.monotonic()
    assert cli.main(command(run_file, tmp_path, "--ranks", "2")) == 2
    assert capfd.readouterr().err.count("error:") == 1
    assert time.monotonic() - begun < 40  # not by the time limit
