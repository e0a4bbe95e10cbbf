"""What a step may give to an operation besides values: numbers, tables of mixing, agents.

And where values that hold remembered noise may go. A history is carried from round to round and
never counts as seen, so nothing may depend on it but what is sent together with clipped data, and
it may hold nothing but noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ...privacy.errors import InputError, InputTypeError, UndeclaredOperation, within
from ..step.values import SERVER, checked_number
from .linear_forms import Contributions, Group, Known, NoiseSources

if TYPE_CHECKING:
    from scipy.sparse import csr_array


def checked_clip_norm(value: object) -> float | None:
    """A positive finite number, or None.

    Raises:
        TypeError: neither a number nor None.
        ValueError: a number that bounds nothing, or leaves nothing.
    """
    if value is None:
        return None
    remedy = "clip_norm is positive, or None where nothing is clipped"
    number = checked_number("clip_norm", value, least=0.0, most=math.inf, remedy=remedy)
    within("clip_norm", number, "(0, inf)", remedy)
    return number


def checked_factor(factor: Tensor, *, rows: int) -> np.ndarray:
    """(rows, sources) float64, how much of each source is in each row.

    Raises:
        TypeError: no tensor.
        ValueError: another shape, or entries that are not finite.
    """
    if not isinstance(factor, Tensor):
        raise InputTypeError(f"factor of {type(factor).__name__} must be a tensor (rows, sources)")
    mixing: np.ndarray = factor.detach().cpu().double().numpy()
    if mixing.ndim != 2 or len(mixing) != rows:
        raise InputError(f"factor of shape {mixing.shape} must be ({rows}, sources)")
    if not np.isfinite(mixing).all():
        raise InputError("factor holds entries that are not finite; noise is mixed by numbers")
    return mixing


def checked_knowers(
    known_to: Sequence[Any], *, sources: int, agents: int
) -> Sequence[frozenset[int]]:
    """The agents that know each source.

    Raises:
        TypeError: what is no set of agents.
        ValueError: agents that do not exist, or another number of sets than of sources.
    """
    if isinstance(known_to, str) or not isinstance(known_to, Sequence):
        raise InputTypeError(
            f"known_to of {type(known_to).__name__} must be a list of sets of agents, one a source"
        )
    if len(known_to) != sources:
        raise InputError(
            f"known_to names knowers of {len(known_to)} sources, but there are {sources}; give "
            "one set of agents for each"
        )
    for knowers in set(map(_as_set, known_to)):
        for agent in knowers:
            if isinstance(agent, bool) or not isinstance(agent, int | np.integer):
                raise InputTypeError(f"known_to: {agent!r} is no number of an agent")
            if not 0 <= agent < agents:
                raise InputError(f"known_to: agent {agent} must lie in 0..{agents - 1}")
    return [_as_set(knowers) for knowers in known_to]


def makers_of(holders: np.ndarray, mixing: np.ndarray | None) -> Sequence[frozenset[int]]:
    """The agents that make each source, where nobody else is said to know it.

    Args:
        holders: (rows,) who holds each row that noise enters.
        mixing: (rows, sources); None where each row has a source of its own.
    """
    if mixing is None:
        alone = {holder: frozenset({holder}) - {SERVER} for holder in set(holders.tolist())}
        return [alone[holder] for holder in holders.tolist()]
    makers = (holders[np.flatnonzero(column)].tolist() for column in mixing.T)
    return [frozenset(of) - {SERVER} for of in makers]


def _as_set(knowers: Any) -> frozenset[Any]:
    if isinstance(knowers, frozenset):
        return knowers
    if isinstance(knowers, set | list | tuple):
        return frozenset(knowers)
    raise InputTypeError(f"known_to: {knowers!r} must be a set of agents")


def check_history(field: str, rows: csr_array, groups: Sequence[Group]) -> None:
    """Refuse a value of a history that holds anything but noise.

    Args:
        rows: what it is made of.
        groups: the columns of the round.

    Raises:
        UndeclaredOperation: it holds contributions, messages, or values that are not of a history.
    """
    used = np.unique(rows.indices[rows.data != 0])
    starts = np.array([group.start for group in groups])
    for at in np.unique(np.searchsorted(starts, used, side="right") - 1).tolist():
        group = groups[at]
        if isinstance(group, NoiseSources) or (isinstance(group, Known) and group.history):
            continue
        if isinstance(group, Contributions):
            what = "clipped data"
        else:
            what = group.what if isinstance(group, Known) else f"what was sent ({group.kind})"
        raise UndeclaredOperation(
            f"the history {field!r} of the state holds {what}, and a tuple in the state holds "
            "noise alone: it is carried on and is never treated as public; keep in it what "
            "round.remembered returns, and everything else in a field of its own"
        )


def check_shown(what: str, rows: csr_array, groups: Sequence[Group], here: np.ndarray) -> None:
    """Refuse to show, or to compute at, remembered noise that is not behind clipped data.

    Args:
        what: is done with the value.
        here: (rows,) whether its holder takes part.

    Raises:
        UndeclaredOperation: a row holds noise of a history and no contribution of the round.
    """
    histories = [g for g in groups if isinstance(g, Known) and g.history]
    if not histories:
        return
    bare = _entries(rows, histories) & here
    bare &= ~_entries(rows, [g for g in groups if isinstance(g, Contributions)])
    if bare.any():
        raise UndeclaredOperation(
            f"{what}, row {int(np.flatnonzero(bare)[0])}, is made of remembered noise without a "
            "clipped sum of the round: who sees it can subtract that noise from what was sent "
            "before; add the noise of round.remembered to a clipped sum first"
        )


def _entries(rows: csr_array, groups: Sequence[Group]) -> np.ndarray:
    """(rows,) whether each has an entry in one of the groups' columns."""
    columns = np.zeros(rows.shape[1])
    for group in groups:
        columns[group.start : group.start + group.size] = 1.0
    return np.asarray(abs(rows) @ columns) > 0
