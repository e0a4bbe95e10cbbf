"""A table or figure of a paper as an entry: its sweep at four scales, its figures, its claims.

The entries of a paper stand in a TOML file, which `registry` reads.

A figure of a paper stands here only if it was read, with the place where it was read; one that was
not is absent, and no verdict is given about it.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...privacy.errors import InputError
from ...privacy.formats.toml_text import CsvRows, check_names
from ...privacy.noise import correlated
from ...privacy.published.claim import CITATIONS
from ...privacy.published.whisper import whisper_information
from ...runs.run_file.tables import ScenarioName
from ...runs.sweep.sweep_file import flat
from ...training.algorithms.decor import best_correlation
from ...training.graphs.graph import Graph
from ...training.graphs.topologies import erdos_renyi
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
        value: a name in `overhear.reports.sweep.table.VALUES`, or what a closed form gives.
        columns: swept keys whose values are compared apart.
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
    """What an entry has."""
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


# A paper's figures from a CSV file of the user, in place of those that are not at hand.
#
#     graph,algorithm,figure
#     ring,DP-CGA,88.3
#
# A column for each key that tells lines apart, as `--cell` names keys and values, and `figure`; or
# `low` and `high` of a range. Papers' tables as they are extracted have names of their own for
# these.

METRIC = "metric"
"""The key of a figure that says which score it is of, where that is not the entry's."""
_FIGURE, _RANGE, _UNIT = "figure", ("low", "high"), "unit_inferred"
_KNOWN_AS = dict.fromkeys(("accuracy_percent", "auroc", "value"), _FIGURE)
_SPREAD = "spread_percent"
_BESIDE = ("table", _UNIT, "varied_inferred", _SPREAD)  # tell no lines apart
_JOINED = ("noise_level_order", "clipped")
_MOST_BYTES = 1 << 20


def printed_figures(cells: Cells, entry: Entry) -> tuple[Figure, ...]:
    """The figures that the paper of an entry prints, of the lines that it has at a scale."""
    if (printed := entry.printed) is None:
        return ()
    path = Path(__file__).parent / "figures" / f"{printed.file}.csv"
    found, _ = read_figures(path, cells, value=entry.value, of=printed.of)
    return tuple(replace(one, source=printed.source) for one in found)


def read_figures(
    path: Path, cells: Cells, *, value: str = "", of: Place | None = None
) -> tuple[tuple[Figure, ...], str]:
    """The figures of a file.

    Args:
        value: of the entry, which a column `metric` may name.
        of: settings of the lines that figures are of which do not name them.

    Returns:
        Those of lines that the entry has at this scale, and a sentence on those that are left out;
        empty where none is.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a column or a value that the entry has nowhere, no number, or two figures of a
            line.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of figures at {path}")
    rows = CsvRows.of_file(path, _MOST_BYTES)
    names = [_KNOWN_AS.get(name, name) for name in next(rows, [])]
    check_names(path, names)
    if _FIGURE not in names and not set(_RANGE) <= set(names):
        raise InputError(f"{path} has no column 'figure'; give it, or 'low' and 'high'")
    words = [n for n in names if n not in (_FIGURE, METRIC, *_RANGE, *_BESIDE, *_JOINED)]
    try:
        for word in words:
            cells.key(word)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    found, count, lost = dict[tuple[tuple[str, str], ...], Figure](), 0, 0
    for row in filter(None, rows):
        where, count = f"{path}, line {rows.line}", count + 1
        if len(row) != len(names):
            raise InputError(f"{where}: {len(row)} values for {len(names)} columns")
        told = _joined(dict(zip(names, row, strict=True)))
        settings = dict(of or {}) | {word: told[word] for word in words if told[word]}
        figures = list(_figures(told, settings, cells, where=where))
        if not figures:
            lost += 1
            continue
        if (score := told.get(METRIC, value).lower()) != value:
            share = 0.01 if told.get(_UNIT) == "percent" else 1.0
            figures = [_of_score(one, score, share) for one in figures]
        for one in figures:
            other = found.setdefault(tuple(sorted(one.place.items())), one)
            if (one.low, one.high) != (other.low, other.high):
                raise InputError(
                    f"{where}: a line of the table has another figure in {other.source}"
                )
    left = f"{lost} of {count} figures of {path} are of another scale, and are left out."
    return tuple(found.values()), left if lost else ""


def _joined(row: dict[str, str]) -> dict[str, str]:
    """With the columns that tell an algorithm's rows apart in its name, as the table shows it."""
    noise, clipped = (row.get(name, "") for name in _JOINED)
    more = f", noise {noise}" if noise not in ("", "0") else ""
    more += ", clipped" if clipped not in ("", "no") else ""
    return {**row, "algorithm": row["algorithm"] + more} if more else row


def _of_score(figure: Figure, score: str, share: float) -> Figure:
    """A figure of another score than the entry's."""
    place = {**figure.place, METRIC: score}
    return replace(figure, place=place, low=share * figure.low, high=share * figure.high)


def _figures(
    row: Mapping[str, str], settings: Place, cells: Cells, *, where: str
) -> Iterator[Figure]:
    """A figure for each line that a row is of."""
    low = _number(row.get("low") or row.get(_FIGURE), where=where)
    high = _number(row.get("high") or row.get(_FIGURE), where=where)
    if low > high:
        raise InputError(f"{where}: low={low:g} lies above high={high:g}; exchange them")
    spread = _number(text, where=where) if (text := row.get(_SPREAD)) else None
    try:
        each = [cells.places(word, text, of_paper=True) for word, text in settings.items()]
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    for places in itertools.product(*each):
        place = {key: value for one in places for key, value in one.items()}
        yield Figure(place=place, low=low, high=high, source=where, spread=spread)


def _number(text: str | None, *, where: str) -> float:
    try:
        number = float(text or "")
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: figure={text!r} must be a finite number")
    return number


# Every table and figure that can be reproduced, by its name, as the files of the papers say it.


# Noise energy of Whisper, DECOR, LDP and CDP over random graphs, without a run.
#
#     energy = tr(W R W^T)      per coordinate, all agents together, in units of a clipped gradient
#
# with R the covariance that each algorithm adds at one bound b on [R^-1]_ii: I / b for LDP, the
# best ratio of own to pairs' noise for DECOR, the optimum for Whisper; CDP's server leaves
# 1 / (A b).
_AGENTS, _EPSILON, _DELTA, _ROUNDS, _CLIP = 20, 10.0, 1e-5, 5000, 0.1
_PROBABILITIES = (0.2, 0.4, 0.6, 0.8, 1.0)


def energies_of(graph: Graph, *, bound: float) -> dict[str, float]:
    """tr(W R W^T) of each algorithm at one bound on [R^-1]_ii.

    Args:
        graph: with symmetric weights.
        bound: b, in 1 / norm^2.

    Returns:
        By algorithm, in norm^2 per coordinate, all agents together.
    """
    weights, agents = graph.weights, graph.agents
    ratio = best_correlation(graph, horizon=1)
    decor = correlated.decor_covariance(weights, local_variance=1.0, pair_variance=ratio)
    decor = decor * (correlated.victim_information(decor).max() / bound)
    return {
        "LDP": _after_mixing(weights, np.eye(agents) / bound),
        "DECOR": _after_mixing(weights, decor),
        "Whisper": correlated.optimise_covariance(weights, bound=bound).objective,
        "CDP": 1.0 / (agents * bound),
    }


def _after_mixing(weights: ArrayLike, covariance: NDArray[np.float64]) -> float:
    return correlated.noise_floor(weights, covariance)


def noise_energies(scale: ScaleName) -> list[Computed]:
    """The lines of the figure: 20 agents, epsilon 10 at delta 1e-5, clip norm .1, 5000 rounds.

    Args:
        scale: two graphs of the least and the largest probability, or ten of each.
    """
    step, seeds = (4, 2) if scale == "smoke" else (1, 10)
    bound = whisper_information(epsilon=_EPSILON, delta=_DELTA, rounds=_ROUNDS, clip_norm=_CLIP)
    found: dict[tuple[str, str], dict[int, float]] = {}
    for probability in _PROBABILITIES[::step]:
        for seed, graph in itertools.islice(_connected(probability), seeds):
            for name, energy in energies_of(graph, bound=bound).items():
                found.setdefault((f"{probability:g}", name), {})[seed] = energy
    return [
        Computed(place={"graph.edge_probability": at, "algorithm.name": name}, values=values)
        for (at, name), values in found.items()
    ]


def _connected(probability: float) -> Iterator[tuple[int, Graph]]:
    """Graphs of seeds 1, 2, ... but for those that fall apart, on which nothing is learned."""
    for seed in itertools.count(1):
        with contextlib.suppress(InputError):
            yield seed, erdos_renyi(_AGENTS, probability, seed=seed)


_PAPERS = ("dpdl", "dpmixsgd", "dyn_d2p", "whisper")
_CLAIMS = {"order": Order, "trend": Trend, "close": Close}
_CLOSED = {"noise-energies": noise_energies}


def _entries(paper: str) -> Iterator[Entry]:
    """The entries of a paper's file."""
    text = (
        resources.files("overhear.reports.reproduced").joinpath(f"{paper}.toml").read_text("utf-8")
    )
    held = tomllib.loads(text)
    cited = CITATIONS[held["cites"]]
    of = Paper(name=cited.name, source=f"{cited.full}{held.get('also', '')}")
    for name, table in held["entry"].items():
        fields = _filled(table, held["shared"])
        scales = fields.pop("scales", {})
        yield Entry(
            name=name,
            paper=of,
            scales={at: Scale(**scales[at]) for at in SCALES if at in scales},
            printed=Printed(**table) if (table := fields.pop("printed", {})) else None,
            claims=tuple(_CLAIMS[one.pop("kind")](**one) for one in fields.pop("claims", ())),
            closed=_CLOSED.get(fields.pop("closed", "")),
            **fields,
        )


def _filled(value: Any, shared: Mapping[str, Any]) -> Any:
    """A value with the shared ones in the places of their names."""
    if isinstance(value, str) and value.startswith("$"):
        return _filled(shared[value[1:]], shared)
    if isinstance(value, list):
        items = [(one, _filled(one, shared)) for one in value]
        lists = (of if isinstance(one, str) and isinstance(of, list) else [of] for one, of in items)
        return list(itertools.chain.from_iterable(lists))
    if not isinstance(value, dict):
        return value
    own = {key: _filled(one, shared) for key, one in value.items() if key != "like"}
    like = value.get("like", [])
    found: dict[str, Any] = {}
    for name in [like] if isinstance(like, str) else like:
        found = _merged(found, _filled(shared[name], shared))
    return _merged(found, own)


def _merged(first: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """Both tables, key by key; where both have one that is no table, the second's."""
    found = dict(first)
    for key, value in then.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = _merged(found[key], value) if both else value
    return found


ENTRIES: dict[str, Entry] = {one.name: one for paper in _PAPERS for one in _entries(paper)}


def entry_named(name: str) -> Entry:
    """The entry of a name.

    Raises:
        ValueError: there is none; the sentence names those that are near.
    """
    if name in ENTRIES:
        return ENTRIES[name]
    close = difflib.get_close_matches(name.lower(), ENTRIES, n=3, cutoff=0.5)
    remedy = f"did you mean {' or '.join(close)}? " if close else ""
    raise InputError(
        f"no table or figure is called {name!r}; {remedy}`overhear reproduce --list` names them"
    )
