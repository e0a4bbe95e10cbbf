"""What a recipient learns of a distant record where every step shrinks distances: steered runs.

    x_i <- sum_j W_ij m_j,    m_j = S_j(x_j) + [j = v] b g + s z_j

A record at agent v adds one clipped vector g to v's message in the rounds that use it. Run the same
with the record and without it, on the same batches of everybody else, and move the noise of the
second run, node by node, so that part of the difference between the two goes away. Where steps S_j
are gamma-Lipschitz, lengths of what is left obey, whatever the data are,

    r_t = gamma |W| rho_(t-1) + e_v [t uses the record],    rho_t >= r_t - c_t,    c_t, rho_t >= 0

with c_t the most that noise is moved. If rho is 0 at all that the recipient sees, both runs look
alike to it, and they differ by noise that is moved by at most c_t, a predictable shift: so the view
is mu-GDP, mu^2 = sum |c_t|^2 in units of that noise. Any rho >= 0 gives a valid mu: `steered_plan`
takes the cost of the one that a solver returned, never the solver's own word for it.

`late_mu` moves everything at one age h, the first at which the recipient can hear of the record.
Then the noise of round t is moved for the batch of round t - h alone, and Poisson sampling
amplifies (`docs/mathematics.md` has both proofs, and what they rest on).

| symbol   | name here | shape  | meaning                                                  |
|----------|-----------|--------|----------------------------------------------------------|
| W        | weights   | (A, A) | W[i, j]: weight that i gives to the message of j         |
| gamma    | gamma     | scalar | Lipschitz constant of every agent's step                 |
| rho      | -         | (T, A) | lengths of what is left of the difference after a round  |
| eta C    | -         | scalar | length of the record's vector in a round that uses it    |
| eta s    | -         | scalar | noise of a message in a round                            |
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, within

_MOST = 40_000  # agents times rounds


class Plan(NamedTuple):
    """By how much noise is moved, and what is left.

    Attributes:
        moved: c, (T, A), at least 0.
        left: rho, (T, A), at least 0.
        mu: of the run, at noise of standard deviation 1.
    """

    moved: NDArray[np.float64]
    left: NDArray[np.float64]
    mu: float


def steered_plan(
    weights: ArrayLike,
    *,
    victim: int,
    heard: Collection[int],
    rounds: int,
    final_models: bool = False,
    using: Collection[int] | None = None,
    gamma: float = 1.0,
) -> Plan:
    """All that a recipient sees of one record of the victim, in units of one round's noise.

    Args:
        weights: W, (A, A), of any signs; W[i, j] is the weight that i gives to j.
        victim: v.
        heard: agents whose messages the recipient sees, in every round.
        rounds: T.
        final_models: whether it sees every message of the last round besides.
        using: rounds, from 1, that use the record; all when None.
        gamma: of every step, at least 0.

    Raises:
        ValueError: numbers out of range.
    """
    from scipy.optimize import minimize
    from scipy.sparse import csr_array

    W = _absolute(weights)
    agents = len(W)
    _check(agents, victim=victim, rounds=rounds, gamma=gamma)
    step = csr_array(gamma * W)
    # rho, what goes on unseen, is 0 where a message is heard or a final model is seen.
    free = np.ones((rounds, agents), dtype=bool)  # where rho may be positive
    free[:, sorted(heard)] = False
    if final_models:
        free[-1] = False
    # A record enters at the victim alone, in the rounds that use it.
    source = np.zeros((rounds, agents))
    source[:, victim] = _entries(using, rounds)

    def moved(rho: NDArray[np.float64]) -> NDArray[np.float64]:
        """C before it is cut at 0, (T, A)."""
        arrived = source.copy()
        arrived[1:] += (step @ rho[:-1].T).T
        return np.asarray(arrived - rho)

    # The squared length of what is left to be seen, and its slope by the step's adjoint.
    def cost(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        rho = np.zeros((rounds, agents))
        rho[free] = flat
        c = np.maximum(moved(rho), 0.0)
        slope = -2.0 * c
        slope[:-1] += 2.0 * (step.T @ c[1:].T).T
        return float(np.square(c).sum()), slope[free]

    start = np.zeros((rounds, agents))
    left = np.zeros(agents)
    for t in range(rounds):  # nothing is moved but where it is seen
        left = np.where(free[t], step @ left + source[t], 0.0)
        start[t] = left
    best = start[free]
    # A convex problem within bounds; the start stays where the solver finds nothing better.
    if best.size:
        found = minimize(
            cost,
            best,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * best.size,
            options={"maxiter": 5_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-12},
        )
        if found.fun < cost(best)[0]:
            best = np.maximum(found.x, 0.0)
    # From the returned rho, whatever the solver says of it.
    rho = np.zeros((rounds, agents))
    rho[free] = best
    return Plan(np.maximum(moved(rho), 0.0), rho, math.sqrt(cost(best)[0]))


def late_age(weights: ArrayLike, *, victim: int, heard: Collection[int]) -> int | None:
    """The first age at which the recipient can hear of a record; None if it never does."""
    W = _absolute(weights) > 0
    _check(len(W), victim=victim, rounds=1, gamma=1.0)
    listed = sorted(heard)
    reached = np.zeros(len(W), dtype=bool)
    reached[victim] = True
    for age in range(len(W)):
        if reached[listed].any():
            return age
        reached = (W.astype(float) @ reached) > 0
    return None


def late_mu(
    weights: ArrayLike, *, victim: int, heard: Collection[int], gamma: float = 1.0
) -> float:
    """Mu of one round's batch, all of it moved away at one age; Poisson sampling amplifies.

    The smallest figure of the ages up to the first at which the recipient can hear of it; 1 where
    that is age 0, and 0 where it never hears of it.

    Args:
        weights: W, (A, A); W[i, j] is the weight that i gives to j.
        heard: agents whose messages the recipient sees.
        gamma: of every step.
    """
    _check(len(_absolute(weights)), victim=victim, rounds=1, gamma=gamma)
    last = late_age(weights, victim=victim, heard=heard)
    if last is None:
        return 0.0
    W = _absolute(weights)
    spread = np.zeros(len(W))
    spread[victim] = 1.0
    sizes = [1.0]
    for _ in range(last):
        spread = gamma * (W @ spread)
        sizes.append(float(np.linalg.norm(spread)))
    return min(sizes)


def heard_by(weights: ArrayLike, agents: Collection[int]) -> frozenset[int]:
    """The agents whose messages some agents see: their own and those of all that they hear."""
    W = _absolute(weights)
    listed = sorted(agents)
    return frozenset(np.flatnonzero(W[listed].any(axis=0)).tolist()) | frozenset(listed)


def _absolute(weights: ArrayLike) -> NDArray[np.float64]:
    W = np.abs(np.asarray(weights, dtype=np.float64))
    if W.ndim != 2 or W.shape[0] != W.shape[1] or not W.size or not np.isfinite(W).all():
        raise InputError(f"weights of shape {W.shape} must be a square matrix of finite numbers")
    return W


def _check(agents: int, *, victim: int, rounds: int, gamma: float) -> None:
    within("victim", victim, f"[0, {agents - 1}]")
    if rounds < 1 or agents * rounds > _MOST:
        raise InputError(
            f"{agents} agents times {rounds} rounds must lie in 1..{_MOST}; take fewer rounds"
        )
    within("gamma", gamma, "[0, inf)")


def _entries(using: Collection[int] | None, rounds: int) -> NDArray[np.float64]:
    """(T,) length of the record's vector in each round: 1, or 0 where it is not used."""
    if using is None:
        return np.ones(rounds)
    outside = [t for t in using if not 1 <= t <= rounds]
    if outside:
        raise InputError(f"round {outside[0]} of using must lie in 1..{rounds}")
    used = np.zeros(rounds)
    used[[t - 1 for t in using]] = 1.0
    return used
