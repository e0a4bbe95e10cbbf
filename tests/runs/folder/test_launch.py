"""Who started the ranks says what became of them, once, and only where no rank does."""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from overhear.runs.folder import launch
from overhear.runs.folder.names import CAME, CLOSED, SAID, SECRET, STORE_FILE
from overhear.runs.folder.rendezvous import RankStore
from overhear.runs.stop import SIGNALS, Stop
from tests.runs.folder.test_ranks import FAST, RUN

NOTHING = "stopped; nothing was released; give the command again\n"


def meeting(*told: str, met: bool = False, first: tuple[int, int] | None = None) -> RankStore:
    """The store of up to three ranks, which have told this."""
    store = RankStore(HashStore(), b"secret")
    for key in (*told, *(f"{CAME}/{rank}" for rank in range(3 * met))):
        store.set(key)
    if first is not None:
        store.claim(*first)
    return store


@pytest.fixture
def ranks():
    found = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield found
    for process in found:
        process.kill()
        process.wait()


def watch(ranks, store: RankStore, *, stop: Stop | None = None) -> int:
    told = {"stop": stop or Stop(), "twice": threading.Event(), "patience": 0.2, "out": Path("out")}
    return launch._watch(ranks, store=store, **told)


def ends_with(code: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("closed", [True, False])
def test_a_finished_run_is_told_from_one_to_resume(ranks, ends, closed, monkeypatch, capsys):
    monkeypatch.setattr(launch, "_STOPPED", 0.2)
    monkeypatch.setattr(launch, "_is_finished", lambda out: True)  # maybe of a run before
    ranks[0].send_signal(ends)
    code = watch(ranks, meeting(*[CLOSED] * closed, met=True))
    said = capsys.readouterr().err
    assert code == (0 if closed else 2)
    assert ("the run is finished" in said) == closed
    assert ("--resume continues the run" in said) == (not closed)


@pytest.mark.parametrize("number", SIGNALS)
def test_asked_before_the_ranks_have_met_it_ends_them_and_says_so(ranks, number, capsys):
    stop = Stop()
    stop.signal = number
    assert watch(ranks, meeting(), stop=stop) == 128 + number
    assert capsys.readouterr().err == NOTHING
    assert [rank.poll() for rank in ranks] == [-signal.SIGKILL] * 2


@pytest.mark.parametrize("hears", [True, False])
def test_a_rank_that_is_stopped_before_it_has_met_the_others_ends_all(ranks, hears, capsys):
    if hears:
        ranks.append(ends_with(143))
    else:
        ranks[1].terminate()
    begun = time.monotonic()
    assert watch(ranks, meeting()) == 143
    assert time.monotonic() - begun < 5
    assert capsys.readouterr().err == NOTHING
    assert None not in [rank.poll() for rank in ranks]


def test_all_that_are_stopped_while_they_load_are_told_of_once(capsys):
    stop = Stop()
    stop.signal = signal.SIGINT
    loading = [ends_with(130), ends_with(130)]
    for rank in loading:
        rank.wait()
    assert watch(loading, meeting(), stop=stop) == 130
    assert capsys.readouterr().err == NOTHING


@pytest.mark.parametrize("code", [143, 2])
def test_what_a_rank_has_said_is_not_said_again(ranks, code, capsys):
    stop = Stop()
    stop.signal = signal.SIGTERM
    assert watch(ranks, meeting(SAID, first=(1, code)), stop=stop) == code
    assert capsys.readouterr().err == ""


def test_a_rank_that_was_to_say_why_and_does_not_is_not_waited_for_long(ranks, monkeypatch, capsys):
    monkeypatch.setattr(launch, "_GRACE", 0.2)
    stop = Stop()
    stop.signal = signal.SIGTERM
    assert watch(ranks, meeting(first=(1, 143)), stop=stop) == 143
    assert capsys.readouterr().err == NOTHING


def test_a_rank_that_is_killed_before_it_has_met_the_others_is_an_error(ranks, capsys):
    ranks[1].kill()
    assert watch(ranks, meeting()) == 2
    assert "error: rank 1 of 2 was ended by signal 9" in capsys.readouterr().err


@pytest.mark.parametrize("finished", [True, False])
def test_the_exit_code_is_0_only_where_the_folder_is_finished(monkeypatch, capsys, finished):
    monkeypatch.setattr(launch, "_is_finished", lambda out: finished)
    ended = [ends_with(0), ends_with(0)]
    assert watch(ended, meeting(CLOSED, met=True)) == (0 if finished else 2)
    assert ("ended before the run in out was finished" in capsys.readouterr().err) != finished


def test_a_rank_that_is_lost_is_not_taken_for_a_finished_run_by_what_the_store_says(ranks, capsys):
    ranks[0].kill()
    assert watch(ranks, meeting(CLOSED, met=True)) == 2
    assert "rank 0 of 2 was ended by signal 9" in capsys.readouterr().err


def test_ranks_have_met_once_all_have_come():
    store = meeting(f"{CAME}/0")
    assert not launch._has_met(store, 2)
    store.set(f"{CAME}/1")
    assert launch._has_met(store, 2)


def test_who_was_first_to_end_the_ranks_gives_the_exit_code():
    store = meeting()
    assert store.claim(-1, 143) == store.claim(1, 2) == (-1, 143)
    assert meeting(first=(1, 2)).claim(-1, 143) == (1, 2)


@pytest.mark.distributed
@pytest.mark.slow
def test_no_module_of_the_working_directory_takes_the_place_of_a_library_s(tmp_path):
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    for name in ("signal", "typer", "torch", "random", "heapq"):
        (tmp_path / f"{name}.py").write_text('open("ran", "w").close()\n', encoding="utf-8")
    train = ["train", "run.toml", "--out", "out", "--ranks", "2"]
    for module, given in (
        ("overhear", ["--version"]),
        ("overhear.commands.cli", ["--version"]),
        ("overhear.commands", train),
    ):
        command = [sys.executable, "-m", module, *given]
        done = subprocess.run(command, cwd=tmp_path, env=FAST, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists()


def test_the_secret_stands_in_no_command_line_and_the_ports_are_those_of_the_loopback(monkeypatch):
    began = list[dict]()

    def begin(given: list[str], *, env: dict[str, str], **_: object) -> None:
        began.append({"env": env, "given": given})
        raise FileNotFoundError

    monkeypatch.setattr(launch.subprocess, "Popen", begin)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    with pytest.raises(FileNotFoundError):
        launch.launch(["train"], out=Path("out"), ranks=2, timeout=1.0)
    env, given = began[0]["env"], began[0]["given"]
    assert len(env[SECRET]) == 64
    assert env[SECRET] not in " ".join(given)
    assert not Path(env[STORE_FILE]).parent.exists()
    assert env["GLOO_SOCKET_IFNAME"] in {"lo", "lo0"}
    assert env["NCCL_SOCKET_IFNAME"] == f"={env['GLOO_SOCKET_IFNAME']}"


def start(monkeypatch: pytest.MonkeyPatch, watch: object) -> None:
    """Launch no ranks, which are watched so."""
    monkeypatch.setattr(launch, "_start", lambda *_, **__: None)
    monkeypatch.setattr(launch, "_watch", watch)
    launch.launch(["train"], out=Path("out"), ranks=2, timeout=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reserves no room")
def test_the_store_has_its_room_or_the_ranks_are_not_started(monkeypatch, tmp_path):
    held = list[os.stat_result]()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def watch(*_: object, store: RankStore, **__: object) -> int:
        store.claim(-1, 143)
        held.extend(path.stat() for path in tmp_path.glob("overhear-*/store"))
        return 0

    start(monkeypatch, watch)
    assert [one.st_mode & 0o777 for one in held] == [0o600]
    assert 512 * held[0].st_blocks >= 2 * launch._ROOM > held[0].st_size

    def full(*_: object) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(fallocate=full))
    with pytest.raises(OSError, match="name another folder in TMPDIR") as refused:
        start(monkeypatch, lambda *_, **__: pytest.fail("ranks were started"))
    assert not Path(refused.value.filename).parent.exists()


@pytest.mark.slow  # the second that torch waits for the file
def test_who_clears_the_folder_of_the_store_is_told_of_in_a_sentence(monkeypatch, tmp_path):
    def watch(*_: object, store: RankStore, **__: object) -> int:
        shutil.rmtree(next(tmp_path.iterdir()))
        return store.has(CAME)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(launch, "_GRACE", 0.5)
    with pytest.raises(OSError, match=r"lost their store in .* that no one clears in TMPDIR"):
        start(monkeypatch, watch)


@pytest.mark.distributed
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("number", "seconds", "to"),
    [
        (signal.SIGINT, 0.0, "all"),
        pytest.param(signal.SIGTERM, 0.3, "all", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 1.0, "all", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, 2.0, "all", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 0.0, "rank 1", marks=pytest.mark.slow),
    ],
)
def test_a_signal_while_ranks_load_is_told_once(tmp_path, number, seconds, to):
    (tmp_path / "run.toml").write_text(RUN, encoding="utf-8")
    given = ["train", "run.toml", "--out", "out", "--ranks", "2", "--set=training.rounds=2000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "overhear.commands", *given], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=FAST,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        while len(own := children.read_text(encoding="ascii").split()) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        time.sleep(seconds)
        for rank in own if to == "all" else own[1:]:
            os.kill(int(rank), number)
        if to == "all":
            process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + number, said
    assert said.count("stopped") == 1, said
    assert "Traceback" not in said
    assert not any(Path(f"/proc/{rank}").exists() for rank in own)
