"""DECOR: each agent's own noise, and noise of secret pairs that cancels between them.

Y. Allouah, A. Koloskova, A. El Firdoussi, M. Jaggi, R. Guerraoui, "The Privacy Power of Correlated
Noise in Decentralized Learning", ICML 2024, arXiv 2405.01031.

    1  v_i = s C (a^.5 u_i + (a r)^.5 sum over links {i, j} of +- p_ij),   u_i, p_ij ~ N(0, I)
             p_ij is made by both ends from a seed of theirs, added by i and subtracted by j > i
    2  x_i <- sum_j W_ij (x_j - eta (sum_b clip(grad_b F(x_j), C) + v_j) / B)

| symbol  | name here       | shape          | meaning                                           |
|---------|-----------------|----------------|---------------------------------------------------|
| W       | graph.weights   | (A, A)         | mixing weights; their links share seeds           |
| L       | laplacian       | (A, A)         | Laplacian of the links, self-loops do not count   |
| R       | -               | (A, A)         | a (I + r L), covariance over (s C)^2              |
| r       | correlation     | scalar         | variance of a pair's noise over that of own noise |
| a       | -               | scalar         | max_i [(I + r L)^-1]_ii, so max [R^-1]_ii = 1     |
| F       | factor          | (A, A + links) | R = F F^T: own sources, then those of pairs       |
| h       | horizon         | scalar         | rounds whose noise the choice of r counts         |

The other symbols are those of `shared_step`, where the step is.

What protects from whom: an eavesdropper reads every link and knows no seed, and sees each round as
one Gaussian release. A neighbour knows the seeds of its own links and its own noise; behind what is
left a record costs more, up to a Gaussian release behind own noise of variance a alone, for an
agent all of whose neighbours pool what they know.

r is chosen for the noise that is left in the models, unless it is given: it minimises

    3  max_i [(I + r L)^-1]_ii  *  sum_{k=1..h} tr(W^k (I + r L) W^k) / h

Where we differ from the paper: the variances come from one ratio and the accountant's noise
multiplier, and the ratio counts several rounds where horizon asks for it. Agents that collude are
an adversary like others, not a number in the bound. The paper's agents may differ in variance; here
all have the same. Every agent takes part in every round: if one stayed away, its pairs' noise would
no longer cancel, and here no run leaves one out. Published and repaired form are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...privacy.errors import InputError
from ...privacy.noise import correlated
from ..graphs.graph import Graph, Topology
from .algorithm import Algorithm, Clip
from .correlated_step import objective_rounds, only_graph, shared_noise, step, unsteered
from .dsgd import init

# Of the ratios that are looked at. Beyond, an agent's own noise could fall by no more than 1e-4 A
# of what it is where L is well connected, and single precision begins to lose what cancels.
_RATIOS = (1e-4, 1e4)
_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Hyper-parameters.

    Attributes:
        correlation: variance of a pair's noise over that of own noise, at least 0; 0 is LDP. By
            default the best one for the horizon.
        horizon: rounds that the choice of the correlation counts; 1 (the default) is one mixing,
            0 means all rounds of the run. Without effect, so refused, beside a correlation.
        clip: "per-example" clips each example's gradient, "batch" the mean of a batch, which is
            a bound on all that an agent sends.
    """

    correlation: float | None = None
    horizon: int | None = None
    clip: Clip = Clip.PER_EXAMPLE

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.correlation is not None:
            correlated.check_pair_ratio(self.correlation, best="the best one for the horizon")
            if self.horizon is not None:
                raise InputError(
                    f"horizon={self.horizon} has no effect beside correlation="
                    f"{self.correlation}; give one of them"
                )
        elif self.horizon is not None and self.horizon < 0:
            raise InputError(
                f"horizon={self.horizon} must be at least 1, or 0 for all rounds of the run"
            )


def best_correlation(graph: Graph, *, horizon: int) -> float:
    """The minimiser of 3: least noise in the models at equal figure of the eavesdropper.

    Args:
        graph: with links both ways; with symmetric weights if horizon > 1.
        horizon: h >= 1, rounds whose noise counts.

    Returns:
        r in [0, 1e4]; the largest where pairs' noise cancels altogether, as on a full graph.

    Raises:
        ValueError: links of one direction, or weights that are not symmetric for several rounds.
    """
    from scipy.optimize import minimize_scalar

    # Energy of each agent's noise, and of that of pairs, over the horizon.
    F = correlated.cost_factor(graph.weights, rounds=horizon, step_sizes=())
    laplacian = correlated.decor_covariance(graph.weights, local_variance=0.0, pair_variance=1.0)
    values, vectors = np.linalg.eigh(laplacian)
    squares = np.square(vectors)
    own, pairs = float(np.vdot(F, F)), float(np.vdot(F @ laplacian, F))

    # The exposure of the worst agent times the energy, at each ratio.
    def energy(ratios: NDArray[np.float64]) -> NDArray[np.float64]:
        worst = (squares @ (1.0 / (1.0 + np.outer(values, ratios)))).max(axis=0)
        return np.asarray(worst * (own + ratios * pairs))

    # From a grid to the minimum beside its best point; the ends are answers themselves.
    lowest, highest = np.log(_RATIOS)
    grid = np.linspace(lowest, highest, _POINTS)
    at = int(energy(np.exp(grid)).argmin())
    if at == 0:
        return 0.0
    if at == _POINTS - 1:
        return _RATIOS[1]
    found = minimize_scalar(
        lambda log_ratio: float(energy(np.exp([log_ratio]))[0]),
        bounds=(grid[at - 1], grid[at + 1]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return math.exp(found.x)


def prepare(
    *, graph: Topology, rounds: int, correlation: float | None, horizon: int | None
) -> dict[str, object]:
    """Step 1: the factor of the covariance; its sources are known to one agent, or to both ends.

    Args:
        graph: static, with links both ways.
        rounds: of the run.
        correlation: of `Settings`.
        horizon: of `Settings`.

    Returns:
        "shared" of `correlated_step.step`.

    Raises:
        ValueError: a graph that changes, links of one direction, or weights that are not symmetric
            for several rounds.
    """
    static = only_graph(graph, algorithm="decor")
    ratio = correlation
    if ratio is None:
        asked = 1 if horizon is None else horizon
        counted = objective_rounds(asked, rounds=rounds, graph=static)
        ratio = best_correlation(static, horizon=counted)
    sources = correlated.decor_factor(static.weights, local_variance=1.0, pair_variance=ratio)
    sources = sources[:, sources.any(axis=0)]  # no pairs where the ratio is 0
    known_to = [frozenset(np.flatnonzero(column).tolist()) for column in sources.T]
    return {"shared": shared_noise(sources, known_to)}


ALGORITHM = Algorithm(
    name="decor", init=init, step=step, settings=Settings, prepare=prepare, unsteered=unsteered
)
