"""The view of a whole run in which noise or records persist: round after round, never all at once.

A round maps what agents carry to what is seen and to what they carry on:

    O_t     = C_t S_t-1 + A_t G_t + B_t Z_t                  seen
    S_t     = F_t S_t-1 + K_t G_t + L_t Z_t                  carried on, not seen

Each round the seen rows determine some combinations of the noise. What they determine is turned
into whitened rows, whose squares add up to the information M over all rounds; what they leave is
the noise that the carried rows still have. This is a square-root Kalman filter in which the
"means" are the responses to unit contributions, so a run of T rounds costs T small
factorisations, and memory for (carried rows) x (contributions) and one M per owner.

| symbol | name here           | shape                    | meaning                               |
|--------|---------------------|--------------------------|---------------------------------------|
| S      |                     | (carried,)               | rows that outlive their round         |
| C, F   | Rows.carried        | (rows, carried before)   | how they enter                        |
| A, K   | Rows.contributions  | (rows, contributions)    | what the round's data add             |
| B, L   | Rows.noise          | (rows, sources)          | fresh noise that the adversary does   |
|        |                     |                          | not know                              |
| M      | information         | (columns, columns)       | of one owner, over all rounds         |

Formal guarantee: if every point at which a contribution is evaluated is a seen row of an earlier or
the same round, an owner's record that changes its columns by at most b_k is mu-Gaussian
differentially private with the mu returned, however the contributions depend on the past: given
the past, each whitened row is a unit normal whose shift is linear in the contributions so far, and
the squared shifts add up to at most mu^2 on every path (Smith, Thakurta 2022, arXiv:2210.17520).

Source: the same algebra as `view`, and the numerics of it: scaled rows, singular values of B and
not of B B^T, and a refusal where rounding hides whether noise cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, UnsupportedView
from .elimination import (
    CUT,
    ROUNDING,
    apart,
    compressed,
    in_round,
    is_hidden,
    small_entries,
    without_rounding,
)
from .view import squared_joint_sensitivity

if TYPE_CHECKING:
    from scipy.sparse import csr_array


Array = NDArray[np.float64]
_CANCELS = 8.0  # terms this often as large as their sum cancel
_FLOATS = 2.0**-14  # noise below this share of data that cancelled does not hide its rounding
_ABSORBED = 2.0**-20  # noise below this share of noise that cancelled was rounded away
_SEVERAL = CUT / ROUNDING  # by how much rounding of many rows may exceed that of one
_MOST_ROWS = 6_000  # of one round, that a dense factorisation is asked to hold


class Rows(NamedTuple):
    """Rows of one round over what was carried, its contributions and its noise sources.

    What was carried may be a sparse array: a row is carried from few.
    """

    carried: Array | csr_array
    contributions: Array
    noise: Array


class Whitened(NamedTuple):
    """What the seen rows of a round were turned into, each with unit noise of its own.

    Attributes:
        response: (rank, columns) to a unit contribution of each column so far.
        weights: (rank, seen) of the seen rows, less what earlier rounds tell of them.
        gain: (carried, rank) what each tells of the noise of the rows that are carried on.
    """

    response: Array
    weights: Array
    gain: Array


class _Factored(NamedTuple):
    """What seen rows were turned into: rows with a unit of noise of their own each.

    Attributes:
        response: (rank, columns) of each row to a unit contribution.
        size: (rank, columns) the sum of absolute values that it was added up from.
        small: (rank, columns) the part of that which small entries are.
        directions: (rank, sources) of the noise that each row determines.
        weak: (rank,) whether the noise of a row is below the cut, and hides nothing.
        weights: (rank, seen) what each row is made of.
    """

    response: Array
    size: Array
    small: Array
    directions: Array
    weak: NDArray[np.bool_]
    weights: Array

    @classmethod
    def none(cls, seen: int, sources: int, columns: int) -> _Factored:
        """No row."""
        of = np.zeros((0, columns))
        return cls(of, of, of, np.zeros((0, sources)), np.zeros(0, bool), np.zeros((0, seen)))


class _Leak(NamedTuple):
    columns: frozenset[int]
    messages: tuple[str, ...]


class StreamedView:
    """One adversary's view of a run, one round at a time.

    >>> view = StreamedView()  # noise on the released momentum, one use in the first round
    >>> none = np.zeros((1, 0))
    >>> for t in range(3):
    ...     kept = none if t == 0 else np.array([[0.9]])
    ...     used = np.array([[1.0]]) if t == 0 else none
    ...     seen = Rows(kept, used, np.array([[1.0]]))
    ...     carried = Rows(kept, used, np.array([[0.0]]))
    ...     told = view.advance(seen, carried, owners=[0] * used.shape[1])
    >>> round(view.mu(0) ** 2, 4)
    2.4661
    """

    def __init__(self) -> None:
        self.round = -1
        self._response = np.zeros((0, 0))  # (carried, columns)
        self._noise = np.zeros((0, 0))  # (carried, sources left)
        self._owned: dict[int, list[int]] = {}
        self._rounds: dict[int, list[int]] = {}
        self._vectors: dict[int, list[int]] = {}
        self._most_vectors = 0
        self._information: dict[int, Array] = {}
        self._shown: dict[int, Array] = {}  # (2, columns) first and last round that shows each
        self._leaks: list[_Leak] = []
        self._doubtful: set[int] = set()

    def advance(
        self,
        seen: Rows,
        carried: Rows,
        *,
        owners: Sequence[int],
        vectors: Sequence[int] = (),
        messages: Sequence[str] = (),
    ) -> Whitened:
        """Take one round in, and give what it was turned into.

        Args:
            seen: what the adversary sees in the round.
            carried: what outlives it.
            owners: whose data each contribution of the round is.
            vectors: the clipped vector that each contribution is a part of, by a number of this
                round, where several share one; the bound is that of the whole vector.
            messages: a name for each seen row, for naming what cancels.

        Raises:
            ValueError: shapes that disagree, or entries that are not finite.
            UnsupportedView: more rows than can be factorised, or noise shown so weakly that
                rounding hides which.
        """
        self._check(seen, carried, owners, vectors)
        self.round += 1
        # New columns: one for each contribution, after those of earlier rounds.
        before = self._response.shape[1]
        for offset, owner in enumerate(owners):
            self._owned.setdefault(int(owner), []).append(before + offset)
            self._rounds.setdefault(int(owner), []).append(self.round)
            vector = self._most_vectors + (int(vectors[offset]) if len(vectors) else offset)
            self._vectors.setdefault(int(owner), []).append(vector)
        self._most_vectors += 1 + max([int(v) for v in vectors], default=len(owners))
        # Each whitened row tells a direction of the noise, and so what the noise hides no longer.
        A, size, B = self._over_columns(seen)
        self._check_cancelled(seen, A, size, B, messages)
        shown = np.flatnonzero((A != 0).any(axis=1) | (B != 0).any(axis=1))
        names = [messages[i] if messages else f"message {i}" for i in shown.tolist()]
        made = self._factor(A[shown], size[shown], B[shown], names)
        whitened, directions = made.response, made.directions
        # What is carried loses what the seen rows tell of its noise, and takes over its response.
        K, size, L = self._over_columns(carried)
        determined = without_rounding(L @ directions.T, np.linalg.norm(L, axis=1, keepdims=True))
        if determined[:, made.weak].any():
            raise UnsupportedView(
                f"round {self.round} shows noise below {CUT:g} of its message, so weakly that what "
                "it tells of noise carried on is known to a few digits only; leave it out of the "
                "message, or send it apart"
            )
        added = abs(determined) @ made.size
        # What is small beside the rest of an entry is lost there, and a later message may show it.
        small = np.where(abs(K) <= added * CUT, abs(K), 0.0) + abs(determined) @ made.small
        self._note_doubt(is_hidden(small, size + added, np.zeros(1, dtype=bool)))
        size += added
        size *= min(_SEVERAL, max(1, len(shown)))  # more rows leave more rounding
        self._response = without_rounding(K - determined @ whitened, size)
        self._noise = compressed(L - determined @ directions, np.linalg.norm(L, axis=1))
        self._add(whitened)
        return Whitened(whitened, made.weights @ np.eye(len(A))[shown], determined)

    def rounds(self, owner: int) -> Array:
        """(columns,) the round of each of the owner's columns, counted from 0."""
        return np.asarray(self._rounds.get(owner, []), dtype=float)

    def bands(self, owner: int) -> int:
        """In how many rounds, one after another, a contribution shows at most; 0 in none.

        The whitened rows that show a contribution of round s, however late they begin, end before
        the first one that shows a contribution of round s + bands or later.
        """
        first, last = self._shown.get(owner, np.zeros((2, 0)))
        at = np.flatnonzero(first >= 0)
        of, first = self.rounds(owner)[at], first[at]
        until = [of[first <= end].max() for end in last[at]]
        return int(max(until - of) + 1) if until else 0

    def information(self, owner: int) -> Array:
        """M over all of the owner's columns, where none of them leaks."""
        count = len(self._owned.get(owner, []))
        held = self._information.get(owner, np.zeros((0, 0)))
        found = np.zeros((count, count))
        found[: len(held), : len(held)] = held
        return found

    def leaks(self, owner: int, taking: Sequence[int] | None = None) -> tuple[str, ...]:
        """The messages whose combination shows one of the owner's columns without noise.

        Args:
            owner: whose record is at risk.
            taking: positions among the owner's columns; all when None.

        Raises:
            UnsupportedView: rounding hides whether one is shown.
        """
        columns = self._columns(owner, taking)
        touching = [leak for leak in self._leaks if leak.columns & columns]
        if not touching and columns & self._doubtful:
            raise UnsupportedView(
                "the noise cancels between messages, and what is left of a contribution is "
                "indistinguishable from "
                "rounding; write the step so that it cancels exactly or not at all"
            )
        return min((leak.messages for leak in touching), key=len, default=())

    def mu(
        self,
        owner: int,
        taking: Sequence[int] | None = None,
        *,
        bounds: Sequence[float] = (),
        clip_norm: float = 1.0,
    ) -> float:
        """Joint sensitivity over noise of one record that changes the owner's columns.

        Args:
            owner: whose record is at risk.
            taking: positions among the owner's columns that the record changes; all when None.
            bounds: a bound on the norm for each of these columns, in place of `clip_norm`.
            clip_norm: bound on the norm of every contribution.

        Returns:
            mu of Gaussian differential privacy, over all rounds; `inf` where noise cancels or a
            bound is infinite.
        """
        every = range(len(self._owned.get(owner, [])))
        at = list(every) if taking is None else list(taking)
        b = np.asarray(bounds if len(bounds) else [clip_norm] * len(at), dtype=float)
        if len(b) != len(at) or not (b >= 0).all():
            raise InputError(f"bounds {b.tolist()} must be one number >= 0 for each column")
        at, b = [c for c, bound in zip(at, b, strict=True) if bound > 0], b[b > 0]
        if not at:
            return 0.0
        if self.leaks(owner, at):  # or it refuses, where rounding hides one
            return math.inf
        M = self.information(owner)[np.ix_(at, at)]
        endless = ~np.isfinite(b)
        if endless.any() and np.abs(M[endless]).sum() > 0:
            return math.inf
        b = np.where(endless, 0.0, b)
        vectors = [self._vectors[owner][c] for c in at]
        return math.sqrt(squared_joint_sensitivity(M * np.outer(b, b), vectors))

    def _columns(self, owner: int, taking: Sequence[int] | None) -> frozenset[int]:
        owned = self._owned.get(owner, [])
        return frozenset(owned if taking is None else (owned[i] for i in taking))

    def _check(
        self, seen: Rows, carried: Rows, owners: Sequence[int], vectors: Sequence[int]
    ) -> None:
        for name, rows in (("seen", seen), ("carried", carried)):
            count = rows.carried.shape[0]
            if rows.carried.shape != (count, len(self._response)):
                raise InputError(
                    f"{name}: carried has shape {rows.carried.shape}, but {len(self._response)} "
                    "rows were carried on by the round before"
                )
            if rows.contributions.shape != (count, len(owners)) or len(rows.noise) != count:
                raise InputError(
                    f"{name}: contributions {rows.contributions.shape} and noise "
                    f"{rows.noise.shape} need {count} rows and one owner per contribution, not "
                    f"{len(owners)}"
                )
            entries = getattr(rows.carried, "data", rows.carried)  # of a sparse array, or all
            if not all(np.isfinite(matrix).all() for matrix in (entries, *rows[1:])):
                raise InputError(f"{name} holds a value that is not finite; rows must be numbers")
        if len(vectors) not in (0, len(owners)):
            raise InputError(f"{len(vectors)} vectors for {len(owners)} contributions; give each")
        if seen.noise.shape[1] != carried.noise.shape[1]:
            raise InputError("seen and carried rows must be over the same noise sources")
        if len(seen.noise) > _MOST_ROWS:
            raise UnsupportedView(
                f"{len(seen.noise)} rows are seen in one round, more than the {_MOST_ROWS} that an "
                "all-rounds view factorises; account for a smaller graph"
            )

    def _over_columns(self, rows: Rows) -> tuple[Array, Array, Array]:
        """A over all columns so far, what was added up for it, and B.

        Sizes are of this round alone: bounds that run through all rounds grow without need, and
        what is taken for rounding must not.
        """
        from scipy.sparse import csr_array

        size_of = abs(of := csr_array(rows.carried))
        response = np.hstack([of @ self._response, rows.contributions])
        size = np.hstack([size_of @ abs(self._response), abs(rows.contributions)])
        noise = np.hstack([of @ self._noise, rows.noise])
        carried_noise = size_of @ np.linalg.norm(self._noise, axis=1)
        noise[:, : self._noise.shape[1]][
            abs(noise[:, : self._noise.shape[1]]) < carried_noise[:, None] * ROUNDING
        ] = 0.0
        return without_rounding(response, size), size, noise

    def _check_cancelled(
        self, seen: Rows, A: Array, size: Array, B: Array, messages: Sequence[str]
    ) -> None:
        """Refuse seen rows in which what was carried cancels to rounding error, or hides noise.

        Floats leave of terms that cancel up to 2^-24 of their size, a function of the data, and
        of noise beside them nothing below that.

        Raises:
            UnsupportedView: some noise that the row keeps is not well above it.
        """
        if not self._response.shape[1] and not self._noise.shape[1]:
            return
        noise = np.linalg.norm(B, axis=1)
        data = np.where(abs(A) * _CANCELS <= size, size, 0.0).max(axis=1, initial=0.0)
        carried = abs(seen.carried) @ np.linalg.norm(self._noise, axis=1)
        lost = np.where(noise * _CANCELS <= carried, carried, 0.0)
        wrong = (data * _FLOATS > noise) | ((lost * _ABSORBED > noise) & (noise > 0))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            what = messages[row] if messages else f"message {row}"
            raise UnsupportedView(
                f"{what} of round {self.round}: what was carried from earlier rounds cancels in it "
                "to rounding error, which the run's floats do send and no noise hides; leave the "
                "terms that cancel out of the step"
            )

    def _factor(self, A: Array, size: Array, B: Array, names: Sequence[str]) -> _Factored:
        """Whitened rows and the directions of noise they determine; notes what leaks.

        Rows that share no noise are factorised apart, so that none is measured by another's size.
        """
        norm = np.sqrt((A**2).sum(axis=1) + (B**2).sum(axis=1))
        A, size, B = A / norm[:, None], size / norm[:, None], B / norm[:, None]
        small = small_entries(A)
        made = [_Factored.none(len(B), B.shape[1], A.shape[1])]
        for rows in apart(B):
            of = [str(names[int(i)]) for i in rows]
            linked = self._factor_linked(A[rows], size[rows], B[rows], small[rows], of)
            weights = np.zeros((len(linked.weights), len(A)))
            weights[:, rows] = linked.weights / norm[rows]
            made.append(linked._replace(weights=weights))
        return _Factored(*map(np.concatenate, zip(*made, strict=True)))

    def _factor_linked(
        self, A: Array, size: Array, B: Array, small: Array, names: Sequence[str]
    ) -> _Factored:
        """The same of rows of length 1 that share noise."""
        from scipy.linalg import svd

        # All of u is needed, and of vh as much as B has rank.
        live = np.flatnonzero(B.any(axis=0))
        tall = len(B) > len(live)
        u, s, vh = (
            svd(B[:, live], full_matrices=tall, lapack_driver="gesvd")
            if len(live)
            else (np.eye(len(B)), np.zeros(0), np.zeros((0, 0)))
        )
        # Noise below the cut hides nothing, but still tells what its source is.
        hidden, rank = int((s > CUT).sum()), int((s > ROUNDING).sum())
        rotated, of_small = u.T @ A, (abs(u.T) > CUT) @ small
        # Every entry of u is only known to rounding, so each row may leak into every rotated one.
        reach = size.sum(axis=0)
        self._note_leaks(rotated[hidden:], reach, of_small[hidden:], u[:, hidden:], names)
        least = np.clip(len(A) * s[:rank, None], 1.0, _SEVERAL)  # more rows, more rounding
        directions = np.zeros((rank, B.shape[1]))
        directions[:, live] = vh[:rank]
        scale = s[:rank, None]
        return _Factored(
            without_rounding(rotated[:rank], reach * least) / scale,
            reach / scale,
            of_small[:rank] / scale,
            directions,
            s[:rank] <= CUT,
            u[:, :rank].T / scale,
        )

    def _note_leaks(
        self, clean: Array, size: Array, small: Array, weight: Array, names: Sequence[str]
    ) -> None:
        sure = abs(clean) > size * CUT
        # What was carried was rounded in every round, and `size` is that of this one.
        doubtful = (abs(clean) > size * ROUNDING * min(_SEVERAL, 1 + self.round)) & ~sure
        self._note_doubt(doubtful | is_hidden(small, size, sure))
        for row in np.flatnonzero(sure.any(axis=1)):
            shown = frozenset(np.flatnonzero(sure[row]).tolist())
            made = np.flatnonzero(abs(weight[:, row]) > CUT)[:8]
            if not any(shown <= leak.columns for leak in self._leaks):
                messages = tuple(in_round(str(names[int(i)]), self.round) for i in made)
                self._leaks.append(_Leak(shown, messages))

    def _note_doubt(self, doubtful: NDArray[np.bool_]) -> None:
        self._doubtful |= set(np.flatnonzero(doubtful.any(axis=0)).tolist())

    def _add(self, whitened: Array) -> None:
        for owner, columns in self._owned.items():
            rows = whitened[:, columns]
            shown = self._shown.get(owner, np.full((2, 0), -1.0))
            shown = np.pad(shown, ((0, 0), (0, len(columns) - shown.shape[1])), constant_values=-1)
            now = rows.any(axis=0)
            shown[0] = np.where(now & (shown[0] < 0), self.round, shown[0])
            shown[1] = np.where(now, self.round, shown[1])
            self._shown[owner] = shown
            held = self._information.get(owner, np.zeros((0, 0)))
            if len(columns) > len(held):
                grown = np.zeros((len(columns), len(columns)))
                grown[: len(held), : len(held)] = held
                held = grown
            held += rows.T @ rows
            self._information[owner] = held


# The largest sum of |M| over the rounds that one record may take part in.
#
#     any k of the rounds         each row's own block and its k - 1 largest others; the k largest
#     rounds at least b apart     the same by a dynamic programme: of each row the best rounds
#     around
#                                 it, and of all rows those that are b apart and have the largest
#                                 sums
#
#     Choquette-Choo, Ganesh, McKenna et al. (Amplified) banded matrix factorization. NeurIPS 2023,
#         arXiv:2306.08153: sums over rows bound what a record that comes back adds up to.
#
# Both bound the sum over all pairs of rounds of a pattern from above: the rows of a pattern are
# summed one by one, each as if it could choose the pattern anew. They are exact where no two rounds
# of one pattern are correlated.


def largest_most(blocks: Array, own: Array, k: int) -> float:
    """A bound on the sum over any k rounds.

    Args:
        blocks: (T, T) sums of |M| over the columns of two rounds.
        own: (T,) mu^2 of each round by itself, at most the diagonal.
        k: rounds of a record, from 1.

    >>> largest_most(np.array([[1.0, 0.5], [0.5, 1.0]]), np.ones(2), 2)
    3.0
    """
    others = np.sort(blocks - np.diag(np.diag(blocks)), axis=1)[:, ::-1]
    rows = own + others[:, : k - 1].sum(axis=1)
    return float(np.sort(rows)[::-1][:k].sum())


def largest_apart(blocks: Array, own: Array, rounds: Array, b: int) -> float:
    """A bound on the sum over rounds of which two are at least b apart.

    Args:
        blocks, own: as of `largest_most`.
        rounds: (T,) the numbers of the rounds, rising.
        b: how far apart they are, from 1.
    """
    count = len(blocks)
    if not count:
        return 0.0
    before = np.searchsorted(rounds, rounds - b, side="right")  # how many come b or more before
    # best[:, i]: of every row the largest sum over admissible ones of the first i rounds.
    best = np.zeros((count, count + 1))
    for at in range(count):
        best[:, at + 1] = np.maximum(best[:, at], best[:, before[at]] + blocks[:, at])
    after = np.searchsorted(rounds, rounds + b, side="left")
    rest = np.zeros((count, count + 1))  # rest[:, i]: the same over rounds from i on
    for at in reversed(range(count)):
        rest[:, at] = np.maximum(rest[:, at + 1], rest[:, after[at]] + blocks[:, at])
    every = np.arange(count)
    rows = own + best[every, before] + rest[every, after]
    chosen = np.zeros(count + 1)
    for at in range(count):
        chosen[at + 1] = max(chosen[at], chosen[before[at]] + rows[at])
    return float(chosen[count])
