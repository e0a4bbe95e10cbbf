"""The law of imports, the list of packages, and the commands of the README."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ORDER = ("privacy", "training", "attacks", "runs", "reports", "commands")
CHECKOUT = (ROOT / "privacy").is_dir()
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="needs the checkout's files")


def modules(part: str) -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


def imports(path: Path) -> list[str]:
    """Absolute dotted names of what a module imports, `overhear.` for our own."""
    package = ["overhear", *path.relative_to(ROOT).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{stem}.{alias.name}" for alias in node.names] if node.level else [stem]
    return found


@pytest.mark.parametrize("part", ORDER)
def test_imports_run_one_way_only(part):
    later = ORDER[ORDER.index(part) + 1 :]
    breaches = [
        (path.name, name)
        for path in modules(part)
        for name in imports(path)
        if any(name.startswith(f"overhear.{other}") for other in later)
    ]
    assert not breaches


@pytest.mark.parametrize("part", ORDER)
def test_parts_import_each_other_relatively(part):
    for path in modules(part):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert not (node.module or "").startswith("overhear"), path


def test_privacy_does_not_import_torch():
    breaches = [
        (path.name, name)
        for path in modules("privacy")
        for name in imports(path)
        if name.split(".")[0] == "torch"
    ]
    assert not breaches


def test_every_subpackage_is_listed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(settings["tool"]["setuptools"]["packages"])
    found = {
        "overhear." + ".".join(init.parent.relative_to(ROOT).parts)
        for part in ORDER
        for init in (ROOT / part).rglob("__init__.py")
    }
    assert listed == found


def test_no_source_file_is_longer_than_400_lines():
    long = {
        str(path.relative_to(ROOT)): count
        for part in ORDER
        for path in modules(part)
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long


def readme_blocks() -> list[str]:
    return re.findall(r"```(?:console|sh)\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in text
        assert re.search(rf"^{target}:", makefile, re.M)
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def readme_examples() -> list[tuple[str, str]]:
    """(command, expected output) for every `$ overhear ...` in the README."""
    if not CHECKOUT or not (ROOT / "README.md").exists():
        return []
    found = []
    for block in readme_blocks():
        for command, output in re.findall(
            r"^\$ (overhear [^\n]*)\n((?:(?!\$ ).*\n?)*)", block, re.M
        ):
            if output.strip():
                found.append((command, output.strip()))
    return found


@pytest.mark.parametrize(("command", "expected"), readme_examples())
def test_the_output_shown_in_the_readme_is_what_the_command_prints(command, expected):
    words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "overhear.commands.cli", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"},
    )
    printed = [line.rstrip() for line in done.stdout.strip().splitlines()]
    assert printed == expected.splitlines()


def test_the_readme_shows_at_least_one_real_output():
    assert readme_examples()
