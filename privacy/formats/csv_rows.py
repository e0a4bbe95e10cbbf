"""Rows of comma-separated text, with the line that each ends in."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import InputError

__all__ = ["CsvRows"]


class CsvRows(Iterator[list[str]]):
    r"""What the parser gives, row by row.

    Args:
        path: of the text, for a refusal.
        lines: of the text, with their ends.
        separator: between cells, one character.

    Raises:
        ValueError: from an iteration: the text is no rows of cells, or no UTF-8.

    >>> rows = CsvRows(Path("a.csv"), ["a,b\n", "1,2\n"])
    >>> next(rows), rows.line
    (['a', 'b'], 1)
    """

    def __init__(self, path: Path, lines: Iterable[str], *, separator: str = ",") -> None:
        self._path = path
        self._reader = csv.reader(lines, delimiter=separator, strict=True)

    @property
    def line(self) -> int:
        """The number of the line that the last row ended in, from 1."""
        return self._reader.line_num

    def __next__(self) -> list[str]:
        try:
            return next(self._reader)
        except csv.Error as error:
            raise InputError(
                f"{self._path} line {self.line}: {error}; a cell with quotes in it is written in "
                "quotes, and each of its own twice"
            ) from error
        except UnicodeDecodeError as error:
            wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
            raise InputError(
                f"{self._path} is not UTF-8 after line {self.line}"
                f"{', it looks like UTF-16' if wide else ''}; write it anew, as by iconv -t utf-8"
            ) from error
