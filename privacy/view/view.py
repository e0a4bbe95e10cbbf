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

The noise is taken apart in `elimination`.

How mu is decided of M (`squared_joint_sensitivity`, `certificate`):

A record changes clipped vectors x_v by at most 1 each, here with the bounds folded into M. A vector
has one part x_c for each column c that holds some of its coordinates: usually one column in all,
two where parameters and dual variables are clipped together but released differently.

    mu^2 = max over |x_v| <= 1 of  sum_cd M_cd <x_c, x_d>,   |x_v|^2 = sum_{c in v} |x_c|^2

For any lam with diag(lam_v(c)) >= M

    sum_cd M_cd <x_c, x_d> <= sum_c lam_v(c) |x_c|^2 = sum_v lam_v |x_v|^2 <= sum_v lam_v

so every such lam is a certificate, and the best one is tight: the two problems are dual
semidefinite programmes. Nothing is assumed of M between parts of one vector, which are other
coordinates; there it is 0, and one vector costs its dearest part, max_c M_cc.

| symbol | name here   | shape              | meaning                                  |
|--------|-------------|--------------------|------------------------------------------|
| M      | information | (columns, columns) | positive semidefinite                    |
| v(c)   | vectors     | (columns,)         | the vector that a column is a part of    |
| lam    |             | (vectors,)         | a certificate                            |
| mu     | its square  | scalar             | the joint sensitivity                    |
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, InputTypeError, UnsupportedView, check_real, whole, within
from .elimination import Factors, entries, factor, rows_at

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_BOUNDS = (1e-100, 1e100)  # of a contribution; squares of what lies outside leave the floats
_MOST_DENSE = 2**16  # entries of a victim's columns that are gathered without slicing a matrix
_SWEEPS = 2_000  # of the search; it may stop early at no risk


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
            whole("column", column, f"[0, {most})", "columns count from 0")
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
        return self._information(self._checked(columns))

    def _information(self, columns: list[int]) -> np.ndarray:
        whitened = self._factors.whitened
        at = entries(whitened.indptr, np.asarray(columns, dtype=int))
        rows, row = np.unique(whitened.indices[at], return_inverse=True)
        if len(rows) * len(columns) > _MOST_DENSE:
            some = whitened[:, columns]
            return np.asarray((some.T @ some).toarray())
        dense = np.zeros((len(rows), len(columns)))
        lengths = np.diff(whitened.indptr)[columns]
        dense[row, np.repeat(np.arange(len(columns)), lengths)] = whitened.data[at]
        return np.asarray(dense.T @ dense)

    def leaks(self, columns: Sequence[int]) -> tuple[str, ...]:
        """Name the messages, in their order, whose combination shows a column without noise.

        Raises:
            UnsupportedView: a combination may or may not show one: rounding hides which.
        """
        columns = self._checked(columns)
        clean, sources = self._factors.clean, self._factors.sources
        touched = np.unique(rows_at(clean, np.asarray(columns, dtype=int)))
        if not len(touched):
            if len(rows_at(self._factors.doubtful, np.asarray(columns, dtype=int))):
                raise UnsupportedView(
                    "the noise cancels between messages, and what is left of a contribution is "
                    "indistinguishable from "
                    "rounding; write the step so that it cancels exactly or not at all"
                )
            return ()
        rows = sources[int(min(touched, key=lambda row: (len(sources[row]), row)))]
        names = self.messages
        return tuple(names[row] if names else f"message {row}" for row in sorted(rows))

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
        moved, b = _moved(columns, given)
        bounded = self._bounded(moved, b)
        return math.inf if bounded is None else math.sqrt(squared_joint_sensitivity(*bounded))

    def shares(self, blocks: Sequence[tuple[Sequence[int], Sequence[float]]]) -> list[float]:
        """Mu of each of several blocks of columns, as if each were released with noise of its own.

        All that is seen of the blocks together is a post-processing of such releases, made one
        after the other, whoever takes part in which: see `certificate`. So blocks of units that
        take part independently can be composed as rounds are.

        Args:
            blocks: the columns of each, and a bound for each of its columns; no column twice.

        Returns:
            For each block its mu, rounded up; infinite for all that touch data where noise cancels
            or a bound is infinite.

        Raises:
            ValueError: as for `mu`, or a column in two blocks.
            TypeError: as for `mu`.
            UnsupportedView: as for `leaks`.
        """
        parts = [_moved(columns, list(bounds)) for columns, bounds in blocks]
        moved = [c for columns, _ in parts for c in columns]
        if len(set(moved)) < len(moved):
            raise InputError(f"columns {moved} must lie in one block each")
        if not moved:
            return [0.0] * len(parts)
        bounded = self._bounded(moved, np.concatenate([b for _, b in parts]))
        if bounded is None:
            return [math.inf if columns else 0.0 for columns, _ in parts]
        information, vectors = bounded
        vectors = vectors or list(range(len(moved)))
        lam = dict(zip(np.unique(vectors).tolist(), certificate(information, vectors), strict=True))
        found, at = list[float](), 0
        for columns, _ in parts:
            own = dict.fromkeys(vectors[at : at + len(columns)])
            at += len(columns)
            found.append(math.nextafter(math.sqrt(math.fsum(lam[v] for v in own)), math.inf))
        return [mu if columns else 0.0 for mu, (columns, _) in zip(found, parts, strict=True)]

    def _bounded(self, moved: list[int], b: np.ndarray) -> tuple[np.ndarray, list[int]] | None:
        """M with the bounds folded in, and the vector of each column; None where mu is infinite."""
        if self.leaks(moved):
            return None
        information = self._information(moved)
        if not np.isfinite(b).all():
            seen = np.abs(information).sum(axis=0)[~np.isfinite(b)] > 0
            if seen.any():
                return None
            b = np.where(np.isfinite(b), b, 0.0)
        vectors = [int(self.vectors[c]) for c in moved] if len(self.vectors) else []
        if len(set(zip(vectors, b.tolist(), strict=False))) > len(set(vectors)):
            raise InputError(
                f"bounds {b.tolist()} differ between parts of one vector {vectors}; the bound is "
                "that of the whole vector"
            )
        return information * np.outer(b, b), vectors


def _moved(columns: Sequence[int], bounds: Sequence[float]) -> tuple[list[int], np.ndarray]:
    """The columns that a record can move at all, and their bounds."""
    for bound in bounds:
        check_real("clip_norm or bound", bound)
    b = np.asarray(bounds, dtype=float)
    if len(b) != len(columns) or not (b >= 0).all():
        raise InputError(f"bounds {b.tolist()} must be one number >= 0 for each column")
    far = b[np.isfinite(b) & (b > 0) & ((b < _BOUNDS[0]) | (b > _BOUNDS[1]))]
    if far.size:
        raise InputError(
            f"clip_norm or bound {far[0]} must be 0, infinite or in [{_BOUNDS[0]}, "
            f"{_BOUNDS[1]}]; choose another unit for the gradients"
        )
    return [c for c, bound in zip(columns, b, strict=True) if bound > 0], b[b > 0]


def squared_joint_sensitivity(information: np.ndarray, vectors: Sequence[int] = ()) -> float:
    """Upper bound on mu^2, sum_cd M_cd <x_c, x_d> over vectors of norm 1 and of any dimension.

    The row sums of |M| are one certificate: signs may align. The best one is found from vectors x
    that are improved in turn, and made feasible by its largest eigenvalue, so that a poor search
    costs tightness, never validity.

    Args:
        information: (columns, columns), positive semidefinite.
        vectors: for each column the vector that it is a part of; a vector each when empty.
    """
    parts, of = _parts(information, vectors)
    row_sums = np.abs(information).sum(axis=1)
    sum_rule = float(sum(row_sums[at].max() for at in parts))
    found = _search(information, parts, of)
    if found is None:
        return sum_rule
    common, pull, slack = found
    return min(sum_rule, float(common.sum() + pull.sum() + len(parts) * slack))


def certificate(information: np.ndarray, vectors: Sequence[int] = ()) -> np.ndarray:
    """A lam with diag(lam_v(c)) >= M, which is verified: what each vector is charged on its own.

    A view whose M is below diag(lam) is a post-processing of releases of the contributions, one
    after the other, with independent noise of variance 1 / lam_v. So the columns of several units
    that take part independently can be accounted for apart, each by the sum of its own lam.

    Args:
        information: as for `squared_joint_sensitivity`.
        vectors: as there.

    Returns:
        (vectors,) in the ascending order of their numbers; the sum is the least that is found, and
        every rounding goes up.

    Source: that a Cholesky factorisation which succeeds after a small shift proves a matrix
    positive definite: J. W. Demmel, On floating point errors in Cholesky, LAPACK Working Note 14,
    1989.

    >>> certificate(np.diag([1.0, 4.0])).tolist()
    [1.0, 4.0]
    >>> lam = certificate(np.array([[1.0, -0.5], [-0.5, 1.0]]))
    >>> lam.round(6).tolist()
    [1.5, 1.5]
    """
    parts, of = _parts(information, vectors)
    k, eps = len(information), float(np.finfo(float).eps)
    if not k:
        return np.zeros(0)
    # Row sums that are rounded up; a row with one entry has no sum to round.
    lone = np.count_nonzero(information, axis=1) <= 1
    sums = np.abs(information).sum(axis=1) * np.where(lone, 1.0, 1.0 + 4.0 * k * eps)
    aligned = np.array([sums[at].max() for at in parts])
    found = _search(information, parts, of)
    if found is None:
        return aligned
    common, pull, slack = found
    slack = max(slack, 16.0 * (k + 2) * eps * float(np.diag(information).sum() + pull.sum()))
    for wider in (1.0, 1e1, 1e2, 1e3, 1e4):
        lam = np.nextafter(common + pull + wider * slack, np.inf)
        if lam.sum() >= aligned.sum():
            break
        if is_above(lam[of], information):
            return lam
    return aligned


def is_above(lam: np.ndarray, information: np.ndarray) -> bool:
    """Whether diag(lam) - M is proven to be positive semidefinite, all rounding counted against it.

    Args:
        lam: (columns,)
        information: (columns, columns) M.
    """
    k, eps = len(lam), float(np.finfo(float).eps)
    shift = 4.0 * (k + 2) * eps * float(lam.sum() + np.abs(np.diag(information)).sum())
    below = 0.5 * (information + information.T)
    try:
        np.linalg.cholesky(np.diag(lam - shift) - below)
    except np.linalg.LinAlgError:
        return False
    return True


_Parts = list[np.ndarray]


def _parts(information: np.ndarray, vectors: Sequence[int]) -> tuple[_Parts, np.ndarray]:
    """The columns of each vector, and for each column the position of its vector."""
    k = len(information)
    names, of = np.unique(np.asarray(vectors if len(vectors) else range(k)), return_inverse=True)
    return [np.flatnonzero(of == v) for v in range(len(names))], of


def _search(
    information: np.ndarray, parts: _Parts, of: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """What lam consists of, common + pull + slack; None where row sums are tight."""
    k = len(information)
    # What all parts of a vector have in common adds the same wherever the vector points.
    common = np.array([np.diag(information)[at].min() for at in parts])
    rest = information - np.diag(common[of])
    if len(parts) == k and not (rest < 0).any():  # all signs align: the sum rule is tight
        return None
    # The search: each vector in turn along the pull of all others, whose length is its lam.
    x = np.random.default_rng(0).normal(size=(k, min(k, math.isqrt(2 * k) + 2)))
    for at in parts:
        x[at] /= np.linalg.norm(x[at])
    pull = np.zeros(len(parts))
    for _ in range(_SWEEPS):
        before = pull.copy()
        for v, at in enumerate(parts):
            towards = rest[at] @ x  # the sum never falls, since M is semidefinite
            pull[v] = float(np.linalg.norm(towards))
            if pull[v] > 0:
                x[at] = towards / pull[v]
        if np.abs(pull - before).max(initial=0.0) <= 1e-12 * max(1.0, pull.max(initial=0.0)):
            break
    # The certificate: lam is raised by what it lacks to be above M, and so holds in any case.
    excess = float(np.linalg.eigvalsh(rest - np.diag(pull[of]))[-1])
    slack = max(0.0, excess) + 1e-12 * (np.abs(information).max() + pull.max())
    return common, pull, slack


# The matched filter: the most powerful test that a planted vector is in an adversary's view.
#
# A record that is planted along a direction u adds A_v c u to the view, one number c_k for each of
# its contributions. With S = B B^T the noise of the view and o what was observed less all that is
# known, in the direction u,
#
#     s = (A_v c)^T S^+ o  ~  N(0, nu^2) without the record, N(nu^2, nu^2) with it
#     nu^2 = c^T M c,  M = A_v^T S^+ A_v
#
# so s - nu^2 / 2 is the log-likelihood ratio (J. Neyman and E. Pearson 1933). The filter is W = S^+
# A_v, one column a contribution. Where a combination of messages cancels the noise and keeps a
# contribution, the test is perfect: `revealing` holds such combinations.

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MatchedFilter:
    """The filter of one view for some contributions.

    Attributes:
        weights: (messages, contributions) W, over the noise that is not cancelled.
        information: (contributions, contributions) W^T A_v.
        revealing: (combinations, messages) weights of messages whose noise cancels, though one of
            the contributions stays; empty where the noise protects all of them.
        revealed: (combinations, contributions) what stays of each.
    """

    weights: Array
    information: Array
    revealing: Array
    revealed: Array

    @property
    def is_perfect(self) -> bool:
        """Whether something is seen without noise."""
        return len(self.revealing) > 0


def matched_filter(view: View, columns: Sequence[int]) -> MatchedFilter:
    """The filter for contributions of one view.

    Args:
        view: (messages, contributions) and (messages, sources).
        columns: the contributions that a record changes.

    Raises:
        ValueError: a column that does not exist.

    Examples:
        Two messages of one contribution whose noise has correlation 1/2 say as much as 4/3 of one:
    """
    from scipy.sparse import csr_array, diags_array, eye_array, hstack

    A = csr_array(view.contributions, dtype=float)
    most = A.shape[1]
    for column in columns:
        within("column", column, f"[0, {most})", "columns count from 0")
    A, B = csr_array(A[:, list(columns)]), csr_array(view.noise, dtype=float)
    size = np.sqrt(_squares(A) + _squares(B))
    by = diags_array(1.0 / np.where(size > 0, size, 1.0)).tocsr()
    # Unit columns beside A turn into the combinations that the elimination makes of the messages.
    tagged = csr_array(hstack([by @ A, eye_array(A.shape[0], format="csr")]))
    factors = factor(tagged, csr_array(by @ B))
    wide = len(columns)
    whitened, combined = factors.whitened[:, :wide], factors.whitened[:, wide:]
    weights = (combined.T @ whitened).toarray() * by.diagonal()[:, None]
    shown, how = factors.clean[:, :wide].toarray(), factors.clean[:, wide:].toarray()
    # What is left of a contribution must be more than rounding of the combination.
    scale = np.abs(how).max(axis=1, initial=0.0)
    told = np.abs(shown).max(axis=1, initial=0.0) > 1e-9 * scale
    return MatchedFilter(
        weights=np.asarray(weights),
        information=np.asarray((whitened.T @ whitened).toarray()),
        revealing=how[told] * by.diagonal()[None, :],
        revealed=shown[told],
    )


def _squares(matrix: object) -> Array:
    return np.asarray(matrix.multiply(matrix).sum(axis=1)).ravel()  # type: ignore[attr-defined] # sparse
