"""A clip bound that shrinks and a privacy budget that grows, round by round.

Z. Zhu, Y. Huang, X. Wang, S. Ji, J. Xu, "Dyn-D2P: Dynamic Differentially Private Decentralized
Learning with Provable Utility Guarantee", IJCAI 2025, arXiv 2505.06651.

    for k = 0, ..., K - 1:
        C_k  = C_0 rho_c^(-k/K)                 late gradients are small: clip closer
        mu_k = mu_0 rho_mu^(k/K)                late rounds need accuracy: spend more
        release the sum of gradients clipped to C_k, plus N(0, (C_k / mu_k)^2 I)

| symbol     | name here                  | shape  | unit                                  |
|------------|----------------------------|--------|---------------------------------------|
| K          | rounds                     | scalar | -                                     |
| C_k        | clip_norms                 | (K,)   | norm of one example's gradient        |
| rho_c      | clip_decay                 | scalar | -                                     |
| rho_mu     | budget_growth              | scalar | -                                     |
| 1 / mu_0   | first_multiplier           | scalar | noise std on the sum / clip norm      |
| mu_0/mu_k  | relative_multipliers       | (K,)   | of the first round's noise multiplier |
| 1 / mu_k   | noise_multipliers          | (K,)   | noise std on the sum / clip norm      |

The noise keeps its proportion to C_k, so the clip bound does not touch the privacy: round k is the
Poisson-sampled Gaussian of multiplier 1 / mu_k whatever C_k is. The paper's four variants:

| variant  | clip_decay | budget_growth |
|----------|------------|---------------|
| Dyn      | > 1        | > 1           |
| Dyn[C]   | > 1        | 1             |
| Dyn[mu]  | 1          | > 1           |
| Const    | 1          | 1             |

Either course may be a list instead, as the paper's Algorithm 2 takes any: `clip_multiples` of C_0,
and `noise_multiples` of one noise multiplier, an entry a round, or one for each of L equal
stretches of rounds. Nothing but the rounds' multipliers enters an epsilon, so a list is composed as
it stands.

Where we differ from the paper: mu_0 comes from the privacy loss distribution of the very sequence
of rounds, verified, and not from the central limit theorem, which claims too little; its figure is
`dyn_d2p_clt`. Batches are Poisson batches of any rate; the paper draws one example. Its values of
C_0, rho_c and rho_mu are not known to us: 1, 4 and 4 are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..accounting.accountant import composed_epsilon
from ..accounting.limits import scale_for
from ..accounting.request import Accountant, Adjacency, check_pld, check_setting
from ..errors import InputError, within
from ..guarantee import Statement

_USUAL = 4.0  # of clip_decay and of budget_growth
_LEAST, _MOST = 1e-6, 1e6  # of an entry of a list
_SLACKS = (0.0, 1e-15, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6)


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Clip bounds and the course of the budget; how much noise there is, is not part of it.

    Attributes:
        rounds: K, from 1 to 10 million.
        sampling_rate: probability of a record to be in a round's batch, in [0, 1].
        clip_norm: C_0, bound on the norm of one example's gradient in the first round, > 0.
        clip_decay: rho_c, > 0; 1 keeps the clip norm; by default 4, and None beside a list.
        budget_growth: rho_mu, > 0; 1 keeps the noise multiplier; the same.
        clip_multiples: C_k / C_0 by a list in place of clip_decay, from 1e-6 to 1e6.
        noise_multiples: noise multipliers by a list in place of budget_growth, as multiples of one.

    Raises:
        ValueError: a number is out of range, or a list does not fit the rounds.
        TypeError: `rounds` is not an integer.

    Source: Zhu et al. 2025.

    >>> plan = Schedule(rounds=4, sampling_rate=0.01)
    >>> plan.clip_norms.round(4).tolist()
    [1.0, 0.7071, 0.5, 0.3536]
    >>> plan.noise_stds(8.0).round(4).tolist()  # 8 / sqrt(2) * 0.7071 in the second round
    [8.0, 4.0, 2.0, 1.0]
    >>> steps = Schedule(rounds=4, sampling_rate=0.01, noise_multiples=(2, 1), clip_decay=1)
    >>> steps.noise_multipliers(8.0).tolist()  # of the first round 8
    [8.0, 8.0, 4.0, 4.0]
    """

    rounds: int
    sampling_rate: float
    clip_norm: float = 1.0
    clip_decay: float | None = None
    budget_growth: float | None = None
    clip_multiples: Sequence[float] | None = None
    noise_multiples: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check the ranges, and fill in what is used."""
        check_setting(self.rounds, self.sampling_rate, Adjacency.ADD_OR_REMOVE_ONE, Accountant.PLD)
        within("clip_norm", self.clip_norm, "(0, inf)")
        for name, by_list in (
            ("clip_decay", "clip_multiples"),
            ("budget_growth", "noise_multiples"),
        ):
            value, entries = getattr(self, name), getattr(self, by_list)
            object.__setattr__(self, name, check_course(name, value, by_list, entries))
            if entries is not None:
                object.__setattr__(self, by_list, tuple(map(float, entries)))
                check_length(by_list, len(entries), self.rounds)

    @property
    def clip_norms(self) -> NDArray[np.float64]:
        """C_k of every round, (K,)."""
        return self.clip_norm * self._course(self.clip_decay, self.clip_multiples)

    @property
    def relative_multipliers(self) -> NDArray[np.float64]:
        """mu_0 / mu_k of every round, (K,): its noise multiplier over the first one's."""
        course = self._course(self.budget_growth, self.noise_multiples)
        return course / course[0]

    def noise_multipliers(self, first_multiplier: float) -> NDArray[np.float64]:
        """1 / mu_k of every round, (K,), where the first round's is `first_multiplier`."""
        return first_multiplier * self.relative_multipliers

    def noise_stds(self, first_multiplier: float) -> NDArray[np.float64]:
        """C_k / mu_k of every round, (K,): noise on the sum of clipped gradients."""
        return self.clip_norms * self.noise_multipliers(first_multiplier)

    def _course(self, change: float | None, entries: Sequence[float] | None) -> NDArray[np.float64]:
        """What falls by a factor over the run, or goes as a list says, (K,)."""
        if entries is not None:
            return np.repeat(np.array(entries), self.rounds // len(entries))
        return (change or _USUAL) ** -(np.arange(self.rounds) / self.rounds)


def check_course(
    name: str, change: float | None, by_list: str, entries: Sequence[float] | None
) -> float | None:
    """Refuse a factor or a list that is out of range, and both together.

    Args:
        change: by how much the course changes over the run; None where nobody says.
        entries: the list, or None.

    Returns:
        The factor; 4 where nothing is said, None beside a list.

    >>> check_course("clip_decay", None, "clip_norms", None)
    4.0
    """
    if entries is None:
        change = _USUAL if change is None else change
        within(name, change, "(0, inf)", "1 keeps every round alike")
        return change
    if change is not None:
        raise InputError(f"{name}={change} has no effect beside {by_list}; leave one of them out")
    if not len(entries):
        raise InputError(f"{by_list} is empty; give an entry for every round, or leave it out")
    for place, entry in enumerate(entries):
        if isinstance(entry, bool) or not _LEAST <= entry <= _MOST:
            raise InputError(
                f"{by_list}[{place}]={entry} must lie in [{_LEAST:g}, {_MOST:g}]; entries are "
                "multiples of the run's own"
            )
    return None


def check_length(by_list: str, count: int, rounds: int) -> None:
    """Refuse a list whose entries do not share the rounds evenly.

    Raises:
        ValueError: with both counts.

    >>> check_length("clip_norms", 5, 100)
    """
    if rounds % count:
        raise InputError(
            f"{by_list} has {count} entries, which does not fit rounds={rounds}; give one for each "
            f"round, or one for each of so many equal stretches, a number that divides {rounds}"
        )


def scheduled_epsilon(
    schedule: Schedule,
    first_multiplier: float,
    *,
    statement: Statement,
    joint_sensitivity: float = 1.0,
) -> float:
    """Return the privacy loss of a schedule, by the privacy loss distribution of its rounds.

    Args:
        first_multiplier: 1 / mu_0, noise std on the first round's sum / its clip norm, >= 0.
        statement: what epsilon is said of; by the accountant "pld".
        joint_sensitivity: J of everything that is released of one batch, at noise multiplier 1
            and clip norm 1; `Guarantee.joint_sensitivity`.

    Returns:
        epsilon in nats, an upper bound; infinite without noise, or where J is infinite.

    Raises:
        ValueError: a value is outside its range.

    >>> plan = Schedule(rounds=500, sampling_rate=0.01)
    >>> round(scheduled_epsilon(plan, 4.0, statement=Statement(delta=1e-5)), 2)
    0.64
    """
    check_pld(statement.accountant)
    within("joint_sensitivity", joint_sensitivity, "[0, inf]")
    remedy = "it is noise_std / clip_norm of the first round"
    within("first_multiplier", first_multiplier, "[0, inf]", remedy)
    if joint_sensitivity == 0.0 or schedule.sampling_rate == 0.0:
        return 0.0
    if math.isinf(joint_sensitivity):
        return math.inf
    each = schedule.noise_multipliers(first_multiplier) / joint_sensitivity  # (K,)
    rounds = [(m, schedule.sampling_rate) for m in each.tolist()]
    return composed_epsilon(rounds, delta=statement.delta, adjacency=statement.adjacency)


def calibrated_schedule(
    schedule: Schedule, *, epsilon: float, statement: Statement, joint_sensitivity: float = 1.0
) -> float:
    """Return the least first noise multiplier, 1 / mu_0, with which a schedule meets its target.

    Args:
        schedule: the rounds.
        epsilon: privacy loss of all rounds together, in nats, > 0 and finite.
        statement: what epsilon is said of; by the accountant "pld".
        joint_sensitivity: J of everything that is released of one batch, at noise multiplier 1
            and clip norm 1.

    Returns:
        1 / mu_0, rounded up and evaluated: `scheduled_epsilon` of it is at most `epsilon`. 0 where
        nothing is released.

    Raises:
        ValueError: a value is outside its range, no noise hides what is released, or delta is no
            smaller than the probability that a record is ever sampled.

    >>> plan = Schedule(rounds=100, sampling_rate=1.0)
    >>> round(calibrated_schedule(plan, epsilon=1.0, statement=Statement(delta=1e-5)), 3)
    86.172
    """
    check_pld(statement.accountant)
    within("joint_sensitivity", joint_sensitivity, "[0, inf]")
    if math.isinf(joint_sensitivity):
        raise InputError(
            "joint_sensitivity=inf: no noise multiplier hides what is released without noise"
        )
    if joint_sensitivity == 0.0 or schedule.sampling_rate == 0.0:
        return 0.0
    # One factor for all rounds, evaluated until the schedule itself meets the target.
    least = scale_for(
        [(r, schedule.sampling_rate) for r in schedule.relative_multipliers.tolist()],
        epsilon=epsilon,
        delta=statement.delta,
        adjacency=statement.adjacency,
    )
    found, spent = 0.0, math.inf
    for slack in _SLACKS:  # dividing by J again must not spend more by a rounding
        found = joint_sensitivity * least * (1.0 + slack)
        spent = scheduled_epsilon(
            schedule, found, statement=statement, joint_sensitivity=joint_sensitivity
        )
        if spent <= epsilon:
            return found
    raise ArithmeticError(f"first_multiplier={found} spends {spent}, above epsilon={epsilon}")
