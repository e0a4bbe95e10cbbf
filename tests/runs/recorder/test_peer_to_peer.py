"""The example in processes of its own: it gossips over sockets, and its ledgers are checked."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from overhear.privacy.releases.lines import Played
from overhear.privacy.releases.log import read_log

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "peer_to_peer"


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.mark.slow  # three processes
@pytest.mark.distributed
def test_two_processes_are_recorded_joined_accounted_and_checked(tmp_path):
    ports = ",".join(map(str, free_ports(2)))
    agents = [
        subprocess.Popen([sys.executable, EXAMPLE / "agent.py", str(k), ports, tmp_path])
        for k in range(2)
    ]
    assert [one.wait(timeout=180) for one in agents] == [0, 0]
    assert len(read_log(tmp_path).rounds) == 8
    done = subprocess.run(
        [sys.executable, EXAMPLE / "check.py", tmp_path],
        capture_output=True, text=True, check=True, timeout=180,
    )  # fmt: skip
    assert "declared; checked in rounds 1 to 8" in done.stdout
    assert "eavesdropper  2.13     declared, checked" in done.stdout


@pytest.mark.distributed
def test_a_kill_between_the_line_and_the_send_counts_the_round(tmp_path):
    """The peer got round 1 alone; the log has round 2, too."""
    code = (
        "import os, signal, socket, sys\n"
        "from overhear.runs.recorder.record import record\n"
        "link = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "with record(sys.argv[2], agent=0, agents=1, clip=1.0) as ledger:\n"
        "    for t in (1, 2, 3):\n"
        "        ledger.release(t, kind='model', to='all', noise=2.0)\n"
        "        if t == 2:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        link.sendall(bytes([t]))\n"
    )
    path = tmp_path / "0.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        agent = subprocess.Popen([sys.executable, "-c", code, port, path])
        link, _ = server.accept()
        got = b""
        while part := link.recv(16):
            got += part
        link.close()
    assert agent.wait(timeout=60) == -9
    assert got == bytes([1])
    assert list(read_log(path).rounds) == [Played(1, 0), Played(2, 0)]
