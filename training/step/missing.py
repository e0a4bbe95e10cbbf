"""Scripts of steps from whose rounds agents may be missing although nobody knew it beforehand.

What is proven of them is in `graphs.missing`. A step may not know who is missing: its script with
everybody there and its scripts without the sets that are traced are the same. Weights are the one
exception, since whoever weighs what arrived knows what arrived. So weights weigh what was sent, and
no noise and no gradient that an agent still holds back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...privacy.errors import UnsupportedView
from .operations import OPERATIONS, Apart
from .script import Operation

_PLAIN = {"state", "+", "-", "*", "/", "return"}  # what a script has beside operations
_OF_ANYBODY = _PLAIN | {name for name, of in OPERATIONS.items() if of.apart is Apart.NOTHING}
_WITHOUT_LINKS = _PLAIN | {name for name, of in OPERATIONS.items() if of.apart < Apart.LINKS}
_HANDLES = ("Agents", "Edges", "Server")
_REMEDY = (
    "use round.weights, or a table of round.of_edges, as weights of what is received alone "
    "(round.mix, round.sum_in, round.postprocess), or leave missing out"
)

_Value = tuple[object, ...]


def alike_agents(scripts: Sequence[Sequence[Operation]], same: frozenset[int]) -> frozenset[int]:
    """Those of the `same` agents that change places with each other, by all scripts of a run."""
    return same if interchangeable(scripts) else frozenset()


def interchangeable(scripts: Sequence[Sequence[Operation]]) -> bool:
    """Whether nothing in scripts can tell two agents apart: no link, no table and no factor.

    Every operation then does to each agent what it does to any other, and a sum over agents does
    not depend on their order. So a run with agents renamed is the run of the renamed agents.
    """
    return all(
        entry.operation in _OF_ANYBODY
        and ("Edges", "weights") not in _values(entry.given)
        and (entry.operation == "return" or not _holds_table(entry.given))
        and (entry.operation != "noise" or not _is_shared(entry))
        for script in scripts
        for entry in script
    )


def _values(given: object) -> Iterator[_Value]:
    """The values that an operation was given, each by kind and number."""
    if not isinstance(given, tuple):
        return
    if len(given) == 2 and given[0] in _HANDLES and not isinstance(given[1], float):
        yield given
    for one in given:
        yield from _values(one)


def _holds_table(given: object) -> bool:
    if hasattr(given, "digest"):
        return True
    return isinstance(given, tuple) and any(map(_holds_table, given))


def _is_shared(noise: Operation) -> bool:
    """Whether noise has sources or knowers of its own, which need not be alike for all agents."""
    given = dict(noise.given)
    return any(given.get(name) is not None for name in ("factor", "known_to"))


def uses_links(scripts: Sequence[Sequence[Operation]]) -> bool:
    """Whether some operation may look at who is joined with whom."""
    return not all(entry.operation in _WITHOUT_LINKS for script in scripts for entry in script)


def check_weights(script: Sequence[Operation]) -> None:
    """Refuse weights that do more than to weigh what arrives: who is missing changes them.

    Raises:
        UnsupportedView: they scale or make something else.
    """
    weights: set[_Value] = {("Edges", "weights")}
    for number, entry in enumerate(script):
        given = dict(entry.given)
        if entry.operation == "of_edges":
            weights.add(("Edges", number))
        if weights.isdisjoint(_values(entry.given)):
            continue
        if entry.operation == "own":  # of each agent the weight of itself
            weights.add(("Agents", number))
        elif entry.operation == "sum_in":
            if given.get("value 0") in weights:
                raise UnsupportedView(f"the step adds up weights: {_REMEDY}")
        elif entry.operation not in ("postprocess", "bounded"):
            raise UnsupportedView(
                f"the step uses weights in {entry.operation!r}, and they change where agents are "
                f"missing, which no one knows when noise is made: {_REMEDY}"
            )


def check_unaware(
    whole: Sequence[Sequence[Operation]], part: Sequence[Sequence[Operation]], away: frozenset[int]
) -> None:
    """Refuse a step that knows who is missing by more than the weights of what it receives.

    Args:
        whole: the scripts of a start and of rounds, with everybody there.
        part: the same without those who are missing.

    Raises:
        UnsupportedView: the scripts differ.
    """
    same = len(whole) == len(part)
    for one, other in zip(whole, part, strict=False):
        same = same and len(one) == len(other)
        for a, b in zip(one, other, strict=False):
            same = same and (a == b or a.operation == b.operation == "of_edges")
    if not same:
        who = ", ".join(str(a) for a in sorted(away))
        raise UnsupportedView(
            f"the step does something else where agents {who} are missing, which no one knows when "
            f"noise is made: {_REMEDY}"
        )
