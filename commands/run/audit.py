"""The command `overhear audit`: on a run file, or on the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..terminal import completion
from ..terminal.options import Device, TrustCode, trust
from ..terminal.signals import stop_of_command
from ..terminal.terminal import make_console, print_json, say
from .scores import ScoresWanted, run_scores

if TYPE_CHECKING:
    from ...runs.evidence.schema import Audit
    from ...runs.run_file.run_file import RunFile

__all__ = ["audit"]


def audit(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR|RUN.toml]",
            help="Folder of a run, or a run file; with --oracle a log.",
        ),
    ] = None,
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="table.key=value",
            help="Override a key; for DIR a key of [audit].",
            autocompletion=completion.overrides,
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Audit once more, and add to what was found (DIR only).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file to write the JSON into as well (RUN.toml only)."),
    ] = None,
    membership: Annotated[
        bool,
        typer.Option(
            "--membership",
            help="Infer who was trained on, instead of planting canaries (DIR only).",
        ),
    ] = False,
    references: Annotated[
        int | None,
        typer.Option(metavar="K", help="Number of reference runs, 16 (--membership only)."),
    ] = None,
    games: Annotated[
        int | None,
        typer.Option(
            metavar="G", help="Number of runs with random assignment, 4 (--membership only)."
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(metavar="N", help="Most members and non-members, 2000 (--membership only)."),
    ] = None,
    last_model: Annotated[
        bool, typer.Option("--last-model", help="Plant a canary that only last models can show.")
    ] = False,
    runs: Annotated[
        int | None, typer.Option(metavar="R", help="Number of trainings, 400 (--last-model only).")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            metavar="M", help="Most minutes to train, 30 (--membership and --last-model only)."
        ),
    ] = None,
    show_records: Annotated[
        bool,
        typer.Option(
            "--show-records", help="List the records at highest risk (--membership only)."
        ),
    ] = False,
    oracle: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME",
            help="Check what a recorded system kept against the lines of its logs, with "
            "this function (point, positions) of gradients.",
        ),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(
            metavar="module:NAME",
            help="A function from (round, agent, released) to a point (--oracle only).",
        ),
    ] = None,
    public: Annotated[
        list[str] | None,
        typer.Option(
            metavar="module:NAME", help="A vector that all know; may be repeated (--oracle only)."
        ),
    ] = None,
    draw: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Look at N of the kept rounds, drawn by chance (--oracle only)."
        ),
    ] = None,
    holds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AGENT:N",
            help="How many records an agent draws batches of its own from; may be repeated "
            "(--oracle only).",
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="Instead of a run: a file with score,included of each canary."
        ),
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Epsilon=3,delta=1e-5; noise=1.0,rate=.0769,rounds=104 (--scores only).",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="LOG", help="A log of releases, which gives the mechanism (--scores only)."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(metavar="C", help="Confidence of the bound, 0.95 (--scores only)."),
    ] = None,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="The scores are log-likelihood ratios (--scores only).")
    ] = False,
    device: Device = None,
    trust_code: TrustCode = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Measure epsilon with planted records, and check the program.

    The planted records (canaries) give a lower bound on epsilon, which is compared with the proof.
    With --scores, scores of canaries in any other training are compared with a claim.

    In a run's folder the result is kept as audit.json, that of --membership as membership.json, and
    that of --last-model as last-model.json. An audit of a run file leaves a line in audits.jsonl
    beside it. The exit code is 4 if what is measured contradicts a proven epsilon, a check of the
    engine fails, more guesses of members are right than the proof allows, or what was kept of a
    recorded system is not what its log says.
    """
    from ...privacy.errors import InputError

    if oracle is not None and scores is None:
        if target is None:
            raise InputError("--oracle needs a log of releases, or the folder that holds them")
        from .conformance import run_conformance

        stray = {"--set": overrides, "--out": out, "--again": again, "--device": device}
        if extra := [name for name, value in stray.items() if value]:
            raise InputError(f"{extra[0]} does not belong to --oracle; leave it out")
        run_conformance(
            target, oracle=oracle, points=points, public=public or (), draw=draw,
            holds=holds or (), json=json,
        )  # fmt: skip
        return
    of_oracle = {"--points": points, "--public": public, "--draw": draw, "--holds": holds}
    for name, value in of_oracle.items():
        if value:
            raise InputError(f"{name} belongs to --oracle; add it, or leave this out")
    trust(trust_code)
    given = {"references": references, "games": games, "records": records, "minutes": minutes}
    asked = {name: value for name, value in (given | {"runs": runs}).items() if value is not None}
    of_scores = ScoresWanted(claim=claim, ledger=ledger, confidence=confidence, ratios=ratios)
    if scores is not None:
        others: dict[str, object] = {
            "--membership": membership,
            "--last-model": last_model,
            "--again": again,
            "--oracle": oracle,
        }
        others |= {f"--{name}": True for name in asked} | {"--show-records": show_records}
        others |= {"--set": overrides, "--out": out, "--device": device, "a run": target}
        run_scores(scores, of_scores, others=[name for name, on in others.items() if on], json=json)
        return
    if target is None:
        raise InputError("a run's folder or a run file is missing; or give --scores FILE.csv")
    of_scores.check_unused()
    if last_model:
        if membership:
            raise InputError("--membership and --last-model are two audits; ask for one at a time")
        if show_records:
            asked = {"show-records": True} | asked
        _last_model(target, asked, overrides, out, device=device, again=again, json=json)
        return
    if membership:
        if runs is not None:
            raise InputError("--runs belongs to --last-model; --games is what --membership plays")
        wanted = {**asked, "device": device, "again": again, "show_records": show_records}
        _membership(target, wanted, overrides, out, json=json)
        return
    from ...runs.errors import ContradictedProof
    from ...runs.run_file.run_file import load_run_file
    from ...runs.stop import NOTHING_KEPT, tell

    if asked or show_records:
        name = "show-records" if show_records else next(iter(asked))
        of = {"runs": "--last-model", "minutes": "--membership or --last-model"}
        what = of.get(name, "--membership")
        raise InputError(f"--{name} belongs to {what}; add it, or leave this out")
    _check_out(target, out, again=again)
    contradicted: ContradictedProof | None = None
    untraced, stop = "", stop_of_command()
    stop.note(NOTHING_KEPT)
    config = load_run_file(target, overrides or (), notice=tell) if _is_run_file(target) else None
    from ..terminal.progress import audit_progress

    with audit_progress(make_console(stderr=True)) as progress:
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ...runs.audit.audit import audit_config, audit_folder, raise_contradiction

        if config is not None:
            found = audit_config(config, device=device, progress=progress, expect=progress.expect)
            stop.finish()
            found, untraced = _traced(target, config, found)
        else:
            try:
                found = audit_folder(
                    target,
                    overrides=overrides or (),
                    device=device,
                    again=again,
                    progress=progress,
                    expect=progress.expect,
                    stop=stop,
                )
            except ContradictedProof as error:
                contradicted, found = error, _written(target, error)
    if json:
        print_json(found.dump())
    else:
        _show(found)
    if untraced:
        say(make_console(stderr=True), untraced)
    try:
        if out is not None:  # after it is shown, so that nothing is lost where it cannot be kept
            found.write(out)
    finally:
        if contradicted is not None:
            raise contradicted
        raise_contradiction(found)


def _is_run_file(target: Path) -> bool:
    return target.suffix == ".toml"


def _check_out(target: Path, out: Path | None, *, again: bool) -> None:
    """Refuse a place for the result that does not fit."""
    from ...privacy.errors import InputError

    if target.suffix != ".toml" and out is not None:
        raise InputError("--out belongs to RUN.toml; of a folder the result is kept in it")
    if target.suffix == ".toml" and again:
        raise InputError("--again belongs to the folder of a run; a run file is audited every time")
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists; an audit is never overwritten, name another file")
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} is no folder; make it, or name another --out")


def _last_model(
    target: Path,
    asked: dict[str, Any],
    overrides: list[str] | None,
    out: Path | None,
    *,
    device: str | None,
    again: bool,
    json: bool,
) -> None:
    """Plant a canary in input space, and ask the last models alone."""
    from ...privacy.errors import InputError
    from .last_model import run_last_model

    if stray := [name for name in asked if name not in ("runs", "minutes")]:
        raise InputError(f"--{stray[0]} belongs to --membership; leave it out")
    if target.suffix != ".toml" and overrides:
        raise InputError("--set does not belong to --last-model of a folder; leave it out")
    _check_out(target, out, again=again)
    wanted = {**asked, "device": device}
    run_last_model(target, wanted, overrides=overrides or [], out=out, again=again, json=json)


def _membership(
    target: Path,
    asked: dict[str, Any],
    overrides: list[str] | None,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Infer membership in place of planting canaries."""
    from ...privacy.errors import InputError
    from ...runs.audit.membership import Wanted
    from .membership import run_membership

    if target.suffix == ".toml":
        raise InputError(
            "--membership belongs to the folder of a run: it asks which records its final models "
            "were trained on; train RUN.toml first"
        )
    if overrides or out is not None:
        given = "--set" if overrides else "--out"
        raise InputError(f"{given} does not belong to --membership; leave it out")
    run_membership(target, Wanted(**asked), json=json)


def _traced(run_file: Path, config: RunFile, found: Audit) -> tuple[Audit, str]:
    """The audit with what stands beside its run file, or why no trace of it was left."""
    from ...runs.audit.trail import TRAIL, leave_trace
    from ...runs.errors import STATED, sentence

    try:
        return found.model_copy(update={"trail": leave_trace(run_file, config, found)}), ""
    except STATED as error:
        return found, (
            f"No trace of this audit was left: {sentence(error)}. Its result stands all the same. "
            f"Let {TRAIL} be written beside the run file, so that others see how often it was "
            "audited."
        )


def _written(folder: Path, error: Exception) -> Audit:
    """The audit that was written before it was found to contradict a proof."""
    from ...runs.evidence.evidence import read_audit

    if (found := read_audit(folder)) is None:
        raise error
    return found


def _show(found: Audit) -> None:
    from ...runs.run_file.device import is_same_device
    from ..terminal.audit_tables import checks_table, measured_table, trail_lines

    console = make_console()
    console.print(measured_table(found))
    for one in found.adversaries:
        say(console, f"{one.words}.")
    console.print(checks_table(found.checks))
    if found.seed is not None:
        say(console, f"Seed of the assignment: {found.seed}.")
    for line in trail_lines(found):
        say(console, line)
    if found.run_device and not is_same_device(found.run_device, found.device):
        say(
            console,
            f"The rounds of the audit ran on {found.device}, those of the run on "
            f"{found.run_device}: its noise and gradients there were not played again.",
        )
    say(console, f"Verdict: {found.verdict}.")
