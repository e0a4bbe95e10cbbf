"""The option `--oracle` of `overhear audit`: a recorded system, held against its log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ...runs.recorder.conformance.outcome import Conformance

__all__ = ["run_conformance"]

_LONGEST = 30


def run_conformance(
    target: Path,
    *,
    oracle: str,
    points: str | None,
    public: Sequence[str],
    draw: int | None,
    holds: Sequence[str],
    json: bool,
) -> None:
    """Check what was kept of a recorded system against its log, and show what was found.

    Args:
        target: a log of releases, or a folder of logs.
        oracle: the name of a function of gradients, as `conformance` takes it.
        points: the name of a function of points.
        public: names of vectors that everybody knows.
        draw: how many of the kept rounds to look at, drawn by chance; all when None.
        holds: "AGENT:N", how many records an agent draws batches of its own from.
        json: whether to print the object instead.

    Raises:
        ValueError: a name that stands for nothing, or a log that is not as it was written.
        Exit: with code 4, a check contradicts the log.
    """
    from ...privacy.errors import InputError
    from ...runs.recorder.conformance.conformance import conformance
    from ...runs.recorder.conformance.written import dump, write_held
    from ...training.own.names import own_object

    gradients: Any = own_object(oracle, key="--oracle")
    starts: Any = None if points is None else own_object(points, key="--points")
    if starts is not None and not callable(starts):
        raise InputError(f"--points={points!r} must be a function (round, agent, released)")
    found = conformance(
        target,
        gradients=gradients,
        points=starts,
        public=[own_object(name, key="--public") for name in public],
        rounds=draw,
        records=_records(holds),
    )
    write_held(found)
    if json:
        print_json(dump(found))
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(4)


def _records(holds: Sequence[str]) -> dict[int, int]:
    """By agent how many records it holds."""
    from ...privacy.errors import InputError

    found: dict[int, int] = {}
    for text in holds:
        agent, _, count = text.partition(":")
        if not (agent.isdecimal() and count.isdecimal() and int(count)) or len(text) > _LONGEST:
            raise InputError(
                f"--holds {text!r:.60} must be AGENT:N, an agent and how many records it holds, "
                "such as 0:1000"
            )
        if int(agent) in found:
            raise InputError(f"--holds names agent {agent} twice; say once how many it holds")
        found[int(agent)] = int(count)
    return found


def _show(found: Conformance) -> None:
    from ..terminal.tables import rows_table

    console = make_console()
    rows = [
        {"check": one.name, "result": str(one.verdict), "what was found": one.words}
        for one in found.outcomes
    ]
    console.print(rows_table(rows, title=found.log.header.system))
    say(console, "Assumed all the same:")
    for sentence in found.assumed:
        say(console, f"- {sentence}")
    say(console, f"Verdict: {found.said}.")
