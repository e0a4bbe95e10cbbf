"""Text from elsewhere on a line of a terminal, in XML and in Markdown."""

import ast
import csv
import io
import re
from pathlib import Path

import pytest

import overhear
from overhear.privacy.plain_text import csv_text, markdown_text, plain, plain_lines, plain_sentence

HOSTILE = "a\x00\x1b[31m\n\r\u202e\ud800\ufffe\u2028b"


def test_plain_text_is_one_line_without_control_characters():
    shown = plain(HOSTILE)
    assert shown == r"a\x00\x1b[31m\n\r\u202e\ud800\ufffe\u2028b"
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize("one", list("\u034f\u115f\u17b5\u180b\u2800\u3164\ufe0f\uffa0\U000e0100"))
def test_a_letter_that_no_font_draws_is_its_escape(one):
    """Python takes it for one that can be printed; two names would look the same."""
    assert one.isprintable()
    for shown in (plain(f"ring{one}"), plain_lines(f"ring{one}"), plain_sentence(f"ring{one}")):
        assert shown == "ring" + one.encode("unicode_escape").decode()


def test_ordinary_text_is_kept():
    assert plain(ordinary := "ε ≤ 8 – “re\u0301” 数 한국 עברית 👍") == ordinary


def test_long_text_is_cut_and_says_so():
    assert plain("x" * 400) == "x" * 297 + "..."
    assert plain("x" * 400, most=None) == "x" * 400


@pytest.mark.parametrize("sign", list("\\`*_[]{}<>|~!#"))
def test_a_sign_of_markdown_is_escaped(sign):
    assert markdown_text(f"a{sign}b") == f"a\\{sign}b"


def test_markdown_cannot_be_broken_out_of_a_cell():
    assert "\n" not in markdown_text("a\n\n# b")


@pytest.mark.parametrize(
    "text",
    [
        *("=HYPERLINK(1)", "+1+1", "-1+cmd|' /C calc'!A0", "@SUM(1)", "\t=1+1", "\r=1+1", "\n=1"),
        *(" =1+1", "\u00a0=1+1", "\u200b=1+1", "＝1+1", "－1－1", "-0.5 [1, =1]", "-0.5\n=1", "-٣"),
        *("a;=1+1", "a; =1+1;b", "a,b|@SUM(1)", 'a";＝1+1', "-0.5;-1+1", "-0.5 [1, 2];+1"),
    ],
)
def test_a_text_cell_of_csv_is_no_formula(text):
    (cell,) = next(csv.reader(io.StringIO(csv_text([[text]]))))
    for part in re.split("[;|]", cell):
        assert not part.lstrip().startswith(("=", "+", "-", "@", "＝", "－"))
    assert "\n" not in cell
    assert "\t" not in cell


@pytest.mark.parametrize(
    "figure",
    [
        "-0.5",
        "+0.12",
        "-1e-05",
        "-0.5 [-0.7, -0.3]",
        "+0.1 (n = 1)",
        "-∞",
        "–",
        "dp-a=b",
        "a;b=1|c",
    ],
)
def test_figures_and_names_stay_as_they_are_in_csv(figure):
    assert list(csv.reader(io.StringIO(csv_text([[figure, "a"]])))) == [[figure, "a"]]


def test_csv_is_written_in_one_place():
    root = Path(overhear.__file__).parent
    rooms = [root / part for part in ("privacy", "training", "attacks", "runs", "reports")]
    rooms += [root / part for part in ("interface", "commands", "testing", "adapters")]
    writers = {"writer", "DictWriter", "to_csv", "savetxt", "write_csv"}
    found = {
        path.relative_to(root).as_posix()
        for room in rooms
        for path in room.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in writers
    }
    assert found == {"privacy/plain_text.py"}
