"""The public name `report`: the page that is read and signed, or its figures."""

from __future__ import annotations

from pathlib import Path

from .run import Run
from .shown import Report, report_of_folder

__all__ = ["report"]


def report(target: Run | str | Path, format: str = "html", *, show_records: bool = False) -> Report:
    """The report of a run, of a folder with logs of releases, or of an attack on gradients.

    Args:
        target: a `Run`, its folder, a folder of logs, or what `overhear invert` wrote.
        format: "html" writes the page beside what it is about; "json" and "md" write nothing.
        show_records: whether the page shows training records, and not public ones alone.

    Raises:
        FileNotFoundError: no run is there.
        ValueError: another format, or a run that cannot be read.
    """
    folder = target.folder if isinstance(target, Run) else Path(target)
    return report_of_folder(folder, format, show_records=show_records)
