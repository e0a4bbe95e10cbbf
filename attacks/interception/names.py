"""The names of what is intercepted, and which of them an algorithm has; `scenarios` does it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...privacy.formats.codec import Fraction, NotNegative, described
from ...training.own.names import algorithm_named, is_own

NOT_IDENTIFIED = "not identified"  # the stage of a record of which nothing was seen by itself
NO_BETTER = "estimate, no better than the blind guess"
NEARER = "estimate, nearer than the blind guess"
_GUESSES = ("prior", NOT_IDENTIFIED)  # stages at which nothing in the messages told
_SEARCHED = ("optimisation", "denoiser", "posterior", "first layer", "one direction", "signs")
_TIE = 1e-4  # falling back to the prior is the blind guess up to rounding
_NEARLY_NONE = 1e-3  # of the blind guess's error: no search comes so close by chance


class Scenario(enum.StrEnum):
    """What is intercepted."""

    CROSS_GRADIENT = "cross-gradient"
    MOMENTUM = "momentum"
    VIEW = "view"


def scenarios_of(algorithm: str) -> tuple[Scenario, ...]:
    """The scenarios of an algorithm; every one has the view, and one of the user's nothing else."""
    single = () if is_own(algorithm) else algorithm_named(algorithm).single_gradients
    return (*map(Scenario, single), Scenario.VIEW)


def is_no_better(error: float, blind: float) -> bool:
    """Whether an error is no smaller than that of the blind guess; one that is no number is not."""
    return not error < blind * (1.0 - _TIE)


def what_was_found(stage: str, error: float, blind: float, threshold: float = 0.0) -> str:
    """Whether one record was rebuilt, or what is shown of it is an estimate or the blind guess.

    Args:
        stage: what made it; empty of the blind guess itself.
        error: of it.
        blind: error of the blind guess.
        threshold: error at which a record counts as rebuilt.
    """
    if not stage:
        return ""
    if stage.startswith(_GUESSES):
        how = stage.removeprefix("prior").removeprefix(", ")
        return f"blind guess, {how}" if how else "blind guess"
    worse, searched = is_no_better(error, blind), stage.startswith(_SEARCHED)
    if error <= max(threshold, _NEARLY_NONE * blind) and not (worse and searched):
        return f"rebuilt: {stage}"
    return NO_BETTER if worse else f"{NEARER} ({stage})"


def found_in_all(each: Sequence[str], error: float, blind: float) -> str:
    """The same of several records, of each of which `what_was_found` is given, by mean errors."""
    rebuilt = sum(one.startswith("rebuilt") for one in each)
    if rebuilt:
        return f"{rebuilt} of {len(each)} rebuilt"
    if all(one.startswith("blind") for one in each):
        return "blind guess"
    return NO_BETTER if is_no_better(error, blind) else NEARER


def satisfies(tried: str, asked: str, *, weighed: bool = False) -> bool:
    """Whether an attack is at least as strong as one that is asked for.

    Args:
        tried: a name in `problem.objective.PRESETS`.
        asked: another one.
        weighed: whether the attack that was tried weighed public records, which `matched` does
            where they are given and one record is observed.

    >>> satisfies("matched", "inverting-gradients"), satisfies("posterior", "matched")
    (True, False)
    """
    return asked == tried or (tried == "matched" and (asked != "posterior" or weighed))


@described(whole=True)
@dataclass(frozen=True, kw_only=True)
class ColumnScore:
    """How well one column of a table was rebuilt."""

    name: str
    kind: Literal["number", "category", "binary"]
    accuracy: Fraction | None = None
    """Share of the records whose value is right."""
    auc: Fraction | None = None
    """Of the records that have a value over those that have not; null where all are alike."""
    mae: NotNegative | None = None
    """Mean absolute error of a number, in the column's unit."""
    baseline: NotNegative
    """The same of the most frequent value, or of the median, of other public records."""
