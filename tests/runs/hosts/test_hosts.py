"""Ranks on two hosts, which are two network namespaces of this machine, joined by a cable.

As on many machines, the name of each host is an address of its loopback there.
"""

import contextlib
import ctypes
import importlib.metadata
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from overhear.runs.folder import run as running
from overhear.runs.folder.folder import is_finished
from overhear.runs.folder.run import train_run
from overhear.runs.run_file.run_file import load_run_file
from tests.runs.folder.rank_processes import Change, Ended, started_by_hand, unchanged
from tests.runs.folder.test_ranks import RUN, command, final, same

NETWORK = 0x40000000  # CLONE_NEWNET
FIRST, SECOND = "10.77.0.1", "10.77.0.2"

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def hosts():
    """The names of two namespaces, which reach each other and nobody else."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts are two network namespaces, and there is no command `ip`")
    names = [f"overhear-{os.getpid()}-{number}" for number in range(2)]
    ends = [f"oh{os.getpid() % 10**6}-{number}" for number in range(2)]
    steps = [f"netns add {name}" for name in names]
    steps += [f"-n {names[0]} link add {ends[0]} type veth peer name {ends[1]} netns {names[1]}"]
    for name, end, address in zip(names, ends, (FIRST, SECOND), strict=True):
        steps += [f"-n {name} addr add {address}/24 dev {end}", f"-n {name} link set {end} up"]
        steps += [f"-n {name} link set lo up"]
    try:
        for step in steps:
            done = subprocess.run(
                ["ip", *step.split()], check=False, capture_output=True, text=True
            )
            if done.returncode:
                pytest.skip(f"this system allows no network namespaces: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def run_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "run.toml"
    path.write_text(RUN, encoding="utf-8")
    return path


def be_on(host: str, then: Change, variables: dict[str, str]) -> None:
    """Enter a namespace, with variables of its own, before a rank starts."""
    with Path(f"/run/netns/{host}").open() as namespace:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(namespace.fileno(), NETWORK) == 0, os.strerror(ctypes.get_errno())
    os.environ.update(variables)
    then()


def trained(
    run_file: Path,
    folder: Path,
    hosts: list[str],
    *,
    changes: tuple[Change, Change] = (unchanged, unchanged),
    variables: tuple[dict[str, str], dict[str, str]] = ({}, {}),
    second: Path | None = None,
) -> Ended:
    """One rank on each host, each with its own change, variables and run file."""
    files = [run_file, second or run_file]
    ended = started_by_hand(
        [command(path, folder / "out", "--rank-timeout=5") for path in files], folder,
        changes=[partial(be_on, *of) for of in zip(hosts, changes, variables, strict=True)],
        agent=False, variables={"MASTER_ADDR": FIRST, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
    )  # fmt: skip
    # The library, which was loaded before it was told to be quiet, misses a name of the address.
    lines = [[x for x in said.splitlines() if not x.startswith("[W")] for said in ended.said]
    return Ended(ended.codes, ["\n".join(of) for of in lines])


def test_two_hosts_train_the_run_of_one_process_with_no_variable_set(run_file, tmp_path, hosts):
    train_run(load_run_file(run_file), tmp_path / "alone")
    ended = trained(run_file, tmp_path, hosts)
    assert ended.codes == [0, 0], ended.said
    assert same(final(tmp_path / "out"), final(tmp_path / "alone"))
    assert ended.said[1] == ""


def age_torch() -> None:
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.4" if name == "torch" else version(name)


LOOPBACK, ABSENT = {"GLOO_SOCKET_IFNAME": "lo"}, {"GLOO_SOCKET_IFNAME": "absent0"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param(
            {"variables": (LOOPBACK, LOOPBACK)},
            "does not reach them by the interface lo within 30 s",
            id="an-interface-that-does-not-lead-there",
        ),
        pytest.param(
            {"variables": ({}, ABSENT)},
            f"rank 1 of 2 on HOST ({SECOND}): GLOO_SOCKET_IFNAME='absent0' in the environment",
            id="an-interface-that-is-not-there",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"second": Path("absent.toml")},
            f"rank 1 of 2 on HOST ({SECOND}): no run file at absent.toml",
            id="a-run-file-that-is-not-there",
        ),
        pytest.param(
            {"changes": (unchanged, age_torch)},
            f"rank 1 of 2 on HOST ({SECOND}): it has another version of torch than rank 0 (0.4",
            id="another-version",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_hosts_that_cannot_train_together_say_so_once_and_end_alike(
    run_file, tmp_path, hosts, how, words
):
    ended = trained(run_file, tmp_path, hosts, **how)
    assert ended.codes == [2, 2], ended.said
    assert len("".join(ended.said).splitlines()) == len(ended.errors) == 1, ended.said
    assert words.replace("HOST", os.uname().nodename) in ended.errors[0]
    assert not (tmp_path / "out").exists()


def before_round_5(then: Callable[[], None]) -> None:
    advance = running.Engine.advance

    def advanced(engine: running.Engine) -> None:
        if engine.round == 4:
            then()
        advance(engine)

    running.Engine.advance = advanced


def killed() -> None:
    before_round_5(lambda: os.kill(os.getpid(), signal.SIGKILL))


def unplugged() -> None:
    def unplug() -> None:
        for end in Path("/proc/self/net/dev").read_text().split():
            if end.startswith("oh"):
                subprocess.run(["ip", "link", "set", end.rstrip(":"), "down"], check=True)

    before_round_5(unplug)


@pytest.mark.slow
def test_a_rank_that_is_lost_is_named_with_its_host(run_file, tmp_path, hosts):
    ended = trained(run_file, tmp_path, hosts, changes=(unchanged, killed))
    assert ended.codes == [2, -signal.SIGKILL], ended.said
    (error,) = ended.errors
    assert f"rank 1 of 2 (agents 2..4 on {os.uname().nodename} ({SECOND})) did not answer" in error
    assert not is_finished(tmp_path / "out")


@pytest.mark.slow
def test_hosts_whose_cable_is_unplugged_both_end_in_time(run_file, tmp_path, hosts):
    begun = time.monotonic()
    ended = trained(run_file, tmp_path, hosts, changes=(unchanged, unplugged))
    with contextlib.suppress(StopIteration):
        subprocess.run(["ip", "-n", hosts[1], "link", "set", _cable(hosts[1]), "up"], check=True)
    assert ended.codes == [2, 2], ended.said
    assert 1 <= len(ended.errors) <= 2, ended.said  # neither hears what the other says
    assert "rank 1 of 2 (agents 2..4" in ended.errors[0]
    assert time.monotonic() - begun < 50


def _cable(host: str) -> str:
    done = subprocess.run(
        ["ip", "-n", host, "-o", "link"], check=True, capture_output=True, text=True
    )
    return next(word for word in done.stdout.split() if word.startswith("oh")).partition("@")[0]
