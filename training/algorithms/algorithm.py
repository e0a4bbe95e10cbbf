"""Algorithm: what the registry knows of one, and how its numbers are bound."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from .form import Form


@dataclass(frozen=True, kw_only=True, slots=True)
class NoSettings:
    """An algorithm without hyper-parameters of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """An algorithm.

    Attributes:
        name: its name in a run file.
        init: `init(round) -> State`.
        step: `step(state, round, *, hyper-parameters) -> State`; the field `x` holds the models.
        settings: frozen dataclass of its own hyper-parameters, with defaults.
        private: whether it clips and adds noise at all.
    """

    name: str
    init: Callable[..., Any]
    step: Callable[..., Any]
    settings: type = NoSettings
    private: bool = True


class Bound(NamedTuple):
    """`init(round)` and `step(state, round)` with every number given."""

    init: Callable[..., Any]
    step: Callable[..., Any]


def bind(
    algorithm: Algorithm,
    settings: Any,
    *,
    form: Form = Form.REPAIRED,
    learning_rate: float,
    clip_norm: float | None,
    noise_std: float,
    batch_size: float,
) -> Bound:
    """Give a step its numbers.

    Args:
        algorithm: one of the registry.
        settings: an instance of `algorithm.settings`.
        form: published or repaired.
        learning_rate: step size.
        clip_norm: bound on one example's gradient; None does not clip.
        noise_std: standard deviation of the noise on a sum of clipped gradients.
        batch_size: public normaliser of a batch's sum.

    Raises:
        TypeError: settings of another algorithm.
        ValueError: a number out of range.
    """
    if not isinstance(settings, algorithm.settings):
        raise TypeError(
            f"settings of {algorithm.name!r} must be {algorithm.settings.__name__}, not "
            f"{type(settings).__name__}"
        )
    if not batch_size > 0:
        raise ValueError(f"batch_size={batch_size} must be positive")
    if not noise_std >= 0:
        raise ValueError(f"noise_std={noise_std} must be at least 0")
    numbers = {
        "form": form,
        "learning_rate": learning_rate,
        "clip_norm": clip_norm,
        "noise_std": noise_std,
        "batch_size": batch_size,
        **{field.name: getattr(settings, field.name) for field in fields(algorithm.settings)},
    }
    wanted = inspect.signature(algorithm.step).parameters
    given = {name: value for name, value in numbers.items() if name in wanted}
    return Bound(algorithm.init, functools.partial(algorithm.step, **given))
