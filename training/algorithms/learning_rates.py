"""Learning rates of a run: one of all rounds, one each, or a schedule by its name.

The names are those of PyTorch and of the literature. With t the rounds after the warmup, from 0,
and T' how many of them the run has:

| schedule       | rate                                         | elsewhere               |
|----------------|----------------------------------------------|-------------------------|
| "constant"     | start                                        | -                       |
| "step"         | start factor^floor(t / every)                | torch StepLR            |
| "linear"       | start + (end - start) t / T'                 | torch LinearLR          |
| "cosine"       | end + (start - end) (1 + cos(pi t / T')) / 2 | torch CosineAnnealingLR |
| "inverse-sqrt" | start / sqrt(1 + t / max(1, warmup))         | Vaswani et al. 2017     |

`end` is 0 unless it is given; as in PyTorch it would be reached in the round after the last, so no
round has rate 0. In the rounds of `warmup` the rate rises to `start`: round k has
start k / (warmup + 1).

Rates are public, and are given to the step round by round. What a round costs follows from its
trace, which is made with its own rate.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ...privacy.errors import InputError, InputTypeError, check_real, did_you_mean

Rates = float | tuple[float, ...]
"""One rate of all rounds, or one of each."""

_NAME = "learning_rate"
_SHOWN = 60  # characters of a value in a sentence


class Course(enum.StrEnum):
    """How the rate changes from round to round."""

    CONSTANT = "constant"
    STEP = "step"
    LINEAR = "linear"
    COSINE = "cosine"
    INVERSE_SQRT = "inverse-sqrt"


_BELONGS = {
    "factor": (Course.STEP,),
    "every": (Course.STEP,),
    "end": (Course.LINEAR, Course.COSINE),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSchedule:
    """A schedule of learning rates by its name.

    Attributes:
        schedule: its name.
        start: rate of the first round after the warmup, above 0.
        factor: of "step": by which the rate is multiplied, above 0.
        every: of "step": after how many rounds, from 1.
        end: of "linear" and "cosine": where the rate is heading, at least 0.
        warmup: rounds before, in which it rises.

    Raises:
        ValueError: a number out of range, one that the schedule does not have, or one it lacks.
        TypeError: a number that is none.
    """

    schedule: Course
    start: float
    factor: float | None = None
    every: int | None = None
    end: float | None = None
    warmup: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        course = _course(self.schedule)
        object.__setattr__(self, "schedule", course)
        for name, homes in _BELONGS.items():
            given = getattr(self, name) is not None
            if given and course not in homes:
                belongs = " and ".join(f"'{home}'" for home in homes)
                raise InputError(
                    f"{_NAME} has {name}={getattr(self, name)!r:.40}, which has no effect with "
                    f"schedule='{course}'; it belongs to {belongs}, leave it out"
                )
            if not given and course in homes and name != "end":
                raise InputError(f"{_NAME} lacks {name}, which schedule='{course}' needs; give it")
        for name, bound in (("start", "above"), ("factor", "above"), ("end", "at least")):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _number(name, value, bound, f" of {_NAME}"))
        for name, least in (("every", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < least):
                raise InputError(
                    f"{name}={value!r:.40} of {_NAME} must be a whole number of rounds, at least "
                    f"{least}"
                )

    @property
    def entry(self) -> dict[str, object]:
        """The table that says so in a run file."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: str(value) if name == "schedule" else value
            for name, value in found.items()
            if value is not None and (name != "warmup" or value)
        }

    def rates(self, rounds: int) -> tuple[float, ...]:
        """One rate a round, from 1.

        Raises:
            ValueError: the warmup is as long as the run, or a rate is 0 in floating point.
        """
        if self.warmup >= rounds:
            raise InputError(
                f"warmup={self.warmup} of {_NAME} must be less than rounds={rounds}: no round "
                "would have the rate itself"
            )
        rising = [self.start * (k / (self.warmup + 1)) for k in range(1, self.warmup + 1)]
        left = rounds - self.warmup
        found = (*rising, *(self._after(t, left) for t in range(left)))
        return _checked(found, rounds)

    def _after(self, t: int, rounds: int) -> float:
        """The rate t rounds after the warmup, of so many."""
        end = self.end or 0.0
        match self.schedule:
            case Course.STEP:
                return self._stepped(t // (self.every or 1))
            case Course.LINEAR:
                return self.start + (end - self.start) * (t / rounds)
            case Course.COSINE:
                return end + (self.start - end) * (1.0 + math.cos(math.pi * t / rounds)) / 2.0
            case Course.INVERSE_SQRT:
                return self.start / math.sqrt(1.0 + t / max(1, self.warmup))
            case _:
                return self.start

    def _stepped(self, times: int) -> float:
        try:
            return float(self.start * (self.factor or 1.0) ** times)
        except OverflowError:
            return math.inf


LearningRates = float | tuple[float, ...] | RateSchedule
"""As it is given: one number, a list with one of each round, or a schedule."""


def read_rates(value: object) -> LearningRates:
    """What somebody gives for a learning rate, read.

    Args:
        value: a number, a list of numbers, a table such as {"schedule": "cosine", "start": 0.1}, or
            a `RateSchedule`.

    Raises:
        ValueError: a number out of range, or a table that is no schedule.
        TypeError: something else.
    """
    if isinstance(value, RateSchedule):
        return value
    if isinstance(value, Mapping):
        return _read_table(value)
    value = getattr(value, "tolist", lambda: value)()  # of an array
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if not value:
            raise InputError(
                f"{_NAME}=[] must have one rate for each round; give them, or a number"
            )
        return tuple(
            _number(_NAME, one, "above", f" of round {k}") for k, one in enumerate(value, start=1)
        )
    if isinstance(value, str):
        names = ", ".join(f'"{one}"' for one in Course)
        raise InputTypeError(
            f"{_NAME}={value!r:.40} must be a number, a list with one rate for each round, or a "
            f'table such as {{ schedule = "cosine", start = 0.1 }}; schedules are {names}'
        )
    return _number(_NAME, value, "above")


def rates_of(given: LearningRates, rounds: int | None) -> Rates:
    """One rate of all rounds where they are alike, else one of each.

    Args:
        given: as `read_rates` returns it.
        rounds: T; None takes a list as long as it is.

    Raises:
        ValueError: a list of another length, or a schedule that does not fit the rounds.

    >>> rates_of((0.2, 0.1), 2), rates_of((0.2, 0.2), 2)
    ((0.2, 0.1), 0.2)
    """
    if isinstance(given, RateSchedule):
        if rounds is None:
            raise InputError(
                f"{_NAME} is a schedule of a run, and its rounds are missing; give both"
            )
        given = given.rates(rounds)
    if not isinstance(given, tuple):
        return given
    if rounds is not None and len(given) != rounds:
        raise InputError(
            f"{_NAME} has {len(given)} rates, and the run has rounds={rounds}; give one for each "
            "round, or a schedule, which fits any number"
        )
    return given[0] if len(set(given)) == 1 else given


class Rated(NamedTuple):
    """A step with its learning rates.

    Attributes:
        step: of the algorithm, or one that takes the rate of its round by itself.
        given: the rate by name, where it is one of all rounds.
        step_sizes: else one of each.
    """

    step: Callable[..., Any]
    given: Mapping[str, float]
    step_sizes: tuple[float, ...]


def at_rates(
    init: Callable[..., Any],
    step: Callable[..., Any],
    given: LearningRates,
    *,
    name: str,
    rounds: int | None,
    own: Mapping[str, Any],
) -> Rated:
    """A step at the rate of its round: it counts as reading the round's number.

    Args:
        init: of the algorithm.
        step: of the algorithm.
        name: of the algorithm.
        rounds: of the run; None where nobody says.
        own: its hyper-parameters.

    Raises:
        ValueError: rates of other rounds; or rates that differ of a step without any, a start that
            takes one, or an algorithm with two.
    """
    rates = rates_of(given, rounds)
    if not isinstance(rates, tuple):
        return Rated(step, {_NAME: rates}, ())
    if _NAME not in inspect.signature(step).parameters:
        raise InputError(
            f"the step of {name!r} takes no {_NAME}, so that a schedule of it has no effect; give "
            f"{_NAME} one number"
        )
    if _NAME in inspect.signature(init).parameters:
        raise InputError(
            f"the start of {name!r} takes a {_NAME}, and a schedule has none of the start; give "
            f"{_NAME} one number"
        )
    others = sorted(other for other in own if other.startswith(f"{_NAME}_"))
    if others:
        raise InputError(
            f"algorithm {name!r} has two rates, {_NAME} and {others[0]}, and a schedule of the "
            f"first would change how far apart they are; give {_NAME} one number"
        )
    return Rated(functools.partial(_at_its_rate, step, rates), {}, rates)


def _at_its_rate(
    step: Callable[..., Any], rates: tuple[float, ...], state: Any, round: Any, **numbers: Any
) -> Any:
    """A round with the rate of its number."""
    if round.index > len(rates):
        raise InputError(
            f"round {round.index} is beyond the planned rounds={len(rates)}, for which alone "
            f"{_NAME} is set; plan more rounds"
        )
    return step(state, round, learning_rate=rates[round.index - 1], **numbers)


def _read_table(value: Mapping[object, object]) -> RateSchedule:
    known = [field.name for field in fields(RateSchedule)]
    for name in value:
        if name not in known:
            meant = did_you_mean(name, known, form=repr)
            raise InputError(
                f"{_NAME} has {str(name)!r:.40}, and a schedule has {', '.join(known)}{meant}"
            )
    for name in ("schedule", "start"):
        if name not in value:
            raise InputError(
                f"{_NAME}={dict(value)!r:.{_SHOWN}} lacks {name}; write a table such as "
                '{ schedule = "cosine", start = 0.1 }'
            )
    given: dict[str, Any] = {str(name): one for name, one in value.items()}
    return RateSchedule(**given)


def _course(value: object) -> Course:
    if isinstance(value, str) and value in tuple(Course):
        return Course(value)
    names = [str(one) for one in Course]
    meant = did_you_mean(value, names, form=repr)
    raise InputError(
        f"schedule={value!r:.40} of {_NAME} must be one of {', '.join(map(repr, names))}{meant}"
    )


def _number(name: str, value: object, bound: str, of: str = "") -> float:
    """A finite number above 0, or at least 0."""
    check_real(f"{name}{of}", value)
    try:
        found = float(value)  # type: ignore[arg-type]  # it is a real number
    except OverflowError:
        found = math.inf
    if not (math.isfinite(found) and (found > 0 or (found == 0 and bound == "at least"))):
        remedy = "; end the run where nothing is to be learned" if found == 0 else ""
        raise InputError(f"{name}={value!r:.40}{of} must be a finite number {bound} 0{remedy}")
    return found


def _checked(rates: tuple[float, ...], rounds: int) -> tuple[float, ...]:
    for k, rate in enumerate(rates, start=1):
        if not (math.isfinite(rate) and rate > 0):
            raise InputError(
                f"{_NAME} of round {k} would be {rate:g}, and must be a finite number above 0 in "
                f"all of the rounds={rounds}; change less from round to round, or take fewer rounds"
            )
    return rates
