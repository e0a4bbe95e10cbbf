"""What a wheel may lack beside the checkout: modules, templates, tables, type markers, commands.

`make test-wheel` runs this file with the built wheel first on the path. What the code computes is
tested in the checkout.
"""

import importlib
import json
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

import overhear
from overhear.commands import cli
from overhear.commands import train as of_demo
from overhear.commands.train import What
from tests.test_doctests import PARTS, names

ROOT = Path(__file__).resolve().parents[1]
UNPACKED = ROOT / "build/wheel"
SHORT = {"rounds = 150": "rounds = 10", "canaries = 1000": "canaries = 50"}


@pytest.fixture(scope="module")
def wheel():
    (path,) = (ROOT / "dist").glob("overhear_dp-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run of a short demo, with its report."""
    out = tmp_path_factory.mktemp("wheel") / "run"
    text = of_demo.RUN
    for long, short in SHORT.items():
        assert long in text
        text = text.replace(long, short)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_demo, "RUN", text)
        assert cli.main(["--quiet", "demo", "--out", str(out)]) == 0
    return out


def test_the_package_under_test_is_that_of_the_wheel():
    assert Path(overhear.__file__).is_relative_to(UNPACKED)


def test_each_file_of_the_packages_is_in_the_wheel_and_nothing_else(wheel):
    held = {
        f"overhear/{path.relative_to(ROOT).as_posix()}"
        for part in PARTS
        for path in (ROOT / part).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    held |= {f"overhear/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == held


def test_the_wheel_names_its_version_licence_and_command(wheel):
    texts = {
        name.partition(".dist-info/")[2]: wheel.read(name).decode()
        for name in wheel.namelist()
        if ".dist-info/" in name
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"\nVersion: {project['version']}\n" in texts["METADATA"]
    assert "licenses/LICENSE" in texts
    assert "overhear = overhear.commands.__main__:main" in texts["entry_points.txt"]


def test_every_module_is_imported():
    for name in names():
        importlib.import_module(name)


def test_every_command_explains_itself(capsys):
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")
        assert cli.main([name, "--help"]) == 0
        assert f"overhear {name}" in capsys.readouterr().out


def test_the_command_starts_as_a_program():
    done = subprocess.run(
        [UNPACKED / "bin/overhear", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"overhear {overhear.__version__}")


def test_every_template_is_written(tmp_path):
    for what in What:
        assert cli.main(["new", what, str(tmp_path / what)]) == 0
        assert (tmp_path / what).stat().st_size > 100
    assert cli.main(["plan", str(tmp_path / What.RUN)]) == 0
    assert cli.main(["account", str(tmp_path / What.SYSTEM)]) == 0


def test_the_demo_leaves_a_report_that_is_checked_against_a_policy(folder, tmp_path):
    assert "</html>" in (folder / "report.html").read_text(encoding="utf-8")
    assert json.loads((folder / "privacy.json").read_text(encoding="utf-8"))["audit"]
    assert cli.main(["new", "policy", str(tmp_path / "policy.toml")]) == 0
    assert cli.main(["check", str(folder), "--policy", str(tmp_path / "policy.toml")]) in (0, 3, 5)
