"""What is a command: an old spelling says what to type, and no option is of a mode of another."""

import re

import pytest
import typer

from overhear.commands.cli import app, main
from overhear.commands.terminal.anywhere import BECAME

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined] # a group

# An old spelling, and what is to be typed in its place.
SPELLINGS = {
    "audit run --membership --games 2": "membership run --games 2",
    "audit --last-model run.toml --runs 20": "audit-last-model run.toml --runs 20",
    "audit logs --oracle a:b --draw 2": "audit-log logs --oracle a:b --draw 2",
    "audit logs --oracle=a:b": "audit-log logs --oracle=a:b",
    "audit --scores s.csv --claim epsilon=3": "audit-scores s.csv --claim epsilon=3",
    "audit --claim epsilon=3 --scores=s.csv": "audit-scores --claim epsilon=3 s.csv",
    "attack --train a:b --data a:c": "membership-training a:b --data a:c",
    "attack run.toml --out runs --json": "attack-sweep run.toml --out runs --json",
    "attack run.toml --sweep a.b=1,2 --out x": "attack-sweep run.toml --sweep a.b=1,2 --out x",
    "attack run.toml --set a.b=1 --images 2": "attack-sweep run.toml --set a.b=1 --set "
    "attack.images=2 --out DIR",
    "audit --trust-code logs --oracle a:b": "audit-log logs --oracle a:b",
    "audit run --membership --membership": "membership run",
}
# An old spelling whose words the new command does not take, and what it says of them.
NEITHER = {
    "attack run --out x": "`overhear attack run`",
    "attack run.toml --markdown": "Missing option '--out'",
    "audit run --membership --set a.b=1": "No such option: --set",
    "audit run.toml --membership": "`overhear train run.toml --out DIR`",
}


@pytest.mark.parametrize("old", SPELLINGS)
def test_an_old_spelling_is_refused_with_the_new_one_which_is_read(old, capsys):
    assert main(old.split()) == 2
    assert f"type `overhear {SPELLINGS[old]}`" in capsys.readouterr().err
    name, *arguments = SPELLINGS[old].split()
    COMMANDS[name].make_context(name, arguments)


@pytest.mark.parametrize("old", NEITHER)
def test_no_line_is_to_be_typed_that_would_be_refused(old, capsys):
    assert main(old.split()) == 2
    told = capsys.readouterr().err
    assert NEITHER[old] in told
    assert "; type `" not in told


def test_a_word_with_a_space_is_quoted_and_one_behind_two_dashes_is_no_option(capsys):
    assert main(["audit", "my run", "--membership"]) == 2
    assert "`overhear membership 'my run'`" in capsys.readouterr().err
    assert main(["audit", "--", "--membership"]) == 2
    assert "type `overhear" not in capsys.readouterr().err


def test_an_option_of_another_command_names_that(capsys):
    assert main(["audit", "run", "--minutes", "3"]) == 2
    assert "no option of audit, but of membership and audit-last" in capsys.readouterr().err


def test_what_became_a_command_is_none_of_the_options_left():
    for command, became in BECAME.items():
        assert set(became.values()) <= set(COMMANDS)
        assert not {option for one in COMMANDS[command].params for option in one.opts} & set(became)


def test_no_help_text_is_of_a_mode():
    mode = re.compile(r"(With --|For (DIR|RUN)|Instead of)")
    assert [
        (name, one.name)
        for name, command in COMMANDS.items()
        for one in command.params
        if mode.match(getattr(one, "help", None) or "")
    ] == []
