"""What the noise alone does to canaries' scores: standard normal draws, if all is as declared.

The statistic s of a canary that is not in a batch is N(0, v), that of one that is in it N(v, v). So

    z = (s - part * v) / sqrt(v)     part: 1 or -1 where the canary takes part, 0 where it does not

is a standard normal, exactly and independently over canaries, rounds and hosts, whatever the
algorithm, the graph and the adversary. `canary_checks` tests it.

A check that asks for something else than the noise's size must not fail for its size. Normal draws
of any one size have a direction that is uniform, and independent of their length: so the length is
exchanged for another, and the draws are standard normal again whatever the size was. No false alarm
is added, as what comes in depends on nothing but draws of its own, or on draws of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.participation import group

Array = NDArray[np.float64]

_FEWEST_ABSENT = 20  # from which a size is told well enough to hold others to it


class Residue(NamedTuple):
    """One host's canaries in one batch, in the view of one adversary.

    Attributes:
        round, host, batch: which; batches are numbered within the round.
        rate: chance that a record takes part.
        standard: (n,) z.
        information: (n,) v.
        part: (n,) 1, -1 or 0.
        sign: (n,) of the sum of what the canary adds to all rows.
        norms: (n,) of the canaries' gradients before clipping, in clip norms.
    """

    round: int
    host: int
    batch: int
    rate: float
    standard: Array
    information: Array
    part: Array
    sign: Array
    norms: Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CanaryNoise:
    """Residues of one adversary and one number of batch, in all runs.

    Attributes:
        name: of the adversary.
        standard, information, part, sign, norms: (H, T, n), hosts of all runs by rounds by
            canaries; NaN where nothing can be scored.
        host: (H,) the agent.
        run: (H,) the run.
        rounds: (T,) their numbers.
        rate: (T,) chance that a record takes part.
    """

    name: str
    standard: Array
    information: Array
    part: Array
    sign: Array
    norms: Array
    host: NDArray[np.int64]
    run: NDArray[np.int64]
    rounds: NDArray[np.int64]
    rate: Array


class ObservedNoise(NamedTuple):
    """All that one adversary sees of one run, less what is known and what data add.

    Attributes:
        name: of the adversary.
        rounds: by round of the run, (rows, n) independent standard normals, if the noise is as
            declared over agents and rounds; the n directions are those of the canaries.
        along: (m,) of every canary, standard normal too: the noise in its score of all rounds,
            where it takes part in each of its turns. Its size alone decides what the score tells.
    """

    name: str
    rounds: Sequence[NDArray[np.floating]]
    along: Array


def gathered(runs: Sequence[Mapping[str, Sequence[Residue]]]) -> list[CanaryNoise]:
    """Residues of all runs, stacked by adversary and number of batch."""
    found = []
    for name in sorted({name for run in runs for name in run}):
        every = [(number, one) for number, run in enumerate(runs) for one in run.get(name, [])]
        for batch in sorted({one.batch for _, one in every}):
            chosen = [(number, one) for number, one in every if one.batch == batch]
            found.append(_stacked(name, chosen))
    return found


def _stacked(name: str, chosen: Sequence[tuple[int, Residue]]) -> CanaryNoise:
    rounds = sorted({one.round for _, one in chosen})
    hosts = sorted({(number, one.host) for number, one in chosen})
    width = max(len(one.standard) for _, one in chosen)
    at = {key: i for i, key in enumerate(hosts)}, {number: i for i, number in enumerate(rounds)}
    fields = ("standard", "information", "part", "sign", "norms")
    filled = {field: np.full((len(hosts), len(rounds), width), np.nan) for field in fields}
    rate = np.ones(len(rounds))
    for number, one in chosen:
        h, t = at[0][number, one.host], at[1][one.round]
        rate[t] = one.rate
        for field in fields:
            filled[field][h, t, : len(one.standard)] = getattr(one, field)
    return CanaryNoise(
        name=name,
        host=np.array([host for _, host in hosts]),
        run=np.array([number for number, _ in hosts]),
        rounds=np.array(rounds),
        rate=rate,
        **filled,
    )


def of_renewed_size(of: CanaryNoise) -> Array:
    """One adversary's draws z, their size and their mean in each batch exchanged for fresh ones.

    Returns:
        (H, T, n): of each host and round those in the batch by sign and those that are not, each
        with the mean and the length of as many standard normal draws. Independent standard
        normals if the draws of each such group are independent normals of one mean and size.
    """
    rng = np.random.default_rng(0)
    found = of.standard.copy()
    for part in (-1.0, 0.0, 1.0):
        chosen = np.isfinite(of.standard) & (of.part == part)
        n = chosen.sum(axis=2, keepdims=True)
        z = np.where(chosen, of.standard, 0.0)
        apart = np.where(chosen, z - z.sum(axis=2, keepdims=True) / np.maximum(n, 1), 0.0)
        length = np.sqrt((apart**2).sum(axis=2, keepdims=True))
        fresh = np.sqrt(rng.chisquare(np.maximum(n - 1, 1)))
        place = rng.normal(size=n.shape) / np.sqrt(np.maximum(n, 1))
        # One alone has no length about its mean, and equal ones have no direction.
        renewed = apart * fresh / np.where(length > 0, length, 1.0) + place
        renewed = np.where((n > 1) & (length == 0), rng.normal(size=z.shape), renewed)
        found = np.where(chosen, renewed, found)
    return found


def of_observed_size(of: CanaryNoise) -> Array:
    """One adversary's draws z of canaries in the batch, sized by those that are not in it.

    Returns:
        (H, T, n): of each host and round the squares of those in the batch, held against those of
        the others, have the law of F; their length becomes the one that chi-square has at the same
        probability. Without 20 others the draws stay as they are, and so do all others.
    """
    from scipy.special import chdtri, fdtrc

    told = np.isfinite(of.standard)
    there = told & (of.part != 0)
    squares, number = [], []
    for chosen in (there, told & ~there):
        squares.append(np.where(chosen, of.standard**2, 0.0).sum(axis=2, keepdims=True))
        number.append(chosen.sum(axis=2, keepdims=True))
    n, m = number
    is_told = (n > 0) & (m >= _FEWEST_ABSENT) & (squares[0] > 0) & (squares[1] > 0)
    within, beside = np.where(is_told, squares[0], 1.0), np.where(is_told, squares[1], 1.0)
    n, m = np.where(is_told, n, 1), np.where(is_told, m, 1)
    beyond = fdtrc(n, m, (within / n) / (beside / m))
    length = chdtri(n, np.clip(beyond, 1e-300, 1.0))
    return np.where(there & is_told, of.standard * np.sqrt(length / within), of.standard)


# How strong the noise and a canary really are, read from scores without looking at the coins.


SURE = 8.0  # nats by which others must explain the scores better than what is declared


class Strength(NamedTuple):
    """What a canary adds and how much noise there is, as multiples of what is declared."""

    gain: float
    noise: float

    def exponent(self, s: Array, v: Array) -> Array:
        """Log-likelihood ratio of "in this batch" against "not", (n,) nats."""
        return (self.gain * s - 0.5 * self.gain**2 * v) / self.noise**2


DECLARED = Strength(1.0, 1.0)
_FIRST = (Strength(1.0, 0.8), Strength(1.0, 0.5), Strength(2.0, 1.0), Strength(8.0, 1.0))
_ALL = [
    Strength(g, k)
    for g, k in product((0.5, 1.0, 1.4, 2.0, 4.0, 8.0, 20.0), (1.2, 1.0, 0.8, 0.65, 0.5, 0.35, 0.2))
]


def likeliest(s: Array, v: Array, *, q: float, replace: bool, together: int = 1) -> Strength:
    """The gain and noise of a grid that explain (n,) statistics best; what is declared if in doubt.

    Args:
        s: W^T of what was seen, (n,), with the canary's own part in it.
        v: its variance, and its mean with the canary, (n,).
        q: chance that a record that is there takes part.
        replace: whether the game is +u against -u.
        together: how many records of one person a canary is.
    """
    told = np.isfinite(s) & (v > 0)
    if not told.any():
        return DECLARED
    s, v = s[told], v[told]

    def explained(one: Strength) -> float:
        return _explained(one, s, v, q=q, replace=replace, together=together)

    declared = explained(DECLARED)
    if all(explained(one) < declared + 1.0 for one in _FIRST):
        return DECLARED
    found = {one: explained(one) for one in _ALL}
    best = max(found, key=lambda one: found[one])
    return best if found[best] > declared + SURE else DECLARED


def _explained(
    one: Strength, s: Array, v: Array, *, q: float, replace: bool, together: int
) -> float:
    """Log-likelihood of the statistics, but for what all strengths share."""
    there = log_moved(one, s, v, q=q, together=together)
    other = log_moved(one, -s, v, q=q, together=together) if replace else np.zeros_like(s)
    mixed = np.logaddexp(there, other) - math.log(2.0)
    alone = -0.5 * s**2 / v / one.noise**2 - math.log(one.noise)
    return float((mixed + alone).sum())


def log_ratio(
    strength: Strength, s: Array, v: Array, *, q: float, replace: bool, together: int = 1
) -> Array:
    """(n,) log-likelihood ratios of "there" against "not there", or of +u against -u, in nats.

    The arguments are those of `log_moved`; `replace` is the game of +u against -u.
    """
    moved = log_moved(strength, s, v, q=q, together=together)
    return moved - log_moved(strength, -s, v, q=q, together=together) if replace else moved


def decided(shown: Array, whole: Array, *, q: float, replace: bool, together: int = 1) -> Array:
    """(n,) ratios where the noise cancels: shown is the whole canary, its opposite, or nothing.

    Both `shown` and `whole` are (K, n): what is seen without noise, and what canaries add to it.
    """
    at = np.abs(whole).argmax(axis=0), np.arange(whole.shape[1])
    share = np.divide(shown[at], whole[at], out=np.full(len(at[1]), math.nan), where=whole[at] != 0)
    out = np.full(len(share), together * math.log1p(-q) if q < 1 else -math.inf)
    if replace:
        out = np.where(share < -0.5, -math.inf, 0.0)
    return np.where(np.isnan(share), 0.0, np.where(share > 0.5, math.inf, out))


def log_moved(strength: Strength, s: Array, v: Array, *, q: float, together: int = 1) -> Array:
    """(n,) log-likelihood ratios of canaries that are there, of each record by a coin of its own.

    The log of the sum over j of p_j exp(j s - j^2 v / 2), p_j the chance that j of `together`
    records take part.

    Args:
        strength: what they add, and how much noise there is.
        s: of one record, with what they add in it.
        v: of one record.
        q: chance of each record to take part.
        together: how many records of one person a canary is.

    >>> s, v = np.array([1.0]), np.array([2.0])
    >>> log_moved(DECLARED, s, v, q=0.5, together=2).round(4).tolist()
    [-0.2436]
    >>> log_moved(DECLARED, s, v, q=1.0, together=2).tolist()
    [-2.0]
    """
    if together == 1:
        return log_mixture(strength.exponent(s, v), q)
    moves = group(together, q)
    parts = [
        math.log(p) + strength.exponent(j * s, j**2 * v)
        for j, p in zip(moves.multiples, moves.probabilities, strict=True)
    ]
    return np.asarray(np.logaddexp.reduce(parts))


def log_mixture(exponent: Array, q: float) -> Array:
    """log(1 - q + q exp(exponent)), without overflow."""
    if q >= 1:
        return exponent
    if q <= 0:
        return np.zeros_like(exponent)
    return np.logaddexp(math.log1p(-q), math.log(q) + exponent)
