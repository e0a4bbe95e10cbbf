"""What the package says of itself: one version, and extras that are there where they are named."""

import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import overhear

ROOT = Path(__file__).resolve().parents[1]


def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def citation() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")))


def test_the_citation_names_the_version_and_the_licence_of_the_package():
    text, project = (ROOT / "CITATION.cff").read_text(encoding="utf-8"), settings()["project"]
    assert re.findall(r"^version: (.*)$", text, re.M) == [project["version"]]
    assert re.findall(r"^license: (.*)$", text, re.M) == [project["license"]]


def test_the_citation_has_what_its_format_requires():
    found, project = citation(), settings()["project"]
    assert found["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= found.keys()
    assert found["authors"] == project["authors"]
    assert found["keywords"] == project["keywords"]
    assert found["title"].removeprefix("Overhear: ") == (
        project["description"][0].lower() + project["description"][1:]
    )


def test_the_version_is_that_of_the_newest_release_of_the_changelog():
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


def test_what_is_installed_is_this_version():
    assert overhear.__version__ == settings()["project"]["version"]


# What a package index would be asked for, in a list of requirements or as an extra of that name.
_BY_NAME = re.compile(
    r"""\boverhear(?:-dp)?\s*(?:\[\w+\])?\s*(?:[=~><!]=)\s*(?:\d|VERSION)"""
    r"""|(?<![./\w])overhear(?:-dp)?\[[a-z]+\](?!\()""",
    re.IGNORECASE,
)
_INSTALLS = re.compile(
    r"\b(?:pip3? install|uv pip install|uv add|uv tool install|uvx|pipx install|pipx run"
    r"|poetry add|(?:conda|mamba) install)(?=\s)"
)
_WITH_A_VALUE = {"-c", "--constraint", "-r", "--requirement", "--target", "--index-url", "-i"}


def _asked_for(text: str) -> Iterator[str]:
    """Each argument of the commands in a text that install something, options aside."""
    for found in _INSTALLS.finditer(text):
        line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
        end = "`" if line.count("`") % 2 else r"\n|[`;]|&&|\||\s#"
        rest = re.split(end, text[found.end() :], maxsplit=1)[0]
        words = iter(re.findall(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',]+(?:,[^\s\"',]+)*", rest))
        for word in words:
            if word in _WITH_A_VALUE:
                next(words)
            elif word[0] not in "-)\\":  # an option, or what ends a text of Python
                yield word.strip("\"'").rstrip(".,") or "."


def _meant(asked: str) -> bool:
    """Whether it is a path, as of a checkout, or a package that this project declares."""
    project = settings()["project"]
    ours = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.split(r"[<>=\[]", one)[0].lower() for one in ours} - {project["name"]}
    return asked[0] in ".[" or "/" in asked or re.split(r"[<>=\[@]", asked)[0].lower() in names


def _texts() -> Iterator[tuple[str, str]]:
    """Every text of the checkout but the tests."""
    packages = settings()["tool"]["setuptools"]["packages"]
    rooms = {"docs", "examples", ".ci", *(name.split(".")[1] for name in packages if "." in name)}
    kinds = {".py", ".md", ".toml", ".yml", ".txt", ".html", ".cff", ""}
    for path in chain(ROOT.iterdir(), *((ROOT / room).rglob("*") for room in sorted(rooms))):
        if path.is_file() and path.suffix in kinds:
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8", errors="ignore")


def test_no_text_installs_by_the_name_that_is_another_project_s():
    texts = dict(_texts())
    assert {"README.md", "docs/flower.md", "commands/templates/ci.yml", "privacy/errors.py"} <= {
        *texts
    }
    assert not [name for name, text in texts.items() if _BY_NAME.search(text)]
    asked = [(name, one) for name, text in texts.items() for one in _asked_for(text)]
    assert len(asked) > 10
    declared = "{found}"  # what `requirement` gives
    assert not [(name, one) for name, one in asked if not _meant(one) and one != declared]


@pytest.mark.parametrize(
    ("text", "asked", "meant"),
    [
        ("pip install overhear==0.1.0", ["overhear==0.1.0"], False),
        ('pip install -U --pre "overhear[flower]"', ["overhear[flower]"], False),
        ("`pip install\n'overhear[plot]'` brings it", ["overhear[plot]"], False),
        ("uv add overhear", ["overhear"], False),
        ("uvx overhear plan", ["overhear", "plan"], False),
        ("pip install overhear-dp", ["overhear-dp"], False),
        ("pip install numpyy.", ["numpyy"], False),
        ("pip install -c constraints.txt torchh  # no", ["torchh"], False),
        ("pip install ./overhear", ["./overhear"], True),
        ("pip install --constraint .overhear/constraints.txt ./.overhear", ["./.overhear"], True),
        ('pip install ".[flower]" "flwr[simulation]>=1.41,<2"', None, True),
        ("(`pip install matplotlib`), beside", ["matplotlib"], True),
        ("pip install torch --index-url https://a.b/cpu\nmake", ["torch"], True),
        ("what `pip install` by name would bring", [], True),
    ],
)
def test_what_installs_by_name_is_told_from_what_does_not(text, asked, meant):
    found = list(_asked_for(text))
    assert asked is None or found == asked
    assert all(map(_meant, found)) == meant


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("overhear>=0.1", True),
        ("overhear-dp==0.1.0", True),
        ('needs "overhear[dask]"', True),
        ("`overhear plan run.toml`", False),
    ],
)
def test_a_requirement_by_name_is_told_from_what_is_none(text, asks):
    assert bool(_BY_NAME.search(text)) == asks


def test_every_extra_that_a_page_names_exists():
    extras = settings()["project"]["optional-dependencies"].keys()
    named = {
        one
        for _, text in _texts()
        for one in re.findall(r'install (?:-c [\w.-]+ )?"\.\[([a-z]+)\]"', text)
    }
    assert named
    assert named <= extras


def test_a_package_that_is_missing_is_installed_by_its_own_name():
    import ast

    from overhear.privacy.errors import needs

    asked = {
        argument.value
        for name, text in _texts()
        if name.endswith(".py") and "import" in text and "needs(" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "needs"
        for argument in node.args[1:]
        if isinstance(argument, ast.Constant)
    }
    assert {"matplotlib", "pandas", "pyarrow", "flwr"} <= asked
    for package in {*asked, "ray", "distributed"}:
        name = package.replace("sklearn", "scikit-learn")
        said = str(needs("this", package))
        assert f"needs {name}, which" in said
        assert re.search(rf'pip install .*"{name}[<>=]', said)


def test_tests_run_with_what_extras_bring():
    extras = settings()["project"]["optional-dependencies"]
    assert {*extras["docs"], *extras["plot"], *extras["table"]} <= set(extras["dev"])


def test_everything_that_tests_need_is_pinned():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    pinned = {line.partition("==")[0].replace("_", "-") for line in text.splitlines()}
    project = settings()["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["train"], *extras["dev"]]
    names = {re.split(r"[<>=\[]", one)[0].lower().replace("_", "-") for one in wanted}
    assert names - {project["name"]} <= pinned


# The first versions without a known advisory that was mended. torch 2.11 is what the GPU runs have,
# and the advisories of 2.10 and earlier name no version that mends them.
LEAST = {
    "jinja2": "3.1.6", "pillow": "12.3", "torch": "2.11", "distributed": "2026.1", "ray": "2.52",
    "pyarrow": "23.0.1",
}  # fmt: skip


def test_no_version_with_a_known_advisory_may_be_installed():
    def numbers(version: str) -> tuple[int, ...]:
        return tuple(map(int, version.split(".")))

    project = settings()["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    floors = [re.fullmatch(r"([a-z0-9]+)>=([\d.]+)", one) for one in wanted]
    held = [(one[1], one[2]) for one in floors if one is not None and one[1] in LEAST]
    assert {name for name, _ in held} == LEAST.keys()
    assert all(numbers(least) >= numbers(LEAST[name]) for name, least in held)
    pins = [
        line.split("==")
        for name in ("constraints.txt", "constraints-flower.txt")
        for line in (ROOT / name).read_text(encoding="utf-8").lower().splitlines()
        if "==" in line
    ]
    assert all(numbers(pin) >= numbers(LEAST[name]) for name, pin in pins if name in LEAST)


def test_the_environment_of_flower_has_one_torch_and_a_flwr_that_the_extra_takes():
    """Unpinned, pip takes gigabytes for devices, and tries older flwr where the last clashes."""

    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text(encoding="utf-8").lower().replace("_", "-").splitlines()
        return dict(line.split("==") for line in lines if "==" in line)

    ours, flowers = pins("constraints.txt"), pins("constraints-flower.txt")
    differ = {name for name in ours.keys() & flowers.keys() if ours[name] != flowers[name]}
    assert differ == {"typer", "rich", "packaging"}
    project = settings()["project"]
    extras = project["optional-dependencies"]
    asked = next(one for one in extras["flower"] if one.startswith("flwr"))
    least = re.search(r">=(\d+)\.(\d+)", asked)
    assert least is not None
    assert tuple(map(int, flowers["flwr"].split(".")[:2])) >= tuple(map(int, least.groups()))
    needed = [*project["dependencies"], *extras["train"]]
    names = {re.split(r"[<>=\[]", one)[0].lower() for one in needed}
    assert {*names, "flwr", "ray", "pytest"} <= flowers.keys()
    assert "constraint constraints-flower.txt" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_installation_that_pages_tell_is_of_the_versions_that_were_tested():
    lines = [
        line
        for name, text in _texts()
        if name.endswith((".md", ".yml")) and name != "CHANGELOG.md"
        for line in text.splitlines()
        if re.search(r"""install .*(?:\s\.(?:\s|$)|"\.\[|\./)""", line)
    ]
    assert len(lines) >= 5
    assert not [
        line for line in lines if not re.search(r"(?:-c|--constraint) \S*constraints", line)
    ]
