"""DPDL's Theorem 1, as a claim with the accountant's figure beside it.

Y. Yuan, X. Xiao, L. Wang, F. Li, "DPDL: Towards Differential Privacy Preservation in Decentralized
Stochastic Learning on Non-IID Data", 2026, arXiv 2606.04399, Theorem 1.

    noise multiplier >= c2 q K sqrt(T log(1/delta)) / epsilon,    epsilon < c1 q^2 T

| symbol | name here          | unit                                                     |
|--------|--------------------|----------------------------------------------------------|
| q      | sampling_rate      | probability a round                                      |
| T      | rounds             | -                                                        |
| K      | sensitivity_factor | clip norms that one record changes, at multiplier 1      |
| c1, c2 | c2                 | -; not known to us                                       |

What the text at hand has: that the noise falls with epsilon, and grows with T, the number of
agents, the sampling rate and the hyper-parameters; and constants c1, c2 that it calls explicit. The
formula itself is lost, so this is the form of the moments accountant (Abadi et al. 2016) from which
the paper derives it. With c2 = 1 a claimed epsilon is in units of c2, and no figure of the paper.

Where we differ from the paper: c2 is an argument, and the range that c1 gives cannot be checked. K
is the joint sensitivity of a trace, and the paper's is that of its equation (53), which is lost.
"""

from __future__ import annotations

import math

from ..accounting.accountant import epsilon as accounted_epsilon
from ..errors import within
from ..guarantee import Status
from .claim import CITATIONS, PublishedClaim, check_run, epsilon_and_noise


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
