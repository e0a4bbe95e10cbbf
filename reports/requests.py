"""What is asked of a reproduction and of a plot, apart from their folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
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
        from ..privacy.errors import InputError  # the command line starts without numpy

        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"--seeds {self.seeds} must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlotRequest:
    """What is drawn of a sweep: figures of its runs, or the pictures of its attacks."""

    x: Annotated[str, "NAME"] = "round"
    """round, epsilon, or a swept key."""
    y: Annotated[str, "NAME"] = "accuracy"
    """accuracy, loss, auroc, rmse, psnr, ..."""
    line: Annotated[str | None, "KEY"] = None
    """Swept key of which each value has a line; by default the algorithm, or the first left."""
    panel: Annotated[Sequence[str], "KEY"] = ()
    """Swept key of which each value has a panel; given twice, the first is that of rows."""
    cell: Annotated[Sequence[str], "KEY=VALUE,..."] = ()
    """Draw these cells alone, such as algorithm=muffliato|dpdl,seed=1; may be repeated."""
    adversary: Annotated[str | None, "NAME"] = None
    """Adversary of --x epsilon; by default the first."""
    agents: bool = False
    """Draw the mean over the agents' own models, not the mean model."""
    gallery: bool = False
    """Draw what attacks rebuilt: truth on top, then each scenario by round, with its PSNR."""

    def __post_init__(self) -> None:
        """Refuse options that contradict each other; one key or cell may be a text alone."""
        from ..privacy.errors import InputError

        for name in ("panel", "cell"):
            if (one := getattr(self, name)) is None or isinstance(one, str):
                object.__setattr__(self, name, () if one is None else (one,))
        for name, kind in (("x", str), ("y", str), ("agents", bool), ("gallery", bool)):
            if not isinstance(one := getattr(self, name), kind):
                must = "be True or False" if kind is bool else "be a name"
                raise InputError(f"{name}={one!r} must {must}")
        if len(self.panel) > 2:
            raise InputError(f"--panel is given {len(self.panel)} times; give it at most twice")
        given = {one.name for one in fields(self) if getattr(self, one.name) != one.default}
        if self.gallery and (over := given & {"x", "y", "line", "adversary", "agents"}):
            raise InputError(f"--{min(over)} has no effect with --gallery; leave one of them out")
        if self.adversary is not None and self.x != "epsilon":
            raise InputError("--adversary has no effect without --x epsilon; leave it out")
