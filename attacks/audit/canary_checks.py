"""Checks of what noise alone does to canaries' scores: of absent ones, of clipped ones, in pairs.

The draws z of `canary_noise` are independent standard normals for a sound engine, so that every
test here has an exact law or a bound:

    absent canaries   z where it is not in the batch: sum of squares (chi-square), sum (normal),
                      distance to the normal law (DKW bound), counts beyond 2, 3 and 4 (binomial),
                      the largest; over all, by round, by host and by both. Whole scores of canaries
                      that were in no batch, ranked among scores drawn from the claim's own law
    clipping          z where a canary is in the batch, turned by its sign: a canary that adds g
                      times what it may moves it by (g - 1) sqrt(v). By bins of its norm, and
                      host; in units of the noise that absent ones show (`of_observed_size`)
    independence      z of two hosts, of two rounds: correlation of values, of values less their
                      signs, and of magnitudes (Student's t), and sums over hosts; whatever the
                      noise's size in each batch (`of_renewed_size`)

Pascal Massart. The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality. Annals of
Probability 18 (1990): P(distance >= x) <= 2 exp(-2 n x^2). A rank among K draws of the same law is
uniform whatever K is, so that drawing adds nothing to the false-alarm rate. All tests of a check
together fail a sound engine with probability below 1e-6 (C. E. Bonferroni 1936).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from ...training.noise_tests import laws
from ..checks.result import Check, Finding
from .canary_noise import DECLARED, CanaryNoise, log_mixture, of_observed_size, of_renewed_size

Array = NDArray[np.float64]

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
