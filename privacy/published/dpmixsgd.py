"""DPMixSGD's Theorem 3, as a claim with the accountant's figure beside it.

Y. Quan, C. Wang, S. Zhai, M. Fang, Z. Liu, "Enhancing Privacy in Decentralized Min-Max
Optimization: A Differentially Private Approach", MobiHoc 2025, arXiv 2508.07505, Theorem 3.

    noise variance >= c G^2 T log(1/delta) / (n^2 epsilon^2)

| symbol | name here      | unit                               |
|--------|----------------|------------------------------------|
| G      | gradient_bound | norm of one example's gradient     |
| T      | rounds         | -                                  |
| n      | examples       | of one agent                       |
| c      | c              | -; not known to us                 |

What the text at hand has: that this is the bound of Wang et al. 2017 for a G-Lipschitz loss, whose
formula, constant and range are lost; and that each of the two blocks gets that noise by itself, as
if the other one released nothing. With c = 1 a claimed epsilon is in units of the root of c.

Where we differ from the paper: its constant is not known to us and is an argument. As published
nothing is clipped, so nothing is proven; `repaired` puts the accountant's figure of the clipped
form beside the claim.
"""

from __future__ import annotations

import math

from ..accounting.accountant import composed_epsilon
from ..errors import InputError, within
from .claim import CITATIONS, PublishedClaim, check_run, epsilon_and_noise


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
