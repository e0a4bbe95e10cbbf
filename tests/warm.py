"""A command in a process of its own, forked from one that has imported everything already.

It is a process as any other, with a directory, an environment, modules and signals of its own; only
the seconds in which torch is imported are spent once a session instead of once a command.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

LIMIT = 300  # seconds that a command may take
# What commands import when they first need it.
BESIDES = ("dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp", "opacus")
BESIDES += ("scipy.stats", "sklearn.datasets", "xml.dom.minidom", "rich._emoji_codes")


def run(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, code: str | None = None
) -> subprocess.CompletedProcess[str]:
    """What `python -P -m overhear.commands *arguments` does in `cwd`, or `python -c code` there."""
    with tempfile.TemporaryDirectory() as held:
        out, err = Path(held, "out"), Path(held, "err")
        asked = {
            "arguments": arguments,
            "cwd": str(cwd),
            "env": {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            "out": str(out),
            "err": str(err),
            "code": code,
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        ended = os.waitstatus_to_exitcode(int(server.stdout.readline()))
        return subprocess.CompletedProcess(arguments, ended, out.read_text(), err.read_text())


def cold(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in a process that imports what it needs, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "overhear.commands", *arguments], cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}, capture_output=True, text=True,
        timeout=LIMIT, check=False,
    )  # fmt: skip


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).resolve())], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    atexit.register(server.communicate)  # its input closes, and it ends
    return server


def _import_all() -> None:
    import overhear

    for name in BESIDES:
        importlib.import_module(name)

    for module in pkgutil.walk_packages(overhear.__path__, "overhear."):
        room = module.name.split(".")[1]
        if room in {"privacy", "training", "attacks", "runs", "reports", "commands"} and (
            not module.name.endswith("__main__")
        ):
            importlib.import_module(module.name)


def _become(asked: dict[str, Any]) -> None:
    """Be the process that was asked for, until it ends."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    for number, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    signal.alarm(LIMIT)
    if asked["code"] is not None:
        sys.path.insert(0, "")
        sys.argv = ["-c"]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), main.__dict__)  # noqa: S102 - as -c does
        return
    sys.argv = ["overhear", *asked["arguments"]]
    runpy.run_module("overhear.commands", run_name="__main__", alter_sys=True)


def _end(asked: dict[str, Any]) -> NoReturn:
    """As the interpreter ends, but for the second in which it takes torch down piece by piece."""
    code = 0
    try:
        _become(asked)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    _import_all()
    gc.freeze()  # so that a collection in a child does not copy all that was imported
    while asked := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            _end(json.loads(asked))
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    _serve()
