"""Noise that is correlated across agents: it hides each message and cancels when messages mix.

A. Rodio, Z. Chen, E. G. Larsson, "Whisper D-SGD: Correlated Noise Across Agents for Differentially
Private Decentralized Learning", arXiv 2501.14644 (from its second version on CorN-DSGD,
"Optimizing Privacy-Utility Trade-off in Decentralized Learning with Generalized Correlated Noise").
Y. Allouah, A. Koloskova, A. El Firdoussi, M. Jaggi, R. Guerraoui, "The Privacy Power of Correlated
Noise in Decentralized Learning" (DECOR), ICML 2024, arXiv 2405.01031.

    a round      x <- W (x - eta (g + v)),  v ~ N(0, R) across agents, for each coordinate alike
    LDP          R = a I
    DECOR        R = a I + c L:  own noise, and one secret seed a link, added at one end and
                 subtracted at the other
    Whisper      R minimises tr(W R W^T)  subject to  [R^-1]_ii <= bound for every agent i

The solver works on the dual: F^T F = M (F = W for one round), one weight lam_i > 0 an agent,
l = diag(lam)^.5.

    U s V^T = (F l)^T            singular values, U (A, A)
    R^-1    = l^-1 U s U^T l^-1  (then R M R = l^2: stationary)
    d_i     = [R^-1]_ii;  R d_max is feasible for bound 1 and costs sum(s) d_max
    lower bound on every feasible cost: sum(s)^2 / sum(lam)
    log lam <- log lam + K^-1 (lam d log d),    K = -d(lam d log d)/d(log lam) at d = 1
             = sum_kl (U_ik U_jk) (U_il U_jl) s_k s_l / (s_k + s_l)

| symbol | name here                     | shape  | unit   | meaning                            |
|--------|-------------------------------|--------|--------|------------------------------------|
| W      | weights                       | (A, A) | -      | W[i, j]: weight i gives to j       |
| R      | covariance                    | (A, A) | norm^2 | noise on sums of clipped gradients |
| a, c   | local_variance, pair_variance | scalar | norm^2 | DECOR's two kinds of noise         |
| L      | Laplacian of the links        | (A, A) | -      | self-loops do not count            |
| M      | F^T F                         | (A, A) | -      | cost of covariance: tr(M R)        |
| eta    | step_sizes                    | (T,)   | -      | learning rates of the rounds       |

What R guarantees, and for whom: an eavesdropper reads g + v of all agents. One record changes one
row of g by at most clip_norm (twice that if the record is replaced), so a round is
mu-GDP for agent i with mu = clip_norm * sqrt([R^-1]_ii) <= clip_norm * sqrt(bound), and rounds add
up as mu^2. This holds for an adversary that knows *no* noise. An agent that can compute its own row
of Whisper's v from a common seed computes everybody's: against it epsilon is infinite. A DECOR
agent knows its own noise and the seeds of its own links. If an agent drops out of a round, what
its noise was to cancel stays, and what hid its neighbours is gone: R speaks about full attendance.

Where we differ from the paper: the printed constraint has its inequality reversed; the dual is
solved by Newton steps to a certified gap, and the covariance is scaled until the constraint holds,
where a general semidefinite solver returns matrices that violate it slightly. The cost can be that
of the final models (`rounds`); the papers' cost, one round, is greedy. Calibration of the bound is
left to the accountant: bound = 1 / noise_multiplier^2 with R in units of clip_norm^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError, InputTypeError, check_real, whole, within

# What a covariance of noise across agents does: whom it hides, and what of it reaches the models.
#
# Every round the agents add v ~ N(0, R) to their messages, for each coordinate alike, and mix:
# x <- W (x - eta (g + v)).
#
# | symbol | name here  | shape  | unit   | meaning                              |
# |--------|------------|--------|--------|--------------------------------------|
# | W      | weights    | (A, A) | -      | W[i, j]: weight i gives to j         |
# | R      | covariance | (A, A) | norm^2 | noise on the sums of clipped gradients |
# | M      | F^T F      | (A, A) | -      | cost of covariance: tr(M R)          |
# | eta    | step_sizes | (T,)   | -      | learning rates of the rounds         |

Matrix = NDArray[np.float64]

_LARGEST = 1e150  # of a matrix; squares of what lies beyond are no floats
_ROUNDING = 1e-12  # of an agent's variance; noise below it is none


def victim_information(covariance: ArrayLike) -> Matrix:
    """[R^-1]_ii: squared sensitivity over noise of each agent's record, per clip_norm^2.

    Args:
        covariance: R, (A, A), symmetric and positive semidefinite, in norm^2.

    Returns:
        (A,) in 1 / norm^2; mu of a round is clip_norm times its square root, for an eavesdropper
        who knows no noise. Infinite where the noise of a combination of messages cancels.

    Raises:
        ValueError: If covariance is not a covariance.

    >>> victim_information(np.diag([1.0, 4.0])).tolist()
    [1.0, 0.25]
    """
    R = _covariance(covariance)
    std = np.sqrt(R.diagonal())
    scale = np.where(std > 0, std, 1.0)  # the verdict must not depend on the agents' units
    values, vectors = np.linalg.eigh(R / np.outer(scale, scale))
    live = values > _ROUNDING * len(R)
    if live.all():
        root = np.linalg.inv(np.linalg.cholesky(R / np.outer(scale, scale)))
        found = np.square(root).sum(axis=0)
    else:
        found = np.square(vectors[:, live]) @ (1.0 / values[live])
    with np.errstate(over="ignore"):  # hardly any noise: infinite
        found = found / scale / scale
    hidden = np.square(vectors[:, ~live]).sum(axis=1)
    return np.where(hidden > _ROUNDING, math.inf, found)


def factor(covariance: ArrayLike) -> Matrix:
    """B with B B^T = R, the symmetric root: noise B z of unit normals z has covariance R.

    Every source enters the rows of all agents that are correlated with each other, so a trace that
    takes an agent to know the sources in its row concludes, rightly for a common seed, that each
    knows all of them. For DECOR's pairwise seeds use `decor_factor`.

    Args:
        covariance: R, (A, A), symmetric and positive semidefinite, in norm^2.

    Returns:
        B, (A, A), in norm; mix noise with it in float64.

    Raises:
        ValueError: If covariance is not a covariance.

    >>> factor([[5.0, 4.0], [4.0, 5.0]]).round(9).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    R = _covariance(covariance)
    if np.count_nonzero(R) == np.count_nonzero(R.diagonal()):
        return np.diag(np.sqrt(R.diagonal()))  # independent noise: each agent knows its own alone
    values, vectors = np.linalg.eigh(R)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def noise_floor(
    weights: ArrayLike, covariance: ArrayLike, *, rounds: int = 1, step_sizes: Sequence[float] = ()
) -> float:
    """Noise energy in the models after mixing, per coordinate, all agents together.

    With learning rates eta_t the models after T rounds carry the noise
    -sum_t eta_t W^(T-t+1) v_t (exactly, where gradients do not depend on the models). Its expected
    squared norm over agents, divided by sum_t eta_t^2, is

        sum_t eta_t^2 tr(W^k R (W^k)^T) / sum_t eta_t^2,   k = T - t + 1;   tr(W R W^T) for T = 1.

    Args:
        weights: W, (A, A); symmetric if rounds > 1.
        covariance: R, (A, A), in norm^2.
        rounds: T >= 1.
        step_sizes: eta_1 .. eta_T; all equal if not given.

    Returns:
        The energy, in norm^2. For a doubly stochastic W it is at least 1 / (A bound), what one
        server would have to add.

    Raises:
        ValueError: If shapes disagree, a number is out of range or covariance is none.
        TypeError: If rounds is not an integer, or a value is no number.

    >>> W = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> noise_floor(W, np.eye(2)), round(noise_floor(W, np.eye(2), rounds=100), 5)
    (1.25, 1.00333)
    """
    cost = cost_factor(weights, rounds=rounds, step_sizes=step_sizes)
    R = _covariance(covariance)
    if R.shape != cost.shape:
        raise InputError(f"covariance {R.shape} and weights {cost.shape} must have the same shape")
    return float(np.vdot(cost @ R, cost))


def cost_factor(weights: ArrayLike, *, rounds: int, step_sizes: Sequence[float]) -> Matrix:
    """F with F^T F = M; never M itself, whose small eigenvalues would be lost in rounding."""
    W = square_matrix("weights", weights)
    whole("rounds", rounds, "[1, inf)")
    for step_size in step_sizes:
        check_real("step size", step_size)
    eta = np.asarray(step_sizes if len(step_sizes) else np.ones(rounds), dtype=np.float64)
    if eta.shape != (rounds,) or not (np.isfinite(eta) & (eta >= 0)).all() or not eta.any():
        raise InputError(
            f"step_sizes of length {len(eta)} must be rounds={rounds} numbers >= 0, not all 0"
        )
    if rounds == 1:
        return W
    if not np.allclose(W, W.T, rtol=0, atol=1e-12):
        raise InputError(
            f"weights must be symmetric for rounds={rounds}; symmetrise W or use rounds=1"
        )
    values, vectors = np.linalg.eigh(W)
    if np.abs(values).max() > 1 + 1e-9:
        raise InputError(
            f"weights has eigenvalue {values[np.abs(values).argmax()]:.6g}, outside [-1, 1]; "
            "rows of a mixing matrix sum to 1"
        )
    shares = np.square(eta / eta.max())
    squares = np.square(values)
    # Noise of round t is mixed T - t + 1 times: the first round is the highest power.
    energy = squares * np.polyval(shares / shares.sum(), squares)
    return np.sqrt(energy)[:, None] * vectors.T


def square_matrix(name: str, matrix: ArrayLike) -> Matrix:
    """A float64 copy of a finite (A, A) matrix; TypeError or ValueError for anything else."""
    given = np.asarray(matrix)
    if given.dtype.kind not in "biuf":
        raise InputTypeError(f"{name} must hold real numbers, not {given.dtype}")
    found = np.array(given, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not found.size:
        raise InputError(
            f"{name} of shape {found.shape} must be square, one row and column an agent"
        )
    if not np.isfinite(found).all():
        wrong = found[~np.isfinite(found)][0]
        raise InputError(f"{name} holds {wrong}, which is not finite; every entry is a number")
    if not (largest := float(np.abs(found).max())) <= _LARGEST:
        raise InputError(
            f"{name} holds {largest}, which must be at most {_LARGEST}; choose another unit"
        )
    return found


def _covariance(matrix: ArrayLike) -> Matrix:
    R = square_matrix("covariance", matrix)
    size = float(np.abs(R).max())
    if np.abs(R - R.T).max() > _ROUNDING * size:
        raise InputError("covariance must be symmetric; average it with its transpose")
    lowest = float(np.linalg.eigvalsh(R).min())
    if lowest < -_ROUNDING * len(R) * size:
        raise InputError(
            f"covariance has eigenvalue {lowest:.3g} and must have none below 0; no noise has it"
        )
    return R


_RIDGE = 1e-9  # of M's largest eigenvalue; costs full averaging of A agents 3e-5 A of its optimum
_SINGULAR = 1e-6  # of F's largest singular value; below it R's condition makes the bound inexact
_GAP = 1e-11
_MOST_RATIO = 1e8  # of variances; a 32-bit message then rounds by 1e-3 of own noise
_STEPS = 200  # 6 to 12 are usual
_BOUNDS = (1e-100, 1e100)  # of a bound or a ridge, which the covariance is scaled by
_LONGEST = 4.0  # of a Newton step, in log lam


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WhisperNoise:
    """An optimised covariance with its certificate.

    Attributes:
        covariance: R, (A, A), read-only; variance per coordinate on the sums of clipped gradients.
        bound: the largest [R^-1]_ii, in 1 / norm^2.
        objective: tr(M R), the expected noise energy per coordinate, all agents together.
        gap: proven relative distance of the (ridged) objective from the optimum, >= 0 up to
            rounding.
        iterations: Newton steps taken.
        ridge: what was added to M's diagonal; 0 when W is not singular.
    """

    covariance: Matrix
    bound: float
    objective: float
    gap: float
    iterations: int
    ridge: float

    def __post_init__(self) -> None:
        """Check what later figures rest on."""
        largest = float(victim_information(self.covariance).max())
        if not largest <= self.bound * (1 + 1e-9):
            raise InputError(
                f"largest [R^-1]_ii = {largest} exceeds bound={self.bound}; multiply the "
                "covariance by their ratio"
            )
        self.covariance.setflags(write=False)


def decor_covariance(weights: ArrayLike, *, local_variance: float, pair_variance: float) -> Matrix:
    """R = a I + c L: independent noise, and noise that cancels over each link.

    Args:
        weights: W or an adjacency matrix, (A, A); a link is where an entry off the diagonal is not
            zero, in both directions. The sizes of the entries do not matter.
        local_variance: a, variance of an agent's own noise, in norm^2, >= 0; with 0 the sum of all
            messages is free of noise and `victim_information` is infinite.
        pair_variance: c, variance of the noise of one link, in norm^2, >= 0.

    Returns:
        R, (A, A).

    Raises:
        ValueError: If weights is not square and finite, a link has one direction only, or a
            variance is negative or not finite.
        TypeError: If a value is no number.

    Source: Allouah et al. 2024.

    >>> R = decor_covariance(np.ones((3, 3)), local_variance=1.0, pair_variance=2.0)
    >>> R[0].tolist(), round(2 * float(victim_information(R)[0]) ** 0.5, 6)  # mu for 2C, C=1
    ([5.0, -2.0, -2.0], 1.309307)
    """
    _check_variances(local_variance, pair_variance)
    incidence = _incidence(weights)
    laplacian = incidence @ incidence.T
    return local_variance * np.eye(len(laplacian)) + pair_variance * laplacian


def decor_factor(weights: ArrayLike, *, local_variance: float, pair_variance: float) -> Matrix:
    """The noise sources behind `decor_covariance`, one column each.

    Args:
        weights: W or an adjacency matrix, (A, A), with links in both directions.
        local_variance: a, in norm^2, >= 0.
        pair_variance: c, in norm^2, >= 0.

    Returns:
        B, (A, A + links), with B B^T = R: first every agent's own source, then one source a link
        i < j in lexicographic order, added by i and subtracted by j. Exactly the agents whose rows
        a column enters know that source.

    Raises:
        ValueError: As `decor_covariance`.

    >>> decor_factor(np.ones((2, 2)), local_variance=1.0, pair_variance=4.0).tolist()
    [[1.0, 0.0, 2.0], [0.0, 1.0, -2.0]]
    """
    _check_variances(local_variance, pair_variance)
    incidence = _incidence(weights)
    own = math.sqrt(local_variance) * np.eye(len(incidence))
    return np.hstack([own, math.sqrt(pair_variance) * incidence])


def whisper_covariance(
    weights: ArrayLike,
    *,
    bound: float,
    ridge: float | None = None,
    rounds: int = 1,
    step_sizes: Sequence[float] = (),
) -> Matrix:
    """The covariance that hides every agent equally well and costs least after mixing.

    Minimises `noise_floor(weights, R, rounds=rounds, step_sizes=step_sizes)` over all covariances
    R with [R^-1]_ii <= bound. At the optimum every agent's constraint is tight; within the gap an
    agent that hardly matters to the cost may be hidden better than that.

    Args:
        weights: W, (A, A); it need not be symmetric for one round.
        bound: largest [R^-1]_ii, in 1 / norm^2, > 0: mu^2 of one round per clip_norm^2.
        ridge: added to M's diagonal (largest eigenvalue 1 for a mixing matrix). A singular W mixes
            some noise away completely, so that ever more of it pays off and no optimum is
            attained; the ridge keeps R finite. It never weakens the constraint. By default 1e-9 of
            M's largest eigenvalue where W is singular, else 0. A larger ridge means less noise in
            the messages, where float32 loses the cancelling digits.
        rounds: 1 is the papers' cost, tr(W R W^T); larger values count what noise of all rounds
            reaches the final models.
        step_sizes: learning rate of each round, in order; all equal if not given.

    Returns:
        R, (A, A), in norm^2. max [R^-1]_ii is not above bound and within 1e-12 of it, or within
        rounding (1e-16 times the condition number of R) where that is larger: singular W.

    Raises:
        ValueError: If weights is not square and finite, a number is out of range, W is not
            symmetric for rounds > 1, or ridge leaves M singular.
        TypeError: If rounds is not an integer, or a value is no number.
        ValueError: If the gap stays above 1e-11.

    Source: Rodio et al. 2025, with the inequality the right way round.

    >>> W = np.array([[0.7, 0.3, 0.0], [0.3, 0.4, 0.3], [0.0, 0.3, 0.7]])
    >>> R = whisper_covariance(W, bound=1.0)
    >>> round(noise_floor(W, R), 6), round(noise_floor(W, np.eye(3)), 2)
    (1.182639, 1.5)
    >>> np.linalg.inv(R).diagonal().round(9).tolist()
    [1.0, 1.0, 1.0]
    """
    return optimise_covariance(
        weights, bound=bound, ridge=ridge, rounds=rounds, step_sizes=step_sizes
    ).covariance


def optimise_covariance(
    weights: ArrayLike,
    *,
    bound: float,
    ridge: float | None = None,
    rounds: int = 1,
    step_sizes: Sequence[float] = (),
) -> WhisperNoise:
    """`whisper_covariance` with its certificate; arguments and errors are the same.

    >>> found = optimise_covariance(np.full((4, 4), 0.25), bound=1.0)  # singular
    >>> found.gap < 1e-11, found.ridge, round(found.objective, 3)  # no R does better than 1/4
    (True, 1e-09, 0.25)
    """
    check_real("bound", bound)
    if not _BOUNDS[0] <= bound <= _BOUNDS[1]:
        raise InputError(
            f"bound={bound} must lie in [{_BOUNDS[0]}, {_BOUNDS[1]}]; it is (mu / clip_norm)^2 of "
            "one round"
        )
    cost = cost_factor(weights, rounds=rounds, step_sizes=step_sizes)
    added = _checked_ridge(cost, ridge)
    ridged = np.vstack([cost, math.sqrt(added) * np.eye(len(cost))]) if added else cost
    shape, lower, iterations = _solve(ridged)
    R = _scaled(shape, bound)
    achieved = float(np.vdot(ridged @ R, ridged))
    return WhisperNoise(
        covariance=R,
        bound=bound,
        objective=float(np.vdot(cost @ R, cost)),
        gap=achieved * bound / lower - 1.0,
        iterations=iterations,
        ridge=added,
    )


def _solve(cost: Matrix) -> tuple[Matrix, float, int]:
    """R up to scale, a lower bound on its cost when max [R^-1]_ii = 1, and the steps taken."""
    log_lam = np.zeros(cost.shape[1])
    gap = last = math.inf
    for step in range(1, _STEPS + 1):
        # The covariance that is best for these weights of the agents, and the bound it proves.
        root = np.exp(log_lam / 2)
        _, s, v = np.linalg.svd(cost * root, full_matrices=False)
        U = v.T
        lam_d = np.square(U) @ s  # (A,)
        d = lam_d / root**2
        lower = s.sum() ** 2 / np.square(root).sum()
        gap = s.sum() * d.max() / lower - 1.0
        if gap <= _GAP:
            shape = (root[:, None] * U / s) @ (U.T * root)
            return (shape + shape.T) / 2, float(lower), step
        # A Newton step of the weights: more for agents that are hidden too little.
        slack = np.log(d * np.square(root).sum() / lam_d.sum())  # 0 where the mean bound is met
        change = 2.0 * slack  # K <= diag(lam d) / 2, so this never overshoots near the optimum
        if gap < last:
            change = np.linalg.solve(_curvature(U, s), lam_d * slack)
        log_lam += change * min(1.0, _LONGEST / float(np.abs(change).max()))
        last = gap
    raise InputError(
        f"gap={gap:.1e} after {_STEPS} steps must fall below {_GAP}; pass a larger ridge"
    )


def _curvature(U: Matrix, s: Matrix) -> Matrix:
    """K, from s t / (s + t) = integral of s e^(-s x) t e^(-t x), by the trapezoid in log x.

    Directly it would take A^4 operations. A step of 1 is off by less than 1e-3 for any s and t,
    and every term is positive semidefinite (a Schur square).
    """
    lowest, highest = -math.log(2 * s.max()) - 8.0, -math.log(2 * s.min()) + 2.5
    K = np.zeros_like(U)
    for x in np.exp(np.arange(lowest, highest, 1.0)):
        K += x * np.square((U * (s * np.exp(-s * x))) @ U.T)
    return K


def _scaled(shape: Matrix, bound: float) -> Matrix:
    """R with max [R^-1]_ii = bound as evaluated on R's own entries, never above it.

    Two ways of inverting R differ by its condition number in units of rounding; the larger counts.
    """
    R = shape * (_largest_information(shape) / bound)
    margin, excess = 2e-13, math.inf
    for _ in range(40):
        excess = _largest_information(R) / bound
        if 1 - 4 * margin <= excess <= 1:
            return R
        R = R * (excess * (1 + 2 * margin))
        margin *= 1.3  # to the size of the rounding, which each multiplication draws anew
    raise InputError(
        f"[R^-1]_ii / bound = {excess} cannot be brought to 1 within rounding; pass a larger ridge"
    )


def _largest_information(R: Matrix) -> float:
    inverse = np.linalg.inv(R).diagonal()
    return float(max(victim_information(R).max(), inverse.max()))


def _checked_ridge(cost: Matrix, ridge: float | None) -> float:
    singular = np.linalg.svd(cost, compute_uv=False)
    largest, smallest = float(singular[0]), float(singular[-1])
    if largest == 0:
        raise InputError("weights is zero; nothing that is sent arrives")
    if ridge is None:
        return 0.0 if smallest >= _SINGULAR * largest else _RIDGE * largest**2
    check_real("ridge", ridge)
    if not 0 <= ridge <= _BOUNDS[1]:
        raise InputError(
            f"ridge={ridge} must lie in [0, {_BOUNDS[1]}]; leave it out to have it set"
        )
    if math.hypot(smallest, math.sqrt(ridge)) < _SINGULAR * largest:
        raise InputError(
            f"ridge={ridge} leaves a singular mixing: its smallest singular value is "
            f"{smallest / largest:.1e} of the largest and must be {_SINGULAR}; leave ridge out or "
            f"pass at least {_SINGULAR**2 * largest**2:.1e}"
        )
    return float(ridge)


def _incidence(weights: ArrayLike) -> Matrix:
    """(A, links): +1 at the first end of each link and -1 at the second."""
    links = square_matrix("weights", weights) != 0
    one_way = np.argwhere(links & ~links.T)
    if len(one_way):
        i, j = one_way[0]
        raise InputError(
            f"weights has a link {j} -> {i} but none back; two agents share a seed, so give each "
            "link both directions"
        )
    first, second = np.nonzero(np.triu(links, 1))
    incidence = np.zeros((len(links), len(first)))
    incidence[first, np.arange(len(first))] = 1.0
    incidence[second, np.arange(len(first))] = -1.0
    return incidence


def check_pair_ratio(correlation: float, *, best: str) -> None:
    """Refuse a ratio of noise at which floats absorb what an agent adds of its own.

    Args:
        correlation: variance of a pair's noise over that of own noise.
        best: what leaving it out gives.

    Raises:
        InputError: below 0, or above 1e8: own noise then hides little of what rounding leaves
            from who knows the noise of the pairs.

    >>> check_pair_ratio(4.0, best="the best one")
    """
    if not 0 <= correlation <= _MOST_RATIO:
        raise InputError(
            f"correlation={correlation} must lie in [0, {_MOST_RATIO:g}], since floats absorb an "
            f"agent's own noise beside larger noise of a pair; leave it out to have {best}"
        )


def _check_variances(local_variance: float, pair_variance: float) -> None:
    for name, value in (("local_variance", local_variance), ("pair_variance", pair_variance)):
        within(name, value, "[0, inf)", "it is a variance, in norm^2")
