"""The law of imports, the list of packages, and the commands of the README."""

import ast
import functools
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from overhear.commands.cli import main

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    "privacy", "training", "attacks", "runs", "reports", "interface", "commands", "testing",
    "adapters",
)  # fmt: skip


def modules(part: str) -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


@functools.cache
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
    assert listed == {"overhear"} | found


def test_the_root_holds_the_package_and_the_program_alone():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for part in ORDER
    for path in modules(part)
    if path.name != "__init__.py"
}
MOST_LINES = 600  # of a file, which is one chapter


def room_of(module: str) -> str:
    """The folder of a file; a file that lies in a package itself is a room of its own."""
    folder = module.rpartition(".")[0]
    return folder if "." in folder else module


def file_arrows() -> dict[str, set[str]]:
    """Every file of ours with the files of ours that it imports."""
    arrows: dict[str, set[str]] = {}
    for module, path in FILES.items():
        names = [name.removeprefix("overhear.") for name in imports(path)]
        targets = {name if name in FILES else name.rpartition(".")[0] for name in names}
        arrows[module] = {target for target in targets if target in FILES and target != module}
    return arrows


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A way from something back to itself, or nothing where there is none."""
    done: set[str] = set()

    def search(at: str, way: list[str]) -> list[str]:
        if at in way:
            return way[way.index(at) :]
        if at in done:
            return []
        found = next((c for to in sorted(arrows[at]) if (c := search(to, [*way, at]))), [])
        done.add(at)
        return found

    return next((found for start in sorted(arrows) if (found := search(start, []))), [])


def room_arrows() -> dict[str, set[str]]:
    arrows: dict[str, set[str]] = {room_of(module): set() for module in FILES}
    for module, targets in file_arrows().items():
        arrows[room_of(module)] |= {room_of(to) for to in targets} - {room_of(module)}
    for module, path in FILES.items():  # what a room's own __init__ gives belongs to the room
        names = [name.removeprefix("overhear.").rpartition(".")[0] for name in imports(path)]
        arrows[room_of(module)] |= {name for name in names if name in arrows} - {room_of(module)}
    return arrows


def test_no_files_import_each_other_in_a_circle():
    assert circle(file_arrows()) == []


def test_no_rooms_import_each_other_in_a_circle():
    assert circle(room_arrows()) == []


def test_a_circle_would_be_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert len(file_arrows()["commands.cli"]) > 5  # arrows are read at all


def test_every_room_has_a_sentence_on_the_page_of_the_architecture():
    page = (ROOT / "docs/rooms.md").read_text(encoding="utf-8")
    rooms = {module.rpartition(".")[0].replace(".", "/") for module in FILES}
    assert {room for room in rooms if f"| `{room}/` | " not in page} == set()


def test_every_file_and_function_that_the_architecture_names_exists():
    pages = [ROOT / f"docs/{one}.md" for one in ("architecture", "decisions", "rooms")]
    page = "".join(one.read_text(encoding="utf-8") for one in pages)
    for path, name in re.findall(r"`([\w/]+\.py)`(?:, `(\w+)`)?", page):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^\s*(?:def|class) {name}\b", text, re.M), (path, name)


def test_no_source_file_is_longer_than_600_lines():
    long = {
        str(path.relative_to(ROOT)): count
        for part in ORDER
        for path in modules(part)
        if (count := len(path.read_text(encoding="utf-8").splitlines())) > MOST_LINES
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
    assert "make test-all" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def readme_examples() -> list[tuple[str, str]]:
    """(command, expected output) for every `$ overhear ...` in the README."""
    found = []
    for block in readme_blocks():
        for command, output in re.findall(
            r"^\$ (overhear [^\n]*)\n((?:(?!\$ ).*\n?)*)", block, re.M
        ):
            if output.strip():
                found.append((command, output.strip()))
    return found


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        # A second plan differs by its settings alone.
        pytest.param(*one, marks=[pytest.mark.slow] if "--set" in one[0] else [])
        for one in readme_examples()
    ],
)
def test_the_output_shown_in_the_readme_is_what_the_command_prints(
    command, expected, capsys, monkeypatch
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(shlex.split(command)[1:]) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    assert printed == expected.splitlines()


def test_the_readme_shows_at_least_one_real_output():
    assert readme_examples()


# What reads a pickle runs whatever is in it; collectives of objects read pickles of other ranks.
_UNPICKLES = re.compile(
    r"pickle\.loads?\(|[Uu]npickler\(|(?<!safetensors\.)\btorch\.load\(|allow_pickle=True"
    r"|\b\w+_object(_list)?\(.*group="
    r"|\b(send|recv|scatter|broadcast|gather|all_gather)_object(_list)?\b"
)
_TELLTALES = ("ickle", "torch.load", "_object")
_ALLOW_LIST = {
    "training/data/readers.py",  # four names, with fixed arguments
    "training/engine/tensor_file.py",  # torch's loader of weights alone, after a list of names
    "privacy/formats/tensor_archives.py",  # in lines that tell users how to convert a file
}


def test_nothing_is_unpickled_but_pictures_through_an_allow_list():
    texts = {path: path.read_text(encoding="utf-8") for part in ORDER for path in modules(part)}
    found = {
        path.relative_to(ROOT).as_posix()
        for path, text in texts.items()
        if any(word in text for word in _TELLTALES) and _UNPICKLES.search(text)
    }
    assert found == _ALLOW_LIST
