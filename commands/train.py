"""The command `overhear train`: in one process, over processes of its own, or as a rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .terminal.log import current_log
from .terminal.options import Format, Overrides, RunPath, TableOrJson, TrustCode, trust
from .terminal.signals import stop_of_command
from .terminal.terminal import make_console, print_json, say

if TYPE_CHECKING:
    from ..runs.folder.ranks import Group
    from ..runs.stop import Stop


def train(
    run: RunPath,
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Folder for the run; it must be new, except with --resume."
        ),
    ],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the unfinished run in DIR.")
    ] = False,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="R", min=1, help="Spread the agents over R processes."),
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
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            help="auto, cpu, cuda or cuda:N, in place of [training] device.",
        ),
    ] = None,
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
    if device is not None:
        check_rounds_device(device)
        overrides = [*(overrides or ()), f'training.device="{device}"']
    stop = stop_of_command()
    place = Place.of_environment()
    # Without a rank's environment it starts the ranks itself.
    if place is None and ranks is not None and ranks > 1:
        given = ["--out", str(out), *(f"--set={override}" for override in overrides or ())]
        given += ["--resume"] * resume + [f"--format={format}"]
        given += ["--trust-code"] * trust_code + [f"--rank-timeout={rank_timeout}"]
        code = launch(
            [*current_log().options, "train", *given, "--", str(run)],
            out=out,
            ranks=ranks,
            timeout=rank_timeout,
            stop=stop,
        )
        raise typer.Exit(code)
    from ..runs.freed_memory import keep_freed_memory

    keep_freed_memory()
    if place is None or place.size == 1:
        _train(run, out, overrides or (), resume=resume, format=format, stop=stop)
        return
    place.check_size(ranks)
    place.quieten_libraries()
    exit_with_parent()
    from ..runs.folder.ranks import joined

    with joined(place, timeout=rank_timeout, stop=stop) as group:
        _train(run, out, overrides or (), resume=resume, format=format, stop=stop, group=group)


def _train(
    run: Path,
    out: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    format: TableOrJson,
    stop: Stop,
    group: Group | None = None,
) -> None:
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import tell

    # The run file is read without torch; only rank 0 speaks.
    first = group is None or group.place.rank == 0
    config = load_run_file(run, overrides, notice=tell if first else None)
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

        if resume:
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
