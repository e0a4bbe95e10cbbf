"""A check of all that an adversary hears of a whole run, over rounds, rows and directions.

`told` turns what is seen of a run into rows e_t that are standard normal and independent, of each
other and of the rounds before, if the noise is as declared over agents and rounds. So they tell of
memory that is forgotten or taken from another row, of a source that is used twice and of one that
is left out, whether a fault shows more of a record or hides it. A bound on epsilon
needs hundreds of canaries for what a thousand values of e show:

    size     sum of e^2, of the run, of each round and of each row     chi-square
    along    sum of squares of c' y / sqrt(c' M c) of all canaries     chi-square
    rounds   sum over t of |e_t Q_t-l|^2, Q_s an orthonormal basis     chi-square, of rows_t times
             of the span of the rows of e_s, over directions           rows_t-l degrees a round
    rows     the same with the rows before it in its own round

The last two are exact, too: given the rounds before, what the basis is does not depend on e_t. All
tests together fail a sound run with probability below 1e-6 (C. E. Bonferroni 1936).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...training.noise_tests.laws import least, two_sided
from ..checks.result import TOTAL_FALSE_ALARM, Check, Finding
from .canary_noise import ObservedNoise

Array = NDArray[np.float64]
_MOST_LAGS = 100
_MOST_WORK = 3e9  # multiplications of all lags of one run, about 3 s
_POWER = 0.95
_NEARLY = 0.999  # square of a correlation


def heard_check(heard: Sequence[ObservedNoise]) -> Check:
    """Test all that was heard of whole runs against the declared noise over agents and rounds.

    Runs of one adversary are tested together.
    """
    found, values, along, lagged = Finding(), 0, 0, (0, 0)
    for of in _joined(heard):
        what = f"what the {of.name} hears"
        rounds = [np.asarray(one, dtype=np.float64) for one in of.rounds]
        degrees = 0
        _note_sizes(found, rounds, what)
        _note_along(found, of.along, f"the noise along what canaries add, to the {of.name}")
        for lag, of_rounds in _together(rounds):
            _note_together(found, lag, of_rounds, what)
            degrees = sum(number for _, number in of_rounds) if lag == 1 else degrees
        values = max(values, sum(one.size for one in rounds))
        lagged = max(lagged, (sum(one.size for one in rounds[1:]), degrees))
        along = max(along, len(of.along))
    words = (
        "all that an adversary observes of a run was checked against the declared noise over "
        "agents and rounds: "
        "size, by round and row, along what canaries add, and whether rounds or rows go together"
    )
    if not found.tests:
        return Check.exact("heard", f"{words}: there was none.", tests=0)
    power = _power(values, along, lagged, tests=found.tests)
    return found.check("heard", words, power=power)


def _joined(heard: Sequence[ObservedNoise]) -> Iterator[ObservedNoise]:
    """Runs of equal rows as one of more directions, so that a small fault of all of them shows."""
    alike: dict[tuple[str, tuple[int, ...]], list[ObservedNoise]] = {}
    for of in heard:
        alike.setdefault((of.name, tuple(len(one) for one in of.rounds)), []).append(of)
    for (name, _), runs in alike.items():
        rounds = zip(*(of.rounds for of in runs), strict=True)
        yield ObservedNoise(
            name,
            [np.concatenate(parts, axis=1, dtype=np.float64) for parts in rounds],
            np.concatenate([of.along for of in runs]),
        )


def least_scales(values: int, *, tests: int) -> tuple[float, float]:
    """The noise nearest to the declared one that is told from it in 95 of 100 runs.

    Args:
        values: how many standard normals the test of size has.
        tests: among which the false-alarm rate is shared.

    Returns:
        (less, more): deviations in units of the declared one.
    """
    from scipy.stats import chi2

    each = TOTAL_FALSE_ALARM / tests / 2
    less = chi2.ppf(each, values) / chi2.ppf(_POWER, values)
    more = chi2.isf(each, values) / chi2.isf(_POWER, values)
    return math.sqrt(less), math.sqrt(more)


def least_correlation(values: int, degrees: int, *, tests: int) -> float:
    """The correlation of rounds with the one before that is told from none in 95 of 100 runs.

    Args:
        values: how many standard normals later rounds have, each of which goes together with one
            of the round before.
        degrees: of the test.
        tests: among which the false-alarm rate is shared.
    """
    from scipy.optimize import brentq
    from scipy.stats import chi2, ncx2

    most = chi2.isf(TOTAL_FALSE_ALARM / tests / 2, degrees)

    def missed(square: float) -> float:
        shift = square / (1.0 - square) * values
        return float(ncx2.cdf(most / (1.0 - square), degrees, shift)) - (1.0 - _POWER)

    return math.sqrt(brentq(missed, 1e-9, _NEARLY)) if missed(_NEARLY) < 0 else 1.0


def _power(values: int, along: int, lagged: tuple[int, int], *, tests: int) -> str:
    """What would be seen."""
    less, more = least_scales(values, tests=tests)
    said = (
        f"Noise of {_down(less)} or {_up(more)} times the declared deviation would be "
        f"seen in 95 of 100 runs ({values} values)"
    )
    if along:
        less, more = least_scales(along, tests=tests)
        said += f", along what canaries add of {_down(less)} or {_up(more)} ({along} values)"
    if lagged[1]:
        together = _up(least_correlation(*lagged, tests=tests))
        said += f", and so would rounds that have a correlation of {together} with the one before"
    return f"{said}."


def _down(value: float) -> str:
    return f"{math.floor(1000 * value) / 1000:.3f}".removeprefix("0")


def _up(value: float) -> str:
    return f"{math.ceil(1000 * value) / 1000:.3f}".removeprefix("0")


def _note_sizes(found: Finding, rounds: Sequence[Array], what: str) -> None:
    rounds = [one for one in rounds if one.size]
    of_rows = [(one**2).sum(axis=1) for one in rounds]
    if not of_rows:
        return
    wide = [np.full(len(one), one.shape[1]) for one in rounds]
    sums = {
        "over all rounds": [(sum(s.sum() for s in of_rows), sum(one.size for one in rounds))],
        "in one round": [(s.sum(), one.size) for s, one in zip(of_rows, rounds, strict=True)],
        "in one row": list(zip(np.concatenate(of_rows), np.concatenate(wide), strict=True)),
    }
    for where, every in sums.items():
        squares, degrees = np.array(every, dtype=float).T
        at, p = least(two_sided(squares, degrees))
        ratio = f"{squares[at] / degrees[at]:.3g} times the declared variance"
        found.note(p, tests=len(squares), what=f"{what} {where} has {ratio}")


def _note_along(found: Finding, along: Array, what: str) -> None:
    if not len(along):
        return
    squares = float((along**2).sum())
    found.note(
        two_sided(squares, len(along)),
        what=f"{what} has {squares / len(along):.3g} times the declared variance",
    )


def _together(rounds: Sequence[Array]) -> Iterator[tuple[int, list[tuple[float, int]]]]:
    """By lag, of each round the squares of what lies in another one's span, and their number."""
    bases = [_basis(one) for one in rounds]
    work = sum(one.size * q.shape[1] for one, q in zip(rounds, bases, strict=True))
    lags = min(len(rounds) - 1, _MOST_LAGS, int(_MOST_WORK / max(work, 1)))
    yield 0, [_within(one) for one in rounds]
    for lag in range(1, lags + 1):
        found = []
        for one, q in zip(rounds[lag:], bases, strict=False):
            n = min(one.shape[1], q.shape[0])
            if n == one.shape[1] == q.shape[0]:
                found.append((float(((one @ q) ** 2).sum()), len(one) * q.shape[1]))
        yield lag, found


def _basis(one: Array) -> Array:
    """(n, rows) orthonormal, of the span of the rows; of half of the directions at most."""
    some = one[: max(1, one.shape[1] // 2)]
    return np.asarray(np.linalg.qr(some.T)[0])


def _within(one: Array) -> tuple[float, int]:
    """Of each row what lies in the span of the rows before it."""
    upper = np.linalg.qr(one[: max(1, one.shape[1] // 2)].T, mode="r")
    rows = len(upper)
    return float((np.triu(upper, 1) ** 2).sum()), rows * (rows - 1) // 2


def _note_together(
    found: Finding, lag: int, of_rounds: Sequence[tuple[float, int]], what: str
) -> None:
    degrees = sum(number for _, number in of_rounds)
    if not degrees:
        return
    squares = sum(size for size, _ in of_rounds)
    rows = f"rounds {lag} apart" if lag else "rows of one round"
    found.note(
        two_sided(squares, degrees),
        what=f"{rows} of {what} go together: {squares / degrees:.3g} times what chance leaves",
    )
