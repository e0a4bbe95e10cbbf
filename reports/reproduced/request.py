"""What is asked of a reproduction, apart from its table and its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproduceRequest:
    """What is run of a table or figure, and beside what it stands."""

    cell: Annotated[Sequence[str], "KEY=VALUE,..."] = ()
    """Run these cells alone, such as algorithm=muffliato,graph=ring|full; may be repeated."""
    seeds: Annotated[int | None, "N"] = None
    """Run the first N seeds alone."""
    figures: Annotated[Path | None, "FILE"] = None
    """CSV file with the paper's figures, which come before the entry's own."""
    retry: bool = False
    """Run again what failed."""

    def __post_init__(self) -> None:
        """Check the number of seeds."""
        from ...privacy.errors import InputError  # the command line starts without numpy

        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"--seeds {self.seeds} must be at least 1")
