"""A published claim: what a formula in a paper says of a setting, beside what is proven of it.

A claim is never a `Guarantee`, never passes a policy, and may be smaller than the truth. What it
leaves out is said in `caveats`; nothing is corrected unless an argument asks for it. What a figure
covers is stated in our words. Papers are cited from `citations.toml` alone.

| name        | paper                                        | claim                              |
|-------------|----------------------------------------------|------------------------------------|
| `dpdl`      | Yuan, Xiao, Wang, Li 2026                    | Theorem 1, a moments accountant's  |
| `dpmixsgd`  | Quan, Wang, Zhai, Fang, Liu 2025             | Theorem 3, of the same form        |
| `dyn_d2p`   | Zhu, Huang, Wang, Ji, Xu 2025                | a central limit, Proposition 4     |
| `muffliato` | Cyffers, Even, Bellet, Massoulie 2022        | pairwise Renyi losses              |
| `whisper`   | Rodio, Chen, Larsson 2025                    | Theorem 2, constraint (10)         |

The first three stand below, the claims of gossip in `whisper`.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from ..accounting.accountant import composed_epsilon
from ..accounting.accountant import epsilon as accounted_epsilon
from ..accounting.gaussian import epsilon_from_mu, mu_from
from ..accounting.request import Accountant, Adjacency, check_delta, check_epsilon, check_setting
from ..errors import InputError, within
from ..guarantee import Statement, Status
from ..noise.schedule import Schedule, scheduled_epsilon


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedClaim:
    """What a paper's formula says of a setting, and what is proven of it.

    Attributes:
        paper: authors, year and identifier.
        statement: the formula.
        adversary: against whom.
        epsilon: as claimed, in nats.
        delta: of both figures.
        noise_multiplier: noise std over clip norm that the claim is about; of the first round
            where rounds differ.
        caveats: why the claim may not hold; at least one.
        proven_epsilon: the accountant's upper bound for the same setting; None where none is known.
        proven_by: how it was computed, or why there is none.

    Raises:
        ValueError: a figure that is no figure, or a text that is missing.

    >>> claim = PublishedClaim(paper="A. Author 2020", statement="epsilon = 1", adversary="none",
    ...     epsilon=1.0, delta=1e-5, noise_multiplier=2.0, caveats=("it is an example",),
    ...     proven_epsilon=None, proven_by="nothing is known")
    >>> claim.epsilon, claim.proven_epsilon
    (1.0, None)
    """

    paper: str
    statement: str
    adversary: str
    epsilon: float
    delta: float
    noise_multiplier: float
    caveats: tuple[str, ...]
    proven_epsilon: float | None
    proven_by: str

    def __post_init__(self) -> None:
        """Check that a claim is complete."""
        for name in ("epsilon", "noise_multiplier", "proven_epsilon"):
            value = getattr(self, name)
            if value is not None and not value >= 0.0:
                raise InputError(f"{name}={value} must be a number >= 0")
        check_delta(self.delta)
        texts = {n: getattr(self, n) for n in ("paper", "statement", "adversary", "proven_by")}
        missing = [name for name, text in texts.items() if not text]
        if missing or not self.caveats or not all(self.caveats):
            raise InputError(f"{', '.join(missing) or 'caveats'} is empty; a claim says all of it")


def check_one_given(noise: float | None, epsilon: float | None, *, name: str) -> None:
    """Either the noise, called `name`, or epsilon; the other one follows."""
    if (noise is None) == (epsilon is None):
        raise InputError(
            f"{name}={noise} and epsilon={epsilon}: give exactly one of them, the other follows"
        )


def epsilon_and_noise(
    spread: float, noise: float | None, epsilon: float | None, *, name: str
) -> tuple[float, float]:
    """(epsilon, noise) with epsilon * noise = spread, of which one is given; noise is `name`."""
    check_one_given(noise, epsilon, name=name)
    if noise is None:
        claimed = float(epsilon or 0.0)
        check_epsilon(claimed, positive=True)
        return claimed, spread / claimed
    within(name, noise, "[0, inf]")
    return (spread / noise if noise > 0.0 else math.inf), noise


def check_run(rounds: int, sampling_rate: float, delta: float) -> None:
    """Rounds, rate and delta as the accountant takes them."""
    check_setting(rounds, sampling_rate, Adjacency.ADD_OR_REMOVE_ONE, Accountant.PLD)
    check_delta(delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class Citation:
    """A paper.

    Attributes:
        name: what its algorithm is called; both names where a version renamed it.
        authors: given names and surnames.
        title: in full.
        where: venue where there is one, year, and number.
    """

    name: str
    authors: Sequence[str]
    title: str
    where: str

    @property
    def full(self) -> str:
        """Authors by initials, title, and where it was published.

        >>> CITATIONS["pdsl"].full.partition(", PDSL")[0]
        'L. Wang, Y. Yuan, C. Wang, F. Li'
        """
        return f"{', '.join(map(_initials, self.authors))}, {self.title}, {self.where}"

    def short(self, place: str = "") -> str:
        """Surnames, name and number, and a place in it.

        >>> CITATIONS["dpdl"].short("Theorem 1")
        'Yuan, Xiao, Wang, Li, DPDL, 2026, arXiv 2606.04399, Theorem 1'
        """
        surnames = (author.rpartition(" ")[2] for author in self.authors)
        return ", ".join(filter(None, (*surnames, self.name, self.where, place)))


def _initials(author: str) -> str:
    *given, surname = author.split()
    return " ".join([*(f"{name[0]}." for name in given), surname])


CITATIONS: Mapping[str, Citation] = {
    name: Citation(**held)
    for name, held in tomllib.loads(
        resources.files("overhear.privacy.published").joinpath("citations.toml").read_text("utf-8")
    ).items()
}


# DPDL's Theorem 1, as a claim with the accountant's figure beside it.
#
# Y. Yuan, X. Xiao, L. Wang, F. Li, "DPDL: Towards Differential Privacy Preservation in
# Decentralized Stochastic Learning on Non-IID Data", 2026, arXiv 2606.04399, Theorem 1.
#
# noise multiplier >= c2 q K sqrt(T log(1/delta)) / epsilon,    epsilon < c1 q^2 T
#
# | symbol | name here          | unit                                                     |
# |--------|--------------------|----------------------------------------------------------|
# | q      | sampling_rate      | probability a round                                      |
# | T      | rounds             | -                                                        |
# | K      | sensitivity_factor | clip norms that one record changes, at multiplier 1      |
# | c1, c2 | c2                 | -; not known to us                                       |
#
# What the text at hand has: that the noise falls with epsilon, and grows with T, the number of
# agents, the sampling rate and the hyper-parameters; and constants c1, c2 that it calls explicit.
# The formula itself is lost, so this is the form of the moments accountant (Abadi et al. 2016) from
# which the paper derives it. With c2 = 1 a claimed epsilon is in units of c2, and no figure of the
# paper.
#
# Where we differ from the paper: c2 is an argument, and the range that c1 gives cannot be checked.
# K is the joint sensitivity of a trace, and the paper's is that of its equation (53), which is
# lost.


def dpdl_theorem_1(
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float,
    rounds: int,
    sampling_rate: float,
    sensitivity_factor: float,
    sensitivity_status: Status = Status.PROVEN,
    c2: float = 1.0,
) -> PublishedClaim:
    """Return DPDL's Theorem 1 in the form that is known to us, with its constant as an argument.

    Args:
        noise_multiplier: noise std on the sum of clipped gradients / clip norm, >= 0; or
        epsilon: what is to be claimed, > 0. Give one of the two.
        delta: strictly between 0 and 1.
        rounds: T.
        sampling_rate: q, in [0, 1].
        sensitivity_factor: K, what one record changes in all releases of a batch together, in
            clip norms at noise multiplier 1: the joint sensitivity of a trace. > 0, may be
            infinite.
        sensitivity_status: whether K is proven; with a heuristic K nothing else is.
        c2: the theorem's constant, > 0.

    Returns:
        The claim; `proven_epsilon` is that of multiplier / K, in add-or-remove-one.

    Raises:
        ValueError: a value is outside its range, or not exactly one of the first two is given.

    Source: Yuan et al. 2026, Theorem 1.

    >>> claim = dpdl_theorem_1(noise_multiplier=2.512, delta=1e-5, rounds=1000, sampling_rate=0.02,
    ...     sensitivity_factor=3**0.5)
    >>> round(claim.epsilon, 3), round(claim.proven_epsilon, 3)
    (1.48, 2.068)
    """
    check_run(rounds, sampling_rate, delta)
    within("c2", c2, "(0, inf)")
    within("sensitivity_factor", sensitivity_factor, "(0, inf]")
    # The theorem: epsilon times noise is the spread, and one of the two is given.
    spread = c2 * sampling_rate * sensitivity_factor * math.sqrt(rounds * math.log(1.0 / delta))
    claimed, multiplier = epsilon_and_noise(
        spread, noise_multiplier, epsilon, name="noise_multiplier"
    )
    # What is proven of the same noise, by the accountant, where K itself is proven.
    proven: float | None = None
    proven_by = "nothing: no upper bound on the sensitivity of this form is known"
    if sensitivity_status is Status.PROVEN:
        proven_by = "privacy loss distribution at the noise multiplier over K, add-or-remove-one"
        proven = accounted_epsilon(
            noise_multiplier=multiplier / sensitivity_factor,
            delta=delta,
            rounds=rounds,
            sampling_rate=sampling_rate,
        )
    return PublishedClaim(
        paper=CITATIONS["dpdl"].short("Theorem 1"),
        statement="noise multiplier >= c2 q K sqrt(T log(1/delta)) / epsilon",
        adversary="the releases of one agent's batches",
        epsilon=claimed,
        delta=delta,
        noise_multiplier=multiplier,
        caveats=(
            f"the constant c2 is not known to us; {c2:g} is put in its place",
            "it holds for epsilon < c1 q^2 T alone, and c1 is not known to us either",
            "the paper's proof counts noise of neighbours that an eavesdropper can subtract",
            f"K = {sensitivity_factor:.4g} is the joint sensitivity of a trace, "
            f"{sensitivity_status}, not the paper's K(alpha, A, W)",
        ),
        proven_epsilon=proven,
        proven_by=proven_by,
    )


# DPMixSGD's Theorem 3, as a claim with the accountant's figure beside it.
#
# Y. Quan, C. Wang, S. Zhai, M. Fang, Z. Liu, "Enhancing Privacy in Decentralized Min-Max
# Optimization: A Differentially Private Approach", MobiHoc 2025, arXiv 2508.07505, Theorem 3.
#
# noise variance >= c G^2 T log(1/delta) / (n^2 epsilon^2)
#
# | symbol | name here      | unit                               |
# |--------|----------------|------------------------------------|
# | G      | gradient_bound | norm of one example's gradient     |
# | T      | rounds         | -                                  |
# | n      | examples       | of one agent                       |
# | c      | c              | -; not known to us                 |
#
# What the text at hand has: that this is the bound of Wang et al. 2017 for a G-Lipschitz loss,
# whose formula, constant and range are lost; and that each of the two blocks gets that noise by
# itself, as if the other one released nothing. With c = 1 a claimed epsilon is in units of the root
# of c.
#
# Where we differ from the paper: its constant is not known to us and is an argument. As published
# nothing is clipped, so nothing is proven; `repaired` puts the accountant's figure of the clipped
# form beside the claim.


def dpmixsgd_theorem_3(
    *,
    noise_std: float | None = None,
    epsilon: float | None = None,
    delta: float,
    rounds: int,
    examples: float,
    batch_size: float,
    start_batch_size: float,
    start_noise_std: float | None = None,
    gradient_bound: float = 1.0,
    repaired: bool = False,
    c: float = 1.0,
) -> PublishedClaim:
    """Return DPMixSGD's Theorem 3 in the form that is known to us.

    Args:
        noise_std: noise on the mean gradient of a batch, in norm, >= 0; or
        epsilon: what is to be claimed, > 0. Give one of the two.
        delta: strictly between 0 and 1.
        rounds: T, the start not counted.
        examples: n of one agent, or of the average agent.
        batch_size: expected size of a round's batch, above 0, at most `examples`.
        start_batch_size: of the first, large batch, at most `examples`; 0 releases nothing there.
        start_noise_std: noise on the mean gradient of that batch; None is as printed, the same.
        gradient_bound: G, assumed bound on one example's gradient, > 0.
        repaired: whether one example's step is clipped to G and the recursion runs on released
            values; False is the published form.
        c: the theorem's constant, > 0.

    Returns:
        The claim. `noise_multiplier` is batch_size noise_std / G.

    Raises:
        ValueError: a value is outside its range, or not exactly one of the first two is given.

    Source: Quan et al. 2025, Theorem 3, which has the form of Wang et al. 2017.

    >>> setting = {"delta": 1e-5, "rounds": 2000, "examples": 20_000, "batch_size": 10}
    >>> claim = dpmixsgd_theorem_3(noise_std=0.1, start_batch_size=0, repaired=True, **setting)
    >>> round(claim.epsilon, 4), round(claim.proven_epsilon, 4)
    (0.0759, 0.0973)
    >>> dpmixsgd_theorem_3(noise_std=0.1, start_batch_size=2000, **setting).proven_epsilon
    inf
    """
    within("examples", examples, "(0, inf)")
    within("batch_size", batch_size, "(0, inf)")
    within("start_batch_size", start_batch_size, "[0, inf)")
    if not max(batch_size, start_batch_size) <= examples:
        raise InputError(
            f"batch_size={batch_size} and start_batch_size={start_batch_size} must be at most "
            f"examples={examples}"
        )
    check_run(rounds, batch_size / examples, delta)
    within("gradient_bound", gradient_bound, "(0, inf)")
    within("c", c, "(0, inf)")
    # The theorem: epsilon times noise is the spread, and one of the two is given.
    spread = gradient_bound * math.sqrt(c * rounds * math.log(1.0 / delta)) / examples
    claimed, std = epsilon_and_noise(spread, noise_std, epsilon, name="noise_std")
    per_example = std / gradient_bound
    # As published nothing is clipped, and so nothing is proven.
    proven, proven_by = math.inf, "nothing is clipped: one record may move a gradient at will"
    caveats: tuple[str, ...] = (
        f"the constant c is not known to us; {c:g} is put in its place",
        "it holds for small epsilon alone, and its range is not known to us",
        "G is assumed, not enforced: the published form clips nothing",
        "the published recursion keeps a record, without noise of its own, in every later step",
    )
    # The repaired form is a sampled Gaussian mechanism in every round, and at the start.
    if repaired:
        caveats = (*caveats[:2], "the start with its large batch is not in the claim")
        counts = {(per_example * batch_size, batch_size / examples): rounds}
        if start_batch_size > 0:
            on_start = std if start_noise_std is None else start_noise_std
            start = (on_start / gradient_bound * start_batch_size, start_batch_size / examples)
            counts[start] = counts.get(start, 0) + 1
        proven = composed_epsilon(counts, delta=delta)
        proven_by = "privacy loss distribution of the rounds and the start, add-or-remove-one"
    return PublishedClaim(
        paper=CITATIONS["dpmixsgd"].short("Theorem 3"),
        statement="noise variance >= c G^2 T log(1/delta) / (n^2 epsilon^2)",
        adversary="everything that one agent releases of its batches",
        epsilon=claimed,
        delta=delta,
        noise_multiplier=per_example * batch_size,
        caveats=caveats,
        proven_epsilon=proven,
        proven_by=proven_by,
    )


# Dyn-D2P's own figures for a schedule, of a central limit, with the accountant's beside them.
#
# Z. Zhu, Y. Huang, X. Wang, S. Ji, J. Xu, "Dyn-D2P: Dynamic Differentially Private Decentralized
# Learning with Provable Utility Guarantee", IJCAI 2025, arXiv 2505.06651. The limit is that of Bu,
# Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy", arXiv 1911.11607.
#
# mu = q sqrt(sum_k (exp(mu_k^2) - 1));    (epsilon, delta) of a mu-GDP release
# mu_0 so that this meets epsilon                                 Proposition 3, equation (8)
# sigma = (q / mu) sqrt(2 sum_k C_k^2 / sigma_k^2)                Proposition 4, equation (10)
#
# | symbol | name here                             | unit                                |
# |--------|---------------------------------------|-------------------------------------|
# | q      | schedule.sampling_rate                | probability a round                 |
# | mu_k   | 1 / schedule.noise_multipliers(...)   | -                                   |
# | 1/mu_0 | noise_multiplier                      | noise std on the sum / clip norm    |
#
# Noise sigma sigma_k on round k makes mu_k = C_k / (sigma sigma_k), so Proposition 4 is the limit
# with 2 mu_k^2 in place of exp(mu_k^2) - 1. That is the larger one where mu_k^2 <= 1.256, which the
# text does not ask for, and far too small beyond.
#
# Where we differ from the paper: mu_0 is found by bracketing in its logarithm; the figure is the
# same. It is a claim: `schedule.calibrated_schedule` finds the noise that the target needs.


def dyn_d2p_clt(
    schedule: Schedule,
    *,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    statement: Statement,
) -> PublishedClaim:
    """Return Dyn-D2P's central-limit figure of a schedule.

    Args:
        schedule: the rounds; with `budget_growth` 1 they are alike, and the accountant is quick.
        noise_multiplier: 1 / mu_0, of the first round, > 0; or
        epsilon: what is to be claimed, > 0; mu_0 is then found as the paper finds it. Give one of
            the two.
        statement: what both figures are said of; the adjacency is the accountant's alone.

    Returns:
        The claim; `noise_multiplier` is that of the first round.

    Raises:
        ValueError: a value is outside its range, or not exactly one of the two is given.

    Source: Zhu et al. 2025; Bu et al. 2020, arXiv 1911.11607, for the limit.

    >>> const = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1, budget_growth=1)
    >>> of = Statement(delta=1e-4)
    >>> claims = [dyn_d2p_clt(const, epsilon=e, statement=of) for e in (0.3, 1, 3)]
    >>> [round(c.proven_epsilon, 2) for c in claims]
    [0.67, 3.02, 5.76]
    """
    delta = statement.delta
    check_one_given(noise_multiplier, epsilon, name="noise_multiplier")
    within("sampling_rate", schedule.sampling_rate, "(0, inf)")
    # By the central limit: epsilon of a given noise, or the noise of a given epsilon.
    if noise_multiplier is not None:
        within("noise_multiplier", noise_multiplier, "(0, inf)")
        mu = math.exp(min(_log_clt_mu(schedule, noise_multiplier), 700.0))
        claimed, multiplier = epsilon_from_mu(mu, delta), noise_multiplier
    else:
        claimed = float(epsilon or 0.0)
        check_epsilon(claimed, positive=True)
        multiplier = _first_multiplier(schedule, mu_from(claimed, delta))
    return _claim(
        schedule,
        multiplier,
        statement,
        epsilon=claimed,
        formula="mu = q sqrt(sum_k (exp(mu_k^2) - 1)), and (epsilon, delta) of mu",
    )


def dyn_d2p_proposition_4(
    schedule: Schedule, *, epsilon: float, statement: Statement
) -> PublishedClaim:
    """Return the noise that Dyn-D2P's Proposition 4 takes for epsilon, in closed form.

    Args:
        schedule: the rounds.
        epsilon: what is to be claimed, > 0 and finite.
        statement: what both figures are said of; the adjacency is the accountant's alone.

    Returns:
        The claim; `noise_multiplier` is that of the first round. Where some mu_k^2 is above 1.256
        its first caveat says so, with the figure that Proposition 3 has for the same noise.

    Raises:
        ValueError: a value is outside its range.

    Source: Zhu et al. 2025, Proposition 4.

    >>> const = Schedule(rounds=3500, sampling_rate=1 / 2500, clip_decay=1, budget_growth=1)
    >>> claim = dyn_d2p_proposition_4(const, epsilon=1.0, statement=Statement(delta=1e-4))
    >>> round(claim.noise_multiplier, 3), claim.caveats[0].partition(":")[0]
    (0.107, 'outside its range')
    """
    within("sampling_rate", schedule.sampling_rate, "(0, inf)")
    mu = mu_from(check_epsilon(epsilon, positive=True), statement.delta)
    squares = schedule.relative_multipliers**-2.0  # (K,) of mu_k over mu_0
    multiplier = schedule.sampling_rate / mu * math.sqrt(2.0 * float(squares.sum()))
    outside: tuple[str, ...] = ()
    if (largest := float(squares.max()) / multiplier / multiplier) > _COVERED:
        limit = dyn_d2p_clt(schedule, noise_multiplier=multiplier, statement=statement).epsilon
        outside = (
            f"outside its range: 2 mu_k^2 is at least exp(mu_k^2) - 1 up to mu_k^2 = {_COVERED}, "
            f"and a round has {largest:.4g}; Proposition 3 has epsilon {limit:.4g} for this noise",
        )
    return _claim(
        schedule,
        multiplier,
        statement,
        epsilon=epsilon,
        formula="sigma = (q / mu) sqrt(2 sum_k C_k^2 / sigma_k^2), mu of (epsilon, delta)",
        more=outside,
    )


_COVERED = 1.256  # where exp(x) - 1 = 2 x, rounded down


def _claim(
    schedule: Schedule,
    multiplier: float,
    statement: Statement,
    *,
    epsilon: float,
    formula: str,
    more: tuple[str, ...] = (),
) -> PublishedClaim:
    """A claim of the paper, beside the accountant's figure of the same rounds."""
    return PublishedClaim(
        paper=CITATIONS["dyn_d2p"].short(),
        statement=formula,
        adversary="everything that one agent releases of its batches",
        epsilon=epsilon,
        delta=statement.delta,
        noise_multiplier=multiplier,
        caveats=(
            *more,
            "a central limit: it holds for many rounds of little each, and for no finite number of "
            "rounds is it a bound; with few examples sampled a round it claims far too little",
            "the paper draws one example uniformly; the accountant's figure is for Poisson batches",
        ),
        proven_epsilon=scheduled_epsilon(schedule, multiplier, statement=statement),
        proven_by=f"privacy loss distribution of the same rounds, {statement.adjacency}",
    )


def _log_clt_mu(schedule: Schedule, first_multiplier: float) -> float:
    """Log of q sqrt(sum_k (exp(mu_k^2) - 1))."""
    from scipy.special import logsumexp

    squares = schedule.noise_multipliers(first_multiplier) ** -2.0  # (K,)
    total = logsumexp(squares + np.log(-np.expm1(-squares)))  # exp(x) - 1 overflows at x = 710
    return math.log(schedule.sampling_rate) + 0.5 * float(total)


def _first_multiplier(schedule: Schedule, mu: float) -> float:
    """The 1 / mu_0 whose central-limit figure is mu."""
    from scipy.optimize import brentq

    total = 2.0 * math.log(mu / schedule.sampling_rate)  # log of sum_k (exp(mu_k^2) - 1)
    least = float(schedule.relative_multipliers.min())
    # One round alone may spend all of it, or each as much as the one that spends most.
    spend = [np.logaddexp(0.0, total), np.logaddexp(0.0, total - math.log(schedule.rounds))]
    low, high = (-0.5 * math.log(s) - math.log(least) for s in spend)
    goal = math.log(mu)
    if high - low < 1e-13:
        return math.exp(low)
    root = brentq(
        lambda x: _log_clt_mu(schedule, math.exp(x)) - goal, low - 1e-9, high + 1e-9, xtol=1e-14
    )
    return math.exp(float(root))
