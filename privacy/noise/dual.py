"""The solver behind all designs: Newton steps on the dual, to a certified gap.

    C. A. Choquette-Choo et al. "(Amplified) Banded Matrix Factorization: A unified approach to
        private training". NeurIPS 2023: one matrix over time, with participation patterns.
    Here: one precision matrix an eigenspace of W, and a constraint an agent.

    minimise    sum_k c_k tr(K_k P_k^-1)                    over P_k, T x T, positive definite
    subject to  M_i = sum_k w_ik P_k  <=  diag(lam_i),  sum of lam_i over each pattern <= 1

M_i holds the squared sensitivities over noise of a record of agent i, and the constraint says that
a record that is used in the rounds of one pattern costs mu <= 1, whatever its gradients are: by
duality of semidefinite programs it says exactly that, since gradients have many coordinates.

One matrix L_i an agent, with no entries between patterns and one value on the diagonal of each:

    L~_k = sum_i w_ik L_i / sum_i w_ik,     F_k' F_k = K_k,     F_k L~_k F_k' = U s^2 U'
    P_k  = F_k' U s^-1 U' F_k               is best for these L
    (sum_k c_k tr s)^2 / mean_i sum_g nu_ig   bounds every feasible cost from below

with nu_ig the diagonal of L_i in pattern g: tr(K P^-1) + tr(L~ P) >= 2 tr s for each eigenspace,
and tr(L_i M_i) <= sum_g nu_ig wherever L_i >= 0. Where all agents are alike one L stands for all,
M may be raised to diag(lam), and L_i >= 0 holds by itself; else a barrier keeps L_i positive, and
what it adds to M_i is what M_i stays below its bound by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .correlated import Matrix

Array = NDArray[np.float64]
_GAP = 1e-9
_GAP_OF_BARRIER = 1e-5
_STEPS, _STEPS_OF_BARRIER = 60, 90
_INNER, _INNER_OF_BARRIER = 300, 60  # conjugate gradients in a Newton step
_START = 8  # fixed-point steps before the first Newton step
_WORST = 0.05  # a gap above this is no design


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Optimum:
    """Precision matrices with their certificate.

    Attributes:
        precisions: (modes, T, T), P_k; a record costs at most mu 1 for noise multiplier 1.
        multipliers: (constraints, T, T), the dual matrices L_i.
        cost: sum_k c_k tr(K_k P_k^-1).
        lower_bound: proven for every noise with one precision matrix an eigenspace.
    """

    precisions: Array
    multipliers: Array
    cost: float
    lower_bound: float

    @property
    def gap(self) -> float:
        """Relative distance from the optimum at most; 0 or below is rounding."""
        return self.cost / self.lower_bound - 1.0


class _Point(NamedTuple):
    """The dual at some L."""

    value: float
    L: Array  # (I, T, T)
    s: Array  # (modes, T)
    G: Array  # (modes, T, T), U' F
    nu: Array  # (I, T), the diagonals of L
    inverse: Array | None  # (I, T, T), of L; None without a barrier


def optimum(grams: Array, shares: Matrix, patterns: Sequence[NDArray[np.int64]]) -> Optimum:
    """The best precision matrices.

    Args:
        grams: K_k, (modes, T, T), positive definite.
        shares: w_ik, (constraints, modes), at least 0; rows sum to 1.
        patterns: the rounds of each pattern; every round is in one of them.

    Raises:
        ValueError: no design within 5 % of its bound was found.

    >>> found = optimum(np.array([[[2.0, 1.0], [1.0, 1.0]]]), np.ones((1, 1)), [np.array([0, 1])])
    >>> round(found.cost, 4), found.gap < 1e-9  # both rounds use the record: independent noise
    (5.8284, True)
    """
    # With several constraints Newton's method follows a barrier.
    problem = _Problem(grams, shares, patterns)
    barrier = len(shares) > 1
    mu = problem.first_barrier if barrier else 0.0
    at = problem.at(problem.start, mu)
    if at is None:
        raise InputError(
            f"weights of {len(grams)} eigenspaces have no design; choose another graph"
        )
    best: Optimum | None = None
    for _ in range(_STEPS_OF_BARRIER if barrier else _STEPS):
        found = problem.primal(at, mu)
        best = found if best is None or found.gap < best.gap else best
        if best.gap < (_GAP_OF_BARRIER if barrier else _GAP):
            break
        step, slope = problem.newton(at, mu, exact=math.sqrt(abs(found.gap)))
        after, taken = problem.search(at, step, slope, mu)
        if after is None:
            break
        at = after
        # The barrier falls once the step is nearly full and little is left to gain at this one.
        if barrier and taken > 0.5 and slope < problem.close * mu:
            mu *= 0.1
            at = problem.at(at.L, mu) or at
    if best is None or not best.gap < _WORST:
        gap = math.inf if best is None else best.gap
        raise InputError(
            f"gap={gap:.2g} of the design must be below {_WORST}; take fewer rounds, or a graph "
            "whose agents are alike"
        )
    return best


class _Problem:
    """The dual of one design: its values, gradients and curvature."""

    def __init__(self, grams: Array, shares: Matrix, patterns: Sequence[NDArray[np.int64]]) -> None:
        self.c = shares.mean(axis=0)  # (modes,)
        self.w = shares
        self.of = shares / shares.sum(axis=0)
        self.F = np.linalg.cholesky(grams).transpose(0, 2, 1)
        rounds = grams.shape[1]
        self.rounds = np.arange(rounds)
        self.pattern = np.empty(rounds, dtype=int)
        for number, taken in enumerate(patterns):
            self.pattern[taken] = number
        self.size = np.bincount(self.pattern)[self.pattern]  # (T,)
        self.together = self.pattern[:, None] == self.pattern[None]
        self.target = np.diag(1.0 / self.size)
        self.close = 0.3 * rounds
        # diag(v) with v = diag((v^.5 K v^.5)^.5), the optimum where patterns are single rounds
        v, mean = np.ones(rounds), np.einsum("k,kst->st", self.c, grams)
        for _ in range(_START):
            root = np.sqrt(v)
            e, vectors = np.linalg.eigh(root[:, None] * mean * root)
            v = self._over(np.square(vectors) @ np.sqrt(np.maximum(e, 0.0)))
        self.start = np.repeat(np.diag(v)[None], len(shares), axis=0)
        self.first_barrier = 0.1 * float(v.mean()) / int(self.size.max())

    def _over(self, values: Array) -> Array:
        """Each value replaced by the sum over its pattern."""
        return np.asarray(np.bincount(self.pattern, weights=values)[self.pattern], dtype=np.float64)

    def _allowed(self, matrices: Array) -> Array:
        """The part within patterns, with the mean of each pattern on the diagonal."""
        found = (matrices + matrices.transpose(0, 2, 1)) * self.together / 2.0
        for of in found:
            of[self.rounds, self.rounds] = self._over(of.diagonal()) / self.size
        return found

    def at(self, L: Array, mu: float) -> _Point | None:
        """The dual at L; nothing where L is outside of its domain."""
        nu = L[:, self.rounds, self.rounds]
        if not nu.min() > 0:
            return None
        mixed = np.einsum("ik,ist->kst", self.of, L)
        squares, U = np.linalg.eigh(self.F @ mixed @ self.F.transpose(0, 2, 1))
        if not squares.min() > 0:
            return None
        s = np.sqrt(squares)
        value = 2.0 * float(self.c @ s.sum(axis=1)) - float((nu / self.size).sum()) / len(L)
        inverse = None
        if mu > 0:
            try:
                root = np.linalg.cholesky(L)
                half = np.linalg.inv(root)
            except np.linalg.LinAlgError:
                return None
            inverse = half.transpose(0, 2, 1) @ half
            value += 2.0 * mu * float(np.log(root[:, self.rounds, self.rounds]).sum()) / len(L)
        G = np.asarray(U.transpose(0, 2, 1) @ self.F, dtype=np.float64)
        return _Point(value, L, s, G, nu, inverse)

    def _moved(self, at: _Point, mu: float) -> tuple[Array, Array]:
        """P_k, (modes, T, T), and M_i with what the barrier adds, (I, T, T)."""
        P = at.G.transpose(0, 2, 1) @ (at.G / at.s[:, :, None])
        M = np.einsum("ik,kst->ist", self.w, P)
        return P, M if at.inverse is None else M + mu * at.inverse

    def primal(self, at: _Point, mu: float) -> Optimum:
        """P scaled until each record costs at most 1, and the bound that L proves."""
        P, M = self._moved(at, mu)
        costs = (np.abs(M) * self.together).sum(axis=2)  # diag(costs) >= M within a pattern
        scale = max(float(self._over(of).max()) for of in costs)
        total = float(self.c @ at.s.sum(axis=1))
        return Optimum(
            precisions=P / scale,
            multipliers=at.L,
            cost=scale * total,
            lower_bound=total**2 / (float((at.nu / self.size).sum()) / len(at.L)),
        )

    def newton(self, at: _Point, mu: float, *, exact: float) -> tuple[Array, float]:
        """A step of L by conjugate gradients, and the slope along it."""
        count = len(at.L)
        unit = np.sqrt(at.nu[:, :, None] * at.nu[:, None, :])  # entries relative to the diagonal
        inverse = at.inverse
        down = at.G.transpose(0, 2, 1)
        weight = 1.0 / (at.s[:, :, None] * at.s[:, None, :] * (at.s[:, :, None] + at.s[:, None, :]))

        def curvature(step: Array) -> Array:
            change = step * unit
            turned = at.G @ np.einsum("ik,ist->kst", self.of, change) @ down * weight
            moved = np.einsum("ik,kst->ist", self.w, down @ turned @ at.G)
            if inverse is not None:
                moved = moved + mu * inverse @ change @ inverse
            return self._allowed(moved) * unit / count

        gradient = self._allowed(self._moved(at, mu)[1] - self.target) * unit / count
        most = _INNER if inverse is None else _INNER_OF_BARRIER
        step = _solved(curvature, gradient, share=min(0.1, exact), most=most)
        return step * unit, float((gradient * step).sum())

    def search(
        self, at: _Point, step: Array, slope: float, mu: float
    ) -> tuple[_Point | None, float]:
        """The first of 1, 1/2, 1/4, .. steps that gains enough."""
        length = 1.0
        while length > 1e-10:
            after = self.at(at.L + length * step, mu)
            enough = at.value + 0.1 * length * slope - 1e-13 * abs(at.value)
            if after is not None and after.value >= enough:
                return after, length
            length /= 2.0
        return None, 0.0


def _solved(
    curvature: Callable[[Array], Array], gradient: Array, *, share: float, most: int
) -> Array:
    """Conjugate gradients, until the residual is a share of the first one."""
    step, residual = np.zeros_like(gradient), gradient.copy()
    direction, size = residual.copy(), float(np.vdot(residual, residual))
    enough = share**2 * size
    for _ in range(most):
        if not size > enough:
            break
        turned = curvature(direction)
        along = float(np.vdot(direction, turned))
        if not along > 0:
            break
        step += size / along * direction
        residual -= size / along * turned
        left = float(np.vdot(residual, residual))
        direction = residual + left / size * direction
        size = left
    return step
