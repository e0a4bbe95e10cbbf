"""The matched filter: the most powerful test that a planted vector is in an adversary's view.

A record that is planted along a direction u adds A_v c u to the view, one number c_k for each of
its contributions. With S = B B^T the noise of the view and o what was observed less all that is
known, in the direction u,

    s = (A_v c)^T S^+ o  ~  N(0, nu^2) without the record, N(nu^2, nu^2) with it
    nu^2 = c^T M c,  M = A_v^T S^+ A_v

so s - nu^2 / 2 is the log-likelihood ratio (J. Neyman and E. Pearson 1933). The filter is
W = S^+ A_v, one column a contribution. Where a combination of messages cancels the noise and keeps
a contribution, the test is perfect: `revealing` holds such combinations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._validate import within
from .elimination import factor
from .view import View

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

        >>> noise = np.linalg.cholesky(np.array([[1.0, 0.5], [0.5, 1.0]]))
        >>> view = View(contributions=np.ones((2, 1)), noise=noise)
        >>> found = matched_filter(view, [0])
        >>> round(float(found.information[0, 0]), 6), found.weights.round(6).ravel().tolist()
        (1.333333, [0.666667, 0.666667])
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
