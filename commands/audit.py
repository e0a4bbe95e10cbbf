"""Audits: of a run or its last models, of a recorded system, and of scores from any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..runs.requests import LastModelRequest
from .terminal import terminal
from .terminal.signals import stop_of_command

if TYPE_CHECKING:
    from ..attacks.foreign.claimed import Claimed
    from ..attacks.foreign.scores_audit import ScoresAudit
    from ..runs.audit.evidence import LastModel
    from ..runs.audit.evidence_schema import Audit
    from ..runs.recorder.outcome import Conformance
    from ..runs.run_file.run_file import RunFile


Target = Annotated[
    Path,
    typer.Argument(metavar="DIR|RUN.toml", help="Folder of a run, or a run file."),
    terminal.IsThere(terminal.NO_RUN),
]
Again = Annotated[
    bool, typer.Option("--again", help="Audit a folder once more, and add to what was found.")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A file to write the JSON of a run file's audit into."),
]


def audit(
    target: Target,
    *,
    overrides: terminal.Overrides = None,
    again: Again = False,
    out: Out = None,
    device: terminal.Device = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Measure epsilon with planted records, and check the program.

    The planted records (canaries) give a lower bound on epsilon, which is compared with the proof.

    In a run's folder the result is kept as audit.json, and --set takes keys of [audit]. An audit of
    a run file leaves a line in audits.jsonl beside it. The exit code is 4 if what is measured
    contradicts a proven epsilon, or a check of the engine fails.
    """
    from ..runs.errors import ContradictedProof
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import NOTHING_KEPT, tell

    terminal.trust(trust_code)
    _check_out(target, out, again=again)
    # A run file is audited as it stands; a folder may contradict what it has kept.
    contradicted: ContradictedProof | None = None
    untraced, stop = "", stop_of_command()
    stop.note(NOTHING_KEPT)
    config = load_run_file(target, overrides or (), notice=tell) if _is_run_file(target) else None
    from .terminal.progress import audit_progress

    with audit_progress(terminal.make_console(stderr=True)) as progress:
        # Only now: a bad run file is told without torch, and its import takes a while.
        from ..runs.audit.audit import audit_config, audit_folder, raise_contradiction
        from ..runs.stop import give_freed_memory_back

        give_freed_memory_back()
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
    # All is shown and kept before a contradiction ends the command.
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
    else:
        _show(found)
    if untraced:
        terminal.say(terminal.make_console(stderr=True), untraced)
    try:
        if out is not None:  # after it is shown, so that nothing is lost where it cannot be kept
            found.write(out)
    finally:
        if contradicted is not None:
            raise contradicted
        raise_contradiction(found)


def audit_last_model(
    target: Target,
    request: LastModelRequest,
    *,
    overrides: terminal.Overrides = None,
    again: Again = False,
    out: Out = None,
    trust_code: terminal.TrustCode = False,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Measure epsilon with a planted record that only last models can show.

    The run is trained over and over with the record (canary) and without it, and only the last
    models are looked at, which gives a lower bound on epsilon for their holders.

    In a run's folder the result is kept as last-model.json. The exit code is 4 if what is measured
    contradicts a proven epsilon.
    """
    from ..privacy.errors import InputError
    from ..runs.errors import ContradictedProof
    from ..runs.run_file.run_file import load_run_file
    from ..runs.stop import NOTHING_KEPT, tell

    terminal.trust(trust_code)
    if not _is_run_file(target) and overrides:
        raise InputError(
            "--set is of a run file, and the folder of a run has its own; leave it out"
        )
    # Where the outcome goes, and what is audited.
    _check_out(target, out, again=again)
    stop = stop_of_command()
    stop.note(NOTHING_KEPT)
    config = load_run_file(target, overrides or (), notice=tell) if _is_run_file(target) else None
    from ..runs.audit import last_model  # after: a bad run file is told without torch
    from ..runs.audit.evidence import read_last_model
    from .terminal.progress import audit_progress

    with audit_progress(terminal.make_console(stderr=True)) as progress:
        if config is not None:
            found = last_model.audit_last_model(config, request, progress=progress)
            stop.finish()
            if out is not None:
                found.write(out)
        else:
            try:
                found = last_model.audit_last_model_of_folder(
                    target, request, again=again, progress=progress, stop=stop
                )
            except ContradictedProof:
                kept = read_last_model(target)
                if kept is None:
                    raise
                found = kept
    # It is shown before it is held against the proof.
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
    else:
        _show_last_model(found)
    last_model.raise_last_model(found)


def _is_run_file(target: Path) -> bool:
    return target.suffix == ".toml"


def _check_out(target: Path, out: Path | None, *, again: bool) -> None:
    """Refuse a place for the result that does not fit."""
    from ..privacy.errors import InputError

    if target.suffix != ".toml" and out is not None:
        raise InputError("--out belongs to RUN.toml; of a folder the result is kept in it")
    if target.suffix == ".toml" and again:
        raise InputError("--again belongs to the folder of a run; a run file is audited every time")
    if out is not None and out.exists():
        raise FileExistsError(f"{out} exists; an audit is never overwritten, name another file")
    if out is not None and not out.parent.is_dir():
        raise FileNotFoundError(f"{out.parent} is no folder; make it, or name another --out")


def _traced(run_file: Path, config: RunFile, found: Audit) -> tuple[Audit, str]:
    """The audit with what stands beside its run file, or why no trace of it was left."""
    from ..runs.audit.evidence import TRAIL, leave_trace
    from ..runs.errors import STATED, sentence

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
    from ..runs.audit.evidence import read_audit

    if (found := read_audit(folder)) is None:
        raise error
    return found


def _show(found: Audit) -> None:
    from ..runs.run_file.tables import is_same_device
    from .terminal.tables import checks_table, measured_table, trail_lines

    console = terminal.make_console()
    console.print(measured_table(found))
    for adversary in found.adversaries:
        terminal.say(console, f"{adversary.words}.")
    console.print(checks_table(found.checks))
    if found.seed is not None:
        terminal.say(console, f"Seed of the assignment: {found.seed}.")
    for line in trail_lines(found):
        terminal.say(console, line)
    if found.run_device and not is_same_device(found.run_device, found.device):
        terminal.say(
            console,
            f"The rounds of the audit ran on {found.device}, those of the run on "
            f"{found.run_device}: its noise and gradients there were not played again.",
        )
    terminal.say(console, f"Verdict: {found.verdict}.")


def _show_last_model(found: LastModel) -> None:
    console = terminal.make_console()
    terminal.say(
        console,
        f"{found.runs} runs of {found.rounds} rounds from trained initial parameters; a coin "
        f"decided about one record of agent {found.victim}, and only last models were seen.",
    )
    terminal.say(console, f"{found.words}.")
    terminal.say(console, f"Seed of the assignment: {found.seed}.")
    terminal.say(console, f"Verdict: {found.verdict}.")


_LONGEST = 30


@dataclass(frozen=True, kw_only=True)
class LogAuditRequest:
    """What computes the rounds again that a recorder kept."""

    oracle: Annotated[str, "module:NAME"]
    """A function (point, positions) of gradients, unclipped."""
    points: Annotated[str | None, "module:NAME"] = None
    """A function from (round, agent, released) to a point."""
    public: Annotated[Sequence[str], "module:NAME"] = ()
    """A vector that all know; may be repeated."""
    numbers: Annotated[str | None, "module:NAME"] = None
    """A function from (round, agent, released) to numbers by name, or None at the end."""
    draw: Annotated[int | None, "N"] = None
    """Look at N of the kept rounds, drawn at random."""
    holds: Annotated[Sequence[str], "AGENT:N"] = ()
    """How many records an agent draws batches of its own from; may be repeated."""


def audit_log(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="A log of releases, or the folder of a system's logs."),
        terminal.IsThere("{} does not exist; name a log of releases"),
    ],
    request: LogAuditRequest,
    *,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Check what a recorded system kept against the lines of its log.

    A recorder keeps transcripts of some rounds. They are computed again by the oracle, a function
    of yours that makes the gradients. The exit code is 4 if what was kept is not what the log says.
    """
    from ..privacy.errors import InputError
    from ..runs.recorder.conformance import conformance
    from ..runs.recorder.outcome import dump, write_held
    from ..training.own.names import own_object

    gradients: Any = own_object(request.oracle, key="--oracle")
    given: dict[str, Any] = {}
    for key, name in (("points", request.points), ("numbers", request.numbers)):
        given[key] = None if name is None else own_object(name, key=f"--{key}")
        if name is not None and not callable(given[key]):
            raise InputError(f"--{key}={name!r} must be a function (round, agent, released)")
    found = conformance(
        log,
        gradients=gradients,
        **given,
        public=[own_object(name, key="--public") for name in request.public],
        rounds=request.draw,
        records=_records(request.holds),
    )
    write_held(found)
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(dump(found))
    else:
        _show_conformance(found)
    if found.failed:
        raise typer.Exit(4)


def _records(holds: Sequence[str]) -> dict[int, int]:
    """By agent how many records it holds."""
    from ..privacy.errors import InputError

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


def _show_conformance(found: Conformance) -> None:
    from .terminal.tables import rows_table

    console = terminal.make_console()
    rows = [
        {"check": outcome.name, "result": str(outcome.verdict), "what was found": outcome.words}
        for outcome in found.outcomes
    ]
    console.print(rows_table(rows, title=found.log.header.system))
    terminal.say(console, "Assumed all the same:")
    for sentence in found.assumed:
        terminal.say(console, f"- {sentence}")
    terminal.say(console, f"Verdict: {found.said}.")


@dataclass(frozen=True, kw_only=True)
class ScoresRequest:
    """What is claimed of a training, and how its scores are read."""

    claim: Annotated[Sequence[str], "KEY=VALUE,..."] = ()
    """What is claimed: epsilon=3,delta=1e-5; noise=1.0,rate=.0769,rounds=104."""
    ledger: Annotated[Path | None, "LOG"] = None
    """A log of releases, which gives the mechanism."""
    confidence: Annotated[float, "C"] = 0.95
    """Confidence of the bound."""
    ratios: bool = False
    """The scores are log-likelihood ratios."""


def audit_scores(
    scores: Annotated[
        Path,
        typer.Argument(metavar="FILE.csv", help="A file with score,included of each canary."),
        terminal.IsThere("{}: No such file or directory"),
    ],
    request: ScoresRequest,
    *,
    format: terminal.Format = terminal.TableOrJson.TABLE,
) -> None:
    """Measure epsilon by the scores of canaries in any training.

    The scores give a lower bound on epsilon, which is compared with what is claimed of the
    training. The exit code is 4 if they contradict the claim.
    """
    from ..attacks.foreign import scores_audit
    from ..attacks.foreign.scores_audit import read_scores
    from ..runs.errors import ContradictedProof

    claimed = _claim(request.claim, request.ledger)
    read = read_scores(scores)
    found = scores_audit.audit_scores(
        read.scores,
        read.included,
        claim=claimed,
        confidence=request.confidence,
        ratios=request.ratios,
    )
    if format is terminal.TableOrJson.JSON:
        terminal.print_json(found.dump())
    else:
        _show_scores(found)
    if found.contradicted:
        raise ContradictedProof(found.words())


def _claim(texts: Sequence[str], ledger: Path | None) -> Claimed:
    from ..attacks.foreign.claimed import DELTA, claim_of_log, parse_claim, parsed_numbers
    from ..privacy.errors import InputError
    from ..privacy.releases.log import read_log

    if ledger is None:
        if not texts:
            raise InputError(
                "audit-scores takes a claim: --claim epsilon=3,delta=1e-5, or --ledger LOG"
            )
        return parse_claim(texts)
    numbers = parsed_numbers(texts)
    if stray := [name for name in numbers if name not in ("epsilon", "delta")]:
        raise InputError(
            f"{stray[0]} is claimed beside --ledger, which says what the mechanism is; leave the "
            "one or the other out"
        )
    return claim_of_log(
        read_log(ledger), delta=numbers.get("delta", DELTA), epsilon=numbers.get("epsilon")
    )


def _show_scores(found: ScoresAudit) -> None:
    from ..attacks.foreign.scores_audit import ideal_words
    from ..runs.numbers import lower_bound

    console = terminal.make_console()
    terminal.say(console, ideal_words(found))
    table = terminal.make_table(f"Bounds that hold together, at {100 * found.confidence:g} %")
    table.add_column("threshold", no_wrap=True)
    for name in ("at", "guessed", "errors", "epsilon at least"):
        table.add_column(name, justify="right")
    for bound in found.bounds:
        table.add_row(
            bound.name,
            f"{bound.threshold:.4g}",
            str(bound.guesses),
            f"{bound.false_alarms} + {bound.misses}",
            lower_bound(bound.epsilon),
        )
    console.print(table)
    terminal.say(console, f"{found.bounds[0].assumptions}")
    if not found.contradicted:  # which is said on standard error
        terminal.say(console, f"{found.words()}.")
    terminal.say(console, f"Verdict: {found.verdict}.")
