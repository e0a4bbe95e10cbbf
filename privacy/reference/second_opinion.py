"""A second opinion on an epsilon: what dp-accounting says of the same rounds, from both sides.

    optimistic <= epsilon <= pessimistic       of the truth, says dp-accounting
    ours >= optimistic                         or ours is too small
    ours / pessimistic                         1 where both are sharp

An optimistic estimate is loose where rounds are many: each loses half an interval of the grid.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, check_real, within
from ..participation import Event, as_events
from .distributions import Kind, Law, Unanswered, distribution_of, ever_sampled, kinds_of

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


# The privacy loss of one round, as far as a grid for it must be planned: range and moments.
#
# dp-accounting puts the loss of a round on equal steps of `interval` nats. What that takes is known
# beforehand from the range of the loss and from its log moments, which a few thousand nodes give.
#
# | symbol | name here | unit |
# |---|---|---|
# | p_j, j | Kind.moves | probability, and multiple of the clip norm |
# | 1/d | Kind.multiplier | noise std / clip norm |
# | Lambda(t) | log_moments | log E[exp(t loss)] under P |
#
# Source: the pairs of arXiv:2106.08567, as in `accounting.dominating_pairs`; nothing here enters a
# figure, only the choice of the interval and of what is refused.

Array = NDArray[np.float64]
_Nodes = tuple[Array, Array]  # losses and log masses (K,), in any order
_NODES = 401  # over each bump
_ORDERS = 20  # of the Chernoff bounds by which dp-accounting cuts a composition
_TRUNCATED = math.log(2e15)  # minus the log of what it may cut on either side


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """The loss of one round of a kind, for one direction of the adjacency.

    Attributes:
        range: smallest and largest loss on the grid, in nats.
        losses, log_masses: (K,) nodes under P.
        count: how many rounds are alike.
    """

    range: tuple[float, float]
    losses: Array
    log_masses: Array
    count: int

    @property
    def width(self) -> float:
        """Of the grid of one round, in nats."""
        return self.range[1] - self.range[0]

    def log_moments(self, tilts: Array) -> Array:
        """Lambda(t) of one round at each tilt."""
        exponents = self.log_masses + np.multiply.outer(tilts, self.losses)
        top = exponents.max(axis=1)
        found = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
        return np.asarray(found, dtype=np.float64)

    def composed_width(self) -> float:
        """Of the grid of all `count` rounds, as dp-accounting cuts it, in nats."""
        orders = np.arange(1, _ORDERS + 1) / max(self.width, 1e-300)
        high = (self.count * self.log_moments(orders) + _TRUNCATED) / orders
        low = (self.count * self.log_moments(-orders) + _TRUNCATED) / -orders
        ends = max(float(low.max()), self.count * self.range[0]), float(high.min())
        return max(min(ends[1], self.count * self.range[1]) - ends[0], self.width)


def losses_of(kind: Kind, *, reach: float) -> list[Losses]:
    """The losses of both directions of a kind; one where they are alike.

    Args:
        reach: noise standard deviations on either side of a mean that the grid covers.
    """
    found = _nodes_of(kind, reach)
    if kind.coin < 1.0:
        # What takes place otherwise may have two directions where this has one, or one for two.
        nothing = [(np.zeros(1), np.zeros(1))]
        others = nothing if kind.otherwise is None else _nodes_of(kind.otherwise, reach)
        coins = math.log(kind.coin), math.log1p(-kind.coin)
        found = [
            (
                np.concatenate([found[way][0], others[way][0]]),
                np.concatenate([coins[0] + found[way][1], coins[1] + others[way][1]]),
            )
            for way in ([0, -1] if max(len(found), len(others)) == 2 else [0])
        ]
    return [_losses(nodes, kind.count) for nodes in found]


def _nodes_of(kind: Kind, reach: float) -> list[_Nodes]:
    """Losses and masses of one side of a lottery, for each direction that differs."""
    d = 1.0 / kind.multiplier
    z = np.linspace(-reach, reach, _NODES)
    log_density = -0.5 * z**2
    log_density -= np.logaddexp.reduce(log_density)
    if kind.law.is_within:  # of BLANK it is wider than it need be
        return [_within(kind.moves.rate, 2.0 * d, z, log_density)]
    multiples, probabilities = (np.array(values) for values in kind.moves)
    if multiples[0] > 0.0:  # the range of a grid has room for nobody, too
        multiples, probabilities = np.append(0.0, multiples), np.append(0.0, probabilities)
    with np.errstate(divide="ignore"):
        logs = np.log(probabilities)
    positions = (z + d * multiples[:, None]).ravel()
    log_masses = (log_density + logs[:, None]).ravel()
    ratio = _log_ratio(positions, d * multiples, probabilities)
    if kind.law is Law.REPLACED:
        return [(ratio - _log_ratio(-positions, d * multiples, probabilities), log_masses)]
    if kind.moves.rate == 1.0 and len(kind.moves.multiples) == 1:
        return [(ratio, log_masses)]
    nobody = np.full(positions.size - z.size, -math.inf)
    return [(ratio, log_masses), (-ratio, np.concatenate([log_density, nobody]))]


def _within(rate: float, distance: float, z: Array, log_density: Array) -> _Nodes:
    """Losses above 0 of a mean that is moved, below 0 of one that is not, and 0 for the rest."""
    shifts, weights = np.array([0.0, distance]), np.array([1.0 - rate, rate])
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    positions = (z + shifts[:, None]).ravel()
    up = _log_ratio(positions, shifts, weights)
    down = -_log_ratio(z, shifts, weights)
    masses = (log_density + logs[:, None]).ravel()
    above, below = up > 0.0, down < 0.0
    rest = 1.0 - np.exp(masses[above]).sum() - np.exp(log_density[below]).sum()
    losses = np.concatenate([up[above], down[below], [0.0]])
    log_rest = math.log(max(float(rest), 1e-300))
    return losses, np.concatenate([masses[above], log_density[below], [log_rest]])


def _losses(nodes: _Nodes, count: int) -> Losses:
    losses, log_masses = nodes
    kept = np.isfinite(log_masses)
    return Losses(
        range=(float(losses.min()), float(losses.max())),
        losses=np.asarray(losses[kept], dtype=np.float64),
        log_masses=np.asarray(log_masses[kept], dtype=np.float64),
        count=count,
    )


def _log_ratio(positions: Array, shifts: Array, weights: Array) -> Array:
    """Log of sum_j p_j exp(s_j x - s_j^2/2) at each x, with digits where it is close to 0."""
    near, far = np.zeros_like(positions), np.full_like(positions, -math.inf)
    for shift, weight in zip(shifts, weights, strict=True):
        if weight > 0.0:
            exponent = shift * positions - 0.5 * shift**2
            near += weight * np.expm1(np.minimum(exponent, 1.0))
            far = np.logaddexp(far, math.log(weight) + exponent)
    # Where no exponent is above 1, `near` is all of it.
    small = (shifts.max() * positions - 0.5 * shifts.max() ** 2 < 1.0) & (near > -0.5)
    return np.where(small, np.log1p(np.where(small, near, 0.0)), far)


# Epsilon of Poisson-sampled Gaussian rounds by dp-accounting, from above and from below.
#
#     Google's dp-accounting, `pld.privacy_loss_distribution`: from above "connect the dots"
#         (Doroshenko et al., arXiv:2207.04380), from below losses rounded down to the grid.
#
# Formal guarantees: those of dp-accounting. A pessimistic estimate is an upper bound and an
# optimistic one a lower bound, but for rounding errors of its transforms, which it does not count:
# about 1e-14 in delta. So a delta below `LEAST_DELTA` is refused here, and an optimistic epsilon is
# read at a delta that is larger by a share of 1e-4.
#
# dp-accounting puts losses on one grid of equal steps for all rounds. From above the steps add
# about t (t + 1) T h^2 / 12 to log delta, from below each takes h / 2 from epsilon and from every
# round:
#
#     interval       finest step that is of use: 5e-5 of epsilon from above, 1e-4 of it from below
#     coarser        what the time and memory allow; from above at most so that 1e-3 of it is added
#
# What would take longer or more memory is refused before it is begun, with its size.

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
    # What has to be put on a grid and convolved, both ways.
    found = [losses_of(k, reach=reach) for k in kinds]
    cells = sum(direction.width for directions in found for direction in directions)
    bins = 0.0
    for way in (0, -1):
        widths = [directions[way].composed_width() for directions in found]
        # Every composition with another kind convolves all that is there already.
        bins += sum(widths) + (float(np.cumsum(widths).sum()) if len(widths) > 1 else 0.0)
    epsilon, tilt = max(_guess([d[way] for d in found], delta) for way in (0, -1))
    widest = max(direction.width for directions in found for direction in directions)
    return _Needs(
        cells=cells,
        bins=bins,
        mixed=_PER_MIXED
        * pessimistic
        * sum(
            direction.width
            for kind, directions in zip(kinds, found, strict=True)
            for direction in directions
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
    for loss in losses:
        masses = np.exp(loss.log_masses)
        mean = float(masses @ loss.losses)
        deviation += loss.count * float(masses @ (loss.losses - mean) ** 2)
    scale = 1.0 / max(math.sqrt(deviation), 1e-150)
    tilts = scale * np.exp2(np.arange(-6.0, 12.0, 0.25))
    total = np.sum([loss.count * loss.log_moments(tilts) for loss in losses], axis=0)
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


_ABOVE, _BELOW = 0.5, 0.25  # seconds that an estimate from above, and from below, may take
_ROUNDING = 1e-9  # relative; what two ways to add the same floats may differ by
AGREES_WITHIN = 1e-2  # of ours, that a pessimistic estimate may lie above it


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondOpinion:
    """What dp-accounting says of the rounds that an epsilon is of.

    Attributes:
        by: the library and its version.
        ours: the epsilon that it is asked about, in nats.
        optimistic: its lower bound; None where it has none.
        pessimistic: its upper bound; None where it has none.
        intervals: of the grids of both, in nats.
        because: why there is no bracket; empty where there is one.

    Raises:
        ValueError: a bracket with a reason why it is absent, or neither.
    """

    by: str
    ours: float
    optimistic: float | None = None
    pessimistic: float | None = None
    intervals: tuple[float, float] | None = None
    because: str = ""

    def __post_init__(self) -> None:
        """Check that there is a bracket or a reason."""
        if (self.optimistic is None) != bool(self.because):
            raise InputError("a second opinion has either a bracket or a reason why it is absent")

    @property
    def ratio(self) -> float | None:
        """Ours / pessimistic; None without a bracket, 1 where both are 0."""
        if self.pessimistic is None:
            return None
        if self.pessimistic == self.ours:
            return 1.0
        return self.ours / self.pessimistic if self.pessimistic > 0.0 else math.inf

    @property
    def contradicts(self) -> bool:
        """Whether its lower bound lies above ours: one of the two is wrong."""
        return self.optimistic is not None and self.ours < self.optimistic * (1.0 - _ROUNDING)

    @property
    def confirms(self) -> bool:
        """Whether ours is no smaller than its lower bound, nor much smaller than its upper one."""
        if self.pessimistic is None or self.contradicts:
            return False
        return self.pessimistic <= self.ours * (1.0 + AGREES_WITHIN) + 1e-6


def second_opinion(
    rounds: Mapping[tuple[float, float], int] | Mapping[Event, int],
    *,
    ours: float,
    delta: float,
    adjacency: str = "add-or-remove-one",
) -> SecondOpinion:
    """Return what dp-accounting says of `rounds`, whose epsilon is `ours`.

    Args:
        rounds: how often each (noise multiplier, sampling rate), or each `Event`, occurs.
        ours: epsilon of them, in nats.
        delta: strictly between 0 and 1.
        adjacency: "add-or-remove-one", "zero-out" or "replace-one".

    Returns:
        A bracket, or the reason why there is none. The same rounds are asked about once; the
        interval of its grid is chosen so that a second is rarely passed.

    >>> found = second_opinion({(1.0, 0.01): 1000}, ours=1.8283, delta=1e-5)
    >>> found.confirms, round(found.pessimistic, 3), round(found.ratio, 3)
    (True, 1.828, 1.0)
    """
    by, delta = library(), within("delta", delta, "(0, 1)")
    check_real("ours", ours)
    if math.isinf(ours):
        return SecondOpinion(by=by, ours=ours, because="there is no finite figure to hold it to")
    kinds = tuple(sorted(as_events(rounds).items()))
    bounds = _bracket(kinds, delta, str(adjacency))
    if isinstance(bounds, str):
        return SecondOpinion(by=by, ours=ours, because=bounds)
    low, high, intervals = bounds
    return SecondOpinion(by=by, ours=ours, optimistic=low, pessimistic=high, intervals=intervals)


@functools.cache
def library() -> str:
    """The name and the version of the library."""
    return f"dp-accounting {importlib.metadata.version('dp-accounting')}"


@functools.lru_cache(maxsize=512)
def _bracket(
    rounds: tuple[tuple[Event, int], ...], delta: float, adjacency: str
) -> tuple[float, float, tuple[float, float]] | str:
    asked = dict(rounds)
    how: dict[str, Any] = {"delta": delta, "adjacency": adjacency}
    try:
        high = epsilon_estimate(asked, **how, seconds=_ABOVE)
        low = epsilon_estimate(asked, **how, seconds=_BELOW, pessimistic=False, near=high.figure)
    except Unanswered as refused:
        return str(refused)
    return low.figure, high.figure, (low.interval, high.interval)
