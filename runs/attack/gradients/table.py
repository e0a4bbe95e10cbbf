"""Rows of a table among gradients: their columns, from a run file, and what was rebuilt of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ....attacks.scoring.columns import decoded
from ....attacks.scoring.metrics import match
from ....privacy.errors import InputError
from ....privacy.formats.toml_text import read_toml
from ....training.data.dataset import TableColumn
from ....training.data.tables.columns import Declared, declared
from ....training.data.tables.load import columns_of
from ..rows import score_columns, values_of, whole_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientTable:
    """The columns of the records behind gradients.

    Attributes:
        declaration: as a run file has it.
        columns: what the numbers of a record stand for.
        separator: of csv files.
    """

    declaration: Declared
    columns: tuple[TableColumn, ...]
    separator: str

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Refuse records of another number of numbers.

        Raises:
            ValueError: the shape is not that of the columns.
        """
        width = self.declaration.width
        if input_shape != (width,):
            raise InputError(
                f"input_shape={input_shape} must be ({width},), as many numbers as the declared "
                "columns have; leave it out"
            )

    def told(self, found: Tensor, truth: Tensor | None, *, guess: Tensor) -> dict[str, object]:
        """What a `GradientAttack` says of rows: values, and with the truth scores by column.

        Args:
            found: (N, D) on the unit box.
            truth: (N, D), each beside its match; None where it is not known.
            guess: (D,) what is public.
        """
        said: dict[str, object] = {"values": values_of(self.columns, found)}
        if truth is not None:
            matched = found[list(match(truth, found).order)]
            said["whole"] = whole_rows(self.columns, truth, decoded(matched, self.columns))
            blind = guess.expand_as(truth)
            said["columns"] = score_columns(self.columns, truth, matched, blind)
        return said


def read_columns(path: Path) -> GradientTable:
    """The columns that a run file declares.

    Args:
        path: a TOML file whose [data] has columns and target.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: it is no TOML, or declares no columns.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file of columns at {path}")
    data = read_toml(path).get("data")
    known = data.get("columns") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(known, dict) or not _are_lists(known):
        raise InputError(
            f'{path} must declare [data.columns], by name [low, high] or ["f", "m"], as the run '
            "file of a table does"
        )
    target, separator = data.get("target", ""), data.get("separator", ",")
    if not isinstance(target, str) or not isinstance(separator, str):
        raise InputError(f"{path}: [data] target and separator must be text")
    declaration = declared(known, target=target, outputs=0, clamp=data.get("outside") == "clamp")
    return GradientTable(
        declaration=declaration, columns=columns_of(declaration), separator=separator
    )


def _are_lists(columns: dict[str, object]) -> bool:
    return all(isinstance(of, Sequence) and not isinstance(of, str) for of in columns.values())
