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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.participation import group
from ...training.noise_tests import laws
from ..checks.result import Check, Finding

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


# Checks of what noise alone does to canaries' scores: of absent ones, of clipped ones, in pairs.
#
# The draws z of `canary_noise` are independent standard normals for a sound engine, so that every
# test here has an exact law or a bound:
#
# absent canaries   z where it is not in the batch: sum of squares (chi-square), sum (normal),
# distance to the normal law (DKW bound), counts beyond 2, 3 and 4 (binomial),
#                        the largest; over all, by round, by host and by both. Whole scores of
# canaries
#                        that were in no batch, ranked among scores drawn from the claim's own law
# clipping          z where a canary is in the batch, turned by its sign: a canary that adds g
#                        times what it may moves it by (g - 1) sqrt(v). By bins of its norm, and
#                        host; in units of the noise that absent ones show (`of_observed_size`)
# independence      z of two hosts, of two rounds: correlation of values, of values less their
#                        signs, and of magnitudes (Student's t), and sums over hosts; whatever the
#                        noise's size in each batch (`of_renewed_size`)
#
# Pascal Massart. The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality. Annals of
# Probability 18 (1990): P(distance >= x) <= 2 exp(-2 n x^2). A rank among K draws of the same law
# is uniform whatever K is, so that drawing adds nothing to the false-alarm rate. All tests of a
# check together fail a sound engine with probability below 1e-6 (C. E. Bonferroni 1936).

_EDGES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 1e3, 1e6, math.inf)  # of norms
_TAILS = (2.0, 3.0, 4.0)
_DRAWN = 19  # scores of the claim's own law beside each that is ranked
_MOST_LAGS = 100


def canary_checks(noise: Sequence[CanaryNoise], *, replace: bool) -> list[Check]:
    """Absent canaries, clipping and independence, in this order; none of a game without scores.

    The noise is what `play` returns; `replace` is the game of +u against -u.
    """
    if not noise:
        return []
    return [absent_check(noise, replace=replace), clipping_check(noise), independence_check(noise)]


def absent_check(noise: Sequence[CanaryNoise], *, replace: bool) -> Check:
    """Test scores of canaries where they are in no batch against the declared noise.

    The noise is by adversary; `replace` is the game of +u against -u.
    """
    found, values = Finding(), 0
    for of in noise:
        # Where every record takes part, and is one or its opposite, none is absent.
        anywhere = bool((of.part == 0).any())
        z = np.where(of.part == 0, of.standard, np.nan) if anywhere else of.standard
        values += int(np.isfinite(z).sum())
        _note_law(found, z.ravel(), f"absent canaries to the {of.name}")
        for words, parts in _parts(of, z):
            _note_sums(found, parts, [f"{word} to the {of.name}" for word in words])
        if not replace:
            _note_scores(found, of)
    return _check(
        "absent canaries",
        found,
        f"{values} statistics of canaries, less what they add themselves, were checked against the "
        "declared noise: size, location, shape, tails, by round and host, and their whole scores",
    )


def clipping_check(noise: Sequence[CanaryNoise]) -> Check:
    """Test that a canary adds what clipping leaves of it, whatever its norm."""
    found, values, longest = Finding(), 0, 1.0
    for of in noise:
        there = np.isfinite(of.standard) & (of.part != 0)
        values += int(there.sum())
        longest = max(longest, of.norms[there].max(initial=0.0))
        z, v = (of_observed_size(of) * of.part)[there], of.information[there]
        norms = of.norms[there]
        host = np.broadcast_to(of.host[:, None, None], there.shape)[there]
        chosen = [np.ones(len(z), dtype=bool), *(host == h for h in np.unique(of.host))]
        words = ["canaries", *(f"canaries of agent {h}" for h in np.unique(of.host))]
        for wide in (1, 2, 4):
            for low, high in pairwise(_EDGES[::wide] + ((math.inf,) if wide > 1 else ())):
                at = (norms >= low) & (norms < high)
                chosen.append(at)
                words.append(f"canaries of {low:g} to {high:g} clip norms")
        _note_gains(found, z, v, chosen, [f"{word} to the {of.name}" for word in words])
    return _check(
        "clipping",
        found,
        f"{values} statistics of canaries that took part, of norms from .5 to "
        f"{longest:.2g} clip norms, "
        "were checked against what clipping leaves of them",
    )


def independence_check(noise: Sequence[CanaryNoise]) -> Check:
    """Test that canaries' scores do not go together between hosts or rounds."""
    found, pairs = Finding(), 0
    # Hosts of one run in pairs, rounds at each lag, and all scores together.
    for of in noise:
        for kind, z in _kinds(of):
            for run in np.unique(of.run):
                at = np.flatnonzero(of.run == run)
                for i, j in combinations(at, 2):
                    what = f"{kind} of agents {of.host[i]} and {of.host[j]} to the {of.name}"
                    _note_correlation(found, z[i].ravel(), z[j].ravel(), what)
                    pairs += 1
            for lag in range(1, min(z.shape[1], _MOST_LAGS)):
                what = f"{kind} of rounds {lag} apart to the {of.name}"
                # No draw is on both sides of one test, or the two sides were not independent.
                first = np.arange(z.shape[1] - lag)
                for some in (first // lag % 2 == 0, first // lag % 2 == 1):
                    one, other = z[:, first[some]], z[:, first[some] + lag]
                    _note_correlation(found, one.ravel(), other.ravel(), what)
                    pairs += 1
            _note_together(found, of, z, kind)
    return _check(
        "independence",
        found,
        f"{pairs} pairs of hosts and of rounds were tested for scores that go together, which the "
        "bounds take for independent",
    )


def _check(name: str, found: Finding, words: str) -> Check:
    if not found.tests:
        return Check.exact(name, f"{words}: there were none.", tests=0)
    return found.check(name, words)


def _parts(of: CanaryNoise, z: Array) -> Iterator[tuple[list[str], Array]]:
    """Rows of values, with a name each: by round, by host, and by both."""
    hosts, rounds, n = z.shape
    said = "absent canaries in round {t}", "absent canaries of agent {h}"
    yield [said[0].format(t=t) for t in of.rounds], z.transpose(1, 0, 2).reshape(rounds, hosts * n)
    for h in np.unique(of.host):
        yield [said[1].format(h=h)], z[of.host == h].reshape(1, -1)
    both = [f"{said[1].format(h=h)} in round {t}" for h in of.host for t in of.rounds]
    yield both, z.reshape(hosts * rounds, n)


def _note_sums(found: Finding, rows: Array, words: Sequence[str]) -> None:
    """Sum of squares and sum of each row, without what is NaN."""
    count = np.isfinite(rows).sum(axis=1)
    at = np.flatnonzero(count)
    rows, count = rows[at], count[at]
    if not len(at):
        return
    squares = np.nansum(rows**2, axis=1)
    place = laws.beyond(np.abs(np.nansum(rows, axis=1)) / np.sqrt(count))
    found.worst(
        laws.two_sided(squares, count),
        lambda i: (
            f"{words[at[i]]} have {squares[i] / count[i]:.3g} times the declared variance of "
            "their noise"
        ),
    )
    found.worst(place, lambda i: f"the noise of {words[at[i]]} is not around 0")


def _note_law(found: Finding, values: Array, words: str) -> None:
    """All values: size, location, distance to the normal law, tails, the largest."""
    from scipy.special import ndtr

    values = np.sort(values[np.isfinite(values)])
    n = len(values)
    if not n:
        return
    _note_sums(found, values[None], [words])
    _note_distance(found, ndtr(values), f"the noise of {words} is not normal")
    for beyond in _TAILS:
        share = float(laws.beyond(beyond))
        count = int((np.abs(values) > beyond).sum())
        found.note(
            laws.binomial(count, n, share),
            what=f"the noise of {words} is beyond {beyond:g} deviations {count} times, expected "
            f"{n * share:.1f}",
        )
    most = float(np.abs(values).max())
    beyond = float(laws.beyond(most))  # 1 where nothing is added, and then no value is large
    p = -math.expm1(n * math.log1p(-beyond)) if beyond < 1.0 else 1.0
    found.note(p, what=f"the noise of {words} reaches {most:.3g} deviations")


def _note_distance(found: Finding, uniform: Array, words: str) -> None:
    """Kolmogorov and Smirnov's distance of sorted values from the uniform law, by Massart."""
    n = len(uniform)
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - uniform).max(), (uniform - steps[:-1]).max()))
    p = min(1.0, 2.0 * math.exp(-2.0 * n * distance**2))
    found.note(p, what=f"{words} (Kolmogorov-Smirnov distance {distance:.3g})")


def _note_scores(found: Finding, of: CanaryNoise) -> None:
    """Whole scores of canaries that were in no batch, ranked among draws of the claim's own law."""
    told = np.isfinite(of.standard)
    absent = (told.all(axis=1) & (of.part == 0).all(axis=1)).nonzero()
    if not len(absent[0]):
        return
    z = of.standard.transpose(0, 2, 1)[absent]  # (m, T)
    v = of.information.transpose(0, 2, 1)[absent]
    rng = np.random.default_rng(0)
    own = _scores(z, v, of.rate)
    below, equal = np.zeros(len(own)), np.zeros(len(own))
    for _ in range(_DRAWN):
        drawn = _scores(rng.normal(size=z.shape), v, of.rate)
        below += drawn < own
        equal += drawn == own
    # Under little noise all scores are equal: every "there" underflows. Chance puts them in order.
    uniform = np.sort((below + rng.random(len(own)) * (equal + 1)) / (_DRAWN + 1))
    _note_distance(found, uniform, f"scores of absent canaries to the {of.name} are not as claimed")


def _scores(z: Array, v: Array, rate: Array) -> Array:
    """(m,) sums over rounds of the log-likelihood ratios of (m, T) draws."""
    ratio = DECLARED.exponent(z * np.sqrt(v), v)
    return sum(
        (log_mixture(ratio[:, t], float(q)) for t, q in enumerate(rate)), start=np.zeros(len(z))
    )


def _note_gains(
    found: Finding, z: Array, v: Array, chosen: Sequence[NDArray[np.bool_]], words: Sequence[str]
) -> None:
    """The mean and the size of what canaries add beside what they may, by group."""
    for at, what in zip(chosen, words, strict=True):
        n = int(at.sum())
        if not n:
            continue
        weight = np.sqrt(v[at])
        whole = float((weight**2).sum())
        off = float((z[at] * weight).sum())
        p = float(laws.beyond(abs(off) / math.sqrt(whole)))
        found.note(p, what=f"{what} add {1.0 + off / whole:.3g} times what they may")
        squares = float((z[at] ** 2).sum())
        what += f" miss what they may add by {squares / n:.3g} times the noise"
        found.note(laws.two_sided(squares, n), what=what)


def _kinds(of: CanaryNoise) -> Iterator[tuple[str, Array]]:
    """Three standard normal draws of each: the score, it less its sign, and its magnitude."""
    from scipy.special import ndtr, ndtri

    standard = of_renewed_size(of)
    yield "scores", standard
    yield "noise", np.where(of.sign == 0, np.nan, standard * of.sign)
    shares = np.clip(2.0 * ndtr(np.abs(standard)) - 1.0, 1e-15, 1.0 - 1e-15)
    yield "magnitudes", ndtri(shares)


def _note_correlation(found: Finding, one: Array, other: Array, what: str) -> None:
    """Student's t of the correlation about 0, exact for normal values."""
    from scipy.special import stdtr

    told = np.isfinite(one) & np.isfinite(other)
    n = int(told.sum())
    if n < 3:
        return
    x, y = one[told], other[told]
    r = float(x @ y) / math.sqrt(float(x @ x) * float(y @ y))
    r = min(max(r, -1.0 + 1e-15), 1.0 - 1e-15)
    t = r * math.sqrt((n - 1) / (1.0 - r**2))
    p = 2.0 * float(stdtr(n - 1, -abs(t)))
    found.note(p, what=f"the {what} have correlation {r:.3g}, of {n}")


def _note_together(found: Finding, of: CanaryNoise, z: Array, kind: str) -> None:
    """Sums over all hosts of a run and over all rounds, which a small common part widens."""
    from scipy.special import chdtrc

    by_hosts = [z[of.run == run] for run in np.unique(of.run)]
    for axis, what in ((0, "all hosts"), (1, "all rounds")):
        sums = []
        for part in by_hosts:
            if part.shape[axis] > 1:
                summed = part.sum(axis=axis).ravel() / math.sqrt(part.shape[axis])
                sums.append(summed[np.isfinite(summed)])
        every = np.concatenate([np.zeros(0), *sums])
        if not len(every):
            continue
        total = float((every**2).sum())
        found.note(
            float(chdtrc(len(every), total)),
            what=f"the {kind} of {what} to the {of.name} go together: their sum has "
            f"{total / len(every):.3g} times the declared variance",
        )
