"""The best noise of five kinds for a graph and a number of rounds, each with its certificate.

| kind          | the precision of noise, agents x rounds      | who knows a source              |
|---------------|----------------------------------------------|---------------------------------|
| independent   | identity                                     | the agent that adds it          |
| across agents | R^-1 over agents, the same in every round    | every agent: one common seed    |
| over time     | X over rounds, the same for every agent      | the agent that adds it          |
| joint         | one X_k for each eigenspace of W             | every agent: one common seed    |
| pair secrets  | (a (1 + r Laplacian))^-1 over agents times X | the agent; both ends of a link  |

Noise of the last kind is DECOR's with memory: own noise and one seed a link, each through the same
C^-1. What a record costs is mu^2 of the rounds that use it, for who knows no noise, 1 for every
kind at noise multiplier 1; whoever knows sources sees more. Then the energy of noise in the models,
per agent, round and coordinate, is all that differs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError
from .correlated import Matrix, decor_covariance, victim_information
from .dual import Optimum, optimum
from .over_time import (
    MOST_DENSE,
    MOST_ROUNDS,
    Filter,
    Modes,
    best_filter,
    best_filter_of,
    count,
    grams,
    lower_bound,
    lower_factor,
    modes_of,
    one_precision_bound,
    patterns,
    stretched,
)

# The kinds of noise that are compared, and what a design of one of them says.


class Kind(StrEnum):
    """Along what noise is correlated."""

    INDEPENDENT = "independent"
    ACROSS = "across agents"
    TIME = "over time"
    JOINT = "joint"
    PAIRS = "pair secrets"

    @property
    def has_memory(self) -> bool:
        """Whether noise of a round is partly taken back later."""
        return self in (Kind.TIME, Kind.JOINT, Kind.PAIRS)

    @property
    def common_seed(self) -> bool:
        """Whether every agent can compute all noise.

        >>> [str(kind) for kind in Kind if kind.common_seed]
        ['across agents', 'joint']
        """
        return self in (Kind.ACROSS, Kind.JOINT)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Design:
    """Noise of one kind.

    Attributes:
        kind: of it.
        rounds: T.
        period: b: a record is used in rounds j, j + b, ..
        energy: of the noise in the models, per agent, round and coordinate, at noise multiplier 1.
        lower_bound: of the energy of every noise of the same sensitivity: of this kind, of
            kind "joint" of any kind where `of_all`.
        bands: coefficients of the strategy over time; 1 has no memory.
        of_all: whether the bound holds for every noise; else for noise that has the eigenvectors
            of W.
        precisions: (modes, T, T), or none where the strategy is a filter.
        filters: of each eigenspace, scaled; none where it is dense.
        variances: (modes,), of noise across agents, relative to that of the rest; of pair secrets
            1 + r times the Laplacian's eigenvalue.
        ratio: r of pair secrets; 0 else.
    """

    kind: Kind
    rounds: int
    period: int
    energy: float
    lower_bound: float
    bands: int
    of_all: bool = False
    precisions: Matrix | None = None
    filters: tuple[Matrix, ...] = ()
    variances: Matrix | None = None
    ratio: float = 0.0

    @property
    def gap(self) -> float:
        """Relative distance from the lower bound, 0 but for rounding; `inf` where none is known."""
        return self.energy / self.lower_bound - 1.0 if self.lower_bound > 0 else math.inf

    def strategies(self) -> list[Matrix]:
        """C of each eigenspace, (T, T), lower triangular, or one for all of them."""
        if self.precisions is not None:
            return [lower_factor(precision) for precision in self.precisions]
        return [toeplitz_strategy(one, self.rounds) for one in self.filters]


def toeplitz_strategy(coefficients: Matrix, rounds: int) -> Matrix:
    """C, (T, T), lower triangular, with the same coefficients in every round.

    >>> toeplitz_strategy(np.array([1.0, 0.5]), 2).tolist()
    [[1.0, 0.0], [0.5, 1.0]]
    """
    from scipy.linalg import toeplitz

    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients[:rounds]
    return np.asarray(toeplitz(column, np.zeros(rounds)))


# What own noise and pair secrets hide from whom.


def pair_exposure(
    weights: ArrayLike, *, ratio: float, knowing: Collection[frozenset[int]] = ()
) -> float:
    """Largest [R^-1]_ii of own noise of variance 1 and pair secrets of variance r.

    Args:
        weights: W; a link is where it is not zero.
        ratio: r.
        knowing: sets of agents that know their own noise and the secrets of their links; the
            largest figure of these and of an outsider counts.
    """
    R = decor_covariance(weights, local_variance=1.0, pair_variance=ratio)
    found = [float(victim_information(R).max())]
    for known in knowing:
        hidden = [i for i in range(len(R)) if i not in known]
        left = R[np.ix_(hidden, hidden)].copy()
        for at, i in enumerate(hidden):
            links = [j for j in known if R[i, j] != 0]
            left[at, at] -= ratio * len(links)
        found.append(float(victim_information(left).max()))
    return max(found)


_RATIOS = (-6.0, 9.0)  # natural logarithms of r, within which the best one lies
_MOST_CERTIFIED = 800  # agents times rounds of a bound over all noise
_MOST_ALIKE = 1e8  # eigenspaces times rounds^3 of a dense joint design
_MOST_DIFFERENT = 3e5  # agents times eigenspaces times rounds^2, where agents differ
_MOST_LONG = 150_000  # eigenspaces times rounds
_MOST_BOUND = 2e8  # eigenspaces times rounds^2 of the lower bound of a long run
_LONG_BANDS = 32  # coefficients of a strategy for more rounds than are dense
_FLOOR = 1e-9  # of the dearest eigenspace: what a cheap one costs at least


def design(
    kind: Kind,
    weights: ArrayLike,
    *,
    rounds: int,
    period: int | None = None,
    bands: int | None = None,
    step_sizes: Sequence[float] = (),
    knowing: Collection[frozenset[int]] = (),
    certified: bool = True,
) -> Design:
    """The best noise of a kind.

    Args:
        weights: W, (A, A), symmetric mixing weights.
        rounds: T; dense strategies up to 200, filters beyond.
        period: b; T, one use of a record, when None.
        bands: coefficients of a filter over time, at most the period; by default every entry of C
            is free up to 200 rounds, and 32 beyond, or where a dense design would take minutes.
        step_sizes: learning rate of each round, up to 200 of them; all equal when not given.
        knowing: sets of agents whose own noise and pair secrets are known, of kind "pair secrets":
            the noise is scaled, and the ratio chosen, for the worst of these and an outsider.
        certified: whether a filter's lower bound is calculated; else, and of the longest runs, it
            is 0.

    Raises:
        ValueError: weights that are no symmetric mixing matrix, or a number out of range.

    >>> path = np.array([[2.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]) / 3
    >>> [round(design(kind, path, rounds=8).energy, 4) for kind in Kind]
    [1.74, 1.11, 0.955, 0.6404, 0.7088]
    """
    rounds = count("rounds", rounds, MOST_ROUNDS)
    # Step sizes that differ need dense strategies, which short runs alone can take.
    period = rounds if period is None else count("period", period, rounds)
    if len(step_sizes) and rounds > MOST_DENSE:
        raise InputError(
            f"step_sizes of rounds={rounds} are taken for at most {MOST_DENSE} rounds; leave them "
            "out to design for equal ones"
        )
    # The design splits over eigenspaces of W; rounds times their number bound the work.
    modes = modes_of(weights)
    spaces = len(modes.eigenvalues)
    if spaces * rounds > _MOST_LONG:
        raise InputError(
            f"rounds={rounds} of {spaces} eigenspaces are more than the {_MOST_LONG} together that "
            f"a design takes; use at most {_MOST_LONG // spaces} rounds"
        )
    certified = certified and (rounds <= MOST_DENSE or spaces * rounds**2 <= _MOST_BOUND)
    # Short runs have dense strategies, long ones filters of few bands; one band has no memory.
    dense = rounds <= MOST_DENSE and bands is None and not _too_large(kind, modes, rounds)
    if not kind.has_memory:
        bands = 1
    elif bands is not None or not dense:
        bands = min(_LONG_BANDS, period) if bands is None else count("bands", bands, period)
    made = _Maker(
        modes_of(weights), rounds, period, step_sizes, None if dense else bands, certified
    )
    if kind is Kind.PAIRS:
        return made.pairs(np.asarray(weights, dtype=np.float64), knowing)
    if kind is Kind.TIME:
        return made.over_time()
    if kind is Kind.JOINT:
        return made.joint()
    return made.without_memory(kind)


def _too_large(kind: Kind, modes: Modes, rounds: int) -> bool:
    """Whether a dense joint design would take minutes."""
    if kind is not Kind.JOINT:
        return False
    agents, spaces = modes.shares.shape
    if modes.alike:
        return spaces * rounds**3 > _MOST_ALIKE
    return agents * spaces * rounds**2 > _MOST_DIFFERENT


class _Maker:
    """Designs for one graph, one number of rounds and one period."""

    def __init__(
        self,
        modes: Modes,
        rounds: int,
        period: int,
        step_sizes: Sequence[float],
        bands: int | None,
        certified: bool,
    ) -> None:
        self.certified = certified
        self.modes, self.rounds, self.period, self.bands = modes, rounds, period, bands
        self.shares = modes.shares[:1] if modes.alike else modes.shares
        self.uses = -(-rounds // period)
        dense = rounds <= MOST_DENSE
        self.grams = (
            grams(modes.eigenvalues, rounds=rounds, step_sizes=step_sizes) if dense else None
        )
        self.equal_steps = not len(step_sizes)
        self._made = partial(Design, rounds=rounds, period=period, bands=bands or rounds)

    def _spent(self) -> Matrix:
        """(modes,) what independent noise of an eigenspace costs in all rounds."""
        if self.grams is not None:
            return np.einsum("kss->k", self.grams)
        squares = np.square(self.modes.eigenvalues)[:, None] ** np.arange(1, self.rounds + 1)
        found = squares @ (self.rounds - np.arange(self.rounds))
        return np.asarray(np.maximum(found, _FLOOR * found.max()))

    def _over_agents(self, costs: Matrix) -> Optimum:
        """One precision an eigenspace, for what noise of precision 1 costs in each."""
        return optimum(costs[:, None, None], self.shares, [np.array([0])])

    def without_memory(self, kind: Kind) -> Design:
        spent = self._spent()
        scale = self.uses / self.rounds
        if kind is Kind.INDEPENDENT:
            energy = float(self.modes.weights @ spent) * scale
            every = np.ones((1, 1, 1))
            return self._made(
                kind=kind, energy=energy, lower_bound=energy, precisions=every, bands=1
            )
        found = self._over_agents(spent)
        precise = found.precisions / self.uses
        return self._made(
            kind=kind,
            energy=found.cost * scale,
            lower_bound=found.lower_bound * scale,
            variances=1.0 / precise[:, 0, 0],
            bands=1,
        )

    def over_time(self) -> Design:
        weights = self.modes.weights
        if self.bands is None and self.grams is not None:
            found = self._dense(self._summed(weights))
            return self._made(
                kind=Kind.TIME,
                energy=found.cost / self.rounds,
                lower_bound=found.lower_bound / self.rounds,
                precisions=found.precisions,
            )
        made = self._filter(weights)
        energy = made.cost * self.uses / self.rounds
        low = 0.0
        if self.certified and not self.equal_steps:
            low = self._dense(self._summed(weights)).lower_bound / self.rounds
        elif self.certified:
            low = one_precision_bound(self.modes, rounds=self.rounds, period=self.period)
        filters = (self._scaled(made.coefficients, 1.0),)
        return self._made(kind=Kind.TIME, energy=energy, lower_bound=low, filters=filters)

    def joint(self) -> Design:
        # Dense: the precision of each eigenspace is free in every entry.
        if self.bands is None and self.grams is not None:
            found = optimum(self.grams, self.shares, patterns(self.rounds, self.period))
            low, of_all = self._bound_over_all(found)
            return self._made(
                kind=Kind.JOINT,
                energy=found.cost / self.rounds,
                lower_bound=low,
                precisions=found.precisions,
                of_all=of_all,
            )
        # A filter for each eigenspace by itself, and then how loud each of them is.
        every = [self._filter(alone) for alone in np.eye(len(self.modes.eigenvalues))]
        costs = np.array([one.cost for one in every])
        costs = np.maximum(costs, _FLOOR * costs.max())
        found = self._over_agents(costs)
        filters = tuple(
            self._scaled(one.coefficients, float(precise))
            for one, precise in zip(every, found.precisions[:, 0, 0], strict=True)
        )
        # The lower bound: of the dense design, or by stretched multipliers.
        low, energy = 0.0, found.cost * self.uses / self.rounds
        if self.certified and not self.equal_steps and self.grams is not None:
            turns = patterns(self.rounds, self.period)
            low, _ = self._bound_over_all(optimum(self.grams, self.shares, turns))
        elif self.certified:
            length = {"rounds": self.rounds, "period": self.period}
            multipliers = stretched(self.modes, self.shares, **length)
            low = lower_bound(self.modes, self.shares, multipliers, **length)
        return self._made(
            kind=Kind.JOINT,
            energy=energy,
            lower_bound=low,
            filters=filters,
            of_all=self.modes.alike,
        )

    def pairs(self, weights: Matrix, knowing: Collection[frozenset[int]]) -> Design:
        from scipy.optimize import minimize_scalar

        # The covariance of pair secrets is a Laplacian; of it counts the mean in each eigenspace.
        laplacian = decor_covariance(weights, local_variance=0.0, pair_variance=1.0)
        sizes = np.einsum("kij,ij->k", self.modes.projectors, laplacian)
        of = sizes / np.einsum("kii->k", self.modes.projectors)  # mean eigenvalue an eigenspace
        bands = self.bands

        # One number is searched: the log of pair variance over own variance.
        def energy(log_ratio: float) -> float:
            ratio = float(np.exp(log_ratio))
            return self._pair_energy(1.0 + ratio * of) * pair_exposure(
                weights, ratio=ratio, knowing=knowing
            )

        found = minimize_scalar(energy, bounds=_RATIOS, method="bounded", options={"xatol": 1e-3})
        ratio = float(np.exp(found.x))
        exposed = pair_exposure(weights, ratio=ratio, knowing=knowing)
        # The strategy over time at the best ratio: dense, or else a filter.
        costs = self.modes.weights * (1.0 + ratio * of)
        if bands is None and self.grams is not None:
            best = self._dense(self._summed(costs))
            precise: Matrix | None = best.precisions
            filters: tuple[Matrix, ...] = ()
            low, total = best.lower_bound, best.cost
        else:
            made = self._filter(costs)
            precise, filters = None, (self._scaled(made.coefficients, 1.0),)
            low = total = made.cost * self.uses
            if not self.equal_steps:
                low = self._dense(self._summed(costs)).lower_bound if self.certified else 0.0
        return self._made(
            kind=Kind.PAIRS,
            energy=total * exposed / self.rounds,
            lower_bound=low * exposed / self.rounds,
            precisions=precise,
            filters=filters,
            variances=exposed * (1.0 + ratio * of),
            ratio=ratio,
        )

    def _pair_energy(self, variances: Matrix) -> float:
        """What the best strategy over time costs, for variances of each eigenspace."""
        costs = self.modes.weights * variances
        if self.bands is None and self.grams is not None:
            return self._dense(self._summed(costs)).cost
        return self._filter(costs).cost * self.uses

    def _summed(self, costs: Matrix) -> Matrix:
        """(T, T), the Gram matrix of all eigenspaces together, by what noise in each costs."""
        assert self.grams is not None  # noqa: S101 - so is every caller's
        return np.asarray(np.einsum("k,kst->st", costs, self.grams))

    def _dense(self, gram: Matrix) -> Optimum:
        return optimum(gram[None], np.ones((1, 1)), patterns(self.rounds, self.period))

    def _filter(self, weights: Matrix) -> Filter:
        """For eigenspaces by their weights, (modes,)."""
        bands, values = self.bands or 1, self.modes.eigenvalues
        if not self.equal_steps:
            return best_filter_of(self._summed(weights), bands=bands)
        return best_filter(values, weights=weights, rounds=self.rounds, bands=bands)

    def _scaled(self, coefficients: Matrix, precision: float) -> Matrix:
        """With columns so long that a pattern of `uses` rounds costs the precision."""
        return coefficients * np.sqrt(precision / self.uses)

    def _bound_over_all(self, found: Optimum) -> tuple[float, bool]:
        """The bound without assuming the eigenvectors of W, where it is not too large."""
        if self.modes.alike:
            return found.lower_bound / self.rounds, True
        agents = len(self.modes.shares)
        size = agents * self.rounds
        if size > _MOST_CERTIFIED or self.grams is None:
            return found.lower_bound / self.rounds, False
        F = np.linalg.cholesky(self.grams).transpose(0, 2, 1)
        whole = np.einsum("kij,kst->isjt", self.modes.projectors, F).reshape(size, size)
        root = np.linalg.cholesky(found.multipliers)
        turned = np.concatenate(
            [whole[:, i * self.rounds : (i + 1) * self.rounds] @ root[i] for i in range(agents)],
            axis=1,
        )
        # singular values, not the roots of eigenvalues, which rounding would make larger
        total = float(np.linalg.svd(turned, compute_uv=False).sum()) / agents
        spent = [
            sum(float(multiplier[p, p].max()) for p in patterns(self.rounds, self.period))
            for multiplier in found.multipliers
        ]
        return total**2 / float(np.mean(spent)) / self.rounds, True
