"""Text from elsewhere, made harmless for a line of a terminal, an XML file or Markdown.

Names of folders, models and files of a run are whatever somebody chose. Control characters move
a cursor or end a document, a line break makes a second line of one finding, brackets make Markdown
load a picture, and a cell that begins with an equals sign is a formula to a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

__all__ = ["csv_text", "markdown_text", "plain"]

_KEPT = 300
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
_MARKDOWN = re.compile(r"([\\`*_\[\]{}<>|~!#])")
_NUMBER = r"[+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|inf|∞)"
_SPREAD = rf" ± {_NUMBER}| \[{_NUMBER}, {_NUMBER}\]| \(n = \d+\)"
_FIGURE = re.compile(rf"{_NUMBER}(?:{_SPREAD})?", re.ASCII)
_FORMULA = ("=", "+", "-", "@")


def plain(text: object, *, most: int | None = _KEPT) -> str:
    r"""The text on one line, with everything that is not shown as its escape.

    Args:
        text: anything.
        most: characters to keep; None keeps all.

    >>> print(plain("a\x1b[2Jb\nc"))
    a\x1b[2Jb\nc
    """
    shown = "".join(_shown(one) for one in str(text))
    return shown if most is None or len(shown) <= most else f"{shown[: most - 3]}..."


def markdown_text(text: object) -> str:
    r"""The text as Markdown that shows it and does nothing else.

    >>> print(markdown_text("![x](http://host/y) | <b>&amp;"))
    \!\[x\](http://host/y) \| \<b\>&amp;amp;
    """
    return _MARKDOWN.sub(r"\\\1", plain(text, most=None).replace("&", "&amp;"))


def csv_text(rows: Iterable[Sequence[str]]) -> str:
    r"""Rows as CSV whose text no spreadsheet takes for a formula; numbers stay numbers.

    An apostrophe stands before a text that begins, after blanks and in any width of letters, with
    `=`, `+`, `-` or `@`: it is what OWASP proposes, and a spreadsheet shows such a cell as text.

    >>> print(csv_text([["-0.5", "=1+1", "-0.50 [-0.70, -0.30]", "-1+1"]]), end="")
    -0.5,'=1+1,"-0.50 [-0.70, -0.30]",'-1+1
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(one) for one in row] for row in rows)
    return text.getvalue()


def _cell(text: str) -> str:
    shown = plain(text, most=None)
    start = unicodedata.normalize("NFKC", shown.lstrip()[:1])
    return f"'{shown}" if start in _FORMULA and not _FIGURE.fullmatch(shown) else shown


def _shown(one: str) -> str:
    if unicodedata.category(one) in _NOT_SHOWN:
        return one.encode("unicode_escape").decode("ascii")
    return one
