"""In which rounds one record may take part, where a run promises more than "any of them".

    every       any rounds; what holds of Poisson batches, which may draw a record every time
    cycle b     its turns: one of b groups of records after another
    apart b     two of its rounds lie b apart at least
    most k      k rounds at most
    rounds      the rounds of a list, and no others

A pattern is public, and so is the turn of a record: it follows from the record itself, so that a
record more or less changes nobody else's. In its turn a record is drawn by a secret coin of its
own, whose rate is such that the mean size of a batch is that of plain Poisson batches of rate q:

    cycle b     b q                             its turn comes every b-th round
    apart b     (2 b - 1) q                     once in a window of 2 b - 1 rounds, in the first b
    most k      ceil(T / k) q                   once in each of k stretches of the run
    rounds      q

Who keeps a record to its turns is `training.batches`; what a pattern costs is decided in
`training.exposure.whole_run`.

How much shuffled batches give away at least, with gradients that point as they like.

    Chua et al. How private are DP-SGD implementations? ICML 2024, arXiv:2403.17673: a pair of data
        sets on which shuffling is told by the largest batch sum.

All other records add -1 to a sum, and the one that is meant adds 1; its batch stands 2 above the
other batches of its epoch, 1 where its values are nothing, and 0 where it is replaced by another
-1. Event: in at least m of E epochs a sum exceeds c.

    p = 1 - Phi((c - 2) / z) Phi(c / z)^(b - 1)
    q = 1 - Phi((c - 1) / z) Phi(c / z)^(b - 1)     or 1 - Phi(c / z)^b where it is replaced
    epsilon >= log((P(Bin(E, p) >= m) - delta) / P(Bin(E, q) >= m))

| symbol | name here | unit |
|---|---|---|
| z | noise_multiplier | noise std / joint sensitivity |
| b | batches | of an epoch |
| E | epochs | whole ones |

Any c and m give a true lower bound. With the order known to the adversary, more is told than this.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, check_real
from .sampling import Drawing, Scheme

MOST = 2**31 - 1  # a period or a round; larger ones are told apart by nobody


class PatternKind(enum.StrEnum):
    """What is promised of the rounds of a record."""

    EVERY = "every"
    CYCLE = "cycle"
    APART = "apart"
    MOST = "most"
    ROUNDS = "rounds"


class Pattern(NamedTuple):
    """The rounds in which one record may take part.

    Attributes:
        kind: what is promised.
        number: b of a cycle or of rounds apart, k of most.
        rounds: of a list; 0 is the start.
    """

    kind: PatternKind = PatternKind.EVERY
    number: int = 0
    rounds: tuple[int, ...] = ()

    @property
    def is_every(self) -> bool:
        """Whether nothing is promised."""
        return self.kind is PatternKind.EVERY

    @property
    def entry(self) -> str | dict[str, int] | list[int]:
        """How a run file says it.

        >>> Pattern(PatternKind.CYCLE, 10).entry
        {'cycle': 10}
        """
        if self.is_every:
            return str(self.kind)
        if self.kind is PatternKind.ROUNDS:
            return list(self.rounds)
        return {str(self.kind): self.number}

    @property
    def words(self) -> str:
        """The rounds of a record, after "a record takes part".

        >>> Pattern(PatternKind.APART, 10).words
        'in rounds that lie at least 10 apart'
        """
        match self.kind:
            case PatternKind.CYCLE:
                return f"at most every {self.number}{_ordinal(self.number)} round, in its turn"
            case PatternKind.APART:
                return f"in rounds that lie at least {self.number} apart"
            case PatternKind.MOST:
                return f"in at most {'one round' if self.number == 1 else f'{self.number} rounds'}"
            case PatternKind.ROUNDS:
                shown = ", ".join(map(str, self.rounds[:8]))
                return f"in rounds {shown}{', ...' if len(self.rounds) > 8 else ''} alone"
            case _:
                return "in any rounds"

    @property
    def distance(self) -> int:
        """Rounds from one of a record's rounds to its next one, at least.

        >>> Pattern(PatternKind.ROUNDS, rounds=(3, 7, 9)).distance
        2
        """
        match self.kind:
            case PatternKind.CYCLE | PatternKind.APART:
                return self.number
            case PatternKind.ROUNDS:
                gaps = zip(self.rounds[1:], self.rounds, strict=False)
                return min((later - earlier for later, earlier in gaps), default=MOST)
            case _:
                return 1

    def stretch(self, rounds: int) -> int:
        """Rounds among which a record has one turn; 1 where every round may be one."""
        match self.kind:
            case PatternKind.CYCLE:
                return self.number
            case PatternKind.APART:
                return 2 * self.number - 1
            case PatternKind.MOST:
                return max(1, math.ceil(rounds / self.number))
            case _:
                return 1

    def coin(self, sampling_rate: float, rounds: int) -> float:
        """The rate at which a record is drawn in its turn.

        Args:
            sampling_rate: q, of plain Poisson batches of the same mean size.
            rounds: T, of the run.

        Raises:
            ValueError: turns are so rare that not even all of their records make such batches.

        >>> Pattern(PatternKind.CYCLE, 4).coin(0.02, 1000)
        0.08
        """
        stretch = self.stretch(rounds)
        coin = stretch * sampling_rate
        if coin > 1.0 + 1e-12:
            raise InputError(
                f"sampling_rate={sampling_rate:g} with participation {self.entry} asks for "
                f"{coin:g} of the records whose turn it is, which must be at most 1: use "
                f"sampling_rate={1.0 / stretch:.6g} or less"
            )
        return min(coin, 1.0)

    def checked(self, rounds: int) -> Pattern:
        """The same, of a run of so many rounds.

        Raises:
            ValueError: a list with a round that the run does not have.
        """
        beyond = [one for one in self.rounds if one > rounds]
        if beyond:
            raise InputError(
                f"participation names round {beyond[0]}, and the run has {rounds}; leave it out"
            )
        return self

    def most_rounds(self, rounds: int) -> int:
        """In how many rounds of a run a record takes part at most.

        >>> [one.most_rounds(50) for one in (EVERY, Pattern(PatternKind.CYCLE, 12))]
        [50, 5]
        """
        match self.kind:
            case PatternKind.CYCLE | PatternKind.APART:
                return math.ceil(rounds / self.number)
            case PatternKind.MOST:
                return min(self.number, rounds)
            case PatternKind.ROUNDS:
                return len(self.rounds)
            case _:
                return rounds

    def broken(self, members: NDArray[np.bool_], *, first: int = 1) -> NDArray[np.bool_]:
        """(n,) which records took part in rounds that the pattern does not allow.

        Args:
            members: (T, n) whether a record took part in a round.
            first: the number of the first of these rounds.

        >>> taking = np.array([[True, False], [False, False], [True, True]])
        >>> Pattern(PatternKind.APART, 3).broken(taking).tolist()
        [True, False]
        """
        T = len(members)
        match self.kind:
            case PatternKind.CYCLE:
                turns = [members[j :: self.number].any(axis=0) for j in range(min(self.number, T))]
                found = np.sum(turns, axis=0) > 1 if turns else np.zeros(members.shape[1], bool)
            case PatternKind.APART:
                lags = range(1, min(self.number, T))
                found = np.zeros(members.shape[1], dtype=bool)
                for lag in lags:
                    found |= (members[:-lag] & members[lag:]).any(axis=0)
            case PatternKind.MOST:
                found = members.sum(axis=0) > self.number
            case PatternKind.ROUNDS:
                outside = ~np.isin(np.arange(first, first + T), self.rounds)
                found = members[outside].any(axis=0)
            case _:
                found = np.zeros(members.shape[1], dtype=bool)
        return np.asarray(found, dtype=np.bool_)


EVERY = Pattern()


def pattern_of(value: object) -> Pattern:
    """What a run file, or a call of `account`, says of the rounds of a record.

    Args:
        value: "every", {"cycle": b}, {"apart": b}, {"most": k}, a list of rounds, or a pattern.

    Raises:
        ValueError: none of these, or a number out of range.

    >>> pattern_of({"cycle": 10}).words
    'at most every 10th round, in its turn'
    """
    remedy = 'use "every", { cycle = 10 }, { apart = 10 }, { most = 5 } or a list of rounds'
    if isinstance(value, Pattern):
        return value
    if value == "every":
        return EVERY
    if isinstance(value, dict) and len(value) == 1:
        ((kind, number),) = value.items()
        if kind in ("cycle", "apart", "most"):
            if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
                raise InputError(
                    f"participation: {kind}={number!r:.40} must be an integer from 1 to {MOST}"
                )
            return EVERY if number == 1 and kind != "most" else Pattern(PatternKind(kind), number)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value):
        if any(isinstance(r, bool) or not isinstance(r, int) or not 0 <= r <= MOST for r in value):
            raise InputError(f"participation={value!r:.60} must list numbers of rounds, from 1 on")
        if sorted(set(value)) != list(value):
            raise InputError(f"participation={value!r:.60} must rise, each round once")
        return Pattern(PatternKind.ROUNDS, rounds=tuple(value))
    raise InputError(f"participation={value!r:.60} is unknown; {remedy}")


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


# How batches are drawn, in a sentence.

CONSTANTS = (
    "The rate, the normaliser, the weights, the graph and the number of rounds are public "
    "constants; where they come from the number of records in all, that number is public."
)


def drawn_words(drawn: Sequence[Drawing], sampling_rate: float) -> str:
    """The sentence, without its full stop.

    >>> drawn_words([Drawing(Scheme.CYCLIC, 25, 10, 25)], 0.4)
    'Each agent takes 10 of its records a round in one fixed order, leaves out 5 at most at the end'
    """
    size = drawn[0].size
    left = max(one.records % size for one in drawn)
    rest = f", leaves out {left} at most at the end" if left else ""
    match drawn[0].scheme:
        case Scheme.FIXED:
            return f"Each agent draws {size} of its records without replacement, anew each round"
        case Scheme.SHUFFLED:
            return (
                f"Each agent shuffles its records, takes {size} a round in that order{rest}, and "
                "shuffles them anew"
            )
        case Scheme.CYCLIC:
            return f"Each agent takes {size} of its records a round in one fixed order{rest}"
        case _:
            return (
                f"Each agent draws each of its records with probability {sampling_rate:.6g} a "
                f"round, and of more than {size} keeps {size} by chance"
            )


def entry_words(drawn: Drawing | None) -> str:
    """The batches of one agent in a few words, with all numbers that a figure rests on.

    >>> entry_words(None), entry_words(Drawing(Scheme.FIXED, 50, 5, 50))
    ('Poisson batches', "batches='fixed' of 5 of 50 records")
    """
    if drawn is None:
        return "Poisson batches"
    if drawn.scheme is Scheme.TRUNCATED:
        return f"Poisson batches of {drawn.records} records, cut at {drawn.size}"
    return f"{drawn.named} of {drawn.size} of {drawn.records} records"


def counts_words(drawn: Sequence[Drawing]) -> str:
    """That numbers of records are public, without a full stop.

    >>> counts_words([Drawing(Scheme.FIXED, 25, 10, 25), Drawing(Scheme.FIXED, 30, 10, 30)])
    'How many records each agent holds (25 to 30) counts as public'
    """
    least, most = min(one.records for one in drawn), max(one.most for one in drawn)
    held = f"{least}" if least == most else f"{least} to {most}"
    return f"How many records each agent holds ({held}) counts as public"


def total_words(derived: Sequence[str]) -> str:
    """That the number of all records is public, where one record more or less changes it.

    Args:
        derived: what is computed from it; at least one.

    >>> total_words(["the sampling rate"])[:72]
    'The number of records in all counts as public: the sampling rate comes f'
    """
    what = " and ".join(derived)
    comes = "comes" if len(derived) == 1 else "come"
    return (
        f"The number of records in all counts as public: {what} {comes} from it and would show a "
        'record more or less. With adjacency "zero-out" or "replace-one" that number stays the same'
    )


def turn_words(pattern: Pattern, coin: float) -> str:
    """In which rounds a record may be, and how it is drawn in these, in sentences.

    >>> from overhear.privacy.batches.patterns import PatternKind
    >>> turn_words(Pattern(PatternKind.CYCLE, 10), 0.2)[:67]
    'A record takes part at most every 10th round, in its turn, which th'
    """
    return (
        f"A record takes part {pattern.words}, which the sampler enforces: its turns follow from "
        "a hash of the record itself and the seed, and count as public. In its turn it is drawn "
        f"with probability {coin:.6g}."
    )


Array = NDArray[np.float64]
_MOST_COUNTS = 200  # values of m that are tried


def least_epsilon_of_shuffled(
    noise_multiplier: float,
    *,
    batches: int,
    epochs: int,
    delta: float,
    replace: bool = False,
    share: float = 1.0,
) -> float:
    """Return a lower bound on epsilon of freshly shuffled epochs, for worst-case gradients.

    Args:
        noise_multiplier: noise std / joint sensitivity, above 0.
        batches: of an epoch, at least 1.
        epochs: E, whole ones; none tell nothing.
        delta: strictly between 0 and 1.
        replace: whether the record is replaced by another one, or else none of its values is there.
        share: of the records of an order that are in a batch, in (0, 1].

    Returns:
        epsilon in nats, from 0.

    Raises:
        ValueError: a value is outside its range.

    >>> found = least_epsilon_of_shuffled(1.0, batches=100, epochs=10, delta=1e-5)
    >>> round(found, 3)
    7.061
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("share", share)):
        check_real(name, value)
    if not 0.0 < noise_multiplier < math.inf or not 0.0 < share <= 1.0:
        raise InputError(
            f"noise_multiplier={noise_multiplier} must be above 0 and finite, and share={share} in "
            "(0, 1]"
        )
    if batches < 1 or epochs < 0 or not 0.0 < delta < 1.0:
        raise InputError(
            f"batches={batches} must be at least 1, epochs={epochs} at least 0, and delta={delta} "
            "strictly between 0 and 1"
        )
    if epochs == 0:
        return 0.0
    # A test flags the record where m epochs or more pass a threshold; every m, or a choice of them.
    counts = np.unique(np.geomspace(1, epochs, _MOST_COUNTS).round()).astype(np.int64)
    if epochs <= _MOST_COUNTS:
        counts = np.arange(1, epochs + 1)
    z = noise_multiplier

    def bounds(c: Array) -> Array:
        """(c, m) of each threshold and count."""
        p, q = _probabilities(c, z, batches, replace=replace, share=share)
        return _bounds(p[:, None], q[:, None], counts[None, :], epochs, delta)

    # Every threshold gives a lower bound; the best one is looked for from coarse to fine.
    low, high = -6.0 * z, 2.0 + z * (8.0 + math.sqrt(2.0 * math.log(batches + 1.0)))
    best = 0.0
    for _ in range(6):  # a finer grid around the best threshold
        grid = np.linspace(low, high, 65)
        found = bounds(grid)
        at = int(found.max(axis=1).argmax())
        best = max(best, float(found.max()))
        low, high = float(grid[max(at - 2, 0)]), float(grid[min(at + 2, 64)])
    return best


def _probabilities(
    c: Array, z: float, batches: int, *, replace: bool, share: float
) -> tuple[Array, Array]:
    """P(a sum of one epoch exceeds c) with the record and without."""
    from scipy.special import log_ndtr

    others = (batches - 1) * log_ndtr(c / z)
    absent = -np.expm1(others + log_ndtr(c / z))
    there = -np.expm1(others + log_ndtr((c - 2.0) / z))
    blank = absent if replace else -np.expm1(others + log_ndtr((c - 1.0) / z))
    return share * there + (1.0 - share) * absent, share * blank + (1.0 - share) * absent


def _bounds(p: Array, q: Array, m: NDArray[np.int64], epochs: int, delta: float) -> Array:
    from scipy.stats import binom

    hits, alarms = binom.sf(m - 1, epochs, p), binom.sf(m - 1, epochs, q)
    usable = (hits > delta) & (alarms > 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(np.maximum(hits - delta, 1e-300)) - np.log(alarms)
    return np.where(usable, found, 0.0)
