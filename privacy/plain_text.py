"""Text from elsewhere, made harmless for a terminal, a log, an XML file, a page or Markdown.

Names of folders, models and files of a run are whatever somebody chose. Control characters move
a cursor or end a document, a line break makes a second line of one finding, brackets make Markdown
load a picture, and a cell that begins with an equals sign is a formula to a spreadsheet.

Whatever leaves the tool passes here where it leaves: an error where it is made
(`privacy.errors.InputError`) and told (`runs.errors.sentence`), what a command prints
(`commands.terminal.terminal`), lines of a log, and values in a template (`reports.references`).
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape

_KEPT = 300
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
# Letters and marks that no font draws (Default_Ignorable_Code_Point), and Braille without a dot.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_LISTED = "\n  "
_MARKDOWN = re.compile(r"([\\`*_\[\]{}<>|~!#])")
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|∞)"
_SPREAD = rf" ± {_NUMBER}| \[{_NUMBER}, {_NUMBER}\]| \(n = \d+\)"
_FIGURE = re.compile(rf"{_NUMBER}(?:{_SPREAD})?", re.ASCII)
_FORMULA = ("=", "+", "-", "@")
_OTHER_ENDS = re.compile("([;|])")  # of a cell where a country's numbers have commas


def plain_lines(text: str) -> str:
    r"""A text of lines, with everything in them that is not shown as its escape.

    >>> print(plain_lines("a\x1b[2J\nb\u202e"))
    a\x1b[2J
    b\u202e
    """
    if _is_shown(text):
        return text
    return "".join(one if one in "\n\t" else _seen(one) for one in text)


def plain_sentence(text: str) -> str:
    r"""A sentence, or one that lists others below it, each on a line of its own behind two blanks.

    Another end of a line was in what somebody named, where it would begin a sentence of ours.
    """
    return text if _is_shown(text) else _LISTED.join(map(_line, text.split(_LISTED)))


def plain(text: object, *, most: int | None = _KEPT) -> str:
    r"""The text on one line, with everything that is not shown as its escape.

    Args:
        most: characters to keep; None keeps all.

    >>> print(plain("a\x1b[2Jb\nc"))
    a\x1b[2Jb\nc
    """
    shown = _line(str(text))
    return shown if most is None or len(shown) <= most else f"{shown[: most - 3]}..."


def markdown_text(text: object) -> str:
    r"""The text as Markdown that shows it and does nothing else.

    >>> print(markdown_text("![x](http://host/y) | <b>&amp;"))
    \!\[x\](http://host/y) \| \<b\>&amp;amp;
    """
    return _MARKDOWN.sub(r"\\\1", plain(text, most=None).replace("&", "&amp;"))


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""A table in Markdown whose cells show their text and do nothing else.

    Args:
        heads: as they are written; text of somebody else's takes `markdown_text` before.

    >>> print(markdown_table(["`graph`", "run"], [["ring", "a|b"]]), end="")
    | `graph` | run |
    | --- | --- |
    | ring | a\|b |
    """
    lines = [heads, ["---"] * len(heads), *([markdown_text(one) for one in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number_of(number: int, noun: str) -> str:
    """How many there are of something, in the plural but for one.

    >>> number_of(1, "round"), number_of(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def in_columns(rows: Sequence[Mapping[str, str]]) -> tuple[list[str], list[list[str]]]:
    """The heads of rows of head -> cell, and their cells; empty where a row lacks a head.

    >>> in_columns([{"graph": "ring"}, {"psnr": "11 dB"}])
    (['graph', 'psnr'], [['ring', ''], ['', '11 dB']])
    """
    heads = list(dict.fromkeys(head for row in rows for head in row))
    return heads, [[row.get(head, "") for head in heads] for row in rows]


def html_table(
    lines: Sequence[str],
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Iterable[str] = (),
) -> str:
    """Lines, a table and sentences below it as HTML that shows their text and does nothing else."""
    left = ' style="text-align:left"'
    first, *more = map(escape, lines)
    top = "".join(f"<th{left}>{escape(head)}</th>" for head in heads)
    cells = ("".join(f"<td{left}>{escape(cell)}</td>" for cell in row) for row in rows)
    return plain_lines(
        f"<p>{'<br>'.join((f'<b>{first}</b>', *more))}</p><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in cells)}</tbody></table>"
        f"{''.join(f'<p>{escape(note)}</p>' for note in notes)}"
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells in columns, each as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def _line(text: str) -> str:
    return text if _is_shown(text) else "".join(map(_seen, text))


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    r"""Rows as CSV whose text no spreadsheet takes for a formula; numbers stay numbers.

    An apostrophe stands before a text that begins, after blanks and in any width of letters, with
    `=`, `+`, `-` or `@`: it is what OWASP proposes, and a spreadsheet shows such a cell as text. So
    does what another spreadsheet takes for the next cell, which ends one at `;` instead of a comma.

    >>> print(csv_text([["-0.5", "=1+1", "-0.50 [-0.70, -0.30]", "a;-1+1"]]), end="")
    -0.5,'=1+1,"-0.50 [-0.70, -0.30]",a;'-1+1
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(one) for one in row] for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    shown = plain(text, most=None)
    if _FIGURE.fullmatch(shown):
        return shown
    return "".join(map(_no_formula, _OTHER_ENDS.split(shown)))


def _no_formula(text: str) -> str:
    start = unicodedata.normalize("NFKC", text.lstrip()[:1])
    return f"'{text}" if start in _FORMULA else text


def _is_shown(text: str) -> bool:
    return text.isprintable() and not _BLANK.search(text)


def _seen(one: str) -> str:
    if unicodedata.category(one) in _NOT_SHOWN or _BLANK.match(one):
        return one.encode("unicode_escape").decode("ascii")
    return one
