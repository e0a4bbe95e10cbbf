"""What a sweep leaves: a file for each run that ended, and an index of them.

DIR/sweep.toml            the sweep file, its run file in it
DIR/points/NAME/          the folder of a run, as `overhear train` leaves it
DIR/results/NAME.json     how it ended: the truth; written whole, or not there
DIR/sweep.jsonl           the index: a line for each run that ended, for other programs; of a run
                          that is tried again two, until the sweep ends
DIR/tuned.jsonl           what was chosen for each row

A folder fills up over several calls, each of a part of the sweep: the runs that are meant.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, TypeAdapter

from ...privacy.errors import InputError
from ...privacy.files import check_links, open_private, read_bounded, write_durably
from ...privacy.formats.codec import Count, NotNegative, parse_json
from ...privacy.guarantee import Guarantee
from ...training.models.metrics import Metrics
from ..described import LARGEST_OBJECT, Described
from ..folder import folder as run_folder
from ..folder.records import read_metrics
from .sweep_file import SEED, Choice, Point, SweepFile, is_chosen, points_of, tried_of

INDEX, TUNED = "sweep.jsonl", "tuned.jsonl"
POINTS, RESULTS, LOCKS = "points", "results", "locks"


class PointResult(Described):
    """How a run of a sweep ended."""

    name: str
    """Of its folder in points/."""
    settings: dict[str, str]
    """By swept key."""
    seed: Count
    state: Literal["done", "failed"]
    error: str | None = None
    """A sentence, where it failed."""
    run_file: str
    """SHA-256 of its resolved run file, but for the device."""
    seconds: NotNegative
    """Of processing, over all attempts that ended."""
    noise_multiplier: NotNegative | None = None
    adversaries: list[Guarantee] = Field(default_factory=list)
    """Epsilon of each, as planned; of a run that was cut off at least what it released."""
    metrics: Metrics | None = None
    """The last ones."""
    attacked: bool = False
    audited: bool = False
    contradictions: list[str] = Field(default_factory=list)
    """What was measured beyond what is proven."""
    version: Annotated[Literal[1], Field(alias="schema")] = 1

    @classmethod
    def failed(cls, point: Point, error: str, *, run_file: str = "") -> Self:
        """A run that could not be, or not to its end, with a sentence."""
        return cls(
            name=point.name,
            settings=dict(point.settings),
            seed=point.seed,
            state="failed",
            error=error,
            run_file=run_file,
            seconds=0.0,
        )

    def dump(self) -> dict[str, JsonValue]:
        """Every key, whether it was set or not."""
        return self.model_dump(mode="json", by_alias=True)

    @property
    def tuning(self) -> bool:
        """Whether it served to choose a value, and is reported nowhere."""
        return "validation" in self.settings

    def has(self, point: Point) -> bool:
        """Whether nothing is asked for that a run lacks, such as an attack."""
        if self.state == "failed":
            return True
        return self.attacked >= point.attack and self.audited >= point.audit

    def curve(self, out: Path) -> list[Metrics]:
        """Every evaluation of the run; the last one alone where its folder was taken away."""
        path = out / POINTS / self.name / run_folder.METRICS
        if path.is_file():
            return read_metrics(path)
        return [] if self.metrics is None else [self.metrics]


def read_result(out: Path, name: str) -> PointResult | None:
    """How a run ended; None where it did not.

    Raises:
        ValueError: the file cannot be read.
    """
    remedy = "remove it, and the run is finished again from its folder"
    return PointResult.read_if_there(out / RESULTS / f"{name}.json", remedy=remedy)


def read_results(out: Path) -> list[PointResult]:
    """Every run of a sweep that ended, in the order of their names.

    Raises:
        ValueError: a file cannot be read.
    """
    check_links(out)
    names = sorted(path.stem for path in (out / RESULTS).glob("*.json"))
    return [point_result for name in names if (point_result := read_result(out, name)) is not None]


def write_result(out: Path, result: PointResult) -> None:
    """Keep how a run ended."""
    result.write(out / RESULTS / f"{result.name}.json")


def write_index(out: Path, results: Sequence[PointResult]) -> None:
    """One line for each run that ended."""
    lines = "".join(f"{json.dumps(_line(result), ensure_ascii=False)}\n" for result in results)
    write_durably(out / INDEX, lines.encode())


def append_to_index(out: Path, result: PointResult) -> None:
    """Add the line of a run that ended just now."""
    with open(out / INDEX, "a", encoding="utf-8", opener=open_private) as file:
        file.write(f"{json.dumps(_line(result), ensure_ascii=False)}\n")


def _line(one: PointResult) -> dict[str, object]:
    whole = one.dump()
    keys = ("name", "settings", "seed", "state", "error", "seconds")
    return {"folder": f"{POINTS}/{one.name}", **{key: whole.get(key) for key in keys}}


def read_tuned(out: Path) -> Iterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """The row and the choice of every row that was tuned.

    Raises:
        ValueError: the file cannot be read.
    """
    path = out / TUNED
    if not path.exists():
        return
    for number, text in enumerate(io.BytesIO(read_bounded(path, LARGEST_OBJECT)), 1):
        try:
            line = parse_json(text)
            yield _TEXTS.validate_python(line["row"]), _TEXTS.validate_python(line["chosen"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read in line {number}; remove it, and the choice is made again"
            ) from error


_TEXTS = TypeAdapter(dict[str, str])


def write_tuned(out: Path, chosen: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
    """What was chosen for each row."""
    lines = (json.dumps({"row": dict(r), "chosen": dict(c)}, ensure_ascii=False) for r, c in chosen)
    write_durably(out / TUNED, "".join(f"{line}\n" for line in lines).encode())


Part = Sequence[Mapping[str, Sequence[Any]]]
"""Runs of a sweep, by values of swept keys and "seed": what one of these takes; () takes all."""


def points_meant(
    sweep: SweepFile,
    only: Part,
    tuned: Mapping[tuple[str, ...], Mapping[str, Choice]] | None = None,
) -> tuple[list[Point], list[Point]]:
    """The runs of tuning of the rows that a part of a sweep has, and its reported ones."""
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
