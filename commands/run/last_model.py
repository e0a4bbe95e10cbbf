"""The option `--last-model` of `overhear audit`: what is asked for, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ...runs.evidence.last_model import LastModel

__all__ = ["run_last_model"]


def run_last_model(
    target: Path,
    wanted: dict[str, Any],
    *,
    overrides: list[str],
    out: Path | None,
    again: bool,
    json: bool,
) -> None:
    """Audit by last models alone, and show what was found.

    Args:
        target: a run file, or the folder of a run.
        wanted: how much, as `LastModelWanted` names it.
        overrides: of the run file.
        out: of a run file, where its JSON goes.
        again: of a folder, audit once more.
        json: whether to print the object instead.

    Raises:
        ContradictedProof: more was measured than is proven, twice.
    """
    from ...runs.errors import ContradictedProof
    from ...runs.run_file.run_file import load_run_file
    from ...runs.stop import NOTHING_KEPT, tell

    stop = stop_of_command()
    stop.note(NOTHING_KEPT)
    is_run_file = target.suffix == ".toml"
    config = load_run_file(target, overrides, notice=tell) if is_run_file else None
    from ...runs.audit.last_model import (  # after: a bad run file is told without torch
        LastModelWanted,
        audit_last_model,
        audit_last_model_of_folder,
        raise_last_model,
    )
    from ...runs.evidence.last_model import read_last_model
    from ..terminal.progress import audit_progress

    of = LastModelWanted(**wanted)
    with audit_progress(make_console(stderr=True)) as progress:
        if config is not None:
            found = audit_last_model(config, of, progress=progress)
            stop.finish()
            if out is not None:
                found.write(out)
        else:
            try:
                found = audit_last_model_of_folder(
                    target, of, again=again, progress=progress, stop=stop
                )
            except ContradictedProof:
                kept = read_last_model(target)
                if kept is None:
                    raise
                found = kept
    if json:
        print_json(found.dump())
    else:
        _show(found)
    raise_last_model(found)


def _show(found: LastModel) -> None:
    console = make_console()
    say(
        console,
        f"{found.runs} runs of {found.rounds} rounds from trained initial parameters; a coin "
        f"decided about one record of agent {found.victim}, and only last models were seen.",
    )
    say(console, f"{found.words}.")
    say(console, f"Seed of the assignment: {found.seed}.")
    say(console, f"Verdict: {found.verdict}.")
