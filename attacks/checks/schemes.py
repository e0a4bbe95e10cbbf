"""Sampler of a run whose batches are not Poisson: is each batch what its scheme says?

    fixed       every batch has b records: exactly. Given its size a batch is a uniform set
    truncated   none has more than B; sizes are those of min(Bin(n, q), B). The same given its size
    shuffled    b records, none twice in an epoch: exactly. A record's place in an epoch is uniform,
                and the orders of two epochs, and of two agents, are independent
    cyclic      b records, none twice in an epoch, each in its place in every epoch: exactly

    Hoeffding. Probability inequalities for sums of bounded random variables. JASA 58 (1963),
        Theorem 4: a sum drawn without replacement lies below one with replacement in the convex
        order, so what two uniform sets have in common has the tails of a binomial count at most.

Of uniform sets: participations of a record, Bin(T, E size / n); what batches some rounds apart have
in common, over disjoint pairs of rounds; two batches that are nearly the same; positions that two
agents have in common; and by `pairs` every two records. n is printed with each, and all tests of
a run together raise a false alarm with probability 1e-6 at most.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...privacy.batches.sampling import Drawing, Scheme
from ...training.batches import Sampler
from ...training.noise_tests.laws import binomial, chernoff, least
from .result import TOTAL_FALSE_ALARM, Finding

# Pairs: no two records, nor two agents of a cohort, have a coin in common.


_MOST = 4096  # whose pairs are looked at; of more, as many by chance
_MOST_HOLDERS = 64  # the same of holders whose pairs have laws of their own
_BLOCK = 512
# (1 - p q)^T is below e^-33 where two that never meet are told from all pairs of so many.
_NEVER = 33.0
_MOST_DRAWS = 1e4  # holders times rounds, up to which rounds are drawn for that alone


class Drawn(NamedTuple):
    """What is drawn anew in every round."""

    rate: float  # q, the chance of each to take part
    members: NDArray[np.bool_]  # (T, n) whether it did
    named: Callable[[int], str]  # each in words, by its place
    together: float | None = None  # r, the chance of two to do so in one round; q^2 when None


def rounds_for_pairs(rate: float, *, holders: int) -> int:
    """Rounds in which two that never take part together are told; 0 where they would be too many.

    >>> rounds_for_pairs(0.2, holders=10), rounds_for_pairs(0.02, holders=10)
    (809, 0)
    """
    if not 0 < rate < 1:
        return 0
    rounds = math.ceil(_NEVER / max(-math.log1p(-rate * rate), 1e-9))
    return rounds if rounds * holders <= _MOST_DRAWS else 0


def test_pairs(every: Sequence[Drawn]) -> tuple[Finding, str]:
    """Look at all pairs within and across what is drawn.

    Returns:
        The tests; and behind "what batches have in common" how many pairs they are of.
    """
    found, blind = Finding(), False
    held = [of for of in every if 0 < of.rate < 1 and of.members.size]
    total = sum(of.members.shape[1] for of in held)
    if len(held) > _MOST_HOLDERS:
        kept = np.random.default_rng().permutation(len(held))[:_MOST_HOLDERS]
        held = [held[i] for i in sorted(kept.tolist())]
    left = sum(of.members.shape[1] for of in held)
    some = [_some(of, share=min(1.0, _MOST / max(left, 1))) for of in held]
    for i, (one, at) in enumerate(some):
        for other, there in some[i:]:
            T, r = min(len(one.members), len(other.members)), one.rate * other.rate
            if other is one and one.together is not None:
                r = one.together
            pairs = len(at) * (len(at) - 1) // 2 if other is one else len(at) * len(there)
            if not pairs:
                continue
            chances = r, 1.0 - one.rate - other.rate + 2.0 * r
            counts, places = _extremes(one.members[:T, at], other.members[:T, there], one is other)
            for count, place, chance, did in zip(
                counts, places, chances, ("both take part", "do as one"), strict=True
            ):
                p = binomial(count, T, min(chance, 1.0))
                which = int(p.argmin())
                a, b = one.named(int(at[place[which][0]])), other.named(int(there[place[which][1]]))
                what = f"{a} and {b} {did} in {count[which]} of {T} rounds, where "
                found.note(
                    float(p[which]), tests=pairs, what=f"{what}{T * chance:.4g} are expected"
                )
            blind |= 4.0 * pairs * math.exp(-T * r) > TOTAL_FALSE_ALARM
    looked = sum(len(at) for _, at in some)
    if not found.tests:
        return found, ""
    words = f", every two of {looked:,} by pair" + f" (of {total:,}, by chance)" * (looked < total)
    return found, words + ", in rounds too few to tell two that never meet" * blind


def _some(of: Drawn, *, share: float) -> tuple[Drawn, NDArray[np.int64]]:
    """As large a share of what is drawn, by chance."""
    n = of.members.shape[1]
    if share >= 1:
        return of, np.arange(n)
    return of, np.sort(np.random.default_rng().permutation(n)[: max(2, int(n * share))])


def _extremes(
    one: NDArray[np.bool_], other: NDArray[np.bool_], within: bool
) -> tuple[NDArray[np.int64], list[list[tuple[int, int]]]]:
    """(2, 2) fewest and most rounds of any pair, both there and as one; and which pairs (2, 2).

    Args:
        one: (T, n) who takes part; whole numbers below 2^24, which float32 has.
        other: (T, m).
        within: whether the two are the same, of whose pairs each is looked at once.
    """
    a, b = one.astype(np.float32), other.astype(np.float32)
    T, (in_a, in_b) = len(a), (a.sum(axis=0), b.sum(axis=0))
    counts = np.array([[T + 1, -1], [T + 1, -1]], dtype=np.int64)
    places = [[(0, 0), (0, 0)], [(0, 0), (0, 0)]]
    for first in range(0, a.shape[1], _BLOCK):
        rows, start = slice(first, first + _BLOCK), first if within else 0
        both = a[:, rows].T @ b[:, start:]
        same = 2.0 * both + T - in_a[rows, None] - in_b[None, start:]
        apart = np.arange(both.shape[1])[None] > np.arange(len(both))[:, None] if within else None
        for kind, held in enumerate((both, same)):
            for end, pick, none in ((0, np.argmin, np.inf), (1, np.argmax, -np.inf)):
                looked = held if apart is None else np.where(apart, held, none)
                i, j = divmod(int(pick(looked)), looked.shape[1])
                value = looked[i, j]
                if np.isfinite(value) and (value < counts[kind, 0], value > counts[kind, 1])[end]:
                    counts[kind, end], places[kind][end] = value, (first + i, start + j)
    return counts, places


Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_EPOCHS = 60  # that tell one order from the next
_LAGS = 40
_EPOCH_LAGS = 4
_MOST_PAIRS = 5000  # of agents


def enough_rounds(drawn: Sequence[Drawing]) -> int:
    """Rounds of epochs in which an order can be told from another; 0 where there are none."""
    return max((_EPOCHS * d.epoch for d in drawn if d.scheme.in_epochs), default=0)


def test_schemes(
    found: Finding, sampler: Sampler, members: Sequence[Bools], *, call: int, rate: float
) -> list[Drawn]:
    """Note all tests of the batches of one call of `draw`, but for those of pairs.

    Args:
        sampler: how batches are said to be drawn.
        members: for each agent (T, n) whether a record took part in a round, from round 1 on.
        rate: of Poisson batches that are cut.

    Returns:
        What is drawn anew in every round, for tests of pairs.
    """
    every = list[Drawn]()
    for agent, (of, drawn) in enumerate(zip(members, sampler.drawn, strict=True)):
        who = f"of agent {agent} (call {call}, batches {drawn.scheme})"
        if drawn.of_agents:
            who = f"of cohort {call} ({drawn.scheme}, with agents as records)"
        # Sizes first; then the places of an epoch, or who takes part in each draw.
        if drawn.scheme is Scheme.TRUNCATED:
            _test_cut_sizes(found, of, drawn, rate, who)
        else:
            _test_sizes(found, of, drawn, who)
        if drawn.scheme.in_epochs:
            places = _places(of, drawn)
            _test_once(found, of, drawn, who)
            if drawn.scheme is Scheme.CYCLIC:
                _test_same_places(found, of, drawn, who)
            else:
                _test_places(found, places, drawn, who)
                _test_orders(found, places, drawn, who)
        else:
            size, n = mean_size(drawn, rate), max(of.shape[1], 1)
            _test_participations(found, of, size, who)
            together = min(_mean_pairs(drawn, rate) / max(n * (n - 1.0), 1.0), 1.0)
            named = functools.partial("record {1} {0}".format, who)
            every.append(Drawn(size / n, of, named, together))
            _test_lags(found, of, who)
    if sampler.scheme is Scheme.TRUNCATED:
        _test_kept(found, members, sampler.drawn, call)
    if sampler.scheme is not Scheme.CYCLIC:
        _test_agents(found, sampler.drawn, members, call)
    return every


def exactly(found: Finding, holds: Bools, words: str) -> None:
    """One comparison for each round, in which nothing is left to chance."""
    bad = np.flatnonzero(~holds)
    where = f" in round {int(bad[0]) + 1}" if bad.size else ""
    found.exact(not bad.size, words + where, tests=max(len(holds), 1))


def _hoeffding(counts: Counts | int, trials: int, rate: float) -> Floats:
    """Two-sided bounds on p of counts whose tails are at most those of Bin(trials, rate)."""
    n, q = float(max(trials, 1)), np.clip(rate, 0.0, 1.0)
    x = np.clip(np.asarray(counts) / n, 0.0, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = np.where(x > 0.0, x * np.log(x / q), 0.0)
        back = np.where(x < 1.0, (1.0 - x) * np.log((1.0 - x) / (1.0 - q)), 0.0)
    apart = np.where(trials > 0, n * np.maximum(ahead + back, 0.0), 0.0)
    return np.asarray(np.minimum(1.0, 2.0 * np.exp(-apart)))


def _note_common(found: Finding, words: str, common: int, trials: int, expected: float) -> None:
    p = _hoeffding(common, trials, expected / max(trials, 1))
    found.note(p, what=f"{words} where {expected:.4g} are expected")


def mean_size(drawn: Drawing, rate: float) -> float:
    """Expected records of a batch."""
    from scipy.stats import binom

    if drawn.scheme is not Scheme.TRUNCATED:
        return float(drawn.size)
    # The mean of min(X, B) is the sum of P(X >= k) for k from 1 to B.
    above = binom.sf(np.arange(min(drawn.size, drawn.records)), drawn.records, rate)
    return float(above.sum())


def _test_sizes(found: Finding, of: Bools, drawn: Drawing, who: str) -> None:
    sizes = of.sum(axis=1)
    exactly(found, sizes == drawn.size, f"the batch {who} has not {drawn.size} records")


def _test_cut_sizes(found: Finding, of: Bools, drawn: Drawing, rate: float, who: str) -> None:
    from scipy.stats import binom

    sizes, (rounds, n) = of.sum(axis=1), of.shape
    largest = drawn.size
    exactly(found, sizes <= largest, f"the batch {who} has more than {largest} records")
    # Below B the sizes are binomial; in both tails those of min(X, B) are too.
    p = binomial(np.minimum(sizes, largest), n, rate)
    found.note(
        float(p.min(initial=1.0)), tests=rounds, what=f"a batch {who} is of an unlikely size"
    )
    full = int((sizes >= largest).sum())
    often = float(binom.sf(largest - 1, n, rate))
    what = f"{full} of {rounds} batches {who} are full, where {rounds * often:.4g} are expected"
    found.note(binomial(full, rounds, often), what=what)
    _test_spread(found, np.minimum(sizes, largest), n, rate, largest, who)


def _test_kept(
    found: Finding, members: Sequence[Bools], drawn: Sequence[Drawing], call: int
) -> None:
    """Of more records than fit, those that are kept do not depend on where they stand."""
    for quarter in range(4):
        common, trials, expected = 0, 0, 0.0
        for of, one in zip(members, drawn, strict=True):
            full, n = of[of.sum(axis=1) == one.size], of.shape[1]
            inside = slice(n * quarter // 4, n * (quarter + 1) // 4)
            common += int(full[:, inside].sum())
            trials += one.size * len(full)
            expected += one.size * len(full) * (inside.stop - inside.start) / n
        what = f"full batches (call {call}) hold {common} records of quarter {quarter + 1} of all"
        _note_common(found, what, common, trials, expected)


def _test_spread(
    found: Finding, sizes: Counts, n: int, rate: float, largest: int, who: str
) -> None:
    """Squared deviations of sizes, by Chernoff's bound on both tails."""
    from scipy.stats import binom

    if not 0.0 < rate < 1.0:
        return
    top = min(largest, n)
    logs = binom.logpmf(np.arange(top + 1), n, rate)
    if largest <= n:
        logs[-1] = binom.logsf(largest - 1, n, rate)
    squares = (np.arange(top + 1) - n * rate) ** 2 / (n * rate * (1.0 - rate))
    total = float(squares[np.minimum(sizes, top)].sum())
    what = f"sizes of batches {who} vary {total / len(sizes):.3g} times as much as binomial ones"
    for sign in (1.0, -1.0):
        p = math.exp(chernoff([(len(sizes), logs, squares)], total, sign))
        found.note(p, what=f"{what} (n = {len(sizes)})")


def _test_participations(found: Finding, of: Bools, size: float, who: str) -> None:
    rounds, n = of.shape
    counts = of.sum(axis=0)
    found.worst(
        binomial(counts, rounds, size / n),
        lambda at: f"record {at} {who} is in {counts[at]} of {rounds} batches",
    )


def coincidence(drawn: Drawing, rate: float) -> float:
    """The chance that two independent batches of a round are equal.

    >>> coincidence(Drawing(Scheme.FIXED, 6, 3, 6), 0.5)
    0.05
    """
    from scipy.special import binom as choices
    from scipy.stats import binom

    sizes, chance = np.array([drawn.size]), np.ones(1)
    if drawn.scheme is Scheme.TRUNCATED:
        sizes = np.arange(min(drawn.size, drawn.records) + 1)
        chance = binom.pmf(sizes, drawn.records, rate)
        chance[-1] = binom.sf(sizes[-1] - 1, drawn.records, rate)
    return float((chance**2 / choices(drawn.records, sizes)).sum())


def _mean_pairs(drawn: Drawing, rate: float) -> float:
    """Expected ordered pairs of records of a batch."""
    from scipy.stats import binom

    if drawn.scheme is Scheme.FIXED:
        return drawn.size * (drawn.size - 1.0)
    k = np.arange(min(drawn.size, drawn.records))  # of min(X, B) (min(X, B) - 1)
    return float((2.0 * k * binom.sf(k, drawn.records, rate)).sum())


def _test_lags(found: Finding, of: Bools, who: str) -> None:
    """What batches some rounds apart have in common, and two that are nearly the same."""
    from scipy.stats import hypergeom

    rounds, n = of.shape
    sizes = of.sum(axis=1).astype(np.int64)
    for lag in range(1, min(rounds // 2, _LAGS) + 1):
        first = np.array([t for t in range(rounds - lag) if (t // lag) % 2 == 0])
        common = int((of[first] & of[first + lag]).sum())
        trials = int(sizes[first + lag].sum())
        expected = float((sizes[first] * sizes[first + lag]).sum()) / n
        what = f"batches {who} {lag} rounds apart have {common} records in common"
        _note_common(found, what, common, trials, expected)
        shared = (of[:-lag] & of[lag:]).sum(axis=1)
        every = np.stack([shared, sizes[:-lag], sizes[lag:]])
        kinds, where = np.unique(every, axis=1, return_inverse=True)
        at, p = least(hypergeom.sf(kinds[0] - 1, n, kinds[1], kinds[2])[where.ravel()])
        what = f"the batches {who} in rounds {at + 1} and {at + 1 + lag} share {shared[at]} records"
        found.note(p, tests=len(shared), what=what)


def _places(of: Bools, drawn: Drawing) -> Counts:
    """(E, n) the place of each record in each whole epoch, `drawn.epoch` where it has none."""
    epochs = len(of) // drawn.epoch
    whole = of[: epochs * drawn.epoch].reshape(epochs, drawn.epoch, -1)
    return np.where(whole.any(axis=1), whole.argmax(axis=1), drawn.epoch).astype(np.int64)


def _test_once(found: Finding, of: Bools, drawn: Drawing, who: str) -> None:
    for start in range(0, len(of), drawn.epoch):
        most = int(of[start : start + drawn.epoch].sum(axis=0).max(initial=0))
        what = f"a record {who} is {most} times in the epoch from round {start + 1} on"
        found.exact(most <= 1, what)


def _test_same_places(found: Finding, of: Bools, drawn: Drawing, who: str) -> None:
    rounds = np.arange(len(of))
    exactly(
        found,
        (of == of[rounds % drawn.epoch]).all(axis=1),
        f"the batch {who} is not that of the first epoch",
    )


def _test_places(found: Finding, places: Counts, drawn: Drawing, who: str) -> None:
    """A record is at every place of an epoch with the same probability."""
    epochs, n = places.shape
    if not epochs:
        return
    for place in range(drawn.epoch):
        counts = (places == place).sum(axis=0)
        at, p = least(binomial(counts, epochs, drawn.size / n))
        what = f"record {at} {who} is at place {place} in {counts[at]} of {epochs} epochs"
        found.note(p, tests=n, what=what)


def _test_orders(found: Finding, places: Counts, drawn: Drawing, who: str) -> None:
    """What a batch of one epoch and a batch of a later one have in common."""
    epochs, n = places.shape
    m = drawn.epoch
    for lag in range(1, min(epochs // 2, _EPOCH_LAGS) + 1):
        common, pairs = np.zeros((m + 1, m + 1), dtype=np.int64), 0
        for t in range(epochs - lag):
            if (t // lag) % 2:
                continue
            np.add.at(common, (places[t], places[t + lag]), 1)
            pairs += 1
        inner = common[:m, :m].ravel()
        at, p = least(_hoeffding(inner, pairs * drawn.size, drawn.size / n))
        what = (
            f"batches {at // m + 1} and {at % m + 1} {who} of epochs {lag} apart have {inner[at]} "
            f"records in common where {pairs * drawn.size**2 / n:.4g} are expected"
        )
        found.note(p, tests=len(inner), what=what)


def _test_agents(
    found: Finding, drawn: Sequence[Drawing], members: Sequence[Bools], call: int
) -> None:
    """Two agents do not draw the same positions."""
    # Of epochs the first batch alone: those of one order are not independent.
    steps = [d.epoch if d.scheme.in_epochs else 1 for d in drawn]
    near = max(1, _MOST_PAIRS // max(len(members), 1))  # of very many agents those that are close
    for i, j in itertools.combinations(range(len(members)), 2):
        if j - i > near:
            continue
        wide, narrow = (i, j) if members[i].shape[1] >= members[j].shape[1] else (j, i)
        if steps[i] == steps[j]:
            at = np.arange(0, len(members[i]), steps[i])
        elif 1 in (steps[i], steps[j]):
            continue
        else:
            at = np.array([0])  # epochs of other lengths begin together only once
        a, b = members[wide][at], members[narrow][at]
        n = b.shape[1]
        common = int((a[:, :n] & b).sum())
        sizes = b.sum(axis=1).astype(np.int64)
        expected = float((a.sum(axis=1) * sizes).sum()) / a.shape[1]
        what = f"agents {i} and {j} (call {call}) drew {common} equal positions"
        _note_common(found, what, common, int(sizes.sum()), expected)
