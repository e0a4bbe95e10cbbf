"""A table or figure of a paper as an entry: its sweep at four scales, its figures, its claims.

The entries of a paper stand in a TOML file, which `registry` reads.

A figure of a paper stands here only if it was read, with the place where it was read; one that was
not is absent, and no verdict is given about it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ...privacy.errors import InputError
from ...runs.run_file.tables import ScenarioName
from ...runs.sweep.sweep_file import flat
from ..sweep.cells import ATTACK, ROWS, Cells, attack_name

ScaleName = Literal["smoke", "small", "medium", "paper"]
SCALES: tuple[ScaleName, ...] = get_args(ScaleName)
LEAST_SEEDS = 10
"""Of a verdict on a claim; of fewer seeds nothing is said."""

Tables = Mapping[str, Mapping[str, object]]
"""Of a run file."""
Place = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """Where an entry comes from.

    Attributes:
        name: how it is called here.
        source: authors, title, and where it was published.
    """

    name: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A sweep.

    Attributes:
        base: tables of the run file. A `data.root` is below the folder that OVERHEAR_DATA names.
        grid: values by key; the last varies fastest.
        seeds: of every row.
        tune: values by key that are tried on validation records; empty tunes nothing.
        attack: whether every run is attacked.
        differs: what is not as in the paper, in words; where anything is, no verdict is given.
    """

    base: Tables
    grid: Mapping[str, Sequence[object]]
    seeds: int
    tune: Mapping[str, Sequence[object]] = field(default_factory=dict)
    attack: bool = False
    differs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A figure that a paper prints, or the range of several of which no more is at hand.

    Attributes:
        place: by swept key what a line shows; several lines may have it.
        low, high: the figure, twice, or the range, in the unit of the entry's value.
        source: where it was read.
        spread: what the paper prints after +-; None where it prints none.
        own: whether it is of a file of the user, which comes before the entry's.
    """

    place: Place
    low: float
    high: float
    source: str
    spread: float | None = None
    own: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """Where the figures of an entry stand.

    Attributes:
        file: in `figures/`, without its ending.
        source: the table of the paper, and what of it is inferred.
        of: settings of the lines that the figures are compared with, where they do not name them.
    """

    file: str
    source: str
    of: Place = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A paper's claim that one line is better than others, wherever both stand.

    Attributes:
        key: the swept key that tells them apart.
        first: the better one's value.
        others: the others' values.
        source: where it was read.
        verb: between the two, in the words of the claim.
        of: settings of the lines that are meant, all others too where it is empty.
    """

    key: str
    first: str
    others: Sequence[str]
    source: str
    verb: str = "is better than"
    of: Place = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """A paper's claim that a figure gets better from the first to the last value of a key.

    Attributes:
        key: the swept key; its values in the order of the sweep.
        of: settings of the lines that are meant.
        source: where it was read.
        what: subject of the claim where `of` is empty.
    """

    key: str
    of: Place
    source: str
    what: str = "it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Close:
    """A paper's claim that one line costs little against another.

    Attributes:
        key: the swept key that tells them apart.
        first: the line that is meant.
        other: what it is held against.
        within: how much worse it may be, in the unit of the value.
        source: where it was read, and what of it is our reading.
    """

    key: str
    first: str
    other: str
    within: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Computed:
    """A figure that a closed form gives, in place of runs.

    Attributes:
        place: of the line.
        values: by seed.
    """

    place: Place
    values: Mapping[int, float]


Claim = Order | Trend | Close


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A table or figure of a paper.

    Attributes:
        name: how the command calls it.
        paper: it is of.
        title: what it shows.
        value: a name in `overhear.reports.sweep.table.VALUES`, or what a closed form gives.
        columns: swept keys whose values are compared apart.
        scales: its sweeps.
        printed: the paper's own figures; None where it prints no number.
        claims: what counts as reproduced, beside the figures.
        within: largest distance from the paper's figure that counts as reproduced, in the unit of
            the value; twice our standard error is added.
        reading: what the paper's text does not say of its form, and how it is taken here.
        facts: what holds of the printed figures themselves, in sentences.
        convention: scale of an attack's scores, as of `conventions_for`; empty of pixels in [0, 1].
        closed: gives its lines without a run, by scale.
        more: of a closed form, whether more is better.
    """

    name: str
    paper: Paper
    title: str
    value: str = "accuracy"
    columns: Sequence[str] = ()
    scales: Mapping[ScaleName, Scale] = field(default_factory=dict)
    printed: Printed | None = None
    claims: tuple[Claim, ...] = ()
    within: float = 2.0
    reading: str = ""
    facts: Sequence[str] = ()
    convention: str = ""
    closed: Callable[[ScaleName], list[Computed]] | None = None
    more: bool = True

    def __post_init__(self) -> None:
        """Check that it can be run."""
        missing = [name for name in SCALES if name not in self.scales]
        if missing and self.closed is None:
            raise InputError(f"{self.name} has no sweep at scale {missing[0]}; give one")


def cells_of(entry: Entry, scale: ScaleName, computed: Sequence[Computed] = ()) -> Cells:
    """What an entry has.

    Args:
        computed: the lines of a closed form.
    """
    if entry.closed is not None:
        keys = dict.fromkeys(key for one in computed for key in one.place)
        lines = {key: list(dict.fromkeys(one.place[key] for one in computed)) for key in keys}
        return Cells(name=entry.name, scale=scale, swept={scale: lines})
    scales = {name: entry.scales[name] for name in reversed(SCALES)}
    return Cells(
        name=entry.name,
        scale=scale,
        seeds=scales[scale].seeds,
        swept={name: _swept(one) for name, one in scales.items()},
        fixed={name: flat(one.base, "base") for name, one in scales.items()},
    )


def _swept(scale: Scale) -> dict[str, Sequence[object]]:
    if not scale.attack:
        return dict(scale.grid)
    attack: Mapping[str, Any] = scale.base["attack"]
    presets = attack.get("presets", [""])
    each = itertools.product(ROWS, attack.get("scenarios", get_args(ScenarioName)), presets)
    return {**scale.grid, ATTACK: [attack_name(*one, presets) for one in each]}
