"""An algorithm by its name in a run file: of the registry, or one's own as "module:NAME"."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass

from ...privacy.errors import InputError, did_you_mean
from ..algorithms import ALGORITHMS, Algorithm
from .names import found_object, is_own, own_object

__all__ = ["algorithm_named", "known_algorithm"]

_KEY = "name"


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of a name.

    Args:
        name: in the registry, or "module:NAME" of one's own.

    Raises:
        InputError: there is none, or what the name stands for is no algorithm.

    >>> algorithm_named("dpdl").settings().momentum
    0.9
    >>> algorithm_named("math:tau")
    Traceback (most recent call last):
    overhear...InputError: name='math:tau' is a float; it must be an Algorithm(...)
    """
    if not is_own(name):
        if name not in ALGORITHMS:
            raise InputError(
                f"name={name!r} must be one of {', '.join(ALGORITHMS)}, or name your own as "
                f'"module:NAME"{did_you_mean(name, ALGORITHMS)}'
            )
        return ALGORITHMS[name]
    found = own_object(name, key=_KEY)
    if not isinstance(found, Algorithm):
        kind = "function" if callable(found) and not isinstance(found, type) else None
        raise InputError(
            f"{_KEY}={name!r} is a {kind or type(found).__name__}; it must be an Algorithm(...)"
        )
    if not (isinstance(found.settings, type) and is_dataclass(found.settings)):
        raise InputError(
            f"{_KEY}={name!r} has settings={found.settings!r}; they must be a frozen dataclass of "
            "its hyper-parameters"
        )
    for field in fields(found.settings):
        if field.default is MISSING and field.default_factory is MISSING:
            raise InputError(
                f"{_KEY}={name!r}: its hyper-parameter {field.name!r} has no default; give it one "
                f"in {found.settings.__name__}"
            )
    return found


def known_algorithm(name: str) -> Algorithm | None:
    """The algorithm of a name, if it is one of the registry or was found before; nothing is run."""
    found = ALGORITHMS.get(name) or found_object(name)
    return found if isinstance(found, Algorithm) else None
