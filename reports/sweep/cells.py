"""Cells of a table by short keys and values, as `--cell` and the columns of a file name them.

    algorithm=muffliato,graph=bipartite,agents=10|20

A value is what the table shows, or what stands in the run file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...privacy.errors import InputError, did_you_mean
from ...runs.audit.evidence import read_attack
from ...runs.audit.evidence_schema import Scenario
from ...runs.sweep.results import POINTS, Part, PointResult
from ...runs.sweep.sweep_file import SEED, brief, choice_of

# Means over seeds and over images, their errors, and differences of rows that share seeds.


_CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over seeds.

    Attributes:
        value: the mean; NaN of no values.
        error: its standard error; NaN of fewer than two.
        count: n, how many values.
    """

    value: float
    error: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What one row has more than another, over the seeds that both have.

    Attributes:
        mean: of the differences.
        low, high: a 95 % interval; infinite of a single seed.
        count: n, how many seeds.
    """

    mean: float
    low: float
    high: float
    count: int

    @property
    def is_told(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def mean_of(values: Sequence[float]) -> Mean:
    """The mean and its standard error."""
    count = len(values)
    if not count:
        return Mean(value=math.nan, error=math.nan, count=0)
    mean = float(np.mean(values))
    spreads = count > 1 and math.isfinite(mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if spreads else math.nan
    return Mean(value=mean, error=error, count=count)


def over_seeds(counts: Iterable[int]) -> str:
    """What means are over, by how many seeds each has.

    >>> over_seeds([3, 2]), over_seeds([1])
    ('mean and standard error over n = 2 to 3 seeds', 'one seed, no standard error')
    """
    every = sorted(set(counts))
    if every == [1]:
        return "one seed, no standard error"
    seeds = " to ".join(dict.fromkeys((str(every[0]), str(every[-1]))))
    return f"mean and standard error over n = {seeds} seeds"


def difference_of(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """What one has more than the other, by seed; None without a common seed.

    Args:
        one: values by seed.
        other: likewise.
    """
    from scipy.stats import t

    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        return None
    over = np.array([one[seed] - other[seed] for seed in seeds])
    count, mean = len(over), float(over.mean())
    if abs(mean) <= 4 * np.finfo(float).eps * max(abs(one[seed]) for seed in seeds):
        mean = 0.0  # what rounding leaves of equal means
    if count == 1:
        return Difference(mean=mean, low=-math.inf, high=math.inf, count=1)
    half = (
        float(t.ppf((1 + _CONFIDENCE) / 2, count - 1)) * float(over.std(ddof=1)) / math.sqrt(count)
    )
    return Difference(mean=mean, low=mean - half, high=mean + half, count=count)


SCORES: Mapping[str, str] = {"mse": "MSE", "psnr": "PSNR, dB", "ssim": "SSIM"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OverImages:
    """A score of the run's own messages, over images.

    Attributes:
        mean: over images.
        low, high: a 95 % interval; NaN of a single image.
        count: n, images over all seeds.
    """

    mean: float
    low: float
    high: float
    count: int


def mean_score(out: Path, one: PointResult, score: str) -> float | None:
    """The mean score of a run's own messages, over what was attacked; None of no attack."""
    own = own_attack(out, one)
    if not own:
        return None
    scores = [getattr(scenario.rows[-1].mean, score) for scenario in own]
    return float(sum(scores) / len(scores))


def over_images(out: Path, results: Sequence[PointResult]) -> dict[str, OverImages]:
    """By name of a score its mean over the images of all runs; without those of no number.

    Records that are no images have no SSIM.
    """
    every: dict[str, list[float]] = {score: [] for score in SCORES}
    for result in results:
        own = own_attack(out, result)
        for score, found in every.items():
            rows = [getattr(scenario.rows[-1], score) for scenario in own]
            for image in range(max(map(len, rows), default=0)):
                of_image = [float(row[image]) for row in rows if image < len(row)]
                found.append(sum(of_image) / len(of_image))
    return {
        score: _summed(values)
        for score, values in every.items()
        if values and not any(map(math.isnan, values))
    }


def _summed(values: Sequence[float]) -> OverImages:
    from ...attacks.scoring.metrics import bootstrap_interval  # which takes torch

    low, high = bootstrap_interval(values)
    return OverImages(mean=sum(values) / len(values), low=low, high=high, count=len(values))


def own_attack(out: Path, one: PointResult) -> list[Scenario]:
    """Of the sweep's own attack: one that somebody added to a run would be in no other's mean."""
    if one.state != "done" or not one.attacked:
        return []
    found = read_attack(out / POINTS / one.name)
    return [] if found is None else [of for of in found.scenarios if not of.attack]


ATTACK = "attack"
"""The key of a line that says what was attacked, beside the swept keys."""
ROWS = ("no defence", "defended")
"""Of an attacked run: what was sent without clipping and noise, and what was sent."""

# What papers' tables call keys and values, in small letters.
_KEYS = {
    "heterogeneity": "data.concentration",
    "heterogeneity_inferred": "data.concentration",
    "epsilon_level_inferred": "privacy.epsilon",
    "network": "model.name",
    "scenario": ATTACK,
}
_VALUES = {
    "nd-cg": f"{ROWS[0]}, cross-gradient",
    "nd-mm": f"{ROWS[0]}, momentum",
    "dpdl-cg": f"{ROWS[1]}, cross-gradient",
    "dpdl-mm": f"{ROWS[1]}, momentum",
}
_FORM = "algorithm.form"  # of one whose figure stands beside its published form alone
_LEVEL = "level"  # of what a table varies beside data and algorithms, counted from 1
_COUNTED = (_LEVEL, "epsilon_level_inferred")
_ENDS = {"high": 0, "low": -1}  # of heterogeneity, by the concentrations in their order
_WITHOUT_PRIVACY = (
    "inf",
    "non-private",
    "sgda",
    "dm-hsgd",
)  # of a line that an entry may lack: no misspelling


@dataclass(frozen=True, kw_only=True, slots=True)
class Cells:
    """What an entry has, at one scale and at all of them.

    Attributes:
        swept: by scale, the paper's first, the values of each key that tells lines apart.
        fixed: by scale, the keys of the run file that all lines share.
    """

    name: str
    scale: str
    seeds: int = 0
    swept: Mapping[str, Mapping[str, Sequence[object]]]
    fixed: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def key(self, word: str) -> str:
        """The key of a word: its last part, its table, or a paper's name of it.

        Raises:
            ValueError: there is none, or several.
        """
        swept = list(dict.fromkeys(key for keys in self.swept.values() for key in keys))
        known = list(dict.fromkeys([*swept, *(k for of in self.fixed.values() for k in of)]))
        word = _KEYS.get(word.lower(), word)
        paper = next(iter(self.swept.values()))
        level = [key for key in paper if not key.endswith(".name") and key != ATTACK]
        for found in (
            [key for key in known if key == word],
            [key for key in swept if key == f"{word}.name"],
            level if word == _LEVEL else [],
            [key for key in swept if word == "algorithm" and key.startswith(f"{word}.")],
            [key for key in known if key == f"{word}.name"],
            [key for key in known if key.endswith(f".{word}")],
        ):
            if len(found) > 1:
                raise InputError(f"{word!r} may be {' or '.join(found)}; give the whole key")
            if found:
                return found[0]
        short = [key.removesuffix(".name").rpartition(".")[2] for key in swept]
        raise InputError(
            f"the keys of {self.name} are {', '.join(swept)}, and not {brief(word)}"
            f"{did_you_mean(word, [*short, *swept])}"
        )

    def places(self, word: str, value: str, *, of_paper: bool = False) -> list[dict[str, str]]:
        """The settings of the lines that have a value; {} where all of them have it.

        Args:
            word: as of `key`.
            of_paper: whether an algorithm's name means its published form, where that stands.

        Returns:
            By swept key what the table shows; nothing where other scales alone have the value.

        Raises:
            ValueError: no scale has it.
        """
        key = self.key(word)
        told = [one for of in self.swept.values() for one in of.get(key, ())] or self._every(key)
        every = self._every(key)
        asked = self._counted(word, key, value) or _VALUES.get(value.lower(), value)
        if not _named(key, asked, every) and asked.lower() not in _WITHOUT_PRIVACY:
            shown = list(dict.fromkeys(choice_of(key, one).shown for one in told))
            raise InputError(
                f"{key} of {self.name} is {' or '.join(shown)}, and not {brief(value)}"
                f"{did_you_mean(asked, [*shown, *(str(_inner(key, one)) for one in told)])}"
            )
        if (here := self.swept[self.scale].get(key)) is not None:
            return [{key: shown} for shown in _named(key, asked, here, of_paper=of_paper)]
        fixed = self.fixed.get(self.scale, {})
        return [{}] if key in fixed and _named(key, asked, [fixed[key]]) else []

    def _every(self, key: str) -> list[object]:
        """The values of a key at all scales."""
        swept = (one for of in self.swept.values() for one in of.get(key, ()))
        return [*swept, *(of[key] for of in self.fixed.values() if key in of)]

    def chosen(self, texts: Sequence[str], seeds: int | None) -> Part:
        """The part of the sweep that is asked for, as `run_sweep` takes it.

        Args:
            texts: each "key=value,key=value|value"; () of every cell.
            seeds: how many of the first ones; None of all.

        Raises:
            ValueError: a key, value or number of seeds that the entry does not have at this scale.
        """
        if seeds is not None and not 1 <= seeds <= self.seeds:
            raise InputError(
                f"seeds={seeds} must lie in [1, {self.seeds}], the seeds of {self.name} at scale "
                f"{self.scale}"
            )
        of = {} if seeds is None else {SEED: list(range(1, seeds + 1))}
        return [{**self._cell(text), **of} for text in texts] or ([of] if of else [])

    def _cell(self, text: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for part in re.split(r",(?=[^,|=]+=)", text):
            word, equals, values = part.partition("=")
            if not equals:
                raise InputError(
                    f"cell={text!r} must read key=value,key=value, such as graph=ring,agents=10"
                )
            if (key := self.key(word.strip())) in (ATTACK, *found):
                raise InputError(
                    f"cell={text!r} gives {key} "
                    + ("twice" if key in found else "where all scenarios of a run are attacked")
                    + "; leave it out"
                )
            found[key] = []
            whole = _named(key, values.strip(), self._every(key))  # a value may hold a bar itself
            for value in map(str.strip, [values] if whole else values.split("|")):
                places = self.places(word.strip(), value)
                if not places:
                    scale = f" at scale {self.scale}; choose another scale, or"
                    scale = scale if len(self.swept) > 1 else "; choose"
                    raise InputError(f"{self.name} has no {key}={value}{scale} another cell")
                found[key] += [place[key] for place in places if place]
        return {key: values for key, values in found.items() if values}

    def _counted(self, word: str, key: str, value: str) -> str | None:
        """The value that a paper's table calls the first, the second, ..., or an end."""
        every = next((of[key] for of in self.swept.values() if key in of), ())
        shown = [choice_of(key, one).shown for one in every]
        if word.lower() in _COUNTED and value in map(str, range(1, len(shown) + 1)):
            return shown[int(value) - 1]
        if key == _KEYS["heterogeneity"] and shown and value.lower() in _ENDS:
            return sorted(shown, key=float)[_ENDS[value.lower()]]
        return None


def attack_name(row: str, scenario: str, preset: str, presets: Sequence[str]) -> str:
    """What a line of attacks is called: with its preset where there are several."""
    return ", ".join([row, scenario, *([preset] if len(presets) > 1 else [])])


def _named(key: str, asked: str, values: Iterable[object], *, of_paper: bool = False) -> list[str]:
    """What the table shows of the values that a word names: as they are shown, or as they are."""
    shown = {choice_of(key, one).shown: one for one in values}
    if found := [text for text in shown if _same(text, asked)]:
        return found
    found = [text for text, one in shown.items() if _same(str(_inner(key, one)), asked)]
    published = [text for text in found if _inner(_FORM, shown[text]) == "published"]
    return (published if of_paper else []) or found


def _inner(key: str, value: object) -> object:
    """What the run file has of a value that sets several keys."""
    return value.get(key) if isinstance(value, Mapping) else value


def _same(one: str, other: str) -> bool:
    """Equal words, but for capitals, or equal numbers."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one.lower() == other.lower()
