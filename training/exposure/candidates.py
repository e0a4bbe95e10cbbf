"""Which adversaries a name asks for, and about whose records each of them is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from ...privacy.errors import InputError, UnsupportedView
from ...privacy.guarantee import (
    ALL_OTHERS,
    SINGLE_MESSAGE,
    WORST_NEIGHBOUR,
    Adversary,
    coalition,
    neighbour,
    parse_adversary,
)

if TYPE_CHECKING:
    from ..tracing.trace import AlgorithmTrace

CLEAR_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, "final-models", "single-message")
ENCRYPTED_DEFAULT = ("eavesdropper", WORST_NEIGHBOUR, ALL_OTHERS, "final-models", "single-message")


class _AllBut(Sequence[int]):
    """The numbers below a bound but for one, without a list of them for each one."""

    def __init__(self, bound: int, without: int) -> None:
        self._bound, self._without = bound, without

    def __len__(self) -> int:
        return self._bound - 1

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        found = range(len(self))[index]
        return found + (found >= self._without)


def candidates(
    traces: AlgorithmTrace, name: str, victim: int | None = None
) -> list[tuple[Adversary, Sequence[int]]]:
    """The adversaries that a name asks for, each with the victims that it is asked about.

    Raises:
        ValueError: an unknown adversary or a victim that does not exist.
        UnsupportedView: no victim is left, or the victim is one of the adversary's agents.
    """
    agents = traces.start.record.agents
    if victim is not None and not 0 <= victim < agents:
        raise InputError(f"victim={victim} must lie in 0..{agents - 1}")
    asked = [victim] if victim is not None else list(range(agents))
    found: list[tuple[Adversary, Sequence[int]]]
    if name == WORST_NEIGHBOUR and victim is None:
        found = [(neighbour(k), _AllBut(agents, k)) for k in range(agents)]
    elif name == WORST_NEIGHBOUR:
        found = [(neighbour(k), asked) for k in range(agents) if k != victim]
    elif name == ALL_OTHERS:
        found = [(coalition(set(range(agents)) - {v}), [v]) for v in asked if agents > 1]
    else:
        who = parse_adversary(name, agents)
        if victim in who.agents:
            raise UnsupportedView(f"{who.name} contains the victim {victim}; choose another")
        found = [(who, [v for v in asked if v not in who.agents])]
    found = [(who, victims) for who, victims in found if victims]
    if not found:
        raise UnsupportedView(f"adversary {name!r} leaves no victim among {agents} agents")
    return found


def usual_of_person(
    names: Sequence[str], *, holders: Sequence[tuple[int, int]], agents: int
) -> list[str]:
    """The adversaries that are accounted for where none are asked for, with several holders.

    Args:
        names: the usual ones about one record of one agent.
        holders: (agent, records) of each.
        agents: how many there are.
    """
    outside = agents - len(holders)
    of_agents = (WORST_NEIGHBOUR, ALL_OTHERS)
    kept = [n for n in names if n != SINGLE_MESSAGE.name]
    return [n for n in kept if outside or n not in of_agents]
