"""One class says what is asked: the options of a command, the keywords of a function."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from typer import Typer
from typer.testing import CliRunner

import overhear
from overhear.commands.terminal.requests import with_requests
from overhear.runs.attack.gradients.request import GradientRequest
from overhear.runs.requests import request_of


@dataclass(frozen=True)
class Base:
    draws: Annotated[tuple[int, ...] | None, "N,..."] = None
    """How many."""


@dataclass(frozen=True)
class Asked(Base):
    _: KW_ONLY
    file: Path
    """A file.

    This is not help.
    """
    kind: Literal["plain", "odd"] = "plain"
    """Which of the
    two."""
    names: Annotated[Sequence[str], "NAME"] = ()
    """What it is called; may be repeated."""
    is_deep: bool = False
    """Look deeper."""


def given(*arguments: str) -> tuple[int, str, list[Asked]]:
    seen: list[Asked] = []
    app = Typer(rich_markup_mode=None)

    def command(request: Asked) -> None:
        seen.append(request)

    app.command()(with_requests(command))
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output, seen


def test_fields_are_options_with_their_docstrings_as_help():
    code, said, _ = given("--help")
    assert code == 0
    assert re.search(r"--kind <?\[?plain\|odd\]?>? +Which of the two\.", said)
    assert "not help" not in said
    assert "--no-is-deep" not in said
    assert re.search(r"N,\.\.\. <?\w+>? +How many\.", said)


def test_the_options_make_the_request():
    assert given("3,4", "--file", "x")[2] == [Asked((3, 4), file=Path("x"))]
    options = ("--file", "x", "--kind", "odd", "--names", "a", "--names", "b", "--is-deep")
    expected = Asked(file=Path("x"), kind="odd", names=("a", "b"), is_deep=True)
    assert given(*options)[2] == [expected]
    assert given()[0] == 2


def test_a_keyword_that_is_none_is_refused_with_what_was_meant():
    with pytest.raises(TypeError, match=r"an attack takes no clip_nrom; did you mean clip_norm\?"):
        request_of(GradientRequest, {"clip_nrom": 3.0}, of="an attack")
    with pytest.raises(TypeError, match="an attack takes no xyz; it takes input_shape, classes"):
        request_of(GradientRequest, {"xyz": 3.0}, of="an attack")
    with pytest.raises(TypeError, match="an attack needs gradients"):
        request_of(GradientRequest, {"model": "mlp"}, of="an attack")


def test_the_public_function_refuses_it_too(tmp_path):
    (tmp_path / "g").touch()
    with pytest.raises(TypeError, match=r"no restrats; did you mean restarts\?"):
        overhear.attack(tmp_path / "g", model="mlp", out="x", restrats=2)
