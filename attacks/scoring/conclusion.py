"""What the four rows of an attack say, in a sentence; a failed attack is never called protection.

Single successes count: one record that is rebuilt is a leak, whatever the mean over others says. A
record is rebuilt where its error is at most a threshold that was fixed beforehand, and the count
is more than guessing explains. Only where none is rebuilt do means decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..interception.replay import Protection
from .evaluation import BLIND, Row

_TIE = 1e-4  # falling back to the prior is the blind guess up to rounding
_CHANCE = 0.05


def conclusion(
    rows: Sequence[Row], *, threshold: float = 0.0, guessed: float = 0.0, table: bool = False
) -> str:
    """What the rows say.

    Args:
        rows: those of `attack_images`.
        threshold: MSE at which an image counts as rebuilt; 0 counts exact ones alone.
        guessed: how often a guess without any message does, at most.
        table: whether these are rows of a table, of which a guess may be exact.
    """
    what, error = ("records", "error") if table else ("images", "MSE")
    by_name = {row.name: row.scores for row in rows}
    blind, defended = by_name[BLIND], by_name[Protection.DEFENDED]
    undefended = by_name[Protection.NONE]
    count = len(defended.mse)
    hits = _beyond_guessing(
        defended.mse, blind.mse, threshold=threshold, guessed=guessed, table=table
    )
    if hits:
        return (
            f"A leak is shown: with the defence on, {hits} of {count} {what} are rebuilt "
            f"({error} at most {threshold:.3g})."
        )
    if all(stage == "not identified" for stage in rows[-1].stages):
        return (
            "No leak shown: what this adversary saw does not single out the victim's gradient "
            f"from those of others{_because(rows[-1])}."
        )
    rebuilt = sum(mse <= threshold for mse in undefended.mse)
    if undefended.mean_mse >= blind.mean_mse and not rebuilt:
        why = _because(next(row for row in rows if row.name == Protection.NONE))
        return (
            f"The attack fails even without a defence{why}, so it says nothing about the defence: "
            "no leak shown."
        )
    if defended.mean_mse >= blind.mean_mse * (1 - _TIE):
        return "No leak shown: with the defence on, the attack is no better than the blind guess."
    gains = np.subtract(blind.mse, defended.mse)
    if len(gains) > 1 and gains.mean() < 2 * gains.std(ddof=1) / math.sqrt(len(gains)):
        return (
            f"No leak shown beyond chance: with the defence on, the attack gains on the blind "
            f"guess, but by less than two standard errors over {len(gains)} {what}."
        )
    return (
        f"A leak is shown: with the defence on, the error is "
        f"{defended.mean_mse / blind.mean_mse:.1%} of the blind guess's."
    )


def _because(row: Row) -> str:
    """Why nothing was observed, in brackets."""
    return f" ({row.reason})" if row.reason else ""


def _beyond_guessing(
    errors: Sequence[float],
    blind: Sequence[float],
    *,
    threshold: float,
    guessed: float,
    table: bool,
) -> int:
    """How many images are rebuilt that the blind guess does not get, if guessing explains it not.

    The probability of so many by a guess that is right with probability `guessed` is below .05.
    """
    from scipy.stats import binom

    hits = sum(
        error <= threshold and error < own * (1 - _TIE)
        for error, own in zip(errors, blind, strict=True)
    )
    # An error this small is no guess: a pixel in a thousand grey levels, on average.
    exact = 0 if table else sum(error <= 1e-6 for error in errors)
    if exact or (hits and float(binom.sf(hits - 1, len(errors), guessed)) < _CHANCE):
        return max(hits, exact)
    return 0
