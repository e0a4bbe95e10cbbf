"""Epsilon of Poisson-sampled Gaussian rounds by dp-accounting, from above and from below.

    Google's dp-accounting, `pld.privacy_loss_distribution`: from above "connect the dots"
        (Doroshenko et al., arXiv:2207.04380), from below losses rounded down to the grid.

Formal guarantees: those of dp-accounting. A pessimistic estimate is an upper bound and an
optimistic one a lower bound, but for rounding errors of its transforms, which it does not count:
about 1e-14 in delta. So a delta below `LEAST_DELTA` is refused here, and an optimistic epsilon is
read at a delta that is larger by a share of 1e-4.

dp-accounting puts losses on one grid of equal steps for all rounds. From above the steps add about
t (t + 1) T h^2 / 12 to log delta, from below each takes h / 2 from epsilon and from every round:

    interval       finest step that is of use: 5e-5 of epsilon from above, 1e-4 of it from below
    coarser        what the time and memory allow; from above at most so that 1e-3 of it is added

What would take longer or more memory is refused before it is begun, with its size.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..participation import Event
from .distributions import distribution_of
from .kinds import Kind, Unanswered, ever_sampled, kinds_of
from .losses import Losses, losses_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

__all__ = ["LEAST_DELTA", "Estimate", "Unanswered", "delta_estimate", "epsilon_estimate"]

LEAST_DELTA = 1e-10  # of one round; rounding errors of its transforms are 1e-14 and grow with T
SECONDS, BYTES = 20.0, 1e9  # that one estimate may take, about
_PER_CELL, _PER_BIN = 4e-6, 1e-6  # seconds; a cell is a loss of one round, a bin of all of them
_PER_MIXED = 1.6e-4  # of a cell of several records, from above
_CELL_BYTES, _BIN_BYTES = 250.0, 100.0
_WANTED, _BEARABLE = 5e-5, 1e-3  # share of epsilon that the grid may add from above
_WANTED_BELOW = 1e-4  # and may take from below
_COARSEST = 0.05  # nats
# Its masses from above are second differences over the interval h, and their rounding errors add a
# share of about T _NOISE sqrt(width) / h^2, found by trial, of which so much is borne.
_NOISE, _MOST_NOISE = 5e-18, 1e-3
_LEAST_MULTIPLIER = 1e-4
_SMALLEST, _LARGEST = 1e-7, 700.0  # epsilon that a grid is chosen for, and that it resolves
_ROUNDED = 1e-4  # share of delta that rounding errors of its transforms stay below
_TAILS = 1e-6  # share of delta that the tails of all rounds may hold


class Estimate(NamedTuple):
    """A figure and the interval, in nats, of the grid that it was found on."""

    figure: float
    interval: float


def epsilon_estimate(
    rounds: Mapping[tuple[float, float], int] | Mapping[Event, int],
    *,
    delta: float,
    adjacency: str = "add-or-remove-one",
    pessimistic: bool = True,
    near: float | None = None,
    seconds: float = SECONDS,
) -> Estimate:
    """Return dp-accounting's epsilon of all rounds together.

    Args:
        rounds: how often each (noise multiplier > 0, sampling rate) occurs.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".
        pessimistic: an upper bound, or else a lower one.
        near: an epsilon by which to choose the grid; by default Chernoff's, then its own.
        seconds: that it may take, about.

    Raises:
        Unanswered: dp-accounting does not cover the rounds, or would take too long.

    >>> found = epsilon_estimate({(1.0, 0.01): 1000}, delta=1e-5)
    >>> round(found.figure, 3)
    1.828
    """
    kinds = kinds_of(rounds, adjacency)
    _check_delta(kinds, delta)
    if not kinds or ever_sampled(kinds) <= delta:
        return Estimate(0.0, 0.0)
    tails = math.log(_TAILS * delta / sum(k.count for k in kinds))
    needs = _needs(kinds, pessimistic=pessimistic, delta=delta, tails=tails)
    expected = needs.epsilon if near is None else near
    at = delta if pessimistic else delta * (1.0 + _ROUNDED)
    while True:
        interval = needs.interval(expected, pessimistic=pessimistic, seconds=seconds)
        composed = _composed(kinds, interval, tails=tails, pessimistic=pessimistic)
        with _quiet(), _answered():
            epsilon = float(composed.get_epsilon_for_delta(at))
        if not epsilon <= _LARGEST:
            raise Unanswered(
                f"epsilon above {_LARGEST:g} is beyond it: exp(-loss) is 0 in its arithmetic"
            )
        # Chernoff's bound, by which the grid was chosen, may lie far above epsilon.
        if not pessimistic or near is not None or epsilon >= 0.5 * expected:
            return Estimate(max(epsilon, 0.0), interval)
        expected = max(epsilon, 0.1 * expected)
        if expected < _SMALLEST:
            return Estimate(max(epsilon, 0.0), interval)


def delta_estimate(
    rounds: Mapping[tuple[float, float], int] | Mapping[Event, int],
    *,
    epsilon: float,
    adjacency: str = "add-or-remove-one",
    seconds: float = SECONDS,
) -> float:
    """Return dp-accounting's pessimistic delta of all rounds together at `epsilon` nats.

    Raises:
        Unanswered: dp-accounting does not cover the rounds, would take too long, or delta lies
            below what its transforms resolve.

    >>> f"{delta_estimate({(1.0, 0.01): 1000}, epsilon=2.0):.2e}"
    '2.67e-06'
    """
    kinds = kinds_of(rounds, adjacency)
    if not kinds:
        return 0.0
    least = _least_delta(kinds)
    tails = math.log(_TAILS * least / sum(k.count for k in kinds))
    needs = _needs(kinds, pessimistic=True, delta=least, tails=tails)
    interval = needs.interval(max(epsilon, 1e-2 * needs.epsilon), pessimistic=True, seconds=seconds)
    composed = _composed(kinds, interval, tails=tails, pessimistic=True)
    with _quiet(), _answered():
        delta = float(composed.get_delta_for_epsilon(epsilon))
    if not delta >= least:
        raise Unanswered(
            f"delta at epsilon={epsilon:g} lies below {least:.0e}, where rounding errors of its "
            "transforms count"
        )
    return min(delta, 1.0)


def _least_delta(kinds: Sequence[Kind]) -> float:
    """Rounding errors of a transform that is raised to a power grow with it."""
    return LEAST_DELTA * max(1.0, max(k.count for k in kinds) / 1e4)


def _check_delta(kinds: Sequence[Kind], delta: float) -> None:
    if kinds and delta < (1.0 - 1e-9) * (least := _least_delta(kinds)):
        raise Unanswered(
            f"delta={delta:g} is below {least:.0e}, where rounding errors of its transforms count"
        )


class _Needs(NamedTuple):
    """What a grid takes and adds.

    Attributes:
        cells, bins: points of all rounds' grids, and of their compositions, times the interval.
        mixed: seconds that cells of several records take beyond those of one, times the interval.
        epsilon, tilt: Chernoff's bound for all rounds.
        rounds: how many there are.
        finest: interval below which dp-accounting's own differences are rounding errors.
    """

    cells: float
    bins: float
    mixed: float
    epsilon: float
    tilt: float
    rounds: float
    finest: float

    def interval(self, epsilon: float, *, pessimistic: bool, seconds: float) -> float:
        """As fine as is of use for such an epsilon and as the time allows.

        Raises:
            Unanswered: too coarse, or too fine for its own arithmetic.
        """
        least = max(
            (_PER_CELL * self.cells + _PER_BIN * self.bins + self.mixed) / seconds,
            (_CELL_BYTES * self.cells + _BIN_BYTES * self.bins) / BYTES,
        )
        epsilon = max(epsilon, _SMALLEST)
        added = math.sqrt(12.0 * epsilon / ((self.tilt + 1.0) * self.rounds))
        above = min(math.sqrt(_WANTED) * added, _COARSEST)
        below = min(2.0 * _WANTED_BELOW * epsilon / self.rounds, _COARSEST)
        chosen = max(least, above, self.finest) if pessimistic else max(least, below)
        bearable = math.sqrt(_BEARABLE) * added
        if not pessimistic or chosen <= bearable:
            return chosen
        if chosen == self.finest:
            raise Unanswered(
                f"its grid would have to be finer than {self.finest:.1e} nats, where its own "
                "differences are rounding errors: the loss of a round is too small"
            )
        points = self.cells + self.bins
        raise Unanswered(
            f"it would need {points / bearable:.1e} grid points, and {seconds:g} seconds and "
            f"{BYTES / 1e9:g} GB allow {points / least:.1e}"
        )


def _needs(kinds: Sequence[Kind], *, pessimistic: bool, delta: float, tails: float) -> _Needs:
    reach = math.sqrt(-2.0 * tails)
    smallest = min(side.multiplier for k in kinds for side in k.sides)
    if smallest < _LEAST_MULTIPLIER:
        raise Unanswered(f"noise_multiplier={smallest:g} makes losses too large for a grid")
    found = [losses_of(k, reach=reach) for k in kinds]
    cells = sum(one.width for directions in found for one in directions)
    bins = 0.0
    for way in (0, -1):
        widths = [directions[way].composed_width() for directions in found]
        # Every composition with another kind convolves all that is there already.
        bins += sum(widths) + (float(np.cumsum(widths).sum()) if len(widths) > 1 else 0.0)
    epsilon, tilt = max(_guess([d[way] for d in found], delta) for way in (0, -1))
    widest = max(one.width for directions in found for one in directions)
    return _Needs(
        cells=cells,
        bins=bins,
        mixed=_PER_MIXED
        * pessimistic
        * sum(
            one.width
            for kind, directions in zip(kinds, found, strict=True)
            for one in directions
            if any(side.of_several for side in kind.sides)
        ),
        epsilon=epsilon,
        tilt=tilt,
        rounds=float(sum(k.count for k in kinds)),
        finest=math.sqrt(sum(k.count for k in kinds) * _NOISE / _MOST_NOISE) * widest**0.25,
    )


def _guess(losses: Sequence[Losses], delta: float) -> tuple[float, float]:
    """Chernoff's epsilon of all rounds and its tilt."""
    deviation = 0.0
    for one in losses:
        masses = np.exp(one.log_masses)
        mean = float(masses @ one.losses)
        deviation += one.count * float(masses @ (one.losses - mean) ** 2)
    scale = 1.0 / max(math.sqrt(deviation), 1e-150)
    tilts = scale * np.exp2(np.arange(-6.0, 12.0, 0.25))
    total = np.sum([one.count * one.log_moments(tilts) for one in losses], axis=0)
    bounds = (total - math.log(delta)) / tilts
    best = int(np.nanargmin(bounds))
    return float(bounds[best]), float(tilts[best])


def _composed(
    kinds: Sequence[Kind], interval: float, *, tails: float, pessimistic: bool
) -> PrivacyLossDistribution:
    """dp-accounting's own distribution of all rounds."""
    total: PrivacyLossDistribution | None = None
    with _quiet(), _answered():
        for kind in kinds:
            one = distribution_of(kind, interval, tails=tails, pessimistic=pessimistic)
            several = one.self_compose(kind.count) if kind.count > 1 else one
            total = several if total is None else total.compose(several)
    if total is None:
        raise Unanswered("there are no rounds")
    return total


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Errors of dp-accounting as reasons; exp(loss) of a large grid is too large for it."""
    try:
        yield
    except (ValueError, ArithmeticError, MemoryError, IndexError) as error:
        # A MemoryError says nothing of itself.
        raise Unanswered(f"it fails: {str(error) or type(error).__name__}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without dp-accounting's log and numpy's warnings about the tails of its grids."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
