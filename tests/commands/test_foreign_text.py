"""What somebody else named moves no cursor and makes no second sentence, wherever it is told."""

import json
import os
import unicodedata
from pathlib import Path

import pytest
from rich.text import Text

from overhear.commands.cli import main
from overhear.commands.terminal import terminal
from overhear.privacy.errors import InputError
from overhear.reports.document.html import render
from overhear.reports.document.markdown import report_markdown
from overhear.runs.errors import sentence
from overhear.runs.run_file.run_file import load_run_file
from overhear.runs.stop import tell
from tests.conftest import RUN_FILE, typed
from tests.test_hostile_files import files_with

EVIL = "a\x1b[2J\x9b1m\u202eb\nerror: c\r\x07"
TOLD = r"a\x1b[2J\x9b1m\u202eb"
MOVES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def moving(text: str) -> set[str]:
    """What of a text is not shown, but for the ends of its lines."""
    return {one for one in text if unicodedata.category(one) in MOVES and one != "\n"}


@pytest.mark.parametrize(
    "words", [f"run {EVIL} is wrong", f"run.toml has 2 problems:\n  {EVIL}\n  another"]
)
def test_an_error_is_one_sentence_whatever_it_names(words):
    for error in (InputError(words), FileNotFoundError(words), FileNotFoundError(2, "no", words)):
        told = sentence(error)
        assert moving(told) == set()
        assert TOLD in told
        assert not any(line.startswith("error:") for line in told.splitlines())
    assert moving(str(InputError(words))) == set()


def test_what_is_printed_is_escaped_where_it_leaves(capsys, tmp_path):
    console, table = terminal.make_console(), terminal.make_table(EVIL)
    table.caption = EVIL
    table.add_column(EVIL)
    table.add_row(EVIL)
    console.print(table)
    console.print(EVIL)
    terminal.say(console, EVIL)
    terminal.write(EVIL)
    terminal.write(Path(EVIL))
    tell(EVIL)
    log = terminal.Log()
    log.begin("x", path=tmp_path / "log")
    log.line(EVIL)
    log.end()
    printed = capsys.readouterr()
    for text in (printed.out, printed.err, (tmp_path / "log").read_text()):
        assert moving(text) == set()
        assert r"\x1b" in text
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    terminal.print_json({EVIL: EVIL})
    assert json.loads(capsys.readouterr().out) == {"schema": 1, EVIL: EVIL}


def test_colours_of_the_console_are_let_through(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = terminal.make_console()
    with console.capture() as held:
        console.print(Text("a", "bold"), "[/b]\x1b[2J")
    assert held.get() == "\x1b[1ma\x1b[0m [/b]\\x1b[2J\n"


@pytest.mark.parametrize("key", [f"[{json.dumps(EVIL)}]\na = 1", f"[data]\n{json.dumps(EVIL)} = 1"])
@pytest.mark.parametrize("command", ["plan", "check", "sweep"])
def test_a_key_of_a_file_is_told_as_text(key, command, capsys, tmp_path):
    path = tmp_path / "file.toml"
    path.write_text(key, encoding="utf-8")
    given = {"plan": [str(path)], "check": [str(tmp_path), "--policy", str(path)],
             "sweep": [str(path), "--out", str(tmp_path / "out")]}  # fmt: skip
    assert main([command, *given[command]]) == 2
    told = capsys.readouterr().err
    assert moving(told) == set()
    assert told.count("error:") - told.count(r"\nerror:") == 1


@pytest.mark.parametrize("command", ["report", "attack", "audit", "compare", "total"])
def test_a_folder_is_told_as_text(command, capsys, tmp_path):
    folder = tmp_path / EVIL
    folder.mkdir()
    assert main([command, str(folder), *([str(folder)] if command == "compare" else [])]) == 2
    told = capsys.readouterr()
    assert moving(told.out + told.err) == set()
    assert sum(line.startswith("error:") for line in told.err.splitlines()) == 1


def test_a_file_whose_name_is_no_text_is_told(capsys, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.toml")
    assert main(["plan", path]) == 2
    assert r"\udcff.toml" in capsys.readouterr().err


def test_a_report_shows_foreign_names_as_text(report):
    for key, value in report["run"].items():
        if isinstance(value, str) and key not in {"form", "links"}:
            report["run"][key] = EVIL
    report["reproduce"]["environment"]["device"] = EVIL
    for text in (render(typed(report)), report_markdown(typed(report))):
        assert moving(text) == set()
        assert "x1b" in text


def test_an_override_and_a_run_file_name_no_more_than_text(tmp_path):
    (tmp_path / "run.toml").write_text(RUN_FILE)
    with pytest.raises(InputError) as told:
        load_run_file(tmp_path / "run.toml", [f"data.{EVIL}=1", f"{EVIL}.a=1", "data.name=1"])
    lines = str(told.value).splitlines()
    assert moving(str(told.value)) == set()
    assert all(line.startswith("  ") for line in lines[1:])


# Where texts leave the tool; nothing else prints.
PRINTERS = {
    "commands/terminal/terminal.py",
    "runs/stop.py",
    "commands/__main__.py",  # the name of a package of ours that is missing
}


def test_nothing_is_printed_elsewhere():
    prints = r"\bprint|sys\.std(?:out|err)\.write|typer\.echo|\bConsole|traceback\.print_exc\w*"
    found = files_with(rf"(?<![.\"'])(?<!class )(?:{prints}|\bEnvironment)\(.+")
    assert found - {"reports/references.py", "reports/document/declared.py"} == PRINTERS  # types
