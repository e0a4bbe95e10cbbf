"""The papers' own privacy bounds, as claims, each with the accountant's figure beside it.

A claim is what a formula in a paper says; it is never a `Guarantee`, never passes a policy, and
may be smaller than the truth.

    DPDL      Yuan, Xiao, Wang, Li, arXiv 2606.04399, Theorem 1
              noise multiplier >= c2 q K sqrt(T log(1/delta)) / epsilon,    epsilon < c1 q^2 T
    DPMixSGD  Theorem 3
              noise variance >= c G^2 T log(1/delta) / (n^2 epsilon^2)

`published_clt` has Dyn-D2P's central limit, `published_whisper` Whisper's bound, and
`published_gossip` MUFFLIATO's pairwise losses.

| symbol     | name here                 | unit                                                 |
|------------|---------------------------|------------------------------------------------------|
| q          | sampling_rate             | probability a round                                  |
| T          | rounds                    | -                                                    |
| K          | sensitivity_factor        | clip norms that one record moves, at multiplier 1    |
| c1, c2, c  | c2, c                     | -; not known to us                                   |
| n          | examples                  | -                                                    |
| G          | gradient_bound            | norm of one example's gradient                       |

Where we differ from the papers: nothing is mended unless an argument asks for it; what is missing
is said in `caveats`. The constants of both theorems are not known to us and are arguments.
What a figure covers is stated in our words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..accounting.accountant import composed_epsilon
from ..accounting.accountant import epsilon as accounted_epsilon
from ..accounting.request import Adjacency, check_delta, check_epsilon, check_setting
from ..errors import InputError
from ..guarantee import Status

__all__ = [
    "PublishedClaim",
    "check_one_given",
    "check_positive",
    "dpdl_theorem_1",
    "dpmixsgd_theorem_3",
]

_PLD = "privacy loss distribution"


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
        sensitivity_factor: K, what one record moves in all releases of a batch together, in
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
    _check_run(rounds, sampling_rate, delta)
    check_positive("c2", c2)
    if not sensitivity_factor > 0.0:
        raise InputError(f"sensitivity_factor={sensitivity_factor} must be above 0")
    spread = c2 * sampling_rate * sensitivity_factor * math.sqrt(rounds * math.log(1.0 / delta))
    claimed, multiplier = _both(spread, noise_multiplier, epsilon, name="noise_multiplier")
    proven: float | None = None
    proven_by = "nothing: no upper bound on the sensitivity of this form is known"
    if sensitivity_status is Status.PROVEN:
        proven_by = f"{_PLD} at the noise multiplier over K, add-or-remove-one"
        proven = accounted_epsilon(
            noise_multiplier=multiplier / sensitivity_factor,
            delta=delta,
            rounds=rounds,
            sampling_rate=sampling_rate,
        )
    return PublishedClaim(
        paper="Yuan, Xiao, Wang, Li 2026, DPDL, arXiv 2606.04399, Theorem 1",
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

    Source: Theorem 3, which has the form of Wang et al. 2017.

    >>> setting = {"delta": 1e-5, "rounds": 2000, "examples": 20_000, "batch_size": 10}
    >>> claim = dpmixsgd_theorem_3(noise_std=0.1, start_batch_size=0, repaired=True, **setting)
    >>> round(claim.epsilon, 4), round(claim.proven_epsilon, 4)
    (0.0759, 0.0973)
    >>> dpmixsgd_theorem_3(noise_std=0.1, start_batch_size=2000, **setting).proven_epsilon
    inf
    """
    check_positive("batch_size", batch_size)
    if not (batch_size <= examples and 0.0 <= start_batch_size <= examples):
        raise InputError(
            f"batch_size={batch_size} and start_batch_size={start_batch_size} must be at least 0 "
            f"and at most examples={examples}"
        )
    _check_run(rounds, batch_size / examples, delta)
    check_positive("gradient_bound", gradient_bound)
    check_positive("c", c)
    spread = gradient_bound * math.sqrt(c * rounds * math.log(1.0 / delta)) / examples
    claimed, std = _both(spread, noise_std, epsilon, name="noise_std")
    per_example = std / gradient_bound
    proven, proven_by = math.inf, "nothing is clipped: one record may move a gradient at will"
    caveats: tuple[str, ...] = (
        f"the constant c is not known to us; {c:g} is put in its place",
        "it holds for small epsilon alone, and its range is not known to us",
        "G is assumed, not enforced: the published form clips nothing",
        "the published recursion keeps a record, without noise of its own, in every later step",
    )
    if repaired:
        caveats = (*caveats[:2], "the start with its large batch is not in the claim")
        counts = {(per_example * batch_size, batch_size / examples): rounds}
        if start_batch_size > 0:
            on_start = std if start_noise_std is None else start_noise_std
            start = (on_start / gradient_bound * start_batch_size, start_batch_size / examples)
            counts[start] = counts.get(start, 0) + 1
        proven = composed_epsilon(counts, delta=delta)
        proven_by = f"{_PLD} of the rounds and the start, add-or-remove-one"
    return PublishedClaim(
        paper="DPMixSGD (differentially private decentralized min-max optimization), Theorem 3",
        statement="noise variance >= c G^2 T log(1/delta) / (n^2 epsilon^2)",
        adversary="everything that one agent releases of its batches",
        epsilon=claimed,
        delta=delta,
        noise_multiplier=per_example * batch_size,
        caveats=caveats,
        proven_epsilon=proven,
        proven_by=proven_by,
    )


def check_positive(name: str, value: float) -> None:
    """Above 0 and finite."""
    if not 0.0 < value < math.inf:
        raise InputError(f"{name}={value} must lie in (0, inf)")


def check_one_given(noise: float | None, epsilon: float | None, *, name: str) -> None:
    """Either the noise, called `name`, or epsilon; the other one follows."""
    if (noise is None) == (epsilon is None):
        raise InputError(
            f"{name}={noise} and epsilon={epsilon}: give exactly one of them, the other follows"
        )


def _both(
    spread: float, noise: float | None, epsilon: float | None, *, name: str
) -> tuple[float, float]:
    """(epsilon, noise) with epsilon * noise = spread."""
    check_one_given(noise, epsilon, name=name)
    if noise is None:
        claimed = float(epsilon or 0.0)
        check_epsilon(claimed, positive=True)
        return claimed, spread / claimed
    if not noise >= 0.0:
        raise InputError(f"{name}={noise} must be at least 0")
    return (spread / noise if noise > 0.0 else math.inf), noise


def _check_run(rounds: int, sampling_rate: float, delta: float) -> None:
    check_setting(rounds, sampling_rate, Adjacency.ADD_OR_REMOVE_ONE, "pld")
    check_delta(delta)
