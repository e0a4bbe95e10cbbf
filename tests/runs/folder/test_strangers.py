"""Who is no rank cannot end a run as if it were finished, nor hear what ranks send each other."""

import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.names import SECRET, STORE_FILE
from tests.runs.folder.rank_processes import started_by_hand, unchanged
from tests.runs.folder.test_lost_ranks import children, needs_proc
from tests.runs.folder.test_ranks import FAST, RUN, command  # noqa: F401 - RUN: see `run_file`

pytestmark = [pytest.mark.distributed, pytest.mark.slow, needs_proc]
_LISTENS = "0A"
_FIRST_NUMBERS = 8  # with which a rank says at gloo's port for which connection it comes


@contextlib.contextmanager
def training(run_file: Path, out: Path, *more: str):
    process = subprocess.Popen(
        [sys.executable, "-m", "overhear.commands.cli", *command(run_file, out, *more)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=FAST,
    )  # fmt: skip
    try:
        until = time.monotonic() + 20
        while len(ranks := children(process.pid)) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        yield process, ranks
    finally:
        process.kill()
        process.communicate()


def ports_of(pids: list[int]) -> dict[str, tuple[str, int]]:
    """The sockets at which these processes listen, by inode."""
    own, found = set[str](), {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    own.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        row = line.split()
        if row[3] == _LISTENS and row[9] in own:
            host, _, port = row[1].partition(":")
            found[row[9]] = socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)
    return found


def take_the_place_of_a_rank() -> None:
    """Let a stranger come to each port of this process before any rank does."""
    from torch import distributed

    begin = distributed.init_process_group

    def attacked(*given, **how):
        threading.Thread(target=_come_first, daemon=True).start()
        begin(*given, **how)

    distributed.init_process_group = attacked


def _come_first() -> None:
    held, seen = list[socket.socket](), set[str]()
    with Path(os.environ["HEARD"]).open("ab", buffering=0) as heard:
        while True:
            for inode, at in ports_of([os.getpid()]).items():
                if inode not in seen:
                    seen.add(inode)
                    for number in range(_FIRST_NUMBERS):
                        held.append(socket.create_connection(at))
                        held[-1].sendall(struct.pack("<q", number) + bytes(4096))
                        held[-1].setblocking(False)
            for link in held:
                with contextlib.suppress(OSError):
                    heard.write(link.recv(1 << 16))
            time.sleep(0.001)


def come_late() -> None:
    from torch import distributed

    begin = distributed.init_process_group

    def late(*given, **how):
        time.sleep(1.5)
        begin(*given, **how)

    distributed.init_process_group = late


def test_who_takes_the_place_of_a_rank_hears_no_row_and_is_found(run_file, tmp_path):
    heard = tmp_path / "heard"
    ended = started_by_hand(
        [command(run_file, tmp_path / "out", "--rank-timeout", "3")] * 2,
        tmp_path,
        changes=[take_the_place_of_a_rank, come_late],
        variables={SECRET: "a" * 32, "HEARD": str(heard), "GLOO_SOCKET_IFNAME": "lo"},
    )
    # By the numbers of their ports gloo chooses which of two ranks waits to be connected, so the
    # stranger finds somebody who waits in every second run.
    assert (ended.codes == [0, 0]) == is_finished(tmp_path / "out"), ended.said
    if ended.codes != [0, 0]:
        assert 0 not in ended.codes, ended.said
        assert "taken its place" in ended.errors[0]
        assert not (tmp_path / "out").exists()
    assert heard.stat().st_size < 1024  # a number that is used once, in gloo's frames


def guess_on_the_connection() -> None:
    from overhear.runs.folder import rendezvous as meeting

    check = meeting.check_peers
    meeting.check_peers = lambda ranks: check(replace(ranks, secret=b"b" * 32))


def test_who_is_connected_and_does_not_know_the_secret_ends_the_run(run_file, tmp_path):
    ended = started_by_hand(
        [command(run_file, tmp_path / "out")] * 2, tmp_path,
        changes=[unchanged, guess_on_the_connection], variables={SECRET: "a" * 32},
    )  # fmt: skip
    assert ended.codes == [2, 2], ended.said
    assert len(ended.errors) == 1, ended.said
    assert "does not know the secret of the ranks" in ended.errors[0]
    assert not (tmp_path / "out").exists()


def test_a_run_whose_ports_get_garbage_ends_with_an_error_or_as_it_should(run_file, tmp_path):
    held, seen = list[socket.socket](), set[str]()
    out, given = tmp_path / "out", ("--ranks", "2", "--rank-timeout", "3")
    with training(run_file, out, *given) as (run, ranks):
        while run.poll() is None:
            for inode, at in ports_of(list(ranks.values())).items():
                assert at[0].startswith("127."), at
                if inode not in seen:
                    seen.add(inode)
                    with contextlib.suppress(OSError):
                        held.append(socket.create_connection(at, timeout=1))
                        held[-1].sendall(os.urandom(4096))
            time.sleep(0.001)
        said = run.stderr.read()
    for link in held:
        link.close()
    assert seen
    assert (run.returncode == 0) == is_finished(out), said
    assert said.count("error:") == (run.returncode != 0), said


def test_the_store_of_one_machine_is_entered_by_its_user_alone(run_file, tmp_path):
    with training(run_file, tmp_path / "out", "--ranks", "2") as (run, ranks):
        told = dict(
            line.split(b"=", 1)
            for line in Path(f"/proc/{ranks[0]}/environ").read_bytes().split(b"\0")
            if b"=" in line
        )
        folder = Path(os.fsdecode(told[STORE_FILE.encode()])).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert told[SECRET.encode()] not in Path(f"/proc/{ranks[0]}/cmdline").read_bytes()
        assert stat.S_IMODE(Path(f"/proc/{ranks[0]}/environ").stat().st_mode) == 0o400
        run.send_signal(signal.SIGTERM)
        run.wait(timeout=60)
    assert not folder.exists()


def guess_secret() -> None:
    os.environ[SECRET] = "b" * 32


def lie() -> None:
    """What the attack did: rank 0 is to end with exit code 0, as if it had failed with it."""
    store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, is_master=False)
    for key, value in (("first", "[1, 0]"), ("said", "0"), ("closed", "")):
        store.set(f"overhear/{key}", value)


@pytest.mark.parametrize("changes", [[unchanged, guess_secret], [lie, unchanged]])
def test_what_no_rank_has_signed_ends_all_before_they_connect(run_file, tmp_path, changes):
    """Another secret, and a stranger at the store, by whom none ends as if it had finished."""
    ended = started_by_hand(
        [command(run_file, tmp_path / "out")] * 2, tmp_path, changes=changes,
        variables={SECRET: "a" * 32},
    )  # fmt: skip
    assert 0 not in ended.codes, ended.said
    assert "what no rank of this run has written" in "".join(ended.errors)
    assert "Traceback" not in "".join(ended.said)
    assert not (tmp_path / "out").exists()
