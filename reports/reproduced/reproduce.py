"""Run an entry at a scale by the engine of sweeps, and hold what comes out against the paper.

DIR/     the folder of a sweep: sweep.toml, points/, results/, ...; `table` and `plot` read it
DIR/reproduction.json, DIR/reproduction.md     the lines beside the paper's, and the verdicts
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...privacy._validate import StatedProgress
from ...privacy.durable import SHOWN, write_durably
from ...privacy.errors import InputError
from ...privacy.formats.json_text import read_json
from ...privacy.inside import check_links
from ...runs.described import LARGEST_OBJECT
from ...runs.stop import Stop
from ...runs.sweep.sweep import run_sweep
from ...runs.sweep.sweep_file import SWEEP, SweepFile
from ..reproductions.entry import Entry, Figure, ScaleName
from .data_at_hand import check_data
from .figures_file import read_figures
from .outcome import Outcome, outcome_of, outcome_of_closed_form
from .outcome_text import as_data, as_markdown
from .scales import check_runnable, sweep_of

__all__ = ["reproduce"]

_DATA, _TEXT = "reproduction.json", "reproduction.md"


def reproduce(
    entry: Entry,
    name: ScaleName,
    out: Path,
    *,
    figures: Path | None = None,
    jobs: int | None = None,
    retry: bool = False,
    progress: StatedProgress | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Run what has not ended yet, and compare.

    Args:
        out: the folder; goes on where it stopped.
        figures: CSV file with the paper's figures; these come before the entry's own.
        jobs: processes at once.
        retry: whether runs that failed are tried again.
        progress: called with (done, total, what) after each run.
        stop: asked to stop, it ends; what is done is kept.

    Raises:
        FileExistsError: the folder holds something else.
        FileNotFoundError: data are not at hand.
        ValueError: the entry lacks an ingredient, or a file of figures does not fit.
        Interrupted: it was asked to stop.
    """
    check_runnable(entry)
    _check_folder(entry, name, out)
    if entry.closed is not None:
        computed = entry.closed(name)
        given = _given(figures, [one.place for one in computed])
        outcome = outcome_of_closed_form(entry, name, computed, figures=(*given, *entry.figures))
        out.mkdir(parents=True, exist_ok=True)
    else:
        check_data(entry.name, entry.scales[name])
        sweep, base = sweep_of(entry, name)
        given = _given(figures, _places(sweep))
        run_sweep(sweep, base, out, jobs=jobs, retry=retry, progress=progress, stop=stop)
        outcome = outcome_of(entry, name, out, figures=(*given, *entry.figures))
    data = json.dumps(as_data(outcome), indent=2, ensure_ascii=False, allow_nan=False)
    write_durably(out / _DATA, f"{data}\n".encode(), mode=SHOWN)
    write_durably(out / _TEXT, as_markdown(outcome).encode(), mode=SHOWN)
    return outcome


def _given(path: Path | None, places: Sequence[Mapping[str, str]]) -> tuple[Figure, ...]:
    return () if path is None else read_figures(path, places)


def _places(sweep: SweepFile) -> list[dict[str, str]]:
    return [{key: choice.shown for key, choice in row.items()} for row in sweep.rows()]


def _check_folder(entry: Entry, name: ScaleName, out: Path) -> None:
    """Refuse the folder of another reproduction, or of anything else."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the reproduction")
    check_links(out)
    path = out / _DATA
    if path.is_file():
        try:
            held = read_json(path, LARGEST_OBJECT)
            there = f"{held['name']} at scale {held['scale']}"
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read; remove it, and it is made again") from error
        if there != f"{entry.name} at scale {name}":
            raise FileExistsError(
                f"{out} holds {there}; choose another folder for {entry.name} at scale {name}"
            )
        return
    if entry.closed is not None and out.is_dir() and (held := sorted(out.iterdir())):
        what = "a sweep" if (out / SWEEP).is_file() else held[0].name
        raise FileExistsError(f"{out} holds {what}; choose another folder for {entry.name}")
