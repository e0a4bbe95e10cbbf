"""Rows of comma-separated text, with the line that each ends in, and the names that begin them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..errors import InputError
from ..files import read_bounded

LONGEST_ROW = 1 << 20  # characters


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse columns of which two have one name.

    Raises:
        ValueError: with the first such name.
    """
    for name, times in Counter(names).items():
        if times > 1:
            raise InputError(f"{path} has {times} columns {name!r:.80}; name each once")


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
        self._path, self._held = path, 0
        self._reader = csv.reader(self._counted(lines), delimiter=separator, strict=True)

    def _counted(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            self._held += len(line)  # a quoted cell takes a row on to the next line
            if self._held > LONGEST_ROW:
                raise InputError(
                    f"{self._path} line {self.line + 1} is longer than {LONGEST_ROW} characters, "
                    "or the row is that ends in it; is it a csv file, and each quote closed?"
                )
            yield line

    @classmethod
    def of_file(cls, path: Path, most: int) -> CsvRows:
        """Those of a file of at most so many bytes."""
        held = io.BytesIO(read_bounded(path, most))
        return cls(path, io.TextIOWrapper(held, encoding="utf-8-sig", newline=""))

    @property
    def line(self) -> int:
        """The number of the line that the last row ended in, from 1."""
        return self._reader.line_num

    def __next__(self) -> list[str]:
        self._held = 0
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
