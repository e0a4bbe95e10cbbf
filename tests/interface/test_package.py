"""`import overhear`: what it gives, and what it costs."""

import importlib
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import overhear

ALLOWED = {
    *("account", "budget", "plan", "train", "attack", "audit", "report", "record", "canaries"),
    "replay",
    *("invert", "design", "check", "compare", "sweep", "table", "plot"),
    *("Run", "__version__"),
}
TIMED = (
    "import sys, time\nbegun = time.process_time()\nimport overhear\n"
    "print(time.process_time() - begun)\n"
    "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
)


def test_the_import_takes_less_than_50_milliseconds_and_no_torch():
    # Of CPU time: other processes of a busy machine count for nothing.
    taken = [
        float(subprocess.run([sys.executable, "-c", TIMED], capture_output=True, check=True).stdout)
        for _ in range(7)
    ]
    assert statistics.median(taken) < 0.05


def test_the_base_works_where_what_trains_is_not_installed():
    script = Path(__file__).parents[1] / "base_install.py"
    ran = subprocess.run(
        [sys.executable, str(script), "--hide"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("works: ") == 6


def test_every_public_name_is_allowed_and_resolves():
    public = set(overhear.__all__)
    assert {"account", "budget", "__version__"} <= public <= ALLOWED
    text = Path(overhear.__file__).read_text(encoding="utf-8")
    for name in public - {"__version__"}:  # type checkers see the names that Python does
        (place,) = re.findall(rf"    from (\S+) import {name} as {name}\n", text)
        assert getattr(overhear, name) is getattr(importlib.import_module(place, "overhear"), name)


def test_dir_names_what_was_not_imported_yet():
    program = "import overhear; assert 'budget' in dir(overhear) and 'account' in dir(overhear)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_unknown_name_is_no_attribute():
    with pytest.raises(AttributeError, match="has no attribute 'bugdet'"):
        overhear.bugdet  # noqa: B018 - the look itself is what fails


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert overhear.__version__ == version("overhear-dp")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "overhear", "--version"], capture_output=True, text=True,
        check=True, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert done.stdout == f"overhear {overhear.__version__}\n"


def test_a_signal_that_comes_while_the_module_loads_ends_it_without_a_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "overhear", "--help"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONVERBOSE": "1"},
    ) as running:
        assert running.stderr is not None
        said = ""
        for line in running.stderr:  # what is imported, as it is imported
            said = line
            if "typer" in line:
                running.send_signal(signal.SIGINT)
                break
        said += running.stderr.read()
        # By the signal itself, or by the program, where that listens already.
        assert running.wait(60) in (-signal.SIGINT, 130)
    assert "Traceback" not in said
