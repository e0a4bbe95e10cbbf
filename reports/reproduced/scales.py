"""An entry's sweep at a scale, and which entries have one."""

from __future__ import annotations

from ...privacy.errors import InputError
from ...runs.sweep.sweep_file import SweepFile, checked
from ..reproductions.entry import SCALES, Entry, ScaleName
from .data_at_hand import placed

__all__ = ["check_runnable", "scale_named", "sweep_of"]


def scale_named(name: str) -> ScaleName:
    """A scale by its name.

    Raises:
        ValueError: there is no such scale.
    """
    for one in SCALES:
        if one == name:
            return one
    raise InputError(f"scale={name!r} must be one of {', '.join(SCALES)}")


def sweep_of(entry: Entry, name: ScaleName) -> tuple[SweepFile, dict[str, object]]:
    """The sweep file of an entry at a scale, and the tables of its run file.

    Raises:
        ValueError: the entry lacks an ingredient, or has no runs.
    """
    check_runnable(entry)
    scale = entry.scales[name]
    base = placed(scale)
    values: dict[str, object] = {
        "base": base,
        "grid": dict(scale.grid),
        "seeds": scale.seeds,
        "also": {"attack": scale.attack},
    }
    if scale.tune:
        values["tune"] = dict(scale.tune)
    return checked(values, where=entry.name), base


def check_runnable(entry: Entry) -> None:
    """Refuse an entry that lacks an ingredient."""
    if entry.lacks:
        raise InputError(f"{entry.name} cannot be run: {entry.lacks}")
