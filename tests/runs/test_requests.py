"""One class says what is asked: the options of a command, the keywords of a function."""

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

import pytest
from typer import Typer
from typer.testing import CliRunner

import overhear
from overhear.commands.terminal.terminal import with_requests


@dataclass(frozen=True)
class Asked:
    draws: Annotated[tuple[int, ...], "N,..."]
    """How many."""
    _: KW_ONLY
    file: Path
    """A file.

    This is not help.
    """
    kind: Annotated[str, ("plain", "odd")] = "plain"
    """Which of the
    two."""
    names: Annotated[Sequence[str], "--name NAME"] = ()
    """What it is called; may be repeated."""
    is_deep: bool = False
    """Look deeper."""


def test_fields_are_options_with_their_docstrings_as_help():
    def command(request: Asked) -> None:
        assert request == Asked((3, 4), file=Path("x"), kind="odd", names=("a", "b"), is_deep=True)

    app, run = Typer(rich_markup_mode=None), CliRunner()
    app.command()(with_requests(command))
    said = run.invoke(app, ["--help"]).output
    assert re.search(r"--kind \W+plain\|odd\W+ +Which of the two\.", said)
    assert re.search(r"N,\.\.\. \W?\w+\W? +How many\.", said)
    assert "not help" not in said
    assert "--no-is-deep" not in said
    given = ["3,4", "--file", "x", "--kind", "odd", "--name", "a", "--name", "b", "--is-deep"]
    assert run.invoke(app, given).exit_code == 0
    assert run.invoke(app, given[:1]).exit_code == 2  # without --file


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip_nrom": 3.0}, "no clip_nrom; did you mean clip_norm?"),
        ({"xyz": 3.0}, "takes no xyz; it takes input_shape, classes"),
        ({"out": "x"}, "needs model"),
    ],
)
def test_a_keyword_that_is_none_is_refused_with_what_was_meant(tmp_path, given, words):
    (tmp_path / "g").touch()
    with pytest.raises(TypeError, match=re.escape(words)):
        overhear.attack(tmp_path / "g", **given)
