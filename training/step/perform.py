"""Carry out a start or a step on a round: what it is given, and what it may return.

The same for a round that trains and for one that is traced. The step gets a state of handles and
copies of its public tensors, and returns one; nothing else of a round outlives it.

A field may be a tuple of values: a history, which holds noise alone. Whoever holds a state holds
the values of a history side by side, `past` as `past_1`, `past_2`, ..., and only the step sees the
tuple. `histories_of` names them.
"""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from ...privacy.errors import InputError, InputTypeError, UndeclaredOperation, describe, line_of
from . import values
from .handles import Agents, Handle, handle, number_of, script_of, value_of
from .operations import NoiseWatch, Operations
from .round import Round
from .script import MOST_OPERATIONS, Operation, Script, digest

_MOST_PAIRS, _FEWEST = 700_000_000, 500  # of operations, over all agents: 200 MB of forms
_STATE = "a state is a NamedTuple of Agents, tuples of Agents that hold noise, and public tensors"


class Performed(NamedTuple):
    """What a round came to.

    Attributes:
        state: what the step returned, with values in place of handles.
        script: all that it did.
    """

    state: Any
    script: tuple[Operation, ...]


def perform(
    function: Callable[..., Any],
    operations: Operations,
    *,
    number: int,
    state: Any = None,
    planned: Sequence[Operation] | None = None,
    watch: NoiseWatch | None = None,
) -> Performed:
    """Carry out `init(round)`, or `step(state, round)` where there is a state.

    Args:
        function: the start or the step, with every number bound.
        operations: what carries out its operations.
        number: of the round, for sentences.
        state: of values and public tensors; None for a start.
        planned: the script of the round's trace; None where nothing is compared.
        watch: is shown the noise, and may stop the round.

    Raises:
        UnplannedOperation: the round does another thing than its trace did.
        UndeclaredOperation: it does what no operation declares, or returns no state.
        InputError: it raises an error of its own, or exits.
    """
    script = Script(round=number, planned=planned, most=_most_operations(operations.agents))
    held = Round(operations, script, watch)
    given = (held,) if state is None else (_opened(state, script), held)
    try:
        returned = function(*given)
    except (Exception, SystemExit) as error:
        # What an operation refused, the script knows, and lets pass; the rest is the step's own.
        if isinstance(error, InputError | RecursionError | MemoryError) or script.failed:
            raise
        raise InputTypeError(
            f"the algorithm's {'init' if state is None else 'step'} raised "
            f"{describe(error)}{line_of(error)}; mend it"
        ) from error
    end = _closed(returned, script, state)
    kept = {k: operations.held(k, v) for k, v in _values(end)}  # of public tables, too
    end = _with_absent(operations, state, end._replace(**kept))
    entries = script.finished()
    if watch is not None:
        watch.settle(at_end=True)
    return Performed(end, entries)


def _most_operations(agents: int) -> int:
    """Operations whose forms a trace can hold: at worst each names what all before it made."""
    return max(_FEWEST, min(MOST_OPERATIONS, math.isqrt(_MOST_PAIRS // agents)))


def fields_of(state: Any) -> dict[str, Any]:
    """The fields of a state by name.

    Raises:
        UndeclaredOperation: it is no NamedTuple.
    """
    names = getattr(type(state), "_fields", None)
    if not isinstance(state, tuple) or not isinstance(names, tuple) or len(names) != len(state):
        raise UndeclaredOperation(f"a step returned {type(state).__name__}; {_STATE}")
    return dict(zip(names, state, strict=True))


def _opened(state: Any, script: Script) -> Any:
    """A state of handles, and of copies of its public tensors."""
    fields = {}
    for name, held in fields_of(state).items():
        if isinstance(held, values.Agents):
            number = script.note("state", {"field": name})
            fields[name] = handle(held, script, number)
        else:
            fields[name] = held.clone()
            script.note("state", {name: digest(held, operation="state", name=name)})
    return type(state).opens(**fields)


def histories_of(state: Any) -> frozenset[str]:
    """The fields of a state that is held by a run which are values of a history."""
    return getattr(type(state), "histories", frozenset())


@functools.cache
def _held_by_the_run(kind: Any, lengths: tuple[int | None, ...]) -> Any:
    """A NamedTuple with the values of a step's state, whose code never meets one.

    Args:
        kind: the class of the step's state.
        lengths: of each field the number of values of a history; None where it is none.
    """
    parts = {
        name: (name,) if length is None else tuple(f"{name}_{i + 1}" for i in range(length))
        for name, length in zip(kind._fields, lengths, strict=True)
    }
    names = [part for of in parts.values() for part in of]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UndeclaredOperation(
            f"the state has a field {twice!r} beside a history whose values are called so; give "
            "one of them another name"
        )
    whole = [name for name, length in zip(kind._fields, lengths, strict=True) if length is None]

    def opens(**fields: Any) -> Any:
        return kind(
            **{
                name: fields[name] if name in whole else tuple(fields[one] for one in of)
                for name, of in parts.items()
            }
        )

    own = {"opens": staticmethod(opens), "histories": frozenset(names) - frozenset(whole)}
    return type(kind.__name__, (namedtuple(kind.__name__, names),), own)


def _closed(returned: Any, script: Script, before: Any) -> Any:
    """The state that a step returned, with values in place of handles."""
    try:
        every = fields_of(returned)
        for name, held in every.items():
            if type(held) is tuple and name in getattr(before, "_fields", ()):
                _refuse(name, "a tuple, and held a value before")
        lengths = tuple(len(held) if type(held) is tuple else None for held in every.values())
        kind: Any = type(returned)
        held_by_the_run = _held_by_the_run(kind, lengths)
        parts = [_field(name, one, script) for name, held in every.items() for one in _each(held)]
        fields = dict(zip(held_by_the_run._fields, parts, strict=True))
        _check_same_fields(before, fields)
        given = {name: noted for name, (_, noted) in fields.items()}
        script.note("return", given)
    except Exception as error:
        script.give_up(error)
        raise
    return held_by_the_run(**{name: held for name, (held, _) in fields.items()})


def _each(held: object) -> Iterator[object]:
    """The values of a history, or the one value of another field."""
    if type(held) is not tuple:
        yield held
        return
    for one in held:
        if not isinstance(one, Agents):
            raise UndeclaredOperation(
                f"a history of the state holds {type(one).__name__}: it is a tuple of Agents, each "
                "of which holds noise alone"
            )
        yield one


def _with_absent(operations: Operations, before: Any, end: Any) -> Any:
    """The state after a round: absent agents keep what they held, in every field."""
    if before is None or operations.everybody:
        return end
    fields = {name: operations.kept(getattr(before, name), held) for name, held in _values(end)}
    return end._replace(**fields)


def _values(state: Any) -> Iterator[tuple[str, values.Agents]]:
    """The fields of a state that are values, by name."""
    held = state._asdict().items()
    return ((name, value) for name, value in held if isinstance(value, values.Agents))


def _check_same_fields(before: Any, fields: Iterable[str]) -> None:
    """Refuse a state of other fields than the one that it follows."""
    if before is not None and list(fields) != list(before._fields):
        raise UndeclaredOperation(
            f"the step was given a state of {', '.join(before._fields)} and returned one of "
            f"{', '.join(fields)}; init and step return the same NamedTuple, and a history as many "
            "values"
        )


def _field(name: str, held: object, script: Script) -> tuple[Any, Any]:
    """A field of a returned state, and how the script notes it."""
    if isinstance(held, Agents):
        if script_of(held) is not script:
            _refuse(name, "a value of another round")
        return value_of(held), ("Agents", number_of(held))
    if isinstance(held, Handle) or not isinstance(held, Tensor):
        _refuse(name, type(held).__name__)
    kept = Tensor.detach(held).as_subclass(Tensor).clone()
    return kept, digest(kept, operation="return", name=name)


def _refuse(name: str, what: str) -> NoReturn:
    raise UndeclaredOperation(f"state field {name!r} holds {what}; {_STATE}")
