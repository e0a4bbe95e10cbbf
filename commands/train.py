"""The command `overhear train`: in one process, over processes of its own, or as a rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.log import current_log
from .terminal.options import Format, RunPath, TableOrJson, TrustCode, trust
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.folder.ranks import Group
    from ..runs.stop import Stop


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What is trained, and where it is written."""

    out: Annotated[Path, "DIR"]
    """Folder for the run; it must be new, except with --resume."""
    overrides: Annotated[Sequence[str], "--set table.key=value"] = ()
    """Override a key of the run file; may be repeated."""
    resume: bool = False
    """Continue the unfinished run in DIR."""
    device: Annotated[str | None, "DEVICE"] = None
    """auto, cpu, cuda or cuda:N, in place of [training] device."""


def train(
    run: RunPath,
    asked: TrainRequest,
    *,
    ranks: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Spread the agents over R processes.")
    ] = None,
    rank_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1,
            max=86400,
            help="Longest time that a process may keep the others waiting.",
        ),
    ] = 60.0,
    trust_code: TrustCode = False,
    format: Format = TableOrJson.TABLE,
) -> None:
    """Train, write the ledger, and record intercepted rounds.

    As a rank of torchrun it trains its share of the agents. A first SIGINT, SIGTERM or SIGHUP
    ends it after the round that is running, with a checkpoint; a second one ends it at once.
    """
    from ..runs.folder.launch import exit_with_parent, launch
    from ..runs.folder.place import Place
    from ..runs.run_file.tables import check_rounds_device

    # What the command line decides, before a run file is read.
    trust(trust_code)
    if asked.device is not None:
        check_rounds_device(asked.device)
        on_device = f'training.device="{asked.device}"'
        asked = replace(asked, overrides=(*asked.overrides, on_device))
    stop = stop_of_command()
    place = Place.of_environment()
    # Without a rank's environment it starts the ranks itself.
    if place is None and ranks is not None and ranks > 1:
        given = ["--out", str(asked.out), *(f"--set={override}" for override in asked.overrides)]
        given += ["--resume"] * asked.resume + [f"--format={format}"]
        given += ["--trust-code"] * trust_code + [f"--rank-timeout={rank_timeout}"]
        code = launch(
            [*current_log().options, "train", *given, "--", str(run)],
            out=asked.out,
            ranks=ranks,
            timeout=rank_timeout,
            stop=stop,
        )
        raise typer.Exit(code)
    from ..runs.freed_memory import keep_freed_memory

    keep_freed_memory()
    if place is None or place.size == 1:
        _train(run, asked, format=format, stop=stop)
        return
    place.check_size(ranks)
    place.quieten_libraries()
    exit_with_parent()
    from ..runs.folder.ranks import joined

    with joined(place, timeout=rank_timeout, stop=stop) as group:
        _train(run, asked, format=format, stop=stop, group=group)


def _train(
    run: Path, asked: TrainRequest, *, format: TableOrJson, stop: Stop, group: Group | None = None
) -> None:
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    # The run file is read without torch; only rank 0 speaks.
    out, first = asked.out, group is None or group.place.rank == 0
    config = load_run_file(run, asked.overrides, notice=tell if first else None)
    from .terminal.progress import train_progress

    # A rank beside the first joins, and writes nothing.
    if group is not None:
        from ..runs.folder.ranks import take_device
        from ..runs.folder.run import join_run

        take_device(config.training.device, group.place)
        if group.place.rank > 0:
            join_run(config, out, group=group, stop=stop)
            return
    privacy = config.privacy
    limit = None if privacy is None else privacy.epsilon
    delta = None if privacy is None else privacy.delta
    with train_progress(make_console(stderr=True), limit=limit, delta=delta) as progress:
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ..runs.audit.audit_log import keep_trail
        from ..runs.folder.run import train_run

        if asked.resume:
            from ..runs.folder.resume import resume_run

            told = make_console(stderr=format is TableOrJson.JSON)
            summary = resume_run(
                config,
                out,
                progress=progress,
                notice=lambda text: told.print(text, soft_wrap=True),
                group=group,
                stop=stop,
            )
        else:
            summary = train_run(config, out, progress=progress, group=group, stop=stop)
    keep_trail(run, out)
    if format is TableOrJson.JSON:
        print_json(summary.dump())
        return
    from .terminal.tables import adversary_table

    console = make_console()
    console.print(adversary_table(summary.adversaries))
    say(console, f"The run is in {out}.")
