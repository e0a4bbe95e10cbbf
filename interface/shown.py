"""Rows in plain text, in HTML for a notebook, and as a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..privacy.errors import InputError
from ..privacy.missing import needs
from ..privacy.plain_text import aligned, plain_lines

if TYPE_CHECKING:
    from pandas import DataFrame


_LEFT = ' style="text-align:left"'


def as_text(head: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """A line, a table of head -> cell, and sentences below it.

    >>> print(as_text("two", [{"name": "a", "figure": "1"}, {"name": "bb", "figure": "22"}]))
    two
    <BLANKLINE>
    name  figure
    a     1
    bb    22
    """
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [heads, *([row.get(key, "") for key in heads] for row in rows)]
    lines = aligned(cells) if rows else ()
    told = list(notes)
    text = "\n".join([head, "", *lines, *([""] if told else []), *told])
    return plain_lines(text.rstrip("\n"))


def as_html(head: str, rows: Sequence[Mapping[str, str]], notes: Iterable[str] = ()) -> str:
    """The same as a table of HTML; nothing is loaded for it."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    top = "".join(f"<th{_LEFT}>{escape(key)}</th>" for key in heads)
    body = "".join(
        "<tr>" + "".join(f"<td{_LEFT}>{escape(row.get(key, ''))}</td>" for key in heads) + "</tr>"
        for row in rows
    )
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return plain_lines(
        f"<p><b>{escape(head)}</b></p><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>{said}"
    )


def as_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A data frame.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise ImportError(needs("to_pandas", "pandas")) from error
    return DataFrame(list(rows))


def overrides_of(values: Mapping[str, Any]) -> list[str]:
    """Overrides in the words of the command line, of values by "table.key" or by table and key.

    Raises:
        ValueError: a key without a table, or a value that a run file cannot hold.

    >>> overrides_of({"privacy.epsilon": 3, "training": {"rounds": 20}})
    ['privacy.epsilon=3', 'training.rounds=20']
    """
    import tomli_w

    found = []
    for name, value in values.items():
        table, _, key = str(name).partition(".")
        if not key and isinstance(value, Mapping):
            found += overrides_of({f"{table}.{inner}": v for inner, v in value.items()})
            continue
        if not key:
            raise InputError(
                f"set={{{name!r}: ...}} must name a table and a key: 'privacy.epsilon'"
            )
        held = list(value) if isinstance(value, tuple | list | set | frozenset) else value
        try:
            text = tomli_w.dumps({"value": held})
        except TypeError as error:
            raise InputError(
                f"set {name}={value!r:.60} is nothing that a run file holds"
            ) from error
        found.append(f"{name}={' '.join(text.partition('=')[2].split())}")
    return found
