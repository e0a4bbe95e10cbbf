"""What is claimed of a system that runs elsewhere: epsilon at delta, and perhaps the mechanism.

    "epsilon=3,delta=1e-5"                              the pair alone
    "noise=1.0,rate=0.0769,rounds=104,delta=1e-5"       Poisson-sampled Gaussian rounds

With a mechanism an audit reads its errors on that mechanism's own curve; without one only the
theorem about (epsilon, delta) is left, which shows far less of the same canaries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...privacy.accounting.request import Adjacency, check_delta
from ...privacy.errors import InputError, InputTypeError, did_you_mean, within
from ...privacy.guarantee import EAVESDROPPER, Statement
from ...privacy.releases.log import ReleaseLog
from ...training.accounts.declared import account_of_releases
from ..bounds.mechanism import Claim
from ..bounds.mechanism import epsilon as epsilon_of

DELTA = 1e-5
_KEYS = ("epsilon", "delta", "noise", "rate", "rounds")
_ROUNDED = 0.01  # relative; an epsilon may be stated with so many digits


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """What an audit checks its scores against.

    Attributes:
        epsilon: that nobody learns more than, in nats; infinite where nothing is claimed.
        delta: strictly between 0 and 1.
        mechanism: what it is the epsilon of, where that is known.

    Raises:
        ValueError: a value outside its range, or a mechanism that costs more than epsilon.
    """

    epsilon: float
    delta: float
    mechanism: Claim | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself before anything is measured."""
        check_delta(self.delta)
        within("epsilon", self.epsilon, "[0, inf]", ", in nats; 1 to 10 is usual")
        if self.mechanism is None:
            return
        cost = epsilon_of(self.mechanism, self.delta)
        if math.isinf(cost):
            raise InputError(
                "the claimed mechanism has epsilon inf, so there is nothing to contradict; claim "
                "an epsilon by itself, or a mechanism with noise"
            )
        if cost > self.epsilon * (1.0 + _ROUNDED):
            raise InputError(
                f"the claimed mechanism costs epsilon {cost:.4g} at delta {small(self.delta)}, "
                f"more than the claimed {self.epsilon:.4g}; correct the one or the other"
            )
        # Digits that were rounded off contradict nothing.
        object.__setattr__(self, "epsilon", max(self.epsilon, cost))

    @property
    def is_tested(self) -> bool:
        """Whether anything is claimed that scores could contradict."""
        return math.isfinite(self.epsilon)

    def words(self) -> str:
        """What is claimed, as a noun."""
        if not self.is_tested:
            return f"nothing at delta {small(self.delta)}"
        said = f"epsilon {self.epsilon:.4g} at delta {small(self.delta)}"
        if self.mechanism is None:
            return f"{said}, whatever the mechanism"
        parts = [
            f"{count} round{'' if count == 1 else 's'} at noise {one.noise_multiplier:.4g} and "
            f"rate {one.moves.rate:.4g}"
            for one, count in self.mechanism.events.items()
        ]
        shown = " and ".join(parts) if len(parts) < 3 else f"{len(parts)} kinds of rounds"
        return f"{said}, of {shown}"


def claimed(
    *,
    epsilon: float | None = None,
    delta: float = DELTA,
    noise: float | None = None,
    rate: float | None = None,
    rounds: int | None = None,
    adjacency: str = Adjacency.ADD_OR_REMOVE_ONE,
) -> Claimed:
    """A claim by its numbers.

    Args:
        epsilon: in nats; by default that of the mechanism.
        delta: strictly between 0 and 1.
        noise: noise multiplier, the noise's deviation on the sum in clip norms.
        rate: probability that a record is in a batch, each on its own; 1 for all in each.
        rounds: how many steps.
        adjacency: of the mechanism: "add-or-remove-one", "zero-out" or "replace-one".

    Raises:
        ValueError: neither an epsilon nor a mechanism, a part of one, or a value out of range.
        TypeError: a value that is no number.

    >>> round(claimed(noise=1.0, rate=0.0769, rounds=104, delta=1e-5).epsilon, 2)
    5.49
    """
    given = {"noise": noise, "rate": rate, "rounds": rounds}
    missing = [name for name, value in given.items() if value is None]
    if noise is None or rate is None or rounds is None:
        if len(missing) < len(given):
            raise InputError(
                f"a mechanism takes noise, rate and rounds together; {' and '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing"
            )
        if epsilon is None:
            raise InputError(
                "nothing is claimed: give epsilon and delta, such as epsilon=3,delta=1e-5, or a "
                "mechanism, such as noise=1.0,rate=0.0769,rounds=104"
            )
        return Claimed(epsilon=_number("epsilon", epsilon), delta=_number("delta", delta))
    mechanism = Claim(
        rounds={(_number("noise", noise), _number("rate", rate)): rounds},
        adjacency=Adjacency(adjacency),
    )
    check_delta(delta)
    cost = epsilon_of(mechanism, delta) if epsilon is None else _number("epsilon", epsilon)
    return Claimed(epsilon=cost, delta=_number("delta", delta), mechanism=mechanism)


def parse_claim(texts: Sequence[str]) -> Claimed:
    """A claim as it is written on a command line; several texts are one claim.

    Args:
        texts: such as "epsilon=3,delta=1e-5"; "noise=1.0,rate=0.0769,rounds=104".

    Raises:
        ValueError: an unknown key, one that is given twice, or a value that is no number.

    >>> parse_claim(["epsilon=3,delta=1e-5"]).epsilon
    3.0
    """
    values = parsed_numbers(texts)
    if "rounds" in values and not values["rounds"].is_integer():
        raise InputError(f"rounds={values['rounds']:g} must be a whole number of steps")
    return claimed(
        epsilon=values.get("epsilon"),
        delta=values.get("delta", DELTA),
        noise=values.get("noise"),
        rate=values.get("rate"),
        rounds=int(values["rounds"]) if "rounds" in values else None,
    )


def parsed_numbers(texts: Sequence[str]) -> dict[str, float]:
    """The numbers of `parse_claim`'s texts, by key.

    >>> parsed_numbers(["epsilon=3, delta=1e-5"])
    {'epsilon': 3.0, 'delta': 1e-05}
    """
    values: dict[str, float] = {}
    for text in texts:
        for part in text.split(","):
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or key not in _KEYS:
                raise InputError(
                    f"{part!r:.60} in the claim must be KEY=VALUE with one of {', '.join(_KEYS)}"
                    + did_you_mean(key, _KEYS)
                )
            if key in values:
                raise InputError(f"{key} is claimed twice; give each number once")
            try:
                values[key] = float(value)
            except ValueError:
                said = f"{key}={value!r:.40} in the claim must be a number"
                raise InputError(said) from None
    return values


def claim_of_log(log: ReleaseLog, *, delta: float = DELTA, epsilon: float | None = None) -> Claimed:
    """The mechanism that declared releases are to who reads all of them.

    Args:
        log: of a system's releases.
        delta: strictly between 0 and 1.
        epsilon: where one is claimed beside the log; at least that of the log.

    Raises:
        ValueError: releases that nothing protects, so that there is nothing to contradict, or that
            cost more than the claimed epsilon.
        UnsupportedView: a log without a victim, or whose figure cannot be expressed.
    """
    statement = Statement(delta=delta, unit=log.header.unit)
    account = account_of_releases(log, statement=statement, adversaries=[EAVESDROPPER.name])
    worst = account[EAVESDROPPER.name]
    if math.isinf(worst.epsilon):
        raise InputError(
            f"the log's eavesdropper has epsilon inf ({worst.because}), so there is nothing to "
            "contradict; correct the log, or claim an epsilon instead"
        )
    counts: Counter[tuple[float, float]] = Counter()
    for one in account.joint_sensitivities[EAVESDROPPER.name].releases:
        counts[1.0 / one.joint_sensitivity, one.sampling_rate] += one.rounds
    rounds: Mapping[tuple[float, float], int] = counts or {(math.inf, 1.0): 1}
    mechanism = Claim(rounds=dict(rounds))
    return Claimed(
        epsilon=worst.epsilon if epsilon is None else epsilon, delta=delta, mechanism=mechanism
    )


def small(delta: float) -> str:
    """Delta as it is written elsewhere."""
    return f"{delta:g}".replace("e-0", "e-")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputTypeError(f"{name}={value!r} must be a number")
    return float(value)
