"""The view of an adversary: what it observes as a linear function of gradients and noise.

    O = A G + B Z + known

    | symbol | name here     | shape                     | meaning                              |
    |--------|---------------|---------------------------|--------------------------------------|
    | A      | contributions | (messages, contributions) | what each data-dependent vector adds |
    | B      | noise         | (messages, sources)       | independent normal sources that the  |
    |        |               |                           | adversary does not know              |
    | M      | information   | (columns, columns)        | A_v^T (B B^T)^+ A_v for a victim's v |

A record that changes the columns v by vectors of norm at most b_k is told apart as well as two unit
normals at distance mu, where mu^2 <= sum_kl b_k b_l |M_kl|: directions are free and signs may
align; `squared_joint_sensitivity` is tighter where they cannot all align at once. Where a
combination of messages cancels the noise and keeps a column of v, mu is infinite.

A view cannot know what it does not hold. It proves something about a run only if it is closed: rows
for every value through which the past acts on the future, as the traces of training make them.

The factorisation eliminates: a row with one noise source left determines that source, which is then
subtracted from the other rows; only rows whose sources stay entangled go to a singular value
decomposition, of B and never of B B^T, whose cut would be the square root too coarse.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._validate import check_real
from ..errors import InputError, InputTypeError
from .joint_sensitivity import squared_joint_sensitivity

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CUT = 1e-12  # noise below this share of its row is no noise; the bound is relative to the row
ROUNDING = 256 * np.finfo(float).eps  # share of what was added up that rounding may leave
_BOUNDS = (1e-100, 1e100)  # of a contribution; squares of what lies outside leave the floats
_CORE_LIMIT = 20_000  # rows of entangled noise that a dense decomposition is asked to hold


class UnsupportedView(InputError):
    """A view for which no privacy statement can be proven."""


@dataclass(frozen=True, kw_only=True)
class View:
    """One adversary's view of one round.

    Attributes:
        contributions: (messages, contributions) array, dense or sparse.
        noise: (messages, sources) array, dense or sparse; columns are unit normals that the
            adversary does not know.
        messages: a name for each row, for naming what cancels.
        vectors: for each contribution the clipped vector that it is a part of, where several share
            one; a vector each when empty.

    Raises:
        ValueError: shapes that disagree, or entries that are not finite.
        TypeError: what is no matrix of real numbers.

    >>> view = View(contributions=np.array([[1.0], [1e-6]]), noise=np.diag([1.0, 1e-7]))
    >>> round(view.mu([0]) ** 2, 6)
    101.0
    """

    contributions: np.ndarray | csr_array
    noise: np.ndarray | csr_array
    messages: Sequence[str] = ()
    vectors: Sequence[int] | np.ndarray = ()

    def __post_init__(self) -> None:
        """Check shapes and values."""
        a, b = self.contributions, self.noise
        for name, matrix in (("contributions", a), ("noise", b)):
            if not hasattr(matrix, "shape") or matrix.dtype.kind not in "biuf":
                found = getattr(matrix, "dtype", type(matrix).__name__)
                raise InputTypeError(f"{name} must be an array of real numbers, not {found}")
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[0]:
            raise InputError(
                f"contributions {a.shape} and noise {b.shape} must be matrices with one row per "
                "message each"
            )
        for name, matrix in (("contributions", a), ("noise", b)):
            values = matrix if isinstance(matrix, np.ndarray) else matrix.data
            if not np.isfinite(values).all():
                raise InputError(f"{name} holds a value that is not finite; rows must be numbers")
        if self.messages and len(self.messages) != a.shape[0]:
            raise InputError(
                f"{len(self.messages)} message names for {a.shape[0]} messages; give one for each"
            )
        if len(self.vectors) not in (0, a.shape[1]):
            raise InputError(
                f"{len(self.vectors)} vectors for {a.shape[1]} contributions; give one for each, "
                "or none where each is a vector of its own"
            )

    @cached_property
    def _factors(self) -> Factors:
        return factor(self.contributions, self.noise)

    def _checked(self, columns: Sequence[int]) -> list[int]:
        """The columns, none of which is counted from the end or given as a truth value."""
        most = self.contributions.shape[1]
        for column in columns:
            if isinstance(column, bool) or not hasattr(column, "__index__"):
                raise InputTypeError(
                    f"column {column!r} must be an integer, the number of a column"
                )
            if not 0 <= column < most:
                raise InputError(f"column {column} must lie in [0, {most}); columns count from 0")
        return [operator.index(column) for column in columns]

    def information(self, columns: Sequence[int]) -> np.ndarray:
        """M = A_v^T (B B^T)^+ A_v for the given columns, where it exists.

        Raises:
            UnsupportedView: noise cancels for one of the columns; see `leaks`.
        """
        if self.leaks(columns):
            raise UnsupportedView(
                f"no finite information: the noise cancels in {', '.join(self.leaks(columns))}"
            )
        whitened = self._factors.whitened[:, self._checked(columns)]
        return np.asarray((whitened.T @ whitened).toarray())

    def leaks(self, columns: Sequence[int]) -> tuple[str, ...]:
        """Name the messages whose combination shows one of the columns without noise.

        Raises:
            UnsupportedView: a combination may or may not show one: rounding hides which.
        """
        columns = self._checked(columns)
        clean, sources = self._factors.clean, self._factors.sources
        if self._factors.doubtful[:, columns].nnz:
            raise UnsupportedView(
                "the noise cancels between messages, and what is left of a contribution cannot be "
                "told from rounding; write the step so that it cancels exactly or not at all"
            )
        touched = np.unique(clean[:, columns].tocoo().coords[0])
        if not len(touched):
            return ()
        rows = sources[int(min(touched, key=lambda row: (len(sources[row]), row)))]
        names = self.messages
        return tuple(names[row] if names else f"message {row}" for row in rows)

    def mu(
        self, columns: Sequence[int], clip_norm: float = 1.0, *, bounds: Sequence[float] = ()
    ) -> float:
        """Joint sensitivity over noise of one record that changes the given columns.

        Args:
            columns: indices of the victim's contributions.
            clip_norm: bound on the norm of every contribution.
            bounds: a bound for each of the columns in place of `clip_norm`; that of the whole
                vector where columns are parts of one.

        Returns:
            mu of Gaussian differential privacy; `inf` where noise cancels or a bound is infinite.

        Raises:
            ValueError: a column that does not exist, or a bound that is negative or beyond 1e100.
            TypeError: a column that is no integer, or a bound that is no number.
            UnsupportedView: as for `leaks`.

        >>> rho = 0.5  # two releases of one record whose noise is correlated
        >>> root = np.linalg.cholesky(np.array([[1, rho], [rho, 1]]))
        >>> view = View(contributions=np.eye(2), noise=root)
        >>> round(view.mu([0, 1]) ** 2, 6)
        4.0
        """
        given = list(bounds) if len(bounds) else [clip_norm] * len(columns)
        for bound in given:
            check_real("clip_norm or bound", bound)
        b = np.asarray(given, dtype=float)
        if len(b) != len(columns) or not (b >= 0).all():
            raise InputError(f"bounds {b.tolist()} must be one number >= 0 for each column")
        far = b[np.isfinite(b) & (b > 0) & ((b < _BOUNDS[0]) | (b > _BOUNDS[1]))]
        if far.size:
            raise InputError(
                f"clip_norm or bound {far[0]} must be 0, infinite or in [{_BOUNDS[0]}, "
                f"{_BOUNDS[1]}]; choose another unit for the gradients"
            )
        moved = [c for c, bound in zip(columns, b, strict=True) if bound > 0]
        b = b[b > 0]
        if self.leaks(moved):
            return math.inf
        information = self.information(moved)
        if not np.isfinite(b).all():
            seen = np.abs(information).sum(axis=0)[~np.isfinite(b)] > 0
            if seen.any():
                return math.inf
            b = np.where(np.isfinite(b), b, 0.0)
        vectors = [int(self.vectors[c]) for c in moved] if len(self.vectors) else []
        if len(set(zip(vectors, b.tolist(), strict=False))) > len(set(vectors)):
            raise InputError(
                f"bounds {b.tolist()} differ between parts of one vector {vectors}; the bound is "
                "that of the whole vector"
            )
        return math.sqrt(squared_joint_sensitivity(information * np.outer(b, b), vectors))


class Factors(NamedTuple):
    """A view after elimination.

    `whitened` rows carry unit noise of their own, `clean` rows none, each made of the messages in
    `sources`; `doubtful` holds what of the clean rows is neither rounding nor surely more.
    """

    whitened: csr_array
    clean: csr_array
    doubtful: csr_array
    sources: list[tuple[int, ...]]


def factor(contributions: np.ndarray | csr_array, noise: np.ndarray | csr_array) -> Factors:
    """Eliminate the noise sources of a view."""
    from scipy.sparse import csr_array, diags_array, vstack

    A, B = csr_array(contributions, dtype=float), csr_array(noise, dtype=float)
    # A power of two first, which is exact: the squares of 1e200 or 1e-200 are no floats.
    largest = np.maximum(_largest(A), _largest(B))
    near = diags_array(np.ldexp(1.0, -np.maximum(np.frexp(largest)[1], -1000))).tocsr()
    A, B = near @ A, near @ B
    size = np.sqrt(_square_sums(A) + _square_sums(B))
    scale = diags_array(1.0 / np.where(size > 0, size, 1.0)).tocsr()
    A, B = scale @ A, scale @ B
    B.eliminate_zeros()
    rows = np.arange(A.shape[0])
    used: dict[int, tuple[int, ...]] = {int(r): (int(r),) for r in rows}
    magnitude = abs(A)  # running bound on what rounding is measured against
    pivots: dict[int, int] = {}
    white: list[Any] = []
    clean: list[Any] = []
    names: list[tuple[int, ...]] = []

    while True:
        count = np.diff(B.indptr)
        empty = count == 0
        if empty.any():
            of = rows[empty]
            clean.append((A[empty], magnitude[empty]))
            names += [used[int(r)] for r in of]
            A, B, magnitude, rows = A[~empty], B[~empty], magnitude[~empty], rows[~empty]
            count = count[~empty]
        single = np.flatnonzero(count == 1)
        if not len(single):
            break
        source, value = B.indices[B.indptr[single]], B.data[B.indptr[single]]
        order = np.lexsort((-np.abs(value), source))  # the strongest row fixes its source
        first = order[np.r_[True, np.diff(source[order]) != 0]]
        pivot, at, by = single[first], source[first], value[first]
        # Noise this weak hides nothing, but still tells what the source is.
        weak = pivot[np.abs(by) < CUT]
        clean.append((A[weak], magnitude[weak]))
        names += [used[int(r)] for r in rows[weak]]
        solved = diags_array(1.0 / by).tocsr() @ A[pivot]
        solved_size = diags_array(1.0 / np.abs(by)).tocsr() @ magnitude[pivot]
        white.append(solved)
        pivots.update(zip(at.tolist(), rows[pivot].tolist(), strict=True))
        keep = np.ones(len(rows), dtype=bool)
        keep[pivot] = False
        A, B, magnitude, rows = A[keep], B[keep], magnitude[keep], rows[keep]
        weight = B[:, at]
        for row, col in zip(*weight.tocoo().coords, strict=True):
            key = int(rows[row])
            if len(used[key]) < 8:  # enough to name what cancels
                used[key] = (*used[key], pivots[int(at[col])])
        A = csr_array(A - weight @ solved)
        magnitude = csr_array(magnitude + abs(weight) @ solved_size)
        known = np.zeros(B.shape[1], dtype=bool)
        known[at] = True
        B = B @ diags_array((~known).astype(float)).tocsr()
        B.eliminate_zeros()

    if len(rows):
        whitened, noiseless, size = _factor_core(A, B, magnitude)
        white.append(whitened)
        clean.append((noiseless, size))
        names += [tuple(rows[:8].tolist())] * noiseless.shape[0]
    width = A.shape[1]
    none = csr_array((0, width))
    held = csr_array(vstack([none, *(rest for rest, _ in clean)]))
    against = csr_array(vstack([none, *(size for _, size in clean)]))
    sure = csr_array(held * (abs(held) > against * CUT))
    left = csr_array(held * (abs(held) > against * ROUNDING))
    doubtful = csr_array(left - sure)
    doubtful.eliminate_zeros()
    return Factors(csr_array(vstack([none, *white])), sure, doubtful, names)


def _factor_core(
    A: csr_array, B: csr_array, magnitude: csr_array
) -> tuple[csr_array, csr_array, csr_array]:
    """Rows whose noise no elimination disentangles: through the singular values of B itself."""
    from scipy.linalg import svd
    from scipy.sparse import csr_array

    if B.shape[0] > _CORE_LIMIT:
        raise UnsupportedView(
            f"{B.shape[0]} messages share entangled noise, more than the {_CORE_LIMIT} that can be "
            "factorised; account for a smaller graph"
        )
    live = np.unique(B.indices)
    u, s, _ = svd(B[:, live].toarray(), full_matrices=True, lapack_driver="gesvd")
    rank = int((s > CUT).sum())
    rotated = csr_array(u.T @ A.toarray())
    # Every entry of u is only known to rounding, so each row may leak into every rotated one.
    size = csr_array(np.tile(magnitude.toarray().sum(axis=0), (len(u), 1)))
    return csr_array(rotated[:rank].toarray() / s[:rank, None]), rotated[rank:], size[rank:]


def _square_sums(matrix: csr_array) -> np.ndarray:
    return np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()


def _largest(matrix: csr_array) -> np.ndarray:
    """The largest entry of each row, in absolute value."""
    if 0 in matrix.shape:
        return np.zeros(matrix.shape[0])
    return np.asarray(abs(matrix).max(axis=1).toarray(), dtype=float).ravel()
