"""A part of a sweep: the runs that are meant, where a folder fills up over several calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .sweep_file import SEED, Choice, Point, SweepFile, is_chosen, points_of, tried_of

Part = Sequence[Mapping[str, Sequence[Any]]]
"""Runs of a sweep, by values of swept keys and "seed": what one of these takes; () takes all."""


def points_meant(
    sweep: SweepFile,
    only: Part,
    tuned: Mapping[tuple[str, ...], Mapping[str, Choice]] | None = None,
) -> tuple[list[Point], list[Point]]:
    """The runs of tuning of the rows that a part of a sweep has, and its reported ones.

    Args:
        tuned: as of `points_of`.
    """
    of_rows = [{key: values for key, values in one.items() if key != SEED} for one in only]
    tuning = [
        point
        for one in tried_of(sweep)
        if not only or any(is_chosen(part, one.row, 0) for part in of_rows)
        for point in one.points
    ]
    reported = [
        point
        for point in points_of(sweep, tuned or {})
        if not only or any(is_chosen(part, point.settings, point.seed) for part in only)
    ]
    return tuning, reported
