"""What the package says of itself: one version, and extras that are there where they are named."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import overhear

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "CITATION.cff").is_file(), reason="needs the checkout's files"
)


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")))


def test_the_citation_names_the_version_and_the_licence_of_the_package() -> None:
    text, project = (ROOT / "CITATION.cff").read_text(encoding="utf-8"), settings()["project"]
    assert re.findall(r"^version: (.*)$", text, re.M) == [project["version"]]
    assert re.findall(r"^license: (.*)$", text, re.M) == [project["license"]]


def test_the_citation_has_what_its_format_requires() -> None:
    found, project = citation(), settings()["project"]
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= found.keys()
    assert found["authors"] == project["authors"]
    assert found["keywords"] == project["keywords"]
    assert found["title"].removeprefix("Overhear: ") == (
        project["description"][0].lower() + project["description"][1:]
    )


def test_the_version_is_that_of_the_newest_release_of_the_changelog() -> None:
    """Or one after it, where something is not released; a run folder names the version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## \[(.+?)\](.*)$", text, re.M)
    version = Version(settings()["project"]["version"])
    assert heads[0] == ("Unreleased", "")
    assert [head for head in heads[1:] if not re.fullmatch(r" - \d{4}-\d\d-\d\d", head[1])] == []
    released = [Version(name) for name, _ in heads[1:]]
    assert released == sorted(released, reverse=True)
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0].strip()
    if unreleased:
        assert not released or version > released[0]
    else:
        assert version == released[0]


def test_what_is_installed_is_this_version() -> None:
    assert overhear.__version__ == settings()["project"]["version"]


def test_extras_that_a_sentence_names_exist() -> None:
    named = {
        extra
        for part in ("training", "interface", "commands", "docs")
        for path in [*(ROOT / part).rglob("*.py"), *(ROOT / part).rglob("*.md")]
        for extra in re.findall(r"overhear\[([a-z]+)\]", path.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= settings()["project"]["optional-dependencies"].keys()


def test_tests_run_with_what_extras_bring() -> None:
    extras = settings()["project"]["optional-dependencies"]
    assert {*extras["docs"], *extras["plot"], *extras["table"]} <= set(extras["dev"])


def test_everything_that_tests_need_is_pinned() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    pinned = {line.partition("==")[0].replace("_", "-") for line in text.splitlines()}
    project = settings()["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in wanted}
    assert names <= pinned


def test_the_environment_of_flower_has_one_torch_and_a_flwr_that_the_extra_takes() -> None:
    """Unpinned, pip takes gigabytes for devices, and tries older flwr where the last clashes."""

    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
        return dict(line.split("==") for line in lines if "==" in line)

    ours, flowers = pins("constraints.txt"), pins("constraints-flower.txt")
    differ = {name for name in ours.keys() & flowers.keys() if ours[name] != flowers[name]}
    assert differ == {"typer", "rich", "packaging"}
    project = settings()["project"]
    least = re.search(r">=(\d+)\.(\d+)", project["optional-dependencies"]["flower"][0])
    assert least is not None
    assert tuple(map(int, flowers["flwr"].split(".")[:2])) >= tuple(map(int, least.groups()))
    names = {re.split(r"[<>=\[]", one)[0].lower() for one in project["dependencies"]}
    assert {*names, "flwr", "ray", "pytest"} <= flowers.keys()
    assert "constraint constraints-flower.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_each_template_is_in_the_package() -> None:
    from overhear.commands.prepare.new import What, template

    assert settings()["tool"]["setuptools"]["package-data"]["overhear.commands"] == ["templates/*"]
    assert len({template(what) for what in What}) == len(What)
