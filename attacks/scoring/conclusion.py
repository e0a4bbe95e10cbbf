"""What the four rows of an attack say, in a sentence; a failed attack is never called protection.

Single successes count: one record that is rebuilt is a leak, whatever the mean over others says. A
record is rebuilt where its error is at most a threshold that was fixed beforehand, and the count
is more than guessing explains, or where it is nearer to the truth than 19 in 20 public records are
to any other. Labels that are read, first places in lineups and columns of a table that are read
are leaks as well, each kind tested at 1 %. Only where none of this is shown do means decide, by
Student's t at 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..interception.names import NOT_IDENTIFIED, is_no_better
from ..interception.replay import Protection
from .columns import ColumnGain
from .evaluation import BLIND, Row

_CHANCE = 0.05
_RARE = 0.01  # of each further test, of labels, of lineups and of columns


def conclusion(
    rows: Sequence[Row],
    *,
    threshold: float = 0.0,
    guessed: float = 0.0,
    near: float = 0.0,
    guessed_label: float = 1.0,
    table: bool = False,
    gains: Sequence[ColumnGain] = (),
) -> str:
    """What the rows say.

    Args:
        rows: those of `attack_images`.
        threshold: MSE at which an image counts as rebuilt; 0 counts exact ones alone.
        guessed: how often a guess without any message does, at most.
        near: MSE below which a single image is no guess: one in 20 public records is as close to
            any other public record.
        guessed_label: how often the best guess of a label is right.
        table: whether these are rows of a table, of which a guess may be exact.
        gains: of a table, how each column was read with the defence on; of single records.
    """
    said = _verdict(
        rows,
        threshold=threshold,
        guessed=guessed,
        near=near,
        guessed_label=guessed_label,
        table=table,
        gains=gains,
    )
    return f"{said}{_unsolved_words(rows)}{_power_words(rows[-1], table=table)}"


def _verdict(
    rows: Sequence[Row],
    *,
    threshold: float,
    guessed: float,
    near: float,
    guessed_label: float,
    table: bool,
    gains: Sequence[ColumnGain],
) -> str:
    what, error = ("records", "error") if table else ("images", "MSE")
    by_name = {row.name: row.scores for row in rows}
    blind, defended = by_name[BLIND], by_name[Protection.DEFENDED]
    undefended = by_name[Protection.NONE]
    count = len(defended.mse)
    # A record that is rebuilt, or nearer than public ones are, is a leak by itself.
    hits = _beyond_guessing(
        defended.mse, blind.mse, threshold=threshold, guessed=guessed, table=table
    )
    if hits:
        return (
            f"A leak is shown: with the defence on, {hits} of {count} {what} are rebuilt "
            f"({error} at most {threshold:.3g})."
        )
    close = sum(e < near and e < b for e, b in zip(defended.mse, blind.mse, strict=True))
    if close:
        return (
            f"A leak is shown: with the defence on, {close} of {count} {what} are nearer to the "
            f"truth ({error} below {near:.3g}) than 19 in 20 public records are to any other."
        )
    # Without the victim's gradient nothing was attacked.
    if all(stage == NOT_IDENTIFIED for stage in rows[-1].stages):
        return (
            "No leak shown: what this adversary saw does not single out the victim's gradient "
            f"from those of others{_because(rows[-1])}."
        )
    # Leaks that rebuild nothing: labels, lineups and columns.
    every = (_label_leak(rows[-1], count, guessed_label), _lineup_leak(rows[-1]))
    if leak := next(filter(None, (*every, _column_leak(gains))), ""):
        return leak
    # An attack that fails without a defence tells nothing of the defence.
    rebuilt = sum(mse <= threshold for mse in undefended.mse)
    none = next(row for row in rows if row.name == Protection.NONE)
    read = rebuilt or _label_leak(none, count, guessed_label) or _lineup_leak(none)
    if undefended.mean_mse >= blind.mean_mse and not read:
        return (
            f"The attack fails even without a defence{_because(none)}, so it says nothing about "
            "the defence: no leak shown."
        )
    if is_no_better(defended.mean_mse, blind.mean_mse):
        said = "No leak shown: with the defence on, the attack is no better than the blind guess"
        return f"{said}{', in the mean over columns' if table else ''}."
    if len(defended.mse) == 1:
        return (
            "No leak shown beyond chance: with the defence on, the attack gains on the blind "
            f"guess, but one {what[:-1]} that is not rebuilt cannot tell chance from a leak; "
            "attack more."
        )
    if not _gains(blind.mse, defended.mse):
        return (
            "No leak shown beyond chance: with the defence on, the attack gains on the blind "
            f"guess, but not significantly over {len(defended.mse)} {what} (Student's t, 5%)."
        )
    return (
        f"A leak is shown: with the defence on, the error is "
        f"{defended.mean_mse / blind.mean_mse:.1%} of the blind guess's."
    )


def _because(row: Row) -> str:
    """Why nothing was observed, in brackets."""
    return f" ({row.reason})" if row.reason else ""


def _gains(blind: Sequence[float], errors: Sequence[float]) -> bool:
    """Whether the mean gain is above 0 by Student's one-sided t test at .05."""
    from scipy.stats import t

    gains = np.subtract(blind, errors)
    error = gains.std(ddof=1) / math.sqrt(len(gains))
    return bool(gains.mean() > t.isf(_CHANCE, len(gains) - 1) * error)


def _label_leak(row: Row, count: int, guessed: float) -> str:
    """A sentence where more labels are right than guessing explains, with probability .01."""
    from scipy.stats import binom

    right = row.right_labels
    if right is None or not float(binom.sf(right - 1, count, guessed)) < _RARE:
        return ""
    return (
        f"A leak is shown: with the defence on, the labels of {right} of {count} records are read "
        f"(guessing reads {guessed:.0%})."
    )


def _lineup_leak(row: Row) -> str:
    """A sentence where records rank first more often than guessing explains."""
    from scipy.stats import binom

    for size, ranks in row.lineups.items():
        first = sum(rank == 1 for rank in ranks)
        if float(binom.sf(first - 1, len(ranks), 1 / size)) < _RARE / len(row.lineups):
            return (
                f"A leak is shown: with the defence on, {first} of {len(ranks)} records rank "
                f"first among {size:,} by likelihood."
            )
    return ""


def _column_leak(gains: Sequence[ColumnGain]) -> str:
    """A sentence where a column is read better than by its usual value, by a sign test."""
    told = [gain for gain in gains if gain.p < _RARE / len(gains)]
    if not told:
        return ""
    best = min(told, key=lambda one: one.p)
    more = f", and so are {len(told) - 1} more" if len(told) > 1 else ""
    return (
        f"A leak is shown: with the defence on, column {best.name!r} is nearer to the truth than "
        f"its usual value in {best.nearer} of {best.nearer + best.farther} records in which they "
        f"differ{more}."
    )


def _unsolved_words(rows: Sequence[Row]) -> str:
    """Why algebra gave up, in the first row in which a picture fell back for that."""
    row = next((row for row in rows if row.unsolved), None)
    return "" if row is None else f" In the row of {row.name} algebra gave up: {row.unsolved}."


def _power_words(row: Row, *, table: bool) -> str:
    """How often the true record would have passed the test that what is searched must pass."""
    if not row.power:
        return ""
    mean = float(np.mean(row.power))
    return (
        f" The test that keeps {'a record' if table else 'an image'} of a search would keep the "
        f"true one with probability {mean:.2g}."
    )


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
        error <= threshold and not is_no_better(error, own)
        for error, own in zip(errors, blind, strict=True)
    )
    # An error this small is no guess: a pixel in a thousand grey levels, on average.
    exact = 0 if table else sum(error <= 1e-6 for error in errors)
    if exact or (hits and float(binom.sf(hits - 1, len(errors), guessed)) < _CHANCE):
        return max(hits, exact)
    return 0
