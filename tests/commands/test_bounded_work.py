"""What asks for too much, or is no file, is refused by every command in little time and memory."""

import json
import os
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tests.small_run import run_text

MEGABYTES, SECONDS = 500, 20
RUN = run_text(
    "dpdl", model={"name": "mlp"}, privacy={"noise_multiplier": 2.5, "delta": 1e-05},
    training={"rounds": 20, "sampling_rate": 0.02},
)  # fmt: skip
# Runs each command in a process of its own, forked from one that has read the code, and says its
# exit code, standard error, CPU seconds, and the megabytes at its peak above those of the code.
EACH = """
import json, os, resource, sys, tempfile
from overhear.commands import cli
from overhear.commands.terminal import progress, tables
from overhear.runs.attack import invert
from overhear.runs.plan import sweep
from overhear.runs import readiness

def held():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024

for arguments in json.load(sys.stdin):
    before = held()
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (25, 26))
            os.dup2(said.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code = cli.main(arguments)
            sys.stderr.flush()
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        print(json.dumps([
            os.waitstatus_to_exitcode(status),
            said.read().decode(),
            used.ru_utime + used.ru_stime,
            used.ru_maxrss / 1024 - before,
        ]), flush=True)
"""

Put = Callable[[Path], object]


def png(path: Path, width: int, height: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20))
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def bound_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(path.name)
    os.chdir(before)


ODD: dict[str, tuple[Put, str]] = {
    "fifo": (os.mkfifo, "is no regular file"),
    "socket": (bound_socket, "is no regular file"),
    "folder": (Path.mkdir, "is no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
    "loop": (lambda path: path.symlink_to(path.name), "2.png: Too many levels of symbolic links"),
    "30,000 x 30,000": (
        lambda path: png(path, 30_000, 30_000),
        "2.png has more than 4194304 pixels",
    ),
    "9,000 x 9,000": (lambda path: png(path, 9_000, 10_000), "2.png has 9000 x 10000 pixels"),
}


def images(folder: Path, put: Put) -> list[str]:
    for name in "ab":
        (folder / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / name / "1.png")
    put(folder / "a" / "2.png")
    return ["plan", "run.toml", "--check", *sets(f'data.root="{folder}"', "data.name=image-folder")]


def sets(*overrides: str) -> list[str]:
    return [part for one in overrides for part in ("--set", one)]


ASKED: dict[str, tuple[list[str], str]] = {
    **{
        f"agents of a {name}": (
            sets("data.agents=1000000000", f"graph.name={name}"),
            f"agents=1000000000 is too many for '{name}'; at most",
        )
        for name in ("ring", "full", "star", "grid", "directed-exponential")
    },
    "a dense graph": (
        sets("data.agents=3000", "graph.name=full"),
        "graph 'full' of agents=3000 has 8997000 links, and at most 4000000",
    ),
    "local steps": (
        sets("algorithm.name=dp-netfleet", "algorithm.local_steps=3000"),
        "dp-netfleet with local_steps=3000 does more than 8366 operations in a round, the most "
        "that can be accounted for with agents=10: lower local_steps or agents",
    ),
    "fewer local steps": (
        sets("algorithm.name=dp-netfleet", "algorithm.local_steps=1000"),
        "in which an agent draws 1000 batches; lower local_steps until an agent draws",
    ),
    "rounds that differ": (
        sets(
            "algorithm.name=dyn-d2p",
            "graph.name=directed-exponential",
            "training.rounds=20000",
            "algorithm.clip_decay=4.0",
        ),
        "20000 rounds differ, each with 20 links; lower rounds, to",
    ),
    "rounds": (sets("training.rounds=1000000000000"), "rounds=1000000000000 must lie in [1, "),
    "horizon": (
        sets("algorithm.name=decor", "algorithm.horizon=1000000000000"),
        "at most 1000000 are counted; use horizon=1000000 or less",
    ),
    "seed": (sets("training.seed=100000000000000000000"), "[training] seed=1000"),
    "restarts": (sets("attack.restarts=1000000000"), "restarts=1000000000 must lie in [1, 10000]"),
    "a sweep": (
        [
            *("--sweep", "training.rounds=" + ",".join(map(str, range(1, 1001)))),
            *("--sweep", "training.seed=" + ",".join(map(str, range(1000)))),
        ],
        "the sweeps make 1000000 combinations, and at most 10000 are planned",
    ),
}
Said = dict[str, tuple[int, str, float, float]]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    (folder / "run.toml").write_text(RUN)
    (folder / "many.toml").write_text(RUN + "".join(f"key{n} = 1\n" for n in range(50_000)))
    (folder / "deep.toml").write_text("a = " + 10_000 * "[" + 10_000 * "]")
    os.mkfifo(folder / "fifo")
    calls = {name: ["plan", "run.toml", *asked] for name, (asked, _) in ASKED.items()}
    calls |= {name: images(folder / f"of {name}", put) for name, (put, _) in ODD.items()}
    calls["many keys"] = ["plan", "many.toml"]
    calls["deep"] = ["train", "deep.toml", "--out", "out"]
    for command in ("report", "attack", "audit", "compare", "total"):
        several = command in ("compare", "total")
        calls[f"{command} of a fifo"] = [command, "fifo", *["fifo/again"] * several]
    layer = {"weight": np.ones((10, 64), "<f4"), "bias": np.ones(10, "<f4")}
    held = {f"{kind}.1.{n}": g for kind in ("gradient", "parameter") for n, g in layer.items()}
    save_file(held, folder / "g.safetensors")
    inverted = ["invert", "g.safetensors", "--model=linear", "--out=out"]
    calls["invert on a vast picture"] = [*inverted, "--input-shape=1,1000000,1000000"]
    calls["invert of many records"] = [
        *(*inverted, "--input-shape=1,8,8"),
        *("--classes=10", "--records=1000000000000"),
    ]
    calls["invert of many starts"] = [*inverted, "--input-shape=1,8,8", "--restarts=1000000000"]
    shape = ["--input-shape=1,8,8", "--truth=fifo.png"]
    calls["invert beside a fifo"] = [*inverted, *shape]
    os.mkfifo(folder / "fifo.png")
    calls["invert of a fifo"] = ["invert", "fifo", "--model=mlp", "--out=out"]
    calls["plan of a fifo"] = ["plan", "fifo"]
    done = subprocess.run(
        [sys.executable, "-c", EACH], input=json.dumps(list(calls.values())), check=True,
        capture_output=True, text=True, timeout=500, cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "1000"},
    )  # fmt: skip
    assert not (folder / "out").exists()
    return dict(zip(calls, map(json.loads, done.stdout.splitlines()), strict=True))


WORDS = {
    **{name: words for name, (_, words) in (ASKED | ODD).items()},
    "many keys": "has 50000 problems:",
    "deep": "deep.toml is not TOML",
    **{f"{name} of a fifo": "fifo" for name in ("report", "attack", "audit", "compare", "total")},
    "invert of a fifo": "fifo is no file",
    "invert on a vast picture": "lower records, or input_shape",
    "invert of many records": "a search for records=1000000000000 of input_shape=(1, 8, 8) takes",
    "invert of many starts": "starts=1000000000 must be at most 10000; lower the",
    "invert beside a fifo": "fifo.png is no regular file; give a file",
    "plan of a fifo": "no run file at fifo",
}


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is told otherwise there")
@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_too_much_is_refused_in_a_sentence(name, said):
    code, words, seconds, megabytes = said[name]
    assert code == 2, words
    assert words.startswith("error: ")
    assert "Traceback" not in words
    assert len(words) < 5000
    assert WORDS[name] in words
    assert seconds < SECONDS
    assert megabytes < MEGABYTES
