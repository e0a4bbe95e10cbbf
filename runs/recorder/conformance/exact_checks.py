"""Checks that leave nothing to chance: messages, points, knowledge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....attacks.watching.result import Check
from ....privacy.errors import InputError
from ....privacy.releases.log import party_name
from .kept_rounds import KeptRelease, KeptRounds
from .left_over import LeftOver, Row
from .oracle import raised
from .outcome import Outcome, not_run, outcome_of
from .vectors import vector_of

__all__ = ["Released", "check_knowledge", "check_messages", "check_points"]

_ROUNDING = 64


class Released(NamedTuple):
    """A value that was released and kept, as a function of points is given it."""

    round: int
    sender: int
    kind: str
    value: Tensor


def check_messages(of: LeftOver) -> Outcome:
    """Releases without noise, or with noise that the recorder drew, are what their lines say."""
    name = "messages"
    rows = [row for row in of.rows if row.is_drawn]
    if not rows:
        return not_run(
            name,
            "every release has noise that the recorder did not draw, so what it adds up to cannot "
            "be told exactly; see residuals",
            applies=False,
        )
    faults = [(row, float((row.left - row.drawn).norm())) for row in rows]
    wrong = [(row, off) for row, off in faults if not off <= row.rounding]
    words = (
        f"{len(rows)} releases were compared with what is known of them, their clipped gradients "
        "by the oracle and their drawn noise"
    )
    words += f"; {_first_of(wrong)}" if wrong else "; none differs by more than rounding"
    return outcome_of(
        Check(name=name, passed=not wrong, p=None, tests=len(rows), words=f"{words}.")
    )


def _first_of(wrong: Sequence[tuple[Row, float]]) -> str:
    row, off = wrong[0]
    return (
        f"{len(wrong)} differ, first: {row.at.name} in round {row.at.played.round} is off by "
        f"{off:.2g}, where rounding accounts for {row.rounding:.2g}"
    )


def check_points(
    rounds: KeptRounds,
    *,
    points: Callable[[int, int, Sequence[Released]], Any] | None,
    public: Sequence[Any],
) -> Outcome:
    """Every point at which gradients were taken is released, public, or a function of such.

    Args:
        rounds: what was kept.
        points: (round, agent, released) -> the point, or several of which it must be one.
        public: vectors that everybody knows, such as the initial model.
    """
    name, needed = "points", rounds.log.header.public
    initial = [vector_of(one, "public") for one in public]
    looked, wrong, untold = 0, "", set[int]()
    for at in rounds.releases:
        number = at.played.round
        for j, point in sorted(at.kept.points.items()):
            owner = at.release.of[j].owner
            released = _released_before(rounds, at)
            allowed = [*initial, *(one.value for one in released)]
            if points is not None:
                allowed += _vectors(_asked("points", points, number, owner, released))
            if any(_same(point, one) for one in allowed):
                looked += 1
                continue
            last = rounds.before(number)[-1:]
            if (last and not rounds.is_whole(last[0])) or (not last and not initial):
                untold.add(number)
                continue
            looked += 1
            wrong = wrong or (
                f"the point of {at.name} in round {number} is none that was released or is public"
                + ("" if points is None else ", nor what `points` makes of these")
            )
    if not looked or (untold and not wrong):
        why = (
            f"the points of rounds {', '.join(map(str, sorted(untold)))} cannot be told, since "
            "what was released before them was not kept: keep the round before each, and give the "
            "initial model as public=[...]"
            if untold
            else "no release of these rounds has its point; give point= to release"
        )
        return not_run(name, why, applies=needed)
    words = f"{looked} points were looked for among what was released before"
    words += f"; {wrong}" if wrong else "; each is there"
    return outcome_of(Check(name=name, passed=not wrong, p=None, tests=looked, words=f"{words}."))


def _released_before(rounds: KeptRounds, at: KeptRelease) -> list[Released]:
    """What was released up to a release and kept, of which its point may be made.

    Where a release depends on public ones alone, only those.
    """
    header = rounds.log.header
    found = []
    for number in [*rounds.before(at.played.round), at.played.round]:
        for one in rounds.of_round(number):
            if one.kept is at.kept or (header.public and one.release.to is not None):
                continue
            found.append(
                Released(number, one.release.sender, one.release.kind, one.kept.value.clone())
            )
    return found


def _asked(name: str, function: Callable[..., Any], *given: Any) -> Any:
    """What a function of the auditor's returns."""
    try:
        return function(*given)
    except (Exception, SystemExit) as error:
        raise raised(name, error) from error


def _vectors(found: Any) -> list[Tensor]:
    if found is None:
        return []
    several = isinstance(found, list | tuple)
    return [vector_of(one, "points") for one in (found if several else [found])]


def _same(point: Tensor, other: Tensor) -> bool:
    if point.shape != other.shape:
        return False
    unit = max(torch.finfo(point.dtype).eps, torch.finfo(other.dtype).eps)
    apart = float((point.double() - other.double()).norm())
    return apart <= _ROUNDING * unit * float(point.double().norm() + other.double().norm())


def check_knowledge(
    rounds: KeptRounds, of: LeftOver, sources: Callable[[str, int], Any] | None
) -> Outcome:
    """Noise with a name is what each agent that is said to know it makes of it again.

    Args:
        rounds: what was kept.
        of: what is left of the releases.
        sources: (id, agent) -> (D,) the standard normal numbers of a source, as an agent makes
            them from the seed that it holds.
    """
    name = "knowledge"
    if sources is None:
        return not_run(name, "no function was given that makes sources again", applies=False)
    pairs, wrong = 0, ""
    for row in of.rows:
        named = [one for one in row.at.release.noise if one.id is not None]
        free = [j for j, one in enumerate(row.at.release.noise) if one.id is None]
        if not named or any(j not in row.at.kept.noise for j in free):
            continue
        rest = row.left.clone()
        for j in free:
            rest -= row.at.kept.noise[j].double()
        parts = {
            (one.id, agent): one.std * _made(sources, one.id or "", agent, len(rest))
            for one in named
            for agent in sorted(one.known_to)
        }
        # A source that nobody knows can be made again by nobody.
        if any(not one.known_to for one in named):
            continue
        first = {one.id: parts[one.id, min(one.known_to)] for one in named}
        for (id_, agent), part in parts.items():
            pairs += 1
            left = rest - sum(first.values(), torch.zeros_like(rest)) + first[id_] - part
            if not float(left.norm()) <= row.rounding:
                who = party_name(agent, rounds.log.header)
                wrong = wrong or (
                    f"{id_!r} in {row.at.name} of round {row.at.played.round} is not what {who} "
                    "makes of its seed"
                )
    if not pairs:
        return not_run(name, "no release has sources with names and nothing else that is secret")
    words = f"{pairs} pairs of a source and an agent that is said to know it were made again"
    words += f"; {wrong}" if wrong else "; each is what the release holds"
    return outcome_of(Check(name=name, passed=not wrong, p=None, tests=pairs, words=f"{words}."))


def _made(sources: Callable[[str, int], Any], id: str, agent: int, width: int) -> Tensor:
    found = vector_of(_asked("sources", sources, id, agent), "sources").double()
    if len(found) != width:
        raise InputError(f"sources({id!r}, {agent}) has {len(found)} values, and must have {width}")
    return found
