"""The pages of docs/ print what they say, and leave no command and no key of a run file out.

A page is run from top to bottom in one namespace and one folder that holds `examples` alone:

    pycon     statements and what they print
    python    code; a `text` block right after it is what it prints; a file, and not run, where its
              first line is a comment with the file's name
    toml      a file, where its first line is a comment with the file's name
    console   `$ overhear ...` and what it prints, exit code by `; echo $?`

What a console block prints as Markdown may stand behind it, between `<!-- printed -->` and
`<!-- end -->`. What stands between `<!-- help: NAME -->`, `<!-- keys: NAME -->` or
`<!-- api: NAME -->` and `<!-- end -->` is generated:

    python tests/test_docs.py --write
"""

import contextlib
import doctest
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RESULTS = sorted(DOCS.glob("results-*.md"))  # tables, whose commands take hours
HELP_COLUMNS, COLUMNS = "100", "80"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
GENERATED = re.compile(r"<!-- (help|keys|api): ([\w-]+) -->\n(.*?)<!-- end -->", re.S)
PRINTED = re.compile(r"\s*<!-- printed -->\n(.*?)<!-- end -->", re.S)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")  # and pictures
FLAGS = doctest.ELLIPSIS
# They train, attack and audit, plan every algorithm, or show what quick tests hold, too.
SLOW = {
    "README", "add-an-algorithm", "algorithms", "attacks", "audit-your-own-training", "compare",
    "dpdl-table", "epsilon", "faq", "opacus", "own-names", "public-implementations",
    "published-bounds", "round", "testing", "total", "tutorial-attack", "tutorial-budget",
    "tutorial-sign", "which-algorithm",
}  # fmt: skip


class Block(NamedTuple):
    """A fenced block: what it is, what it holds, and the line on which it starts."""

    kind: str
    text: str
    line: int
    follows: bool  # the block before it, with nothing in between


def blocks(page: Path) -> Iterator[Block]:
    text, last = page.read_text(encoding="utf-8"), -1
    for found in BLOCK.finditer(text):
        between = text[last : found.start()] if last >= 0 else "text"
        line = text.count("\n", 0, found.start()) + 1
        printed = PRINTED.match(text, found.end()) if found[1] == "console" else None
        body = found[2] + (printed[1] if printed else "")
        yield Block(found[1], body, line, not between.strip())
        last = found.end()


def overhear(arguments: list[str], *, columns: str = COLUMNS) -> tuple[int, str]:
    """Exit code of a command, and what it prints; of an error too what it says."""
    from overhear.commands.cli import main

    out, err = io.StringIO(), io.StringIO()
    kept = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "OVERHEAR_DEBUG")}
    with (
        mock.patch.dict(os.environ, {**kept, "COLUMNS": columns, "LINES": "40"}, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    said = out.getvalue() + (err.getvalue() if code else "")
    return code, "".join(line.rstrip() + "\n" for line in said.splitlines())


def console(text: str) -> Iterator[tuple[str, str, str]]:
    """(command, what it prints, what the page says) for each command of a block."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, wanted = part.partition("\n")
        plain = command.removesuffix("; echo $?")
        name, *arguments = shlex.split(plain)
        assert name == "overhear", f"only overhear is run, not {name}"
        code, got = overhear(arguments)
        if plain != command:
            got += f"{code}\n"
        else:
            assert code == 0, got
        yield command, got, wanted


def run_python(code: str, namespace: dict[str, Any], *, where: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, where, "exec"), namespace)  # noqa: S102 - the page's own code
    return out.getvalue()


def run_session(block: Block, namespace: dict[str, Any], *, where: str) -> list[str]:
    """What a session of statements gets wrong."""
    wrong: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.text, namespace, where, where, block.line)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=wrong.append, clear_globs=False)
    namespace.update(test.globs)  # the parser copies what it is given
    return wrong


def same(wanted: str, got: str) -> bool:
    lines = ["".join(line.rstrip() + "\n" for line in text.splitlines()) for text in (wanted, got)]
    return doctest.OutputChecker().check_output(lines[0], lines[1], FLAGS)


def differences(page: Path) -> list[str]:
    """Where a page differs from what happens; run in a folder of its own."""
    namespace: dict[str, Any] = {"__name__": "page"}
    wrong: list[str] = []
    printed = ""
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.kind == "pycon":
            wrong += run_session(block, namespace, where=where)
        elif block.kind == "python" and (name := re.match(r"# (\w+\.py)\n", block.text)):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            printed = run_python(block.text, namespace, where=where)
        elif block.kind == "text" and block.follows and not same(block.text, printed):
            wrong.append(f"{where}: prints\n{printed}")
        elif block.kind == "toml" and (name := re.match(r"# ([\w-]+\.toml)\n", block.text)):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.kind == "jsonl" and (name := re.match(r"# ([\w-]+\.jsonl)\n", block.text)):
            Path(name[1]).write_text(block.text[name.end() :], encoding="utf-8")
        elif block.kind == "console":
            for command, got, wanted in console(block.text):
                if not same(wanted, got):
                    wrong.append(f"{where}: {command} prints\n{got}")
    return wrong


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.stem in SLOW else [], id=page.stem)
        for page in [*PAGES, ROOT / "README.md"]
    ],
)
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        wrong = differences(page)
    finally:
        torch.set_num_threads(threads)
        for module in list(sys.modules.values()):  # files of the page
            if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[module.__name__]
    assert not wrong, "\n".join(wrong)


def commands() -> list[str]:
    from typer.main import get_command

    from overhear.commands.cli import app

    return list(get_command(app).commands)  # type: ignore[attr-defined] # a group


def make_help(name: str) -> str:
    """The help of a command; "overhear" is the program itself."""
    arguments = ["--help"] if name == "overhear" else [name, "--help"]
    return f"```text\n{overhear(arguments, columns=HELP_COLUMNS)[1]}```\n"


def schema() -> dict[str, Any]:
    from overhear.runs.run_file.run_file import run_file_schema

    return run_file_schema()


def tables() -> dict[str, Mapping[str, Any]]:
    """The schema of each table of a run file, by name."""
    whole, found = schema(), {}
    for name, entry in whole["properties"].items():
        of = next(part["$ref"] for part in (entry, *entry.get("anyOf", [])) if "$ref" in part)
        found[name] = whole["$defs"][of.rpartition("/")[2]]
    return found


def make_keys(name: str) -> str:
    """The keys of a table of the run file, as a table of the page."""
    table = tables()[name]
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, entry in table["properties"].items():
        needed = key in table.get("required", ())
        default = "required" if needed else _default(entry.get("default"))
        meaning = " ".join(entry["description"].split())  # a row is one line
        lines.append(f"| `{key}` | {_values(entry)} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _default(value: Any) -> str:
    if value is None or value in ([], ()):
        return "none"
    if isinstance(value, list):
        return "[" + ", ".join(_default(v).strip("`") for v in value) + "]"
    return f"`{value}`"


def _values(entry: Mapping[str, Any]) -> str:
    entry = next((p for p in entry.get("anyOf", ()) if p.get("type") != "null"), entry)
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return ", ".join(f"`{choice}`" for choice in entry["enum"])
    if entry["type"] == "array":
        return "list of " + _values(entry["items"])
    if entry["type"] == "object":
        return "table"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {entry[key]:g}" for key, sign in signs.items() if key in entry]
    return " ".join([entry["type"], *bounds])


def make_names(name: str) -> str:
    """The public names of a part, as a table of the page."""
    from tests.documented_names import table_of

    return table_of(name)


MAKERS = {"help": make_help, "keys": make_keys, "api": make_names}


def generated() -> list[tuple[Path, str, str, str]]:
    """(page, kind, name, text) of every generated section."""
    return [
        (page, kind, name, text)
        for page in PAGES
        for kind, name, text in GENERATED.findall(page.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [found[1:] for found in generated()],
    ids=[f"{kind}-{name}" for _, kind, name, _ in generated()],
)
def test_a_generated_section_is_up_to_date(kind, name, text):
    assert text == MAKERS[kind](name), "run: python tests/test_docs.py --write"


def test_every_command_is_documented_once():
    named = [name for _, kind, name, _ in generated() if kind == "help"]
    assert sorted(named) == sorted(["overhear", *commands()])


def test_every_command_has_a_page_of_its_own():
    index = LINK.findall((DOCS / "commands.md").read_text(encoding="utf-8"))
    pages = {name: page.name for page, kind, name, _ in generated() if kind == "help"}
    assert pages == {"overhear": "commands.md", **{name: f"{name}.md" for name in commands()}}
    assert {f"{name}.md" for name in commands()} <= set(index)


def test_every_command_is_called_in_an_example_of_a_page():
    code = re.compile(r"^(```|~~~)\w+\n(.*?)^\1$", re.M | re.S)
    shown = "".join(
        body for page in PAGES for _, body in code.findall(page.read_text(encoding="utf-8"))
    )
    assert [
        name for name in commands() if not re.search(rf"^(\$ )?overhear {name}\b", shown, re.M)
    ] == []


def test_every_operation_of_a_round_has_a_section_with_an_example_that_is_run():
    from overhear.training import Round

    page = (DOCS / "round.md").read_text(encoding="utf-8")
    sections = {
        found[1]: found[2]
        for found in re.finditer(r"^### (\w+)\n(.*?)(?=^#{2,3} |\Z)", page, re.M | re.S)
    }
    operations = {name for name in vars(Round) if not name.startswith("_")}
    assert sections.keys() == operations
    for name, text in sections.items():
        code = "".join(found[2] for found in BLOCK.finditer(text) if found[1] == "python")
        assert f"round.{name}" in code, name
        assert "```text\n" in text, name


def test_every_package_is_on_the_page_of_names_once():
    from tests.documented_names import CHOSEN, PACKAGES

    named = [name for _, kind, name, _ in generated() if kind == "api"]
    assert sorted(named) == sorted([*PACKAGES, *CHOSEN])
    reports = importlib.import_module("overhear.reports")
    assert not hasattr(reports, "__all__"), "it exports names now: list it in PACKAGES"


def test_every_documented_name_says_in_a_sentence_what_it_is():
    rows = [line for _, kind, _, text in generated() if kind == "api" for line in text.splitlines()]
    told = [row.split(" | ")[1] for row in rows if row.startswith("| `")]
    assert len(told) > 100
    assert [words for words in told if not re.fullmatch(r"\S.{8,}\.", words)] == []


def test_the_index_leads_to_every_page():
    index = LINK.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    missing = {page.name for page in PAGES} - {target.partition("#")[0] for target in index}
    assert missing == {"index.md"}


def test_every_table_of_a_run_file_is_documented_once():
    named = [name for _, kind, name, _ in generated() if kind == "keys"]
    assert sorted(named) == sorted(tables())


def test_every_hyper_parameter_is_documented_with_its_default():
    from overhear.training.algorithms import ALGORITHMS

    page = (DOCS / "run-file.md").read_text(encoding="utf-8")
    for name, algorithm in ALGORITHMS.items():
        assert f"| `{name}` |" in page
        settings = algorithm.settings()
        for field in fields(settings):
            row = f"| `{name}` | `{field.name}` | `{getattr(settings, field.name)}` |"
            assert row in page, row


def test_every_preset_and_scenario_is_documented():
    from overhear.attacks import PRESETS, Scenario

    pages = [DOCS / "attacks.md", DOCS / "attack-stages.md"]
    page = "".join(one.read_text(encoding="utf-8") for one in pages)
    for name in (*PRESETS, *Scenario):
        assert f"| `{name}` |" in page


def _anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", re.sub(BLOCK, "", text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_a_page_has_no_dead_link(page):
    for target in LINK.findall(re.sub(BLOCK, "", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text(encoding="utf-8")), target


def test_a_block_of_a_page_is_of_a_kind_that_is_run():
    # Of these commands take minutes, need data or another environment.
    run = [page for page in PAGES if page not in (*RESULTS, DOCS / "flower.md")]
    kinds = {block.kind for page in run for block in blocks(page)}
    assert kinds <= {"pycon", "python", "text", "toml", "jsonl", "console"}


def test_the_results_name_run_files_that_exist():
    """Their commands take minutes or need data, so only their files are checked."""
    from overhear.runs.run_file.run_file import load_run_file
    from overhear.runs.sweep.sweep_file import read_sweep_file

    text = "".join(block.text for page in RESULTS for block in blocks(page))
    named = set(re.findall(r"((?<!-)sweep )?(examples/[\w-]+\.toml)", text))
    assert named
    for is_sweep, name in named:
        (read_sweep_file if is_sweep else load_run_file)(ROOT / name)


def test_a_wrong_figure_on_a_page_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```pycon\n>>> 1 + 1\n3\n```\n\n```python\nprint(4)\n```\n\n```text\n5\n```\n\n"
        "```console\n$ overhear --version\noverhear none\n```\n\n"
        "```console\n$ overhear --version\n```\n\n<!-- printed -->\noverhear none\n<!-- end -->\n",
        encoding="utf-8",
    )
    assert len(differences(page)) == 4


def write() -> None:
    """Make the generated sections of the pages anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = GENERATED.sub(
            lambda found: (
                f"<!-- {found[1]}: {found[2]} -->\n{MAKERS[found[1]](found[2])}<!-- end -->"
            ),
            text,
        )
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(f"{page.name} is written anew")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_docs.py --write")
    sys.path.insert(0, str(ROOT))  # for what stands beside this file
    write()
