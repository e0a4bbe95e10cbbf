"""A total in words: what was added up, of which records, and what it does not count."""

from __future__ import annotations

from collections.abc import Iterator

from ...privacy.guarantee import Unit
from ...runs.numbers import small
from ..schema import Total

__all__ = ["notes", "sentences"]

_UNCOUNTED = (
    "Not counted: runs that are not named here, such as those that hyper-parameters were chosen "
    "by, runs that were deleted, and whatever other programs released of these records."
)
_COMPOSED = {
    "privacy loss distribution": (
        "All releases that the ledgers name are composed by privacy loss distribution; epsilons "
        "are not added up."
    ),
    "as its report": "One run is given, so every figure is that of its own report.",
}


def sentences(total: Total) -> Iterator[str]:
    """What a reader must know of a total.

    Args:
        total: as `total_of_runs` gives it.
    """
    yield _counted(total)
    yield from notes(total)


def notes(total: Total) -> Iterator[str]:
    """The same without the figures, which a page cites.

    Args:
        total: as `total_of_runs` gives it.
    """
    yield _COMPOSED[total.composed]
    yield _records(total)
    victims = {one.victim for one in total.runs}
    if victims != {None}:
        yield (
            f"The figures are for the records of agent {victims.pop()} alone: the run files name "
            "it as the victim."
        )
    unproven: dict[tuple[str, str], list[str]] = {}
    for one in total.adversaries:
        if one.status != "proven":
            unproven.setdefault((one.status, one.because), []).append(one.name)
    for (status, because), names in unproven.items():
        yield f"{', '.join(names)}: {status}: {because}."
    if total.left_out:
        yield (
            f"Not every run accounts for {', '.join(total.left_out)}, so no total is known for "
            "these."
        )
    yield _UNCOUNTED


def _counted(total: Total) -> str:
    each = "; ".join(_run(one.run, one.rounds, one.planned_rounds) for one in total.runs)
    return (
        f"Counted at delta {small(total.delta)}, for one "
        f"{Unit(total.unit).name_with(total.records_per_person)} ({total.adjacency}): {each}."
    )


def _run(name: str, rounds: int, planned: int) -> str:
    released = f"{rounds} releases of rounds" if rounds != 1 else "1 release of a round"
    of = f"{planned} planned" if planned > rounds else "all that were planned"
    return f"{name} ({released}, {of}{' counted' if planned > rounds else ''})"


def _records(total: Total) -> str:
    if len(total.runs) == 1:
        return "Other runs on the same records cost more together; name them, too."
    if total.records != "the same":
        return (
            "The runs are assumed to be on the same records; nothing shows that they are. For a "
            "record that is in fewer of them the figures are upper bounds."
        )
    if total.holders == "the same":
        return "Every agent holds the same records in all runs."
    return (
        "The runs deal the same records to agents differently, so a record may be at the worst-off "
        "agent of each."
    )
