"""Text from elsewhere, made harmless for a line of a terminal, an XML file or Markdown.

Names of folders, models and files of a run are whatever somebody chose. Control characters move
a cursor or end a document, a line break makes a second line of one finding, and brackets make
Markdown load a picture.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["markdown_text", "plain"]

_KEPT = 300
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cn", "Cs", "Zl", "Zp"})
_MARKDOWN = re.compile(r"([\\`*_\[\]{}<>|~!#])")


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


def _shown(one: str) -> str:
    if unicodedata.category(one) in _NOT_SHOWN:
        return one.encode("unicode_escape").decode("ascii")
    return one
